"""Commands that read a broker's files: which folders they take, and that no broker is asked."""

from pathlib import Path
from typing import Any

import pytest

from headrace.log import small_files

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


@pytest.mark.parametrize("name", ["headrace.manifest", "meta.properties"])
@pytest.mark.parametrize("command", ASKED)
def test_a_folder_of_a_newer_release_is_refused(
    tmp_path: Path, offline: Command, command: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as newer:
        newer.setattr("headrace.log.small_files.FORMAT", 9)
        (tmp_path / name).write_bytes(small_files.sealed(name, "text\n"))
    ended = offline(*command, "--data-dir", str(tmp_path))
    assert ended.code == 1
    assert ended.err == (
        f"headrace {' '.join(command[:2])}: --data-dir: {name}: format version 9 was written by a "
        "newer Headrace; upgrade Headrace to open this data folder\n"
    )
