"""Faults of the log that cost records: failing writes of the index, power cuts over segments."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headrace.core.types import WallMs
from headrace.log.api import CorruptLog
from headrace.log.memory_disk import MemoryDisk, MemoryFile
from headrace.log.producers import Duplicate, ProducerLimit
from headrace.log.segments import SegmentedLog
from headrace.wire import batches
from headrace.wire.batches import Record

FOLDER = "orders-0"
WAIT_S = 30
POINTS = 64  # so small a segment has a recovery point behind every sync


def append(log: SegmentedLog, value: bytes) -> int:
    data = bytearray(batches.build([Record(0, 1000, None, value)]))
    return log.append(data, batches.headers(data))


def values(log: SegmentedLog) -> list[bytes | None]:
    found: list[bytes | None] = []
    offset = 0
    while offset < log.end_offset:
        piece = log.read(offset, 1)
        found += [one.value for one in batches.records(piece.data)]
        offset = piece.headers[-1].last_offset + 1
    return found


def test_no_space_for_the_index_loses_no_later_record() -> None:
    size = len(batches.build([Record(0, 1000, None, b"0")]))
    for spare in range(20):
        disk = MemoryDisk()
        log = SegmentedLog(disk, FOLDER, index_interval_bytes=1)
        written = [b"0"]
        append(log, b"0")
        disk.fail_after(size + spare)
        try:
            append(log, b"1")
            written.append(b"1")
        except OSError:
            pass
        disk.fail_after(None)
        append(log, b"2")
        written.append(b"2")
        assert values(log) == written, spare
        log.close()
        assert values(SegmentedLog(disk, FOLDER, index_interval_bytes=1)) == written, spare


def test_a_segment_that_could_not_begin_is_not_in_the_way_of_the_next_start() -> None:
    disk = MemoryDisk()
    log = SegmentedLog(disk, FOLDER, segment_bytes=150)
    append(log, b"0")
    log.sync()
    disk.failing.add("sync")
    with pytest.raises(OSError, match="Input/output"):
        append(log, b"1" * 100)
    disk.failing.clear()
    append(log, b"2")  # it fits the segment that could not be sealed
    assert values(SegmentedLog(disk, FOLDER, segment_bytes=150)) == [b"0", b"2"]


class RenamesAndFails(MemoryDisk):
    """The folder of what was renamed cannot be synced."""

    def rename(self, old: str, new: str, *, durable: bool = True) -> None:
        super().rename(old, new, durable=durable)
        if new.endswith(".swap"):
            raise OSError(5, "Input/output error")


def test_a_copy_that_could_not_take_its_place_does_not_bring_deleted_records_back() -> None:
    disk = RenamesAndFails()
    log = SegmentedLog(disk, FOLDER, segment_bytes=150)
    for n in range(3):
        append(log, b"%d" % n)
    disk.write(f"{FOLDER}/0.log.cleaned", disk.read(f"{FOLDER}/{0:020d}.log"))
    with pytest.raises(OSError, match="Input/output"):
        log.replace([0], f"{FOLDER}/0.log.cleaned")
    log.allow_drop(2)
    assert log.drop_segments(2) == 1
    start = log.start_offset
    assert SegmentedLog(disk, FOLDER, segment_bytes=150).start_offset == start > 0


def test_a_power_cut_after_a_roll_drops_nothing_silently() -> None:
    disk = MemoryDisk()
    log = SegmentedLog(disk, FOLDER, segment_bytes=150)
    for n in range(5):
        append(log, b"%d" % n)
    disk.crash(0.0)
    again = SegmentedLog(disk, FOLDER, segment_bytes=150)
    assert values(again) == [b"%d" % n for n in range(again.end_offset)]


def test_a_missing_segment_is_refused() -> None:
    disk = MemoryDisk()
    log = SegmentedLog(disk, FOLDER, segment_bytes=150)
    for n in range(5):
        append(log, b"%d" % n)
    log.close()
    logs = [name for name in disk.list(FOLDER) if name.endswith(".log")]
    disk.remove(f"{FOLDER}/{logs[1]}")
    with pytest.raises(CorruptLog):
        SegmentedLog(disk, FOLDER, segment_bytes=150)


@pytest.mark.parametrize("keep", [False, True])
def test_a_failed_sync_is_mended_and_never_promises_what_was_dropped(keep: bool) -> None:
    disk = MemoryDisk()
    log = SegmentedLog(disk, FOLDER)
    append(log, b"0")
    log.sync()
    append(log, b"1")
    disk.failing.add("sync")
    with pytest.raises(OSError, match="Input/output"):
        log.sync()
    for action in (log.sync, lambda: append(log, b"2")):
        with pytest.raises(OSError, match="not repaired yet"):
            action()
    with pytest.raises(OSError, match="Input/output"):
        log.mend(keep=keep)
    disk.failing.clear()
    with pytest.raises(OSError, match="not repaired yet"):
        log.sync()
    log.heal(keep=keep)
    left = [b"0", b"1"] if keep else [b"0"]
    assert (values(log), log.durable_end) == (left, len(left))
    append(log, b"3")
    log.sync()
    disk.crash(0.0)
    assert values(SegmentedLog(disk, FOLDER)) == [*left, b"3"]


def test_what_was_cut_off_is_forgotten_by_producers_and_indexes() -> None:
    disk, limit = MemoryDisk(), ProducerLimit()
    log = SegmentedLog(disk, FOLDER, index_interval_bytes=1, producer_limit=limit)
    built = {"producer_id": 7, "producer_epoch": 0}
    other = batches.build(
        [Record(0, 6, None, b"v")], producer_id=8, producer_epoch=0, base_sequence=0
    )
    sent = [bytearray(batches.build([Record(0, n, None, b"v")], base_sequence=n, **built))
            for n in range(6)]  # fmt: skip
    for data in sent[:3]:
        log.append(data, batches.headers(data))
    log.sync()
    for data in (*sent[3:], bytearray(other)):
        log.append(data, batches.headers(data))
    assert limit.count == 2
    disk.failing.add("sync")
    with pytest.raises(OSError, match="Input/output"):
        log.sync()
    disk.failing.clear()
    log.heal(keep=False)
    assert (log.end_offset, limit.count) == (3, 1)
    assert log.offset_for_time(WallMs(3)) is None
    headers = [batches.read_header(data) for data in sent]
    assert log.producers.check(headers[2]) == Duplicate(2)
    assert log.producers.check(headers[3]) is None
    for data in sent[3:]:
        log.append(data, batches.headers(data))
    assert log.offset_for_time(WallMs(5)) == (5, 5)
    assert values(log) == [b"v"] * 6
    log.close()
    assert limit.count == 0


@pytest.mark.parametrize("synced", [0, 2])
def test_to_go_on_after_a_repair_only_reads(synced: int) -> None:
    """It happens on the event loop."""
    disk = MemoryDisk()
    log = SegmentedLog(disk, FOLDER)
    for n in range(4):
        if n == synced:
            log.sync()
        append(log, b"%d" % n)
    derived = [f"{FOLDER}/{4:020d}.snapshot", f"{FOLDER}/{0:020d}.checksums"]
    for path in derived:
        disk.write(path, b"of what is cut off")
    disk.failing.add("sync")
    with pytest.raises(OSError, match="Input/output"):
        log.sync()
    disk.failing.clear()
    log.mend(keep=False)
    disk.failing = {"sync", "open", "remove", "rename", "write", "append", "truncate"}
    log.resume()
    disk.failing.clear()
    assert (log.end_offset, [disk.exists(path) for path in derived]) == (synced, [False, False])
    append(log, b"other")
    assert values(SegmentedLog(disk, FOLDER)) == [*[b"0", b"1"][:synced], b"other"]


@pytest.mark.parametrize("segment_bytes", [64, 1 << 20])
def test_what_a_failed_sync_left_out_is_synced_by_the_next_process(segment_bytes: int) -> None:
    """It takes from the system's memory what no later sync of that would bring to the disk.

    Nobody tells it: the process ended at once, and could not have written anything.
    """
    disk = MemoryDisk()
    log = SegmentedLog(disk, FOLDER, segment_bytes=segment_bytes)
    append(log, b"0")
    log.sync()
    append(log, b"1")
    disk.failing |= {"sync", "write", "append", "open"}
    with pytest.raises(OSError, match="Input/output"):
        log.sync()
    disk.failing.clear()
    disk.kill()
    log = SegmentedLog(disk, FOLDER)
    append(log, b"2")
    log.sync()
    disk.crash(0.0)
    assert values(SegmentedLog(disk, FOLDER)) == [b"0", b"1", b"2"]


class Rewrites(MemoryDisk):
    """Tells from where on files were written once more."""

    def __init__(self) -> None:
        super().__init__()
        self.positions: list[int] = []

    def open(self, path: str) -> Any:
        file: Any = super().open(path)
        rewrite = file.rewrite

        def told(position: int) -> None:
            self.positions.append(position)
            rewrite(position)

        file.rewrite = told
        return file


def test_what_was_synced_is_not_written_once_more_after_a_crash() -> None:
    disk = Rewrites()
    log = SegmentedLog(disk, FOLDER, segment_bytes=64 * 1000)  # a recovery point each 1,000 bytes
    sizes = [0]
    for _ in range(9):
        append(log, b"v" * 400)
        log.sync()
        sizes.append(log.size_bytes)
    append(log, b"v" * 5000)
    disk.kill()
    log = SegmentedLog(disk, FOLDER)
    (position,) = disk.positions
    assert position in sizes
    assert sizes[-1] - 1000 < position <= sizes[-1]
    log.settle()
    SegmentedLog(disk, FOLDER, clean=True)
    assert disk.positions == [position], "nor what was closed in order"


@pytest.mark.parametrize("cut", ["a power cut", "a failed sync"])
def test_what_comes_in_the_place_of_what_was_cut_off_counts_as_new(cut: str) -> None:
    disk = MemoryDisk()
    log = SegmentedLog(disk, FOLDER, segment_bytes=1 << 20)
    append(log, b"0")
    log.sync()
    path = f"{FOLDER}/{0:020d}.log"
    if cut == "a power cut":
        append(log, b"1")
        disk.write(path, disk.read(path)[:-1])
        log = SegmentedLog(disk, FOLDER)
        assert log.end_offset == 1
    else:
        log = SegmentedLog(disk, FOLDER)
        append(log, b"1")
        disk.failing.add("sync")
        with pytest.raises(OSError, match="Input/output"):
            log.sync()
        disk.failing.clear()
        log.heal(keep=False)
    end = log.end_offset
    append(log, b"2")
    disk.failing.add("sync")
    with pytest.raises(OSError, match="Input/output"):
        log.sync()
    disk.failing.clear()
    disk.kill()
    SegmentedLog(disk, FOLDER).sync()
    disk.crash(0.0)
    assert SegmentedLog(disk, FOLDER).end_offset == end + 1


class Slow(MemoryDisk):
    """Its syncs are done, and say so only once they may."""

    def __init__(self) -> None:
        super().__init__()
        self.syncing, self.may_end = threading.Event(), threading.Event()
        self.open_files: set[MemoryFile] = set()

    def open(self, path: str) -> MemoryFile:
        file = super().open(path)
        sync, close = file.sync, file.close
        self.open_files.add(file)

        def closed() -> None:
            self.open_files.discard(file)
            close()

        def slowly() -> None:
            sync()
            self.syncing.set()
            assert self.may_end.wait(WAIT_S)

        file.sync = slowly  # type: ignore[method-assign]  # a slow disk
        file.close = closed  # type: ignore[method-assign]  # of this file
        return file


def test_a_close_does_not_wait_for_the_next_segment_and_leaves_no_file_open() -> None:
    disk = Slow()
    log = SegmentedLog(disk, FOLDER)
    append(log, b"v")
    log.begin_seal()
    thread = threading.Thread(target=log.prepare_next)
    thread.start()
    assert disk.syncing.wait(WAIT_S)
    log.close()
    disk.may_end.set()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert disk.open_files == set()


def test_nothing_is_written_where_a_log_was_once_it_is_removed() -> None:
    """Another log may stand there by then."""
    disk = Slow()
    log = SegmentedLog(disk, FOLDER, segment_bytes=POINTS)
    append(log, b"0")
    with ThreadPoolExecutor() as threads:
        syncing = threads.submit(log.sync)
        assert disk.syncing.wait(WAIT_S)
        retiring = threads.submit(log.retire)
        with pytest.raises(TimeoutError):
            retiring.result(0.05)
        disk.may_end.set()
        syncing.result(WAIT_S)
        retiring.result(WAIT_S)
    log.delete()
    other = SegmentedLog(disk, FOLDER, segment_bytes=POINTS)
    append(other, b"1")
    before = {name: disk.read(f"{FOLDER}/{name}") for name in disk.list(FOLDER)}
    with pytest.raises(OSError, match="not repaired yet"):
        log.sync()
    log.mend(keep=False)
    log.mend(keep=True)
    assert {name: disk.read(f"{FOLDER}/{name}") for name in disk.list(FOLDER)} == before


def test_a_first_batch_that_is_damaged_is_an_error_for_who_appends() -> None:
    """Who asks for nothing but that a record is kept knows no damaged batches."""
    disk = MemoryDisk()
    before = SegmentedLog(disk, FOLDER, index_interval_bytes=1)
    append(before, b"0")
    append(before, b"1")
    before.settle()
    log = SegmentedLog(disk, FOLDER, index_interval_bytes=1, clean=True)
    disk.write(f"{FOLDER}/{0:020d}.log", b"?" * disk.size(f"{FOLDER}/{0:020d}.log"))
    with pytest.raises(OSError, match="headrace repair"):
        append(log, b"1")


def test_a_write_that_the_disk_cut_short_leaves_nothing_in_the_file() -> None:
    disk = MemoryDisk()
    log = SegmentedLog(disk, "t-0")
    append(log, b"0")
    size = disk.size(f"t-0/{0:020d}.log")
    disk.fail_after(10)
    with pytest.raises(OSError, match="No space"):
        append(log, b"1")
    assert disk.size(f"t-0/{0:020d}.log") == size
