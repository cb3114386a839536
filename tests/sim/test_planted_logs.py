"""Whole histories find the bugs that are planted in logs, producers and recovery."""

import pytest

from .whole_histories import LOGS, Plant, check_is_found, name


@pytest.mark.parametrize("plant", LOGS, ids=name)
def test_it_is_found(plant: Plant) -> None:
    check_is_found(plant)
