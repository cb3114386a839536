"""Compaction killed after every single operation of the disk: no value is lost, none comes back."""

import contextlib
import random
from collections.abc import Callable
from typing import Any

import pytest

from headrace.log.api import CorruptFileError, DamagedBlockError
from headrace.log.memory_disk import MemoryDisk, MemoryFile
from headrace.log.segments import SegmentedLog
from headrace.wire import batches
from headrace.wire.batches import HEADER_BYTES, Record

Compact = Callable[..., int]
FOLDER = "topic-0"
CHANGES = {"append", "truncate", "sync", "open", "remove", "rename", "write"}


class Killed(BaseException):
    """The process is gone; nothing may catch it."""


class MortalDisk(MemoryDisk):
    """Kills its process after so many operations that change it."""

    def __init__(self) -> None:
        super().__init__()
        self.left: int | None = None

    def check(self, operation: str) -> None:
        super().check(operation)
        if self.left is not None and operation in CHANGES:
            if self.left == 0:
                raise Killed
            self.left -= 1


def filled(
    disk: MemoryDisk, seed: int, *, index_interval_bytes: int = 4096
) -> dict[bytes, bytes | None]:
    """A log of some segments; the table that it stands for."""
    chance = random.Random(seed)
    log = SegmentedLog(disk, FOLDER, segment_bytes=600, index_interval_bytes=index_interval_bytes)
    table: dict[bytes, bytes | None] = {}
    for number in range(40):
        keys = [b"k%d" % chance.randrange(8) for _ in range(chance.randrange(1, 4))]
        values = [None if chance.random() < 0.3 else b"%d" % number for _ in keys]
        data = bytearray(
            batches.build(
                [Record(0, number, key, value) for key, value in zip(keys, values, strict=True)],
                compression=chance.randrange(5),
            )
        )
        log.append(data, batches.headers(data))
        table |= zip(keys, values, strict=True)
    log.sync()
    log.close()
    return table


def read(log: SegmentedLog) -> dict[int, Record]:
    found: dict[int, Record] = {}
    offset = log.start_offset
    while offset < log.end_offset:
        piece = log.read(offset, 1)
        found |= {one.offset: one for one in batches.records(piece.data)}
        offset = piece.headers[-1].last_offset + 1
    return found


def values(records: dict[int, Record]) -> dict[bytes | None, bytes]:
    table: dict[bytes | None, bytes | None] = {one.key: one.value for one in records.values()}
    return {key: value for key, value in table.items() if value is not None}


@pytest.mark.parametrize("keep", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("segment_bytes", [600, 5000])
def test_whenever_it_is_killed(compact: Compact, keep: float, segment_bytes: int) -> None:
    rules: dict[str, Any] = {"segment_bytes": segment_bytes, "delete_retention_ms": 0}
    survived = kills = 0
    while not survived:
        disk = MortalDisk()
        table = filled(disk, seed=segment_bytes)
        alive = {key: value for key, value in table.items() if value is not None}
        log = SegmentedLog(disk, FOLDER, segment_bytes=600)
        before, end = read(log), log.end_offset
        disk.left = kills
        try:
            compact(disk, log, **rules)
            compact(disk, log, now=10, **rules)
            survived = 1
        except Killed:
            kills += 1
        disk.left = None
        disk.crash(keep)
        for again in (0, 1):
            log = SegmentedLog(disk, FOLDER, segment_bytes=600)
            names = disk.list(FOLDER)
            assert not [name for name in names if name.endswith((".cleaned", ".swap"))]
            left = read(log)
            assert values(left) == alive, (kills, again)
            assert all(before[offset] == one for offset, one in left.items())
            assert log.end_offset == end
            compact(disk, log, now=20 + again, **rules)
            log.close()
    assert kills > 20


def test_whenever_it_is_killed_later_damage_of_a_sealed_segment_is_found(compact: Compact) -> None:
    """Of a segment with indexes and without checksums nothing is verified when it is read."""
    survived = kills = indexed = 0
    while not survived:
        disk = MortalDisk()
        filled(disk, seed=1, index_interval_bytes=50)
        log = SegmentedLog(disk, FOLDER, segment_bytes=600, index_interval_bytes=50)
        disk.left = kills
        try:
            log.roll()
            compact(disk, log)
            survived = 1
        except Killed:
            kills += 1
        disk.left = None
        disk.kill()
        log = SegmentedLog(disk, FOLDER, segment_bytes=600, index_interval_bytes=50)
        sealed = [one.path for one in log.segments() if one.sealed]
        log.close()
        indexed += sum(disk.exists(f"{path}.index") for path in sealed)
        for path in sealed:
            sound = disk.read(f"{path}.log")
            damaged = bytearray(sound)
            damaged[HEADER_BYTES] ^= 1
            disk.write(f"{path}.log", bytes(damaged))
            with pytest.raises((CorruptFileError, DamagedBlockError), match="checksum of the"):
                read(SegmentedLog(disk, FOLDER, segment_bytes=600, index_interval_bytes=50))
            disk.write(f"{path}.log", sound)
    assert kills > 20
    assert indexed > 20


def test_no_damage_to_a_segment_that_waits_for_its_name_is_overlooked(compact: Compact) -> None:
    """Offsets and epochs of batches are in no checksum of a batch, and an offset may fit a gap."""
    damaged = kills = 0
    while not damaged:
        disk = MortalDisk()
        filled(disk, seed=5000)
        log = SegmentedLog(disk, FOLDER, segment_bytes=600)
        disk.left = kills
        kills += 1
        with contextlib.suppress(Killed):
            compact(disk, log, segment_bytes=5000, delete_retention_ms=0)
        disk.left = None
        disk.kill()
        for path in [f"{FOLDER}/{one}" for one in disk.list(FOLDER) if one.endswith(".log.swap")]:
            sound = disk.read(path)
            headers, position = batches.headers(sound), 0
            assert len(headers) > 2
            for header in headers:
                for at in (*range(position, position + 8), position + 15):
                    for bit in range(0, 8, 3):
                        rotten = bytearray(sound)
                        rotten[at] ^= 1 << bit
                        disk.write(path, bytes(rotten))
                        with pytest.raises(CorruptFileError, match=path):
                            SegmentedLog(disk, FOLDER, segment_bytes=600)
                        damaged += 1
                position += header.size
            disk.write(path, sound)
            SegmentedLog(disk, FOLDER, segment_bytes=600).close()
            assert not [one for one in disk.list(FOLDER) if ".swap" in one]


def test_a_full_disk_leaves_the_log_as_it_was(compact: Compact) -> None:
    disk = MemoryDisk()
    filled(disk, seed=1)
    log = SegmentedLog(disk, FOLDER, segment_bytes=600)
    before = read(log)
    disk.fail_after(100)
    with pytest.raises(OSError, match="No space left"):
        compact(disk, log)
    disk.fail_after(None)
    assert read(log) == before
    log.close()
    log = SegmentedLog(disk, FOLDER, segment_bytes=600)
    assert read(log) == before
    assert not [name for name in disk.list(FOLDER) if name.endswith(".cleaned")]
    log.close()


def test_the_disk_of_this_test_kills(compact: Compact) -> None:
    disk = MortalDisk()
    disk.left = 1
    file = disk.open("a")
    assert isinstance(file, MemoryFile)
    with pytest.raises(Killed):
        file.append(b"x")
