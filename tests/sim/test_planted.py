"""Bugs that are planted are found: by whole histories, and those of the core by its model too."""

from collections.abc import Callable

import pytest

from headrace.sim.random_histories import first_difference
from headrace.sim.world import World

from .planted import IN_THE_CORE, PLANTED

SEEDS_MAX = 200  # the rarest shows itself in one history of a hundred
HISTORIES_MAX = 6000

Plant = Callable[[pytest.MonkeyPatch], None]


def _name(plant: Plant) -> str:
    return plant.__name__


@pytest.mark.parametrize("plant", PLANTED, ids=_name)
def test_whole_histories_find_it(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = range(SEEDS_MAX)
    assert not World(0).run().failures
    plant(monkeypatch)
    assert any(World(seed).run().failures for seed in seeds)


@pytest.mark.parametrize("plant", IN_THE_CORE, ids=_name)
def test_the_model_finds_it(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    found = (first_difference(seed) for seed in range(HISTORIES_MAX))
    parted = next((one for one in found if one is not None), None)
    assert parted is not None
    assert "then: " in parted
