"""Looking into a share-partition, a page at a time, without changing anything. KIP-932 future work.

A page is bounded in the runs and bytes that it tells and in the runs that were looked at for it, so
that of a window of millions of records in as many states each page costs a few milliseconds.
Between pages the state may move: each tells where to go on, by offset.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from headrace.core.runs import Piece, State, Status
from headrace.core.share_partition import SharePartition

LOOK_RUNS = 20_000  # looked at for one answer: some 6 ms where none of them is wanted


@dataclass(slots=True)
class Budget:
    """What is left for the pages of one answer: runs and bytes to tell, and runs to look at.

    The bytes may be overspent by the last run.
    """

    runs: int
    bytes: int
    looks: int = LOOK_RUNS

    @property
    def is_spent(self) -> bool:
        return self.runs <= 0 or self.bytes <= 0 or self.looks <= 0


@dataclass(frozen=True, slots=True)
class Page:
    """Some runs in flight, in order; what lies from `next` on, at most SPEO, is for other pages."""

    runs: list[Piece]
    next: int


def page(
    share: SharePartition,
    offset: int,
    states: Collection[State],
    budget: Budget,
    size: Callable[[Status], int],
) -> Page:
    """The runs in `states` from `offset` on, the first cut to begin there; `budget` is spent.

    `size` is how many bytes a run takes that is in this status.
    """
    found: list[Piece] = []
    position = max(offset, share.start)
    for first, last, status in share.runs.pieces(position):
        if budget.is_spent:
            return Page(found, position)
        budget.looks -= 1
        if status.state in states:
            budget.runs -= 1
            budget.bytes -= size(status)
            found.append((max(first, position), last, status))
        position = last + 1
    return Page(found, max(position, share.end))
