"""Acquisition locks by deadline and holder, against a list of all of them."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.locks import Locks
from headrace.core.types import MemberId, MonoMs

ANN, BOB = MemberId("ann"), MemberId("bob")
HELD = st.lists(st.tuples(st.booleans(), st.sampled_from((ANN, BOB)), st.integers(0, 20)))


@given(HELD, st.integers(0, 20))
def test_what_is_due_and_who_holds_what(wanted: list[tuple[bool, MemberId, int]], now: int) -> None:
    locks: Locks[int] = Locks()
    known: dict[int, tuple[MemberId, MonoMs]] = {}
    for what, (begins, holder, deadline) in enumerate(wanted):
        if begins or not known:
            known[what] = (holder, MonoMs(deadline))
            locks.add(what, *known[what])
        else:
            over = min(known)
            locks.discard(over, *known.pop(over))
        assert locks.next_deadline() == min((until for _, until in known.values()), default=None)
    due = sorted(locks.due(MonoMs(now)))
    assert due == sorted(what for what, (_, until) in known.items() if until <= now)
    for holder in (ANN, BOB):
        held = sorted(locks.held_by(holder))
        assert held == sorted(what for what, (whose, _) in known.items() if whose == holder)


def test_locks_that_are_over_leave_nothing_behind() -> None:
    """One that comes first keeps those behind it from being met."""
    locks: Locks[int] = Locks()
    locks.add(0, ANN, MonoMs(1))
    for what in range(2, 10_000):
        locks.add(what, BOB, MonoMs(what))
        locks.discard(what, BOB, MonoMs(what))
    assert len(locks._deadlines) < 2_000
    assert locks.next_deadline() == 1
    assert locks.held_by(BOB) == []
