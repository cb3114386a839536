"""A journal that begins with a checkpoint: what is read back, and what a crash may leave of it."""

import pytest

from headrace.core.machine import Entry
from headrace.core.types import WallMs
from headrace.log.api import CorruptLog
from headrace.log.checkpointed_log import CheckpointedLog
from headrace.log.memory_disk import MemoryDisk
from headrace.wire import batches

FOLDER = "journal-0"
NOW = WallMs(7)
STATE = [Entry(None, b"state %d" % number) for number in range(2500)]


def append(log: CheckpointedLog, *values: bytes) -> None:
    data = bytearray(batches.build(batches.Record(0, 5, None, value) for value in values))
    log.append(data, batches.headers(data))


def values(log: CheckpointedLog) -> list[bytes | None]:
    """All that is read, as a replay reads it."""
    found, offset = [], log.start_offset
    while offset < log.end_offset:
        piece = log.read(offset, 100)
        found += [record.value for record in batches.records(piece.data)]
        offset = piece.headers[-1].last_offset + 1
    assert offset == log.end_offset
    return found


def checkpoint(log: CheckpointedLog, end: int) -> None:
    log.write_checkpoint(end, STATE, NOW)
    log.use_checkpoint(end)
    log.remove_replaced()


def test_a_checkpoint_stands_for_what_came_before_it() -> None:
    disk = MemoryDisk()
    log = CheckpointedLog(disk, FOLDER)
    append(log, b"one", b"two")
    assert values(log) == [b"one", b"two"]
    append(log, b"three")
    checkpoint(log, 3)
    append(log, b"four")
    expected = [value for _, value, _ in STATE] + [b"four"]
    assert (values(log), log.records_since) == (expected, 1)
    log.sync()
    log.close()
    assert values(CheckpointedLog(disk, FOLDER)) == expected


def test_segments_below_the_checkpoint_and_older_checkpoints_go() -> None:
    disk = MemoryDisk()
    log = CheckpointedLog(disk, FOLDER)
    for _ in range(4):
        append(log, b"x" * 400_000)
    checkpoint(log, 2)
    checkpoint(log, 4)
    names = disk.list(FOLDER)
    assert [name for name in names if ".checkpoint" in name] == [
        "00000000000000000004-0000000000.checkpoint"
    ]
    assert len([name for name in names if name.endswith(".log")]) == 1


def test_what_is_appended_while_a_checkpoint_is_written_follows_it() -> None:
    log = CheckpointedLog(MemoryDisk(), FOLDER)
    append(log, b"one")
    log.write_checkpoint(1, STATE[:1], NOW)
    append(log, b"two")
    log.use_checkpoint(1)
    assert values(log) == [b"state 0", b"two"]


@pytest.mark.parametrize("used", [True, False])
def test_a_crash_after_the_write_loses_nothing(used: bool) -> None:
    disk = MemoryDisk()
    log = CheckpointedLog(disk, FOLDER)
    append(log, b"one")
    log.write_checkpoint(1, STATE[:1], NOW)
    if used:
        log.use_checkpoint(1)
    disk.crash()
    again = CheckpointedLog(disk, FOLDER)
    assert (values(again), again.end_offset) == ([b"state 0"], 1)
    append(again, b"two")
    assert values(again) == [b"state 0", b"two"]


def test_a_write_that_fails_or_is_cut_off_changes_nothing() -> None:
    disk = MemoryDisk()
    log = CheckpointedLog(disk, FOLDER)
    append(log, b"one")
    disk.fail_after(10)
    with pytest.raises(OSError, match="space"):
        log.write_checkpoint(1, STATE, NOW)
    disk.fail_after(None)
    disk.write(f"{FOLDER}/00000000000000000001-0000000000.checkpoint.new", b"half")
    again = CheckpointedLog(disk, FOLDER)
    assert values(again) == [b"one"]
    assert not [name for name in disk.list(FOLDER) if "checkpoint" in name]


class NoCheckpoints(MemoryDisk):
    """No checkpoint can be written."""

    def write(self, path: str, data: bytes, *, durable: bool = True) -> None:
        if path.endswith(".checkpoint"):
            raise OSError(28, "No space left on device")
        super().write(path, data, durable=durable)


def test_nothing_is_given_up_before_the_checkpoint_is_written() -> None:
    disk = NoCheckpoints()
    log = CheckpointedLog(disk, FOLDER)
    for _ in range(4):
        append(log, b"x" * 400_000)
    log.sync()
    with pytest.raises(OSError, match="space"):
        log.write_checkpoint(4, STATE, NOW)
    disk.crash()
    assert len(values(CheckpointedLog(disk, FOLDER))) == 4


def test_what_a_checkpoint_replaced_is_gone_after_a_crash_before_it_is_used() -> None:
    disk = MemoryDisk()
    log = CheckpointedLog(disk, FOLDER)
    for _ in range(4):
        append(log, b"x" * 400_000)
    log.write_checkpoint(4, STATE, NOW)
    disk.crash()
    again = CheckpointedLog(disk, FOLDER)
    assert values(again) == [value for _, value, _ in STATE]
    assert len([name for name in disk.list(FOLDER) if ".log" in name]) == 1


@pytest.mark.parametrize("damage", ["cut", "flipped", "gone"])
def test_a_damaged_checkpoint_is_told(damage: str) -> None:
    disk = MemoryDisk()
    log = CheckpointedLog(disk, FOLDER)
    for _ in range(4):
        append(log, b"x" * 400_000)
    checkpoint(log, 4)
    log.sync()
    log.close()
    path = f"{FOLDER}/00000000000000000004-0000000000.checkpoint"
    data = bytearray(disk.read(path))
    if damage == "cut":
        disk.write(path, bytes(data[:-100]))
    elif damage == "flipped":
        data[200] ^= 1
        disk.write(path, bytes(data))
    else:
        disk.remove(path)
    with pytest.raises(CorruptLog, match="restore"):
        values(CheckpointedLog(disk, FOLDER))
