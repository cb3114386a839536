"""The sparse indexes: when entries are made, Kafka's bytes for them, and what is trusted."""

import struct

import pytest

from headrace.log.index import SegmentIndex, Tail, read_tail, save_index
from headrace.log.memory_disk import MemoryDisk

BASE = 1000


def filled() -> SegmentIndex:
    """Five batches of 100 bytes and two records; the third is late, the fifth has the top time."""
    index = SegmentIndex(BASE, 150)
    for n, time in enumerate([5, 9, 7, 9, 20]):
        index.add(BASE + 2 * n + 1, 100 * n, 100, time)
    return index


def saved() -> MemoryDisk:
    disk = MemoryDisk()
    save_index(disk, "a", filled().contents())
    return disk


def test_an_entry_is_the_last_offset_of_the_batch_that_exceeds_the_interval() -> None:
    disk = saved()
    assert disk.read("a.index") == struct.pack(">iiii", 5, 200, 9, 400)
    assert disk.read("a.timeindex") == struct.pack(">qiqi", 9, 3, 20, 9)


def test_the_highest_time_is_the_last_entry_of_a_saved_index() -> None:
    index, disk = filled(), MemoryDisk()
    index.add(BASE + 10, 500, 100, 33)
    save_index(disk, "a", index.contents())
    assert disk.read("a.timeindex") == struct.pack(">qiqiqi", 9, 3, 20, 9, 33, 10)
    assert read_tail(disk, "a", BASE) == Tail(BASE + 9, 400, 33, BASE + 10)


@pytest.mark.parametrize("loaded", [False, True])
def test_positions_are_never_behind_what_is_asked(loaded: bool) -> None:
    index = SegmentIndex.load(saved(), "a", BASE, 150) if loaded else filled()
    assert index is not None
    asked = {BASE: 0, BASE + 4: 0, BASE + 5: 200, BASE + 8: 200, BASE + 9: 400, BASE + 99: 400}
    assert {offset: index.position_of(offset) for offset in asked} == asked
    first_with_time = {4: 0, 5: 0, 9: 100, 10: 400, 20: 400}
    for time, position in first_with_time.items():
        entry = index.time_before(time)
        assert (0 if entry is None else index.position_of(entry[0])) <= position


def test_a_loaded_index_goes_on_as_if_it_had_never_been_away() -> None:
    index, disk = filled(), MemoryDisk()
    again = SegmentIndex.load(saved(), "a", BASE, 150)
    assert again is not None
    again.add(BASE + 9, 400, 100, 20)
    for n in range(5, 9):
        for one in (index, again):
            one.add(BASE + 2 * n + 1, 100 * n, 100, 20 + n)
    save_index(disk, "a", index.contents())
    save_index(disk, "b", again.contents())
    assert disk.read("a.index") == disk.read("b.index")
    assert disk.read("a.timeindex") == disk.read("b.timeindex")


def test_the_highest_time_is_kept_with_the_first_batch_that_has_it() -> None:
    index = SegmentIndex(BASE, 150)
    assert (index.max_timestamp, index.max_timestamp_offset) == (-1, BASE)
    for n, time in enumerate([5, 9, 9, 1]):
        index.add(BASE + n, 100 * n, 100, time)
    assert (index.max_timestamp, index.max_timestamp_offset) == (9, BASE + 1)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("junk", [b"x", b"a" * 9, b"\xff" * 24, None])
def test_files_that_cannot_be_right_are_not_trusted(suffix: str, junk: bytes | None) -> None:
    disk = saved()
    if junk is None:
        disk.remove("a" + suffix)
    else:
        disk.write("a" + suffix, junk)
    assert read_tail(disk, "a", BASE) is None
    assert SegmentIndex.load(disk, "a", BASE, 150) is None


@pytest.mark.parametrize("space", range(0, 40, 4))
def test_half_an_index_tells_no_lower_time(space: int) -> None:
    """Retention goes by the highest timestamp."""
    disk = saved()
    whole = read_tail(disk, "a", BASE)
    index = SegmentIndex.load(disk, "a", BASE, 150)
    assert index is not None
    disk.fail_after(space)
    with pytest.raises(OSError, match="No space"):
        save_index(disk, "a", index.contents())
    left = read_tail(disk, "a", BASE)
    assert left is None or left.max_timestamp == 20
    disk.fail_after(None)
    save_index(disk, "a", index.contents())
    assert read_tail(disk, "a", BASE) == whole
