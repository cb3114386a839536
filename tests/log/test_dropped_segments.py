"""Segments at the start of a log are dropped without a sync: no power cut brings them back."""

import errno
from collections.abc import Iterator
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
        self.durable = 0  # operations that sync the folder
        self.lost: list[tuple[str, str]] = []  # renames since

    def rename(self, old: str, new: str, *, durable: bool = True) -> None:
        super().rename(old, new, durable=durable)
        self.lost.append((old, new))
        self._synced(durable)

    def remove(self, path: str) -> None:
        self._synced(self.exists(path))
        super().remove(path)

    def overwrite(self, path: str, data: bytes, position: int, *, durable: bool = False) -> None:
        super().overwrite(path, data, position, durable=durable)
        self._synced(durable)

    def _synced(self, is_durable: bool) -> None:
        if is_durable:
            self.durable += 1
            self.lost.clear()

    def write_back(self) -> None:
        for content in self._files.values():
            content.sync()

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


def closed() -> LosesRenames:
    """Return the disk of a filled log that was synced and closed."""
    disk = LosesRenames()
    log = filled(disk)
    log.sync()
    log.close()
    return disk


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
    log.sync()
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


class StopsRenames(LosesRenames):
    """Renames fail once `left` of them took effect; the next one may take effect all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 99
        self.takes_effect = False

    def rename(self, old: str, new: str, *, durable: bool = True) -> None:
        self.left -= 1
        if self.left >= 0 or self.takes_effect:
            super().rename(old, new, durable=durable)
        if self.left < 0:
            self.takes_effect = False
            raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize("takes_effect", [False, True])
@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_drop_that_the_disk_stops_is_repeated(*, is_replaced: bool, takes_effect: bool) -> None:
    """After any rename, also on a file system that reports an error of a rename that it did."""
    removed: list[str] = []

    def scene(renames: int) -> tuple[StopsRenames, bool]:
        disk = StopsRenames()
        log = replaced(disk, 2) if is_replaced else filled(disk)
        log.sync()
        log._segments._dropped = removed.extend
        if is_replaced:
            disk.left = 0
            with pytest.raises(OSError, match="Input/output"):
                log.put_away_replaced()
        log.allow_drop(3)
        disk.left, disk.takes_effect = renames, takes_effect
        try:
            stopped = not log.drop_segments(3)
        except OSError:
            stopped = True
            first = log.segments()[0]
            assert log.segment_at(first.file_path) is None  # nobody reports it as damaged
        disk.left = 99
        log.drop_segments(3)
        assert (log.start_offset, values(log)) == (3, [3, 4, 5])
        older = [one for one in disk.list(FOLDER) if one[:20].isdecimal() and int(one[:20]) < 3]
        assert not [one for one in older if not one.endswith((".deleted", ".snapshot"))]
        assert sorted(set(removed)) == [
            f"{FOLDER}/{name}" for name in disk.list(FOLDER) if name.endswith(".deleted")
        ]
        return disk, stopped

    for renames in range(99):
        removed.clear()
        disk, stopped = scene(renames)
        disk.crash(0.0)
        again = opened(disk)
        assert values(again) == [3, 4, 5]
        again.close()
        if not stopped:
            break
    assert renames >= 3


def test_a_segment_whose_file_is_missing_is_dropped() -> None:
    disk = LosesRenames()
    log = filled(disk)
    disk.remove(log.segments()[0].file_path)
    log.allow_drop(DROPPED)
    assert log.drop_segments(DROPPED) == DROPPED
    assert log.start_offset == DROPPED


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
    log.prepare([0, 1, 2], cleaned)
    log.allow_drop(1)
    assert not log.take_place([0, 1, 2])
    assert disk.exists(f"{FOLDER}/{0:020d}.log.swap")
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


STEPS = [
    "prepare", "take_place", "put_away_replaced", "finish_replacement", "remove_staged_checksums",
]  # fmt: skip


def replaced(disk: LosesRenames, steps: int) -> SegmentedLog:
    """A log of whose first three segments a cleaned one takes the place, so many steps long."""
    log = filled(disk)
    log.sync()
    disk.write_back()
    cleaned = f"{FOLDER}/{0:020d}.log.cleaned"
    disk.write(cleaned, b"".join(disk.read(f"{FOLDER}/{n:020d}.log") for n in range(3)))
    names: list[str] = []
    for step in STEPS[:steps]:
        match step:
            case "prepare":
                log.prepare([0, 1, 2], cleaned)
            case "take_place":
                assert log.take_place([0, 1, 2])
            case "put_away_replaced":
                names = log.put_away_replaced()
            case "finish_replacement":
                log.finish_replacement(names)
            case _:
                log.remove_staged_checksums()
    return log


@pytest.mark.parametrize("steps", range(1, len(STEPS) + 1))
@pytest.mark.parametrize("drops", [False, True])
def test_a_power_cut_in_a_replacement_loses_and_brings_back_nothing(
    steps: int, drops: bool
) -> None:
    def scene() -> LosesRenames:
        disk = LosesRenames()
        log = replaced(disk, steps)
        assert values(log) == list(range(SEGMENTS))
        if drops:
            log.allow_drop(3)
            # Its files are not touched while a thread renames those of the others.
            assert log.drop_segments(3) == (3, 0, 0, 1, 1)[steps - 1]
        return disk

    for lost in subsets(scene().lost):
        disk = scene()
        disk.take_back(tuple(reversed(lost)))
        again = opened(disk)
        assert values(again) == list(range(3 if drops else 0, SEGMENTS)), lost
        names = disk.list(FOLDER)
        assert not [name for name in names if name.endswith((".swap", ".cleaned", ".deleted"))]


def test_segments_that_are_dropped_meanwhile_keep_their_copy_from_its_place() -> None:
    disk = LosesRenames()
    log = replaced(disk, 1)
    log.allow_drop(2)
    assert not log.take_place([0, 1, 2])
    log.discard_replacement()
    assert not [name for name in disk.list(FOLDER) if name.endswith((".swap", ".cleaned"))]
    log.drop_segments(2)
    assert values(log) == [2, 3, 4, 5]


def stopped_replacement(disk: LosesRenames) -> SegmentedLog:
    """Return a log that reads a replacement, and the disk failed to rename the others."""
    log = replaced(disk, 2)
    disk.failing.add("rename")
    with pytest.raises(OSError, match="Input/output"):
        log.put_away_replaced()
    disk.failing.clear()
    return log


def test_a_replacement_that_is_read_is_not_discarded() -> None:
    """The disk stops the renaming of the others, and the next compaction fails early."""
    disk = LosesRenames()
    log = stopped_replacement(disk)
    log.discard_replacement()
    assert values(log) == list(range(SEGMENTS))
    disk.crash(0.0)
    assert values(opened(disk)) == list(range(SEGMENTS))


def test_a_replacement_that_has_its_name_is_not_put_away() -> None:
    """A rename took effect, and the disk reported an error, as network file systems may."""
    disk = LosesRenames()
    log = replaced(disk, 2)
    renamed = log.put_away_replaced()
    disk.failing.add("rename")
    with pytest.raises(OSError, match="Input/output"):
        log.finish_replacement(renamed)
    disk.failing.clear()
    path = f"{FOLDER}/{0:020d}.log"
    disk.rename(f"{path}.swap", path)
    assert log.resume_replacement()
    with pytest.raises(OSError, match="a staged segment is gone"):
        log.put_away_replaced()
    assert disk.exists(path)
    assert values(opened(disk)) == list(range(SEGMENTS))


def test_a_replacement_that_is_read_is_not_overwritten() -> None:
    """The disk stops the renaming of the others, and the next copy has the same name."""
    disk = LosesRenames()
    log = stopped_replacement(disk)
    cleaned = f"{FOLDER}/{0:020d}.log.cleaned"
    disk.write(cleaned, disk.read(f"{FOLDER}/{0:020d}.log"))
    with pytest.raises(OSError, match="unfinished"):
        log.prepare([0], cleaned)
    log.discard_replacement()
    assert values(log) == list(range(SEGMENTS))
    disk.crash(0.0)
    assert values(opened(disk)) == list(range(SEGMENTS))


def test_a_name_that_a_power_cut_takes_back_leaves_the_checksums_of_offsets() -> None:
    """No checksum of a batch covers its offset; in a gap, another one is plausible."""

    def scene() -> LosesRenames:
        disk = LosesRenames()
        log = filled(disk)
        log.sync()
        path = f"{FOLDER}/{0:020d}.log"
        copied = (disk.read(f"{FOLDER}/{base:020d}.log") for base in (1, 3))
        disk.write(f"{path}.cleaned", b"".join(copied))
        log.prepare([0, 1, 2, 3], f"{path}.cleaned")
        assert log.take_place([0, 1, 2, 3])
        names = log.put_away_replaced()
        disk.write_back()
        log.finish_replacement(names)
        return disk

    swap = f"{FOLDER}/{0:020d}.log.swap"
    for lost in subsets(scene().lost):
        disk = scene()
        disk.take_back(tuple(reversed(lost)))
        if not disk.exists(swap):
            continue
        disk._files[swap].data[7] = 2  # the base offset, which is 1
        with pytest.raises(CorruptFileError, match="offsets or sizes"):
            opened(disk)
        break
    else:
        pytest.fail("no power cut takes the name back")


def test_a_rename_with_an_error_that_took_effect_ends_a_replacement() -> None:
    disk = StopsRenames()
    log = replaced(disk, 2)
    names = log.put_away_replaced()
    disk.left, disk.takes_effect = 0, True
    log.finish_replacement(names)
    disk.left = 99
    assert log.segments()[0].file_path == f"{FOLDER}/{0:020d}.log"
    for segment in log._segments:
        segment.release()
    assert values(log) == list(range(SEGMENTS))
    assert not log.resume_replacement()


def test_files_of_a_replacement_that_are_removed_late_are_not_those_of_the_next() -> None:
    disk = LosesRenames()
    log = replaced(disk, 2)
    waiting: list[str] = []
    log._segments._dropped = waiting.extend
    log.finish_replacement(log.put_away_replaced())
    path = f"{FOLDER}/{0:020d}.log"
    assert disk.exists(f"{path}.swap.checksums")
    log.remove_staged_checksums()
    assert not disk.exists(f"{path}.swap.checksums")
    disk.write(f"{path}.cleaned", disk.read(path))
    log.prepare([0], f"{path}.cleaned")
    staged = disk.read(f"{path}.swap.checksums")
    assert staged
    for one in waiting:
        disk.remove(one)
    assert disk.read(f"{path}.swap.checksums") == staged
    assert log.take_place([0])
    assert values(log) == list(range(SEGMENTS))


@pytest.mark.parametrize("step", ["put_away_replaced", "finish_replacement"])
@pytest.mark.parametrize("renames", range(4))
def test_a_replacement_that_the_disk_stops_is_resumed(step: str, renames: int) -> None:
    """Some of the files have their new names already, which a power cut may take back."""

    def scene() -> StopsRenames:
        disk = StopsRenames()
        log = replaced(disk, 2)
        names = log.put_away_replaced() if step == "finish_replacement" else []
        disk.left = renames if step == "put_away_replaced" else 0
        with pytest.raises(OSError, match="Input/output"):
            log.finish_replacement(names or log.put_away_replaced())
        disk.left = 99
        assert values(log) == list(range(SEGMENTS))
        assert log.resume_replacement()
        log.finish_replacement(log.put_away_replaced())
        assert values(log) == list(range(SEGMENTS))
        assert log.segments()[0].file_path == f"{FOLDER}/{0:020d}.log"
        assert not log.resume_replacement()
        return disk

    for lost in subsets(scene().lost):
        disk = scene()
        disk.take_back(tuple(reversed(lost)))
        assert values(opened(disk)) == list(range(SEGMENTS)), lost


def test_the_files_of_a_replacement_that_the_disk_stops_go_when_it_is_dropped() -> None:
    disk = LosesRenames()
    log = stopped_replacement(disk)
    log.allow_drop(3)
    assert log.drop_segments(3) == 1
    assert not log.resume_replacement()
    names = [name for name in disk.list(FOLDER) if name[:20].isdecimal() and int(name[:20]) < 3]
    assert not [name for name in names if name.endswith((".log", ".swap"))]


@pytest.mark.parametrize("stops", ["before take_place", "before the rename", "after the rename"])
@pytest.mark.parametrize("is_format_0", [False, True])
def test_a_replacement_that_is_discarded_leaves_the_checksums_as_they_were(
    stops: str, is_format_0: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Compaction empties them when it stages the replacement."""

    class Stops(LosesRenames):
        def rename(self, old: str, new: str, *, durable: bool = True) -> None:
            if new.endswith(".swap") and stops != "before take_place":
                if stops == "after the rename":
                    super().rename(old, new, durable=durable)
                raise OSError(errno.EIO, "Input/output error")
            super().rename(old, new, durable=durable)

    disk = Stops()
    log = filled(disk)
    checksums = f"{FOLDER}/{0:020d}.checksums"
    if is_format_0:
        disk.remove(checksums)
    before = derived(disk)
    cleaned = f"{FOLDER}/{0:020d}.log.cleaned"
    disk.write(cleaned, b"".join(disk.read(f"{FOLDER}/{n:020d}.log") for n in range(3)))
    if stops == "before take_place":
        log.prepare([0, 1, 2], cleaned)
        assert disk.size(checksums) == 0
        log.discard_replacement()
    else:
        with pytest.raises(OSError, match="Input/output"):
            log.prepare([0, 1, 2], cleaned)
    assert derived(disk) == before
    log.settle()
    log.close()
    assert values(opened(disk, clean=True)) == list(range(SEGMENTS))
    assert not caplog.records


def derived(disk: MemoryDisk) -> dict[str, bytes]:
    """Return the derived files of the first segment, and a replacement that waits for its name."""
    names = [name for name in disk.list(FOLDER) if name.startswith(f"{0:020d}.")]
    return {
        name: disk.read(f"{FOLDER}/{name}")
        for name in names
        if not name.endswith((".log", ".cleaned"))
    }


def test_checksums_of_a_dropped_segment_do_not_come_back() -> None:
    disk = LosesRenames()
    log = replaced(disk, 1)
    log.allow_drop(2)
    log.drop_segments(2)
    assert not log.take_place([0, 1, 2])
    log.discard_replacement()
    assert not disk.exists(f"{FOLDER}/{0:020d}.checksums")


def test_a_replacement_that_the_disk_stops_is_dropped_or_finished_by_the_next_start() -> None:
    for drops in (False, True):
        disk = LosesRenames()
        log = replaced(disk, 2)
        disk.failing.add("rename")
        with pytest.raises(OSError, match="Input/output"):
            log.put_away_replaced()
        disk.failing.clear()
        assert values(log) == list(range(SEGMENTS))
        if drops:
            log.allow_drop(3)
            assert log.drop_segments(3) == 1
        disk.crash(0.0)
        assert values(opened(disk)) == list(range(3 if drops else 0, SEGMENTS))


def test_nothing_is_staged_where_a_log_was_removed() -> None:
    disk = LosesRenames()
    log = filled(disk)
    cleaned = f"{FOLDER}/{0:020d}.log.cleaned"
    disk.write(cleaned, disk.read(f"{FOLDER}/{0:020d}.log"))
    log.retire()
    with pytest.raises(OSError, match="is removed"):
        log.prepare([0], cleaned)
    assert not disk.exists(f"{FOLDER}/{0:020d}.log.swap")


def test_a_replacement_that_ends_where_no_segment_begins_takes_none_away() -> None:
    """The offset of its last batch is damaged, which no checksum covers."""
    disk = closed()
    content = bytearray(b"".join(disk.read(f"{FOLDER}/{n:020d}.log") for n in range(3)))
    size = disk.size(f"{FOLDER}/{2:020d}.log")
    content[-size : len(content) - size + 8] = (40).to_bytes(8)
    disk.write(f"{FOLDER}/{0:020d}.log.swap", bytes(content))
    before = {name: disk.read(f"{FOLDER}/{name}") for name in disk.list(FOLDER) if ".log" in name}
    with pytest.raises(CorruptFileError, match=r"swap: it ends with offset 40, and no segment"):
        opened(disk)
    assert {name: disk.read(f"{FOLDER}/{name}") for name in before} == before


def test_no_file_with_another_name_is_a_replacement() -> None:
    disk = closed()
    disk.write(f"{FOLDER}/orders.log.swap", b"mine")
    assert values(opened(disk)) == list(range(SEGMENTS))


def test_a_log_that_is_refused_keeps_the_segments_that_were_put_away() -> None:
    """The replacement is missing; what it replaces is all that is left of the records."""
    disk = closed()
    first = f"{FOLDER}/{0:020d}.log"
    disk.rename(first, f"{first}.deleted")
    with pytest.raises(CorruptFileError, match="offsets 0 to 0 are missing"):
        opened(disk)
    disk.rename(f"{first}.deleted", first)
    disk.write(f"{FOLDER}/{1:020d}.log.deleted", b"of an earlier compaction")
    assert values(opened(disk)) == list(range(SEGMENTS))
    assert not disk.exists(f"{FOLDER}/{1:020d}.log.deleted")


@pytest.mark.parametrize("suffix", ["", ".deleted"])
def test_an_empty_replacement_takes_no_segment_away(suffix: str) -> None:
    disk = closed()
    first = f"{FOLDER}/{0:020d}.log"
    disk.rename(first, f"{first}{suffix}")
    disk.write(f"{first}.swap", b"")
    before = {name: disk.read(f"{FOLDER}/{name}") for name in disk.list(FOLDER) if ".log" in name}
    with pytest.raises(CorruptFileError, match=r"swap at byte 0: the file is empty"):
        opened(disk)
    assert {name: disk.read(f"{FOLDER}/{name}") for name in before} == before
