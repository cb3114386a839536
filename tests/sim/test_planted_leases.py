"""Whole histories find the bugs that are planted in leases and journals of share groups."""

import pytest

from .whole_histories import OF_LEASES, Plant, check_is_found, name


@pytest.mark.parametrize("plant", OF_LEASES, ids=name)
def test_it_is_found(plant: Plant) -> None:
    check_is_found(plant)
