"""What is given again near the delivery limit: less each time, so that a poison record is found.

As Kafka 4.2 and later do (SharePartition: throttled acquisition), with one difference. For a
limit of M deliveries it begins at L = max(2, ceil(M / 2)). Records delivered c >= L times are given
alone, never after others, and at most max(1, S >> (c - L + 1)) of them at once; the last delivery
is of one record, where M > 2. S is the size of the lot: in Kafka the range of the first delivery,
here the range that was delivered together for the L-th time (after a restart: what is alike then),
so that runs that are far from the limit still merge, whoever got them.
"""

from collections.abc import Iterator
from typing import NamedTuple

from headrace.core.runs import Piece
from headrace.core.types import Span


class Given(NamedTuple):
    """Records to be delivered, how often they were so far, and their lot."""

    first: int
    last: int
    deliveries: int
    lot: Span


def shrinks_from(delivery_limit: int) -> int:
    """The count of deliveries from which on a record is given alone."""
    return max(2, (delivery_limit + 1) // 2)


def shrunk(
    available: Iterator[Piece], to_offset: int, delivery_limit: int, records_max: int
) -> list[Given]:
    """What is given of `available`, up to an offset.

    The first run of it was delivered `shrinks_from` times or more.
    """
    found: list[Given] = []
    lot, room = Span(0, 0), 0
    for first, last, status in available:
        if not found:
            lot = status.lot or Span(first, last)
            steps = status.deliveries - shrinks_from(delivery_limit) + 1
            room = min(max(1, len(lot) >> steps), records_max)
        elif first > lot.last or status.lot not in (None, lot):
            break
        last_chance = delivery_limit > 2 and status.deliveries >= delivery_limit - 1
        if first > to_offset or (last_chance and found):
            break
        count = 1 if last_chance else min(last - first + 1, room, to_offset - first + 1)
        found.append(Given(first, first + count - 1, status.deliveries, lot))
        room -= count
        if last_chance or room <= 0:
            break
    return found
