"""Bugs that are planted are found: by whole histories, and those of the core by its model too."""

import pytest

from headrace.sim.random_histories import first_difference
from headrace.sim.world import World

from .planted import IN_THE_CORE, PLANTED, Plant
from .planted_records import PLANTED as PLANTED_RECORDS
from .planted_records import locks_end_early

SEEDS_MAX = 400  # from the seed at which the search begins
HISTORIES_MAX = 6000
_ALL = [*PLANTED.items(), *PLANTED_RECORDS.items()]


def _name(plant: Plant | int) -> str:
    return "" if isinstance(plant, int) else plant.__name__


def test_there_are_enough_of_them() -> None:
    assert len({plant.__name__ for plant, _ in _ALL}) == len(_ALL) >= 40


@pytest.mark.parametrize(("plant", "begin"), _ALL, ids=_name)
def test_whole_histories_find_it(plant: Plant, begin: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not World(begin).run().failures
    plant(monkeypatch)
    assert any(World(seed).run().failures for seed in range(begin, begin + SEEDS_MAX))


@pytest.mark.parametrize("plant", [*IN_THE_CORE, locks_end_early], ids=_name)
def test_the_model_finds_it(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    found = (first_difference(seed) for seed in range(HISTORIES_MAX))
    parted = next((one for one in found if one is not None), None)
    assert parted is not None
    assert "then: " in parted
