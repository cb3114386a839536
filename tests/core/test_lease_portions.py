"""Commands of a lease that are decided in portions, and what happens between two of them."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from headrace.core import lease_settling, leases
from headrace.core.errors import Why
from headrace.core.leases import Held, Staged, in_order
from headrace.core.machine import Unfinished
from headrace.core.runs import Runs, State
from headrace.core.shard_words import (
    AcquireLease,
    AlterShareOffsets,
    CommitLease,
    Committed,
    DeleteShareGroup,
    ForgetTopic,
    LogEndLost,
    On,
    OpenLease,
    ReclaimLease,
    Renewed,
    RenewLease,
    SettleLease,
    StageLease,
)
from headrace.core.share_group import Heartbeat
from headrace.core.share_words import Acknowledge, Acknowledged, ShareKey, Verdict
from headrace.core.types import MemberId, Span

from .lease_rig import LEASE, LOCK_MS, P0, P1, TOPIC, LeaseRig

RELEASE, REJECT = Verdict.RELEASE, Verdict.REJECT
OTHER = MemberId("other")
EVERY_SECOND = tuple(Staged(P0, Span(n, n), RELEASE) for n in range(0, 20, 2))


@pytest.fixture
def broker() -> LeaseRig:
    return LeaseRig()


def begun(broker: LeaseRig, *staged: Staged, runs_max: int = 2) -> tuple[int, SettleLease]:
    """Commit 20 records of the first partition; the epoch, and the command of the next portion.

    The first portion with records is decided.
    """
    broker.ends = (20, 0)
    epoch = broker.open()
    broker.ask(AcquireLease(LEASE, epoch, 1, 20))
    broker.ask(StageLease(LEASE, epoch, 1, staged or EVERY_SECOND))
    first = broker.ask_once(CommitLease(LEASE, epoch, 1, runs_max))
    assert isinstance(first, Unfinished)
    second = broker.ask_once(first.following())
    assert isinstance(second, Unfinished)
    rest = second.following()
    assert isinstance(rest, SettleLease)
    return epoch, rest


def finished(broker: LeaseRig, command: Any) -> Any:
    """The reply to the last portion."""
    return broker.ask(command)


def staged(key: ShareKey, offset: int, rng: Random, reason: str) -> Staged:
    verdict = rng.choice((Verdict.ACCEPT, RELEASE, RELEASE, REJECT))
    delay_ms = 1000 if verdict is RELEASE and offset % 3 else 0
    return Staged(key, Span(offset, offset), verdict, reason, delay_ms)


@pytest.mark.parametrize("seed", range(150))
def test_portions_of_any_size_settle_what_one_step_settles(seed: int) -> None:
    outcomes = []
    for runs_max in (10_000, 1, 2, 3, 7):
        rng, rig = Random(seed), LeaseRig()
        rig.ends = (rng.randint(1, 40), rng.randint(0, 40))
        epoch = rig.open()
        told: list[Any] = []
        for number in range(1, rng.randint(2, 4)):
            held = rig.ask(AcquireLease(LEASE, epoch, number, rng.randint(1, 60), {}, runs_max))
            told.append(held)
            for part in "abc"[: rng.randint(0, 3) if held else 0]:
                offsets = [(one.key, n) for one in held for n in one.span if rng.random() < 0.6]
                said = [staged(key, offset, rng, part) for key, offset in offsets]
                command = StageLease(LEASE, epoch, number, in_order(said), part, runs_max)
                assert rig.ask(command) is None
            if rng.random() < 0.5:
                rig.elapse(LOCK_MS)
                told.append(rig.other_takes(P0, rng.randint(0, 20), rng.randint(20, 40)))
            if rng.random() < 0.5:
                told.append(rig.ask(RenewLease(LEASE, epoch, runs_max)))
            if rng.random() < 0.3:
                epoch = rig.ask(OpenLease(LEASE, ("flights",), True, runs_max)).epoch
            if rng.random() < 0.8:
                told.append(rig.ask(CommitLease(LEASE, epoch, number, runs_max)))
        states = [rig.state(P0), rig.state(P1)]
        rig.restart()
        outcomes.append((told, states, rig.state(P0), rig.state(P1), rig.shard.leases))
    assert all(one == outcomes[0] for one in outcomes)


def test_no_portion_settles_more_than_it_may(broker: LeaseRig) -> None:
    _, command = begun(broker)
    answer: Any = Unfinished(command)
    while isinstance(answer, Unfinished):
        decided = broker.shard.decide(answer.following(), broker.now)
        assert len(decided.events) <= 2  # type: ignore[union-attr]  # the test fails with a refusal
        answer = broker.ask_once(answer.following())
    assert answer == Committed(10, 10, 0, 0)


def acquired_and_split(broker: LeaseRig) -> int:
    """Acquire one range, of which others have every fourth record since; return the epoch."""
    broker.ends = (20, 0)
    epoch = broker.open()
    broker.ask(AcquireLease(LEASE, epoch, 1, 20))
    broker.elapse(LOCK_MS)
    for offset in range(0, 20, 4):
        broker.other_takes(P0, offset, offset)
    return epoch


def test_one_range_that_is_many_runs_by_now_is_settled_in_portions(broker: LeaseRig) -> None:
    epoch = acquired_and_split(broker)
    answer = broker.ask_once(CommitLease(LEASE, epoch, 1, 3))
    portions = 0
    while isinstance(answer, Unfinished):
        command = answer.following()
        decided = broker.shard.decide(command, broker.now)
        assert len(decided.events) <= 3  # type: ignore[union-attr]  # the test fails with a refusal
        answer = broker.ask_once(command)
        portions += 1
    assert answer == Committed(15, 0, 0, 5)
    assert portions >= 3


def test_the_session_counts_as_committed_from_the_first_portion_on(broker: LeaseRig) -> None:
    epoch, rest = begun(broker)
    assert broker.ask(AcquireLease(LEASE, epoch, 1, 20)).why is Why.INVALID_REQUEST
    strict = (Staged(P0, Span(19, 19), REJECT),)
    assert broker.ask(StageLease(LEASE, epoch, 1, strict)) is None
    assert broker.ask(CommitLease(LEASE, epoch, 1)) == Committed(0, 0, 0, 0)
    assert broker.ask(RenewLease(LEASE, epoch)) == Renewed(0, 0)
    opened = broker.ask(OpenLease(LEASE, ("flights",), True))
    assert (opened.committed, opened.outstanding) == (1, ())
    assert finished(broker, rest) == Committed(10, 10, 0, 0)
    assert broker.state().count("ACKNOWLEDGED") == 10


def test_what_the_next_number_acquires_meanwhile_is_not_settled(broker: LeaseRig) -> None:
    epoch, rest = begun(broker)
    broker.elapse(LOCK_MS)  # what is left of the batch is available
    assert sum(len(one.span) for one in broker.ask(AcquireLease(LEASE, epoch, 2, 40))) > 10
    settled = finished(broker, rest)
    assert settled.accepted + settled.released + settled.refused == 20
    assert settled.refused > 10
    assert broker.ask(RenewLease(LEASE, epoch)).lost == 0


def test_records_whose_lock_ends_meanwhile_are_settled_unless_others_have_them(
    broker: LeaseRig,
) -> None:
    _, rest = begun(broker)
    broker.elapse(LOCK_MS)
    assert broker.other_takes(P0, 10, 12) == [Span(10, 12)]
    assert finished(broker, rest) == Committed(9, 8, 0, 3)


def test_delays_count_from_the_first_portion_on(broker: LeaseRig) -> None:
    later = tuple(Staged(P0, Span(n, n), RELEASE, None, 5_000) for n in range(0, 20, 2))
    _, rest = begun(broker, *later)
    broker.elapse(3_000)
    assert finished(broker, rest) == Committed(10, 10, 0, 0)
    broker.elapse(1_999)
    assert broker.other_takes(P0, 0, 19) == []
    broker.elapse(1)
    assert len(broker.other_takes(P0, 0, 19)) == 10


def deleted_group(broker: LeaseRig) -> None:
    broker.elapse(LOCK_MS)  # its driver is silent
    assert broker.ask(DeleteShareGroup(LEASE[0])) is None


def deleted_topic(broker: LeaseRig) -> None:
    broker.ask(ForgetTopic(TOPIC))


def reset(broker: LeaseRig) -> None:
    broker.elapse(LOCK_MS)
    assert broker.ask(AlterShareOffsets(LEASE[0], (("flights", 0, 0),))) == (None,)


def lost_end(broker: LeaseRig) -> None:
    broker.ask(LogEndLost(P0, 8))


@pytest.mark.parametrize("change", [deleted_group, deleted_topic, reset, lost_end])
@pytest.mark.parametrize("comes_back", [False, True])
def test_nothing_of_a_share_partition_that_began_anew_is_settled(
    broker: LeaseRig, change: Callable[[LeaseRig], None], comes_back: bool
) -> None:
    """The same offsets on the same delivery are other records, or others' records, by then."""
    _, rest = begun(broker)
    change(broker)
    if comes_back:
        broker.earliest = True
        broker.ask(Heartbeat(LEASE[0], OTHER, 0, frozenset({"flights"})))
        broker.other_takes(P0, 0, 19)
        back = Acknowledge(OTHER, (Acknowledged(Span(9, 19), [RELEASE]),))
        broker.ask(On(P0, back))
    before = broker.state() if P0 in broker.shard.partitions else ""
    outcome = finished(broker, rest)
    assert (outcome.accepted + outcome.released, outcome.refused) == (2, 18)
    assert (broker.state() if P0 in broker.shard.partitions else "") == before
    broker.restart()


def test_a_driver_that_is_replaced_amid_a_renewal_is_fenced(broker: LeaseRig) -> None:
    epoch = broker.open()
    for number in (1, 2, 3):
        broker.ask(AcquireLease(LEASE, epoch, number, 20))
    first = broker.ask_once(RenewLease(LEASE, epoch, 2))
    assert isinstance(first, Unfinished)
    broker.open()
    assert broker.ask(first.following()).why is Why.STALE_EPOCH


def test_a_session_that_is_gone_amid_a_renewal_is_unknown(broker: LeaseRig) -> None:
    epoch = broker.open()
    broker.ask(AcquireLease(LEASE, epoch, 1, 20))
    first = broker.ask_once(RenewLease(LEASE, epoch, 1))
    deleted_group(broker)
    assert broker.ask(first.following()).why is Why.UNKNOWN_MEMBER


def test_what_is_committed_amid_a_renewal_is_not_taken_back(broker: LeaseRig) -> None:
    """Released records are on the delivery of the batch, and nobody would settle them again."""
    epoch = broker.open()
    broker.ask(AcquireLease(LEASE, epoch, 1, 20))
    broker.ask(AcquireLease(LEASE, epoch, 2, 20))
    first = broker.ask_once(RenewLease(LEASE, epoch, 1))
    said = (Staged(P0, Span(0, 9), RELEASE), Staged(P1, Span(0, 9), RELEASE))
    broker.ask(StageLease(LEASE, epoch, 1, said))
    broker.ask(CommitLease(LEASE, epoch, 1))
    assert broker.ask(first.following()) == Renewed(20, 0)
    assert broker.state(P1) == "SPSO=0, 0-9 AVAILABLE 1, 10-19 ACQUIRED 1"


def test_what_is_discarded_amid_a_renewal_is_not_taken_back(broker: LeaseRig) -> None:
    epoch = broker.open()
    broker.ask(AcquireLease(LEASE, epoch, 1, 20))
    first = broker.ask_once(RenewLease(LEASE, epoch, 1))
    lost_end(broker)
    assert broker.ask(first.following()) == Renewed(10, 0)
    assert broker.state() == "SPSO=0"
    assert broker.state(P1) == "SPSO=0, 0-9 ACQUIRED 1"


def test_a_renewal_of_one_range_that_is_many_runs_goes_in_portions(broker: LeaseRig) -> None:
    epoch = acquired_and_split(broker)
    answer = broker.ask_once(RenewLease(LEASE, epoch, 3))
    portions = 1
    while isinstance(answer, Unfinished):
        command = answer.following()
        assert isinstance(command, ReclaimLease)
        answer = broker.ask_once(command)
        portions += 1
    assert (answer, portions >= 3) == (Renewed(15, 5), True)


def staging(broker: LeaseRig, *more: Staged) -> tuple[int, StageLease]:
    """Stage in portions; the epoch, and the command of the second one."""
    epoch = broker.open()
    broker.ask(AcquireLease(LEASE, epoch, 1, 40))
    first = broker.ask_once(StageLease(LEASE, epoch, 1, (*EVERY_SECOND, *more), "part", 3))
    assert isinstance(first, Unfinished)
    rest = first.following()
    assert isinstance(rest, StageLease)
    return epoch, rest


def test_nothing_is_staged_before_all_of_it_is_checked(broker: LeaseRig) -> None:
    epoch, rest = staging(broker)
    assert broker.shard.leases[LEASE].acquisitions[1].parts == {}
    assert broker.ask(rest) is None
    assert broker.ask(CommitLease(LEASE, epoch, 1)) == Committed(30, 10, 0, 0)


@pytest.mark.parametrize(
    "wrong",
    [
        Staged(P0, Span(18, 18), REJECT),  # for the second time
        Staged(P0, Span(20, 20), REJECT),  # not acquired
        Staged(P0, Span(17, 17), REJECT),  # out of order
        Staged(P1, Span(20, 20), REJECT),
    ],
    ids=str,
)
def test_a_wrong_range_in_a_later_portion_is_refused(broker: LeaseRig, wrong: Staged) -> None:
    _, rest = staging(broker, wrong)
    assert broker.ask(rest).why is Why.INVALID_REQUEST
    assert broker.shard.leases[LEASE].acquisitions[1].parts == {}


def test_share_partitions_out_of_order_are_refused(broker: LeaseRig) -> None:
    epoch = broker.open()
    broker.ask(AcquireLease(LEASE, epoch, 1, 40))
    said = (Staged(P1, Span(0, 0), REJECT), Staged(P0, Span(0, 0), REJECT))
    assert broker.ask(StageLease(LEASE, epoch, 1, said, "", 1)).why is Why.INVALID_REQUEST
    assert broker.ask(StageLease(LEASE, epoch, 1, in_order(said), "", 1)) is None


def test_a_driver_that_is_replaced_amid_its_staging_is_fenced(broker: LeaseRig) -> None:
    _, rest = staging(broker)
    broker.open()
    assert broker.ask(rest).why is Why.STALE_EPOCH


def test_staging_that_a_commit_overtakes_changes_nothing(broker: LeaseRig) -> None:
    epoch, rest = staging(broker)
    broker.ask(CommitLease(LEASE, epoch, 1))
    before = broker.state()
    assert broker.ask(rest) is None
    assert broker.state() == before


def test_what_is_discarded_amid_its_staging_is_refused(broker: LeaseRig) -> None:
    """The first portion found it held."""
    _, rest = staging(broker)
    lost_end(broker)
    assert broker.ask(rest).why is Why.INVALID_REQUEST


def test_an_acquisition_has_a_bounded_number_of_ranges(
    broker: LeaseRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is available goes before what is new, in this number or the next one."""
    broker.ends = (2_000, 0)
    epoch = broker.open()
    broker.ask(AcquireLease(LEASE, epoch, 1, 1_900))
    said = tuple(Staged(P0, Span(n, n), RELEASE) for n in range(0, 1_900, 2))
    broker.ask(StageLease(LEASE, epoch, 1, said))
    broker.ask(CommitLease(LEASE, epoch, 1))
    monkeypatch.setattr(lease_settling, "ACQUIRED_RANGES_MAX", 300)
    first = broker.ask(AcquireLease(LEASE, epoch, 2, 5_000))
    assert 150 <= len(first) < 150 + 512
    assert {one.deliveries for one in first} == {2}
    rest: list[Held] = []
    for number in range(3, 20):
        rest += broker.ask(AcquireLease(LEASE, epoch, number, 5_000))
    assert sum(len(one.span) for one in (*first, *rest)) == 950 + 100
    assert rest[-1] == Held(P0, Span(1_900, 1_999), 1)


@pytest.mark.parametrize("seed", range(50))
def test_how_far_so_many_runs_extend(seed: int) -> None:
    rng, runs = Random(seed), Runs(5)
    states = (State.AVAILABLE, State.ACKNOWLEDGED, State.ARCHIVED)
    for _ in range(rng.choice((0, 3, 2_000))):
        last = runs.end + rng.randint(0, 2)
        runs.lay(runs.end, last, runs.status(rng.choice(states)))
    for _ in range(100):
        first = rng.randint(0, runs.end + 5)
        last, count = first + rng.randint(0, 3_000), rng.randint(1, 1_200)
        found = runs.between(first, last)
        expected = found[count - 1][1] if len(found) > count else last
        assert runs.reach(first, last, count) == expected


@pytest.mark.parametrize("seed", range(20))
def test_dispositions_in_any_order_are_put_in_order(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "_SORTED_MAX", 4)
    rng = Random(seed)
    said = [Staged(rng.choice((P0, P1)), Span(n, n), REJECT) for n in rng.sample(range(100), 40)]
    assert list(in_order(said)) == sorted(said, key=lambda one: (one.key, one.span))
