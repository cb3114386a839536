"""A compacted segment that Apache Kafka's tool has printed: we write the same, and read it so."""

import re
from collections import deque
from pathlib import Path
from typing import Any

from headrace.core.types import WallMs
from headrace.log.compaction import Compaction
from headrace.log.dirty import Rules, find_dirty
from headrace.log.memory_disk import MemoryDisk
from headrace.log.segments import SegmentedLog
from headrace.wire import batches
from headrace.wire.batches import BatchHeader, Record

HERE = Path(__file__).parent
NOW, RETENTION_MS = 1_700_000_000_000, 60_000
SEGMENT = "topic-0/00000000000000000000.log"


def append(log: SegmentedLog, *records: tuple[Any, ...], **built: int) -> None:
    data = bytearray(
        batches.build([Record(0, NOW - 5000 + n, *one) for n, one in enumerate(records)], **built)
    )
    log.append(data, batches.headers(data))


def compacted() -> bytes:
    """Batches of every codec and kind: whole, filtered, emptied, with tombstones old and new."""
    disk = MemoryDisk()
    log = SegmentedLog(disk, "topic-0")
    producer = {"producer_id": 4000, "producer_epoch": 1}
    append(log, (b"gone", b"1"), (b"old", None), base_sequence=0, **producer)
    _compact(disk, log, NOW - RETENTION_MS - 1)
    append(log, (b"a", b"1"), (b"b", b"1"), base_sequence=2, **producer)
    for codec in range(5):
        named = (("codec", b"%d" % codec), ("empty", None))
        append(
            log,
            (b"a", b"%d" % codec),
            (b"codec %d" % codec, b"stays", named),
            (b"b", None),
            compression=codec,
        )
    append(log, (b"time", None), (b"a", b"last"), attributes=batches.LOG_APPEND_TIME)
    append(log, (b"gone", b"2"), (b"end", b"1"))
    append(log, (b"gone", None), (b"end", b"2"), compression=4)
    append(log, (b"end", b"3"))
    append(log, (b"passing", b"1"))
    log.roll()
    append(log, (b"passing", b"2"))
    _compact(disk, log, NOW)
    return disk.read(SEGMENT)


def _compact(disk: MemoryDisk, log: SegmentedLog, now: int) -> None:
    log.roll()
    rules = Rules(delete_retention_ms=RETENTION_MS)
    last_offset = log.producers.remembered().last_offset
    dirty = find_dirty(log, None, rules, WallMs(now))
    work = Compaction(disk, log, dirty, rules, WallMs(now), last_offset)
    deque(work.map_keys(), maxlen=0)
    for group in work.groups():
        copy = work.open_copy(group)
        deque(work.copy(group, copy), maxlen=0)
        copy.close()
        assert work.put(group)
        work.put_away(group)
        work.finish(group)
        work.tidy(group)


def shape(header: BatchHeader) -> BatchHeader:
    """A header without what depends on the compressing library."""
    return header._replace(size=0, crc=0)


def test_it_is_written_as_kafka_read_it() -> None:
    ours, golden = compacted(), (HERE / "compacted.log").read_bytes()
    assert list(batches.records(ours)) == list(batches.records(golden))
    assert [*map(shape, batches.headers(ours))] == [*map(shape, batches.headers(golden))]


def test_it_reads_as_kafka_read_it() -> None:
    golden = (HERE / "compacted.log").read_bytes()
    printed = (HERE / "compacted.txt").read_text().splitlines()
    told = [_fields(line) for line in printed if line.startswith("baseOffset: ")]
    headers = batches.headers(golden)
    assert [
        (one["baseOffset"], one["lastOffset"], one["count"], one["deleteHorizonMs"], one["isvalid"])
        for one in told
    ] == [
        (
            str(one.base_offset),
            str(one.last_offset),
            str(one.record_count),
            _optional(one.delete_horizon),
            "true",
        )
        for one in headers
    ]
    assert {one.delete_horizon for one in headers} == {None, NOW + RETENTION_MS}
    assert 0 in {one.record_count for one in headers}
    rows = [_fields(line.lstrip("| ")) for line in printed if line.startswith("| ")]
    assert [(int(one["offset"]), _time(one)) for one in rows] == [
        (one.offset, one.timestamp) for one in batches.records(golden)
    ]


def _optional(value: int | None) -> str:
    return "OptionalLong.empty" if value is None else f"OptionalLong[{value}]"


def _time(row: dict[str, str]) -> int:
    return int(row["CreateTime"] if "CreateTime" in row else row["LogAppendTime"])


def _fields(line: str) -> dict[str, str]:
    return dict(re.findall(r"(\w+): (\S+)", line))
