"""Which segments of a partition are too old or too many. Source: UnifiedLog.deleteOldSegments."""

from collections.abc import Sequence

from headrace.broker.topic_settings import TopicSettings
from headrace.core.types import WallMs
from headrace.log.api import SegmentInfo


def kept_from(
    segments: Sequence[SegmentInfo], settings: TopicSettings, now: WallMs, end_offset: int
) -> int:
    """The offset below which segments may go, by retention.ms and retention.bytes.

    The oldest go first, and whole segments only. By time one is due whose highest timestamp is
    past; without any timestamp it goes with the one that follows it. By size they go while what
    remains is no smaller than the limit. Nothing goes beyond `end_offset`, the high watermark.
    """
    until = segments[0].base_offset
    if "delete" not in settings.cleanup_policy:
        return until
    left = [one for one in segments if one.size and one.end_offset <= end_offset]
    due = 0
    if settings.retention_ms >= 0:
        for index, one in enumerate(left):
            if one.max_timestamp < 0:
                continue
            if now - one.max_timestamp <= settings.retention_ms:
                break
            due = index + 1
    if due:
        until = left[due - 1].end_offset
    if settings.retention_bytes >= 0:
        excess = sum(one.size for one in segments if one.base_offset >= until)
        excess -= settings.retention_bytes
        for one in left[due:]:
            excess -= one.size
            if excess < 0:
                break
            until = one.end_offset
    return until
