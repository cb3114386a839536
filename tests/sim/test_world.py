"""Whole histories: a seed is one history, a sound broker passes, every kind of fault happens."""

import os

import pytest

from headrace.core import archived, run_chunks
from headrace.sim.random_histories import RandomHistory, first_difference
from headrace.sim.world import World

from .digests import of_other_processes

SEEDS = int(os.environ.get("HEADRACE_SIM_SEEDS", "60"))
CORE_HISTORIES = int(os.environ.get("HEADRACE_SIM_HISTORIES", "2000"))
PARTS = 10


def _part(of: int, part: int) -> range:
    return range(of * part // PARTS, of * (part + 1) // PARTS)


@pytest.mark.parametrize("part", range(PARTS))
def test_no_promise_is_broken(part: int) -> None:
    for seed in _part(SEEDS, part):
        outcome = World(seed).run()
        assert outcome.failures == (), f"headrace sim --seed {seed}"
        assert outcome.events.total > 10


def test_a_seed_is_one_history_also_in_another_process() -> None:
    seeds = range(20, 70)
    program = (
        "from headrace.sim.world import World\n"
        f"print(*(World(seed).run().digest for seed in {seeds!r}))"
    )
    digests = {tuple(World(seed).run().digest for seed in seeds)}
    digests |= of_other_processes(program)
    assert len(digests) == 1
    assert len(set(next(iter(digests)))) == len(seeds)


def test_a_replay_shows_every_step() -> None:
    told: list[str] = []
    outcome = World(3, tell=told.append).run()
    assert "options: " in told[0]
    assert len(told) >= outcome.events.steps
    assert tuple(told[-len(outcome.last) :]) == outcome.last


def test_the_faults_of_all_seeds_together_are_of_every_kind() -> None:
    told: list[str] = []
    for seed in (*range(160), 1314):  # the last one for what is rare
        World(seed, tell=told.append).run()
    faults = [line for line in told if " FAULT " in line]
    for kind in (
        "the power is cut", "the broker is killed", "the broker is stopped", "sync fails",
        "bytes are left", "the machine is suspended", "the wall clock is set", "are deleted",
        "topic extra is deleted", "orders gets partition", "the disk is damaged: bit",
        "the disk is damaged: short", "the disk is damaged: missing", "records below",
    ):  # fmt: skip
        assert any(kind in line for line in faults), kind
    steps = "\n".join(told)
    for kind in (
        "stalls", "vanishes", "leaves", "lies", "its old driver is fenced", "renew",
        "resets sets red to", "resets deletes red: 0", "resets deletes the offsets of red: 0",
        "resets sets blue to", "repeats #", "leaves a gap", "uses epoch", "operator restores",
        "is assigned", "quiet days pass", "sends mutated", "sends claim", "sends flood",
    ):  # fmt: skip
        assert kind in steps, kind


@pytest.mark.parametrize("part", range(PARTS))
def test_core_and_model_never_part(part: int) -> None:
    steps = 0
    for seed in _part(CORE_HISTORIES, part):
        history = RandomHistory(seed)
        try:
            steps += history.run()
        except AssertionError:
            pytest.fail(f"history {seed}: {first_difference(seed)}")
    assert steps > 4 * len(_part(CORE_HISTORIES, part))


@pytest.mark.parametrize("part", range(PARTS))
def test_nor_do_they_where_runs_lie_in_tiny_chunks(
    part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the few records of a history cross from one chunk, or page, into the next."""
    for name, size in {"CHUNK_RUNS": 3, "_FILL_RUNS": 2, "_LOOK_RUNS": 2}.items():
        monkeypatch.setattr(run_chunks, name, size)
    monkeypatch.setattr(archived, "RUNS_PER_PAGE", 2)
    for seed in _part(CORE_HISTORIES // 10, part):
        parted = first_difference(seed)
        assert parted is None, f"history {seed}: {parted}"
