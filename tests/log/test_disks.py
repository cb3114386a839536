"""Both disks keep the same promises; one has faults on order."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from headrace.log.api import DamagedBlockError, Disk
from headrace.log.memory_disk import MemoryDisk, VirtualClock
from headrace.log.os_disk import OsDisk, SystemClock
from headrace.log.segments import SegmentedLog
from headrace.wire import batches
from headrace.wire.batches import Record


def test_a_file_grows_at_its_end(disk: Disk) -> None:
    file = disk.open("a/b.log")
    assert file.size() == 0
    for data in (b"one", bytearray(b"two"), memoryview(b"three")):
        file.append(data)
    assert (file.size(), file.pread(3, 3), file.pread(99, 6), file.pread(5, 11)) == (
        11, b"two", b"three", b"",
    )  # fmt: skip
    file.truncate(4)
    file.append(b"!")
    file.sync()
    assert disk.read("a/b.log") == b"onet!"
    again = disk.open("a/b.log")
    again.append(b"?")
    assert file.pread(9, 0) == b"onet!?"
    for one in (file, again):
        one.close()
        one.close()
    with pytest.raises(OSError, match="Bad file"):
        file.size()


def test_names_of_files_and_folders(disk: Disk) -> None:
    disk.write("t-0/z", b"1")
    disk.write("t-0/a", b"2")
    disk.write("top", b"3")
    assert (disk.list(""), disk.list("t-0"), disk.list("none")) == (["t-0", "top"], ["a", "z"], [])
    assert [disk.exists(path) for path in ("t-0", "t-0/a", "t-", "t-0/b")] == [
        True,
        True,
        False,
        False,
    ]
    disk.rename("t-0/a", "t-0/z")
    disk.rename("t-0", "t-1")
    assert (disk.list(""), disk.list("t-1"), disk.read("t-1/z")) == (["t-1", "top"], ["z"], b"2")
    for path in ("t-1", "top", "none", "none/at all"):
        disk.remove(path)
    assert disk.list("") == []
    with pytest.raises(FileNotFoundError):
        disk.read("top")
    with pytest.raises(FileNotFoundError):
        disk.rename("top", "other")


def test_a_file_of_which_the_disk_says_nothing_is_not_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look that fails is an error of the disk; "missing" would be reported as damage."""
    disk = OsDisk(tmp_path)
    log = SegmentedLog(disk, "orders-0", segment_bytes=100)
    for _ in range(2):
        data = bytearray(batches.build([Record(0, 1, None, b"v" * 100)]))
        log.append(data, batches.headers(data))
    next(iter(log._segments)).release()
    stat = os.stat

    def fails(path: Any, *args: Any, **named: Any) -> os.stat_result:
        if str(path).endswith(".log"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return stat(path, *args, **named)

    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", fails)
        with pytest.raises(PermissionError) as caught:
            log.read_bytes(0, 1)
        assert not isinstance(caught.value, DamagedBlockError)
    assert log.read_bytes(0, 1)
    log.close()


def test_a_write_replaces_the_whole_file(disk: Disk) -> None:
    disk.write("f/x", b"longer before")
    disk.write("f/x", b"short")
    assert (disk.read("f/x"), disk.list("f")) == (b"short", ["x"])


def test_a_crash_keeps_what_was_synced_and_some_of_the_rest() -> None:
    for keep, survived in ((0.0, b"safe"), (0.5, b"saferi"), (1.0, b"saferisk")):
        disk = MemoryDisk()
        file = disk.open("a")
        file.append(b"safe")
        file.sync()
        file.append(b"risk")
        disk.crash(keep)
        assert disk.read("a") == survived
        with pytest.raises(OSError, match="Bad file"):
            file.append(b"from the dead")


def test_a_crash_can_tear_as_told() -> None:
    disk = MemoryDisk()
    disk.open("a").append(b"unsynced")
    disk.crash(lambda path, data: f"{path}:".encode() + bytes(len(data)))
    assert disk.read("a") == b"a:" + bytes(8)


def test_space_ends_amid_a_write() -> None:
    disk = MemoryDisk()
    file = disk.open("a")
    disk.fail_after(5)
    file.append(b"abc")
    with pytest.raises(OSError, match="No space"):
        file.append(b"defgh")
    assert file.pread(9, 0) == b"abcde"
    with pytest.raises(OSError, match="No space"):
        disk.write("b", b"x")
    assert not disk.exists("b")
    disk.fail_after(None)
    file.append(b"f")
    assert disk.read("a") == b"abcdef"


def test_named_operations_fail() -> None:
    disk = MemoryDisk()
    file = disk.open("a")
    disk.failing.add("sync")
    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    disk.failing.clear()
    file.sync()


def test_a_virtual_clock_moves_when_told() -> None:
    clock = VirtualClock(wall_ms=50)
    clock.advance(7)
    assert (clock.mono(), clock.wall()) == (clock.now().mono, clock.now().wall) == (7, 57)


def test_the_system_clock_has_both_times() -> None:
    clock = SystemClock()
    before = clock.now()
    after = clock.now()
    assert before.mono <= after.mono
    assert before.wall > 1_700_000_000_000


def test_what_a_failed_sync_left_out_is_lost_with_the_power_and_not_with_the_process() -> None:
    disk = MemoryDisk()
    file = disk.open("log")
    file.append(b"lost")
    disk.failing.add("sync")
    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    disk.failing.clear()
    disk.kill()
    with pytest.raises(OSError, match="Bad file"):
        file.size()
    file = disk.open("log")
    assert file.pread(9, 0) == b"lost"
    file.sync()
    disk.crash(0.0)
    assert disk.read("log") == b""
    file = disk.open("log")
    file.append(b"kept")
    file.sync()
    disk.crash(0.0)
    assert disk.read("log") == b"kept"


@pytest.mark.parametrize(
    ("kept", "expected"), [(b"", b"0"), (b"1", b"1"), (b"2", b"2"), (b"12", b"2")]
)
def test_of_writes_in_one_place_a_power_cut_leaves_the_newest_that_it_keeps(
    kept: bytes, expected: bytes
) -> None:
    """An older one that is lost does not take a newer one with it."""
    disk = MemoryDisk()
    disk.write("point", b"0")
    for data in (b"1", b"2"):
        disk.overwrite("point", data, 0)
    disk.crash(lambda _, data: data if data in kept else b"")
    assert disk.read("point") == expected


def test_a_file_whose_name_cannot_be_synced_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: str) -> None:
        raise OSError(errno.EIO, "the disk fails")

    disk, before = OsDisk(tmp_path), open_files()
    monkeypatch.setattr("headrace.log.os_disk._sync_folder", fails)
    with pytest.raises(OSError, match="the disk fails"):
        disk.open("a")
    assert open_files() == before


def open_files() -> set[Path]:
    return {*Path("/proc/self/fd").iterdir()}
