"""Chunks of runs: what is exchanged in place is what rewriting would have made; what is found."""

from array import array
from collections import Counter

from hypothesis import assume, given
from hypothesis import strategies as st

from headrace.core.run_chunks import Chunk, exchanged, found, replaced, rewritten
from headrace.core.spans import Spans, one_by_one

Piece = tuple[int, int, str]
Moves = Counter[tuple[str, str]]
ALONE = (None, None)  # nothing is beside the chunk
LENGTHS = st.lists(st.tuples(st.integers(1, 3), st.sampled_from("abc")), min_size=1, max_size=12)


def chunk_of(lengths: list[tuple[int, str]]) -> tuple[Chunk[str], int]:
    """A chunk of these runs, neighbours that are alike being one, and where it stops."""
    firsts, statuses, end = array("q"), list[str](), 0
    for length, status in lengths:
        if not statuses or statuses[-1] != status:
            firsts.append(end)
            statuses.append(status)
        end += length
    return Chunk(firsts, statuses, set(statuses)), end


@given(
    LENGTHS,
    st.lists(st.tuples(st.booleans(), st.sampled_from("abcd")), max_size=12),
    st.sampled_from([None, *"abcd"]),
    st.sampled_from([None, *"abcd"]),
)
def test_exchanging_is_rewriting(
    lengths: list[tuple[int, str]],
    laid: list[tuple[bool, str]],
    before: str | None,
    following: str | None,
) -> None:
    (chunk, stop), (other, _) = chunk_of(lengths), chunk_of(lengths)
    ends = [*chunk.firsts[1:], stop]
    runs = zip(chunk.firsts, ends, laid, strict=False)
    pieces = [(first, end - 1, status) for first, end, (is_laid, status) in runs if is_laid]
    moved, expected = Moves(), Moves()

    def move(was: str, now: str, records: int) -> None:
        moved[was, now] += records

    def told(was: str, now: str, records: int) -> None:
        expected[was, now] += records

    assume(before != chunk.statuses[0] and following != chunk.statuses[-1])  # they are one run
    done = exchanged(chunk, stop, (before, following), pieces, move)
    assert before != chunk.statuses[0]
    assert following != chunk.statuses[-1]
    found = rewritten(chunk, stop, before, pieces[done:], move)
    wanted = rewritten(other, stop, before, pieces, told)
    assert (found.firsts, found.statuses) == (wanted.firsts, wanted.statuses)
    assert set(found.statuses) <= found.seen
    assert moved == expected


def test_a_piece_that_covers_a_part_of_a_run_is_not_exchanged() -> None:
    chunk, stop = chunk_of([(2, "a"), (3, "b"), (2, "a")])
    for piece in ((2, 3, "c"), (3, 4, "c"), (2, 5, "c"), (2, 4, "a"), (0, 0, "c"), (5, 5, "c")):
        assert exchanged(chunk, stop, ALONE, [piece], lambda *_: None) == 0
    pieces = [(0, 1, "d"), (2, 4, "c"), (5, 6, "d")]
    assert exchanged(chunk, stop, ALONE, pieces, lambda *_: None) == 3
    assert chunk.statuses == ["d", "c", "d"]


def test_a_piece_like_a_neighbour_is_not_exchanged() -> None:
    for before, behind in (("a", "d"), ("d", "a")):
        chunk, stop = chunk_of([(2, before), (3, "b"), (2, behind)])
        assert exchanged(chunk, stop, ALONE, [(2, 4, "a")], lambda *_: None) == 0


def test_a_piece_like_what_is_beside_the_chunk_is_not_exchanged() -> None:
    chunk, stop = chunk_of([(2, "a"), (2, "b")])
    assert exchanged(chunk, stop, ("c", None), [(0, 1, "c")], lambda *_: None) == 0
    assert exchanged(chunk, stop, (None, "c"), [(2, 3, "c")], lambda *_: None) == 0
    assert chunk.statuses == ["a", "b"]


@given(
    LENGTHS,
    st.integers(0, 11),
    st.integers(1, 6),
    st.sampled_from("abcd"),
    st.sampled_from([None, *"abcd"]),
    st.sampled_from([None, *"abcd"]),
)
def test_replacing_every_second_run_is_rewriting(
    lengths: list[tuple[int, str]],
    at: int,
    runs: int,
    status: str,
    before: str | None,
    following: str | None,
) -> None:
    (chunk, stop), (other, _) = chunk_of(lengths), chunk_of(lengths)
    assume(before != chunk.statuses[0] and following != chunk.statuses[-1])  # they are one run
    ends = [*chunk.firsts[1:], stop]
    laid = slice(at, at + 2 * runs - 1, 2)
    spans = Spans(list(chunk.firsts[laid]), ends[laid])
    assume(spans)
    moved, expected = Moves(), Moves()

    def move(was: str, now: str, records: int) -> None:
        moved[was, now] += records

    def told(was: str, now: str, records: int) -> None:
        expected[was, now] += records

    around: list[str | None] = [before, *chunk.statuses, following]
    old, beside = chunk.statuses[laid], around[at : at + 2 * len(spans) + 1 : 2]
    done = replaced(chunk, stop, (before, following), spans, status, move)
    assert done == (len(set(old)) == 1 and status not in beside)
    if not done:
        assert (chunk.firsts, chunk.statuses, moved) == (other.firsts, other.statuses, Moves())
        return
    pieces = [(first, last, status) for first, last in spans]
    wanted = rewritten(other, stop, before, pieces, told)
    assert (chunk.firsts, chunk.statuses) == (wanted.firsts, wanted.statuses)
    assert set(chunk.statuses) <= chunk.seen
    assert moved == expected


def test_spans_that_are_not_every_second_run_are_not_replaced() -> None:
    chunk, stop = chunk_of([(2, "a"), (3, "b"), (2, "a"), (3, "b"), (1, "a")])
    for bounds in (
        [(2, 3), (7, 9)],  # a part of a run
        [(2, 4), (7, 8)],
        [(2, 5), (7, 9)],  # more than a run
        [(2, 4)] * 2,
        [(0, 1), (2, 4)],  # runs that touch
        [(2, 4), (10, 10)],  # not the next but one
        [(7, 9), (12, 12)],  # beyond the chunk
        [(10, 11)],
    ):
        spans = Spans.of(*bounds)
        assert not replaced(chunk, stop, ALONE, spans, "c", lambda *_: None), bounds
    assert replaced(chunk, stop, ALONE, Spans.of((2, 4), (7, 9)), "c", lambda *_: None)
    assert chunk.statuses == ["a", "c", "a", "c", "a"]


@given(
    st.integers(0, 150),
    st.sets(st.integers(0, 150), max_size=4),
    st.sampled_from(["c", "a", "ac", "ab", "d", ""]),
    st.integers(0, 460),
    st.integers(1, 200),
)
def test_the_runs_of_some_statuses_are_found_among_many_others(
    others: int, at: set[int], wanted: str, offset: int, records: int
) -> None:
    """Wherever they lie, from an offset on, until they are so many records."""
    lengths = [(3, "c" if number in at else "ab"[number % 2]) for number in range(others + 1)]
    chunk, stop = chunk_of(lengths)
    assume(offset < stop)
    expected, left = list[Piece](), records
    ends = [*chunk.firsts[1:], stop]
    for first, end, status in zip(chunk.firsts, ends, chunk.statuses, strict=True):
        if status in wanted and end > offset and left > 0:
            expected.append((max(first, offset), end - 1, status))
            left -= end - max(first, offset)
    told, still = found(chunk, stop, set(wanted), offset, records)
    assert (list(one_by_one([told])), still) == (expected, left)
