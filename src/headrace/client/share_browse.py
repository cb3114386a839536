"""Browsing: a walk along the queue of a share group, from SPSO to the end, which takes nothing.

Theory of operation. A walk goes step by step, each of which may be repeated and is told the state
anew, so that it is as old as the step when the records of the step are told; memory is bounded by
one step, however many records are in flight. The position is the walk's own. In each partition the
walk ends where the log ended when it began; what the group finishes meanwhile, and what retention
removes, is not met any more.
Source: KIP-932, "Future Work": a browsing consumer.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from headrace.client.admin import LogEnd, log_end
from headrace.client.connection import Cluster
from headrace.client.errors import BrokerError
from headrace.client.fetch import fetch
from headrace.client.names import several
from headrace.client.offsets import TopicPartition
from headrace.client.share_records import (
    IN_FLIGHT,
    BrowsedRun,
    RecordHolder,
    RecordState,
    Topics,
    describe_share_partitions,
    in_flight,
)
from headrace.wire.batches import CorruptBatch, Record, headers
from headrace.wire.batches import records as records_in
from headrace.wire.error_codes import ErrorCode

R = TypeVar("R")

_RUNS_MAX = 2_000  # of a step that tells runs
_RUNS_READ_MAX = 1_000  # of a step that reads their records
_BYTES_MAX = 256 * 1024  # to read in one step; more where one batch is larger
_DAMAGED_MAX = 1_000  # offsets of damaged batches in one step: a header may claim any number


@dataclass(frozen=True, slots=True)
class BrowsedRecord:
    """A record as a share group has it; what is said of its state is as in `BrowsedRun`.

    `timestamp` is in ms since 1970, None where it has none. `damage` says why the record cannot be
    read: its batch is damaged, and of what it holds nothing is known.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    state: RecordState
    delivery_count: int = 0
    holder: RecordHolder | None = None
    lock_left_ms: int | None = None
    lock_until: int | None = None
    acquired_at: int | None = None
    reason: str | None = None
    damage: str | None = None


@dataclass(slots=True)
class _Cursor:
    """Where a walk is in a partition, and the first offset that it does not come to."""

    place: TopicPartition
    position: int
    stop: int


@dataclass(frozen=True, slots=True)
class _Damaged:
    """A batch that cannot be decoded, and why: a broker checks what it takes by checksum alone."""

    first: int
    last: int
    why: str


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Records of a partition that were read, of the offsets `start` to `end`, exclusive."""

    place: TopicPartition
    start: int
    end: int
    records: Sequence[Record]
    damaged: Sequence[_Damaged]


class Walk(ABC, Generic[R]):
    """One walk along the queue of a group; it serves one thread at a time."""

    def __init__(
        self,
        group: str,
        topics: Topics | None,
        states: Iterable[RecordState] | None,
        from_offset: int,
    ) -> None:
        if from_offset < 0:
            raise ValueError(f"from_offset is {from_offset}; offsets begin at 0")
        self.group = group
        named = tuple(RecordState) if states is None else several(states, "states")
        self._states = frozenset(map(RecordState, named))
        self._topics = topics if topics is None or isinstance(topics, str) else tuple(topics)
        self._from = from_offset
        self._left: deque[_Cursor] | None = None

    def step(self, cluster: Cluster) -> Sequence[R] | None:
        """The next rows, maybe none of them; None at the end.

        Raises: as `describe_share_partitions`. The step was not taken then.
        """
        if self._left is None:
            self._left = self._begin(cluster)
        if not self._left:
            return None
        cursor = self._left[0]
        rows, position = self._take(cluster, cursor)
        if position is None or position >= cursor.stop:
            self._left.popleft()
        else:
            cursor.position = position
        return rows

    def over(self, cluster: Cluster) -> Iterator[R]:
        """The rows that are left, one by one. Raises: as `step`."""
        while (rows := self.step(cluster)) is not None:
            yield from rows

    @abstractmethod
    def _take(self, cluster: Cluster, cursor: _Cursor) -> tuple[Sequence[R], int | None]:
        """Rows from the cursor on, and where to go on; None where nothing is left of it."""

    def _begin(self, cluster: Cluster) -> deque[_Cursor]:
        found = describe_share_partitions(cluster, self.group, self._topics)
        cursors = (
            _Cursor(place, max(one.start, self._from), max(one.high_watermark, one.end))
            for place, one in found.items()
            if one is not None
        )
        return deque(one for one in cursors if one.position < one.stop)

    def _look(
        self, cluster: Cluster, cursor: _Cursor, runs_max: int
    ) -> tuple[Sequence[BrowsedRun], int | None]:
        """The wanted runs from the cursor on, as they are now, and how far that goes."""
        wanted = self._states.intersection(IN_FLIGHT)
        found = in_flight(
            cluster,
            self.group,
            cursor.place,
            cursor.position,
            states=wanted,
            runs_max=runs_max if wanted else 0,
        )
        told = found.partition
        if told.start < 0:
            return [], None  # the topic was deleted, or the group made to forget it
        end = max(told.end, cursor.position)
        runs = [_until(run, cursor.stop) for run in found.runs if run.first < cursor.stop]
        if wanted and told.next_offset < end:
            return runs, told.next_offset
        if RecordState.WAITING in self._states and end < cursor.stop:
            runs.append(BrowsedRun(*cursor.place, end, cursor.stop - 1, RecordState.WAITING))
        return runs, cursor.stop


class _Runs(Walk[BrowsedRun]):
    def _take(self, cluster: Cluster, cursor: _Cursor) -> tuple[Sequence[BrowsedRun], int | None]:
        return self._look(cluster, cursor, _RUNS_MAX)


class _Records(Walk[BrowsedRecord]):
    _chunk: _Chunk | None = None

    def _take(
        self, cluster: Cluster, cursor: _Cursor
    ) -> tuple[Sequence[BrowsedRecord], int | None]:
        runs, position = self._look(cluster, cursor, _RUNS_READ_MAX)
        if not runs or position is None:
            return [], position
        first = runs[0].first
        chunk = self._chunk
        if chunk is None or chunk.place != cursor.place or not chunk.start <= first < chunk.end:
            try:
                chunk = self._chunk = _read(cluster, cursor.place, first)
            except BrokerError as error:
                return [], _after_removal(cluster, cursor.place, first, error)
        if chunk is None:
            return [], None
        stop = min(position, chunk.end)
        if chunk.damaged:
            stop = min(stop, first + _DAMAGED_MAX)
        return _told(runs, chunk, stop), stop


def browse_share_group(
    group: str,
    *,
    topics: Topics | None = None,
    states: Iterable[RecordState] | None = None,
    from_offset: int = 0,
) -> Walk[BrowsedRecord]:
    """Iterate over the queue of a share group, from SPSO to the end, without taking anything.

    Each record comes with its state at the moment when the page that it is on was read; nothing is
    locked, counted as a delivery, or moved. The end is that of the log when the walk began; what
    is finished or removed by retention meanwhile is left out. Records are read as by any
    consumer, only where the wanted states are.
    Args: `topics` are names, or tuples of a topic and a partition; all that the group reads without
    any. `states` are the ones wanted. `from_offset` is the first offset of interest, in each
    partition.
    Raises: `ValueError` for an offset below 0 or a state that is none; while iterating,
    `BrokerError` 69 when there is no such share group, 24, 3 for a topic or partition that does
    not exist, 56; `Unsupported` on any other broker than Headrace; otherwise as `Cluster`.
    """
    return _Records(group, topics, states, from_offset)


def browse_share_group_runs(
    group: str,
    *,
    topics: Topics | None = None,
    states: Iterable[RecordState] | None = None,
    from_offset: int = 0,
) -> Walk[BrowsedRun]:
    """As `browse_share_group`, but runs of records that share their state; no record is read.

    Raises: as that.
    """
    return _Runs(group, topics, states, from_offset)


def _until(run: BrowsedRun, stop: int) -> BrowsedRun:
    return run if run.last < stop else replace(run, last=stop - 1)


def _read(cluster: Cluster, place: TopicPartition, offset: int) -> _Chunk | None:
    """Records from `offset` on; None where there are none, as compaction removed the last ones."""
    data = fetch(cluster, *place, offset, bytes_max=_BYTES_MAX).records
    found = headers(data)
    if not found:
        return None
    records: list[Record] = []
    damaged: list[_Damaged] = []
    at = 0
    for header in found:
        try:
            records += list(records_in(data[at : at + header.size]))
        except CorruptBatch as error:
            damaged.append(_Damaged(header.base_offset, header.last_offset, str(error)))
        at += header.size
    return _Chunk(place, offset, found[-1].last_offset + 1, tuple(records), tuple(damaged))


def _after_removal(
    cluster: Cluster, place: TopicPartition, offset: int, error: BrokerError
) -> int | None:
    """Where to go on when records could not be read. Raises: `error`, unless they were removed."""
    if error.code == ErrorCode.unknown_topic_or_partition:
        return None
    if error.code != ErrorCode.offset_out_of_range:
        raise error
    start = log_end(cluster, *place, LogEnd.EARLIEST)
    return start if start > offset else None


def _told(runs: Sequence[BrowsedRun], chunk: _Chunk, stop: int) -> list[BrowsedRecord]:
    """The records of the chunk, below `stop`, that the runs tell of."""
    rows: list[BrowsedRecord] = []
    records = chunk.records
    for run in runs:
        last = min(run.last, stop - 1)
        at = bisect_left(records, run.first, key=_offset)
        while at < len(records) and records[at].offset <= last:
            rows.append(_row(run, records[at]))
            at += 1
        for batch in chunk.damaged:
            hidden = range(max(batch.first, run.first), min(batch.last, last) + 1)
            rows += (_row(run, Record(one, -1, None, None), batch.why) for one in hidden)
    return sorted(rows, key=_place_in_log) if chunk.damaged else rows


def _place_in_log(row: BrowsedRecord) -> int:
    return row.offset


def _offset(record: Record) -> int:
    return record.offset


def _row(run: BrowsedRun, record: Record, damage: str | None = None) -> BrowsedRecord:
    return BrowsedRecord(
        run.topic,
        run.partition,
        record.offset,
        None if record.timestamp < 0 else record.timestamp,
        record.key,
        record.value,
        record.headers,
        run.state,
        run.delivery_count,
        run.holder,
        run.lock_left_ms,
        run.lock_until,
        run.acquired_at,
        run.reason,
        damage,
    )
