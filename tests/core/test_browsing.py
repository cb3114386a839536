"""Pages of what is in flight: the seed's example, and pages of every size against the whole."""

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core import run_chunks
from headrace.core.browsing import LOOK_RUNS, Budget, page
from headrace.core.runs import State
from headrace.core.share_partition import SharePartition
from headrace.core.share_words import Acquired, Replayed, ShareKey
from headrace.core.spans import Spans
from headrace.core.types import MemberId, MonoMs

KEY = ShareKey("group", UUID(int=7), 0)
ALL = frozenset(State)
MILLION = 1_000_000
Told = list[tuple[int, int, State, int]]


def sized(runs: int, *, size: int = 1 << 30, looks: int = LOOK_RUNS) -> Budget:
    return Budget(runs, size, looks)


def told(share: SharePartition, offset: int, budget: Budget, states: Any = ALL) -> Any:
    found = page(share, offset, states, budget, lambda _: 10)
    runs = [(first, last, one.state, one.deliveries) for first, last, one in found.runs]
    return runs, found.next


def replayed(*told: tuple[int, int, State, int, str | None]) -> SharePartition:
    """A share-partition of runs: first, last, state, deliveries, reason."""
    share = SharePartition(KEY, told[0][0])
    share.apply(Replayed(KEY, [(*one, None) for one in told]))
    return share


def test_the_in_flight_example_of_the_seed() -> None:
    share = replayed(
        (2, 2, State.AVAILABLE, 0, None),
        (3, 3, State.AVAILABLE, 2, None),
        (4, 4, State.AVAILABLE, 0, None),
        (5, 5, State.ACKNOWLEDGED, 1, None),
        (6, 6, State.ARCHIVED, 1, None),
        (7, 8, State.AVAILABLE, 0, None),
    )
    for offset in (2, 4):
        share.apply(Acquired(KEY, Spans.of((offset, offset)), 1, MemberId("m"), MonoMs(9)))
    assert told(share, 0, sized(100)) == (
        [
            (2, 2, State.ACQUIRED, 1),
            (3, 3, State.AVAILABLE, 2),
            (4, 4, State.ACQUIRED, 1),
            (5, 5, State.ACKNOWLEDGED, 1),
            (6, 6, State.ARCHIVED, 1),
            (7, 8, State.AVAILABLE, 0),
        ],
        9,
    )


def test_a_page_ends_where_its_budget_is_spent() -> None:
    share = replayed(*((at, at, State(at % 2), at % 2, None) for at in range(10, 20)))
    assert told(share, 0, sized(2)) == ([(10, 10, State(0), 0), (11, 11, State(1), 1)], 12)
    assert told(share, 12, sized(9, size=11))[1] == 14, "the second run exceeds the bytes"
    assert told(share, 0, sized(9, looks=3), {State.ACKNOWLEDGED}) == ([], 13)
    assert told(share, 0, sized(0)) == ([], 10)


def test_a_page_begins_inside_a_run() -> None:
    share = replayed((5, 9, State.AVAILABLE, 1, None), (10, 12, State.ARCHIVED, 5, "why"))
    assert told(share, 7, sized(1)) == ([(7, 9, State.AVAILABLE, 1)], 10)
    assert told(share, 12, sized(1)) == ([(12, 12, State.ARCHIVED, 5)], 13)
    assert told(share, 40, sized(1)) == ([], 40), "behind SPEO nothing is in flight"


def test_nothing_is_in_flight() -> None:
    assert told(SharePartition(KEY, 7), 0, sized(5)) == ([], 7)


def test_a_million_records_in_a_million_runs_are_looked_at_in_portions() -> None:
    states = (State.AVAILABLE, State.ARCHIVED)
    share = replayed(*((at, at, states[at % 2], 1, None) for at in range(MILLION)))
    assert len(share.runs) == MILLION
    found, following = told(share, MILLION // 2, sized(100))
    assert (len(found), found[0][0], following) == (100, MILLION // 2, MILLION // 2 + 100)
    assert told(share, 0, sized(100), {State.ACQUIRED}) == ([], LOOK_RUNS)


@pytest.fixture(scope="module", autouse=True)
def short_chunks() -> Iterator[None]:
    """So short that all of their edges are met, but for the million."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_chunks, "CHUNK_RUNS", 64)
        patch.setattr(run_chunks, "_FILL_RUNS", 3)
        yield


@given(
    cells=st.lists(st.sampled_from(State), min_size=1, max_size=200),
    start=st.integers(0, 5),
    offset=st.integers(0, 210),
    states=st.frozensets(st.sampled_from(State), min_size=1),
    runs=st.integers(1, 7),
    looks=st.integers(1, 7),
)
def test_pages_one_after_the_other_are_the_whole(
    cells: list[State], start: int, offset: int, states: frozenset[State], runs: int, looks: int
) -> None:
    # One that is not finished at the front: SPSO would follow the others.
    cells = [State.AVAILABLE, *cells]
    share = replayed(*((at, at, one, 1, None) for at, one in enumerate(cells, start)))
    got: dict[int, State] = {}
    position = offset
    while position < share.end:
        found, following = told(share, position, sized(runs, looks=looks), states)
        assert len(found) <= min(runs, looks)
        assert following > position
        for first, last, state, _ in found:
            assert position <= first <= last < following
            got |= dict.fromkeys(range(first, last + 1), state)
        position = following
    assert got == {
        start + at: one for at, one in enumerate(cells) if start + at >= offset and one in states
    }


def test_looking_changes_nothing(drive: Callable[..., Any]) -> None:
    share = drive()
    share.fetch(0, 9)
    before, deadline = share.describe(), share.partition.next_deadline()
    told(share.partition, 0, sized(1))
    assert (share.describe(), share.partition.next_deadline()) == (before, deadline)
