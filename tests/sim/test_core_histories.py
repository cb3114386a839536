"""Random histories of the core alone: machine and model agree after every step."""

import os

import pytest

from headrace.core import archived, run_chunks
from headrace.sim.random_histories import RandomHistory, first_difference

CORE_HISTORIES = int(os.environ.get("HEADRACE_SIM_HISTORIES", "2000"))
PARTS = 10


def _part(of: int, part: int) -> range:
    return range(of * part // PARTS, of * (part + 1) // PARTS)


@pytest.mark.parametrize("part", range(PARTS))
def test_core_and_model_never_part(part: int) -> None:
    steps = 0
    for seed in _part(CORE_HISTORIES, part):
        history = RandomHistory(seed)
        try:
            steps += history.run()
        except AssertionError:
            pytest.fail(f"history {seed}: {first_difference(seed)}")
    assert steps > 4 * len(_part(CORE_HISTORIES, part))


@pytest.mark.parametrize("part", range(PARTS))
def test_nor_do_they_where_runs_lie_in_tiny_chunks(
    part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the few records of a history cross from one chunk, or page, into the next."""
    for name, size in {"CHUNK_RUNS": 3, "_FILL_RUNS": 2, "_LOOK_RUNS": 2}.items():
        monkeypatch.setattr(run_chunks, name, size)
    monkeypatch.setattr(archived, "RUNS_PER_PAGE", 2)
    for seed in _part(CORE_HISTORIES // 10, part):
        parted = first_difference(seed)
        assert parted is None, f"history {seed}: {parted}"
