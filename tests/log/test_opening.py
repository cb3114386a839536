"""What opening a log reads, trusts, removes and refuses."""

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import count as count_from
from pathlib import Path
from typing import Any

import pytest

from headrace.core.types import WallMs
from headrace.log import checksums, segment, snapshots
from headrace.log.api import CorruptLog, Disk
from headrace.log.memory_disk import MemoryDisk, MemoryFile
from headrace.log.os_disk import OsDisk, OsFile
from headrace.log.producers import Duplicate
from headrace.log.recovery_point import RecoveryPoint, begin_point, read_claim
from headrace.log.segments import SegmentedLog
from headrace.sim.disk import FaultyDisk
from headrace.wire import batches
from headrace.wire.batches import Record

from .names_disk import NamesDisk

FOLDER = "orders-0"
POINT = f"{FOLDER}/recovery-point"
BATCH_BYTES = 868


def opened(
    disk: Disk, *, clean: bool = True, start_offset: int = 0, end_offset: int | None = None
) -> SegmentedLog:
    return SegmentedLog(
        disk, FOLDER, segment_bytes=20_000, index_interval_bytes=3000, clean=clean,
        start_offset=start_offset, end_offset=end_offset,
    )  # fmt: skip


def sent(n: int, at: int | None = None) -> bytearray:
    record = Record(0, 1000 + n if at is None else at, None, b"v" * 800)
    return bytearray(batches.build([record], producer_id=7, producer_epoch=0, base_sequence=n))


def fill(log: SegmentedLog, start: int, end: int) -> None:
    for n in range(start, end):
        log.append(sent(n), batches.headers(sent(n)))


def count(log: SegmentedLog) -> int:
    offset = log.start_offset
    while offset < log.end_offset:
        piece = log.read(offset, 1 << 20)
        assert piece.headers[0].base_offset == offset
        offset = piece.headers[-1].last_offset + 1
    return offset - log.start_offset


@pytest.fixture
def disk() -> MemoryDisk:
    """Ten sealed segments and an active one, closed in order."""
    disk = MemoryDisk()
    log = opened(disk, clean=False)
    fill(log, 0, 250)
    assert len(log.segments()) == 12
    log.settle()
    log.close()
    return disk


@pytest.fixture
def preads(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many reads of open files there were since the last call."""
    counted = 0
    real = MemoryFile.pread

    def pread(file: MemoryFile, count: int, position: int) -> bytes:
        nonlocal counted
        counted += 1
        return real(file, count, position)

    def since() -> int:
        nonlocal counted
        told, counted = counted, 0
        return told

    monkeypatch.setattr(MemoryFile, "pread", pread)
    return since


def test_only_ends_are_looked_at_after_an_orderly_stop(
    disk: MemoryDisk, preads: Callable[[], int]
) -> None:
    log = opened(disk)
    # Per segment the batch of the last entry, twice, and at most four behind it.
    assert preads() <= 12 * 7
    assert log.producers.check(batches.read_header(sent(249))) == Duplicate(249)
    assert log.producers.check(batches.read_header(sent(245))) == Duplicate(245)
    assert log.segments()[0].max_timestamp == 1000 + log.segments()[0].end_offset - 1
    assert count(log) == 250


def test_only_ends_are_looked_at_in_segments_of_an_earlier_release(
    disk: MemoryDisk, preads: Callable[[], int]
) -> None:
    """Its sealed segments have indexes and no checksums."""
    *sealed, _ = [one.path for one in opened(disk).segments()]
    for path in sealed:
        disk.remove(f"{path}.checksums")
    preads()
    log = opened(disk)
    assert preads() <= 12 * 7
    assert log.segments()[0].max_timestamp == 1000 + log.segments()[0].end_offset - 1
    assert count(log) == 250


@pytest.mark.parametrize("latest", [13, 21, 40], ids=["early", "last", "none"])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_no_power_cut_makes_an_index_without_checksums_lie(suffix: str, latest: int) -> None:
    """Indexes are not synced, and a file that is lost or damaged may be the `.checksums`."""
    disk, path = MemoryDisk(), f"{FOLDER}/{0:020d}"
    log = opened(disk, clean=False)
    for n in range(30):
        batch = sent(n, at=2000 if n == latest else 1000 + 10 * n - n % 3 * 25)
        log.append(batch, batches.headers(batch))
    expected = times_of(log)
    log.settle()
    log.close()
    disk.remove(f"{path}.checksums")
    good = disk.read(path + suffix)
    assert len(good) >= 4 * 8
    ends = range(0, len(good) + 1, 4)
    cut = [good[:end] for end in ends]
    holed = [good[:a] + bytes(b - a) + good[b:] for a in ends for b in ends if a < b]
    for left in (*cut, *holed):
        cut_off = copied(disk)
        cut_off.write(path + suffix, left)
        for _ in range(2):
            again = opened(cut_off)
            assert times_of(again) == expected, left.hex(" ", 4)
            again.close()


def times_of(log: SegmentedLog) -> list[object]:
    """Answers to questions for times, before and after the indexes are loaded."""
    asked = [WallMs(each) for each in range(900, 2010, 5)]
    highest = [one.max_timestamp for one in log.segments()]
    answers = [log.offset_for_time(each) for each in asked]
    assert count(log) == 30
    assert highest == [one.max_timestamp for one in log.segments()]
    return [*highest, *answers, log.offset_of_max_time()]


@pytest.mark.parametrize("left", [0, 12], ids=["empty", "cut"])
def test_a_shortened_time_index_without_checksums_is_rebuilt_with_a_line(
    left: int, disk: MemoryDisk, caplog: pytest.LogCaptureFixture
) -> None:
    path = f"{FOLDER}/{0:020d}"
    good, sums = disk.read(f"{path}.timeindex"), disk.read(f"{path}.checksums")
    disk.remove(f"{path}.checksums")
    disk.write(f"{path}.timeindex", good[:left])
    opened(disk).close()
    assert [one.getMessage() for one in caplog.records] == [
        f"{path}.timeindex: does not agree with the log (the highest timestamp is 1021 at offset "
        "21); rebuilt"
    ]
    assert (disk.read(f"{path}.timeindex"), disk.read(f"{path}.checksums")) == (good, sums)


def test_a_hole_in_a_time_index_without_checksums_is_found_by_a_search(
    disk: MemoryDisk, caplog: pytest.LogCaptureFixture
) -> None:
    path = f"{FOLDER}/{0:020d}"
    good = disk.read(f"{path}.timeindex")
    disk.remove(f"{path}.checksums")
    disk.write(f"{path}.timeindex", bytes(8) + good[8:])
    log = opened(disk)
    assert log.offset_for_time(WallMs(1002)) == (2, 1002)
    log.close()
    assert [one.getMessage() for one in caplog.records] == [
        f"{path}.timeindex: does not agree with the log (timestamp 0 is not that of offset 4); "
        "rebuilt"
    ]
    assert disk.read(f"{path}.timeindex") == good


def test_a_search_by_time_does_not_index_a_damaged_log_again_and_again(
    disk: MemoryDisk, caplog: pytest.LogCaptureFixture, preads: Callable[[], int]
) -> None:
    """It walks to the record, or to the damage and names that, or uses an entry behind it."""
    path = f"{FOLDER}/{0:020d}"
    disk.remove(f"{path}.checksums")
    disk.write(f"{path}.timeindex", bytes(8) + disk.read(f"{path}.timeindex")[8:])
    log = opened(disk)
    disk._files[f"{path}.log"].data[15 * (len(sent(0))) + 16] ^= 1  # the magic of offset 15
    assert log.offset_for_time(WallMs(1002)) == (2, 1002)
    preads()
    assert log.offset_for_time(WallMs(1002)) == (2, 1002)
    assert preads() < 10
    with pytest.raises(OSError, match="magic 3"):
        log.offset_for_time(WallMs(1016))
    assert log.offset_for_time(WallMs(1018)) == (18, 1018)
    log.close()
    assert not [one for one in caplog.records if "rebuilt" in one.getMessage()]


def test_a_segment_with_its_latest_record_far_from_the_end_is_verified_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, disk: MemoryDisk
) -> None:
    """Of an earlier release: its headers would be read at each start, from that record on."""
    monkeypatch.setattr(segment, "_CHUNK_BYTES", 4096)
    caplog.set_level("INFO", "headrace.log")
    disk, path = MemoryDisk(), f"{FOLDER}/{0:020d}"
    log = opened(disk, clean=False)
    for n in range(30):
        batch = sent(n, at=2000 if n == 3 else 1000 + n)
        log.append(batch, batches.headers(batch))
    log.settle()
    log.close()
    disk.remove(f"{path}.checksums")
    for _ in range(2):
        log = opened(disk)
        assert log.segments()[0].max_timestamp == 2000
        log.close()
    assert [one.getMessage() for one in caplog.records] == [
        f"{path}.checksums: the file is missing; rebuilt from the log"
    ]


def test_an_index_that_lost_most_entries_is_rebuilt_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, disk: MemoryDisk
) -> None:
    """Headers would be read from its last entry on, at each start and by readers."""
    monkeypatch.setattr(segment, "_CHUNK_BYTES", 4096)
    path = f"{FOLDER}/{0:020d}"
    good = disk.read(f"{path}.index")
    disk.remove(f"{path}.checksums")
    disk.write(f"{path}.index", good[:8])
    for _ in range(2):
        opened(disk).close()
    assert [one.getMessage() for one in caplog.records] == [
        f"{path}.index: does not agree with the log (entries behind offset 4 are missing); rebuilt"
    ]
    assert disk.read(f"{path}.index") == good


def test_after_a_crash_the_last_segment_is_read_and_the_producers_known(disk: MemoryDisk) -> None:
    log = opened(disk)
    fill(log, 250, 260)
    disk.crash(1.0)
    again = opened(disk, clean=False)
    for n in range(255, 260):
        assert again.producers.check(batches.read_header(sent(n))) == Duplicate(n)
    assert count(again) == 260


def test_without_any_snapshot_the_producers_are_found_in_the_batches(disk: MemoryDisk) -> None:
    for name in disk.list(FOLDER):
        if name.endswith(".snapshot"):
            disk.write(f"{FOLDER}/{name}", disk.read(f"{FOLDER}/{name}")[:-1] + b"x")
    for clean in (True, False):
        log = opened(disk, clean=clean)
        assert log.producers.check(batches.read_header(sent(245))) == Duplicate(245)
        log.close()


def test_few_snapshots_are_kept(disk: MemoryDisk) -> None:
    kept = snapshots.offsets(disk.list(FOLDER))
    log = opened(disk)
    assert kept == [*(one.base_offset for one in log.segments()[-2:]), 250]


def test_an_index_that_lies_is_made_anew(
    disk: MemoryDisk, caplog: pytest.LogCaptureFixture
) -> None:
    """Opening reads no index; the first look-up compares its checksum."""
    path = f"{FOLDER}/{0:020d}.index"
    good = disk.read(path)
    for wrong in (good[8:16] + good[8:], bytes(3) + b"\x01" + bytes(3) + b"\x07" + good[8:]):
        disk.write(path, wrong)
        log = opened(disk)
        assert log.read(3, 1).headers[0].base_offset == 3
        assert count(log) == 250
        log.close()
    assert "does not agree with its checksum; rebuilt" in caplog.text
    assert disk.read(path) == good


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_the_index_file_that_is_damaged_is_logged_by_its_name(
    disk: MemoryDisk, suffix: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = f"{FOLDER}/{0:020d}{suffix}"
    data = bytearray(disk.read(path))
    data[5] ^= 8
    disk.write(path, bytes(data))
    log = opened(disk)
    assert log.read(3, 1).headers[0].base_offset == 3
    log.close()
    assert [one.getMessage() for one in caplog.records] == [
        f"{path}: does not agree with its checksum; rebuilt"
    ]


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_an_index_file_that_is_missing_is_no_warning(
    disk: MemoryDisk, suffix: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    path = f"{FOLDER}/{0:020d}{suffix}"
    data = disk.read(path)
    disk.remove(path)
    log = opened(disk)
    assert log.read(3, 1).headers[0].base_offset == 3
    log.close()
    assert disk.read(path) == data
    assert [(one.levelname, one.getMessage()) for one in caplog.records] == [
        ("INFO", f"{path}: the file is missing; rebuilt from the log")
    ]


@pytest.mark.parametrize("is_reopened", [False, True])
def test_checksums_of_an_earlier_state_are_not_written_again_with_rebuilt_indexes(
    is_reopened: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A write that is lost under the running broker leaves the `.checksums` of the last stop."""
    disk, path = MemoryDisk(), f"{FOLDER}/{0:020d}.checksums"
    log = opened(disk, clean=False)
    fill(log, 0, 8)
    log.settle()
    log.close()
    earlier = disk.read(path)
    log = opened(disk)
    fill(log, 8, 250)
    if is_reopened:
        log.settle()
        log.close()
        log = opened(disk)
    written = checksums.load(disk, path.removesuffix(".checksums"))
    disk.write(path, earlier)
    assert count(log) == count(log) == 250
    log.close()
    again = opened(disk, clean=False)
    assert count(again) == 250
    again.close()
    rebuilt = checksums.load(disk, path.removesuffix(".checksums"))
    assert written is not None
    assert rebuilt is not None
    assert rebuilt.summary.size == written.summary.size
    assert rebuilt.blocks.differing(written.blocks) is None
    assert [one.getMessage() for one in caplog.records] == [
        f"{path}: does not agree with the log; the next start verifies the segment, "
        "or refuses it where they are of a longer file",
        f"{path}: does not agree with the log; rebuilt",
    ]


@pytest.mark.parametrize("suffix", [".log", ".log cut", ".log longer"])
def test_a_sealed_segment_that_is_not_whole_is_refused(disk: MemoryDisk, suffix: str) -> None:
    path = f"{FOLDER}/{opened(disk).segments()[3].base_offset:020d}.log"
    data = disk.read(path)
    if suffix == ".log":
        disk.remove(path)
    else:
        disk.write(path, data[:-1] if suffix.endswith("cut") else data + data[:BATCH_BYTES])
    with pytest.raises(CorruptLog, match="restore"):
        opened(disk)


def test_a_sealed_segment_that_became_shorter_is_refused_with_both_sizes(disk: MemoryDisk) -> None:
    path = f"{FOLDER}/{opened(disk).segments()[3].base_offset:020d}.log"
    size = disk.size(path)
    disk.write(path, disk.read(path)[:BATCH_BYTES])
    with pytest.raises(CorruptLog, match=f"has {BATCH_BYTES} bytes, {size} were written"):
        opened(disk)


def test_a_last_segment_that_is_not_as_it_was_closed_is_refused(disk: MemoryDisk) -> None:
    path = opened(disk).segments()[-1].path + ".log"
    data = disk.read(path)
    for damaged in (data[:-1], data[:-870], data + data[:BATCH_BYTES], b""):
        for clean in (True, False):
            if clean or len(damaged) < len(data):
                disk.write(path, damaged)
                with pytest.raises(CorruptLog, match=path):
                    opened(disk, clean=clean)
                assert disk.read(path) == damaged, "nothing was cut"


def test_leftovers_are_removed(disk: MemoryDisk) -> None:
    for name in ("00.log.deleted", "00.index.deleted", "00.log.cleaned", "00.index.cleaned"):
        disk.write(f"{FOLDER}/{name}", b"x")
    names = set(disk.list(FOLDER))
    opened(disk)
    assert {name.split(".")[0] for name in names - set(disk.list(FOLDER))} == {"00"}
    assert not any(name.startswith("00.") for name in disk.list(FOLDER))


def test_a_replacement_is_all_or_nothing_wherever_it_is_cut_short(disk: MemoryDisk) -> None:
    """Every operation on names fails once, as if the process died there."""
    survived = []
    for left in range(20):
        copy = copied(disk)
        log = opened(copy)
        chosen = log.segments()[2:5]
        whole = b"".join(copy.read(f"{one.path}.log") for one in chosen)
        cleaned = f"{chosen[0].path}.log.cleaned"
        copy.write(cleaned, whole)
        died = dies_after(copy, left)
        try:
            log.replace([one.base_offset for one in chosen], cleaned)
        except OSError:
            assert count(log) == 250, "the log goes on with one or the other"
        again = opened(died())
        assert count(again) == 250
        survived.append(len(again.segments()))
    assert set(survived) == {12, 10}
    assert survived[-1] == 10


def copied(disk: MemoryDisk) -> MemoryDisk:
    copy = MemoryDisk()
    for name in disk.list(FOLDER):
        copy.write(f"{FOLDER}/{name}", disk.read(f"{FOLDER}/{name}"))
    return copy


def dies_after(disk: MemoryDisk, renames: int) -> Callable[[], MemoryDisk]:
    """Let so many renames happen and refuse the others; the disk as the process left it."""
    real = disk.rename

    def rename(old: str, new: str, *, durable: bool = True) -> None:
        nonlocal renames
        if renames <= 0:
            raise OSError(5, "Input/output error")
        renames -= 1
        real(old, new, durable=durable)

    disk.rename = rename  # type: ignore[method-assign]  # a fault amid a sequence
    return lambda: copied(disk)


def test_a_log_that_lost_what_was_deleted_begins_where_it_was_deleted_to() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    fill(log, 0, 3)
    disk.crash(0.0)
    again = opened(disk, clean=False, start_offset=3)
    assert (again.start_offset, again.end_offset) == (3, 3)
    assert not [path for path in disk._files if ".torn" in path], "no record was left"
    fill(again, 3, 4)
    again.settle()
    assert (opened(disk).start_offset, opened(disk).end_offset) == (3, 4)


def test_records_below_the_start_of_a_log_that_ends_before_it_are_set_aside() -> None:
    """The start may be that of a former topic of the name, as the disk lost that it was removed."""
    disk = MemoryDisk()
    log = opened(disk)
    fill(log, 0, 3)
    log.settle()
    first = f"{FOLDER}/{0:020d}.log"
    content = disk.read(first)
    disk.kill()
    again = opened(disk, clean=False, start_offset=22)
    assert (again.start_offset, again.end_offset) == (22, 22)
    assert disk.read(f"{first}.torn.0") == content


@pytest.mark.parametrize("power_cut", [False, True])
def test_setting_segments_aside_loses_none_wherever_it_is_cut_short(*, power_cut: bool) -> None:
    for left in range(60):
        disk = FaultyDisk(f"left {left}", lambda: None)
        log = SegmentedLog(disk, FOLDER, segment_bytes=1)
        fill(log, 0, 5)
        log.settle()
        log.close()
        before = disk.contents
        disk.die_after(left)
        is_cut_short = False
        for _ in range(2):
            try:
                again = SegmentedLog(disk, FOLDER, segment_bytes=1, start_offset=22)
            except OSError:
                disk.revive(power_cut=power_cut)
                is_cut_short = True
        assert (again.start_offset, again.end_offset) == (22, 22)
        after = disk.contents
        for path in [one for one in before if one.endswith(".log") and before[one]]:
            assert after.get(f"{path}.torn.0") == before[path], left
        if not is_cut_short:
            assert left > 5, "it was cut short at several points"
            return
    pytest.fail("it makes fewer changes")


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_start_that_removes_what_was_given_up_makes_the_claim_durable(*, is_killed: bool) -> None:
    """The broker before was killed, or its sync failed, between the two slots."""
    disk = MemoryDisk()
    log = SegmentedLog(disk, FOLDER, segment_bytes=1)
    fill(log, 0, 5)
    log.settle()
    with failing_claims(disk, is_killed=is_killed), pytest.raises(OSError, match="the disk fails"):
        log.allow_drop(3)
    disk.kill()
    assert SegmentedLog(disk, FOLDER, segment_bytes=1).start_offset == 3
    disk.crash(0.0)
    assert SegmentedLog(disk, FOLDER, segment_bytes=1).start_offset == 3


def test_segments_with_gaps_are_set_aside_wherever_it_is_cut_short() -> None:
    """What is last after a kill was sealed, and only in the last segment a gap is damage."""
    for left in range(60):
        disk = FaultyDisk(f"left {left}", lambda: None)
        with_gaps(disk)
        disk.die_after(left)
        try:
            SegmentedLog(disk, FOLDER, start_offset=22)
        except OSError:
            disk.revive(power_cut=bool(left % 2))
            again = SegmentedLog(disk, FOLDER, start_offset=22)
            assert (again.start_offset, again.end_offset) == (22, 22)
        else:
            assert left > 20, "it was cut short at several points"
            return
    pytest.fail("it makes fewer changes")


def test_segments_with_gaps_are_set_aside_by_a_second_try(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()
    with_gaps(disk)
    rename, calls = disk.rename, count_from()

    def failing(old: str, new: str, *, durable: bool = True) -> None:
        if next(calls) == 1:
            raise OSError(errno.EIO, "the disk fails")
        rename(old, new, durable=durable)

    monkeypatch.setattr(disk, "rename", failing)
    with pytest.raises(OSError, match="the disk fails"):
        SegmentedLog(disk, FOLDER, start_offset=22)
    assert SegmentedLog(disk, FOLDER, start_offset=22).end_offset == 22


def with_gaps(disk: Disk) -> None:
    """Leave a log of several segments, of which compaction removed every second batch but one."""
    log = SegmentedLog(disk, FOLDER, segment_bytes=4 * BATCH_BYTES + 100)
    fill(log, 0, 13)
    log.settle()
    for one in log.segments()[:-1]:
        data, cleaned = disk.read(f"{one.path}.log"), f"{one.path}.log.cleaned"
        first, second = batches.headers(data)[:2]
        disk.write(cleaned, data[: first.size] + data[first.size + second.size :])
        log.replace([one.base_offset], cleaned)
    log.settle()
    log.close()


def test_a_damaged_slot_does_not_bring_back_segments_that_were_set_aside() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    fill(log, 0, 3)
    log.settle()
    disk.kill()
    opened(disk, clean=False, start_offset=22).close()
    sequence, _ = read_claim(disk, FOLDER)
    data = bytearray(disk.read(POINT))
    data[sequence % 2 * 512 + 20] ^= 1
    disk.write(POINT, bytes(data))
    assert opened(disk, clean=False, start_offset=22).end_offset == 22


def test_a_claim_whose_sync_failed_gives_up_no_segment_that_compaction_made_since() -> None:
    """A power cut brings the claim back: it may lose the later ones, which nothing has synced."""
    disk = MemoryDisk()
    log = SegmentedLog(disk, FOLDER, segment_bytes=1)
    fill(log, 0, 4)
    log.settle()
    with failing_claims(disk, is_killed=True), pytest.raises(OSError, match="the disk fails"):
        log.allow_drop(1)
    disk.open(POINT).sync()  # the disk has written it after all
    assert read_claim(disk, FOLDER)[1].first_base == 1
    fill(log, 4, 5)
    log.sync()
    disk.kill()
    log = SegmentedLog(disk, FOLDER, segment_bytes=1)
    assert log.start_offset == 0
    log.replace([0, 1], merged(disk, 0, 1))
    disk.crash(0.0)
    log = SegmentedLog(disk, FOLDER, segment_bytes=1)
    assert (log.start_offset, log.end_offset) == (0, 5)


def test_a_start_that_removes_a_replacement_makes_the_claim_durable() -> None:
    """The replacement of a segment waits for its name, and the segment is given up meanwhile."""
    disk = MemoryDisk()
    log = opened(disk)
    fill(log, 0, 60)
    log.settle()
    one = log.segments()[0]
    cleaned = f"{one.path}.log.cleaned"
    disk.write(cleaned, disk.read(f"{one.path}.log"))
    log.prepare([0], cleaned)
    assert log.take_place([0])
    log.put_away_replaced()
    with failing_claims(disk, is_killed=True), pytest.raises(OSError, match="the disk fails"):
        log.allow_drop(one.end_offset)
    disk.kill()
    assert opened(disk, clean=False).start_offset == one.end_offset
    assert not [name for name in disk.list(FOLDER) if name.endswith((".swap", ".deleted"))]
    disk.crash(0.0)
    assert opened(disk, clean=False).start_offset == one.end_offset


@pytest.mark.parametrize("syncs", [0, 1, 2])
@pytest.mark.parametrize("is_power_cut", [False, True])
def test_a_drop_amid_the_staging_of_a_segment_loses_nothing(
    *, is_power_cut: bool, syncs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sync fails in another thread; later claims are lost once an opening has gone on."""
    disk = MemoryDisk()
    log = SegmentedLog(disk, FOLDER, segment_bytes=1)
    fill(log, 0, 4)
    log.settle()
    follow = RecoveryPoint.follow

    def then_drop(point: RecoveryPoint, first_base: int, base_offset: int) -> None:
        follow(point, first_base, base_offset)
        with failing_claims(disk, is_killed=True), pytest.raises(OSError, match="the disk fails"):
            log.allow_drop(1)
        disk.open(POINT).sync()  # the disk has written it after all

    with monkeypatch.context() as patch:
        patch.setattr(RecoveryPoint, "follow", then_drop)
        log.prepare([0, 1], merged(disk, 0, 1))
    for n in range(4, 4 + syncs):
        fill(log, n, n + 1)
        log.sync()
    assert not log.take_place([0, 1])  # and the process dies before it discards the copy
    disk.kill()
    SegmentedLog(disk, FOLDER, segment_bytes=1)
    if is_power_cut:
        disk.crash(0.0)
    again = SegmentedLog(disk, FOLDER, segment_bytes=1)
    assert again.start_offset in {0, 1}
    assert count(again) == again.end_offset - again.start_offset


@pytest.mark.parametrize("is_new", [False, True])
def test_a_staging_writes_no_claim_into_the_folder_of_another_topic(
    *, is_new: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic is deleted meanwhile, and perhaps created again."""
    disk = MemoryDisk()
    log = SegmentedLog(disk, FOLDER, segment_bytes=1)
    fill(log, 0, 4)
    log.sync()
    cleaned, take_whole = merged(disk, 0, 1), segment.Segment.take_whole

    def then_delete(one: segment.Segment, size: int) -> None:
        take_whole(one, size)
        log.close()
        log.retire()
        disk.remove(FOLDER)
        if is_new:
            SegmentedLog(disk, FOLDER).close()

    with monkeypatch.context() as patch:
        patch.setattr(segment.Segment, "take_whole", then_delete)
        with pytest.raises(OSError, match="is removed"):
            log.prepare([0, 1], cleaned)
    assert disk.exists(FOLDER) == is_new
    assert SegmentedLog(disk, FOLDER).end_offset == 0


@pytest.mark.parametrize("following", [[0, 1], [3, 4]])
def test_a_copy_whose_removal_failed_is_removed_before_the_next_is_staged(
    following: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An opening would use it, though the next one may have some of its segments."""
    disk = MemoryDisk()
    log = SegmentedLog(disk, FOLDER, segment_bytes=1)
    fill(log, 0, 6)
    log.settle()
    log.prepare([1, 2, 3], merged(disk, 1, 2, 3))
    with monkeypatch.context() as patch:
        patch.setattr(disk, "remove", fails)
        with pytest.raises(OSError, match="the disk fails"):
            log.discard_replacement()
        with pytest.raises(OSError, match="the disk fails"):
            log.prepare(following, merged(disk, *following))
    log.replace(following, merged(disk, *following))
    log.settle()
    log.close()
    assert count(SegmentedLog(disk, FOLDER, segment_bytes=1)) == 6


@pytest.mark.parametrize("is_rolled", [False, True])
@pytest.mark.parametrize("is_torn", [False, True])
def test_a_next_segment_that_the_disk_did_not_remove_is_removed_before_an_append(
    *, is_torn: bool, is_rolled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless it is made durable by then, and used."""
    disk = MemoryDisk()
    log = SegmentedLog(disk, FOLDER, segment_bytes=3 * BATCH_BYTES + 9)
    fill(log, 0, 2)
    log.sync()
    with monkeypatch.context() as patch:
        patch.setattr(disk, "remove", fails)
        patch.setattr(MemoryFile, "sync", fails)
        for _ in range(2):
            with pytest.raises(OSError, match="the disk fails"):
                log.roll()
        with pytest.raises(OSError, match="the disk fails"):
            fill(log, 2, 3)
    if is_rolled:
        log.begin_seal()
        log.prepare_next()
    fill(log, 2, 3)
    assert len(log.segments()) == 1 + is_rolled
    if is_torn:
        disk.crash(0.5)
    disk.kill()
    assert opened(disk, clean=False).end_offset == 3 - is_torn


def fails(*_: object) -> None:
    raise OSError(errno.EIO, "the disk fails")


def merged(disk: Disk, *bases: int) -> str:
    """Write a copy of segments that is to take their place; return its path."""
    cleaned = f"{FOLDER}/{bases[0]:020d}.log.cleaned"
    disk.write(cleaned, b"".join(disk.read(f"{FOLDER}/{base:020d}.log") for base in bases))
    return cleaned


@pytest.mark.parametrize("start_offset", [0, 5])
@pytest.mark.parametrize("has_gaps", [False, True])
def test_an_empty_last_segment_that_is_missing_after_an_orderly_stop_is_restored(
    *, has_gaps: bool, start_offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a copy of the folder without empty files: producers are known, and claims hold."""
    disk = MemoryDisk()
    log = opened(disk)
    fill(log, 0, 5)
    log.roll()
    if has_gaps:
        data, cleaned = disk.read(f"{FOLDER}/{0:020d}.log"), f"{FOLDER}/{0:020d}.log.cleaned"
        first, second = batches.headers(data)[:2]
        disk.write(cleaned, data[: first.size] + data[first.size + second.size :])
        log.replace([0], cleaned)
    log.advance_start(start_offset)
    log.settle()
    log.close()
    disk.remove(f"{FOLDER}/{5:020d}.log")
    log = opened(disk, start_offset=start_offset, end_offset=5)
    assert (log.start_offset, log.end_offset) == (start_offset, 5)
    assert isinstance(log.producers.check(batches.read_header(sent(4))), Duplicate)
    fill(log, 5, 8)
    log.sync()
    with monkeypatch.context() as patch:
        patch.setattr(disk, "open", fails)
        with pytest.raises(OSError, match="the disk fails"):
            log.roll()
    disk.kill()
    assert opened(disk, clean=False, start_offset=start_offset).end_offset == 8


@pytest.mark.parametrize("claims", ["none", "batch", "bytes"])
@pytest.mark.parametrize("is_dropped", [False, True])
def test_a_missing_last_segment_is_refused_after_a_crash(*, claims: str, is_dropped: bool) -> None:
    """Its claim may be older than what was synced since."""
    disk = MemoryDisk()
    log = opened(disk)
    fill(log, 0, 5)
    log.roll()
    log.advance_start(5)
    if is_dropped:
        log.allow_drop(5)
        log.drop_segments(5)
    if claims == "none":
        log.settle()
    fill(log, 5, 6)
    if claims == "bytes":
        log.sync()
    if claims != "none":
        log.secure_point()
    fill(log, 6, 9)
    log.sync()
    disk.crash(0.0)
    disk.remove(f"{FOLDER}/{5:020d}.log")
    with pytest.raises(CorruptLog, match=r"5\.log: the last segment of the log is missing"):
        opened(disk, clean=False, start_offset=5)


def rolled(disk: Disk) -> SegmentedLog:
    """Return a log of a segment with five records, and an empty one; the first alone is claimed."""
    log = opened(disk, clean=False)
    fill(log, 0, 5)
    log.sync()
    log.roll()
    return log


def rolled_and_stopped(disk: Disk) -> None:
    """Write a log of a segment with five records, and an empty one."""
    log = opened(disk)
    fill(log, 0, 5)
    log.roll()
    log.settle()
    log.close()


def test_a_missing_first_segment_is_noticed_beside_a_missing_empty_one() -> None:
    disk = MemoryDisk()
    rolled_and_stopped(disk)
    for base in (0, 5):
        disk.remove(f"{FOLDER}/{base:020d}.log")
    with pytest.raises(CorruptLog, match="offsets 0 to 4 are missing"):
        opened(disk, end_offset=5)


def test_a_missing_last_segment_that_had_records_is_refused_beside_an_older_mark() -> None:
    """A file of a backup was put back; each try has to be refused."""
    disk = MemoryDisk()
    rolled_and_stopped(disk)
    log = opened(disk, end_offset=5)
    fill(log, 5, 8)
    log.sync()
    log.close()
    disk.remove(f"{FOLDER}/{5:020d}.log")
    for clean in (True, True, False):
        with pytest.raises(CorruptLog, match=r"5\.log: the last segment of the log is missing"):
            opened(disk, clean=clean, end_offset=5)


def test_a_log_without_any_segment_is_not_restored_where_its_first_one_is_not_known() -> None:
    """As after the repair of a recovery point."""
    disk = MemoryDisk()
    rolled_and_stopped(disk)
    disk.remove(POINT)
    begin_point(disk, FOLDER)
    for base in (0, 5):
        disk.remove(f"{FOLDER}/{base:020d}.log")
    with pytest.raises(CorruptLog, match=r"5\.log: the last segment of the log is missing"):
        opened(disk, end_offset=5)


@pytest.mark.parametrize("step", range(7))
def test_setting_segments_aside_is_tried_again_whatever_failed(step: int) -> None:
    """In one run, so that the end at the orderly stop is still known."""
    disk = NamesDisk()
    log = opened(disk)
    fill(log, 0, 3)
    log.settle()
    log.close()
    syncs = count_from()
    disk.fails = lambda: next(syncs) == step
    with pytest.raises(OSError, match="cannot be synced"):
        opened(disk, end_offset=3, start_offset=10)
    disk.fails = lambda: False
    log = opened(disk, end_offset=3, start_offset=10)
    assert (log.start_offset, log.end_offset) == (10, 10)


def test_a_log_that_is_an_empty_segment_alone_is_restored_with_its_producers() -> None:
    """As retention leaves a log; after a crash it is not known that the segment was empty."""
    disk = MemoryDisk()
    log = emptied_by_retention(disk)
    log.settle()
    log.close()
    disk.remove(f"{FOLDER}/{5:020d}.log")
    with pytest.raises(CorruptLog, match=r"5\.log: the last segment of the log is missing"):
        opened(disk, clean=False, start_offset=5)
    log = opened(disk, end_offset=5)
    assert (log.start_offset, log.end_offset) == (5, 5)
    assert isinstance(log.producers.check(batches.read_header(sent(4))), Duplicate)


def test_the_claim_names_no_segment_that_retention_gave_up() -> None:
    """Else a repair begins the log with it, below the start offset."""
    disk = MemoryDisk()
    emptied_by_retention(disk)
    disk.kill()
    assert read_claim(disk, FOLDER)[1].base_offset == 5


def emptied_by_retention(disk: MemoryDisk) -> SegmentedLog:
    log = rolled(disk)
    log.advance_start(5)
    log.allow_drop(5)
    log.drop_segments(5)
    return log


def test_the_claim_names_the_last_segment_when_compaction_rewrites_another() -> None:
    """Else a repair takes the one with gaps for the last, and moves its records."""
    disk = MemoryDisk()
    log = rolled(disk)
    data, cleaned = disk.read(f"{FOLDER}/{0:020d}.log"), f"{FOLDER}/{0:020d}.log.cleaned"
    first, second = batches.headers(data)[:2]
    disk.write(cleaned, data[: first.size] + data[first.size + second.size :])
    log.replace([0], cleaned)
    assert read_claim(disk, FOLDER)[1].base_offset == 5
    fill(log, 5, 6)
    assert read_claim(disk, FOLDER)[1].first_crc == batches.read_header(sent(5)).crc
    disk.kill()
    disk.remove(f"{FOLDER}/{5:020d}.log")
    with pytest.raises(CorruptLog, match=r"5\.log: the last segment of the log is missing"):
        opened(disk, clean=False)


@pytest.mark.parametrize("start_offset", [0, 70])
def test_an_opening_that_fails_leaves_no_file_open(
    start_offset: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the segments are set aside, and where a batch that producers need is damaged."""

    class CountedFile(OsFile):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            files.append(self)

    files = list[OsFile]()
    disk = OsDisk(tmp_path)
    log = opened(disk)
    fill(log, 0, 60)
    log.settle()
    log.close()
    for offset in snapshots.offsets(disk.list(FOLDER)):
        disk.remove(snapshots.path_of(FOLDER, offset))
    monkeypatch.setattr("headrace.log.os_disk.OsFile", CountedFile)
    if start_offset:
        monkeypatch.setattr(CountedFile, "sync", fails)
    else:
        path = f"{FOLDER}/{0:020d}.log"
        data = bytearray(disk.read(path))
        data[2 * BATCH_BYTES + 7] ^= 1  # in the offset of the third batch
        disk.write(path, bytes(data))
    with pytest.raises((OSError, CorruptLog)):
        opened(disk, clean=not start_offset, start_offset=start_offset)
    assert files
    assert {file._fd for file in files} == {-1}


def test_compaction_claims_no_batch_that_was_cut_off() -> None:
    """Its checksum would make the segment count as another one."""
    disk = MemoryDisk()
    log = rolled(disk)
    log.secure_point()
    disk.failing = {"write"}
    fill(log, 5, 6)
    disk.failing = {"sync"}
    with pytest.raises(OSError, match="Input/output error"):
        log.sync()
    disk.failing = set()
    log.heal(keep=False)
    log.replace([0], merged(disk, 0))
    assert read_claim(disk, FOLDER)[1].first_crc == 0
    fill(log, 6, 7)
    log.sync()
    disk.crash(0.0)
    assert opened(disk, clean=False).end_offset == 6


@pytest.mark.parametrize("is_held", [False, True])
@pytest.mark.parametrize("step", ["allow_drop", "prepare"])
def test_the_first_batch_is_claimed_however_late(step: str, *, is_held: bool) -> None:
    """Another thread held the recovery point when it was appended, or the disk failed."""
    disk = MemoryDisk()
    log = rolled(disk)
    if is_held:
        with log._point._lock:
            fill(log, 5, 6)
    else:
        disk.failing = {"write"}
        fill(log, 5, 6)
        disk.failing = set()
    if step == "prepare":
        log.prepare([0], merged(disk, 0))
    else:
        log.allow_drop(5)
    log.sync()
    claim = read_claim(disk, FOLDER)[1]
    assert (claim.base_offset, claim.end_offset) == (5, 6)
    assert claim.first_crc == batches.read_header(sent(5)).crc


def test_nothing_is_staged_while_the_last_segment_cannot_be_claimed() -> None:
    disk = MemoryDisk()
    log = rolled(disk)
    log.secure_point()
    cleaned = merged(disk, 0)
    disk.failing = {"write"}
    with pytest.raises(OSError, match="Input/output error"):
        log.prepare([0], cleaned)
    disk.failing = set()
    assert disk.exists(cleaned)
    log.replace([0], cleaned)
    assert read_claim(disk, FOLDER)[1].base_offset == 5


# ---- names that were not synced

NEXT = f"{FOLDER}/{5:020d}.log"


def appended_after(log: SegmentedLog, disk: NamesDisk, *, start_offset: int = 0) -> None:
    """Require that records which are synced now survive a power cut."""
    disk.fails = lambda: False
    for n in range(5, 8):
        log.append(plain(n), batches.headers(plain(n)))
    log.sync()
    assert log.durable_end == 8
    disk.power_cut()
    assert opened(disk, clean=False, start_offset=start_offset).end_offset == 8


def plain(n: int) -> bytearray:
    """Return a batch of no idempotent producer, whose snapshots would sync the folder."""
    return bytearray(batches.build([Record(0, 1000 + n, None, b"v" * 800)]))


def test_a_start_amid_the_creation_of_a_segment_syncs_its_name() -> None:
    disk = NamesDisk()
    log = opened(disk, clean=False)
    fill(log, 0, 5)
    log.sync()
    log.secure_point()
    disk.fails = lambda: disk.has(NEXT)
    with unremoved(disk), pytest.raises(OSError, match="cannot be synced"):
        log.roll()
    disk.kill()
    disk.fails = lambda: False
    appended_after(opened(disk, clean=False), disk)


def test_a_second_roll_syncs_the_name_of_a_segment_that_was_not_removed() -> None:
    disk = NamesDisk()
    log = opened(disk, clean=False)
    for n in range(5):
        log.append(plain(n), batches.headers(plain(n)))
    log.sync()
    log.secure_point()
    disk.fails = lambda: disk.has(NEXT)
    with unremoved(disk), pytest.raises(OSError, match="cannot be synced"):
        log.roll()
    disk.fails = lambda: False
    log.begin_seal()
    log.prepare_next()
    log.begin_next()
    appended_after(log, disk)


@contextmanager
def unremoved(disk: MemoryDisk) -> Iterator[None]:
    """Let the next segment not be removed, as when the process is killed before."""
    remove = disk.remove

    def removed(path: str) -> None:
        if path == NEXT:
            fails()
        remove(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk, "remove", removed)
        yield


@pytest.mark.parametrize("is_removed", [False, True])
@pytest.mark.parametrize("is_alone", [False, True])
def test_a_second_opening_syncs_the_name_of_a_restored_segment(
    *, is_alone: bool, is_removed: bool
) -> None:
    """The orderly stop still counts for it."""
    disk = NamesDisk()
    log = emptied_by_retention(disk) if is_alone else opened(disk, clean=False)
    if not is_alone:
        fill(log, 0, 5)
        log.roll()
    log.settle()
    log.close()
    disk.remove(NEXT)
    disk.fails = lambda: disk.has(NEXT)
    kept = nullcontext() if is_removed else unremoved(disk)
    with kept, pytest.raises(OSError, match="cannot be synced"):
        opened(disk, end_offset=5)
    disk.fails = lambda: False
    appended_after(opened(disk, end_offset=5), disk)


def test_a_second_opening_syncs_the_name_of_the_segment_that_an_emptied_log_begins_with() -> None:
    disk = NamesDisk()
    log = opened(disk)
    fill(log, 0, 3)
    log.settle()
    log.close()
    disk.fails = lambda: disk.has(NEXT)
    with unremoved(disk), pytest.raises(OSError, match="cannot be synced"):
        opened(disk, end_offset=3, start_offset=5)
    disk.fails = lambda: False
    log = opened(disk, end_offset=3, start_offset=5)
    appended_after(log, disk, start_offset=5)


def test_the_name_of_a_next_segment_is_gone_for_good_before_an_append(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The removal took effect, and its folder could not be synced."""
    disk = MemoryDisk()
    log = SegmentedLog(disk, FOLDER, segment_bytes=3 * BATCH_BYTES + 9)
    fill(log, 0, 2)
    log.sync()
    remove, rename, synced = disk.remove, disk.rename, list[bool]()

    def removed(path: str) -> None:
        remove(path)
        fails()

    def renamed(old: str, new: str, *, durable: bool = True) -> None:
        rename(old, new, durable=durable)
        synced.append(durable)

    with monkeypatch.context() as patch:
        patch.setattr(disk, "remove", removed)
        patch.setattr(MemoryFile, "sync", fails)
        with pytest.raises(OSError, match="the disk fails"):
            log.roll()
    monkeypatch.setattr(disk, "rename", renamed)
    fill(log, 2, 3)
    assert synced == [True]


def test_an_opening_that_is_tried_again_forgets_the_first_batch_durably() -> None:
    disk = MemoryDisk()
    log = opened(disk, clean=False)
    log.secure_point()
    fill(log, 0, 1)
    disk.open(POINT).sync()
    disk.crash(0.0)  # the claim is there, and the batch is not
    with failing_claims(disk), pytest.raises(OSError, match="the disk fails"):
        opened(disk, clean=False)
    log = opened(disk, clean=False)
    data = bytearray(batches.build([batches.Record(0, 6, None, b"another")]))
    log.append(data, batches.headers(data))
    disk.open(f"{FOLDER}/{0:020d}.log").sync()
    disk.crash(0.0)
    assert opened(disk, clean=False).end_offset == 1


@contextmanager
def failing_claims(disk: MemoryDisk, *, is_killed: bool = False) -> Iterator[None]:
    """Let claims be written and not synced; where a broker is killed, only the first one."""
    overwrite, calls = disk.overwrite, count_from(1)

    def failing(path: str, data: bytes, position: int, *, durable: bool = False) -> None:
        if not (is_killed and next(calls) > 1):
            overwrite(path, data, position)
        if durable:
            raise OSError(errno.EIO, "the disk fails")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk, "overwrite", failing)
        yield


def test_a_beginning_that_is_cut_short_anywhere_is_made_good_by_the_next() -> None:
    done = []
    for left in range(10):
        disk = DiesAfter()
        log = opened(disk)
        fill(log, 0, 3)
        log.settle()  # with an index and a snapshot
        fill(log, 3, 6)
        disk.crash(0.0)
        disk.left = left
        try:
            opened(disk, clean=False, start_offset=6)
            done.append(left)
        except OSError:
            disk.kill()
        disk.left = None
        again = opened(disk, clean=False, start_offset=6)
        assert (again.start_offset, again.end_offset) == (6, 6)
        fill(again, 6, 7)
        assert count(again) == 1
    assert done, "the last of them was not cut short"
    assert min(done) > 2, "and there was something to cut short"


class DiesAfter(MemoryDisk):
    """Removes, opens and syncs files so many times more, and refuses all that follows."""

    left: int | None = None

    def check(self, operation: str) -> None:
        super().check(operation)
        if self.left is not None and operation in ("remove", "rename", "open", "sync"):
            self.left -= 1
            if self.left < 0:
                raise OSError(5, "Input/output error")


def test_an_unclean_start_removes_nothing_of_a_log_that_did_not_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = MemoryDisk()
    log = SegmentedLog(disk, "idle-0")
    data = bytearray(batches.build([batches.Record(0, 5, None, b"v")]))
    log.append(data, batches.headers(data))
    log.settle()
    log.close()
    removed: list[str] = []
    monkeypatch.setattr(disk, "remove", removed.append)
    assert SegmentedLog(disk, "idle-0").end_offset == 1
    assert not removed
