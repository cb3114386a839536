"""Items in order for a page that shows the first few of very many.

Sorting 100,000 names takes 50 ms and cannot pause; a heap of them takes 10 ms, and each item that
is read some microseconds more, so a reader can pause between two items and leave off.
"""

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop
from typing import Any, TypeVar

ComparableT = TypeVar("ComparableT", bound=Any)


def ascending(items: Iterable[ComparableT]) -> Iterator[ComparableT]:
    """Yield items in ascending order; `items` is read at the first step."""
    heap = list(items)
    heapify(heap)
    while heap:
        yield heappop(heap)
