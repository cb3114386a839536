"""Runs are laid in one go as they are one by one, in whatever order; and chunks stay short."""

from array import array
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.run_chunks import CHUNK_RUNS, Chunk, split
from headrace.core.runs import State
from headrace.core.share_partition import SharePartition
from headrace.core.share_words import Acquired, Event, Settled, ShareKey
from headrace.core.spans import Spans
from headrace.core.types import MemberId, MonoMs, Span

KEY = ShareKey("group", UUID(int=1), 0)
END = 20
SETTLED = st.builds(
    lambda first, size, state: Settled(
        KEY,
        Span(first, min(first + size, END - 1)),
        state,
        1,
        "why" if state in (State.ARCHIVING, State.ARCHIVED) else None,
    ),
    st.integers(1, END - 1),
    st.integers(0, 3),
    st.sampled_from([one for one in State if one is not State.ACQUIRED]),
)


TAKEN = st.builds(
    lambda starts, deliveries: Acquired(
        KEY,
        Spans.of(*((first, first) for first in sorted(starts))),
        deliveries,
        MemberId("bob"),
        MonoMs(2000),
        stored=deliveries - 1,
    ),
    st.sets(st.integers(1, END + 2), min_size=1, max_size=6),
    st.integers(1, 2),
)


def acquired() -> SharePartition:
    share = SharePartition(KEY, 0)
    share.apply(Acquired(KEY, Spans.of((0, END - 1)), 1, MemberId("ann"), MonoMs(1000)))
    return share


def told(share: SharePartition) -> list[tuple[Span, State, str | None]]:
    return [(run.span, run.state, run.reason) for run in share.runs]


@given(st.lists(SETTLED, max_size=12))
def test_many_events_at_once_are_the_same_one_by_one(events: list[Event]) -> None:
    """Also those that go back, as commits of leases and locks that end do."""
    at_once, one_by_one = acquired(), acquired()
    at_once.apply_all(events)
    for event in events:
        one_by_one.apply(event)
    assert told(at_once) == told(one_by_one)
    assert at_once.runs.records == one_by_one.runs.records


@given(st.lists(SETTLED | TAKEN, max_size=12))
def test_an_acquisition_of_many_ranges_is_one_of_each(events: list[Event]) -> None:
    """Also of ranges that touch, that were laid just before, and that lie beyond all others."""
    at_once, one_by_one = acquired(), acquired()
    at_once.apply_all(events)
    for event in events:
        if isinstance(event, Acquired):
            for bounds in event.spans:
                one_by_one.apply(event._replace(spans=Spans.of(bounds)))
        else:
            one_by_one.apply(event)
    assert told(at_once) == told(one_by_one)
    kinds = [[(run.span, run.status.key) for run in one.runs] for one in (at_once, one_by_one)]
    assert kinds[0] == kinds[1]
    assert at_once.runs.records == one_by_one.runs.records
    assert at_once.next_deadline() == one_by_one.next_deadline()


@pytest.mark.parametrize("count", [0, 1, CHUNK_RUNS, CHUNK_RUNS + 1, 10 * CHUNK_RUNS])
def test_no_chunk_is_too_long(count: int) -> None:
    parts = split(Chunk(array("q", range(count)), [*range(count)], set(range(count))))
    assert [one for part in parts for one in part.firsts] == [*range(count)]
    assert [one for part in parts for one in part.statuses] == [*range(count)]
    assert all(0 < len(part.firsts) <= CHUNK_RUNS for part in parts)
    assert all(part.seen == set(part.statuses) for part in parts)
