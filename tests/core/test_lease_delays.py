"""Records that a commit releases with a delay: nobody has them until then, none is charged."""

import pytest

from headrace.core.leases import Staged
from headrace.core.runs import State
from headrace.core.settling import LIMIT_REACHED
from headrace.core.shard_words import AcquireLease, CommitLease, Committed, On, StageLease
from headrace.core.share_words import Acquire, Acquired, Delayed, Policy, Verdict
from headrace.core.types import MemberId, MonoMs, Span

from .lease_rig import LEASE, LOCK_MS, P0, LeaseRig

DELAY_MS = 90_000


@pytest.fixture
def broker() -> LeaseRig:
    return LeaseRig()


def released(broker: LeaseRig, *staged: Staged) -> int:
    """Ten records of the first partition, of which the commit settles some; the epoch."""
    broker.ends = (10, 0)
    epoch = broker.open()
    broker.ask(AcquireLease(LEASE, epoch, 1, 10))
    broker.ask(StageLease(LEASE, epoch, 1, staged))
    assert broker.ask(CommitLease(LEASE, epoch, 1)) == Committed(7, 3, 0, 0)
    return epoch


LATER = Staged(P0, Span(4, 6), Verdict.RELEASE, "not yet", DELAY_MS)


def test_nobody_gets_them_before_the_delay_is_over(broker: LeaseRig) -> None:
    epoch = released(broker, LATER)
    broker.elapse(DELAY_MS - 1)
    assert broker.other_takes(P0, 0, 9) == []
    assert broker.ask(AcquireLease(LEASE, epoch, 2, 10)) == ()
    broker.elapse(1)
    assert broker.state() == "SPSO=4, 4-6 AVAILABLE 1, 7-9 ACKNOWLEDGED 1"
    assert broker.other_takes(P0, 0, 9) == [Span(4, 6)]
    assert broker.state() == "SPSO=4, 4-6 ACQUIRED 2, 7-9 ACKNOWLEDGED 1"


def test_the_end_of_a_delay_wakes_the_shard_and_is_not_written(broker: LeaseRig) -> None:
    released(broker, LATER)
    assert broker.shard.next_deadline() == DELAY_MS
    before = len(broker.records)
    broker.elapse(DELAY_MS)
    assert len(broker.records) == before
    assert broker.shard.next_deadline() is None


def test_each_delay_ends_on_its_own(broker: LeaseRig) -> None:
    released(broker, Staged(P0, Span(4, 4), Verdict.RELEASE), *(
        Staged(P0, Span(o, o), Verdict.RELEASE, None, o * 1000) for o in (5, 6)
    ))  # fmt: skip
    assert broker.state() == "SPSO=4, 4 AVAILABLE 1, 5 ACQUIRED 1, 6 ACQUIRED 1, 7-9 ACKNOWLEDGED 1"
    broker.elapse(5_000)
    assert broker.state() == "SPSO=4, 4-5 AVAILABLE 1, 6 ACQUIRED 1, 7-9 ACKNOWLEDGED 1"


def test_the_delivery_limit_goes_before_the_delay(broker: LeaseRig) -> None:
    limit = Policy().delivery_limit
    broker.ends = (1, 0)
    epoch = broker.open()
    for number in range(1, limit + 1):
        assert broker.ask(AcquireLease(LEASE, epoch, number, 1))[0].deliveries == number
        wait = (Staged(P0, Span(0, 0), Verdict.RELEASE, "still not", DELAY_MS),)
        broker.ask(StageLease(LEASE, epoch, number, wait))
        broker.ask(CommitLease(LEASE, epoch, number))
        broker.elapse(DELAY_MS)
    assert broker.state() == "SPSO=1"
    [listed] = broker.shard.archive.lists[P0].runs
    assert listed.reason == f"{LIMIT_REACHED} {limit} reached: still not"


def test_a_broker_that_restarts_gives_them_at_once(broker: LeaseRig) -> None:
    released(broker, LATER)
    broker.restart()
    assert broker.state() == "SPSO=4, 4-6 AVAILABLE 1, 7-9 ACKNOWLEDGED 1"


def test_what_was_staged_keeps_its_delay_when_the_broker_restarts(broker: LeaseRig) -> None:
    broker.ends = (10, 0)
    epoch = broker.open()
    broker.ask(AcquireLease(LEASE, epoch, 1, 10))
    broker.ask(StageLease(LEASE, epoch, 1, (LATER,)))
    broker.restart()
    broker.ask(CommitLease(LEASE, epoch, 1))
    broker.elapse(DELAY_MS - 1)
    assert broker.other_takes(P0, 0, 9) == []


def test_it_holds_the_window_open_and_counts_as_unfinished(broker: LeaseRig) -> None:
    released(broker, LATER)
    partition = broker.shard.partitions[P0]
    assert (partition.unfinished, partition.next_fetch_offset()) == (3, 10)


def test_redelivery_that_shrinks_goes_on_where_it_was(broker: LeaseRig) -> None:
    """The lot of records near their delivery limit outlives the delay."""
    broker.ends = (8, 0)
    broker.open()
    partition = broker.shard.partitions[P0]
    member = MemberId("member")
    for _ in range(4):
        command = Acquire(member, [Span(0, 7)], 8, 100, exact=True, isolate=True)
        taken = [e for e in broker.ask(On(P0, command)) if isinstance(e, Acquired)]
        broker.elapse(LOCK_MS)
    lot = taken[0].lot
    assert lot is not None
    span = Span(*next(iter(taken[0].spans)))
    broker.shard.apply(Delayed(P0, span, MonoMs(10**9)))
    withheld = partition.runs.at(span.first)
    assert withheld is not None
    assert (withheld.state, withheld.lot) == (State.ACQUIRED, lot)
    broker.shard.apply(Delayed(P0, span, None))
    given_back = partition.runs.at(span.first)
    assert given_back is not None
    assert (given_back.state, given_back.lot) == (State.AVAILABLE, lot)
