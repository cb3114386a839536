"""How far a reader of a share-partition has to look: what is not read costs nothing."""

from headrace.core.share_partition import SharePartition
from headrace.core.types import Span


def reach(partition: SharePartition, records_max: int, window: int) -> Span | None:
    """From the first record that can be acquired to the one that makes them `records_max`.

    Beyond SPEO there are as many as the window has room for. None when there is nothing to acquire.
    """
    first: int | None = None
    last, left = 0, records_max
    for begin, stop, _ in partition.enough(partition.start, records_max):
        if first is None:
            first = begin
        left -= stop - begin + 1
        if left <= 0:
            return Span(first, stop + left)
        last = stop
    room = min(left, window - partition.unfinished)
    if room > 0:
        return Span(partition.end if first is None else first, partition.end + room - 1)
    return None if first is None else Span(first, last)
