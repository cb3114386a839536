"""Producer snapshots: their bytes, and that no damage passes for one."""

import struct

from hypothesis import given
from hypothesis import strategies as st

from headrace.log.memory_disk import MemoryDisk
from headrace.log.producers import Producers
from headrace.log.snapshots import Entry, decoded, encoded, newest, offsets, path_of
from headrace.wire import batches
from headrace.wire.batches import Record

HEADER = batches.read_header(batches.build([Record(0, 0, None, None)]))
PATH = "orders-0/00000000000000000005.snapshot"
ENTRY = Entry(7, 3, 13, 111, 1, 1_700_000_000_000)


def test_the_bytes_are_those_of_producer_snapshot_json() -> None:
    data = encoded([ENTRY], PATH)
    row = struct.pack(">qhiqiqiq", 7, 3, 13, 111, 1, 1_700_000_000_000, -1, -1)
    assert data[:2] + data[6:-4] == struct.pack(">hi", 1, 1) + row
    assert decoded(data) == decoded(data, PATH) == [ENTRY]
    assert decoded(data, PATH.replace("5.", "6.")) is None, "the snapshot of another offset"


@given(st.integers(0, 60), st.integers(1, 255))
def test_no_damaged_byte_goes_unseen(position: int, flip: int) -> None:
    data = bytearray(encoded([ENTRY], PATH))
    position %= len(data)
    data[position] ^= flip
    assert decoded(bytes(data)) is None
    assert decoded(bytes(data[:position])) is None


def test_the_latest_intact_one_is_taken() -> None:
    disk = MemoryDisk()
    for n in (5, 20, 30):
        disk.write(path_of("a", n), encoded([ENTRY._replace(last_offset=n)], path_of("a", n)))
    disk.write(f"a/{30:020d}.snapshot", b"torn")
    found = offsets(disk.list("a"))
    assert found == [5, 20, 30]
    assert newest(disk, "a", found) == (20, [ENTRY._replace(last_offset=20)])
    assert newest(disk, "a", [30]) == (0, [])


def test_producers_come_back_with_all_they_remembered() -> None:
    producers = Producers()
    for n in range(9):
        header = HEADER._replace(
            producer_id=n % 2, producer_epoch=1, base_sequence=(1 << 31) - 6 + 3 * (n // 2),
            last_offset_delta=2, record_count=3, max_timestamp=n,
        )  # fmt: skip
        if n < 4:
            header = header._replace(base_sequence=header.base_sequence % (1 << 31))
        else:
            header = header._replace(base_sequence=3 * (n // 2) - 6)
        producers.record(header, 10 * n)
    again = Producers()
    again.restore(producers.entries())
    assert list(again.entries()) == list(producers.entries())
    assert len(list(again.entries())) == 9
