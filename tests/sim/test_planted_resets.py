"""Both tables of KIP-842 in the simulator, and a planted bug for each of their rows."""

import pytest

from .planted_resets import (
    PLANTED,
    ROWS,
    UNKNOWN,
    Plant,
    Row,
    begins,
    is_invalid,
    unknown_values_are_the_default,
)

SEEDS = range(3)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_consumer_begins_where_the_tables_say(row: Row) -> None:
    for seed in SEEDS:
        found, failures = begins(row, seed)
        assert failures == ()
        assert found == row.begins


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_wrong_row_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    row = PLANTED[plant]
    assert any(begins(row, seed) != (row.begins, ()) for seed in SEEDS)


@pytest.mark.parametrize("setting", UNKNOWN)
def test_a_consumer_that_takes_unknown_values_is_found(
    setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert is_invalid(setting)
    unknown_values_are_the_default(monkeypatch)
    assert not is_invalid(setting)
