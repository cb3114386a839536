"""Check committed offsets and assignments of consumer groups; shares no code with the broker.

A committed offset is a register: a response may contain the value of the commit that was
acknowledged last, or of one that is under way or whose response was lost, and nothing else. It may
be absent when nothing was committed, or when it may have expired (KIP-211, KIP-496): the group had
no active member for the retention time, or none that subscribes to the topic.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from headrace.sim.facts import START, Asked, Moment, Place, Queue

ABSENT = -1
_UNDER_WAY_US = 2_000_000  # a request takes no longer on quiet days


@dataclass(slots=True, eq=False)
class Write:
    """A commit (or a deletion, `ABSENT`): when it was sent, and when it was acknowledged."""

    value: int
    sent_us: int
    done: Moment | None = None
    metadata: str = ""


@dataclass(slots=True)
class _Group:
    """Activity of a group: when a member was last active, and the silences before that."""

    active_us: int = 0
    absent_us: int = -1  # when the last known member left, or a consumer joined
    seen_us: dict[str, int] = field(default_factory=dict)  # classic members, when last active
    silences: list[tuple[int, int]] = field(default_factory=list)
    generation: int = -1
    generation_at: Moment = START
    subscribed: frozenset[str] = frozenset()
    owners: dict[Place, tuple[str, int]] = field(default_factory=dict)
    confirm_until_us: dict[str, int] = field(default_factory=dict)  # by member that gives up
    alive_until_us: dict[str, int] = field(default_factory=dict)  # by member id
    uncertain: set[str] = field(default_factory=set)  # members whose partitions are unknown


class OffsetAuditor:
    """Promises about the groups of one history.

    Args:
        now: returns the moment of a response that leaves the broker.
        broken: called with each promise that the broker broke.
        retention_us: how long the offset of a partition that no member reads is kept.
        session_us: silence after which a member is removed.
        rebalance_us: time after which a member is removed that does not confirm that it gave
            partitions up.
    """

    def __init__(
        self,
        now: Callable[[], Moment],
        broken: Callable[[str], None],
        *,
        retention_us: int,
        session_us: int,
        rebalance_us: int,
    ) -> None:
        self._now = now
        self._broken = broken
        self._retention_us = retention_us
        self._session_us = session_us
        self._rebalance_us = rebalance_us
        self._groups: dict[str, _Group] = {}
        self._writes: dict[Queue, list[Write]] = {}
        self._commits: list[Write] = []  # in the order of sending, without the refused ones
        self._values: dict[Queue, set[tuple[int, str]]] = {}  # all that was ever sent
        self._repaired_us: int | None = None
        self.clock_was_set = False
        self._lost_us = -1
        self.completed: set[tuple[str, int]] = set()  # groups and generations that were assigned
        self.losses = 0  # times at which the broker may have forgotten sessions
        self._stalls: list[tuple[int, int]] = []  # when each began, and how long it lasted

    def _now_us(self) -> int:
        return self._now().us

    def _of(self, group: str) -> _Group:
        found = self._groups.get(group)
        if found is None:
            found = self._groups[group] = _Group()
        return found

    # ---- commits

    def committing(self, group: str, place: Place, value: int, metadata: str = "") -> Write:
        """A member sends a commit, or somebody sends a deletion."""
        write = Write(value, self._now_us(), metadata=metadata)
        self._writes.setdefault((group, place), []).append(write)
        if value != ABSENT:
            self._commits.append(write)
        self._values.setdefault((group, place), set()).add((value, metadata))
        return write

    def committed(self, write: Write) -> None:
        """The acknowledgement of a commit leaves the broker."""
        write.done = self._now()

    def refused(self, group: str, place: Place, write: Write) -> None:
        """The refusal of a commit leaves the broker."""
        self._writes[group, place].remove(write)
        self._commits = [one for one in self._commits if one is not write]

    def fetched(
        self, asked: Asked, group: str, place: Place, value: int, metadata: str = ""
    ) -> None:
        """A response to OffsetFetch contains a committed offset, -1 for none."""
        writes = self._writes.setdefault((group, place), [])
        if value == ABSENT and self._may_have_expired(group, place, writes):
            # From here on the offset is gone unless a commit is under way.
            self._settle(writes, asked, Write(ABSENT, 0, Moment(asked.at_us, asked.requests)))
            return
        if self._is_possible(writes, asked, value, metadata):
            return
        known = [f"{one.value} {one.metadata!r}{'' if one.done else '?'}" for one in writes[-4:]]
        self._broken(
            f"group {group}: the committed offset of {place[0]}-{place[1]} is {value}"
            f" {metadata!r}, the last commits are {', '.join(known) or 'none'}"
        )

    def _candidates(self, writes: list[Write], done: list[Write]) -> list[Write]:
        """Return the writes that none of `done` is known to have replaced."""
        newest_sent = max((one.sent_us for one in done), default=-1)
        return [one for one in writes if one.done is None or one.done.us >= newest_sent]

    def _is_possible(self, writes: list[Write], asked: Asked, value: int, metadata: str) -> bool:
        done = [one for one in writes if one.done is not None and asked.follows(one.done)]
        candidates = self._candidates(writes, done)
        if value == ABSENT and not done:
            return True
        return any((one.value, one.metadata) == (value, metadata) for one in candidates)

    def _settle(self, writes: list[Write], asked: Asked, found: Write) -> None:
        kept = [one for one in writes if one.done is None or not asked.follows(one.done)]
        writes[:] = [found, *kept]

    def power_was_cut(self) -> None:
        """Allow every earlier value: what was not synced was not promised."""
        self.losses += 1
        for writes in self._writes.values():
            writes.append(Write(ABSENT, self._now_us()))
            for one in writes:
                one.done = None
        for group in self._groups.values():
            group.generation = -1

    def journal_was_repaired(self) -> None:
        """Allow every value: commits may be lost, and what a lost deletion deleted is back."""
        self.power_was_cut()
        self._repaired_us = self._now_us()
        for queue, values in self._values.items():
            writes = self._writes.setdefault(queue, [])
            now_us = self._now_us()
            writes.extend(Write(value, now_us, metadata=sent) for value, sent in sorted(values))

    def commits_since(self, since_us: int) -> range:
        """Return how many commits the broker may have carried out since a point in time.

        What was acknowledged before does not count. What was sent and acknowledged since then must.
        """
        done = [one for one in self._commits if one.done is not None and one.done.us >= since_us]
        # An older one without a response counts if it may still be under way.
        open_us = since_us - _UNDER_WAY_US
        pending = [one for one in self._commits if one.done is None and one.sent_us >= open_us]
        least = sum(one.sent_us >= since_us for one in done)
        return range(least, len(done) + len(pending) + 1)

    def highest(self, place: Place) -> int:
        """Return the highest offset of a partition that any group ever sent, or 0."""
        sent = [max(values) for (_, known), values in self._values.items() if known == place]
        return max((offset for offset, _ in sent), default=0)

    @property
    def has_all_commits(self) -> bool:
        """Whether no repair gave up part of the journal within the last two retention times."""
        since_us = self._repaired_us
        return since_us is None or self._now_us() - since_us > 2 * self._retention_us

    # ---- members

    def active(self, group: str, subscribed: Collection[str] = (), member: str = "") -> None:
        """A response shows that a member is alive in the group.

        Args:
            member: its name if the group has the classic protocol.
        """
        one = self._of(group)
        now_us = self._now_us()
        if member:
            one.seen_us[member] = now_us
        if now_us - one.active_us > self._session_us:
            one.silences.append((one.active_us, now_us))
            one.generation = -1  # a group without members and offsets is forgotten
        one.active_us = now_us
        if subscribed:
            one.subscribed = frozenset(subscribed)

    def leaves(self, group: str, member: str) -> None:
        """A member of a classic group sends that it leaves."""
        one, since_us = self._of(group), self._now_us() - self._session_us
        one.seen_us.pop(member, None)
        if all(seen_us < since_us for seen_us in one.seen_us.values()):
            one.absent_us = self._now_us()
            one.generation = -1  # a group without members and offsets is forgotten

    def generation(self, group: str, number: int) -> None:
        """A member is answered that a generation of a classic group began."""
        one = self._of(group)
        self.completed.add((group, number))
        if number > one.generation:
            one.generation, one.generation_at = number, self._now()

    def committed_in(self, asked: Asked, group: str, generation: int) -> None:
        """A commit of a generation was carried out."""
        one = self._of(group)
        if generation < one.generation and asked.follows(one.generation_at):
            self._broken(
                f"group {group}: a commit of generation {generation} was carried out after"
                f" generation {one.generation} had begun"
            )

    def assigned(self, group: str, member: str, places: Collection[Place], asked_us: int) -> None:
        """A member is answered its partitions (consumer protocol); it has no others afterwards.

        Where it has to give partitions up, the broker waits for the confirmation from the request
        on, however late the response leaves. After a loss of sessions the partitions of a member
        are unknown until a request names them or a response contains them.

        Args:
            asked_us: when the heartbeat was sent.
        """
        one, now_us = self._of(group), self._now_us()
        owned = [place for place, (owner, _) in one.owners.items() if owner == member]
        is_uncertain = member in one.uncertain or asked_us <= self._lost_us
        if is_uncertain or not set(owned) <= set(places):
            one.confirm_until_us.setdefault(member, asked_us + self._rebalance_us)
        one.uncertain.discard(member)
        end_us = self._end_of_session(one, member, asked_us)
        for place in owned:  # what it gives up is its own until it confirms, or is removed
            one.owners[place] = member, end_us
        for place in places:
            owner, until_us = one.owners.get(place, (member, 0))
            if owner != member and now_us < until_us:
                self._broken(f"group {group}: {place[0]}-{place[1]} has {owner} and {member}")
            one.owners[place] = member, end_us

    def beats(self, group: str, member: str, asked_us: int, *, confirms: bool) -> None:
        """A heartbeat of a member was answered: it keeps what it has for one more session.

        Args:
            asked_us: when the heartbeat was sent.
            confirms: the heartbeat named the partitions that the member has.
        """
        one = self._of(group)
        if confirms:
            one.confirm_until_us.pop(member, None)
        end_us = self._end_of_session(one, member, asked_us)
        for place, (owner, _) in one.owners.items():
            if owner == member:
                one.owners[place] = member, end_us

    def _end_of_session(self, group: _Group, member: str, asked_us: int) -> int:
        """Return when a member may be removed of which nothing more is received.

        The session begins when the broker carries the request out, in whole milliseconds, however
        late the response leaves: a slow disk delays it.
        """
        stalled_us = sum(duration_us for at_us, duration_us in self._stalls if at_us >= asked_us)
        end_us = asked_us // 1000 * 1000 + self._session_us + stalled_us
        return min(end_us, group.confirm_until_us.get(member, end_us))

    def is_alive(self, group: str, member: str, asked_us: int) -> None:
        """A request of a member is answered that begins its session anew.

        Until one timeout has passed nothing removes the member, unless it leaves.
        """
        until_us = asked_us + min(self._session_us, self._rebalance_us)
        self._of(group).alive_until_us[member] = until_us

    def is_unknown(self, group: str, member: str) -> None:
        """A heartbeat is answered with UNKNOWN_MEMBER_ID."""
        until_us = self._of(group).alive_until_us.pop(member, 0)
        if self._now_us() < until_us:
            self._broken(f"group {group}: member {member} was removed before its session ended")

    def gives_up(self, group: str, member: str, kept: Collection[Place] = ()) -> None:
        """A member sends that it has these partitions only, or leaves."""
        owners = self._of(group).owners
        self._of(group).uncertain.discard(member)
        if not kept and not any(owner != member for owner, _ in owners.values()):
            self._of(group).absent_us = self._now_us()  # nobody else is known to have anything
        for place in [one for one, (owner, _) in owners.items() if owner == member]:
            if place not in kept:
                del owners[place]
        for place in kept:  # it may have been given one before sessions were lost
            owners.setdefault(place, (member, self._now_us()))

    def lost_sessions(self) -> None:
        """The broker may have forgotten how long sessions last."""
        self.losses += 1
        self._lost_us = self._now_us()
        for group in self._groups.values():
            group.uncertain.update(owner for owner, _ in group.owners.values())
            group.owners.clear()
            group.confirm_until_us.clear()
            group.alive_until_us.clear()
            group.generation = -1

    def stalled(self, duration_us: int) -> None:
        """The broker is stopped for some time, by which it has to extend every session."""
        now_us = self._now_us()
        self._stalls.append((now_us, duration_us))
        for group in self._groups.values():
            for place, (owner, until_us) in group.owners.items():
                if until_us > now_us:
                    group.owners[place] = owner, until_us + duration_us
            for times in (group.confirm_until_us, group.alive_until_us):
                times.update({one: at + duration_us for one, at in times.items() if at > now_us})

    # ---- expiry

    def may_have_expired(self, group: str, place: Place) -> bool:
        """Return whether the last commit that may have been carried out is old enough to expire."""
        return self._may_have_expired(group, place, self._writes.get((group, place), []))

    def _may_have_expired(self, group: str, place: Place, writes: list[Write]) -> bool:
        one = self._of(group)
        done = [write for write in writes if write.done is not None]
        current = self._candidates(writes, done)
        sent_us = min((write.sent_us for write in current if write.value != ABSENT), default=0)
        if place[0] not in one.subscribed:
            return self.clock_was_set or self._now_us() - sent_us >= self._retention_us
        silences = [*one.silences, (one.active_us, self._now_us())]
        least_us = self._session_us if self.clock_was_set else self._retention_us
        if self.clock_was_set and one.absent_us >= sent_us:
            return True  # the group had no member, and wall time decides since when
        return any(end - max(begin, sent_us) >= least_us for begin, end in silences)

    def has_expired(self, group: str, place: Place, value: int) -> None:
        """Nobody used an offset for longer than the retention and one check: it has to be gone."""
        if value != ABSENT and self.has_all_commits:
            self._broken(
                f"group {group}: the offset {value} of {place[0]}-{place[1]} did not expire"
            )
