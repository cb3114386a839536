"""Data folders that earlier releases wrote open, and hold what clients could read then."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from tests.campaign import account
from tests.campaign.data import SETTINGS
from tests.campaign.life import Life, recorded, run
from tests.golden import data_folders

import headrace
from headrace.folder.check import check
from headrace.log.manifest import NAME, Manifest
from headrace.log.os_disk import OsDisk

NEWEST_SEAL = re.compile(rb"#headrace format=(\d+)")
_NEXT_ID = "next producer id "


@pytest.fixture(params=[*data_folders.names()])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(name: str, tmp_path: Path) -> Path:
    """A copy of a golden folder."""
    for path, content in data_folders.files_of(name).items():
        target = tmp_path / path
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(content)
    return tmp_path


def test_there_is_one_of_each_format() -> None:
    assert list(data_folders.names()) == [
        f"data-folder-format-{number}-{sort}"
        for number in (0, 1, 2)
        for sort in ("killed", "stopped")
    ]


def test_the_newest_is_of_the_format_that_this_release_writes(tmp_path: Path) -> None:
    *_, name = data_folders.names()
    with headrace.Broker(tmp_path):
        pass
    written = NEWEST_SEAL.findall((tmp_path / NAME).read_bytes())
    assert written == NEWEST_SEAL.findall(data_folders.files_of(name)[NAME])
    assert written == [name.split("-")[3].encode()]


def test_nothing_is_lost_and_the_folder_is_upgraded(
    name: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = data_folders.account_of(name)
    assert check(folder, lambda _: None).is_clean
    for _ in range(2):
        found = _lived(folder)
        assert _without_ids(found) == _without_ids(expected)
        assert found[_NEXT_ID] >= expected[_NEXT_ID]
    assert (folder / NAME).exists()
    assert "recovery-point" not in caplog.text
    assert all(topic.has_points for topic in Manifest(OsDisk(folder)).topics.values())
    report = check(folder, lambda _: None)
    assert report.is_clean, report.findings


def _lived(folder: Path) -> dict[str, Any]:
    """What clients can read of a broker on a folder, which is stopped in order then."""

    async def live() -> account.Account:
        life = Life(OsDisk(folder), SETTINGS)
        await life.start()
        await account.settled(life)
        found = await account.take(life, probes=-1)
        await life.stop()
        return found

    with recorded([]):
        return data_folders.plain(run(asyncio.wait_for(live(), 60)))


def _without_ids(found: dict[str, Any]) -> dict[str, Any]:
    """An account but for the next producer id, of which an unclean start skips some."""
    return {key: value for key, value in found.items() if key != _NEXT_ID}
