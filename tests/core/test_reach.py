"""How far is looked: exactly as far as an acquisition reaches, whatever is in flight."""

from collections.abc import Iterable
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core import share_partition
from headrace.core.errors import Refused
from headrace.core.reach import reach
from headrace.core.runs import Status
from headrace.core.share_partition import SharePartition
from headrace.core.share_words import (
    Acknowledge,
    Acknowledged,
    Acquire,
    Acquired,
    Command,
    Policy,
    ShareKey,
    Verdict,
)
from headrace.core.spans import Alike, Each, grouped
from headrace.core.types import MemberId, MonoMs, Now, Span, WallMs

A, B = MemberId("a"), MemberId("b")
KEY = ShareKey("g", UUID(int=1), 0)
NOW = Now(MonoMs(0), WallMs(0))
BEYOND = 1_000
OFFSETS = st.integers(0, 60)
SETTLED = st.lists(
    st.tuples(OFFSETS, st.sampled_from((Verdict.ACCEPT, Verdict.RELEASE))), max_size=40
)


def after(share: SharePartition, command: Command, policy: Policy) -> list[Acquired]:
    """Carry out a command; what it acquired."""
    events = share.decide(command, NOW, policy)
    if isinstance(events, Refused):
        return []
    share.apply_all(events)
    return [event for event in events if isinstance(event, Acquired)]


def firsts(share: SharePartition, offset: int, records: int) -> list[int]:
    return [first for _, spans in share.enough(offset, records) for first in spans.firsts]


@given(st.integers(0, 60), SETTLED, st.integers(1, 70), st.integers(1, 90))
def test_it_reaches_as_far_as_an_acquisition_of_so_many(
    in_flight: int, settled: list[tuple[int, Verdict]], records: int, window: int
) -> None:
    policy = Policy(delivery_limit=10)
    share = SharePartition(KEY, 0)
    if in_flight:
        after(share, Acquire(A, [Span(0, in_flight - 1)], in_flight, BEYOND, exact=True), policy)
    for offset, verdict in settled:
        after(share, Acknowledge(A, [Acknowledged(Span(offset, offset), [verdict])]), policy)
    looked = reach(share, records, window)
    taken = after(share, Acquire(B, [Span(0, BEYOND)], records, window, exact=True), policy)
    expected = Span(taken[0].spans.firsts[0], taken[-1].spans.last) if taken else None
    assert looked == expected


def test_what_was_looked_up_is_not_told_once_it_changed() -> None:
    policy, holes = Policy(delivery_limit=10), range(0, 40, 2)
    share = SharePartition(KEY, 0)
    after(share, Acquire(A, [Span(0, 39)], 40, BEYOND, exact=True), policy)
    said = [Acknowledged(Span(offset, offset), [Verdict.RELEASE]) for offset in holes]
    after(share, Acknowledge(A, said), policy)
    assert firsts(share, 0, 5) == [0, 2, 4, 6, 8]
    taken = after(share, Acquire(B, [Span(0, 39)], 5, BEYOND, exact=True), policy)
    assert [first for event in taken for first, _ in event.spans] == [0, 2, 4, 6, 8]
    assert firsts(share, 0, 5) == [10, 12, 14, 16, 18]
    assert firsts(share, 11, 5) == [12, 14, 16, 18, 20]
    assert firsts(share, 0, 2) == [10, 12]


def test_more_runs_than_are_kept_are_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_partition, "_ENOUGH_RUNS_MAX", 3)
    policy, holes = Policy(delivery_limit=10), range(0, 40, 2)
    share = SharePartition(KEY, 0)
    after(share, Acquire(A, [Span(0, 39)], 40, BEYOND, exact=True), policy)
    said = [Acknowledged(Span(offset, offset), [Verdict.RELEASE]) for offset in holes]
    after(share, Acknowledge(A, said), policy)
    for _ in range(2):
        assert firsts(share, 0, 40) == [*holes]


def test_an_acquisition_looks_no_further_than_it_may_acquire(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """How much a client wants is a number of its own choice."""
    policy, many = Policy(delivery_limit=10), 10_000
    share = SharePartition(KEY, 0)
    after(share, Acquire(A, [Span(0, many - 1)], many, many, exact=True), policy)
    said = [Acknowledged(Span(offset, offset), [Verdict.RELEASE]) for offset in range(0, many, 2)]
    after(share, Acknowledge(A, said), policy)
    looked: list[int] = []

    def counted(parts: Iterable[Each[Status]]) -> list[Alike[Status]]:
        told = list(parts)
        looked.extend(len(spans) for spans, _ in told)
        return grouped(told)

    monkeypatch.setattr(share_partition, "grouped", counted)
    taken = after(share, Acquire(B, [Span(0, 19)], many, many, exact=True), policy)
    assert sum(event.records for event in taken) == 10
    assert sum(looked) <= 20
