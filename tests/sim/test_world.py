"""Whole histories: a seed is one history, a sound broker passes, every kind of fault happens."""

import os
from dataclasses import replace
from functools import partial
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.sim.world import Outcome, World

from .digests import described_failure, of_another_process
from .focus import EVERY_ACTOR, EVERYTHING, LEASES, RECORDS, history, options
from .planted_records import headers_are_dropped

SEEDS = int(os.environ.get("HEADRACE_SIM_SEEDS", "60"))
PARTS = 10
_TWICE_MIN = 50  # seeds that are run in another process, too


def _part(of: int, part: int) -> range:
    return range(of * part // PARTS, of * (part + 1) // PARTS)


_FAULTS = (
    "the power is cut", "the broker is killed", "the broker is stopped", "sync fails",
    "bytes are left", "the machine is suspended", "the wall clock is set", "are deleted",
    "topic extra is deleted", "orders gets partition", "the disk is damaged: bit",
    "the disk is damaged: short", "the disk is damaged: missing", "records below",
    "a response is lost", "a link is rough", "the process of the broker is held",
)  # fmt: skip
_STEPS = (
    "stalls", "vanishes", "leaves", "lies", "its old driver is fenced", "renew",
    "resets sets red to", "resets deletes red: 0", "resets deletes the offsets of red: 0",
    "resets sets blue to", "repeats #", "leaves a gap", "uses epoch", "operator restores",
    "is assigned", "quiet days pass", "sends mutated", "sends claim", "sends flood",
    "sends repeated", "restarts", "acts as", "away for now", "repeats the commit",
    "river creates", "river grows", "river deletes", "settings sees", "wrong_counts to",
    "transactions InitProducerId: 53", "was closed: True", "responses slowly",
)  # fmt: skip
# What the seeds of a short run may not draw.
_DAMAGES = EVERYTHING | {"seconds": 8, "full_disks": False, "write_errors": False}
_FOCUSES = (EVERYTHING, EVERY_ACTOR, _DAMAGES, LEASES, EVERY_ACTOR | {"counts_work": True})
_FIRST = 38  # has what the seeds above lacked when it was chosen
_outcomes: dict[int, Outcome] = {}
_kinds: set[str] = set()  # of faults and steps, in the histories so far
_stopped: set[int] = set()  # seeds with an orderly stop of the broker
_threads: dict[int, list[Thread]] = {}  # that the history of a seed started


def _run(seed: int) -> Outcome:
    """Return the outcome of a seed; each is run once for all tests of this file."""
    if seed not in _outcomes:
        lines, start = list[str](), Thread.start

        def noted(thread: Thread) -> None:
            _threads.setdefault(seed, []).append(thread)
            start(thread)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Thread, "start", noted)
            _outcomes[seed] = World(seed, tell=lines.append).run()
        _note_kinds(lines)
        if any("the broker is stopped" in one for one in lines):
            _stopped.add(seed)
    return _outcomes[seed]


def _note_kinds(told: list[str]) -> None:
    steps, faults = "\n".join(told), "\n".join(one for one in told if " FAULT " in one)
    _kinds.update(kind for kind in _FAULTS if kind in faults)
    _kinds.update(kind for kind in _STEPS if kind in steps)


@pytest.mark.parametrize("part", range(PARTS))
def test_no_promise_is_broken(part: int) -> None:
    for seed in _part(SEEDS, part):
        outcome = _run(seed)
        if outcome.failures:
            pytest.fail(described_failure(World(seed).run, outcome))
        assert outcome.events.total > 100


def test_a_failing_seed_is_run_a_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    headers_are_dropped(monkeypatch)
    run = partial(history, 0, RECORDS)
    outcome = run()
    assert outcome.failures
    described = described_failure(run, outcome)
    assert described.startswith("headrace sim --seed 0: a second run has the same steps\n")
    assert all(failure in described for failure in outcome.failures)
    other = described_failure(lambda: replace(outcome, digest=""), outcome)
    assert "a second run has other steps" in other


def test_a_seed_is_one_history_also_in_another_process() -> None:
    seeds = range(max(_TWICE_MIN, SEEDS // 4))
    program = (
        "from headrace.sim.world import World\n"
        f"for seed in {seeds!r}:\n"
        "    outcome = World(seed).run()\n"
        "    print(f'{outcome.digest}/{outcome.events.total}')"
    )
    here = tuple(f"{_run(seed).digest}/{_run(seed).events.total}" for seed in seeds)
    assert of_another_process(program) == here
    assert len(set(here)) == len(seeds)


def test_no_history_starts_a_thread() -> None:
    """The order in which threads run is no part of a seed."""
    for seed in range(20):
        _run(seed)
    assert _stopped
    assert _threads == {}


def test_a_replay_shows_every_step() -> None:
    told: list[str] = []
    outcome = World(3, tell=told.append).run()
    assert "options: " in told[0]
    assert len(told) >= outcome.events.steps
    assert tuple(told[-len(outcome.last) :]) == outcome.last


def test_the_faults_of_all_seeds_together_are_of_every_kind() -> None:
    for seed in (_FIRST, *range(200)):
        if _kinds.issuperset(_FAULTS + _STEPS):
            break
        told: list[str] = []
        World(seed, options=options(seed, _FOCUSES[seed % 5]), tell=told.append).run()
        _note_kinds(told)
    assert _kinds.issuperset(_FAULTS + _STEPS), {*_FAULTS, *_STEPS} - _kinds


@pytest.mark.parametrize(
    ("standing", "gone", "is_allowed"),
    [
        (["0.log"], [], False),
        (["0.log", "partition.metadata", "20.index"], [], False),
        (["0.log", "20.log"], [], True),
        (["20.log"], [], True),
        (["0.log"], ["10.log"], True),
        ([], [], False),
    ],
)
def test_a_wrong_checksum_is_served_only_of_damage_that_the_scrub_cannot_have_refused(
    standing: list[str], gone: list[str], is_allowed: bool
) -> None:
    """One misdirected write can damage a sealed segment and the one that is written to."""
    broken, reported = list[str](), list[str]()
    damages = {"ledger-1/0.log": "found", "ledger-1/20.log": "found"}
    world: Any = SimpleNamespace(
        process=SimpleNamespace(services=SimpleNamespace(scrub=SimpleNamespace(damages=damages))),
        disk=SimpleNamespace(
            damage=SimpleNamespace(
                is_live=True,
                standing=["orders-0/20.log", *(f"ledger-1/{one}" for one in standing)],
                gone=[f"ledger-1/{one}" for one in gone],
            )
        ),
        _sealed={"ledger-1/0.log"},
        auditor=SimpleNamespace(broken=broken.append),
        history=SimpleNamespace(step=lambda *_: None),
        operator=SimpleNamespace(report=reported.append),
    )
    assert World.is_served_damaged(world, "ledger-1") is is_allowed
    assert (len(broken), len(reported)) == ((0, 1) if is_allowed else (1, 0))
