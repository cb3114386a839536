"""How far a reader of a share-partition has to look: what is not read costs nothing."""

from headrace.core.share_partition import SharePartition
from headrace.core.types import Span


def reach(partition: SharePartition, records_max: int, window: int) -> Span | None:
    """From the first record that can be acquired to the one that makes them `records_max`.

    Beyond SPEO there are as many as the window has room for. None when there is nothing to acquire.
    """
    found = partition.enough(partition.start, records_max)
    left = records_max - sum([spans.records for _, spans in found])
    if found and left <= 0:
        return Span(found[0][1].firsts[0], found[-1][1].last + left)
    first = found[0][1].firsts[0] if found else partition.end
    room = min(left, window - partition.unfinished)
    if room > 0:
        return Span(first, partition.end + room - 1)
    return Span(first, found[-1][1].last) if found else None
