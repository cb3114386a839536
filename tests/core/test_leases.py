"""The lease protocol: a test for each piece and each row of its failure matrix (docs/spark.md)."""

from typing import Any

import pytest

from headrace.core import lease_settling
from headrace.core.errors import Refused, Why
from headrace.core.leases import Held, Staged
from headrace.core.shard_words import (
    AcquireLease,
    CommitLease,
    Committed,
    ForgetTopic,
    On,
    OpenLease,
    Renewed,
    RenewLease,
    StageLease,
)
from headrace.core.share_group import Heartbeat
from headrace.core.share_partition import SharePartition
from headrace.core.share_words import Acknowledge, Acknowledged, ShareKey, Verdict
from headrace.core.types import MemberId, Span

from .lease_rig import LEASE, LOCK_MS, P0, P1, TOPIC, LeaseRig


@pytest.fixture
def broker() -> LeaseRig:
    return LeaseRig()


def test_ranges_come_from_all_partitions_up_to_the_limit(broker: LeaseRig) -> None:
    epoch = broker.open()
    held = broker.ask(AcquireLease(LEASE, epoch, 1, 50))
    assert held == (Held(P0, Span(0, 24), 1), Held(P1, Span(0, 24), 1))


@pytest.mark.parametrize("records_max", [1, 2, 3, 8])
def test_few_records_at_a_time_come_from_all_partitions(
    records_max: int, broker: LeaseRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where all of them always have more; and those that are left out cost nothing."""
    monkeypatch.setattr(lease_settling, "ACQUIRED_PARTITIONS_MAX", 4)
    broker.ends, deciding, decide = (1000,) * 12, [0], SharePartition.decide

    def counted(share: SharePartition, *command: Any) -> Any:
        deciding[0] += 1
        return decide(share, *command)

    monkeypatch.setattr(SharePartition, "decide", counted)
    epoch, seen = broker.open(), set[int]()
    for number in range(1, 25):
        held = broker.ask(AcquireLease(LEASE, epoch, number, records_max))
        seen.update(one.key.partition for one in held)
    assert seen == set(range(12))
    assert deciding[0] <= 24 * min(records_max, 4)


def test_bounds_keep_later_records_out(broker: LeaseRig) -> None:
    epoch = broker.open()
    bounds = {P0: 7}
    assert broker.ask(AcquireLease(LEASE, epoch, 1, 50, bounds)) == (Held(P0, Span(0, 6), 1),)
    assert broker.ask(AcquireLease(LEASE, epoch, 2, 50, bounds)) == ()
    broker.ask(StageLease(LEASE, epoch, 1, (Staged(P0, Span(6, 6), Verdict.RELEASE),)))
    broker.ask(CommitLease(LEASE, epoch, 1))
    assert broker.ask(AcquireLease(LEASE, epoch, 3, 50, {P0: 6})) == ()
    assert broker.ask(AcquireLease(LEASE, epoch, 4, 50, bounds)) == (Held(P0, Span(6, 6), 2),)


def test_acquire_is_numbered_and_idempotent(broker: LeaseRig) -> None:
    epoch = broker.open()
    first = broker.ask(AcquireLease(LEASE, epoch, 1, 50))
    assert broker.ask(AcquireLease(LEASE, epoch, 1, 50)) == first
    broker.ask(CommitLease(LEASE, epoch, 1))
    refused = broker.ask(AcquireLease(LEASE, epoch, 1, 50))
    assert refused.why is Why.INVALID_REQUEST


def test_nothing_available_is_no_acquisition(broker: LeaseRig) -> None:
    broker.ends = (0, 0)
    epoch = broker.open()
    assert broker.ask(AcquireLease(LEASE, epoch, 1, 50)) == ()
    assert broker.shard.leases[LEASE].acquisitions == {}


def test_older_driver_is_fenced(broker: LeaseRig) -> None:
    old = broker.open()
    new = broker.open()
    assert new == old + 1
    for command in (
        AcquireLease(LEASE, old, 1, 5),
        RenewLease(LEASE, old),
        StageLease(LEASE, old, 1, ()),
        CommitLease(LEASE, old, 1),
    ):
        assert broker.ask(command).why is Why.STALE_EPOCH


def test_session_never_opened_and_topic_that_does_not_exist(broker: LeaseRig) -> None:
    assert broker.ask(RenewLease(LEASE, 1)).why is Why.UNKNOWN_MEMBER
    assert broker.ask(OpenLease(LEASE, ("nosuch",), True)).why is Why.UNKNOWN_TOPIC


def test_commit_settles_as_staged_and_accepts_the_rest(broker: LeaseRig) -> None:
    epoch = broker.open()
    broker.ask(AcquireLease(LEASE, epoch, 1, 20))
    staged = (
        Staged(P0, Span(2, 3), Verdict.RELEASE, "lookup outage"),
        Staged(P0, Span(5, 5), Verdict.REJECT, "not JSON"),
    )
    broker.ask(StageLease(LEASE, epoch, 1, staged))
    assert broker.state() == "SPSO=0, 0-9 ACQUIRED 1"
    assert broker.ask(CommitLease(LEASE, epoch, 1)) == Committed(17, 2, 1, 0)
    assert broker.state() == (
        "SPSO=2, 2-3 AVAILABLE 1, 4 ACKNOWLEDGED 1, 5 ARCHIVED 1, 6-9 ACKNOWLEDGED 1"
    )
    assert broker.ask(CommitLease(LEASE, epoch, 1)) == Committed(0, 0, 0, 0)
    assert broker.ask(AcquireLease(LEASE, epoch, 2, 4))[0] == Held(P0, Span(2, 3), 2)


def test_staging_again_replaces(broker: LeaseRig) -> None:
    epoch = broker.open()
    broker.ask(AcquireLease(LEASE, epoch, 1, 20))
    broker.ask(StageLease(LEASE, epoch, 1, (Staged(P0, Span(0, 9), Verdict.REJECT),)))
    broker.ask(StageLease(LEASE, epoch, 1, (Staged(P0, Span(9, 9), Verdict.REJECT),)))
    assert broker.ask(CommitLease(LEASE, epoch, 1)) == Committed(19, 0, 1, 0)


@pytest.mark.parametrize("span", [Span(0, 10), Span(10, 10), Span(0, (1 << 63) - 1)])
def test_staging_what_was_not_acquired_is_refused(broker: LeaseRig, span: Span) -> None:
    epoch = broker.open()
    broker.ask(AcquireLease(LEASE, epoch, 1, 20))
    staged = (Staged(P0, span, Verdict.REJECT),)
    assert broker.ask(StageLease(LEASE, epoch, 1, staged)).why is Why.INVALID_REQUEST
    assert broker.ask(StageLease(LEASE, epoch, 2, ())).why is Why.INVALID_REQUEST


def test_after_acquire_before_the_offset_log(broker: LeaseRig) -> None:
    """A new driver asks for the same number and finds the same ranges, without a wait."""
    held = broker.ask(AcquireLease(LEASE, broker.open(), 1, 20))
    assert broker.ask(AcquireLease(LEASE, broker.open(), 1, 20)) == held


def test_driver_gone_for_good(broker: LeaseRig) -> None:
    broker.ask(AcquireLease(LEASE, broker.open(), 1, 20))
    assert broker.other_takes(P0, 0, 9) == []
    broker.elapse(LOCK_MS)
    assert broker.other_takes(P0, 0, 9) == [Span(0, 9)]


def test_renewal_keeps_the_locks(broker: LeaseRig) -> None:
    epoch = broker.open()
    broker.ask(AcquireLease(LEASE, epoch, 1, 20))
    broker.elapse(LOCK_MS - 1)
    assert broker.ask(RenewLease(LEASE, epoch)) == Renewed(20, 0)
    broker.elapse(LOCK_MS - 1)
    assert broker.other_takes(P0, 0, 9) == []


def test_locks_ended_and_records_taken_by_others(broker: LeaseRig) -> None:
    """Read twice; the late verdict is refused and counted, never applied to the other's records."""
    epoch = broker.open()
    broker.ask(AcquireLease(LEASE, epoch, 1, 20))
    broker.elapse(LOCK_MS)
    broker.other_takes(P0, 0, 4)
    assert broker.ask(RenewLease(LEASE, epoch)) == Renewed(15, 5)
    assert broker.ask(CommitLease(LEASE, epoch, 1)) == Committed(15, 0, 0, 5)
    assert broker.state() == "SPSO=0, 0-4 ACQUIRED 2, 5-9 ACKNOWLEDGED 1"


def test_locks_ended_but_nobody_came(broker: LeaseRig) -> None:
    epoch = broker.open()
    broker.ask(AcquireLease(LEASE, epoch, 1, 20))
    broker.elapse(LOCK_MS)
    assert broker.ask(CommitLease(LEASE, epoch, 1)) == Committed(20, 0, 0, 0)


def test_broker_restarted(broker: LeaseRig) -> None:
    """Sessions, acquisitions and staged dispositions are durable; locks are given back at once."""
    epoch = broker.open()
    broker.ask(AcquireLease(LEASE, epoch, 1, 20))
    broker.ask(StageLease(LEASE, epoch, 1, (Staged(P1, Span(4, 4), Verdict.REJECT, "poison"),)))
    broker.restart()
    assert broker.other_takes(P0, 0, 9) == []
    assert broker.ask(RenewLease(LEASE, epoch)) == Renewed(20, 0)
    assert broker.ask(CommitLease(LEASE, epoch, 1)) == Committed(19, 0, 1, 0)
    broker.restart()
    assert broker.ask(AcquireLease(LEASE, epoch, 2, 2)) == (
        Held(P0, Span(10, 10), 1),
        Held(P1, Span(10, 10), 1),
    )


def test_broker_restarted_after_the_commit_that_got_no_answer(broker: LeaseRig) -> None:
    epoch = broker.open()
    broker.ask(AcquireLease(LEASE, epoch, 1, 20))
    broker.ask(CommitLease(LEASE, epoch, 1))
    broker.restart()
    assert broker.ask(CommitLease(LEASE, epoch, 1)) == Committed(0, 0, 0, 0)


def test_partitions_added_later_start_at_zero(broker: LeaseRig) -> None:
    epoch = broker.open()
    broker.ends = (100, 100, 7)
    broker.ask(AcquireLease(LEASE, epoch, 1, 3))
    assert broker.shard.partitions[ShareKey("delays", TOPIC, 2)].start == 0


def test_topic_new_to_the_group_starts_at_the_end_when_asked(broker: LeaseRig) -> None:
    broker.ask(OpenLease(LEASE, ("flights",), False))
    assert broker.state() == "SPSO=100"


def test_partitions_added_later_start_at_zero_for_members_too(broker: LeaseRig) -> None:
    member = MemberId("member")
    broker.ask(Heartbeat("delays", member, 0, frozenset({"flights"})))
    assert broker.state() == "SPSO=100"  # latest
    broker.ends = (100, 100, 7)
    broker.ask(Heartbeat("delays", member, 1))
    assert broker.state(ShareKey("delays", TOPIC, 2)) == "SPSO=0"


def test_topic_that_appears_after_the_subscription_is_read_from_its_start(broker: LeaseRig) -> None:
    member = MemberId("member")
    broker.exists = False
    broker.ask(Heartbeat("delays", member, 0, frozenset({"flights"})))
    broker.exists = True  # and a hundred records are in it before the next heartbeat
    broker.ask(Heartbeat("delays", member, 1))
    assert broker.state() == "SPSO=0"


def test_restart_gives_a_record_to_the_lease_that_had_it_last(broker: LeaseRig) -> None:
    older, newer = LEASE, ("delays", "another checkpoint")
    for first, second in ((older, newer), (newer, older)):
        broker.records.clear()
        broker._new_process()
        for lease in (first, second):
            broker.ask(OpenLease(lease, ("flights",), True))
        broker.ask(AcquireLease(older, 1, 1, 20))
        broker.elapse(LOCK_MS)
        broker.ask(AcquireLease(newer, 1, 1, 20))
        broker.restart()
        assert broker.ask(CommitLease(newer, 1, 1)) == Committed(20, 0, 0, 0)
        assert broker.ask(CommitLease(older, 1, 1)) == Committed(0, 0, 0, 20)


def test_a_lease_takes_back_what_a_member_acquired_later_only_once_no_lock_is_left(
    broker: LeaseRig,
) -> None:
    """Locks of members are volatile: a restart ends them, and the lease's delivery is durable."""
    epoch, accept = broker.open(), (Verdict.ACCEPT,)
    broker.ask(AcquireLease(LEASE, epoch, 1, 20))
    accepting = Acknowledge(MemberId("other"), (Acknowledged(Span(0, 1), accept),))
    for _ in range(2):
        broker.elapse(LOCK_MS)
        assert broker.other_takes(P0, 0, 4) == [Span(0, 4)]
        for command in (RenewLease(LEASE, epoch), AcquireLease(LEASE, epoch, 1, 20)):
            broker.ask(command)
            assert broker.state() == "SPSO=0, 0-4 ACQUIRED 2, 5-9 ACQUIRED 1"
        assert broker.ask(RenewLease(LEASE, epoch)) == Renewed(15, 5)
        epoch = broker.open()
        assert broker.state() == "SPSO=0, 0-4 ACQUIRED 2, 5-9 ACQUIRED 1"
        broker.restart()
        assert broker.ask(On(P0, accepting)).why is Why.NOT_THE_HOLDER
        assert broker.ask(RenewLease(LEASE, epoch)) == Renewed(20, 0)
    broker.elapse(LOCK_MS)
    assert broker.other_takes(P0, 0, 4) == [Span(0, 4)]
    assert not isinstance(broker.ask(On(P0, accepting)), Refused)
    broker.restart()
    assert broker.ask(CommitLease(LEASE, epoch, 1)) == Committed(18, 0, 0, 2)


def test_two_dispositions_of_one_record_are_refused(broker: LeaseRig) -> None:
    epoch = broker.open()
    broker.ask(AcquireLease(LEASE, epoch, 1, 20))
    staged = (Staged(P0, Span(0, 5), Verdict.RELEASE), Staged(P0, Span(5, 5), Verdict.REJECT))
    assert broker.ask(StageLease(LEASE, epoch, 1, staged)).why is Why.INVALID_REQUEST


def test_forgotten_topic_leaves_no_timer(broker: LeaseRig) -> None:
    broker.ask(AcquireLease(LEASE, broker.open(), 1, 20))
    assert broker.shard.next_deadline() == LOCK_MS
    broker.ask(ForgetTopic(TOPIC))
    assert broker.shard.next_deadline() is None
    broker.restart()
    assert not broker.shard.partitions


def test_staging_for_a_settled_number_changes_nothing(broker: LeaseRig) -> None:
    """Spark runs a batch again when its commit log lost the entry; the query must not stop."""
    epoch = broker.open()
    broker.ask(AcquireLease(LEASE, epoch, 1, 20))
    broker.ask(CommitLease(LEASE, epoch, 1))
    before = broker.state()
    staged = (Staged(P0, Span(0, 3), Verdict.REJECT),)
    assert not isinstance(broker.ask(StageLease(LEASE, epoch, 1, staged)), Refused)
    assert broker.state() == before
    assert broker.ask(CommitLease(LEASE, epoch, 1)) == Committed(0, 0, 0, 0)
