"""Commands that read a broker's files: which folders they take, and that no broker is asked."""

from pathlib import Path
from typing import Any

import pytest

from .conftest import Command

ASKED = [("share", "explain", "g", "jobs:0:0"), ("offsets", "history", "g")]


@pytest.mark.parametrize("asked", ASKED)
def test_a_data_folder_that_is_none(tmp_path: Path, offline: Command, asked: Any) -> None:
    file = tmp_path / "file"
    file.touch()
    for folder in (tmp_path / "nope", file):
        ended = offline(*asked, "--data-dir", str(folder))
        assert ended.code == 1
        told = f"--data-dir: there is no folder {folder}; give the data folder of a broker"
        assert ended.err == f"headrace {' '.join(asked[:2])}: {told}\n"


@pytest.mark.parametrize("option", ["--bootstrap-server", "--command-config"])
@pytest.mark.parametrize("asked", ASKED)
def test_files_and_a_broker_are_not_read_together(
    tmp_path: Path, offline: Command, asked: Any, option: str
) -> None:
    ended = offline(*asked, "--data-dir", str(tmp_path), option, "127.0.0.1:9092")
    assert ended.code == 1
    told = f"--data-dir reads files and asks no broker; leave {option} or --data-dir out"
    assert ended.err == f"headrace {' '.join(asked[:2])}: {told}\n"
