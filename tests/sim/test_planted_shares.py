"""Whole histories find the bugs that are planted in share groups."""

import pytest

from .whole_histories import SHARES, Plant, check_is_found, name


@pytest.mark.parametrize("plant", SHARES, ids=name)
def test_it_is_found(plant: Plant) -> None:
    check_is_found(plant)
