"""Whole histories find the bugs that are planted in committed offsets and consumer groups."""

import pytest

from .whole_histories import OFFSETS, Plant, check_is_found, name


@pytest.mark.parametrize("plant", OFFSETS, ids=name)
def test_it_is_found(plant: Plant) -> None:
    check_is_found(plant)
