"""Torn is not corrupt: what a log refuses, cuts off with a copy, and rebuilds."""

import errno
import logging
from collections.abc import Callable, Iterator
from random import Random

import pytest

from headrace.core.types import WallMs
from headrace.log import damage, repair, snapshots
from headrace.log.api import (
    CorruptFileError,
    CorruptLog,
    DamagedBlockError,
    NewerFormatError,
)
from headrace.log.memory_disk import MemoryDisk, MemoryFile
from headrace.log.recovery_point import (
    NO_CLAIM,
    Claim,
    RecoveryPoint,
    begin_point,
    encoded,
    read_claim,
)
from headrace.log.segments import SegmentedLog
from headrace.log.verify import verify_file
from headrace.wire import batches
from headrace.wire.batches import HEADER_BYTES, Record
from headrace.wire.checksums import crc32c

FOLDER = "orders-0"
POINT = f"{FOLDER}/recovery-point"
LEADER_EPOCH_AT, LAST_OFFSET_DELTA_AT = 12, 23
REMEDY = "run `headrace check`, then `headrace repair` or restore a backup"
Account = list[tuple[int, int, bytes | None]]


def opened(disk: MemoryDisk, *, clean: bool = False) -> SegmentedLog:
    return SegmentedLog(
        disk, FOLDER, segment_bytes=3000, index_interval_bytes=200, clean=clean
    )  # fmt: skip


def append(log: SegmentedLog, number: int, size: int = 40) -> None:
    record = Record(0, 1000 + number, None, b"%d" % number * (size // len(b"%d" % number)))
    data = batches.build(
        [record, record], producer_id=5 + number % 3, producer_epoch=0,
        base_sequence=2 * (number // 3),
    )  # fmt: skip
    log.append(bytearray(data), batches.headers(data))


def filled(count: int = 60, *, synced: bool = True) -> MemoryDisk:
    disk = MemoryDisk()
    log = opened(disk)
    for number in range(count):
        append(log, number)
    if synced:
        log.sync()
    log.close()
    return disk


def closed(count: int = 60) -> MemoryDisk:
    disk = filled(count)
    log = opened(disk)
    log.settle()
    log.close()
    return disk


def account(log: SegmentedLog) -> Account:
    """All that readers see."""
    found: Account = []
    offset = log.start_offset
    while offset < log.end_offset:
        data = log.read_bytes(offset, 700)
        assert data, f"nothing at {offset}"
        found += [(one.offset, one.timestamp, one.value) for one in batches.records(data)]
        assert found[-1][0] >= offset
        offset = found[-1][0] + 1
    return found


def producers(log: SegmentedLog) -> set[snapshots.Entry]:
    return set(log.producers.entries())


def copied(disk: MemoryDisk) -> MemoryDisk:
    copy = MemoryDisk()
    for name in disk.list(FOLDER):
        copy.write(f"{FOLDER}/{name}", disk.read(f"{FOLDER}/{name}"))
    return copy


def contents(disk: MemoryDisk) -> dict[str, bytes]:
    return {name: disk.read(f"{FOLDER}/{name}") for name in disk.list(FOLDER)}


def fail_to_sync(disk: MemoryDisk, log: SegmentedLog) -> None:
    """Let one sync fail; the disk works again afterwards."""
    disk.failing.add("sync")
    with pytest.raises(OSError, match="Input"):
        log.sync()
    disk.failing.clear()


def last_log(disk: MemoryDisk) -> str:
    return max(f"{FOLDER}/{name}" for name in disk.list(FOLDER) if name.endswith(".log"))


def flip(disk: MemoryDisk, path: str, position: int, bit: int = 0) -> None:
    data = bytearray(disk.read(path))
    data[position] ^= 1 << bit
    disk.write(path, bytes(data))


# ---- the end of the last segment


@pytest.mark.parametrize("part", ["offset", "size", "magic", "checksum", "record"])
def test_damage_that_a_valid_batch_follows_is_refused(part: str) -> None:
    disk = MemoryDisk()
    log = SegmentedLog(disk, FOLDER)
    for number in range(10):
        append(log, number)
    log.close()  # never synced, as under durability os
    path, size = last_log(disk), log.size_bytes // 10
    at = {"offset": 7, "size": 11, "magic": 16, "checksum": 18, "record": 80}[part]
    flip(disk, path, 3 * size + at)
    before = contents(disk)
    with pytest.raises(CorruptFileError) as refusal:
        SegmentedLog(disk, FOLDER)
    assert refusal.value.position == 3 * size
    message = str(refusal.value)
    assert message.startswith(f"{path} at byte {3 * size}: ")
    assert f"and a valid batch follows at byte {4 * size}; {REMEDY}" in message
    assert "\n" not in message
    assert contents(disk) == before


@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("part", ["offset", "checksum", "record"])
def test_a_reader_and_a_check_name_the_same_damaged_batch(part: str, is_last: bool) -> None:
    disk = closed(12)
    path = last_log(disk)
    first, *_, before, last = batches.headers(disk.read(path))
    position = disk.size(path) - last.size - (0 if is_last else before.size)
    data = bytearray(disk.read(path))
    if part == "offset":  # lower than that of the batch before
        data[position : position + 8] = first.base_offset.to_bytes(8, "big")
    else:
        data[position + {"checksum": 18, "record": 80}[part]] ^= 1
    disk.write(path, bytes(data))
    with pytest.raises(CorruptFileError) as check:
        list(verify_file(disk, path, disk.size(path)))
    with pytest.raises((DamagedBlockError, CorruptFileError)) as refusal:
        account(opened(disk, clean=True))
    error = refusal.value
    refused = error.damage if isinstance(error, DamagedBlockError) else error
    assert isinstance(refused, CorruptFileError)
    assert refused.position == check.value.position == position
    assert refused.problem.startswith(check.value.problem)


def test_damage_is_named_although_another_file_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = filled()
    path, read = last_log(disk), disk.read
    flip(disk, path, 100)
    other = f"{FOLDER}/{1:020d}.index"
    disk.write(other, b"")

    def failing(requested: str, count: int = -1, position: int = 0) -> bytes:
        if requested == other:
            raise OSError(errno.EIO, "Input/output error")
        return read(requested, count, position)

    monkeypatch.setattr(disk, "read", failing)
    with pytest.raises(CorruptFileError, match=path):
        SegmentedLog(disk, FOLDER)


def test_damage_below_the_recovery_point_is_refused_also_at_the_very_end() -> None:
    disk = filled(10)
    path = last_log(disk)
    flip(disk, path, disk.size(path) - 1)
    with pytest.raises(CorruptFileError, match="below the recovery point at byte"):
        opened(disk)


def test_a_power_cut_after_a_refusal_does_not_make_damage_pass_for_a_torn_end() -> None:
    disk = filled(10)
    path = last_log(disk)
    flip(disk, path, disk.size(path) - 1)
    for _ in range(3):
        with pytest.raises(CorruptFileError, match="below the recovery point at byte"):
            opened(disk)
        disk.crash()


def test_a_power_cut_after_a_refusal_does_not_make_a_lost_segment_pass_for_none() -> None:
    """The last segment is empty: all that is known of the first is the recovery point's."""
    disk = filled(10)
    log = opened(disk)
    log.begin_seal()
    log.prepare_next()
    log.begin_next()
    log.close()
    assert disk.size(last_log(disk)) == 0
    disk.remove(f"{FOLDER}/{0:020d}.log")
    RecoveryPoint(disk, FOLDER).replace(Claim(0, 20, 0, 20))
    disk._files[f"{FOLDER}/recovery-point"].synced = 0
    for _ in range(3):
        with pytest.raises(CorruptFileError, match="offsets 0 to 19 are missing"):
            opened(disk)
        disk.crash()


def test_a_torn_end_is_cut_off_and_kept(caplog: pytest.LogCaptureFixture) -> None:
    disk = filled(10)
    log = opened(disk)
    append(log, 10)
    append(log, 11)
    path, whole = last_log(disk), disk.read(last_log(disk))
    for _ in range(2):  # a second crash at the same byte takes no copy away
        disk.write(path, whole[:-20])
        assert opened(disk).end_offset == 22
        assert disk.read(path) == whole[: -len(whole) + len(disk.read(path))]
    torn = whole[len(disk.read(path)) : -20]
    names = [name for name in disk.list(FOLDER) if ".torn." in name]
    position = len(disk.read(path))
    name = path.removeprefix(f"{FOLDER}/")
    assert names == [f"{name}.torn.{position}", f"{name}.torn.{position}.2"]
    assert {disk.read(f"{FOLDER}/{one}") for one in names} == {torn}
    assert [one.levelno for one in caplog.records] == [logging.WARNING] * 2
    assert f"copy kept in {FOLDER}/{names[0]}" in caplog.text
    again = opened(disk)
    assert set(names) <= set(disk.list(FOLDER)), "no start removes them"
    again.allow_drop(again.end_offset)
    again.drop_segments(again.end_offset)
    assert set(names) <= set(disk.list(FOLDER)), "nor does retention"


def test_no_space_for_the_copy_leaves_the_torn_end_where_it_is() -> None:
    disk = filled(10)
    path = last_log(disk)
    disk.write(path, disk.read(path) + b"torn")
    before = contents(disk)
    disk.fail_after(0)
    with pytest.raises(OSError, match="No space"):
        opened(disk)
    assert contents(disk) == before


def test_a_batch_inside_the_damage_is_found_wherever_it_begins() -> None:
    valid = batches.build([Record(0, 1, None, b"v" * 50)], base_offset=70)
    rng = Random(3)
    for at in [0, 1, HEADER_BYTES, (1 << 20) - 70, (1 << 20) - 30, (1 << 20) + 5]:
        noise = rng.randbytes(at) + b"\2" * 40
        data = noise + valid + rng.randbytes(30)

        def pread(count: int, position: int, data: bytes = data) -> bytes:
            return data[position : position + count]

        assert damage.next_batch(pread, 0, len(data), 70) == len(noise)
        assert damage.next_batch(pread, 0, len(data), 71) is None, "of an offset before"
        assert damage.next_batch(pread, len(noise) + 1, len(data), 70) is None
        assert damage.next_batch(pread, 0, len(data) - 31, 70) is None, "it is cut short"


# ---- what must exist


def test_a_missing_first_or_last_segment_is_refused_by_name() -> None:
    for clean in (True, False):
        for last in (True, False):
            disk = closed()
            logs = sorted(name for name in disk.list(FOLDER) if name.endswith(".log"))
            name = logs[-1] if last else logs[0]
            disk.remove(f"{FOLDER}/{name}")
            with pytest.raises(CorruptFileError, match=f"{FOLDER}/{name}: .* missing"):
                opened(disk, clean=clean)


def test_segments_that_retention_dropped_are_not_missed() -> None:
    disk = filled()
    log = opened(disk)
    middle = log.segments()[2].base_offset
    log.allow_drop(middle)
    assert log.drop_segments(middle) == 2
    disk.crash(0.0)
    assert opened(disk).start_offset == middle
    flip(disk, POINT, 512 + 30)  # either slot has the new start
    assert opened(disk).start_offset == middle


def test_a_segment_is_missed_that_was_never_synced() -> None:
    disk = MemoryDisk()
    append(SegmentedLog(disk, FOLDER), 0)
    disk.kill()
    disk.remove(last_log(disk))
    with pytest.raises(CorruptFileError, match="the last segment of the log is missing"):
        SegmentedLog(disk, FOLDER)


def test_the_end_at_an_orderly_stop_must_be_the_end_at_the_next_start() -> None:
    disk = closed()
    end = opened(disk, clean=True).end_offset
    SegmentedLog(disk, FOLDER, clean=True, end_offset=end).close()
    with pytest.raises(CorruptFileError, match=f"ends at offset {end}; it ended at {end + 1}"):
        SegmentedLog(disk, FOLDER, clean=True, end_offset=end + 1)


# ---- recovery points


def test_a_recovery_point_is_the_newer_of_two_slots() -> None:
    disk = MemoryDisk()
    point = RecoveryPoint(disk, FOLDER)
    point.began(0, 0, 77)
    claims = [Claim(0, 0, 10 * n, n, 77) for n in range(1, 5)]
    for claim in claims:
        point.synced(*claim[1:4])
        assert read_claim(disk, FOLDER)[1] == claim
    good = disk.read(POINT)
    for bit in range(8 * len(good)):
        flip(disk, POINT, bit // 8, bit % 8)
        assert read_claim(disk, FOLDER)[1] in claims[-2:], bit
        disk.write(POINT, good)
    for size in range(len(good)):
        disk.write(POINT, good[:size])
        claim = read_claim(disk, FOLDER)[1]
        assert claim in claims or claim.base_offset == -1


def test_a_power_cut_loses_no_claim_that_was_synced() -> None:
    for seed in range(40):
        disk, rng = MemoryDisk(), Random(seed)
        point = RecoveryPoint(disk, FOLDER)
        point.settled(Claim(0, 0, 10, 1))
        for n in range(2, 2 + rng.randrange(4)):
            point.synced(0, 10 * n, n)

        def survives(_: str, unsynced: bytes, rng: Random = rng) -> bytes:
            return rng.choice((b"", unsynced))  # a sector is written whole

        disk.crash(survives)
        claim = read_claim(disk, FOLDER)[1]
        assert 10 <= claim.size == 10 * claim.end_offset <= point.claim.size


def test_a_claim_whose_sync_failed_is_written_again_by_the_next_try() -> None:
    """Else segments went that a power cut let the recovery point claim again."""
    disk = MemoryDisk()
    point = RecoveryPoint(disk, FOLDER)
    point.settled(Claim(0, 13, 10, 18, 77))
    overwrite = disk.overwrite

    def unsynced(path: str, data: bytes, position: int, *, durable: bool = False) -> None:
        overwrite(path, data, position)
        if durable:
            raise OSError(errno.EIO, "the sync fails")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk, "overwrite", unsynced)
        for change in (point.dropping, point.emptied):
            with pytest.raises(OSError, match="the sync fails"):
                change(13)
    point.dropping(13)
    point.emptied(13)
    disk.crash(lambda *_: b"")
    assert read_claim(disk, FOLDER)[1] == Claim(13, 13, 10, 18)


def test_a_newer_recovery_point_is_refused_untouched() -> None:
    disk = filled(3)
    slot = bytearray(encoded(POINT, 99, Claim(0, 0, 1, 1)))
    slot[5] = 2
    with_crc = slot[:60] + damage_crc(bytes(slot[:60]))
    disk.overwrite(POINT, bytes(with_crc), 0)
    before = contents(disk)
    for clean in (False, True):
        with pytest.raises(NewerFormatError, match="format version 2 was written by a newer Head"):
            opened(disk, clean=clean)
        assert contents(disk) == before


def damage_crc(data: bytes) -> bytes:
    return int(crc32c(data, crc32c(POINT.encode() + b"\n"))).to_bytes(4, "big")


def test_the_recovery_point_of_a_format_0_folder_counts_and_is_replaced() -> None:
    disk = filled(10)
    size = disk.size(last_log(disk))
    disk.write(POINT, f"0 {size}\n".encode())
    flip(disk, last_log(disk), size - 1)
    with pytest.raises(CorruptFileError, match="below the recovery point"):
        opened(disk)
    flip(disk, last_log(disk), size - 1)
    log = opened(disk)
    append(log, 10)
    log.sync()
    assert read_claim(disk, FOLDER)[1] == Claim(-1, 0, log.size_bytes, 22)


# ---- a whole file of another log


def first_crc(disk: MemoryDisk) -> int:
    return next(iter(batches.headers(disk.read(last_log(disk))))).crc


@pytest.mark.parametrize("synced", [True, False])
def test_a_last_segment_of_another_log_is_refused(synced: bool) -> None:
    """The files are alike: same name, size, offsets, and all batches are valid."""
    disk, other = filled(2, synced=synced), MemoryDisk()
    log = opened(other)
    for number in (1, 0):
        append(log, number)
    log.close()
    path = last_log(disk)
    foreign = other.read(path)
    assert (len(foreign), foreign == disk.read(path)) == (disk.size(path), False)
    disk.write(path, foreign)
    with pytest.raises(CorruptFileError, match="the first batch is not the one that was written"):
        opened(disk)
    assert disk.read(path) == foreign


@pytest.mark.parametrize("at", [20, 70])
def test_a_stop_takes_no_checksum_of_a_damaged_first_batch_for_the_right_one(at: int) -> None:
    """The claim lacks it after a repair; a backup of the segment was refused as another log's."""
    disk = closed(2)
    path, sound = last_log(disk), disk.read(last_log(disk))
    claim = read_claim(disk, FOLDER)[1]
    RecoveryPoint(disk, FOLDER).replace(claim._replace(first_crc=0))
    log = opened(disk)
    append(log, 2)
    flip(disk, path, at)
    log.settle()
    log.close()
    assert read_claim(disk, FOLDER)[1].first_crc == 0
    data = disk.read(path)
    disk.write(path, sound + data[len(sound) :])
    opened(disk).close()


def test_a_first_batch_that_a_power_cut_took_may_be_followed_by_another() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    append(log, 1)
    for content in (disk._files[POINT], disk._files[last_log(disk)]):
        content.synced = 0 if content.data[:4] != b"HRRP" else len(content.data)
    disk._files[POINT].sync()  # the claim survives, the batch does not
    disk.crash()
    log = opened(disk)
    assert log.end_offset == 0
    append(log, 2)
    disk._files[last_log(disk)].sync()
    disk.crash()  # now the batch survives, and the claim that followed it does not
    log = opened(disk)
    assert log.end_offset == 2
    append(log, 3)
    log.close()
    assert opened(disk).end_offset == 4


def test_a_first_batch_that_a_failed_sync_took_back_may_be_followed_by_another() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    append(log, 1)
    before = first_crc(disk)
    disk.failing = {"sync"}
    with pytest.raises(OSError, match="Input/output"):
        log.sync()
    disk.failing = set()
    log.mend(keep=False)
    log.resume()
    append(log, 2)
    assert read_claim(disk, FOLDER)[1].first_crc == first_crc(disk) != before
    disk._files[last_log(disk)].sync()
    disk.crash()
    assert opened(disk).end_offset == 2


def foreign(numbers: tuple[int, ...], disk: MemoryDisk) -> None:
    """Put the last segment of another log in the place of one that has the same offsets."""
    other = MemoryDisk()
    log = opened(other)
    for number in numbers:
        append(log, number)
    log.close()
    assert len(other.read(last_log(other))) == disk.size(last_log(disk))
    disk.write(last_log(disk), other.read(last_log(other)))


def without_claim() -> MemoryDisk:
    disk = filled(2)
    disk.remove(POINT)  # it is never synced
    return disk


def test_a_claim_that_a_power_cut_took_is_made_of_the_first_batch_again() -> None:
    disk = without_claim()
    log = opened(disk)
    append(log, 3)
    log.sync()
    claim = read_claim(disk, FOLDER)[1]
    assert (claim.size, claim.first_crc) == (log.size_bytes, first_crc(disk))
    log.close()
    assert opened(disk).end_offset == 6
    foreign((1, 0, 3), disk)
    with pytest.raises(CorruptFileError, match="the first batch is not the one that was written"):
        opened(disk)


@pytest.mark.parametrize("clean", [True, False])
def test_a_missing_recovery_point_is_logged_once_and_written_anew(
    clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    disk = closed()
    disk.remove(POINT)
    for _ in range(2):
        opened(disk, clean=clean).close()
        (line,) = [one for one in caplog.records if one.levelno >= logging.WARNING]
        assert line.levelno == logging.WARNING
        assert line.getMessage().startswith(f"{POINT}: the file is missing, so damage at the end")
    claim = read_claim(disk, FOLDER)[1]
    assert (claim.first_base, claim.first_crc) == (0, first_crc(disk))
    disk.remove(last_log(disk))
    with pytest.raises(CorruptFileError, match="the last segment of the log is missing"):
        opened(disk)


@pytest.mark.parametrize("clean", [True, False])
def test_a_recovery_point_that_the_log_had_must_be_there(clean: bool) -> None:
    disk = closed()
    whole = disk.read(POINT)
    disk.remove(POINT)
    disk.remove(last_log(disk))
    before = {name: disk.read(f"{FOLDER}/{name}") for name in disk.list(FOLDER)}
    with pytest.raises(CorruptFileError, match=rf"^{POINT}: the file is missing.*{REMEDY}"):
        SegmentedLog(disk, FOLDER, clean=clean, has_point=True)
    assert {name: disk.read(f"{FOLDER}/{name}") for name in disk.list(FOLDER)} == before
    disk.write(POINT, whole)
    with pytest.raises(CorruptFileError, match="the last segment of the log is missing"):
        SegmentedLog(disk, FOLDER, clean=clean, has_point=True)


def test_segments_that_are_all_missing_are_noticed_without_a_claim() -> None:
    disk = MemoryDisk()
    RecoveryPoint(disk, FOLDER).begin()
    with pytest.raises(CorruptFileError, match=f"^{FOLDER}: all segments of the log are missing"):
        SegmentedLog(disk, FOLDER, has_point=True)


def test_missing_checksums_are_logged_once_for_a_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    disk = closed()
    names = [name for name in disk.list(FOLDER) if name.endswith(".checksums")]
    for name in names:
        disk.remove(f"{FOLDER}/{name}")
    opened(disk, clean=True).close()
    of_sealed, of_last = [one.getMessage() for one in caplog.records]
    assert of_sealed.startswith(f"{FOLDER}: {len(names) - 1} segments have no .checksums")
    assert of_last.startswith(f"{FOLDER}/{names[-1]}: the file is missing; rebuilt")


def test_an_empty_log_needs_no_recovery_point(caplog: pytest.LogCaptureFixture) -> None:
    disk = MemoryDisk()
    for _ in range(2):
        opened(disk).close()
    assert (caplog.records, disk.exists(POINT)) == ([], False)


def test_an_orderly_stop_finds_the_first_batch_where_the_claim_was_lost() -> None:
    disk = without_claim()
    log = opened(disk)
    log.settle()
    log.close()
    assert read_claim(disk, FOLDER)[1].first_crc == first_crc(disk)


def test_a_first_batch_that_cannot_be_read_stays_unknown() -> None:
    disk = without_claim()
    disk.failing = {"read"}
    begin_point(disk, FOLDER)
    assert read_claim_of(disk) == Claim(-1, 0, 0, 0)
    disk.failing = set()
    log = opened(disk)
    append(log, 3)
    log.close()
    assert opened(disk).end_offset == 6


def read_claim_of(disk: MemoryDisk) -> Claim:
    failing, disk.failing = disk.failing, set()
    claim = read_claim(disk, FOLDER)[1]
    disk.failing = failing
    return claim


@pytest.mark.parametrize("number", [0, 3])
def test_checksums_of_an_earlier_stop_tell_the_last_segment_from_another(number: int) -> None:
    """Without a claim, after an unclean stop, where a start used to remove the checksums."""
    disk = filled(2)
    log = opened(disk)
    log.settle()
    log.close()
    log = opened(disk, clean=True)
    for later in range(number):
        append(log, 2 + later)
    log.close()
    disk.remove(POINT)
    sound = disk.read(last_log(disk))
    foreign((1, 0, *range(2, 2 + number)), disk)
    for _ in range(2):
        with pytest.raises(CorruptFileError, match="not the segment of which the checksums"):
            opened(disk)
    disk.write(last_log(disk), sound)
    assert opened(disk).end_offset == 4 + 2 * number


def test_the_first_batch_is_known_after_an_orderly_stop_and_in_a_further_segment() -> None:
    disk = closed()
    assert read_claim(disk, FOLDER)[1].first_crc == first_crc(disk)
    log = opened(disk, clean=True)
    log.roll()
    log.settle()
    log.close()
    log = opened(disk, clean=True)
    append(log, 60)
    assert read_claim(disk, FOLDER)[1].first_crc == first_crc(disk)
    log.close()


# ---- cutting a log whose offsets have gaps


@pytest.mark.parametrize("base_offset", [0, 38])
def test_a_compacted_log_is_cut_behind_a_whole_batch_and_opens_again(base_offset: int) -> None:
    """Compaction leaves gaps, which only a sealed segment may have."""
    disk = closed()
    path = f"{FOLDER}/{base_offset:020d}.log"
    bases = repair.segment_bases(disk, FOLDER)
    end = next((base for base in bases if base > base_offset), None)
    assert base_offset in bases
    assert end is not None
    data = disk.read(path)
    kept, position, at = bytearray(), 0, 0
    for number, header in enumerate(batches.headers(data)):
        if number % 3 == 0 or header.last_offset + 1 == end:
            at = len(kept) if len(kept) < 500 else at
            kept += data[position : position + header.size]
        position += header.size
    disk.write(path, bytes(kept))
    for suffix in (".index", ".timeindex", ".checksums"):
        disk.remove(path.replace(".log", suffix))
    before = account(opened(disk))
    repair.cut_log(disk, FOLDER, base_offset, at)
    log = opened(disk)
    assert account(log) == before[: len(account(log))]
    assert account(log)
    last = list(batches.headers(bytes(kept[:at])))[-1]
    assert log.end_offset == last.last_offset + 1
    append(log, 99)
    log.close()
    again = opened(disk)
    assert again.end_offset == last.last_offset + 3
    assert disk.read(path) == kept[:at]


# ---- a campaign over all files of a log


def damages(disk: MemoryDisk, rng: Random, count: int) -> Iterator[tuple[str, str, MemoryDisk]]:
    """One damaged copy after the other: the file, the damage, and the disk."""
    names = disk.list(FOLDER)
    for name in names:
        path, size = f"{FOLDER}/{name}", disk.size(f"{FOLDER}/{name}")
        for _ in range(count):
            copy, data = copied(disk), bytearray(disk.read(f"{FOLDER}/{name}"))
            kind = rng.choice(("flip", "cut", "zero", "remove", "empty", "longer", "other"))
            at = rng.randrange(size) if size else 0
            match kind:
                case "flip" if size:
                    data[at] ^= 1 << rng.randrange(8)
                case "cut":
                    del data[at:]
                case "zero":
                    data[at : at + 512] = bytes(len(data[at : at + 512]))
                case "empty":
                    data.clear()
                case "longer":
                    data += rng.randbytes(1 + rng.randrange(100))
                case "other":
                    data[:] = disk.read(f"{FOLDER}/{rng.choice(names)}")
            copy.write(path, bytes(data))
            if kind == "remove":
                copy.remove(path)
            if contents(copy) != contents(disk):
                yield name, f"{kind} at {at}", copy


def outcome_of(
    disk: MemoryDisk, whole: Account, remembered: set[snapshots.Entry], *, clean: bool
) -> tuple[str, str]:
    """What becomes of a damaged log, and the line of the refusal."""
    try:
        log = opened(disk, clean=clean)
    except CorruptLog as error:
        return "refused", str(error)
    assert producers(log) == remembered
    try:
        found = account(log)
    except OSError as error:
        return "read", str(error)
    assert found == whole
    return "equal", ""


@pytest.mark.parametrize("clean", [True, False])
def test_no_damage_makes_a_silent_difference(clean: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    disk = closed() if clean else filled()
    log = opened(copied(disk), clean=clean)
    whole, remembered = account(log), producers(log)
    outcomes = {"equal": 0, "refused": 0, "read": 0}
    for name, what, copy in damages(disk, Random(11), 60):
        outcome, line = outcome_of(copy, whole, remembered, clean=clean)
        outcomes[outcome] += 1
        where = FOLDER if outcome == "refused" else f"{FOLDER}/{name}"
        assert outcome == "equal" or (where in line and "\n" not in line), (name, what, line)
    assert all(outcomes.values()), outcomes


def test_every_sync_is_claimed_before_it_is_seen_though_appends_follow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = MemoryDisk()
    log = SegmentedLog(disk, FOLDER)
    append(log, 0)
    file_sync, synced = MemoryFile.sync, RecoveryPoint.synced

    def sync_amid_appends(file: MemoryFile) -> None:
        file_sync(file)
        append(log, 1)

    def claimed_first(point: RecoveryPoint, base_offset: int, size: int, end_offset: int) -> None:
        assert log.durable_end < end_offset
        synced(point, base_offset, size, end_offset)

    with monkeypatch.context() as patch:
        patch.setattr(MemoryFile, "sync", sync_amid_appends)
        patch.setattr(RecoveryPoint, "synced", claimed_first)
        for _ in range(20):
            promised, size = log.end_offset, log.size_bytes
            log.sync()
            assert log.durable_end == promised
    disk.kill()
    assert read_claim(disk, FOLDER)[1][1:4] == (0, size, promised)
    path, data = last_log(disk), disk.read(last_log(disk))
    for torn in (data[: size - 9], data[: size - 9] + bytes(len(data) - size + 9)):
        disk.write(path, torn)
        with pytest.raises(CorruptFileError, match=r"below the recovery point|were synced"):
            SegmentedLog(disk, FOLDER)


def test_a_sync_claims_a_segment_that_its_first_append_could_not_claim() -> None:
    """Another thread held the recovery point then."""
    disk = MemoryDisk()
    log = SegmentedLog(disk, FOLDER)
    with log._point._lock:
        append(log, 0)
    assert read_claim(disk, FOLDER)[1] == NO_CLAIM
    log.sync()
    claim = Claim(0, 0, log.size_bytes, log.end_offset, first_crc(disk))
    assert read_claim(disk, FOLDER)[1] == claim


def test_a_whole_batch_at_a_wrong_offset_is_refused() -> None:
    """Behind the recovery point, as the last one; no crash puts it there."""
    disk = MemoryDisk()
    log = SegmentedLog(disk, FOLDER)
    append(log, 0)
    log.sync()
    append(log, 1)
    log.close()
    path, size = last_log(disk), read_claim(disk, FOLDER)[1].size
    sound = disk.read(path)
    for offset in (0, 1, 3, 1 << 40):
        data = bytearray(sound)
        data[size : size + 8] = offset.to_bytes(8, "big")
        disk.write(path, bytes(data))
        with pytest.raises(CorruptFileError, match="although the batch there is whole") as refusal:
            SegmentedLog(disk, FOLDER)
        assert refusal.value.position == size
        assert disk.read(path) == data
        data[-1] ^= 1
        disk.write(path, bytes(data))
        assert SegmentedLog(copied(disk), FOLDER).end_offset == 2, "that is torn"


def test_after_a_kill_only_the_unsynced_end_may_go_and_a_copy_stays() -> None:
    disk = MemoryDisk()
    log = SegmentedLog(disk, FOLDER)
    for number in range(12):
        append(log, number)
        if number == 8:
            log.sync()
    log.close()
    whole, path = account(SegmentedLog(copied(disk), FOLDER)), last_log(disk)
    size = disk.size(path)
    outcomes = set()
    for position in range(size):
        copy = copied(disk)
        flip(copy, path, position, position % 8)
        try:
            log = SegmentedLog(copy, FOLDER)
        except CorruptFileError:
            outcomes.add("refused")
            continue
        found = account(log)
        outcomes.add("torn")
        assert found == whole[: len(found)]
        assert len(found) == 22, "the last batch, of which nothing was synced"
        assert any(".torn." in name for name in copy.list(FOLDER))
    assert outcomes == {"refused", "torn"}


def test_every_flipped_bit_of_an_index_is_found_and_the_index_rebuilt() -> None:
    disk = closed()
    whole = account(opened(copied(disk), clean=True))
    name = min(name for name in disk.list(FOLDER) if name.endswith(".index"))
    good = disk.read(f"{FOLDER}/{name}")
    for bit in range(8 * len(good)):
        copy = copied(disk)
        flip(copy, f"{FOLDER}/{name}", bit // 8, bit % 8)
        assert account(opened(copy, clean=True)) == whole
        assert copy.read(f"{FOLDER}/{name}") == good


# ---- repair


def test_a_log_is_cut_at_the_damage_and_everything_is_kept() -> None:
    disk = closed()
    log = opened(copied(disk), clean=True)
    whole, remembered = account(log), log.segments()
    chosen = remembered[1]
    _, header = next(iter(batches_of(disk, f"{chosen.path}.log")))
    flip(disk, f"{chosen.path}.log", header + 70)
    copies = repair.cut_log(disk, FOLDER, chosen.base_offset, header)
    log = opened(disk)
    assert account(log) == [one for one in whole if one[0] < log.end_offset]
    assert log.end_offset == chosen.base_offset + 2
    assert len(copies) == len(remembered) - 1
    assert all(disk.exists(path) for path in copies)
    append(log, 1)
    log.settle()
    log.close()
    assert len(account(opened(disk, clean=True))) == log.end_offset


def batches_of(disk: MemoryDisk, path: str) -> Iterator[tuple[int, int]]:
    """Where batches begin, and where they end."""
    data, position = disk.read(path), 0
    for header in batches.headers(data):
        yield position, position + header.size
        position += header.size


def test_the_beginning_of_a_log_can_be_given_up() -> None:
    disk = closed()
    log = opened(copied(disk), clean=True)
    whole, second = account(log), log.segments()[1].base_offset
    flip(disk, f"{FOLDER}/{0:020d}.log", 70)
    (aside,) = repair.drop_log_head(disk, FOLDER, second)
    assert disk.exists(aside)
    for _ in range(2):
        log = opened(disk)
        assert (log.start_offset, account(log)) == (second, [x for x in whole if x[0] >= second])
        log.settle()
        log.close()


def test_the_claim_of_a_log_that_was_closed_survives_a_power_cut() -> None:
    disk = MemoryDisk()
    log = SegmentedLog(disk, FOLDER)
    append(log, 0)
    log.sync()
    log.settle()
    log.close()
    claim = read_claim(disk, FOLDER)[1]
    assert claim.size > 0
    disk.crash()
    assert read_claim(disk, FOLDER)[1] == claim


def test_damage_met_after_a_failed_sync_changes_nothing_of_the_log() -> None:
    """A duplicate of a batch that was cut off was acknowledged."""
    disk = MemoryDisk()
    log = SegmentedLog(disk, FOLDER)
    append(log, 0)
    append(log, 1)
    log.sync()
    append(log, 2)
    fail_to_sync(disk, log)
    end, durable_end = log.end_offset, log.durable_end
    disk._files[last_log(disk)].data[HEADER_BYTES + 3] ^= 1  # the log has the file open
    log.mend(keep=False)
    with pytest.raises(OSError, match="checksum"):
        log.resume()
    assert (log.end_offset, log.durable_end) == (end, durable_end)


def test_what_a_failed_sync_has_cut_off_is_no_damage() -> None:
    log = SegmentedLog(disk := MemoryDisk(), FOLDER)
    append(log, 0)
    log.sync()
    append(log, 1)
    fail_to_sync(disk, log)
    log.mend(keep=False)
    reads: list[Callable[[], object]] = [
        lambda: log.read(2, 1000),
        lambda: log.read_bytes(2, 1000),
        lambda: log.read_through(2, 2, 1000, end=4),
        lambda: log.offset_for_time(WallMs(1001)),
        log.offset_of_max_time,
    ]
    for read in reads:
        with pytest.raises(OSError, match="a sync failed and is not repaired yet") as failure:
            read()
        assert not isinstance(failure.value, DamagedBlockError)
    assert len(log.read(0, 1000).headers) == 1
    log.resume()
    assert log.end_offset == 2


@pytest.mark.parametrize("number", [0, 4, 9])
@pytest.mark.parametrize("delta", [0, -1])
def test_a_damaged_number_of_offsets_hides_no_record(number: int, delta: int) -> None:
    """Readers never receive the batch, so that only the broker can verify its checksum."""
    disk = MemoryDisk()
    log = opened(disk)
    for each in range(10):
        append(log, each)
    position = sum(one.size for one in batches.headers(log.read_bytes(0, 10_000))[:number])
    at = position + LAST_OFFSET_DELTA_AT
    disk.overwrite(last_log(disk), delta.to_bytes(4, "big", signed=True), at)
    offset = 2 * number + 1
    with pytest.raises(DamagedBlockError, match=last_log(disk)):
        log.read_bytes(offset, 700)
    with pytest.raises(DamagedBlockError, match=last_log(disk)):
        log.read(offset, 700, end=log.end_offset)


def test_a_damaged_leader_epoch_in_a_sealed_segment_is_refused_without_its_checksums() -> None:
    """A power cut may take checksums that were written when the segment was sealed."""
    disk = closed()
    name, *_ = sorted(name for name in disk.list(FOLDER) if name.endswith(".log"))
    for suffix in (".checksums", ".index", ".timeindex"):
        disk.remove(f"{FOLDER}/{name.removesuffix('.log')}{suffix}")
    flip(disk, f"{FOLDER}/{name}", LEADER_EPOCH_AT + 2)
    with pytest.raises(CorruptFileError, match="leader epoch 256 at offset 0"):
        opened(disk, clean=True)
