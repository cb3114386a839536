"""What a metric is made of: its family, its samples, and the pieces in which they are told."""

from collections.abc import Iterable, Iterator
from itertools import islice
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


def pieces(samples: Samples) -> Iterator[list[Sample]]:
    """The samples in portions of so many steps; at least one, which may be empty."""
    steps = iter(samples)
    step = list(islice(steps, PIECE_SAMPLES))
    while True:
        yield [one for one in step if one is not None]
        step = list(islice(steps, PIECE_SAMPLES))
        if not step:
            return


def single(name: str, doc: str, value: float, kind: str = "gauge") -> tuple[Family, Samples]:
    """A family of one sample without labels."""
    return Family(name, kind, doc), [Sample((), value)]
