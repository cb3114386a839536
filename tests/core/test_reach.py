"""How far is looked: exactly as far as an acquisition reaches, whatever is in flight."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import Refused
from headrace.core.reach import reach
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
    expected = Span(taken[0].span.first, taken[-1].span.last) if taken else None
    assert looked == expected
