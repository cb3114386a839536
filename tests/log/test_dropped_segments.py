"""Segments at the start of a log are dropped without a sync: no power cut brings them back."""

from collections.abc import Callable, Iterator
from itertools import chain, combinations
from typing import Any

import pytest

from headrace.log.api import CorruptFileError
from headrace.log.memory_disk import MemoryDisk
from headrace.log.recovery_point import Claim, read_claim
from headrace.log.segments import SegmentedLog
from headrace.wire import batches
from headrace.wire.batches import Record

FOLDER = "orders-0"
SEGMENTS = 6
DROPPED = 4
RECORD_BYTES = 60


class LosesRenames(MemoryDisk):
    """Renames that were not made durable can be taken back, each for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.durable = 0  # durable operations on names
        self.lost: list[tuple[str, str]] = []

    def rename(self, old: str, new: str, *, durable: bool = True) -> None:
        super().rename(old, new, durable=durable)
        self.durable += durable
        self.lost.append((old, new))

    def remove(self, path: str) -> None:
        self.durable += self.exists(path)
        super().remove(path)

    def overwrite(self, path: str, data: bytes, position: int, *, durable: bool = False) -> None:
        self.durable += durable
        super().overwrite(path, data, position, durable=durable)

    def take_back(self, renames: tuple[tuple[str, str], ...]) -> None:
        self.crash(0.0)
        for old, new in renames:
            super().rename(new, old)


def append(log: SegmentedLog, value: int) -> None:
    data = bytearray(batches.build([Record(0, value, None, b"%d" % value * RECORD_BYTES)]))
    log.append(data, batches.headers(data))


def opened(disk: MemoryDisk, **settings: Any) -> SegmentedLog:
    return SegmentedLog(disk, FOLDER, segment_bytes=2 * RECORD_BYTES, **settings)


def filled(disk: MemoryDisk) -> SegmentedLog:
    log = opened(disk, index_interval_bytes=1, dropped=lambda paths: None)
    for value in range(SEGMENTS):
        append(log, value)
    assert len(log.segments()) == SEGMENTS
    return log


def values(log: SegmentedLog) -> list[int]:
    found, offset = [], log.start_offset
    while offset < log.end_offset:
        piece = log.read(offset, 1)
        (record,) = batches.records(piece.data)
        found.append(int((record.value or b"")[:1]))
        offset += 1
    return found


def subsets(items: list[tuple[str, str]]) -> Iterator[tuple[tuple[str, str], ...]]:
    return chain.from_iterable(combinations(items, count) for count in range(len(items) + 1))


def leftovers(disk: MemoryDisk) -> list[str]:
    return [name for name in disk.list(FOLDER) if name[:20].isdecimal() and int(name[:20]) < DROPPED
            and not name.endswith(".snapshot")]  # fmt: skip


def test_to_drop_segments_makes_nothing_durable_but_the_permission() -> None:
    disk = LosesRenames()
    log = filled(disk)
    before = disk.durable
    log.allow_drop(DROPPED)
    assert (disk.durable, log.start_offset) == (before + 1, 0)
    assert log.drop_segments(DROPPED) == DROPPED
    assert (disk.durable, log.start_offset) == (before + 1, DROPPED)


def test_segments_go_in_portions_and_not_before_they_are_allowed_to() -> None:
    disk = LosesRenames()
    log = filled(disk)
    assert log.drop_segments(DROPPED) == 0
    log.allow_drop(2)
    assert log.drop_segments(DROPPED) == 2
    log.allow_drop(DROPPED)
    assert [log.drop_segments(DROPPED, most=1) for _ in range(3)] == [1, 1, 0]
    assert values(log) == [4, 5]


@pytest.mark.parametrize("claim", ["known", "unknown", "format 0"])
def test_any_renames_that_a_power_cut_takes_back_bring_no_segment_back(claim: str) -> None:
    """Holes among them included; of a segment's files each is lost for itself."""
    first = LosesRenames()
    log = filled(first)
    log.allow_drop(DROPPED)
    log.drop_segments(DROPPED)
    logs = [pair for pair in first.lost if pair[0].endswith(".log")]
    assert len(logs) == DROPPED
    for lost in subsets(logs):
        disk = LosesRenames()
        log = filled(disk)
        log.sync()
        if claim != "known":
            log.close()
            disk.remove(f"{FOLDER}/recovery-point")
            if claim == "format 0":
                disk.write(f"{FOLDER}/recovery-point", b"%d 1\n" % (SEGMENTS - 1))
            log = opened(disk, dropped=lambda paths: None)
        log.allow_drop(DROPPED)
        log.drop_segments(DROPPED)
        others = [pair for pair in disk.lost if pair not in logs]
        disk.take_back((*lost, *others[:: 1 + len(lost)]))
        again = opened(disk)
        assert values(again) == [4, 5], lost
        assert leftovers(disk) == []
        append(again, 6)
        again.close()
        assert values(opened(disk)) == [4, 5, 6]


def test_what_is_appended_between_permission_and_drop_takes_nothing_back() -> None:
    disk = LosesRenames()
    log = filled(disk)
    log.allow_drop(DROPPED)
    append(log, 6)  # the claim of a new segment is written
    append(log, 7)
    log.drop_segments(DROPPED)
    log.settle()
    logs = [pair for pair in disk.lost if pair[0].endswith(".log")]
    disk.take_back((logs[0], logs[2]))
    assert values(opened(disk)) == [4, 5, 6, 7]


def test_a_permission_that_was_not_used_before_a_crash_is_used_at_the_next_start() -> None:
    disk = LosesRenames()
    log = filled(disk)
    log.sync()
    log.allow_drop(DROPPED)
    disk.crash(0.0)
    assert values(opened(disk)) == [4, 5]
    assert leftovers(disk) == []


def test_everything_is_dropped_but_an_empty_segment() -> None:
    disk = LosesRenames()
    log = filled(disk)
    log.begin_seal()
    log.prepare_next()
    assert log.begin_next()
    log.allow_drop(SEGMENTS)
    assert log.drop_segments(SEGMENTS) == SEGMENTS
    disk.take_back(tuple(disk.lost[::2]))
    again = opened(disk)
    assert (again.start_offset, again.end_offset) == (SEGMENTS, SEGMENTS)


def test_a_missing_last_segment_is_refused_and_nothing_is_removed() -> None:
    disk = LosesRenames()
    log = filled(disk)
    log.allow_drop(SEGMENTS)
    log.close()
    disk.remove(f"{FOLDER}/{SEGMENTS - 1:020d}.log")
    before = disk.list(FOLDER)
    with pytest.raises(CorruptFileError, match="the last segment of the log is missing"):
        opened(disk)
    assert disk.list(FOLDER) == before


def test_a_permission_is_not_written_where_a_log_was_closed() -> None:
    disk = LosesRenames()
    log = filled(disk)
    before = disk.read(f"{FOLDER}/recovery-point")
    log.close()
    with pytest.raises(OSError, match="closed"):
        log.allow_drop(DROPPED)
    assert disk.read(f"{FOLDER}/recovery-point") == before


def test_a_copy_that_would_bring_dropped_records_back_is_not_used() -> None:
    disk = LosesRenames()
    log = filled(disk)
    log.sync()
    cleaned = f"{FOLDER}/{0:020d}.log.cleaned"
    disk.write(cleaned, b"".join(disk.read(f"{FOLDER}/{n:020d}.log") for n in range(3)))
    staged: Callable[[], None] = lambda: disk.rename(cleaned, f"{FOLDER}/{0:020d}.log.swap")  # noqa: E731
    log.allow_drop(1)
    with pytest.raises(OSError, match="dropped"):
        log.replace([0, 1, 2], cleaned)
    staged()  # by a process that could not remove it again
    disk.crash(0.0)
    assert values(opened(disk)) == [1, 2, 3, 4, 5]


def test_the_first_base_of_a_claim_never_goes_down() -> None:
    disk = LosesRenames()
    log = filled(disk)
    log.allow_drop(DROPPED)
    append(log, 6)
    claim = read_claim(disk, FOLDER)[1]
    assert claim.first_base == DROPPED
    assert isinstance(claim, Claim)
