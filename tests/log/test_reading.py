"""Bytes without headers: the same as with them, wherever a reader begins, stops and goes on."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.core.types import WallMs
from headrace.log.api import DamagedBlockError, Disk, File, OffsetOutOfRange, Slice
from headrace.log.checksums import BLOCK_BITS
from headrace.log.memory_disk import MemoryDisk
from headrace.log.reading import STOPS_MAX
from headrace.log.segments import SegmentedLog
from headrace.wire import batches
from headrace.wire.primitives import Buffer

Append = Callable[..., int]
FOLDER = "orders-0"


def read_on(log: SegmentedLog, offset: int) -> Iterator[bytes]:
    """All there is from an offset on."""
    while (piece := log.read(offset, 1 << 20)).headers:
        yield bytes(piece.data)
        offset = piece.headers[-1].last_offset + 1


@given(
    sizes=st.lists(st.integers(0, 300), min_size=1, max_size=25),
    reads=st.lists(
        st.tuples(st.integers(0, 60), st.integers(0, 3000), st.none() | st.integers(0, 30)),
        max_size=12,
    ),
    interval=st.sampled_from([0, 200, 4096]),
)
@settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_bytes_are_those_of_read(
    append: Append, sizes: list[int], reads: list[tuple[int, int, int | None]], interval: int
) -> None:
    log = SegmentedLog(MemoryDisk(), FOLDER, segment_bytes=1500, index_interval_bytes=interval)
    starts = [append(log, *[b"v"] * (1 + size % 3), size=size) for size in sizes]
    starts.append(log.end_offset)
    for offset, max_bytes, end_at in reads:
        offset = min(offset, log.end_offset)
        # A high watermark stands where a batch begins.
        end = None if end_at is None else starts[end_at % len(starts)]
        expected = log.read(offset, max_bytes, end=end)
        assert bytes(log.read_bytes(offset, max_bytes, end=end)) == expected.data
        whole = b"".join(read_on(log, offset))
        assert log.bytes_from(offset, len(whole) + 1) == len(whole)
        assert (log.bytes_from(offset, max_bytes) >= max_bytes) == (len(whole) >= max_bytes)
        found = bytes(log.read_bytes(offset, max_bytes, end=end, whole=False))
        assert found == (expected.data if len(expected.data) <= max_bytes else b"")


@given(
    batches_made=st.lists(
        st.tuples(st.integers(0, 5), st.integers(1, 4), st.integers(0, 9_000)), min_size=1
    ),
    reads=st.lists(
        st.tuples(
            st.integers(0, 80), st.integers(0, 40), st.integers(0, 60_000), st.integers(0, 90)
        ),
        max_size=12,
    ),
)
def test_through_is_up_to_the_batch_of_an_offset(
    batches_made: list[tuple[int, int, int]], reads: list[tuple[int, int, int, int]]
) -> None:
    """Between batches are holes, as compaction leaves them."""
    stored: list[bytes] = []
    offset = 0
    for hole, count, size in batches_made:
        records = [batches.Record(0, 5, None, bytes(size)) for _ in range(count)]
        stored.append(batches.build(records, base_offset=offset + hole, leader_epoch=0))
        offset += hole + count
    disk = MemoryDisk()
    disk.write(f"{FOLDER}/{0:020}.log", b"".join(stored))
    log = SegmentedLog(disk, FOLDER, clean=True)
    for first, more, max_bytes, end in reads:
        first = min(first, log.end_offset)
        expected: list[bytes] = []
        for data in stored:
            (header,) = batches.headers(data)
            if header.last_offset < first or header.base_offset >= end:
                continue
            is_behind = header.base_offset > first + more
            if expected and (is_behind or len(b"".join(expected)) + len(data) > max_bytes):
                break
            expected.append(data)
        found = log.read_through(first, first + more, max_bytes, end=end)
        assert bytes(found.data) == b"".join(expected)
        assert list(found.headers) == [batches.headers(data)[0] for data in expected]


@pytest.fixture
def reads(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where the file was read from since."""
    found: list[int] = []
    opened = disk.open(f"{FOLDER}/{0:020d}.log")
    opened.close()
    file = type(opened)
    pread = file.pread

    def counted(self: File, count: int, position: int) -> bytes:
        found.append(position)
        return pread(self, count, position)

    monkeypatch.setattr(file, "pread", counted)
    return found


def test_a_reader_that_goes_on_reads_once(disk: Disk, append: Append, reads: list[int]) -> None:
    log = SegmentedLog(disk, FOLDER)
    for _ in range(200):
        append(log, b"a", b"b", size=100)
    reads.clear()
    offset = rounds = 0
    while offset < log.end_offset:
        data = log.read_bytes(offset, 2000)
        offset = batches.headers(data)[-1].last_offset + 1
        rounds += 1
    assert rounds > 10
    assert len(reads) <= rounds + 1, "but for the first, which had to look for its batch"
    log.close()


def test_who_goes_on_inside_the_batch_that_was_read_last_reads_once(
    disk: Disk, append: Append, reads: list[int]
) -> None:
    log = SegmentedLog(disk, FOLDER)
    for _ in range(50):
        append(log, *[b"a"] * 9, size=100)
    reads.clear()
    starts = range(0, log.end_offset - 8, 4)
    for offset in starts:
        piece = log.read_through(offset, offset + 3, 1 << 20, end=log.end_offset)
        assert piece.headers[0].base_offset == offset // 9 * 9
        assert piece.headers[-1].base_offset == (offset + 3) // 9 * 9
    assert len(reads) <= len(starts) + 1, "but for the first, which had to look for its batch"
    log.close()


def test_more_readers_than_are_remembered(disk: Disk, append: Append) -> None:
    log = SegmentedLog(disk, FOLDER)
    for _ in range(STOPS_MAX + 10):
        append(log, b"a")
    size = log.size_bytes // (STOPS_MAX + 10)
    for offset in [*range(STOPS_MAX + 10)] * 2:
        (header,) = batches.headers(log.read_bytes(offset, size))
        assert header.base_offset == offset
    assert len(log._stops) <= STOPS_MAX
    log.close()


def test_a_stop_where_another_batch_stands_now_is_no_hint(disk: Disk, append: Append) -> None:
    log = SegmentedLog(disk, FOLDER)
    for _ in range(4):
        append(log, b"a", b"b")
    first = len(log.read_bytes(0, 1))
    # As if the file had been cut and written anew since, at another batch or within one.
    for position in (first, first + 7, 4 * first, 9 * first):
        log._stops._positions[4] = next(iter(log._segments)), position
        assert batches.headers(log.read_bytes(4, 1))[0].base_offset == 4
    log.close()


def test_another_batch_where_the_last_one_was_read_is_no_hint(disk: Disk, append: Append) -> None:
    log = SegmentedLog(disk, FOLDER)
    for _ in range(4):
        append(log, b"a", b"b")
    piece = log.read_through(2, 2, 1 << 20, end=8)
    (header,) = piece.headers
    segment = next(iter(log._segments))
    # As if the file had been cut and written anew since, at another batch, within one, or longer.
    other, longer = header._replace(base_offset=3), header._replace(last_offset_delta=5)
    for was, position in ((other, 0), (other, 7), (other, 9 * header.size), (longer, header.size)):
        log._stops._latest = segment, was, position
        assert log.read_through(4, 4, 1 << 20, end=8).headers[0].base_offset == 4
    log.close()


def test_offsets_outside_and_damage_are_told(disk: Disk, append: Append) -> None:
    log = SegmentedLog(disk, FOLDER)
    append(log, b"a")
    assert bytes(log.read_bytes(1, 100)) == b""
    for offset in (-1, 2):
        with pytest.raises(OffsetOutOfRange):
            log.read_bytes(offset, 100)
    append(log, b"b")
    log.read_bytes(0, 1)
    file = disk.open(f"{FOLDER}/{0:020d}.log")
    file.truncate(0)
    file.append(bytes(log.size_bytes))
    file.close()
    with pytest.raises(DamagedBlockError):
        log.read_bytes(1, 100)
    log.close()


@pytest.mark.parametrize("bit", [1 << 4, 1 << 6])
def test_a_batch_that_claims_more_than_the_file_has_is_damage(
    bit: int, disk: Disk, append: Append
) -> None:
    log = SegmentedLog(disk, FOLDER)
    for _ in range(3):
        append(log, b"a")
    file = disk.open(f"{FOLDER}/{0:020d}.log")
    data = bytearray(file.pread(log.size_bytes, 0))
    data[9] ^= bit  # of the size of the first batch
    file.truncate(0)
    file.append(data)
    file.close()
    for max_bytes, whole in ((1 << 20, True), (100, False), (1, True)):
        with pytest.raises(DamagedBlockError, match="are there"):
            log.read_bytes(0, max_bytes, whole=whole)
    for offset in (1, 2):
        with pytest.raises(DamagedBlockError, match="are there"):
            log.read_bytes(offset, 1 << 20)
    log.close()


def test_a_batch_whose_offset_is_damaged_is_not_passed_over(disk: Disk, append: Append) -> None:
    log = SegmentedLog(disk, FOLDER)
    for _ in range(4):
        append(log, b"a")
    file = disk.open(f"{FOLDER}/{0:020d}.log")
    data = bytearray(file.pread(log.size_bytes, 0))
    at = batches.read_header(data).size * 2
    data[at : at + 8] = bytes(8)  # of offset 2; no checksum covers it
    file.truncate(0)
    file.append(data)
    file.close()
    for offset in (2, 3):
        with pytest.raises(DamagedBlockError, match="offset 0 after 1"):
            log.read_bytes(offset, 1 << 20)
    log.close()


@pytest.mark.parametrize("value_bytes", [1, 5000], ids=["between entries", "with entries"])
@pytest.mark.parametrize("batch", [0, 3, 5])
@pytest.mark.parametrize(
    ("at", "damaged"),
    [(0, number.to_bytes(8)) for number in (0, 2, 4, 6, 1 << 62, (1 << 64) - 9)]
    + [(8, number.to_bytes(4)) for number in (0, 49, 1 << 20, 1 << 31)],
)
def test_no_damage_of_a_header_gives_other_records(
    at: int, damaged: bytes, batch: int, value_bytes: int, disk: Disk, append: Append,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """It is appended and read before anything verifies the blocks of the file."""
    log = SegmentedLog(disk, FOLDER)
    for _ in range(6):
        append(log, b"a" * value_bytes)
    log.read_bytes(0, 1)  # which remembers where offset 1 stands
    file = disk.open(f"{FOLDER}/{0:020d}.log")
    sound = file.pread(log.size_bytes, 0)
    size = batches.read_header(sound).size
    data = bytearray(sound)
    data[batch * size + at : batch * size + at + len(damaged)] = damaged
    file.truncate(0)
    file.append(data)
    refused = set() if data != sound else {batch}
    for end in (3, 4, 6):
        for offset, max_bytes in product(range(end), (1, size, size + 70, 1 << 20)):
            reads: list[Callable[[], Buffer | Slice]] = [
                partial(log.read_bytes, offset, max_bytes, end=end),
                partial(log.read_through, offset, offset, max_bytes, end=end),
                partial(log.read_through, offset, 5, max_bytes, end=end),
                partial(log.read, offset, max_bytes, end=end),
            ]
            for read in reads:
                try:
                    answer = read()
                except DamagedBlockError:
                    refused.add(offset)
                else:
                    found = bytes(answer.data if isinstance(answer, Slice) else answer)
                    assert found == sound[offset * size :][: len(found)]
                    assert len(found) >= size
                    assert data == sound or not offset <= batch < offset + len(found) // size
    assert batch in refused
    assert "rebuilt" not in caplog.text
    file.close()
    log.close()


@pytest.mark.parametrize("whole", [True, False])
def test_a_size_that_reaches_beyond_the_end_of_a_read_is_damage(
    whole: bool, disk: Disk, append: Append
) -> None:
    log = SegmentedLog(disk, FOLDER)
    for _ in range(20):
        append(log, b"a" * 5000)
    file = disk.open(f"{FOLDER}/{0:020d}.log")
    data = bytearray(file.pread(log.size_bytes, 0))
    room = batches.read_header(data).size * 2
    data[9] ^= 1  # 64 KiB more
    file.truncate(0)
    file.append(data)
    with pytest.raises(DamagedBlockError, match=f"bytes, {room} are there"):
        log.read_bytes(0, 100, end=2, whole=whole)
    file.close()
    log.close()


@pytest.mark.parametrize(
    ("damaged", "problem"),
    [(0, "offset 0 after 1"), (61, "checksum of the batch of offset 2 is wrong")],
)
def test_a_search_by_time_tells_damage_from_what_a_producer_made(
    damaged: int, problem: str, disk: Disk, append: Append
) -> None:
    log = SegmentedLog(disk, FOLDER)
    for at in range(1000, 5000, 1000):
        append(log, b"a", at=at)
    file = disk.open(f"{FOLDER}/{0:020d}.log")
    sound = file.pread(log.size_bytes, 0)
    assert log.offset_for_time(WallMs(4000)) == (3, 4000)
    data = bytearray(sound)
    position = batches.read_header(data).size * 2
    data[position + damaged : position + damaged + 8] = bytes(8)  # at 0: its offset
    file.truncate(0)
    file.append(data)
    with pytest.raises(DamagedBlockError, match=f"{problem}; run `headrace check`"):
        log.offset_for_time(WallMs(3000))
    file.close()
    log.close()


def test_a_search_by_time_takes_no_replaced_segment_for_a_damaged_one(
    disk: Disk, append: Append
) -> None:
    """It walks on in a segment while compaction gives the name of the file to another one."""
    log = SegmentedLog(disk, FOLDER)
    for at in range(1000):
        append(log, b"a" * (at % 7), at=at)
    log.roll()
    log.advance_start(1)
    search = log.search_max_time()
    assert search.send(None) is None  # others have their turn
    path = f"{FOLDER}/{0:020d}.log"
    kept = disk.read(path)[-batches.read_header(disk.read(path)).size * 3 :]
    kept = kept[kept.index((999).to_bytes(8)) :]
    disk.write(f"{path}.cleaned", kept)
    log.replace([0], f"{path}.cleaned")
    with pytest.raises(FileNotFoundError, match="a segment is gone"):
        search.send(None)
    assert log.offset_of_max_time() == (999, 999)
    log.close()


def test_damage_between_two_entries_of_a_sound_index_rebuilds_nothing(
    disk: Disk, append: Append, caplog: pytest.LogCaptureFixture
) -> None:
    log = SegmentedLog(disk, FOLDER, index_interval_bytes=300)
    for _ in range(12):
        append(log, b"a" * 60)
    segment = next(iter(log._segments))
    (_, start), *_ = entries = list(segment.index.entries())
    assert len(entries) > 1
    file = disk.open(f"{FOLDER}/{0:020d}.log")
    data = bytearray(file.pread(log.size_bytes, 0))
    size = batches.read_header(data, start).size
    data[start + size + 16] ^= 1  # the magic of the batch behind the one that has the entry
    file.truncate(0)
    file.append(data)
    file.close()
    offset = batches.read_header(data, start).last_offset + 1
    for _ in range(2):
        with pytest.raises(DamagedBlockError):
            log.read_bytes(offset, 1 << 20)
    assert list(segment.index.entries()) == entries
    assert "rebuilt" not in caplog.text
    log.close()


@pytest.mark.parametrize("place", ["end", "sector", "low offset", "high offset", "past the end"])
def test_what_lies_before_a_damaged_block_is_read(place: str, append: Append) -> None:
    """However much a reader takes at a time: it would ask for the same bytes again and again.

    Nothing that stands in the damaged block says where others are, or what is damaged before it.
    """
    disk, step = MemoryDisk(), 1 << BLOCK_BITS
    log = SegmentedLog(disk, FOLDER)
    while log.end_offset < 12:
        append(log, b"v", size=step // 4)
    log.settle()
    log.close()
    path = f"{FOLDER}/{0:020}.log"
    headers, data = batches.headers(disk.read(path)), bytearray(disk.read(path))
    starts = [0]
    for header in headers:
        starts.append(starts[-1] + header.size)
    damaged = next(number for number, start in enumerate(starts) if start >= step)
    begin = starts[damaged]
    if place == "end":
        data[starts[damaged + 1] - 1] ^= 1
    elif place == "sector":
        data[begin : begin + 512] = bytes(512)
    else:
        offset = {"low offset": 1, "high offset": 9, "past the end": 1 << 20}[place]
        data[begin : begin + 8] = offset.to_bytes(8)
    disk.write(path, bytes(data))

    log = SegmentedLog(disk, FOLDER, clean=True)
    intact = bytes(data[: starts[damaged]])
    for _ in range(2):
        assert bytes(log.read_bytes(0, len(data))) == intact
        through = log.read_through(0, 11, len(data), end=12)
        assert bytes(through.data) == intact
        assert [header.base_offset for header in through.headers] == list(range(damaged))
        assert bytes(log.read_bytes(0, len(intact))) == intact
        assert log.read(0, len(data)).headers == through.headers
        assert bytes(log.read_bytes(9, len(data))) == bytes(data[starts[9] :])
        for read in (log.read_bytes, log.read):
            with pytest.raises(DamagedBlockError):
                read(damaged, len(data))
    log.close()


@pytest.mark.parametrize("is_through", [False, True])
def test_a_small_batch_before_a_large_one_keeps_little_memory(
    disk: Disk, append: Append, *, is_through: bool
) -> None:
    """A read of much that ends at the small batch; views of it would keep all of it."""
    log = SegmentedLog(disk, FOLDER)
    append(log, b"v", size=100)
    append(log, b"v", size=1_000_000)
    found = (
        log.read_through(0, 1, 900_000, end=2).data
        if is_through
        else log.read_bytes(0, 900_000, whole=False)
    )
    kept = found.obj if isinstance(found, memoryview) else found
    assert isinstance(kept, bytes)
    assert 100 < len(found) <= len(kept) <= 2 * len(found)
    assert log.last_read_bytes > 100_000
    log.close()
