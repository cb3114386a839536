"""Whole histories find the bugs that are planted in members and sessions of share groups."""

import pytest

from .whole_histories import MEMBERSHIP, Plant, check_is_found, name


@pytest.mark.parametrize("plant", MEMBERSHIP, ids=name)
def test_it_is_found(plant: Plant) -> None:
    check_is_found(plant)
