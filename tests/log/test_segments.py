"""One log on both disks: what is appended is read, over segments, restarts and indexes."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.core.types import WallMs
from headrace.log.api import CorruptLog, Disk, OffsetOutOfRange
from headrace.log.memory_disk import MemoryDisk
from headrace.log.os_disk import OsDisk
from headrace.log.producers import Duplicate
from headrace.log.segments import SegmentedLog
from headrace.wire import batches
from headrace.wire.batches import Record

Append = Callable[..., int]
FOLDER = "orders-0"
FIRST = f"{FOLDER}/{0:020d}"


def values(log: SegmentedLog, *, max_bytes: int = 1) -> list[bytes | None]:
    """All values by reads of `max_bytes`, each record at the offset where it must be."""
    found: list[bytes | None] = []
    offset = log.start_offset
    while offset < log.end_offset:
        piece = log.read(offset, max_bytes)
        assert sum(header.size for header in piece.headers) == len(piece.data)
        for record in batches.records(piece.data):
            assert record.offset == log.start_offset + len(found)
            found.append(record.value)
        offset = piece.headers[-1].last_offset + 1
    return found


def test_offsets_count_from_zero_and_data_comes_back_as_stored(disk: Disk, append: Append) -> None:
    log = SegmentedLog(disk, FOLDER)
    assert (log.start_offset, log.end_offset, log.size_bytes) == (0, 0, 0)
    assert append(log, b"a", b"b") == 0
    assert append(log, b"c") == 2
    assert (log.start_offset, log.end_offset) == (0, 3)
    whole = log.read(0, 1 << 20)
    assert whole.data == disk.read(f"{FIRST}.log")
    assert [(one.base_offset, one.leader_epoch) for one in whole.headers] == [(0, 0), (2, 0)]
    assert log.size_bytes == len(whole.data)
    log.close()


def test_several_batches_are_appended_in_one_write(disk: Disk) -> None:
    log = SegmentedLog(disk, FOLDER)
    data = bytearray(
        batches.build([Record(0, 1, None, b"a"), Record(0, 1, None, b"b")])
        + batches.build([Record(0, 1, None, b"c")])
    )
    assert log.append(memoryview(data), batches.headers(data)) == 0
    assert log.append(memoryview(data), batches.headers(data)) == 3
    assert values(log) == [b"a", b"b", b"c"] * 2
    log.close()


def test_a_read_returns_whole_batches_within_its_bounds(disk: Disk, append: Append) -> None:
    log = SegmentedLog(disk, FOLDER)
    for value in (b"a", b"b", b"c", b"d"):
        append(log, value, value)
    size = log.size_bytes // 4

    def bases(*asked: int, **bounds: int) -> list[int]:
        return [header.base_offset for header in log.read(*asked, **bounds).headers]

    assert bases(0, 1) == [0], "at least one batch, however large"
    assert bases(3, 2 * size) == [2, 4], "from the batch that holds the offset"
    assert bases(3, 2 * size - 1) == [2]
    assert bases(0, 1 << 20, end=4) == [0, 2]
    assert bases(0, 1 << 20, end=5) == [0, 2, 4]
    assert bases(4, 1 << 20, end=4) == []
    assert (log.read(8, 1 << 20).data, bases(8, 1 << 20)) == (b"", [])
    for offset in (-1, 9):
        with pytest.raises(OffsetOutOfRange):
            log.read(offset, 1)
    log.close()


def test_segments_roll_and_reads_go_on_behind_them(disk: Disk, append: Append) -> None:
    log = SegmentedLog(disk, FOLDER, segment_bytes=300)
    told = [b"%d" % n for n in range(20)]
    for value in told:
        append(log, value)
    names = [name for name in disk.list(FOLDER) if name.endswith(".log")]
    assert len(names) > 3
    assert all(len(disk.read(f"{FOLDER}/{name}")) <= 300 for name in names)
    for max_bytes in (1, 200, 1 << 20):
        assert values(log, max_bytes=max_bytes) == told
    log.close()
    log = SegmentedLog(disk, FOLDER, segment_bytes=300)
    assert values(log) == told
    assert append(log, b"more") == 20
    log.close()


def test_a_batch_larger_than_a_segment_gets_its_own(disk: Disk, append: Append) -> None:
    log = SegmentedLog(disk, FOLDER, segment_bytes=200)
    for value in (b"a", b"b" * 1000, b"c"):
        append(log, value)
    assert values(log) == [b"a", b"b" * 1000, b"c"]
    assert [name for name in disk.list(FOLDER) if name.endswith(".log")] == [
        f"{base:020d}.log" for base in (0, 1, 2)
    ]
    log.close()


def test_delete_removes_the_folder(disk: Disk, append: Append) -> None:
    log = SegmentedLog(disk, FOLDER)
    append(log, b"a")
    log.delete()
    assert disk.list("") == []


def test_times_are_found_to_the_record(disk: Disk, append: Append) -> None:
    log = SegmentedLog(disk, FOLDER, segment_bytes=600, index_interval_bytes=1)
    assert log.offset_for_time(WallMs(0)) is None
    assert log.offset_of_max_time() is None
    for n in range(12):
        append(log, b"x", b"y", b"z", at=1000 * n, compression=n % 5)
    append(log, b"late", at=500)
    for is_reopened in (False, True):
        if is_reopened:
            log = reopened(log, disk, segment_bytes=600, index_interval_bytes=1)
        for asked in range(-1, 11_004):
            if asked > 11_002:
                wanted = None
            else:
                batch, extra = divmod(max(asked, 0), 1000)
                batch, extra = (batch, extra) if extra <= 2 else (batch + 1, 0)
                wanted = (3 * batch + extra, 1000 * batch + extra)
            if asked % 7 == 0 or asked % 1000 < 4:
                assert log.offset_for_time(WallMs(asked)) == wanted, asked
        assert log.offset_of_max_time() == (35, 11_002)
    log.close()


def reopened(log: SegmentedLog, disk: Disk, **settings: Any) -> SegmentedLog:
    log.close()
    return SegmentedLog(disk, FOLDER, **settings)


@settings(
    max_examples=30,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    sizes=st.lists(st.integers(1, 900), min_size=1, max_size=40),
    segment_bytes=st.integers(1, 5000),
    interval=st.integers(1, 2000),
    data=st.data(),
)
def test_any_read_finds_its_offset(
    append: Append, sizes: list[int], segment_bytes: int, interval: int, data: st.DataObject
) -> None:
    disk = MemoryDisk()
    log = SegmentedLog(disk, FOLDER, segment_bytes=segment_bytes, index_interval_bytes=interval)
    for size in sizes:
        append(log, *[b"v"] * (size % 3 + 1), size=size)
    if data.draw(st.booleans()):
        log.close()
        log = SegmentedLog(disk, FOLDER, segment_bytes=segment_bytes)
    offset = data.draw(st.integers(0, log.end_offset - 1))
    piece = log.read(offset, data.draw(st.integers(0, 5000)))
    assert piece.headers[0].base_offset <= offset <= piece.headers[0].last_offset
    assert batches.headers(piece.data) == list(piece.headers)


def test_missing_damaged_and_foreign_indexes_are_made_anew(disk: Disk, append: Append) -> None:
    def opened() -> SegmentedLog:
        return SegmentedLog(disk, FOLDER, segment_bytes=1000, index_interval_bytes=1)

    log = opened()
    for n in range(30):
        append(log, b"%d" % n)
    log.close()
    index = disk.read(f"{FIRST}.index")
    assert index
    for path in [f"{FOLDER}/{name}" for name in disk.list(FOLDER) if not name.endswith(".log")]:
        disk.write(path, b"junk")
    log = opened()
    assert values(log) == [b"%d" % n for n in range(30)]
    log.close()


def test_the_tail_is_cut_wherever_it_is_torn(append: Append, caplog: Any) -> None:
    disk = MemoryDisk()
    log = SegmentedLog(disk, FOLDER)
    ends = []
    for n in range(4):
        append(log, b"value %d" % n, b"more")
        ends.append(log.size_bytes)
    log.close()
    stored, point = disk.read(f"{FIRST}.log"), disk.read(f"{FOLDER}/recovery-point")
    for size in range(len(stored) + 1):
        for tail in (b"", bytes(40), bytes(200), b"\xff" * 90):
            torn = stored[:size] + tail
            # A batch may end in zeros, so that those of the tail complete it.
            whole = sum(torn[:end] == stored[:end] for end in ends)
            disk.write(f"{FIRST}.log", torn)
            disk.write(f"{FOLDER}/recovery-point", point)
            caplog.clear()
            log = SegmentedLog(disk, FOLDER)
            good = ends[whole - 1] if whole else 0
            assert (log.end_offset, log.size_bytes) == (2 * whole, good)
            assert disk.read(f"{FIRST}.log") == stored[:good]
            cut = len(torn) - good
            assert [record.levelno for record in caplog.records] == [logging.WARNING] * (cut > 0)
            if cut:
                assert f"{FIRST}.log: cut off {cut} unsynced bytes at byte {good}," in caplog.text
                copy = caplog.text.split("copy kept in ")[1].strip()
                assert disk.read(copy) == torn[good:]
            assert append(log, b"next") == 2 * whole
            assert values(log)[-1] == b"next"
            log.close()


@pytest.mark.parametrize("position", [25, 60, 65])
def test_a_flipped_bit_in_the_last_segment_is_cut(append: Append, position: int) -> None:
    disk = MemoryDisk()
    log = SegmentedLog(disk, FOLDER)
    append(log, b"kept")
    good = log.size_bytes
    append(log, b"hurt")
    log.close()
    data = bytearray(disk.read(f"{FIRST}.log"))
    data[good + position] ^= 1
    disk.write(f"{FIRST}.log", bytes(data))
    assert SegmentedLog(disk, FOLDER).end_offset == 1


@pytest.mark.parametrize("damage", ["cut", "magic"])  # of the batch that opening looks at
def test_damage_before_the_last_segment_is_refused(append: Append, damage: str) -> None:
    disk = MemoryDisk()
    log = SegmentedLog(disk, FOLDER, segment_bytes=150)
    for n in range(5):
        append(log, b"%d" % n)
    log.close()
    data = bytearray(disk.read(f"{FIRST}.log"))
    if damage == "cut":
        del data[-1]
    else:
        data[-1] ^= 1
        data[log.segments()[0].size // 2 + 16] = 1
    disk.write(f"{FIRST}.log", bytes(data))
    with pytest.raises(CorruptLog, match=f"{FIRST}.log"):
        SegmentedLog(disk, FOLDER, segment_bytes=150)
    assert disk.read(f"{FIRST}.log") == data, "nothing was cut"


def test_a_failed_write_leaves_nothing_for_the_next_one_to_follow(append: Append) -> None:
    whole = len(batches.build([Record(0, 1, None, b"lost")]))
    for written in range(whole):
        disk = MemoryDisk()
        log = SegmentedLog(disk, FOLDER)
        append(log, b"a")
        disk.fail_after(written)
        disk.failing.add("truncate")  # else the part of the batch goes at once
        with pytest.raises(OSError, match="No space"):
            append(log, b"lost")
        assert (log.end_offset, values(log)) == (1, [b"a"])
        disk.fail_after(None)
        if written:
            with pytest.raises(OSError, match="Input/output"):
                append(log, b"too early")
            assert values(log) == [b"a"]
        disk.failing.clear()
        assert append(log, b"b") == 1
        log.close()
        assert values(SegmentedLog(disk, FOLDER)) == [b"a", b"b"]


@given(st.floats(0, 1), st.integers(0, 6), st.integers(0, 6))
def test_what_was_synced_survives_a_power_cut(keep: float, synced: int, more: int) -> None:
    disk = MemoryDisk()
    log = SegmentedLog(disk, FOLDER)
    for n in range(synced + more):
        if n == synced:
            log.sync()
        data = bytearray(batches.build([Record(0, n, None, b"%d" % n)]))
        log.append(data, batches.headers(data))
    if not more:
        log.sync()
    disk.crash(keep)
    if log.end_offset:
        with pytest.raises(OSError, match="Bad file"):
            log.read(0, 1)
    found = values(SegmentedLog(disk, FOLDER))
    assert len(found) >= synced
    assert found == [b"%d" % n for n in range(len(found))]


def test_producers_are_known_again_after_a_restart(disk: Disk, append: Append) -> None:
    log = SegmentedLog(disk, FOLDER, segment_bytes=200)
    built = {"producer_id": 7, "producer_epoch": 0}
    for n in range(4):
        append(log, b"v", base_sequence=n, **built)
    again = batches.read_header(batches.build([Record(0, 1, None, b"v")], base_sequence=1, **built))
    for is_reopened in (False, True):
        if is_reopened:
            log = reopened(log, disk, segment_bytes=200)
        assert log.producers.check(again) == Duplicate(1)
        assert log.producers.check(again._replace(base_sequence=4)) is None
    log.close()


@pytest.mark.parametrize("end", ["roll", "append", "settle", "close", "crash"])
def test_a_segment_is_sealed_in_two_steps(disk: Disk, append: Append, end: str) -> None:
    log = SegmentedLog(disk, FOLDER)
    append(log, b"a")
    log.begin_seal()
    if end != "append":
        log.prepare_next()
        assert log.durable_end == 1
    if end == "roll":
        log.roll()
    elif end == "append":
        append(log, b"b")
        log.prepare_next()  # too late: nothing is left to do
    elif end == "settle":
        log.settle()
    if end != "crash":
        log.close()
    again = SegmentedLog(disk, FOLDER, clean=end == "settle")
    assert [one.base_offset for one in again.segments()] == [0, 1]
    append(again, b"c")
    assert values(again) == ([b"a", b"b", b"c"] if end == "append" else [b"a", b"c"])
    again.close()
    log.close()


def test_a_segment_that_was_prepared_is_let_go_before_the_log_is_removed(
    tmp_path: Path, append: Append
) -> None:
    log = SegmentedLog(OsDisk(tmp_path), FOLDER)
    append(log, b"a")
    log.begin_seal()
    log.prepare_next()
    assert "00000000000000000001.log" in opened_files(tmp_path)
    log.retire()  # a thread that has just prepared it cannot, while this holds the lock
    assert "00000000000000000001.log" not in opened_files(tmp_path)
    log.close()
    assert not opened_files(tmp_path)


def opened_files(folder: Path) -> set[str]:
    """Return the names of the files below a folder that this process has opened."""
    links = [one.resolve() for one in Path("/proc/self/fd").iterdir()]
    return {one.name for one in links if one.is_relative_to(folder)}


def test_a_sealing_that_a_failed_sync_ends_leaves_no_producer_of_what_was_cut_off(
    append: Append,
) -> None:
    disk = MemoryDisk()
    log = SegmentedLog(disk, FOLDER)
    built = {"producer_id": 7, "producer_epoch": 0}
    append(log, b"kept", base_sequence=0, **built)
    log.sync()
    append(log, b"cut", base_sequence=1, **built)
    log.begin_seal()
    disk.failing.add("sync")
    with pytest.raises(OSError, match="Input/output"):
        log.prepare_next()
    disk.failing.clear()
    log.heal(keep=False)
    log.prepare_next()
    assert [one.base_offset for one in log.segments()] == [0]
    append(log, b"other")
    log.begin_seal()
    log.prepare_next()
    append(log, b"last")
    log.close()
    again = SegmentedLog(disk, FOLDER)
    assert values(again) == [b"kept", b"other", b"last"]
    cut = batches.read_header(batches.build([Record(0, 1, None, b"v")], base_sequence=1, **built))
    assert again.producers.check(cut) is None, "the repeated batch is no duplicate"
