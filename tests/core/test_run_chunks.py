"""Chunks of runs: what is exchanged in place is what rewriting the chunk would have made."""

from array import array
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.run_chunks import Chunk, exchanged, rewritten

Piece = tuple[int, int, str]
Moves = Counter[tuple[str, str]]
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


@given(LENGTHS, st.lists(st.tuples(st.booleans(), st.sampled_from("abcd")), max_size=12))
def test_exchanging_is_rewriting(
    lengths: list[tuple[int, str]], laid: list[tuple[bool, str]]
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

    done = exchanged(chunk, pieces, move)
    found = rewritten(chunk, stop, None, pieces[done:], move)
    wanted = rewritten(other, stop, None, pieces, told)
    assert (found.firsts, found.statuses) == (wanted.firsts, wanted.statuses)
    assert set(found.statuses) <= found.seen
    assert moved == expected


def test_a_piece_that_covers_a_part_of_a_run_is_not_exchanged() -> None:
    chunk, _ = chunk_of([(2, "a"), (3, "b"), (2, "a")])
    for piece in ((2, 3, "c"), (3, 4, "c"), (2, 5, "c"), (2, 4, "a"), (0, 1, "c"), (5, 6, "c")):
        assert exchanged(chunk, [piece], lambda *_: None) == 0
    assert exchanged(chunk, [(2, 4, "c")], lambda *_: None) == 1
    assert chunk.statuses == ["a", "c", "a"]


def test_a_piece_like_a_neighbour_is_not_exchanged() -> None:
    for before, behind in (("a", "d"), ("d", "a")):
        chunk, _ = chunk_of([(2, before), (3, "b"), (2, behind)])
        assert exchanged(chunk, [(2, 4, "a")], lambda *_: None) == 0
