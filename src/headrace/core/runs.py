"""Offsets as runs: the one place for splitting, merging and off-by-one.

A `Runs` tiles the offsets [start, end) of one share-partition with maximal runs of equal status.
Theory of operation. Runs tile, so a run is kept as two words: where it begins, and a reference to
its status, which all runs alike share (about 20 bytes a run, KIP-932's window being millions of
records here). They lie in chunks of at most `CHUNK_RUNS`. Laying a run touches one chunk; laying
many in ascending order touches each chunk once. What a chunk may hold is known without reading it
(`Chunk.seen`), so that available and overdue runs are found among millions at once. Work is O(log
runs + runs touched + chunks), however many records a run stands for (design §4).
"""

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain, islice
from operator import itemgetter, sub

from headrace.core.locks import Locks
from headrace.core.run_chunks import Chunk, exchanged, found, replaced, rewritten, split
from headrace.core.spans import Each, Spans, one_by_one
from headrace.core.types import MemberId, MonoMs, Span, WallMs

_ALL = 1 << 63  # records; more than there can be
_last = itemgetter(1)  # of a piece


class State(IntEnum):
    """Delivery states with Kafka's numbers (KIP-932; 3 is KIP-1191's, a dead letter on its way)."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    ARCHIVED = 4

    @property
    def finished(self) -> bool:
        """Nothing will ever happen to the record again."""
        return self in (State.ACKNOWLEDGED, State.ARCHIVED)


@dataclass(slots=True, eq=False)
class Status:
    """The whole state of a record, shared by all records of one `Runs` that are in it.

    `holder` has the records while ACQUIRED, and had them last when ARCHIVING or ARCHIVED.
    `deadline` and `since`, when it got them, stand exactly while ACQUIRED; `stored` is then the
    count of deliveries that the journal knows of, to which a crash takes the records back. `reason`
    says why records were archived. `lot` is set near the delivery limit: the span that was
    delivered together when its redelivery began to shrink. `records` is how many there are; nothing
    else ever changes.
    """

    state: State
    deliveries: int = 0
    holder: MemberId | None = None
    deadline: MonoMs | None = None
    stored: int = 0
    reason: str | None = None
    lot: Span | None = None
    since: WallMs | None = None
    records: int = 0

    @property
    def key(self) -> "StatusKey":
        """What makes two of them alike."""
        return (
            self.state, self.deliveries, self.holder, self.deadline, self.stored, self.reason,
            self.lot, self.since,
        )  # fmt: skip


StatusKey = tuple[
    State, int, MemberId | None, MonoMs | None, int, str | None, Span | None, WallMs | None
]
Piece = tuple[int, int, Status]  # first, last, and what they are: a run without the object


@dataclass(frozen=True, slots=True)
class Run:
    """Records of one span that share their whole state."""

    span: Span
    status: Status

    @property
    def state(self) -> State:
        return self.status.state

    @property
    def deliveries(self) -> int:
        return self.status.deliveries

    @property
    def holder(self) -> MemberId | None:
        return self.status.holder

    @property
    def since(self) -> WallMs | None:
        return self.status.since

    @property
    def stored(self) -> int:
        return self.status.stored

    @property
    def reason(self) -> str | None:
        return self.status.reason

    def alike(self, other: "Run") -> bool:
        """Equal in everything but the span."""
        return self.status.key == other.status.key


@dataclass(frozen=True, slots=True)
class CopiedRuns:
    """The runs as they were: where each begins, what it is, and where the last one ends."""

    firsts: Sequence[int]
    statuses: Sequence[Status]
    end: int

    def pieces(self) -> Iterator[Piece]:
        """All runs, as pieces."""
        lasts = chain((first - 1 for first in islice(self.firsts, 1, None)), (self.end - 1,))
        return zip(self.firsts, lasts, self.statuses, strict=True) if self.firsts else iter(())


class Runs:
    """The runs of [start, end), first to last."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.end = start
        self.records: Counter[State] = Counter()
        self._count = 0
        self._chunks: list[Chunk[Status]] = []
        self._heads: list[int] = []  # the first offset of each chunk
        self._statuses: dict[StatusKey, Status] = {}
        self._available: set[Status] = set()
        self._available_from = start  # no AVAILABLE run begins below it
        self._locks: Locks[Status] = Locks()

    def __iter__(self) -> Iterator[Run]:
        return (Run(Span(first, last), status) for first, last, status in self.pieces())

    def __len__(self) -> int:
        return self._count

    def pieces(self, offset: int = 0) -> Iterator[Piece]:
        """All runs, as pieces, from the one that holds or follows `offset`."""
        begin = max(bisect_right(self._heads, offset) - 1, 0)
        for index in range(begin, len(self._chunks)):
            chunk = self._chunks[index]
            firsts, statuses = chunk.firsts, chunk.statuses
            low = max(bisect_right(firsts, offset) - 1, 0) if index == begin else 0
            first, held = firsts[low], statuses[low]
            for at in range(low + 1, len(firsts)):
                yield first, firsts[at] - 1, held
                first, held = firsts[at], statuses[at]
            if (last := self._stop(index) - 1) >= offset:
                yield first, last, held

    def copied(self) -> CopiedRuns:
        """Return the runs as they are now: a copy of two columns, however many there are."""
        firsts, statuses = array("q"), list[Status]()
        for chunk in self._chunks:
            firsts += chunk.firsts
            statuses += chunk.statuses
        return CopiedRuns(firsts, statuses, self.end)

    def within(self, span: Span) -> list[Run]:
        """The runs that overlap `span`, clipped to it."""
        found = self.between(span.first, span.last)
        return [Run(Span(first, last), status) for first, last, status in found]

    def between(self, first: int, last: int) -> list[Piece]:
        """The runs that overlap `first` to `last`, clipped to it, as pieces."""
        if self.start <= first <= last < self.end:  # most often it is inside one run
            index = bisect_right(self._heads, first) - 1
            firsts = self._chunks[index].firsts
            low = bisect_right(firsts, first) - 1
            stop = firsts[low + 1] if low + 1 < len(firsts) else self._stop(index)
            if last < stop:
                return [(first, last, self._chunks[index].statuses[low])]
        first, last = max(first, self.start), min(last, self.end - 1)
        if first > last:
            return []
        index = bisect_right(self._heads, first) - 1
        found: list[Piece] = []
        while True:
            firsts, statuses = self._chunks[index].firsts, self._chunks[index].statuses
            low = bisect_right(firsts, first) - 1
            for at in range(low, len(firsts)):
                if firsts[at] > last:
                    return found
                stop = firsts[at + 1] if at + 1 < len(firsts) else self._stop(index)
                if stop > last:
                    found.append((max(firsts[at], first), last, statuses[at]))
                    return found
                found.append((max(firsts[at], first), stop - 1, statuses[at]))
            index += 1
            first = self._heads[index]

    def reach(self, first: int, last: int, runs_max: int) -> int:
        """Return how far, up to `last`, the first `runs_max` runs from `first` on extend."""
        if not self._chunks or last < self.start or first >= self.end:
            return last
        index = max(bisect_right(self._heads, first) - 1, 0)
        low = max(bisect_right(self._chunks[index].firsts, first) - 1, 0)
        while index < len(self._chunks) and self._heads[index] <= last:
            firsts = self._chunks[index].firsts
            if len(firsts) - low > runs_max:
                return min(firsts[low + runs_max] - 1, last)
            runs_max -= len(firsts) - low
            index, low = index + 1, 0
        return last

    def at(self, offset: int) -> Status | None:
        """The status of one offset; None where it is not in flight."""
        if not self.start <= offset < self.end:
            return None
        chunk = self._chunks[bisect_right(self._heads, offset) - 1]
        return chunk.statuses[bisect_right(chunk.firsts, offset) - 1]

    def available(self, offset: int, records: int = _ALL) -> Iterator[Each[Status]]:
        """AVAILABLE runs in order, from `offset` on, until they are `records`."""
        if records <= 0:
            return iter(())
        parts = self._of(self._available, max(offset, self._available_from), records)
        head = next(parts, None)
        if offset <= self._available_from:
            self._available_from = self.end if head is None else head[0].firsts[0]
        return parts if head is None else chain((head,), parts)

    def due(self, now: MonoMs) -> list[Status]:
        """The statuses whose deadline has come."""
        return self._locks.due(now)

    def held_by(self, holder: MemberId) -> list[Status]:
        """The statuses of what a member holds."""
        return self._locks.held_by(holder)

    def in_state(self, state: State) -> Iterator[Run]:
        """The runs in a state, in order."""
        wanted = [one for one in self._statuses.values() if one.state is state]
        return (Run(Span(first, last), one) for first, last, one in self.of(wanted))

    def of(
        self, statuses: Collection[Status], offset: int = 0, records: int = _ALL
    ) -> Iterator[Piece]:
        """The runs of these statuses, in order, from `offset` on, until they are `records`."""
        return one_by_one(self._of(set(statuses), offset, records))

    def _of(self, wanted: set[Status], offset: int, records: int) -> Iterator[Each[Status]]:
        """The same, chunk by chunk."""
        if not wanted or offset >= self.end:
            return
        begin = max(bisect_right(self._heads, offset) - 1, 0)
        for index in range(begin, len(self._chunks)):
            chunk = self._chunks[index]
            if wanted.isdisjoint(chunk.seen):
                continue
            part, records = found(chunk, self._stop(index), wanted, offset, records)
            if part[1]:
                yield part
            else:
                chunk.see_again()
            if records <= 0:
                return

    def next_deadline(self) -> MonoMs | None:
        """The earliest deadline of any run."""
        return self._locks.next_deadline()

    # ---- changes

    def status(
        self,
        state: State,
        deliveries: int = 0,
        holder: MemberId | None = None,
        deadline: MonoMs | None = None,
        stored: int = 0,
        reason: str | None = None,
        lot: Span | None = None,
        since: WallMs | None = None,
    ) -> Status:
        """The one status of these properties, to be laid."""
        key = (state, deliveries, holder, deadline, stored, reason, lot, since)
        known = self._statuses.get(key)
        if known is None:
            known = self._statuses[key] = Status(*key)
        return known

    def lay(self, first: int, last: int, status: Status) -> None:
        """Lay a run over what is there; it may begin below `end` or exactly at it, not beyond."""
        assert self.start <= first, f"{first}-{last} begins below {self.start}"
        if status.state is State.AVAILABLE:
            self._available_from = min(self._available_from, first)
        while first < self.end:
            index = bisect_right(self._heads, first) - 1
            stop = self._stop(index)
            self._rewrite(index, [(first, min(last, stop - 1), status)])
            if last < stop:
                return
            first = stop
        self._append([(first, last, status)])

    def lay_all(self, pieces: Sequence[Piece]) -> None:
        """Lay runs that ascend and do not overlap, each as `lay` would."""
        held: Status | None = None
        for first, _, status in pieces:
            if status is not held and status.state is State.AVAILABLE:
                self._available_from = min(self._available_from, first)
                break
            held = status
        at = 0
        while at < len(pieces):
            first, last, status = pieces[at]
            if first >= self.end:
                self._append(pieces[at:])
                return
            index = bisect_right(self._heads, first) - 1
            until = bisect_left(pieces, self._stop(index), lo=at, key=_last)
            if until > at:
                here = pieces[at:until]
                chunk, stop, beside = self._chunks[index], self._stop(index), self._beside(index)
                done = exchanged(chunk, stop, beside, here, self._move)
                if done < len(here):
                    self._rewrite(index, here[done:])
                at = until
            else:  # it goes beyond the chunk
                self.lay(first, last, status)
                at += 1

    def lay_alike(self, spans: Spans, status: Status) -> None:
        """Lay runs of one status that is not AVAILABLE, all below `end`, each as `lay` would."""
        at = 0
        while at < len(spans):
            index = bisect_right(self._heads, spans.firsts[at]) - 1
            chunk, stop, beside = self._chunks[index], self._stop(index), self._beside(index)
            here = spans.cut(at, max(bisect_right(spans.ends, stop, lo=at), at + 1))
            if not replaced(chunk, stop, beside, here, status, self._move):
                self.lay_all([(*bounds, status) for bounds in here])  # one may go beyond the chunk
            at += len(here)

    def drop_below(self, offset: int) -> None:
        """Forget every record below `offset`, which becomes the start (and the end, if beyond)."""
        for status, records in self._records_below(offset).items():
            self._move(status, None, records)
        passed = bisect_right(self._heads, offset) - 1 if offset < self.end else len(self._heads)
        self._count -= sum(len(chunk.firsts) for chunk in self._chunks[:passed])
        del self._chunks[:passed], self._heads[:passed]
        if self._chunks:
            chunk = self._chunks[0]
            low = max(bisect_right(chunk.firsts, offset) - 1, 0)
            self._count -= low
            del chunk.firsts[:low], chunk.statuses[:low]
            chunk.firsts[0] = self._heads[0] = offset
        self.start = offset
        self.end = max(self.end, offset)
        self._available_from = max(self._available_from, offset)

    def _records_below(self, offset: int) -> dict[Status, int]:
        """Count the records of each status below an offset."""
        if self._chunks:
            chunk, end = self._chunks[0], self._stop(0)
            if len(chunk.firsts) > 1:
                end = chunk.firsts[1]
            if chunk.firsts[0] < offset <= end:  # within one run, as mostly
                return {chunk.statuses[0]: offset - chunk.firsts[0]}
        counts: dict[Status, int] = defaultdict(int)
        for index in range(bisect_left(self._heads, offset)):
            chunk = self._chunks[index]
            count = bisect_left(chunk.firsts, offset)
            bounds = chunk.firsts[: count + 1]
            if len(bounds) == count:
                bounds.append(self._stop(index))
            bounds[count] = min(bounds[count], offset)
            lengths = map(sub, bounds[1:], bounds)
            for status, records in zip(chunk.statuses, lengths, strict=False):
                counts[status] += records
        return counts

    def _stop(self, index: int) -> int:
        """Where the runs of a chunk end, exclusive."""
        return self._heads[index + 1] if index + 1 < len(self._heads) else self.end

    def _beside(self, index: int) -> tuple[Status | None, Status | None]:
        """What the runs before and behind a chunk are."""
        chunks = self._chunks
        before = chunks[index - 1].statuses[-1] if index else None
        return before, chunks[index + 1].statuses[0] if index + 1 < len(chunks) else None

    def _append(self, pieces: Sequence[Piece]) -> None:
        """Lay pieces of which the first begins at the end, and each behind the one before."""
        chunk = self._chunks.pop() if self._chunks else Chunk(array("q"), [], set())
        del self._heads[len(self._chunks) :]
        firsts, statuses, before = chunk.firsts, chunk.statuses, len(chunk.firsts)
        held, counts = statuses[-1] if statuses else None, dict[Status, int]()
        for first, last, status in pieces:
            assert first == self.end, f"{first}-{last} leaves a hole after {self.end}"
            if status is not held:
                firsts.append(first)
                statuses.append(status)
                held = status
            counts[status] = counts.get(status, 0) + last - first + 1
            self.end = last + 1
        for status, count in counts.items():
            self._move(None, status, count)
        self._count += len(firsts) - before
        chunk.seen.update(counts)
        self._replace(len(self._chunks), split(chunk))

    def _rewrite(self, index: int, pieces: Sequence[Piece]) -> None:
        """Lay pieces that lie inside one chunk."""
        before = self._chunks[index - 1].statuses[-1] if index else None
        chunk = rewritten(self._chunks[index], self._stop(index), before, pieces, self._move)
        held = chunk.statuses[-1] if chunk.statuses else before
        if index + 1 < len(self._chunks) and self._chunks[index + 1].statuses[0] is held:
            following = self._chunks[index + 1]  # which the last run goes on into
            del following.firsts[0], following.statuses[0]
            self._count -= 1
            self._replace(index + 1, [following] if following.firsts else [])
        self._count += len(chunk.firsts) - len(self._chunks[index].firsts)
        self._replace(index, split(chunk))

    def _replace(self, index: int, chunks: list[Chunk[Status]]) -> None:
        self._chunks[index : index + 1] = chunks
        self._heads[index : index + 1] = [chunk.firsts[0] for chunk in chunks]

    def _move(self, old: Status | None, new: Status | None, count: int) -> None:
        """Keep account of `count` records that are `new` instead of `old`."""
        if new is not None:
            if not new.records:
                self._begin(new)
            new.records += count
            self.records[new.state] += count
        if old is not None:
            old.records -= count
            self.records[old.state] -= count
            if not old.records:
                del self._statuses[old.key]
                self._available.discard(old)
                if old.deadline is not None and old.holder is not None:
                    self._locks.discard(old, old.holder, old.deadline)

    def _begin(self, status: Status) -> None:
        assert self._statuses.setdefault(status.key, status) is status, f"two of {status}"
        if status.state is State.AVAILABLE:
            self._available.add(status)
        if status.deadline is not None and status.holder is not None:
            self._locks.add(status, status.holder, status.deadline)
