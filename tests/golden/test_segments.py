"""Index and snapshot files that Apache Kafka read: ours are the same but for the snapshot seal."""

import re
from pathlib import Path

from headrace.log.index import SegmentIndex, read_tail
from headrace.log.memory_disk import MemoryDisk
from headrace.log.segments import SegmentedLog
from headrace.log.snapshots import decoded, path_of
from headrace.wire import batches

HERE = Path(__file__).parent
FIRST = f"golden-0/{0:020d}"


def stored(suffix: str) -> bytes:
    return (HERE / f"segment.{suffix}").read_bytes()


def printed(name: str) -> list[dict[str, int]]:
    """What DumpLogSegments printed: names and numbers."""
    lines = (HERE / f"segment_{name}.txt").read_text().splitlines()
    return [
        {field: int(number) for field, number in re.findall(r"(\w+): (-?\d+)", line)}
        for line in lines
    ]


def test_a_segment_sealed_now_has_the_files_that_kafka_read() -> None:
    disk = MemoryDisk()
    log = SegmentedLog(disk, "golden-0", index_interval_bytes=1000)
    data = bytearray(stored("log"))
    start = 0
    for header in batches.headers(data):
        batch = data[start : start + header.size]
        log.append(batch, [header])
        start += header.size
    log.roll()
    assert disk.read(f"{FIRST}.log") == data
    assert disk.read(f"{FIRST}.index") == stored("index")
    assert disk.read(f"{FIRST}.timeindex") == stored("timeindex")
    path = path_of("golden-0", log.end_offset)
    snapshot, golden = disk.read(path), stored("snapshot")
    # The checksum (bytes 2 to 6) also covers the seal after the entries; Kafka ignores the seal.
    assert (snapshot[:2], snapshot[6:-4]) == (golden[:2], golden[6:])
    assert decoded(snapshot, path) == decoded(golden)
    assert decoded(snapshot, path_of("other-0", log.end_offset)) is None


def test_the_indexes_say_what_kafka_read_in_them() -> None:
    disk = MemoryDisk()
    for suffix in ("index", "timeindex"):
        disk.write(f"{FIRST}.{suffix}", stored(suffix))
    index = SegmentIndex.load(disk, FIRST, 0, 1000)
    assert index is not None
    offsets, times = printed("index"), printed("timeindex")
    for entry in offsets:
        assert index.position_of(entry["offset"]) == entry["position"]
    tail = read_tail(disk, FIRST, 0)
    assert tail == (*offsets[-1].values(), *times[-1].values())


def test_the_snapshot_says_what_kafka_read_in_it() -> None:
    found = decoded(stored("snapshot"))
    assert found is not None
    assert [one.producer_id for one in found] == [1000] * 5 + [1001] * 5
    for entry, line in zip(found, printed("snapshot"), strict=True):
        assert entry._asdict() == {
            "producer_id": line["producerId"],
            "epoch": line["producerEpoch"],
            "last_sequence": line["lastSequence"],
            "last_offset": line["lastOffset"],
            "offset_delta": line["offsetDelta"],
            "timestamp": line["timestamp"],
        }
