"""What the auditor holds the broker to for leases: fencing, numbers that repeat, commits that stay.

As the auditor does, it knows what was asked and what was let out, and shares no code with the core.
"""

from collections.abc import Callable, Mapping, Sequence

from headrace.sim.auditor import Auditor
from headrace.sim.facts import Asked, LeaseFacts, Place

Held = tuple[Place, int, int, int]  # place, first and last offset, delivery count
Staged = Mapping[tuple[Place, int], str]  # verdict by offset
LEASE = "lease/"  # before the name of a session, for its holder
LATER, LATER_US = "later", 1_500_000  # a verdict: release, with this delay
_STRICTNESS = ("accept", "release", LATER, "reject")


class LeaseAuditor:
    """The promises made to one session."""

    def __init__(
        self, auditor: Auditor, now_us: Callable[[], int], group: str, session: str
    ) -> None:
        self.holder = f"{LEASE}{session}"
        self._auditor = auditor
        self._now_us = now_us
        self._group = group
        self._facts = LeaseFacts()
        auditor.sessions.append(self)

    def power_was_cut(self, since_us: int) -> None:
        """Forget what was answered since a time: an epoch or a number may be given once more."""
        facts = self._facts
        facts.epoch.forget(since_us)
        facts.committed.forget(since_us)
        for number in [one for one, at in facts.acquired_at.items() if at.us >= since_us]:
            del facts.acquired_at[number]
            facts.ranges.pop(number, None)
        for number, parts in facts.staged.items():
            is_durable = all(
                (number, part) not in facts.doubted
                and facts.staged_at_us.get((number, part), since_us) < since_us
                for part in parts
            )
            if not is_durable:
                # What was staged before the last of it may be there again, and none of the parts.
                facts.doubted |= {(number, part) for part in ("", "cut", *parts)}

    def end_was_lost(self, place: Place, end: int) -> None:
        """Forget ranges of records that a log lost; others of that log may be discarded, too."""
        ranges = self._facts.ranges
        for number, held in ranges.items():
            if any(of == place and last >= end for of, _, last, _ in held):
                ranges[number] = tuple(one for one in held if one[0] != place)
            else:
                self._facts.unsure.setdefault(number, set()).add(place)

    def _is_as_before(self, number: int, held: Sequence[Held], before: Sequence[Held]) -> bool:
        """Return whether ranges are those that a number had, or what a lost end left of them."""
        places = {place for place, *_ in held}
        gone = self._facts.unsure.get(number, set()) - places
        return tuple(held) == tuple(one for one in before if one[0] not in gone)

    def fenced(self, asked: Asked, epoch: int) -> None:
        """A call was carried out: its driver must not have been replaced before it was sent."""
        facts = self._facts
        if epoch < facts.epoch.value and asked.follows(facts.epoch.at):
            told = f"{self.holder}: epoch {epoch} was served after {facts.epoch.value}"
            self._auditor.broken(told)

    def opened(self, asked: Asked, epoch: int, committed: int, outstanding: Sequence[int]) -> None:
        """The session was opened anew."""
        facts = self._facts
        if epoch <= facts.epoch.value and asked.follows(facts.epoch.at):
            self._auditor.broken(f"{self.holder}: opened at {epoch}, after {facts.epoch.value}")
        facts.epoch.reach(epoch, self._auditor.timeline.now())
        self._settled_whole(asked, committed)
        if committed < facts.committed.value and asked.follows(facts.committed.at):
            self._auditor.broken(
                f"{self.holder}: {facts.committed.value} was committed, and is {committed} now"
            )
        for number, at in facts.acquired_at.items():
            known = asked.follows(at) and number > facts.committing
            if known and number not in outstanding:
                self._auditor.broken(f"{self.holder}: acquisition {number} is not outstanding")

    def _settled_whole(self, asked: Asked, committed: int) -> None:
        """Numbers are committed, whose answer may be lost: all that the session had is settled."""
        facts, now_us = self._facts, self._now_us()
        for (number, place, offset), until_us in facts.held_until_us.items():
            if number <= committed and now_us < until_us and number in facts.ranges:
                is_left = (place, offset) in set(_offsets(facts.ranges[number]))
                possible = self._possible(number, place, offset)
                if is_left and possible in (["accept"], ["reject"]):
                    self._auditor.acknowledged(
                        asked, place, self.holder, [(offset, offset, possible[0])]
                    )
        if committed:
            facts.held_until_us.clear()

    def acquired(
        self, asked: Asked, number: int, held: Sequence[Held], *, fresh: bool, whole: bool
    ) -> None:
        """Ranges were told under a number.

        Args:
            fresh: the number was not outstanding, so this is a delivery, and not word of one.
            whole: no topic can be gone by now.
        """
        facts = self._facts
        before = facts.ranges.get(number)
        known = before is not None and asked.follows(facts.acquired_at[number])
        if before is not None and known:
            is_whole = whole and number > facts.committing
            if is_whole and not self._is_as_before(number, held, before):
                self._auditor.broken(f"{self.holder}: {number} was {before} and is {held}")
            elif facts.unsure.pop(number, None):
                facts.ranges[number] = tuple(held)
        if not held:
            return
        facts.ranges.setdefault(number, tuple(held))
        facts.acquired_at.setdefault(number, self._auditor.timeline.now())
        for place in dict.fromkeys(place for place, *_ in held):
            ranges = [(first, last, count) for of, first, last, count in held if of == place]
            self._auditor.delivered(asked, place, ranges, fresh=fresh)

    def staging(self, number: int, staged: Staged, part: str = "", epoch: int = 0) -> None:
        """Dispositions are sent: until it is answered, the earlier ones or these may hold."""
        facts = self._facts
        parts = facts.staged.setdefault(number, {})
        if facts.staged_in.get(number) != epoch:  # the first part of a driver ends those before it
            parts.clear()
        facts.staged_in[number] = epoch
        parts[part] = dict(staged)
        facts.doubted.add((number, part))
        facts.staged_at_us.pop((number, part), None)

    def staged(self, number: int, staged: Staged, part: str = "", epoch: int = 0) -> None:
        """Dispositions are durable."""
        facts = self._facts
        sent = facts.staged.get(number, {}).get(part)
        if sent == dict(staged) and facts.staged_in.get(number) == epoch:
            facts.doubted.discard((number, part))
            facts.staged_at_us[number, part] = self._now_us()
            # It ended what drivers before this one had staged, whether or not that had arrived.
            known = facts.staged[number]
            facts.doubted = {one for one in facts.doubted if one[0] != number or one[1] in known}

    def committing(self, number: int) -> None:
        """All numbers up to this may be settled from now on."""
        facts = self._facts
        for known, held in facts.ranges.items():
            if known <= number:
                for place, offset in _offsets(held):
                    until_us = self._auditor.held_until_us(self._group, place, offset, self.holder)
                    if until_us:
                        facts.held_until_us[known, place, offset] = until_us
                    for verdict in self._possible(known, place, offset):
                        said = (offset, offset, "release" if verdict == LATER else verdict)
                        self._auditor.acknowledging(self._group, place, self.holder, [said])
        facts.committing_from = facts.committing + 1
        facts.committing = max(facts.committing, number)

    def discarded(self, place: Place) -> None:
        """What is outstanding there was discarded by a reset."""
        ranges = self._facts.ranges
        for number, held in ranges.items():
            ranges[number] = tuple(one for one in held if one[0] != place)

    def committed(self, asked: Asked, number: int, refused: int) -> None:
        """It is settled; if some were not held any more, nobody knows which."""
        facts = self._facts
        facts.committed.reach(number, self._auditor.timeline.now())
        for known in [one for one in facts.ranges if one <= number]:
            held = facts.ranges.pop(known)
            for place, offset in [] if refused else _offsets(held):
                possible = self._possible(known, place, offset)
                if len(possible) == 1:
                    later = possible[0] == LATER
                    said = (offset, offset, "release" if later else possible[0])
                    self._auditor.acknowledged(asked, place, self.holder, [said])
                    if later and known >= facts.committing_from:  # else it may long be settled
                        self._auditor.withheld(asked, place, offset, LATER_US)

    def _possible(self, number: int, place: Place, offset: int) -> list[str]:
        """The verdicts that a commit may give a record: as staged, the rest accepted."""
        facts = self._facts
        parts = facts.staged.get(number, {}).values()
        said = [one[place, offset] for one in parts if (place, offset) in one]
        if any(doubted == number for doubted, _ in facts.doubted):
            return ["accept", "release", "reject"]
        return [max(said, key=_STRICTNESS.index, default="accept")]


def _offsets(held: Sequence[Held]) -> list[tuple[Place, int]]:
    return [(place, offset) for place, first, last, _ in held for offset in range(first, last + 1)]
