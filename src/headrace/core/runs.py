"""Offsets as runs: the one place for splitting, merging and off-by-one.

A `Runs` tiles the offsets [start, end) of one share-partition with maximal runs of equal state.
Every change is one `put`: it cuts what it covers, lays the new run and merges equal neighbours,
so work is O(log runs + runs touched) however many records a run stands for (design §4).
"""

import heapq
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from headrace.core.types import MemberId, MonoMs, Span


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


@dataclass(frozen=True, slots=True)
class Run:
    """Records of one span that share their whole state.

    `holder` and `deadline` stand exactly while ACQUIRED; `stored` is then the count of deliveries
    that the journal knows of, to which a crash takes the records back. `reason` says why records
    were archived.
    """

    span: Span
    state: State
    deliveries: int = 0
    holder: MemberId | None = None
    deadline: MonoMs | None = None
    stored: int = 0
    reason: str | None = None

    def clip(self, span: Span) -> "Run":
        """The part of the run inside `span`, which must overlap it."""
        first, last = max(self.span.first, span.first), min(self.span.last, span.last)
        if first == self.span.first and last == self.span.last:
            return self
        return self.at(Span(first, last))

    def at(self, span: Span) -> "Run":
        """The same state over another span (several times as fast as `dataclasses.replace`)."""
        return Run(
            span,
            self.state,
            self.deliveries,
            self.holder,
            self.deadline,
            self.stored,
            self.reason,
        )

    def alike(self, other: "Run") -> bool:
        """Equal in everything but the span."""
        return (
            self.state is other.state
            and self.deliveries == other.deliveries
            and self.holder == other.holder
            and self.deadline == other.deadline
            and self.stored == other.stored
            and self.reason == other.reason
        )


class Runs:
    """The runs of [start, end), first to last."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.end = start
        self.records: Counter[State] = Counter()
        self._runs: list[Run] = []
        self._firsts: list[int] = []
        self._available_from = start  # no AVAILABLE run begins below it
        self._deadlines: list[MonoMs] = []
        self._runs_due: Counter[MonoMs] = Counter()

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    def __len__(self) -> int:
        return len(self._runs)

    def within(self, span: Span) -> list[Run]:
        """The runs that overlap `span`, clipped to it."""
        low = max(bisect_right(self._firsts, span.first) - 1, 0)
        high = bisect_right(self._firsts, span.last, lo=low)
        return [run.clip(span) for run in self._runs[low:high] if run.span.last >= span.first]

    def available(self, offset: int) -> Iterator[Run]:
        """AVAILABLE runs in order, from the one that holds or follows `offset`."""
        begin = max(offset, self._available_from)
        index = max(bisect_right(self._firsts, begin) - 1, 0)
        seen_any = False
        while index < len(self._runs):
            run = self._runs[index]
            if run.state is State.AVAILABLE and run.span.last >= begin:
                if not seen_any and offset <= self._available_from:
                    self._available_from = run.span.first
                seen_any = True
                yield run if run.span.first >= begin else run.clip(Span(begin, run.span.last))
            index += 1
        if not seen_any and offset <= self._available_from:
            self._available_from = self.end

    def put(self, run: Run) -> None:
        """Lay `run` over what is there; it may begin below `end` or exactly at it, not beyond."""
        first, last = run.span.first, run.span.last
        assert self.start <= first <= self.end, f"{run.span} leaves a hole after {self.end}"
        low = bisect_right(self._firsts, first) - 1
        if low < 0 or self._runs[low].span.last < first:
            low += 1
        high = bisect_right(self._firsts, last, lo=low)
        fresh = [run]
        if low < high:
            head, tail = self._runs[low], self._runs[high - 1]
            if head.span.first < first:
                fresh.insert(0, head.clip(Span(head.span.first, first - 1)))
            if tail.span.last > last:
                fresh.append(tail.clip(Span(last + 1, tail.span.last)))
        if low > 0:
            low -= 1
            fresh.insert(0, self._runs[low])
        if high < len(self._runs):
            fresh.append(self._runs[high])
            high += 1
        self._splice(low, high, _merged(fresh))
        self.end = max(self.end, last + 1)
        if run.state is State.AVAILABLE:
            self._available_from = min(self._available_from, first)

    def drop_below(self, offset: int) -> None:
        """Forget every record below `offset`, which becomes the start (and the end, if beyond)."""
        high = bisect_right(self._firsts, offset - 1)
        fresh = []
        if high and self._runs[high - 1].span.last >= offset:
            tail = self._runs[high - 1]
            fresh.append(tail.clip(Span(offset, tail.span.last)))
        self._splice(0, high, fresh)
        self.start = offset
        self.end = max(self.end, offset)
        self._available_from = max(self._available_from, offset)

    def next_deadline(self) -> MonoMs | None:
        """The earliest deadline of any run."""
        while self._deadlines and not self._runs_due[self._deadlines[0]]:
            del self._runs_due[heapq.heappop(self._deadlines)]
        return self._deadlines[0] if self._deadlines else None

    def _splice(self, low: int, high: int, fresh: list[Run]) -> None:
        for old in self._runs[low:high]:
            self.records[old.state] -= len(old.span)
            if old.deadline is not None:
                self._runs_due[old.deadline] -= 1
        for new in fresh:
            self.records[new.state] += len(new.span)
            if new.deadline is not None:
                if new.deadline not in self._runs_due:
                    heapq.heappush(self._deadlines, new.deadline)
                self._runs_due[new.deadline] += 1
        self._runs[low:high] = fresh
        self._firsts[low:high] = [run.span.first for run in fresh]


def _merged(runs: list[Run]) -> list[Run]:
    merged = [runs[0]]
    for run in runs[1:]:
        last = merged[-1]
        if run.alike(last):
            merged[-1] = last.at(Span(last.span.first, run.span.last))
        else:
            merged.append(run)
    return merged
