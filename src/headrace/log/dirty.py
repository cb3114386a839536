"""How much of a log is dirty: written since it was last compacted, and old enough to be so again.

Source: Kafka's LogToClean, LogCleanerManager.cleanableOffsets (4.3); KIP-58, KIP-354.
"""

from dataclasses import dataclass, replace

from headrace.core.types import WallMs
from headrace.log.segments import SegmentedLog

_NEVER = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings of a topic, and of the cleaner, that compaction obeys; Kafka's names.

    `min_ratio` min.cleanable.dirty.ratio; `min_lag_ms`, `max_lag_ms` {min,max}.compaction.lag.ms;
    `delete_retention_ms`; `segment_bytes`; `map_bytes` log.cleaner.dedupe.buffer.size.
    """

    min_ratio: float = 0.5
    min_lag_ms: int = 0
    max_lag_ms: int = _NEVER
    delete_retention_ms: int = 86_400_000
    segment_bytes: int = 1 << 30
    map_bytes: int = 128 << 20


@dataclass(frozen=True, slots=True)
class Dirty:
    """What there is to clean of a log: the offsets `start` to `end`, and sizes in bytes.

    `overdue`: its oldest record is older than max.compaction.lag.ms.
    """

    start: int
    end: int
    clean_bytes: int
    dirty_bytes: int
    overdue: bool

    @property
    def ratio(self) -> float:
        """The dirty part of all that could be cleaned."""
        return self.dirty_bytes / max(self.clean_bytes + self.dirty_bytes, 1)

    def is_due(self, rules: Rules) -> bool:
        """Whether it is worth a cleaning now."""
        return self.dirty_bytes > 0 and (self.overdue or self.ratio > rules.min_ratio)


def find_dirty(kept: SegmentedLog, cleaned_to: int | None, rules: Rules, now: WallMs) -> Dirty:
    """Where a cleaning would begin and end.

    Args:
        cleaned_to: what the checkpoint says; None when the log was never cleaned.

    Raises: OSError.
    """
    return with_lag(measure(kept, cleaned_to, rules, now), kept, rules, now)


def with_lag(dirty: Dirty, kept: SegmentedLog, rules: Rules, now: WallMs) -> Dirty:
    """Complete what was measured with whether it is overdue. Raises: OSError."""
    is_late = dirty.dirty_bytes > 0 and is_overdue(kept, dirty.start, rules, now)
    return replace(dirty, overdue=is_late)


def measure(kept: SegmentedLog, cleaned_to: int | None, rules: Rules, now: WallMs) -> Dirty:
    """Find the dirty part of a log as `find_dirty`, without reading a batch; never `overdue`."""
    sealed = [one for one in kept.segments() if one.sealed]
    start, end = kept.start_offset, sealed[-1].end_offset if sealed else kept.start_offset
    if cleaned_to is not None and start <= cleaned_to <= end:
        start = cleaned_to
    for one in sealed:
        fresh = rules.min_lag_ms and one.max_timestamp > now - rules.min_lag_ms
        if fresh and one.end_offset > start:
            end = max(one.base_offset, start)
            break
    clean = sum(one.size for one in sealed if one.end_offset <= start)
    dirty = sum(one.size for one in sealed if start < one.end_offset <= end)
    return Dirty(start, end, clean, dirty, overdue=False)


def is_overdue(kept: SegmentedLog, offset: int, rules: Rules, now: WallMs) -> bool:
    """Whether the batch that holds or follows `offset` is older than the longest lag allowed.

    Raises: OSError.
    """
    if rules.max_lag_ms >= _NEVER or offset >= kept.end_offset:
        return False
    headers = kept.read(max(offset, kept.start_offset), 1).headers
    return bool(headers) and headers[0].base_timestamp < now - rules.max_lag_ms
