"""Runs against a list with one entry an offset, in chunks so short that all of their edges are met.

`lay_all` is what live traffic uses; the model lays one offset after the other.
"""

import os
from collections import Counter
from collections.abc import Iterator
from itertools import groupby, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core import run_chunks
from headrace.core.runs import Piece, Runs, State, Status
from headrace.core.spans import one_by_one
from headrace.core.types import MemberId, MonoMs, Span

OFFSETS = 60
EXAMPLES = int(os.environ.get("HEADRACE_RUNS_EXAMPLES", "150"))
Kind = tuple[State, int, MemberId | None, MonoMs | None]
KINDS: list[Kind] = [
    (State.AVAILABLE, 0, None, None),
    (State.AVAILABLE, 1, None, None),
    (State.ACQUIRED, 1, MemberId("a"), MonoMs(5)),
    (State.ACQUIRED, 1, MemberId("b"), MonoMs(7)),
    (State.ACKNOWLEDGED, 1, None, None),
]


@pytest.fixture(autouse=True, scope="module")
def short_chunks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_chunks, "CHUNK_RUNS", 4)
        patch.setattr(run_chunks, "_FILL_RUNS", 3)
        patch.setattr(run_chunks, "_LOOK_RUNS", 3)
        yield


class Both:
    """The runs and their model."""

    def __init__(self) -> None:
        self.runs = Runs(0)
        self.cells: list[Kind] = []
        self.start = 0

    def lay(self, wanted: list[tuple[int, int, int]]) -> None:
        pieces: list[Piece] = []
        for first, last, kind in wanted:
            pieces.append((first, last, self.runs.status(*KINDS[kind])))
            for offset in range(first, last + 1):
                self.cells[offset : offset + 1] = [KINDS[kind]]
        self.runs.lay_all(pieces)

    def drop(self, offset: int) -> None:
        self.runs.drop_below(offset)
        self.start = offset
        self.cells += [KINDS[0]] * (offset - len(self.cells))

    def expected(self, first: int, last: int) -> list[tuple[int, int, Kind]]:
        inside = range(max(first, self.start), min(last + 1, len(self.cells)))
        spans = (list(group) for _, group in groupby(inside, key=lambda one: self.cells[one]))
        return [(span[0], span[-1], self.cells[span[0]]) for span in spans]

    def check(self) -> None:
        runs = self.runs
        assert (runs.start, runs.end) == (self.start, len(self.cells))
        everything = self.expected(0, len(self.cells))
        assert [seen(piece) for piece in runs.pieces()] == everything
        assert [seen((run.span.first, run.span.last, run.status)) for run in runs] == everything
        assert len(runs) == len(everything)
        assert not any(one.alike(other) for one, other in pairwise(runs))
        live = self.cells[self.start :]
        assert +runs.records == Counter(state for state, *_ in live)
        assert runs.next_deadline() == min((d for *_, d in live if d is not None), default=None)
        for offset in range(len(self.cells) + 2):
            status = runs.at(offset)
            inside = self.start <= offset < len(self.cells)
            assert (kind(status) if status else None) == (self.cells[offset] if inside else None)
        for offset in (0, self.start, self.start + 7, self.start):
            assert not list(runs.available(offset, 0)), "and what there is stays known"
            found = [seen(piece) for piece in one_by_one(runs.available(offset))]
            assert found == [
                (max(first, offset), last, what)
                for first, last, what in everything
                if what[0] is State.AVAILABLE and last >= offset
            ]
        for holder in (MemberId("a"), MemberId("b")):
            held = [seen(piece) for piece in runs.of(runs.held_by(holder))]
            assert held == [one for one in everything if one[2][2] == holder]
        due = [seen(piece) for piece in runs.of(runs.due(MonoMs(6)))]
        assert due == [one for one in everything if one[2][3] == 5]


def kind(status: Status) -> Kind:
    return (status.state, status.deliveries, status.holder, status.deadline)


def seen(piece: Piece) -> tuple[int, int, Kind]:
    first, last, status = piece
    return (first, last, kind(status))


def ascending(data: st.DataObject, start: int, end: int) -> list[tuple[int, int, int]]:
    """Pieces that ascend from `start`, and where they pass `end` leave no hole."""
    wanted, at, draw = [], start, data.draw
    for _ in range(draw(st.integers(1, 25))):
        first = min(at + draw(st.sampled_from([0, 0, 0, 1, 2, 9])), max(at, end))
        last = first + draw(st.sampled_from([0, 0, 0, 1, 3, 20]))
        if last >= OFFSETS:
            break
        wanted.append((first, last, draw(st.integers(0, len(KINDS) - 1))))
        at = last + 1
    return wanted


@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_runs_are_what_a_list_of_all_offsets_is(data: st.DataObject) -> None:
    both = Both()
    draw = data.draw
    for _ in range(draw(st.integers(1, 12))):
        if draw(st.integers(0, 5)) == 0:
            both.drop(draw(st.integers(both.start, min(len(both.cells) + 1, OFFSETS))))
        else:
            begin = draw(st.integers(both.start, len(both.cells)))
            both.lay(ascending(data, begin, len(both.cells)))
        both.check()
        first = draw(st.integers(0, OFFSETS))
        last = draw(st.integers(first, OFFSETS + 3))
        found = [(run.span.first, run.span.last, kind(run.status)) for run in
                 both.runs.within(Span(first, last))]  # fmt: skip
        assert found == both.expected(first, last)


def test_alternating_runs_merge_again_into_one() -> None:
    both = Both()
    both.lay([(0, 49, 2)])
    both.lay([(offset, offset, 1) for offset in range(1, 50, 2)])
    assert len(both.runs) == 50
    both.lay([(offset, offset, 1) for offset in range(0, 50, 2)])
    both.check()
    assert len(both.runs) == 1


def test_one_run_over_many_chunks() -> None:
    both = Both()
    both.lay([(offset, offset, offset % 5) for offset in range(50)])
    both.lay([(3, 47, 4)])
    both.check()
    both.lay([(0, 55, 4)])
    both.check()
    assert len(both.runs) == 1


def test_a_hole_is_a_bug() -> None:
    runs = Runs(0)
    with pytest.raises(AssertionError, match="hole"):
        runs.lay(1, 1, runs.status(State.AVAILABLE))
