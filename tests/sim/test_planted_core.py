"""The model of the core finds the bugs that are planted in it."""

import pytest

from headrace.sim.random_histories import first_difference

from .rules import MODEL
from .whole_histories import Plant, name

HISTORIES_MAX = 3000


@pytest.mark.parametrize("plant", MODEL, ids=name)
def test_the_model_finds_it(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    found = map(first_difference, range(HISTORIES_MAX))
    parted = next((one for one in found if one is not None), None)
    assert parted is not None
    assert "then: " in parted
