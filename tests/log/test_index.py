"""The sparse indexes: when entries are made, and Kafka's bytes for them."""

import struct

from headrace.log.index import SegmentIndex
from headrace.log.memory_disk import MemoryDisk
from headrace.wire import batches
from headrace.wire.batches import BatchHeader, Record

HEADER = batches.read_header(batches.build([Record(0, 0, None, None)]))
BASE = 1000


def header(offset: int, *, records: int = 1, size: int = 100, time: int = 0) -> BatchHeader:
    return HEADER._replace(
        base_offset=offset, last_offset_delta=records - 1, size=size, max_timestamp=time
    )


def filled(disk: MemoryDisk) -> SegmentIndex:
    """Five batches of 100 bytes and two records; the third is late, the fifth has the top time."""
    index = SegmentIndex(BASE, 150)
    index.attach(disk, "a")
    for n, time in enumerate([5, 9, 7, 9, 20]):
        index.add(header(BASE + 2 * n, records=2, time=time), 100 * n)
    return index


def test_an_entry_is_the_last_offset_of_the_batch_that_exceeds_the_interval() -> None:
    disk = MemoryDisk()
    filled(disk)
    assert disk.read("a.index") == struct.pack(">iiii", 5, 200, 9, 400)
    assert disk.read("a.timeindex") == struct.pack(">qiqi", 9, 3, 20, 9)


def test_positions_are_never_behind_what_is_asked() -> None:
    index = filled(MemoryDisk())
    asked = {BASE: 0, BASE + 4: 0, BASE + 5: 200, BASE + 8: 200, BASE + 9: 400, BASE + 99: 400}
    assert {offset: index.position_of(offset) for offset in asked} == asked
    first_with_time = {4: 0, 5: 0, 9: 100, 10: 400, 20: 400}
    for time, position in first_with_time.items():
        assert index.position_before(time) <= position


def test_the_highest_time_is_kept_with_the_first_batch_that_has_it() -> None:
    index = SegmentIndex(BASE, 150)
    assert (index.max_timestamp, index.max_timestamp_offset) == (-1, BASE)
    for n, time in enumerate([5, 9, 9, 1]):
        index.add(header(BASE + n, time=time), 100 * n)
    assert (index.max_timestamp, index.max_timestamp_offset) == (9, BASE + 1)


def test_files_that_say_something_else_are_replaced() -> None:
    disk = MemoryDisk()
    filled(disk).detach()
    good = disk.read("a.index"), disk.read("a.timeindex")
    for junk in (b"", b"x", good[0][:-1], good[0] + b"\0" * 8):
        disk.write("a.index", junk)
        again = SegmentIndex(BASE, 150)
        for n, time in enumerate([5, 9, 7, 9, 20]):
            again.add(header(BASE + 2 * n, records=2, time=time), 100 * n)
        again.attach(disk, "a")
        assert (disk.read("a.index"), disk.read("a.timeindex")) == good
        again.detach()
