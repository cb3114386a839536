"""Many spans as two columns: what is done to a hundred of them is a few steps, not a hundred."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import chain, groupby
from typing import TypeVar

from headrace.core.types import Span

T = TypeVar("T")
Bounds = tuple[int, int]  # first and last, both included: a span without the object
Alike = tuple[T, "Spans"]  # spans that are the same
Each = tuple["Spans", list[T]]  # spans, and what each of them is


class Spans:
    """Spans that ascend: where each begins, and where it ends, exclusive.

    Who has one may share its columns with others, and changes nothing.
    """

    __slots__ = ("ends", "firsts", "records")

    def __init__(self, firsts: list[int], ends: list[int]) -> None:
        self.firsts = firsts
        self.ends = ends
        self.records = sum(ends) - sum(firsts)

    @classmethod
    def of(cls, *spans: Bounds | Span) -> "Spans":
        """These spans.

        >>> list(Spans.of((1, 4), (6, 6)))
        [(1, 4), (6, 6)]
        """
        bounds = [(one.first, one.last) if isinstance(one, Span) else one for one in spans]
        return cls([first for first, _ in bounds], [last + 1 for _, last in bounds])

    @classmethod
    def joined(cls, parts: Iterable["Spans"]) -> "Spans":
        """Those of several, each behind the one before."""
        firsts, ends = list[int](), list[int]()
        for part in parts:
            firsts += part.firsts
            ends += part.ends
        return cls(firsts, ends)

    def cut(self, at: int, until: int) -> "Spans":
        """Those numbered `at` to `until`, exclusive."""
        if until - at == len(self.firsts):
            return self
        return Spans(self.firsts[at:until], self.ends[at:until])

    @property
    def last(self) -> int:
        """The last offset of all."""
        return self.ends[-1] - 1

    def __len__(self) -> int:
        return len(self.firsts)

    def __iter__(self) -> Iterator[Bounds]:
        return ((first, end - 1) for first, end in zip(self.firsts, self.ends, strict=True))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Spans):
            return NotImplemented
        return self.firsts == other.firsts and self.ends == other.ends

    def __repr__(self) -> str:
        return f"Spans.of{tuple(self)}"

    def through(self, last: int) -> "Spans":
        """What of them is up to an offset; the first begins there or before."""
        if self.ends[-1] <= last + 1:
            return self
        count = bisect_right(self.firsts, last)
        firsts, ends = self.firsts[:count], self.ends[:count]
        ends[-1] = min(ends[-1], last + 1)
        return Spans(firsts, ends)


def grouped(parts: Iterable[Each[T]]) -> list[Alike[T]]:
    """Those that follow each other and are the same together."""
    told = list(parts)
    if not told:
        return []
    spans, each = told[0]
    if len(told) > 1:
        spans = Spans.joined([part for part, _ in told])
        each = [*chain.from_iterable(what for _, what in told)]
    if each.count(each[0]) == len(each):
        return [(each[0], spans)]
    found: list[Alike[T]] = []
    at = 0
    for what, alike in groupby(each):
        until = at + len(list(alike))
        found.append((what, spans.cut(at, until)))
        at = until
    return found


def one_by_one(parts: Iterable[Each[T]]) -> Iterator[tuple[int, int, T]]:
    """Each span, by its first and last, and what it is."""
    for spans, each in parts:
        yield from zip(spans.firsts, [end - 1 for end in spans.ends], each, strict=True)
