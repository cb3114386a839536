"""Dispositions staged by part: each task its own, the strictest of what is said of a record."""

from random import Random
from typing import Any

import pytest

from headrace.core import leases
from headrace.core.errors import Why
from headrace.core.leases import Acquisition, Held, Staged, claims
from headrace.core.shard_words import AcquireLease, CommitLease, Committed, StageLease
from headrace.core.share_words import Verdict
from headrace.core.types import Span

from .lease_rig import LEASE, P0, P1, LeaseRig

RELEASE, REJECT = Verdict.RELEASE, Verdict.REJECT


@pytest.fixture
def broker() -> LeaseRig:
    return LeaseRig()


def stage(broker: LeaseRig, epoch: int, part: str, *staged: Staged) -> Any:
    return broker.ask(StageLease(LEASE, epoch, 1, staged, part))


def acquired(broker: LeaseRig) -> int:
    epoch = broker.open()
    broker.ask(AcquireLease(LEASE, epoch, 1, 20))
    return epoch


def test_a_commit_takes_what_all_parts_staged(broker: LeaseRig) -> None:
    epoch = acquired(broker)
    stage(broker, epoch, "task 0", Staged(P0, Span(0, 1), REJECT))
    stage(broker, epoch, "task 1", Staged(P1, Span(0, 2), RELEASE))
    stage(broker, epoch, "", Staged(P0, Span(9, 9), RELEASE))
    assert broker.ask(CommitLease(LEASE, epoch, 1)) == Committed(14, 4, 2, 0)


def test_a_task_that_runs_again_replaces_its_part_alone(broker: LeaseRig) -> None:
    epoch = acquired(broker)
    stage(broker, epoch, "task 0", Staged(P0, Span(0, 4), REJECT))
    stage(broker, epoch, "task 1", Staged(P1, Span(0, 2), REJECT))
    stage(broker, epoch, "task 0", Staged(P0, Span(3, 3), REJECT))
    stage(broker, epoch, "task 1")
    assert broker.ask(CommitLease(LEASE, epoch, 1)) == Committed(19, 0, 1, 0)


def test_the_strictest_verdict_holds(broker: LeaseRig) -> None:
    epoch = acquired(broker)
    stage(broker, epoch, "a", Staged(P0, Span(0, 9), RELEASE, "later"))
    stage(broker, epoch, "b", Staged(P0, Span(4, 5), REJECT, "no number"))
    stage(broker, epoch, "c", Staged(P0, Span(5, 7), Verdict.ACCEPT))
    broker.ask(CommitLease(LEASE, epoch, 1))
    assert broker.state() == "SPSO=0, 0-3 AVAILABLE 1, 4-5 ARCHIVED 1, 6-9 AVAILABLE 1"
    reasons = [run.reason for run in broker.shard.partitions[P0].runs]
    assert reasons == [None, "no number", None]


def test_parts_outlive_the_broker(broker: LeaseRig) -> None:
    epoch = acquired(broker)
    stage(broker, epoch, "task 0", Staged(P0, Span(0, 1), REJECT, "bad"))
    stage(broker, epoch, "task 1", Staged(P1, Span(0, 2), RELEASE))
    stage(broker, epoch, "task 1", Staged(P1, Span(0, 0), RELEASE))
    broker.restart()
    broker.ask(AcquireLease(LEASE, epoch, 2, 4))  # the whole state is written
    broker.restart()
    stage(broker, epoch, "task 2", Staged(P1, Span(9, 9), REJECT))
    before = broker.shard.leases[LEASE]
    broker.restart()
    assert broker.shard.leases[LEASE] == before
    assert broker.ask(CommitLease(LEASE, epoch, 1)) == Committed(16, 1, 3, 0)
    broker.restart()
    assert set(broker.shard.leases[LEASE].acquisitions) == {2}


def test_a_part_that_says_nothing_leaves_no_trace(broker: LeaseRig) -> None:
    epoch = acquired(broker)
    before = len(broker.records)
    stage(broker, epoch, "task 0")
    assert len(broker.records) == before
    stage(broker, epoch, "task 1", Staged(P0, Span(0, 1), REJECT))
    stage(broker, epoch, "task 1")
    assert broker.shard.leases[LEASE].acquisitions[1].parts == {}
    stage(broker, epoch, "task 1", Staged(P0, Span(0, 1), REJECT))
    stage(broker, broker.open(), "task 0")
    broker.restart()
    assert broker.shard.leases[LEASE].acquisitions[1].parts == {}


def test_parts_do_not_hold_the_journal(broker: LeaseRig) -> None:
    """It is cut at the oldest whole state that is the newest of its kind; a part is none."""
    epoch = acquired(broker)
    stage(broker, epoch, "task 0", Staged(P0, Span(0, 1), REJECT))
    broker.ask(CommitLease(LEASE, epoch, 1))
    for offset, (key, value, _) in enumerate(broker.records):
        broker.journal.placed(offset, key, value)
    end = len(broker.records)
    broker.ask(broker.journal.cold(end, 100))
    for offset, (key, value, _) in enumerate(broker.records[end:], end):
        broker.journal.placed(offset, key, value)
    assert broker.journal.needed_from(len(broker.records)) >= end


def test_what_a_replaced_driver_staged_is_kept_until_its_batch_runs_again(broker: LeaseRig) -> None:
    """It may be committed by the new driver at once; run again, it is cut into other tasks."""
    old = acquired(broker)
    stage(broker, old, "task 0", Staged(P0, Span(0, 1), REJECT))
    stage(broker, old, "task 1", Staged(P1, Span(0, 1), REJECT))
    new = broker.open()
    assert stage(broker, old, "task 0").why is Why.STALE_EPOCH
    assert len(broker.shard.leases[LEASE].acquisitions[1].parts) == 2
    stage(broker, new, "whole", Staged(P0, Span(7, 7), REJECT))
    broker.restart()
    assert broker.ask(CommitLease(LEASE, new, 1)) == Committed(19, 0, 1, 0)


def test_sizes_are_bounded(broker: LeaseRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "PARTS_MAX", 2)
    monkeypatch.setattr(leases, "STAGED_MAX", 3)
    epoch = acquired(broker)
    two = (Staged(P0, Span(0, 0), REJECT), Staged(P0, Span(2, 2), REJECT))
    assert stage(broker, epoch, "a", *two) is None
    assert stage(broker, epoch, "b", *two).why is Why.INVALID_REQUEST
    assert stage(broker, epoch, "b", two[0]) is None
    assert stage(broker, epoch, "b", two[1]) is None
    assert stage(broker, epoch, "c").why is Why.INVALID_REQUEST
    long = "x" * (leases.PART_BYTES_MAX + 1)
    assert stage(broker, epoch, long).why is Why.INVALID_REQUEST


@pytest.mark.parametrize("seed", range(200))
def test_the_strictest_of_random_parts_against_a_model_of_offsets(seed: int) -> None:
    rng = Random(seed)
    held = Held(P0, Span(0, 19), 1)
    parts: dict[str, tuple[Staged, ...]] = {}
    model: dict[int, tuple[int, int, str]] = {}
    for name in "abc"[: rng.randint(0, 3)]:
        edges = sorted(rng.sample(range(21), 2 * rng.randint(0, 5)))
        said = []
        for first, stop in zip(edges[::2], edges[1::2], strict=True):
            verdict = rng.choice((Verdict.ACCEPT, RELEASE, REJECT))
            delay_ms = rng.choice((0, 5)) if verdict is RELEASE else 0
            said.append(Staged(P0, Span(first, stop - 1), verdict, f"{name}{first}", delay_ms))
            for offset in range(first, stop):
                told = (int(verdict), delay_ms, f"{name}{first}")
                model[offset] = max(model.get(offset, told), told)
        parts[name] = tuple(said)
    found = list(claims(Acquisition((held,), parts)))
    assert [offset for _, span, _ in found for offset in span] == list(range(20))
    assert {
        offset: (int(one.verdict), one.delay_ms, one.reason)
        for _, span, one in found
        if one is not None
        for offset in span
    } == model


@pytest.mark.parametrize("seed", range(50))
def test_what_lies_outside_of_the_acquired_ranges_is_found_as_by_looking_at_every_record(
    seed: int,
) -> None:
    rng = Random(seed)

    def drawn(gap_max: int) -> list[Span]:
        found, at = [], 0
        while at < 60:
            first = at + rng.randint(0, gap_max)
            found.append(Span(first, first + rng.randint(0, 6)))
            at = found[-1].last + 1
        return found

    acquired = [Held(P0, span, 1) for span in drawn(rng.randint(0, 1))]
    held = {offset for one in acquired for offset in range(one.span.first, one.span.last + 1)}
    staged = [Staged(P0, span, REJECT) for span in drawn(4)]
    expected = [
        one for one in staged if not held.issuperset(range(one.span.first, one.span.last + 1))
    ]
    assert leases._outside(staged, acquired, 0, len(acquired)) == (
        expected[0] if expected else None
    )
