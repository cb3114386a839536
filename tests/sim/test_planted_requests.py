"""Whole histories find the bugs that are planted in topics, settings, batches and connections."""

import pytest

from .whole_histories import REQUESTS, Plant, check_is_found, name


@pytest.mark.parametrize("plant", REQUESTS, ids=name)
def test_it_is_found(plant: Plant) -> None:
    check_is_found(plant)
