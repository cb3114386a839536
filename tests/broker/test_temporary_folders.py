"""Temporary folders: none stays for long, and none in use is taken away."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace
from headrace import temporary_folders
from headrace.temporary_folders import TemporaryFolder, remove_abandoned

TIMEOUT = 60
BROKER = """
import sys, headrace
with headrace.Broker() as broker:
    print(broker.data_dir, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder of temporary files; a process that has not swept it yet."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    remove_abandoned.cache_clear()
    yield tmp_path
    remove_abandoned.cache_clear()


def test_a_broker_removes_its_folder_when_it_stops(temporary: Path) -> None:
    with headrace.Broker() as broker:
        assert broker.data_dir.is_relative_to(temporary)
        assert (broker.data_dir / "meta.properties").exists()
    assert list(temporary.iterdir()) == []


def test_the_folder_of_a_killed_process_is_removed_by_the_next(temporary: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", BROKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        left = Path(process.stdout.readline().strip()).parent
        remove_abandoned()
        assert left.exists(), "its process lives"
        process.send_signal(signal.SIGKILL)
        process.wait(TIMEOUT)
    assert left.is_dir()
    remove_abandoned.cache_clear()
    folder = TemporaryFolder()
    assert list(temporary.iterdir()) == [folder.path]
    folder.remove()


def test_what_others_made_is_left_alone(temporary: Path) -> None:
    being_made = temporary / f"{temporary_folders._PREFIX}made"
    being_made.mkdir()
    elsewhere = temporary / "headrace-data"
    elsewhere.mkdir()
    (elsewhere / ".temporary").touch()
    (temporary / f"{temporary_folders._PREFIX}link").symlink_to(elsewhere)
    remove_abandoned()
    assert len(list(temporary.iterdir())) == 3
    assert (elsewhere / ".temporary").exists()
