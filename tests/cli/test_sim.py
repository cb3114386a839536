"""`headrace sim`: its last line, its exit code, and the replay of a seed that failed."""

import json
from dataclasses import replace

import pytest
from tests.broker.loop_rig import machine_scale
from typer.testing import CliRunner

from headrace.cli.main import app
from headrace.client import consumer
from headrace.core.share_partition import SharePartition
from headrace.sim.world import Outcome, World

EVENTS_PER_CPU_S = 5_000
TRIES = 3  # other processes empty the caches of the processor


def test_seeds_and_histories_end_with_one_line() -> None:
    done = CliRunner().invoke(app, ["sim", "--seeds", "3", "--histories", "20", "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.output.splitlines()[-1])
    assert (told["seeds"], told["histories"], told["failures"]) == (3, 20, 0)
    assert told["events"] > 30
    assert told["faults"] > 0


def test_events_are_counted_by_processor_time() -> None:
    done = CliRunner().invoke(app, ["sim", "--seeds", "2", "--json"])
    told = json.loads(done.output)
    assert told["events"] > told["steps"] > 0
    assert told["events_per_cpu_s"] > told["steps_per_cpu_s"] > 0
    assert told["cpu_s"] > 0


def test_thousands_of_events_take_a_second_of_one_core() -> None:
    needed, rates = EVENTS_PER_CPU_S / machine_scale(), list[float]()
    while len(rates) < TRIES and max(rates, default=0) < needed:
        done = CliRunner().invoke(app, ["sim", "--seeds", "10", "--from", "100", "--json"])
        rates.append(json.loads(done.output)["events_per_cpu_s"])
    assert max(rates) >= needed, rates


def test_an_interrupt_ends_with_the_account(monkeypatch: pytest.MonkeyPatch) -> None:
    run = World.run

    def interrupted(world: World) -> Outcome:
        if world.seed == 2:
            raise KeyboardInterrupt
        return run(world)

    monkeypatch.setattr(World, "run", interrupted)
    done = CliRunner().invoke(app, ["sim", "--seeds", "5", "--histories", "5", "--json"])
    assert done.exit_code == 130
    told = json.loads(done.stdout)
    assert (told["seeds"], told["histories"], told["failures"]) == (2, 0, 0)
    assert done.stderr == "interrupted; the last line counts what was done before\n"


def test_workers_find_what_one_process_finds() -> None:
    shared, alone = (
        json.loads(CliRunner().invoke(app, ["sim", "--seeds", "2", "--json", *more]).stdout)
        for more in (["--workers", "2"], [])
    )
    for name in ("seeds", "events", "steps", "faults", "failures", "virtual_s"):
        assert shared[name] == alone[name], name


def test_topics_that_grow_are_another_world() -> None:
    done = CliRunner().invoke(app, ["sim", "--world", "growth", "--seeds", "4", "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.output.splitlines()[-1])
    assert (told["seeds"], told["failures"]) == (4, 0)
    assert told["lost"] > 0
    again = CliRunner().invoke(app, ["sim", "--world", "growth", "--seed", "0"])
    for decider in ("safe_latest", "policy", "latest"):
        assert f"---- {decider}\n" in again.output
    assert " meters-1 is made, " in again.output
    assert again.output.splitlines()[-1].endswith(", 0 failures")


def test_a_failure_in_it_is_told_with_its_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer, "were_added", lambda *_: [False] * len(_[1]))
    done = CliRunner().invoke(app, ["sim", "--world", "growth", "--seeds", "5"])
    assert done.exit_code == 1
    assert "which came after the start, were skipped" in done.output
    assert "replay it: headrace sim --world growth --seed " in done.output


def test_time_can_be_the_limit() -> None:
    done = CliRunner().invoke(app, ["sim", "--minutes", "0", "--json"])
    assert done.exit_code == 0
    assert json.loads(done.output)["seeds"] == 0


def test_a_failure_is_told_with_its_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SharePartition, "_not_held", lambda *_: None)
    done = CliRunner().invoke(app, ["sim", "--seeds", "10", "--histories", "10"])
    assert done.exit_code == 1
    lines = done.output.splitlines()
    assert not lines[-1].endswith(" 0 failures")
    replay = next(line for line in lines if "replay it: headrace sim --seed " in line)
    assert any("replay it: headrace sim --seeds 0 --from" in line for line in lines)
    again = CliRunner().invoke(app, ["sim", "--seed", replay.split()[-1]])
    assert again.exit_code == 1
    failed = next(n for n, line in enumerate(lines) if line.endswith("FAILED"))
    assert lines[failed + 1] in again.output
    assert "options: " in again.output


def test_a_failure_whose_second_run_has_other_steps_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, runs = World.run, list[int]()

    def changing(world: World) -> Outcome:
        runs.append(world.seed)
        digest = f"{runs.count(world.seed)}"
        failures = ("a promise is broken",) if world.seed == 1 else ()
        return replace(run(world), failures=failures, digest=digest)

    monkeypatch.setattr(World, "run", changing)
    done = CliRunner().invoke(app, ["sim", "--seeds", "3", "--json"])
    assert runs == [0, 1, 1, 2]
    assert "seed 1: a second run has other steps" in done.output
    assert json.loads(done.output.splitlines()[-1])["failures"] == 2
