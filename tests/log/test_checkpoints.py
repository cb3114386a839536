"""The small files in the root of a data folder, in Kafka's formats."""

import pytest

from headrace.log.api import CorruptLog, Disk
from headrace.log.checkpoints import StartOffsets, leave_clean_mark, take_clean_mark
from headrace.log.memory_disk import MemoryDisk

NAME = "log-start-offset-checkpoint"


def test_start_offsets_are_written_when_they_move(disk: Disk) -> None:
    starts = StartOffsets(disk, durable=True)
    assert starts.get("orders", 1) == 0
    starts.put("orders", 1, 17)
    starts.put("my-topic.x", 0, 3)
    starts.put("orders", 1, 18)
    assert disk.read(NAME) == b"0\n2\norders 1 18\nmy-topic.x 0 3\n"
    again = StartOffsets(disk, durable=True)
    assert (again.get("orders", 1), again.get("my-topic.x", 0), again.get("orders", 0)) == (
        18,
        3,
        0,
    )


def test_a_deleted_topic_leaves_nothing_to_one_of_its_name(disk: Disk) -> None:
    starts = StartOffsets(disk, durable=False)
    starts.put("orders", 1, 17)
    starts.put("orders", 4, 9)
    starts.forget("orders", range(3))
    assert disk.read(NAME) == b"0\n1\norders 4 9\n"
    assert StartOffsets(disk, durable=False).get("orders", 1) == 0


def test_what_cannot_be_written_has_not_moved() -> None:
    disk = MemoryDisk()
    starts = StartOffsets(disk, durable=True)
    starts.put("orders", 0, 5)
    disk.fail_after(0)
    with pytest.raises(OSError, match="No space"):
        starts.put("orders", 0, 6)
    assert starts.get("orders", 0) == 5


@pytest.mark.parametrize("durable", [True, False])
def test_a_power_cut_takes_what_was_not_to_be_durable(durable: bool) -> None:
    disk = MemoryDisk()
    StartOffsets(disk, durable=durable).put("orders", 0, 5)
    disk.crash(0.0)
    assert (disk.read(NAME) != b"") == durable


@pytest.mark.parametrize(
    "data", [b"", b"1\n0\n", b"0\n", b"0\n2\na 0 1\n", b"0\n1\na b 1\n", b"0\n1\na 1\n", b"\xff"]
)
def test_a_damaged_file_is_refused(data: bytes) -> None:
    disk = MemoryDisk()
    disk.write(NAME, data)
    with pytest.raises(CorruptLog, match=f"{NAME} is damaged"):
        StartOffsets(disk, durable=True)


def test_the_mark_of_an_orderly_stop_is_taken_once(disk: Disk) -> None:
    assert not take_clean_mark(disk)
    leave_clean_mark(disk)
    assert disk.list("") == [".kafka_cleanshutdown"]
    assert take_clean_mark(disk)
    assert not take_clean_mark(disk)
