"""The small files in the root of a data folder."""

import pytest

from headrace.log import small_files
from headrace.log.api import CorruptFileError, Disk, NewerFormatError
from headrace.log.checkpoints import (
    CLEAN_MARK,
    Extent,
    StartOffsets,
    leave_clean_mark,
    read_clean_mark,
    remove_clean_mark,
    remove_from_clean_mark,
)
from headrace.log.manifest import Manifest
from headrace.log.memory_disk import MemoryDisk

NAME = "log-start-offset-checkpoint"


def starts_of(disk: Disk) -> StartOffsets:
    return StartOffsets(Manifest(disk))


def test_start_offsets_are_written_when_they_move(disk: Disk) -> None:
    starts = starts_of(disk)
    assert starts.get("orders", 1) == 0
    starts.put_all({("orders", 1): 17})
    starts.put_all({("my-topic.x", 0): 3})
    starts.put_all({("orders", 1): 18})
    text = "0\n2\norders 1 18\nmy-topic.x 0 3\n"
    assert disk.read(NAME) == small_files.sealed(NAME, text)
    again = starts_of(disk)
    assert [again.get("orders", 1), again.get("my-topic.x", 0), again.get("orders", 0)] == [
        18,
        3,
        0,
    ]


def test_a_deleted_topic_leaves_nothing_to_one_of_its_name(disk: Disk) -> None:
    starts = starts_of(disk)
    starts.put_all({("orders", 1): 17})
    starts.put_all({("orders", 4): 9})
    starts.forget("orders", range(3))
    assert disk.read(NAME).startswith(b"0\n1\norders 4 9\n#")
    assert starts_of(disk).get("orders", 1) == 0


def test_what_cannot_be_written_has_not_moved() -> None:
    disk = MemoryDisk()
    starts = starts_of(disk)
    starts.put_all({("orders", 0): 5})
    disk.fail_after(0)
    with pytest.raises(OSError, match="No space"):
        starts.put_all({("orders", 0): 6})
    assert starts.get("orders", 0) == 5


def test_a_power_cut_takes_no_start_offset() -> None:
    disk = MemoryDisk()
    starts_of(disk).put_all({("orders", 0): 5})
    disk.crash(0.0)
    assert starts_of(disk).get("orders", 0) == 5


@pytest.mark.parametrize(
    "text", ["", "1.5\n0\n", "0\n", "0\n2\na 0 1\n", "0\n1\na b 1\n", "0\n1\na 1\n"]
)
def test_a_malformed_file_is_refused(text: str) -> None:
    disk = MemoryDisk()
    Manifest(disk).write(NAME, text)
    with pytest.raises(CorruptFileError, match=f"{NAME}: the entries are malformed"):
        starts_of(disk)


def test_every_flipped_bit_and_every_cut_of_a_start_offset_file_is_refused() -> None:
    disk = MemoryDisk()
    starts_of(disk).put_all({("orders", 0): 5})
    good = disk.read(NAME)
    damaged = [good[:size] for size in range(len(good))]
    for bit in range(8 * len(good)):
        one = bytearray(good)
        one[bit // 8] ^= 1 << bit % 8
        damaged.append(bytes(one))
    for data in damaged:
        disk.write(NAME, data)
        with pytest.raises(CorruptFileError, match=NAME):
            starts_of(disk)
    disk.remove(NAME)
    with pytest.raises(CorruptFileError, match=f"{NAME}: the file is missing"):
        starts_of(disk)


def test_a_newer_start_offset_file_is_refused() -> None:
    disk = MemoryDisk()
    Manifest(disk).write(NAME, "7\n0\n")
    with pytest.raises(NewerFormatError, match="format version 7 was written by a newer Headrace"):
        starts_of(disk)


def test_the_mark_of_an_orderly_stop_names_the_logs(disk: Disk) -> None:
    assert read_clean_mark(disk) is None
    leave_clean_mark(disk, {"orders-0": Extent(3, 17), "__cluster_metadata-0": Extent(0, 2)})
    assert disk.list("") == [CLEAN_MARK]
    assert read_clean_mark(disk) == {"orders-0": (3, 17), "__cluster_metadata-0": (0, 2)}
    remove_clean_mark(disk)
    assert read_clean_mark(disk) is None


def test_a_log_is_taken_out_of_the_mark_of_an_orderly_stop(disk: Disk) -> None:
    leave_clean_mark(disk, {"orders-0": Extent(3, 17), "orders-1": Extent(0, 2)})
    remove_from_clean_mark(disk, "jobs-0")
    assert read_clean_mark(disk) == {"orders-0": (3, 17), "orders-1": (0, 2)}
    remove_from_clean_mark(disk, "orders-0")
    assert read_clean_mark(disk) == {"orders-1": (0, 2)}
    remove_from_clean_mark(disk, "orders-1")
    assert read_clean_mark(disk) is None
    leave_clean_mark(disk, {})
    remove_from_clean_mark(disk, "orders-0")
    assert read_clean_mark(disk) is None, "a mark without names stands for all logs"


def test_a_damaged_mark_counts_for_nothing(caplog: pytest.LogCaptureFixture) -> None:
    disk = MemoryDisk()
    leave_clean_mark(disk, {"orders-0": Extent(3, 17)})
    good = disk.read(CLEAN_MARK)
    for data in (good[:-1], good.replace(b"17", b"18"), b"", b'{"version":0}'):
        disk.write(CLEAN_MARK, data)
        assert read_clean_mark(disk) is None
        assert CLEAN_MARK in caplog.text
        caplog.clear()
    assert read_clean_mark(disk, unsealed=True) == {}, "the mark of a format 0 folder"
