"""Searches by time over the segments of a log. Source: UnifiedLog.fetchOffsetByTimestamp (4.3).

A search reads headers of batches until one may hold the record, and yields what remains to be done
with that batch, which a producer may have made expensive: its caller does it here (`carry_out`) or
in a thread. It yields None now and then, so that a long walk over headers can be interrupted.
Records below the start offset are deleted and never an answer. Raises, from both: OSError, also for
damage, and FileNotFoundError where a segment was dropped or replaced meanwhile; CorruptRecordsError
for what a producer put inside a batch.
"""

import errno
from collections.abc import Callable, Generator, Iterator
from functools import partial

from headrace.core.types import WallMs
from headrace.log.api import CorruptFileError, CorruptRecordsError, DamagedBlockError
from headrace.log.segment import Segment
from headrace.log.segment_list import SegmentList
from headrace.wire.batches import BatchHeader, CorruptBatch, verify
from headrace.wire.record_times import InBatch, find_time

_HEADERS_PER_STEP = 512
_NEVER = (1 << 63) - 1

Found = tuple[int, WallMs] | None
Step = Callable[[], InBatch] | None
Search = Generator[Step, InBatch | None, Found]


def carry_out(search: Search) -> Found:
    """Run a search to its end in this thread."""
    result: InBatch | None = None
    while True:
        try:
            step = search.send(result)
        except StopIteration as end:
            found: Found = end.value
            return found
        result = None if step is None else step()


def offset_for_time(segments: SegmentList, start_offset: int, timestamp: int) -> Search:
    """Find the first offset whose record timestamp is >= `timestamp`, with that timestamp."""
    for segment in segments.from_offset(start_offset):
        if segment.size and segment.max_timestamp >= timestamp:
            found = yield from _search(segments, segment, start_offset, timestamp)
            if found is not None:
                return found
    return None


def offset_of_max_time(segments: SegmentList, start_offset: int) -> Search:
    """Find the first offset that has the highest timestamp, with it; None without any."""
    highest = -1
    for segment in segments.from_offset(start_offset):
        highest = max(highest, (yield from _max_time(segments, segment, start_offset)))
    if highest < 0:
        return None
    return (yield from offset_for_time(segments, start_offset, highest))


def _search(
    segments: SegmentList, segment: Segment, start_offset: int, timestamp: int
) -> Generator[Step, InBatch | None, Found]:
    walk = _walk(segments, segment, lambda: segment.position_before(timestamp))
    for step, (at, header) in enumerate(walk, 1):
        if step % _HEADERS_PER_STEP == 0:
            yield None
        if header.max_timestamp < timestamp or header.last_offset < start_offset:
            continue
        if header.is_control:
            continue
        result = yield _in_batch(segment, at, header, timestamp, start_offset)
        assert result is not None
        if result.first is not None:
            offset, found = result.first
            return offset, WallMs(found)
    return None


def _walk(
    segments: SegmentList, segment: Segment, begin: Callable[[], int]
) -> Iterator[tuple[int, BatchHeader]]:
    """Walk over the batches from a position that is looked up first. Raises: OSError."""
    try:
        yield from segment.walk(begin())
    except (CorruptBatch, DamagedBlockError) as damage:
        if _is_gone(segments, segment):  # its name may be that of another file
            problem = "a segment is gone"
            raise FileNotFoundError(errno.ENOENT, problem, segment.file_path) from damage
        if isinstance(damage, DamagedBlockError):
            raise
        raise segment.damaged(damage) from damage
    finally:
        if _is_gone(segments, segment):
            segment.release()  # reading has opened the file again


def _is_gone(segments: SegmentList, segment: Segment) -> bool:
    """Return whether a segment was dropped or replaced."""
    return not any(one is segment for one in segments)


def _in_batch(
    segment: Segment, position: int, header: BatchHeader, timestamp: int, start_offset: int
) -> Callable[[], InBatch]:
    data = segment.file.pread(header.size, position)
    return partial(_find_in, segment, position, data, header, timestamp, start_offset)


def _find_in(
    segment: Segment,
    position: int,
    data: bytes,
    header: BatchHeader,
    timestamp: int,
    start_offset: int,
) -> InBatch:
    """Verify the batch at a position, and find a time in it.

    Raises: OSError; CorruptRecordsError.
    """
    try:
        verify(data, 0, header)
    except CorruptBatch as damage:
        raise segment.damaged(damage, position) from damage
    try:
        return find_time(data, header, timestamp, start_offset)
    except CorruptBatch as error:
        where = CorruptFileError(segment.file_path, str(error), position=position)
        raise CorruptRecordsError(where) from error


def _max_time(
    segments: SegmentList, segment: Segment, start_offset: int
) -> Generator[Step, InBatch | None, int]:
    if start_offset <= segment.base_offset:
        return segment.max_timestamp
    highest = -1
    walk = _walk(segments, segment, lambda: segment.position_after(start_offset))
    for step, (at, header) in enumerate(walk, 1):
        if step % _HEADERS_PER_STEP == 0:
            yield None
        if header.base_offset >= start_offset:
            highest = max(highest, header.max_timestamp)
        elif not header.is_control:
            result = yield _in_batch(segment, at, header, _NEVER, start_offset)
            assert result is not None
            if result.highest is not None:
                highest = max(highest, result.highest)
    return highest
