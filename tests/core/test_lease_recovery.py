"""Locks are taken back, and lost records forgotten, in portions of any size."""

from random import Random
from typing import Any

import pytest

from headrace.core.machine import Decided, Unfinished
from headrace.core.shard_words import (
    AcquireLease,
    AlterShareOffsets,
    LogEndLost,
    On,
    OpenLease,
    Recovered,
    Restarted,
)
from headrace.core.share_words import Acknowledge, Acknowledged, LogStartMoved, Reclaim, Verdict
from headrace.core.types import MemberId, Span

from .lease_rig import LEASE, LOCK_MS, P0, P1, LeaseRig

SECOND = (LEASE[0], "second")
SESSIONS = (LEASE, SECOND)
OTHER = MemberId("other")


def played(seed: int) -> LeaseRig:
    """Let two leases acquire records whose locks lapse, and others take and release some."""
    rng, rig = Random(seed), LeaseRig()
    rig.ends = (rng.randint(1, 40), rng.randint(1, 40))
    epochs = [rig.ask(OpenLease(session, ("flights",), True)).epoch for session in SESSIONS]
    numbers = [0, 0]
    for _ in range(rng.randint(1, 12)):
        which = rng.randrange(2)
        numbers[which] += 1
        rig.ask(AcquireLease(SESSIONS[which], epochs[which], numbers[which], rng.randint(1, 15)))
        if rng.random() < 0.3:
            first = rng.randrange(30)
            rig.other_takes(rng.choice((P0, P1)), first, first + rng.randrange(10))
        if rng.random() < 0.6:
            rig.elapse(LOCK_MS)
    return rig


def in_one_step(rig: LeaseRig) -> str:
    """Return the state if all is decided at once, and the latest deliveries are applied last."""
    rig._new_process()
    for key, value, _ in rig.records:
        rig.shard.apply_all(rig.journal.events(key, value))
    events: list[Any] = []
    for lease in rig.shard.leases.values():
        for acquisition in lease.acquisitions.values():
            for held in acquisition.held:
                command = Reclaim(lease.holder, held.span, held.deliveries)
                answer = rig.shard.partitions[held.key].decide(command, rig.now, rig.policy(""))
                assert isinstance(answer, list)
                events += answer
    events.sort(key=lambda event: event.deliveries)
    rig.shard.apply_all(events)
    return locks(rig)


def locks(rig: LeaseRig) -> str:
    """Return the state of all records."""
    runs = (run for key in (P0, P1) for run in rig.shard.partitions[key].runs)
    return ", ".join(
        f"{run.span} {run.state.name} {run.deliveries} {run.holder} {run.stored}" for run in runs
    )


@pytest.mark.parametrize("seed", range(60))
def test_portions_of_any_size_take_back_what_one_step_takes_back(seed: int) -> None:
    rig = played(seed)
    expected = in_one_step(rig)
    for runs_max in (10_000, 1, 2, 7):
        rig.restart(runs_max)
        assert locks(rig) == expected, f"in portions of {runs_max} runs"


def test_a_range_of_many_runs_is_taken_back_in_several_portions() -> None:
    rig = LeaseRig()
    epoch = rig.open()
    rig.ask(AcquireLease(LEASE, epoch, 1, 20))
    rig.elapse(LOCK_MS)
    for offset in range(0, 10, 2):
        assert rig.other_takes(P0, offset, offset) == [Span(offset, offset)]
    rig.elapse(LOCK_MS)
    rig.restart(10_000)
    whole, command, portions = locks(rig), Recovered(3), 0
    rig._new_process()
    for key, value, _ in rig.records:
        rig.shard.apply_all(rig.journal.events(key, value))
    while True:
        answer = rig.shard.decide(command, rig.now)
        assert isinstance(answer, Decided)
        assert sum(isinstance(event, Restarted) for event in answer.events) == 1
        assert len(answer.events) <= 3 + 1
        rig._take(list(answer.events))
        portions += 1
        if not isinstance(answer.reply, Unfinished):
            break
        command = answer.reply.following()
    assert portions > 3
    assert locks(rig) == whole
    assert whole.count("ACQUIRED") > 3


@pytest.mark.parametrize("seed", range(40))
def test_portions_of_any_size_forget_what_one_step_forgets(seed: int) -> None:
    outcomes = []
    end = Random(seed).randrange(30)
    for ranges_max in (10_000, 0, 1, 3):
        rig = played(seed)
        rig.ask(LogEndLost(P0, end, ranges_max))
        held = [
            acquisition.held
            for lease in rig.shard.leases.values()
            for acquisition in lease.acquisitions.values()
        ]
        live = locks(rig)
        assert rig.shard.partitions[P0].end <= end
        rig._new_process()
        for key, value, _ in rig.records:
            rig.shard.apply_all(rig.journal.events(key, value))
        outcomes.append((live, held, locks(rig)))
    assert all(outcome == outcomes[0] for outcome in outcomes)


def with_every_second_accepted() -> LeaseRig:
    """Return a rig with the records 0 to 19 in flight, the odd ones accepted."""
    rig = LeaseRig()
    rig.earliest = True
    rig.open()
    assert rig.other_takes(P0, 0, 19) == [Span(0, 19)]
    accepted = [Acknowledged(Span(n, n), [Verdict.ACCEPT]) for n in range(1, 20, 2)]
    rig.ask(On(P0, Acknowledge(OTHER, accepted)))
    rig.elapse(LOCK_MS)
    return rig


def test_a_share_partition_that_begins_anew_amid_portions_gets_none_of_them() -> None:
    rig = with_every_second_accepted()
    command: Any = LogEndLost(P0, 15, 3)
    for _ in range(2):
        answer = rig.ask_once(command)
        assert isinstance(answer, Unfinished)
        command = answer.following()
    assert rig.ask(AlterShareOffsets(P0.group, (("flights", 0, 7),))) == (None,)
    assert rig.ask(command) is None
    assert rig.state(P0) == "SPSO=7"


def test_ranges_below_a_start_that_moves_amid_portions_stay_away() -> None:
    rig = with_every_second_accepted()
    command: Any = LogEndLost(P0, 15, 2)
    answer = rig.ask_once(command)
    assert isinstance(answer, Unfinished)
    rig.ask(On(P0, LogStartMoved(5, 500)))
    assert rig.ask(answer.following()) is None
    assert rig.state(P0).startswith("SPSO=6, 6 AVAILABLE 1, 7 ACKNOWLEDGED 1")
