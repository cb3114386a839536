"""Topics that grow under a group: who decides where it reads on, and what that loses. KIP-842."""

import os
from functools import cache
from typing import Any

import pytest

from headrace.sim import growth_requests
from headrace.sim.growth import Decider, GrowthOutcome, GrowthWorld

from .digests import of_other_processes
from .planted_growth import (
    BUGS_OF_THE_CLIENT,
    BUGS_OF_THE_POLICY,
    Plant,
    the_mark_is_looked_for_in_one_place,
)

SEEDS = int(os.environ.get("HEADRACE_SIM_GROWTH_SEEDS", "40"))
PARTS = 5
SEEDS_MAX = 200  # within which a planted bug has to be found; most are within ten


@cache
def outcome(seed: int, decider: Decider) -> GrowthOutcome:
    return GrowthWorld(seed, decider).run()


def part(number: int) -> range:
    return range(SEEDS * number // PARTS, SEEDS * (number + 1) // PARTS)


@pytest.mark.parametrize("number", range(PARTS))
@pytest.mark.parametrize("decider", [Decider.SAFE_LATEST, Decider.POLICY])
def test_nothing_of_new_partitions_is_lost(decider: Decider, number: int) -> None:
    grown = produced = 0
    for seed in part(number):
        found = outcome(seed, decider)
        assert found.failures == (), f"headrace sim --world growth --seed {seed}"
        assert found.account.lost == 0
        grown += found.account.grown
        produced += found.account.produced
    assert grown > len(part(number))
    assert produced > 10 * len(part(number))


@pytest.mark.parametrize("number", range(PARTS))
def test_latest_loses_what_is_to_be_expected_and_nothing_else(number: int) -> None:
    """So that the test above can fail: the same histories with nobody to decide."""
    lost = 0
    for seed in part(number):
        found = outcome(seed, Decider.LATEST)
        assert found.failures == (), f"headrace sim --world growth --seed {seed}"
        lost += found.account.lost
    assert lost > len(part(number))


def test_a_seed_is_one_history_also_in_another_process() -> None:
    seeds = range(20, 24)
    program = (
        "from headrace.sim.growth import Decider, GrowthWorld\n"
        f"print(*(GrowthWorld(seed, who).run().digest for seed in {seeds!r} for who in Decider))"
    )
    digests = {tuple(outcome(seed, who).digest for seed in seeds for who in Decider)}
    digests |= of_other_processes(program)
    assert len(digests) == 1
    assert len(set(next(iter(digests)))) == len(seeds) * len(Decider)


def test_everything_befalls_the_group_that_can() -> None:
    told: list[str] = []
    for seed in range(20):
        GrowthWorld(seed, Decider.SAFE_LATEST, tell=told.append).run()
    steps = "\n".join(told)
    for kind in (
        "gets", "is made", "comes", "stalls", "dies", "leaves", "is no member any more",
        "reads meters-3-", "the broker is killed",
    ):  # fmt: skip
        assert kind in steps, kind


def _name(plant: Plant) -> str:
    return plant.__name__


def is_found(decider: Decider, begin: int = 0) -> bool:
    seeds = range(begin, begin + SEEDS_MAX)
    return any(GrowthWorld(seed, decider).run().failures for seed in seeds)


@pytest.mark.parametrize("plant", BUGS_OF_THE_CLIENT, ids=_name)
def test_a_bug_in_the_client_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    begin = 100 if plant is the_mark_is_looked_for_in_one_place else 0  # seed 102 shows it first
    assert is_found(Decider.SAFE_LATEST, begin)


@pytest.mark.parametrize("plant", BUGS_OF_THE_POLICY, ids=_name)
def test_a_bug_in_the_policy_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert is_found(Decider.POLICY)


def test_a_client_that_loses_less_than_it_has_to_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The expected loss is a bound on both sides: who says `latest` and reads all fails too."""
    sound = growth_requests.list_offsets

    async def from_the_start(*args: Any) -> Any:
        return dict.fromkeys(await sound(*args), 0)

    monkeypatch.setattr(growth_requests, "list_offsets", from_the_start)
    assert is_found(Decider.LATEST)
