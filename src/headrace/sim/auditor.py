"""The auditor: holds a broker to what it let out. It shares no code with the broker.

It knows what clients asked and which answers left the broker, by offset, and nothing of how the
broker works. An answer that left stays true, whatever crashes: accepted records never come back,
deliveries are counted, a record has one holder, nothing is finished that nobody finished, and in
the end nothing was passed over. Where an answer was lost the auditor allows for both outcomes.

After a power cut without `fsync` the state of a queue may be that of any time since the journal
was synced last, and the log may have lost its unsynced end. `power_was_cut` forgets what was
answered since; `opened` forgets the records that the log lost: others will have their offsets, and
nothing that was sent or answered of the lost ones counts for those.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from headrace.sim.facts import (
    FINISHING,
    START,
    Asked,
    Facts,
    Moment,
    Place,
    Queue,
    Range,
    Timeline,
)
from headrace.sim.record_auditor import RecordAuditor

_FAILURES_MAX = 5  # of one history; the first says most
_UNKNOWN_RECORDS = 100  # that may stand behind the last one that a response contained

Verdicts = Sequence[tuple[int, int, str]]  # first and last offset, and what is said of them


class Session(Protocol):
    """Who keeps accounts of a session or a group, as far as power cuts concern them."""

    def power_was_cut(self, since_us: int) -> None:
        """Forget what was answered since a time."""

    def end_was_lost(self, place: Place, end: int) -> None:
        """Forget ranges of a log that a power cut may have shortened."""


class Auditor:
    """Promises of one broker about records and share groups, in one history.

    Args:
        now_us: the time of the world.
        limit: deliveries of a record before it is archived.
        lock_ms: how long an acquisition lock lasts.
        records: auditor of the records themselves.
        earliest: groups whose subscriptions start at the begin of the log.
    """

    def __init__(
        self,
        now_us: Callable[[], int],
        *,
        limit: int,
        lock_ms: int,
        earliest: frozenset[str] = frozenset(),
        records: RecordAuditor | None = None,
    ) -> None:
        self.timeline = Timeline(now_us)
        self.records = records or RecordAuditor(self.timeline.now, self.broken)
        self.failures: list[str] = []
        self.incarnation = 0
        self.limit = limit
        # Whether the session of a holder, by group, may have given way: its locks are gone then.
        self.is_replaced: Callable[[str, str], bool] = lambda *_: False
        self._now_us = now_us
        self._lock_us = lock_ms * 1000
        self._locks: dict[str, tuple[int, Moment]] = {}  # of groups, and since when they count
        self._earliest = earliest
        self._facts: dict[Queue, dict[int, Facts]] = {}
        self._open: dict[str, int] = {}
        self._open_of: dict[tuple[str, str], int] = {}
        self._started: dict[Queue, Moment] = {}
        self._spso: dict[Queue, list[tuple[int, Moment]]] = {}  # each SPSO, and when it was told
        self._values: dict[Place, dict[int, bytes]] = {}
        self._promised: dict[Place, dict[int, Asked]] = {}
        self._cut: dict[Place, int] = {}
        self._created: dict[Place, Moment] = {}
        self._set_to: dict[Queue, int] = {}
        self._given_up: dict[Place, set[int]] = {}
        self.sessions: list[Session] = []
        self._was_repaired = False
        self._era = 0  # power cuts that took what was answered
        self._repaired_era = 0  # in which a journal was repaired last
        self._may_be_shorter: set[Place] = set()
        # Copies of records, and places in lists, of before power cuts.
        self._copied_before: Counter[tuple[Queue, int]] = Counter()
        self._doubted: dict[Queue, int] = {}  # the era since which a queue may have begun anew

    def lock_changes(self, group: str, lock_ms: int) -> None:
        """A request changes how long locks of a group last: the shorter duration counts."""
        known, _ = self._locks.get(group, (self._lock_us, START))
        self._locks[group] = min(known, lock_ms * 1000), START

    def lock_lasts(self, group: str, lock_ms: int) -> None:
        """A duration of locks is acknowledged: it counts for requests from now on."""
        self._locks[group] = lock_ms * 1000, self.timeline.now()

    def held_until_us(self, group: str, place: Place, offset: int, holder: str) -> int:
        """Return until when nobody else can have a record that a lease acquired; 0 if unknown.

        A lease has its locks again after a restart. They may be shorter if the setting was changed.
        """
        known = self._facts.get((group, place), {}).get(offset)
        if known is None or known.locked_by != holder or group in self._locks:
            return 0
        return 0 if self._was_repaired else known.locked_until_us

    def _lock_of(self, asked: Asked) -> int:
        lock_us, since = self._locks.get(asked.group, (self._lock_us, START))
        return lock_us if asked.follows(since) else min(lock_us, self._lock_us)

    def broken(self, promise: str) -> None:
        """A promise was broken."""
        if len(self.failures) < _FAILURES_MAX:
            self.failures.append(promise)

    def asked(self, group: str = "", holder: str = "", *, acquires: bool = False) -> Asked:
        """A request is sent, perhaps one that may acquire records for a holder."""
        if acquires:
            self._open[group] = self._open.get(group, 0) + 1
            self._open_of[group, holder] = self._open_of.get((group, holder), 0) + 1
        at_us, requests = self.timeline.sent()
        return Asked(at_us, self.incarnation, group, holder, acquires, requests)

    def answered(self, asked: Asked) -> None:
        """All that an acquiring request did is known now: its answer left the broker."""
        assert asked.acquires
        self._open[asked.group] -= 1
        self._open_of[asked.group, asked.holder] -= 1

    def requests_ended(self) -> None:
        """Count what lost responses may have delivered: no request and no lock is left.

        Records that are produced later cannot have been in one of them.
        """
        places = dict.fromkeys([*self._values, *(place for _, place in self._started)])
        queues = [(group, place) for group in self._open for place in places]
        for queue in dict.fromkeys([*self._facts, *queues]):
            open_requests = self._open.get(queue[0], 0)
            if open_requests:
                end = max(self._facts.get(queue, {}), default=0)
                end = max(end, self.known_end(queue[1])) + _UNKNOWN_RECORDS
                for offset in range(self._start(queue), end):
                    self.facts(queue, offset).lost += open_requests
        self._open.clear()
        self._open_of.clear()

    def power_was_cut(self, since_us: int, *, are_copies_lost: bool) -> None:
        """Forget what a power cut without `fsync` may have taken.

        Args:
            since_us: when the first record was journaled that was not synced.
            are_copies_lost: the log of the dead letters had an unsynced end.
        """
        for queue, starts in self._spso.items():
            self._spso[queue] = [one for one in starts if one[1].us < since_us]
        self.requests_ended()
        self._era += 1
        self._locks.clear()  # a setting may be the one before
        self._may_be_shorter = {*self._values, *(place for _, place in self._facts)}
        for queue, known in self._facts.items():
            for offset, one in known.items():
                if "reject" in one.verdicts() or one.told_max >= self.limit:
                    self._copied_before[queue, offset] += 1
                    one.is_copy_lost |= are_copies_lost
                one.power_was_cut(since_us)
        for queue in [one for one, at in self._started.items() if at.us >= since_us]:
            del self._started[queue]
            self._doubted[queue] = self._era
        for session in self.sessions:
            session.power_was_cut(since_us)

    def may_be_shorter(self, place: Place) -> bool:
        """Return whether a power cut may have moved the end of a log, which is not opened yet.

        A start on a full disk may leave it until there is space.
        """
        return place in self._may_be_shorter

    def opened(self, place: Place, end: int) -> None:
        """A broker opens a log of this end, which a power cut may have moved."""
        if place not in self._may_be_shorter:
            return
        self._may_be_shorter.discard(place)
        for offsets in (self._values.get(place, {}), self._promised.get(place, {})):
            for offset in [one for one in offsets if one >= end]:
                del offsets[offset]
        for queue, known in self._facts.items():
            if queue[1] == place:
                for offset in [one for one in known if one >= end]:
                    del known[offset]
        for queue, starts in self._spso.items():
            if queue[1] == place:
                starts[:] = [(min(start, end), at) for start, at in starts]
        for session in self.sessions:
            session.end_was_lost(place, end)

    def journal_was_repaired(self) -> None:
        """A repair left a journal with holes: what became of a record may have been in one.

        A lease may still have a delivery that the share-partition has no more.
        """
        self._was_repaired = True
        self._repaired_era = self._era
        for known in self._facts.values():
            for one in known.values():
                if "reject" in one.verdicts() or one.told_max >= self.limit:
                    one.is_copy_lost = True

    def locks_lost(self) -> None:
        """The broker died, or rebuilt its state after a fault: it may give every record again."""
        self.incarnation += 1

    def facts(self, queue: Queue, offset: int) -> Facts:
        known = self._facts.setdefault(queue, {})
        found = known.get(offset)
        if found is None:
            found = known[offset] = Facts()
        return found

    # ---- logs

    def creating(self, place: Place) -> None:
        """A partition is to be made."""
        self._created.setdefault(place, self.timeline.sent())

    def deleting(self, place: Place, before: int) -> None:
        """Somebody asks for records to be deleted: any of them may be gone from now on."""
        self._cut[place] = max(self._cut.get(place, 0), before)

    def given_up(
        self, place: Place, lost: Iterable[tuple[int, int | None]], *, is_unsynced: bool = False
    ) -> None:
        """A repair reports ranges of offsets as lost; what no response contained may be gone.

        Args:
            is_unsynced: a power cut left holes in what was not synced: any of it may be gone.
        """
        known, found = self._values.get(place, {}), self._given_up.setdefault(place, set())
        for first, last in lost:
            behind = first if last is None else last + 1
            if is_unsynced:
                for offset in range(first, behind):
                    known.pop(offset, None)
                    self._promised.get(place, {}).pop(offset, None)
            found.update(offset for offset in range(first, behind) if offset not in known)

    def _is_given_up(self, place: Place, offset: int) -> bool:
        """Return whether a repair left no record there."""
        given_up = self._given_up.get(place, ())
        return offset in given_up and offset not in self._values.get(place, {})

    def cut(self, place: Place) -> int:
        """How far records may be gone because somebody asked for it."""
        return self._cut.get(place, 0)

    def produced(self, asked: Asked, place: Place, first: int, values: Sequence[bytes]) -> None:
        """The broker took records."""
        self.opened(place, first)  # unless a start of a broker told of its end
        promised = self._promised.setdefault(place, {})
        for offset, value in enumerate(values, first):
            self._stands(place, offset, value)
            promised[offset] = asked

    def read(self, place: Place, records: Mapping[int, bytes]) -> None:
        """Records were sent to somebody."""
        for offset, value in records.items():
            self._stands(place, offset, value)
            self.records.stood(place, offset, value)

    def _stands(self, place: Place, offset: int, value: bytes) -> None:
        known = self._values.setdefault(place, {}).setdefault(offset, value)
        if known != value:
            self.broken(f"{_at(place, offset)} was {known!r} and is {value!r}")

    def known_end(self, place: Place) -> int:
        """Behind the last record that was told of."""
        return max(self._values.get(place, {}), default=-1) + 1

    # ---- groups

    def assigned(self, group: str, places: Iterable[Place]) -> None:
        """A member was told its partitions."""
        for place in places:
            self._started.setdefault((group, place), self.timeline.now())

    # ---- deliveries

    def delivered(
        self,
        asked: Asked,
        place: Place,
        ranges: Iterable[Range],
        records: Mapping[int, bytes] | None = None,
        *,
        fresh: bool = True,
    ) -> None:
        """Records were given to the holder who asked.

        Args:
            records: what was sent of them, if anything was to be.
            fresh: they were given now; else this is word of an earlier delivery.
        """
        before = -1
        for first, last, count in ranges:
            if first <= before or last < first:
                self.broken(f"{asked.holder} was given {first}-{last} of {place} after {before}")
            before = last
            for offset in range(first, last + 1):
                one = self.facts((asked.group, place), offset)
                told = one.told_max + self._open.get(asked.group, 0)
                if not fresh and count > told and not self._was_repaired:
                    where = _at(place, offset)
                    self.broken(f"{where} is in delivery {count} of {asked.holder}, after {told}")
                if fresh:
                    self._check_delivery(asked, place, offset, count)
                    if one.era != self._era:
                        one.delivered_again(self._era, count)
                    one.locked_by, one.locked_in = asked.holder, asked.incarnation
                    one.locked_at = self.timeline.now()
                    one.locked_until_us = asked.since_us + self._lock_of(asked)
                one.told += 1
                one.counts_of[asked.holder] = count
                if one.era >= self._repaired_era:
                    one.count.reach(count, self.timeline.now())
                is_left_out = records is not None and offset not in records
                if is_left_out and not self._is_given_up(place, offset):
                    self.broken(f"{_at(place, offset)} was acquired and not sent")

    def _check_delivery(self, asked: Asked, place: Place, offset: int, count: int) -> None:
        one = self.facts((asked.group, place), offset)
        told = f"{_at(place, offset)} was given to {asked.holder} (delivery {count})"
        if one.finished_at is not None and asked.follows(one.finished_at):
            self.broken(f"{told} after it was finished: {_words(one)}")
        if not 1 <= count <= self.limit:
            self.broken(f"{told}, {self.limit} are allowed")
        if asked.follows(one.count.at) and count < one.count.value:
            self.broken(f"{told} after delivery {one.count.value}")
        if asked.follows(one.failed.at) and count <= one.failed.value:
            self.broken(f"{told} although delivery {one.failed.value} had failed")
        if (
            one.locked_in == asked.incarnation == self.incarnation
            and asked.follows(one.locked_at)
            and count <= one.count.value
        ):
            self.broken(f"{told}, and delivery {one.count.value} is over")
        if count > one.told_max + self._open.get(asked.group, 0) + 1:
            self.broken(f"{told} after {one.told_max} deliveries")
        if (
            one.locked_by not in ("", asked.holder)
            and one.locked_in == self.incarnation
            and asked.follows(one.locked_at)
            and self._now_us() < one.locked_until_us
            and not self.is_replaced(asked.group, one.locked_by)
        ):
            self.broken(f"{told} while {one.locked_by} held it")
        if one.is_withheld(asked, self._now_us(), self.incarnation):
            self.broken(f"{told} before its delay was over")

    def stalled(self, duration_us: int) -> None:
        """The broker is stopped for some time, by which it has to extend every lock."""
        now_us = self._now_us()
        for known in self._facts.values():
            for one in known.values():
                if one.locked_until_us > now_us:
                    one.locked_until_us += duration_us

    def let_go(self, group: str, holder: str) -> None:
        """A holder ends its session or its connection: what it held may be given to others."""
        for (of_group, _), known in self._facts.items():
            if of_group == group:
                for one in known.values():
                    if one.locked_by == holder:
                        one.locked_by = ""

    def renewing(self, asked: Asked) -> None:
        """A holder asks for its locks to last from now on: a shorter setting may shorten them."""
        until_us = asked.since_us + self._lock_of(asked)
        for (of_group, _), known in self._facts.items():
            if of_group == asked.group:
                for one in known.values():
                    if one.locked_by == asked.holder:
                        one.locked_until_us = min(one.locked_until_us, until_us)

    # ---- verdicts

    def acknowledging(self, group: str, place: Place, holder: str, said: Verdicts) -> None:
        """A holder says what became of records; it may be carried out from now on."""
        asked = self.asked(group, holder)
        renewed_until_us = asked.since_us + self._lock_of(asked)
        for first, last, verdict in said:
            for offset in range(first, last + 1):
                one = self.facts((group, place), offset)
                one.asked[verdict, holder] += 1
                if one.locked_by != holder:
                    continue
                if verdict == "renew":  # a shorter setting may shorten the lock
                    one.locked_until_us = min(one.locked_until_us, renewed_until_us)
                else:
                    one.locked_by = ""

    def refused(self, group: str, place: Place, holder: str, said: Verdicts) -> None:
        """The broker let out that it was not carried out."""
        for first, last, verdict in said:
            for offset in range(first, last + 1):
                self.facts((group, place), offset).asked[verdict, holder] -= 1

    def acknowledged(self, asked: Asked, place: Place, holder: str, said: Verdicts) -> None:
        """The broker let out that it was carried out."""
        group = asked.group
        for first, last, verdict in said:
            for offset in range(first, last + 1):
                self._acknowledged(asked, (group, place), offset, holder, verdict)

    def _acknowledged(
        self, asked: Asked, queue: Queue, offset: int, holder: str, verdict: str
    ) -> None:
        group, place = queue
        one = self.facts(queue, offset)
        now = self.timeline.now()
        had = holder in one.counts_of or holder in one.had_by
        had = had or self._open_of.get((group, holder), 0) > 0
        finished = self.may_be_finished(queue, offset, but=holder)
        if not had and not finished and not self._may_precede(queue, offset):
            self.broken(
                f"{_at(place, offset)}: {verdict} of {holder}, who never had it, was carried out"
            )
        if verdict in FINISHING:
            if one.finished_at is None:
                one.finished_at = now
        elif verdict == "release":
            one.failed.reach(one.counts_of.get(holder, 0), now)
        elif verdict == "renew" and one.locked_by == holder:
            one.locked_until_us = max(one.locked_until_us, asked.since_us + self._lock_of(asked))

    def withheld(self, asked: Asked, place: Place, offset: int, delay_us: int) -> None:
        """The broker let out that nobody is given a record for some time since it was asked."""
        one = self.facts((asked.group, place), offset)
        one.withheld_until_us, one.withheld_at = asked.since_us + delay_us, self.timeline.now()
        one.withheld_in = asked.incarnation

    def may_be_finished(self, queue: Queue, offset: int, *, but: str = "") -> bool:
        """Whether anything that was asked, by others than `but`, can have finished a record."""
        group, place = queue
        if offset < self._cut.get(place, 0) or self._is_given_up(place, offset):
            return True
        one = self._facts.get(queue, {}).get(offset)
        if one is None:
            return self._open.get(group, 0) >= self.limit
        if one.verdicts(but=but) & FINISHING:
            return True
        return one.told_max + self._open.get(group, 0) >= self.limit

    # ---- positions

    def _start(self, queue: Queue) -> int:
        """Return the last SPSO that was told, or 0."""
        starts = self._spso.get(queue)
        return starts[-1][0] if starts else 0

    def reset(self, queue: Queue, start: int) -> None:
        """An administrator was told that the queue begins there, with nothing delivered yet."""
        self._facts.pop(queue, None)
        self._spso[queue] = [(start, self.timeline.now())]
        self._set_to[queue] = start

    def described(
        self,
        asked: Asked,
        queue: Queue,
        start: int,
        runs: Iterable[tuple[int, int, str]],
    ) -> None:
        """Somebody was told SPSO and the states of the records in flight."""
        group, place = queue
        if self.may_be_shorter(place):
            return
        starts = self._spso.setdefault(queue, [])
        before, at = starts[-1] if starts else (start, START)
        if start < before and asked.follows(at):
            self.broken(f"SPSO of {group} {place} was {before} and is {start}")
        for offset in range(before, start):
            if not self.may_be_finished(queue, offset):
                self.broken(f"SPSO of {group} is {start}, and nobody finished {_at(place, offset)}")
        if start > before or not starts:
            starts.append((start, self.timeline.now()))
        known = self._facts.get(queue, {})
        for first, last, state in runs:
            if state not in ("available", "acquired"):
                continue
            for offset in range(first, last + 1):
                one = known.get(offset)
                if one and one.finished_at is not None and asked.follows(one.finished_at):
                    self.broken(f"{_at(place, offset)} was finished and is {state} for {group}")

    def counted(self, asked: Asked, queue: Queue, runs: Iterable[Range]) -> None:
        """Somebody was told how often the records in flight were delivered."""
        known = self._facts.get(queue, {})
        for first, last, count in runs:
            for offset in range(first, last + 1):
                one = known.get(offset)
                if one and count < one.failed.value and asked.follows(one.failed.at):
                    where, failed = _at(queue[1], offset), one.failed.value
                    self.broken(f"{where} has {count} deliveries, and {failed} had failed")

    def ended(
        self,
        queue: Queue,
        start: int,
        log_start: int,
        log_end: int,
        copies: Sequence[int] | None,
        listed: Sequence[int] | None = None,
    ) -> None:
        """All is done, and it is quiet: nothing may be missing.

        Args:
            copies: offsets of the dead letters of the queue; None when there are to be none.
            listed: offsets that were archived without one; None when that was not looked at.
        """
        group, place = queue
        self.opened(place, log_end)
        missing = [o for o in self._promised.get(place, {}) if o >= log_end]
        if missing:
            self.broken(f"{_at(place, missing[0])} was taken, and the log ends at {log_end}")
        if start < log_end:
            self.broken(f"{group} does not get beyond {_at(place, start)} of {log_end}")
        floors = [one for one in (self._floor(queue), self._first(queue)) if one is not None]
        for offset in range(max(min(floors, default=log_end), log_start), log_end):
            if self._is_given_up(place, offset):
                continue
            if not self.may_be_finished(queue, offset):
                self.broken(
                    f"{_at(place, offset)} was skipped: {group} neither had nor finished it"
                )
            elif offset >= max(log_start, self._cut.get(place, 0)):
                if copies is not None:
                    self._copied(queue, offset, copies.count(offset))
                elif listed is not None:
                    self._listed(queue, offset, listed.count(offset))

    def _copied(self, queue: Queue, offset: int, copies: int) -> None:
        one = self.facts(queue, offset)
        where, before = _at(queue[1], offset), self._copied_before[queue, offset]
        if copies > 1 + before:
            self.broken(f"{where} has {copies} dead letters")
        if not copies and not one.verdicts() & {"accept", "gap"} and not one.is_copy_lost:
            self.broken(f"{where} was not accepted and has no dead letter")
        is_rejected = "reject" in one.verdicts() or self._exhausted(queue, one)
        if copies > before and not is_rejected:
            self.broken(f"{where} has a dead letter, and nobody rejected it")

    def _listed(self, queue: Queue, offset: int, times: int) -> None:
        one = self.facts(queue, offset)
        where = _at(queue[1], offset)
        if not times and not one.verdicts() & {"accept", "gap"} and not one.is_copy_lost:
            self.broken(f"{where} was not accepted and is not listed")
        if queue in self._set_to or self._copied_before[queue, offset]:
            return  # what was listed before stays, also of records that a power cut took
        if times > 1:
            self.broken(f"{where} is listed {times} times")
        if times and "reject" not in one.verdicts() and not self._exhausted(queue, one):
            self.broken(f"{where} is listed, and nobody rejected it")

    def _exhausted(self, queue: Queue, one: Facts) -> bool:
        return one.told_max + self._open.get(queue[0], 0) >= self.limit

    def _first(self, queue: Queue) -> int | None:
        """The first record that was delivered."""
        known, era = self._facts.get(queue, {}), self._doubted.get(queue, 0)
        told = (offset for offset, one in known.items() if one.told and one.era >= era)
        return min(told, default=None)

    def _may_precede(self, queue: Queue, offset: int) -> bool:
        """Whether a record may stand before the begin of the queue: all there is finished."""
        first = self._first(queue)
        return queue[0] not in self._earliest and (first is None or offset < first)

    def _floor(self, queue: Queue) -> int | None:
        """The first record that the group has to have had; None when there is none."""
        group, place = queue
        since = self._started.get(queue)
        if queue in self._set_to:
            return self._set_to[queue]
        if since is None:
            return None
        if group in self._earliest or self._was_added(queue):
            return 0
        promised = self._promised.get(place, {})
        return min((one for one, asked in promised.items() if asked.follows(since)), default=None)

    def _was_added(self, queue: Queue) -> bool:
        """Whether the partition came to a topic that the group had already."""
        group, (topic, _) = queue
        created = self._created.get(queue[1])
        return created is not None and any(
            of == group and place[0] == topic and since <= created
            for (of, place), since in self._started.items()
        )


def _at(place: Place, offset: int) -> str:
    return f"record {place[0]}-{place[1]}@{offset}"


def _words(one: Facts) -> str:
    sent = sorted({*one.asked, *one.earlier})
    return ", ".join(f"{verdict} by {whom}" for verdict, whom in sent)
