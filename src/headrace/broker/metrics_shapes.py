"""What a metric is made of: its family, its samples, and the pieces in which they are told."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

PIECE_SAMPLES = 200


class Family(NamedTuple):
    """One metric: its name without the suffixes of its kind, and the labels in order."""

    name: str
    kind: str
    doc: str
    labels: tuple[str, ...] = ()


class Sample(NamedTuple):
    """One value of a family; `suffix` and `bound` only for parts of a histogram."""

    labels: tuple[str, ...]
    value: float
    suffix: str = ""
    bound: str = ""


# None is a step that takes as long as a sample and tells nothing, as the terms of a sum.
Samples = Iterable[Sample | None]
Families = Iterator[tuple[Family, Samples]]


def pieces(samples: Samples, opens: Callable[[], int] = int) -> Iterator[list[Sample]]:
    """Yield the samples in portions of so many steps; at least one, which may be empty.

    Args:
        samples: some of them may open a log, which takes longer than other steps and ends a piece.
        opens: returns how many logs were opened so far.
    """
    piece, steps, opens_seen, is_first = list[Sample](), 0, opens(), True
    for one in samples:
        if one is not None:
            piece.append(one)
        steps += 1
        if steps == PIECE_SAMPLES or opens() != opens_seen:
            yield piece
            piece, steps, opens_seen, is_first = [], 0, opens(), False
    if steps or is_first:
        yield piece


def single(name: str, doc: str, value: float, kind: str = "gauge") -> tuple[Family, Samples]:
    """A family of one sample without labels."""
    return Family(name, kind, doc), [Sample((), value)]
