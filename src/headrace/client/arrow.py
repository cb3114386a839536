"""Offset ranges of a topic partition as Arrow record batches, by ordinary Fetch from any broker.

Ranges that lie close together are fetched as one stretch and the records between them dropped,
because a request costs more than skipping a few thousand records: after a release, a share group
hands out thousands of ranges of one record each.
"""

import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from headrace.client.admin import LogEnd, log_end
from headrace.client.connection import Cluster
from headrace.client.errors import BrokerError, DataLost, TopicLost
from headrace.client.fetch import committed, fetch
from headrace.wire.batches import headers as batch_headers
from headrace.wire.columns import Wanted, decode
from headrace.wire.primitives import Buffer

Bounds = tuple[int, int]
Lost = Callable[[DataLost], object]

_OFFSET_OUT_OF_RANGE, _UNKNOWN_TOPIC_OR_PARTITION = 1, 3
ROWS_MIN, ROWS_MAX = 10_000, 50_000
_BATCH_BYTES = 8 * 1024 * 1024
_GAP_MAX = 2_000
_FETCH_BYTES_MIN, _FETCH_BYTES_MAX = 64 * 1024, 8 * 1024 * 1024
_BYTES_A_RECORD = 1024
_BEYOND_END_S, _PAUSE_S = 10.0, 0.1
PLAIN = Wanted()


def read_range(
    cluster: Cluster, topic: str, partition: int, first: int, last: int, *, headers: bool = False
) -> Iterator[pa.RecordBatch]:
    """The records from offset `first` to `last`, both included, as `wire.columns.SCHEMA`.

    Raises: `DataLost` when offsets of the range are below the log's start or beyond its end (gaps
    that compaction or transactions leave are none); `CorruptBatch`; as `Cluster`.
    """
    return read_ranges(cluster, topic, partition, [(first, last)], Wanted(headers=headers))


def read_ranges(
    cluster: Cluster,
    topic: str,
    partition: int,
    ranges: Sequence[Bounds],
    wanted: Wanted = PLAIN,
    *,
    read_committed: bool = False,
    lost: Lost | None = None,
) -> Iterator[pa.RecordBatch]:
    """The records of ascending, disjoint ranges, in batches of 10,000 to 50,000 rows where so many
    are there, of fewer where records are large; with `read_committed` without those of aborted
    transactions. When some are lost, `lost` is told and what is left is read. Raises: as
    `read_range`; `DataLost` without `lost`.
    """
    found = (
        batch
        for stretch in _stretches(ranges)
        for batch in _read_stretch(
            cluster, topic, partition, stretch, wanted, read_committed=read_committed, lost=lost
        )
    )
    return _resized(found)


def _stretches(ranges: Sequence[Bounds]) -> Iterator[list[Bounds]]:
    stretch: list[Bounds] = []
    for bounds in ranges:
        if stretch and bounds[0] - stretch[-1][1] > _GAP_MAX:
            yield stretch
            stretch = []
        stretch.append(bounds)
    if stretch:
        yield stretch


def _read_stretch(
    cluster: Cluster,
    topic: str,
    partition: int,
    stretch: list[Bounds],
    wanted: Wanted,
    *,
    read_committed: bool,
    lost: Lost | None,
) -> Iterator[pa.RecordBatch]:
    position, last = stretch[0][0], stretch[-1][1]
    patient_until: float | None = None
    while position <= last:
        expected = (last - position + 1) * _BYTES_A_RECORD
        bytes_max = min(max(expected, _FETCH_BYTES_MIN), _FETCH_BYTES_MAX)
        try:
            fetched = fetch(
                cluster,
                topic,
                partition,
                position,
                bytes_max=bytes_max,
                read_committed=read_committed,
            )
            found = batch_headers(fetched.records)
            if not found:
                # A leader just elected may not know the high watermark yet.
                patient_until = patient_until or time.monotonic() + _BEYOND_END_S
                if time.monotonic() > patient_until:
                    what = f"reading {topic}-{partition}, which is silent at offset {position}"
                    raise BrokerError(_OFFSET_OUT_OF_RANGE, what)
                continue
        except BrokerError as error:
            patient_until = patient_until or time.monotonic() + _BEYOND_END_S
            waits = time.monotonic() < patient_until
            if waits and lost is not None and error.code == _UNKNOWN_TOPIC_OR_PARTITION:
                time.sleep(_PAUSE_S)  # a broker just started may not know its topics yet
                continue
            following = _next_there(cluster, topic, partition, (position, last), error, lost)
            if following == position:
                if not waits:
                    raise
                time.sleep(_PAUSE_S)
            position = following
            continue
        patient_until = None
        for piece in committed(fetched, found):
            for batch in _decoded(piece, position, last, wanted):
                yield batch if len(stretch) == 1 else batch.filter(_inside(batch, stretch))
        position = _next_wanted(found[-1].last_offset + 1, stretch)


def _decoded(piece: Buffer, first: int, last: int, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """Decode batches together; one by one where they hold too much for that."""
    try:
        yield decode(piece, first=first, last=last, **wanted._asdict())
        return
    except OverflowError:
        view, position = memoryview(piece), 0
    for header in batch_headers(piece):
        one = view[position : position + header.size]
        position += header.size
        yield decode(one, first=first, last=last, **wanted._asdict())


def _next_there(
    cluster: Cluster,
    topic: str,
    partition: int,
    asked: Bounds,
    error: BrokerError,
    lost: Lost | None,
) -> int:
    """Where reading goes on when `asked` could not be read; beyond it when nothing is left.

    At its first offset when the log has all of it, so that nothing is lost.
    Raises: `DataLost` unless `lost` takes it; `error` when it tells of something else.
    """
    first, last = asked
    if error.code == _UNKNOWN_TOPIC_OR_PARTITION and lost is not None:
        lost(TopicLost(f"{topic}-{partition}: offsets {first} to {last} are gone with their topic"))
        return last + 1
    if error.code != _OFFSET_OUT_OF_RANGE:
        raise error
    start = log_end(cluster, topic, partition, LogEnd.EARLIEST)
    end = log_end(cluster, topic, partition)
    if start <= first < end:
        return first
    loss = _lost(topic, partition, asked, start, end)
    if lost is None:
        told = "Nothing was skipped: the batch fails until its reader's position is moved"
        raise DataLost(f"{loss}. {told}") from error
    lost(loss)
    return start if first < start else last + 1


def _next_wanted(position: int, stretch: list[Bounds]) -> int:
    """What stands between the ranges need not be there any more."""
    for first, last in stretch:
        if position <= last:
            return max(position, first)
    return position


def _inside(batch: pa.RecordBatch, stretch: list[Bounds]) -> pa.Array:
    firsts, lasts = np.array(stretch, dtype=np.int64).T
    offsets = batch.column("offset").to_numpy()
    nearest = np.searchsorted(firsts, offsets, side="right") - 1
    return pa.array((nearest >= 0) & (offsets <= lasts[nearest]))


def _resized(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows: small batches put together, large ones sliced, none empty.

    Those of large records are not: ten thousand of a megabyte are more than a worker has.
    """
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows and (rows >= ROWS_MIN or size >= _BATCH_BYTES):
            yield from _joined(waiting)
            waiting, rows, size = [], 0, 0
    if rows:
        yield from _joined(waiting)


def _joined(waiting: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    whole = waiting[0] if len(waiting) == 1 else pa.concat_batches(waiting)
    for start in range(0, whole.num_rows, ROWS_MAX):
        yield whole.slice(start, ROWS_MAX)


def _lost(topic: str, partition: int, asked: Bounds, start: int, end: int) -> DataLost:
    first, last = asked
    if first < start:
        gone = f"{first} to {min(last, start - 1)} were removed (retention or deletion)"
    else:
        gone = f"{max(first, end)} to {last} are beyond the end of the log"
    return DataLost(
        f"{topic}-{partition}: of offsets {first} to {last}, {gone}; the log now has {start} to "
        f"{end - 1}"
    )
