"""Searches by time over the segments of a log. Source: UnifiedLog.fetchOffsetByTimestamp (4.3).

Records below the start offset are deleted and never an answer. Raises, from both: OSError;
CorruptBatch, also for what a producer put inside a batch.
"""

from headrace.core.types import WallMs
from headrace.log.segment import Segment
from headrace.log.segment_list import SegmentList
from headrace.wire import batches


def offset_for_time(
    segments: SegmentList, start_offset: int, timestamp: int
) -> tuple[int, WallMs] | None:
    """The first offset whose record timestamp is >= `timestamp`, with that timestamp."""
    for segment in segments.from_offset(start_offset):
        if segment.size and segment.max_timestamp >= timestamp:
            found = _search(segment, start_offset, timestamp)
            if found is not None:
                return found
    return None


def offset_of_max_time(segments: SegmentList, start_offset: int) -> tuple[int, WallMs] | None:
    """The first offset that has the highest timestamp, with it; None without any."""
    highest = max(_max_time(one, start_offset) for one in segments.from_offset(start_offset))
    return offset_for_time(segments, start_offset, highest) if highest >= 0 else None


def _search(segment: Segment, start_offset: int, timestamp: int) -> tuple[int, WallMs] | None:
    for position, header in segment.walk(segment.index.position_before(timestamp)):
        if header.max_timestamp < timestamp or header.last_offset < start_offset:
            continue
        for record in batches.records(segment.file.pread(header.size, position)):
            if record.timestamp >= timestamp and record.offset >= start_offset:
                return record.offset, WallMs(record.timestamp)
    return None


def _max_time(segment: Segment, start_offset: int) -> int:
    if start_offset <= segment.base_offset:
        return segment.max_timestamp
    highest = -1
    for position, header in segment.walk(segment.position_after(start_offset)):
        if header.base_offset >= start_offset:
            highest = max(highest, header.max_timestamp)
            continue
        data = segment.file.pread(header.size, position)
        for record in batches.records(data):
            if record.offset >= start_offset:
                highest = max(highest, record.timestamp)
    return highest
