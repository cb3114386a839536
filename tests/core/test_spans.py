"""Spans as columns against lists of pairs."""

from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.spans import Each, Spans, grouped, one_by_one

Bounds = tuple[int, int]
STEPS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=12)


def laid(steps: list[tuple[int, int]], start: int = 0) -> list[Bounds]:
    """Spans of these lengths, so far apart."""
    found, at = [], start
    for gap, length in steps:
        found.append((at + gap, at + gap + length - 1))
        at += gap + length
    return found


@given(STEPS, st.data())
def test_columns_are_pairs(steps: list[tuple[int, int]], data: st.DataObject) -> None:
    bounds = laid(steps)
    spans = Spans.of(*bounds)
    assert list(spans) == bounds
    assert len(spans) == len(bounds)
    assert spans.records == sum(last - first + 1 for first, last in bounds)
    assert spans.last == bounds[-1][1]
    at = data.draw(st.integers(0, len(bounds)))
    until = data.draw(st.integers(at, len(bounds)))
    assert list(spans.cut(at, until)) == bounds[at:until]
    assert Spans.joined([spans.cut(0, at), spans.cut(at, len(bounds))]) == spans
    last = data.draw(st.integers(bounds[0][0], bounds[-1][1] + 2))
    kept = [(first, min(stop, last)) for first, stop in bounds if first <= last]
    assert list(spans.through(last)) == kept
    assert list(spans) == bounds, "it is shared, and did not change"


@given(st.lists(st.tuples(STEPS, st.text("ab", min_size=12, max_size=12)), max_size=4))
def test_what_is_the_same_comes_together(parts: list[tuple[list[tuple[int, int]], str]]) -> None:
    told: list[Each[str]] = []
    start = 0
    for steps, kinds in parts:
        spans = Spans.of(*laid(steps, start))
        told.append((spans, list(kinds[: len(spans)])))
        start = spans.last + 1
    pieces = list(one_by_one(told))
    assert pieces == [
        (*bounds, kind) for spans, each in told for bounds, kind in zip(spans, each, strict=True)
    ]
    expected = [
        (kind, Spans.of(*((first, last) for first, last, _ in alike)))
        for kind, alike in groupby(pieces, key=lambda piece: piece[2])
    ]
    assert grouped(told) == expected
