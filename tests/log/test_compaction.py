"""Compaction: what stays, what is told of it, and that a dictionary of keys comes to the same."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.core.types import WallMs
from headrace.log import compaction
from headrace.log.api import DamagedBlockError, Disk
from headrace.log.compaction import Compaction, Tally
from headrace.log.dirty import Rules, find_dirty
from headrace.log.memory_disk import MemoryDisk
from headrace.log.producers import Duplicate
from headrace.log.segments import SegmentedLog
from headrace.wire import batches
from headrace.wire.batches import BatchHeader, Record

Compact = Callable[..., int]
FOLDER = "topic-0"
DAY_MS = 86_400_000


def append(log: SegmentedLog, *records: tuple[Any, ...], at: int = 1000, **built: int) -> int:
    """One batch of (key, value) pairs; a value None is a tombstone."""
    data = bytearray(batches.build([Record(0, at, *one) for one in records], **built))
    return log.append(data, batches.headers(data))


def everything(log: SegmentedLog) -> tuple[list[BatchHeader], list[Record]]:
    """All batches and records; every read makes progress to the end of the log."""
    headers: list[BatchHeader] = []
    records: list[Record] = []
    offset = log.start_offset
    while offset < log.end_offset:
        piece = log.read(offset, 1)
        headers += piece.headers
        records += batches.records(piece.data)
        assert piece.headers[-1].last_offset >= offset
        offset = piece.headers[-1].last_offset + 1
    return headers, records


def pairs(log: SegmentedLog) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(one.offset, one.key, one.value) for one in everything(log)[1]]


def table(records: Iterable[Record]) -> dict[bytes | None, Any]:
    """What a reader makes of the records: the last value of each key."""
    found: dict[bytes | None, Any] = {}
    for one in records:
        if one.value is None:
            found.pop(one.key, None)
        else:
            found[one.key] = (one.value, one.headers)
    return found


def test_of_each_key_the_last_record_stays_where_it_is(disk: Disk, compact: Compact) -> None:
    log = SegmentedLog(disk, FOLDER)
    append(log, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
    append(log, (b"c", b"1"))
    append(log, (b"c", b"2"), (b"d", b"1"))
    log.roll()
    append(log, (b"b", b"2"))
    assert compact(disk, log) == 6
    assert pairs(log) == [
        (1, b"b", b"1"),  # the active segment is not looked at
        (2, b"a", b"2"),
        (4, b"c", b"2"),
        (5, b"d", b"1"),
        (6, b"b", b"2"),
    ]
    log.roll()
    assert compact(disk, log, 6) == 7
    assert [offset for offset, _, _ in pairs(log)] == [2, 4, 5, 6]
    assert append(log, (b"e", b"1")) == 7
    log.close()
    again = SegmentedLog(disk, FOLDER)
    assert [offset for offset, _, _ in pairs(again)] == [2, 4, 5, 6, 7]
    again.close()


def test_batches_without_change_are_copied_byte_for_byte(compact: Compact) -> None:
    disk = MemoryDisk()
    log = SegmentedLog(disk, FOLDER)
    append(log, (b"a", b"1"), (b"b", b"1"), compression=4)
    append(log, (b"a", b"2"))
    log.roll()
    append(log, (b"a", b"3"), (b"c", b"3"), compression=1)
    log.roll()
    kept = log.read(3, 1).data
    compact(disk, log)
    headers, _ = everything(log)
    assert [(one.base_offset, one.last_offset, one.record_count) for one in headers] == [
        (0, 1, 1),
        (3, 4, 2),
    ]
    assert log.read(3, 1).data == kept
    assert [one.codec for one in headers] == [4, 1]
    assert len(log.segments()) == 2, "small neighbours became one; and the active one"


def test_a_log_without_repetitions_is_left_alone(compact: Compact) -> None:
    disk = MemoryDisk()
    log = SegmentedLog(disk, FOLDER)
    append(log, (b"a", b"1"), (b"b", b"1"))
    log.roll()
    before = {name: disk.read(f"{FOLDER}/{name}") for name in disk.list(FOLDER)}
    tallies: list[Tally] = []
    assert compact(disk, log, tally=tallies) == 2
    assert {name: disk.read(f"{FOLDER}/{name}") for name in disk.list(FOLDER)} == before
    assert (tallies[0].records_before, tallies[0].records_after) == (2, 2)


def test_a_tombstone_stays_until_its_horizon(disk: Disk, compact: Compact) -> None:
    log = SegmentedLog(disk, FOLDER)
    append(log, (b"a", b"1"), (b"b", b"1"), at=5000)
    append(log, (b"a", None), (b"b", b"2"), at=7000)
    log.roll()
    end = compact(disk, log, now=10_000, delete_retention_ms=500)
    headers, records = everything(log)
    assert [(one.offset, one.value, one.timestamp) for one in records] == [
        (2, None, 7000),
        (3, b"2", 7000),
    ]
    assert [one.delete_horizon for one in headers] == [10_500]

    def again(now: int) -> list[int]:
        nonlocal end
        append(log, (b"c", b"1"), at=now)
        log.roll()
        end = compact(disk, log, end, now=now, delete_retention_ms=500)
        return [offset for offset, _, _ in pairs(log)]

    assert again(10_499) == [2, 3, 4]
    assert again(10_500) == [3, 5]
    assert next(one.timestamp for one in everything(log)[1]) == 7000
    log.close()


def test_a_tombstone_with_the_time_of_the_log_keeps_it(disk: Disk, compact: Compact) -> None:
    log = SegmentedLog(disk, FOLDER)
    append(log, (b"a", None), (b"b", b"1"), at=5000, attributes=batches.LOG_APPEND_TIME)
    log.roll()
    compact(disk, log, now=10_000)
    assert [one.timestamp for one in everything(log)[1]] == [5000, 5000]
    assert everything(log)[0][0].delete_horizon == 10_000 + DAY_MS
    log.close()


def test_a_producer_is_known_by_an_empty_batch(disk: Disk, compact: Compact) -> None:
    log = SegmentedLog(disk, FOLDER)
    idempotent = {"producer_id": 9, "producer_epoch": 3}
    append(log, (b"a", b"1"), (b"b", b"1"), base_sequence=0, **idempotent)
    append(log, (b"a", b"2"), (b"b", b"2"), base_sequence=2, compression=2, **idempotent)
    append(log, (b"a", b"3"), (b"b", b"3"))
    log.roll()
    compact(disk, log)
    headers, records = everything(log)
    empty = headers[0]
    assert (empty.base_offset, empty.last_offset, empty.record_count, empty.codec) == (2, 3, 0, 0)
    assert (empty.producer_id, empty.producer_epoch, empty.base_sequence) == (9, 3, 2)
    assert [one.offset for one in records] == [4, 5]
    log.close()
    again = SegmentedLog(disk, FOLDER)
    repeated = batches.read_header(
        batches.build([Record(0, 0, b"a", b"2")] * 2, base_sequence=2, **idempotent)
    )
    assert again.producers.check(repeated) == Duplicate(2)
    following = batches.read_header(
        batches.build([Record(0, 0, b"a", b"4")], base_sequence=4, **idempotent)
    )
    assert again.producers.check(following) is None
    again.close()


def test_the_end_of_a_segment_stays_although_its_last_record_goes(
    disk: Disk, compact: Compact
) -> None:
    log = SegmentedLog(disk, FOLDER)
    append(log, (b"a", b"1"))
    append(log, (b"b", b"1"))
    log.roll()
    append(log, (b"b", b"2"))
    log.roll()
    compact(disk, log, segment_bytes=1)
    headers, records = everything(log)
    assert [(one.base_offset, one.record_count) for one in headers] == [(0, 1), (1, 0), (2, 1)]
    assert [one.offset for one in records] == [0, 2]
    log.close()
    SegmentedLog(disk, FOLDER).close()


def test_records_without_a_key_go_and_are_counted(disk: Disk, compact: Compact) -> None:
    log = SegmentedLog(disk, FOLDER)
    append(log, (None, b"1"), (b"a", b"1"), (None, b"2"))
    log.roll()
    tallies: list[Tally] = []
    compact(disk, log, tally=tallies)
    assert pairs(log) == [(1, b"a", b"1")]
    assert tallies[0].without_key == 2
    log.close()


def test_what_no_reader_could_decode_is_left_alone_and_counted(compact: Compact) -> None:
    disk = MemoryDisk()
    log = SegmentedLog(disk, FOLDER)
    good = batches.build([Record(0, 0, b"a", b"1")])
    bad = bytearray(batches.seal(batches.read_header(good), b"\x10\x00\x7f nonsense"))
    log.append(bad, batches.headers(bad))
    append(log, (b"a", b"1"), (b"a", b"2"))
    log.roll()
    tallies: list[Tally] = []
    compact(disk, log, tally=tallies)
    assert log.read(0, 1).data == bytes(bad)
    assert (tallies[0].unreadable, tallies[0].records_after) == (1, 2)
    assert [one.base_offset for one in log.read(0, 1 << 20).headers] == [0, 1]


@pytest.mark.parametrize("offset", [0, 2, 7, 1 << 40, -1])
def test_a_batch_with_a_wrong_offset_ends_the_cleaning(
    offset: int, disk: Disk, compact: Compact
) -> None:
    """Its records would pass for the newest of their keys, and the newest would go."""
    log = SegmentedLog(disk, FOLDER)
    append(log, (b"a", b"1"))
    append(log, (b"b", b"1"))
    append(log, (b"b", b"2"))
    append(log, (b"a", b"2"))
    log.roll()
    before = bytes(log.read(0, 1 << 20).data)
    damaged = bytearray(before)
    size = batches.read_header(before).size
    damaged[size : size + 8] = offset.to_bytes(8, signed=True)
    file = disk.open(f"{FOLDER}/{0:020d}.log")
    file.truncate(0)
    file.append(damaged)
    with pytest.raises(DamagedBlockError, match=rf"{0:020d}\.log at byte \d+: .* are left; run"):
        compact(disk, log)
    assert file.pread(len(damaged), 0) == damaged
    file.close()
    log.close()


def test_a_damaged_header_is_reported_with_its_position_in_the_file(
    disk: Disk, compact: Compact
) -> None:
    log = SegmentedLog(disk, FOLDER)
    append(log, (b"a", b"1"))
    append(log, (b"a", b"2"))
    log.roll()
    path = f"{FOLDER}/{0:020d}.log"
    damaged = bytearray(disk.read(path))
    size = batches.read_header(damaged).size
    damaged[size + 16] = 3
    disk.write(path, bytes(damaged))
    with pytest.raises(DamagedBlockError, match=rf"{path} at byte {size}: magic 3, not 2; run"):
        compact(disk, log)
    log.close()


def test_a_file_that_ends_with_another_offset_ends_the_cleaning(
    disk: Disk, compact: Compact
) -> None:
    """It is that of another segment, of the same size, whose offsets fit."""
    log = SegmentedLog(disk, FOLDER)
    append(log, (b"a", b"1"))
    append(log, (b"a", b"2"), (b"b", b"1"))
    log.roll()
    path = f"{FOLDER}/{0:020d}.log"
    whole = disk.read(path)
    other = bytearray(batches.build([Record(0, 1000, b"a", b"1" * 10)]))
    other += batches.build([Record(0, 1000, b"b", b"1")])
    assert len(other) == len(whole)
    last = batches.read_header(other).size
    batches.stamp(other, 0, last, 0, 0)
    batches.stamp(other, last, len(other) - last, 1, 0)
    disk.write(path, bytes(other))
    disk.remove(f"{FOLDER}/{0:020d}.checksums")
    with pytest.raises(DamagedBlockError, match="the last offset is 1, and was 2; run"):
        compact(disk, log)
    assert disk.read(path) == other
    log.close()


def test_an_offset_that_was_moved_into_a_gap_ends_the_cleaning(
    disk: Disk, compact: Compact
) -> None:
    """The copy would have the wrong offset, and new checksums that verify it."""
    log = SegmentedLog(disk, FOLDER)
    append(log, (b"a", b"1"))
    append(log, (b"a", b"2"))
    append(log, (b"b", b"1"))
    log.roll()
    cleaned_to = compact(disk, log)
    append(log, (b"b", b"2"))
    log.roll()
    path = f"{FOLDER}/{0:020d}.log"
    damaged = bytearray(disk.read(path))
    assert batches.read_header(damaged).base_offset == 1
    damaged[:8] = bytes(8)
    disk.write(path, bytes(damaged))
    with pytest.raises(DamagedBlockError, match="are not those that were written"):
        compact(disk, log, cleaned_to)
    assert disk.read(path) == damaged
    log.close()


def test_a_segment_of_which_the_map_has_a_part_is_verified_before_others_are_replaced(
    disk: Disk, compact: Compact
) -> None:
    """Else a repair could drop the newer value after the cleaning had dropped the older one."""
    rules = {"map_bytes": 200, "segment_bytes": 1}  # one key, and each segment for itself
    log = SegmentedLog(disk, FOLDER)
    append(log, (b"a", b"1"))
    log.roll()
    append(log, (b"b", b"1"))
    append(log, (None, b"which leaves a gap"))
    append(log, (b"c", b"1"), (b"a", b"2"))
    append(log, (b"d", b"1"))
    log.roll()
    cleaned_to = compact(disk, log, map_bytes=400, segment_bytes=1)
    assert (cleaned_to, [offset for offset, _, _ in pairs(log)]) == (3, [0, 1, 3, 4, 5])
    first, path = (f"{FOLDER}/{base:020d}.log" for base in (0, 1))
    damaged, before = bytearray(disk.read(path)), disk.read(first)
    at = batches.read_header(damaged).size
    assert batches.read_header(damaged, at).base_offset == 3
    damaged[at : at + 8] = (2).to_bytes(8)
    disk.write(path, bytes(damaged))
    with pytest.raises(DamagedBlockError, match="are not those that were written"):
        compact(disk, log, cleaned_to, **rules)
    assert disk.read(first) == before
    log.close()


def test_a_segment_of_which_the_map_has_nothing_is_read_to_its_first_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = MemoryDisk()
    log = SegmentedLog(disk, FOLDER)
    append(log, (b"a", b"1"))
    log.roll()
    for key in (None, b"b", b"c", b"d"):
        append(log, (key, b"1"))
    log.roll()
    path, positions, read = f"{FOLDER}/{1:020d}.log", list[int](), MemoryDisk.read
    sizes = [one.size for one in batches.headers(disk.read(path))]

    def noting(self: MemoryDisk, name: str, count: int = -1, position: int = 0) -> bytes:
        if name == path:
            positions.append(position)
        return read(self, name, count, position)

    monkeypatch.setattr(compaction, "_READ_BYTES", batches.HEADER_BYTES)
    monkeypatch.setattr(MemoryDisk, "read", noting)
    rules = Rules(map_bytes=200)  # one key
    dirty = find_dirty(log, None, rules, WallMs(0))
    work = Compaction(disk, log, dirty, rules, WallMs(0), lambda _: None)
    deque(work.map_keys(), maxlen=0)
    assert work.end == 2
    assert set(positions) == {0, sizes[0]}
    log.close()


def test_a_batch_whose_keys_take_too_much_memory_is_left_alone(
    disk: Disk, compact: Compact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release before validation may have stored millions of them in a few kilobytes."""
    log = SegmentedLog(disk, FOLDER)
    append(log, (b"a", b"1"), (b"b", b"1"))
    append(log, *[(b"%d" % n, b"1") for n in range(50)], (b"a", b"2"), compression=4)
    append(log, (b"b", b"2"))
    log.roll()
    monkeypatch.setattr(compaction, "_BATCH_KEYS_BYTES_MAX", 20 * 170)
    compact(disk, log)
    assert [offset for offset, _, _ in pairs(log)] == [0, *range(2, 54)]
    assert table(everything(log)[1])[b"a"] == (b"2", ())
    log.close()


def test_a_small_map_cleans_in_several_turns(disk: Disk, compact: Compact) -> None:
    log = SegmentedLog(disk, FOLDER)
    for value in (b"1", b"2"):
        for n in range(0, 10, 2):
            append(log, (b"k%d" % n, value), (b"k%d" % (n + 1), value))
    log.roll()
    append(log, (b"k0", b"3"))
    end, turns = compact(disk, log, map_bytes=500), 1
    assert end == 2, "the second batch had no room"
    while end < 20:
        end, turns = compact(disk, log, end, map_bytes=500), turns + 1
    assert turns == 10
    assert [offset for offset, _, _ in pairs(log)] == list(range(10, 21))
    log.close()


def test_when_a_log_is_worth_a_cleaning(disk: Disk) -> None:
    log = SegmentedLog(disk, FOLDER)
    append(log, (b"a", b"1"), at=1000)
    assert not find_dirty(log, None, Rules(), WallMs(9000)).is_due(Rules(min_ratio=0.0))
    log.roll()
    append(log, (b"a", b"2"), at=2000)
    log.roll()
    append(log, (b"a", b"3"), at=3000)
    half = log.segments()[0].size

    def found(cleaned_to: int | None, now: int = 9000, **rules: Any) -> tuple[Any, ...]:
        obeyed = Rules(**rules)
        dirty = find_dirty(log, cleaned_to, obeyed, WallMs(now))
        return dirty.start, dirty.end, dirty.ratio, dirty.is_due(obeyed)

    assert half * 2 == log.segments()[0].size + log.segments()[1].size
    assert found(None) == (0, 2, 1.0, True)
    assert found(1) == (1, 2, 0.5, False)
    assert found(1, min_ratio=0.4) == (1, 2, 0.5, True)
    assert found(2, min_ratio=0.0) == (2, 2, 0.0, False)
    assert found(7) == (0, 2, 1.0, True), "a checkpoint beyond the log is of another one"
    assert found(None, min_lag_ms=7500) == (0, 1, 1.0, True)
    assert found(None, min_lag_ms=8500) == (0, 0, 0.0, False)
    assert found(1, max_lag_ms=6999) == (1, 2, 0.5, True)
    assert found(1, max_lag_ms=7000) == (1, 2, 0.5, False)
    log.close()


_KEYS = st.sampled_from([b"a", b"b", b"c", b"", b"long" * 20])
_VALUES = st.none() | st.binary(max_size=30)
_HEADERS = st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2)
_RECORDS = st.lists(
    st.tuples(_KEYS, _VALUES, _HEADERS.map(tuple), st.integers(-1, 300)), min_size=1, max_size=6
)
_BATCHES = st.lists(
    st.tuples(_RECORDS, st.integers(0, 4), st.sampled_from([-1, 7, 8]), st.booleans()), max_size=6
)


@given(
    rounds=st.lists(_BATCHES, min_size=1, max_size=4),
    segment_bytes=st.integers(200, 1500),
    map_bytes=st.sampled_from([400, 1 << 20]),
    delete_retention_ms=st.sampled_from([0, 150, 10_000]),
)
@settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_a_reader_makes_the_same_table_of_it(
    compact: Compact,
    rounds: list[Any],
    segment_bytes: int,
    map_bytes: int,
    delete_retention_ms: int,
) -> None:
    disk = MemoryDisk()
    log = SegmentedLog(disk, FOLDER, segment_bytes=segment_bytes)
    written: dict[int, Record] = {}
    sequences = {7: 0, 8: 0}
    cleaned_to: int | None = None
    for turn, appended in enumerate(rounds):
        for records, codec, producer, rolls in appended:
            built = [Record(0, at, key, value, named) for key, value, named, at in records]
            sequence = {}
            if producer >= 0:
                sequence = {"producer_epoch": 0, "base_sequence": sequences[producer]}
                sequences[producer] += len(built)
            data = bytearray(
                batches.build(built, compression=codec, producer_id=producer, **sequence)
            )
            first = log.append(data, batches.headers(data))
            for index, one in enumerate(built):
                offset = first + index
                written[offset] = Record(offset, one.timestamp, one.key, one.value, one.headers)
            if rolls:
                log.roll()
        cleaned_to = compact(
            disk,
            log,
            cleaned_to,
            now=turn * 100,
            segment_bytes=segment_bytes,
            map_bytes=map_bytes,
            delete_retention_ms=delete_retention_ms,
        )
        _, left = everything(log)
        assert all(written[one.offset] == one for one in left)
        assert table(left) == table(written.values())
        assert log.end_offset == len(written)
        clean = [one.key for one in left if one.offset < cleaned_to]
        assert len(clean) == len(set(clean)), "no key twice in what is clean"
        log.close()
        log = SegmentedLog(disk, FOLDER, segment_bytes=segment_bytes)
        assert everything(log)[1] == left
        for producer, sequence_next in sequences.items():
            header = batches.read_header(
                batches.build(
                    [Record(0, 0, b"a", b"")],
                    producer_id=producer,
                    producer_epoch=0,
                    base_sequence=sequence_next,
                )
            )
            assert log.producers.check(header) is None
    log.close()


def test_a_batch_larger_than_a_read_is_compacted_too(compact: Compact) -> None:
    disk = MemoryDisk()
    log = SegmentedLog(disk, FOLDER)
    append(log, *((b"k%d" % (n % 700), b"%d" % n * 100) for n in range(2000)))
    append(log, (b"last", b"1"))
    log.roll()
    compact(disk, log)
    assert [offset for offset, _, _ in pairs(log)] == [*range(1300, 2001)]


@pytest.mark.parametrize("codec", range(5))
def test_every_codec_is_kept(codec: int, compact: Compact) -> None:
    disk = MemoryDisk()
    log = SegmentedLog(disk, FOLDER)
    append(log, *((b"k%d" % (n % 9), b"%d" % n * 50) for n in range(100)), compression=codec)
    append(log, (b"k1", None), compression=codec)
    log.roll()
    compact(disk, log)
    headers, records = everything(log)
    assert [(one.codec, one.record_count) for one in headers] == [(codec, 8), (codec, 1)]
    assert table(records) == {
        b"k%d" % (n % 9): (b"%d" % n * 50, ()) for n in range(91, 100) if n % 9 != 1
    }
