"""Hostile bytes: no crash, no hang, no unbounded memory."""

import importlib.util
import logging
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .targets import SEEDS, TARGETS

_MEMORY_MAX = 64 << 20
_ROOT = Path(__file__).parents[2]
_SECONDS = 1


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """What is told of every bad input would be most of the work."""
    caplog.set_level(logging.CRITICAL, "headrace")


@st.composite
def mutated(draw: st.DrawFn, seeds: list[bytes]) -> bytes:
    """A well-formed input with some bytes changed, cut out, doubled or added."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        match draw(st.integers(0, 3)):
            case 0:
                data[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
            case 1:
                del data[at : at + draw(st.integers(1, 20))]
            case 2:
                data[at:at] = data[at : at + draw(st.integers(1, 200))]
            case _:
                data[at:at] = draw(st.binary(max_size=20))
    return bytes(data)


@pytest.mark.parametrize("name", TARGETS)
def test_well_formed_and_mutated_bytes(name: str) -> None:
    target = TARGETS[name]
    for seed in SEEDS[name]:
        target(seed)

    @settings(max_examples=100, suppress_health_check=list(HealthCheck))
    @given(st.one_of(mutated(SEEDS[name]), st.binary(max_size=300)))
    def hold(data: bytes) -> None:
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        target(data)
        assert tracemalloc.get_traced_memory()[1] - before < _MEMORY_MAX

    tracemalloc.start()
    try:
        hold()
    finally:
        tracemalloc.stop()


@pytest.fixture(scope="module")
def guided(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what guided fuzzing of each target printed, and its exit code."""
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris has no wheel for this Python")
    folder = tmp_path_factory.mktemp("guided")
    for name in TARGETS:
        (folder / name).mkdir()
        for number, seed in enumerate(SEEDS[name]):
            (folder / name / str(number)).write_bytes(seed)
    subprocess.run(
        [
            sys.executable, "-m", "tests.fuzz.coverage_guided", ",".join(TARGETS), str(folder),
            f"-max_total_time={_SECONDS}", "-timeout=5", "-rss_limit_mb=1024", "-max_len=4096",
            f"-artifact_prefix={folder}/",
        ],
        timeout=300, check=True, cwd=_ROOT,
    )  # fmt: skip
    return folder


@pytest.mark.parametrize("name", TARGETS)
def test_guided_by_coverage(name: str, guided: Path) -> None:
    told = (guided / f"{name}.log").read_text(errors="replace")
    assert (guided / f"{name}.code").read_text() == "0", told[-4000:]
    assert "Done" in told
