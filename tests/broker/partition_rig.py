"""A partition on a log whose syncs wait, or on a disk that can fail."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

from headrace.broker.partition import Partition
from headrace.broker.storage_faults import StorageFaults
from headrace.broker.topic_settings import TopicSettings
from headrace.broker.waits import Waits
from headrace.core.catalog import Topic
from headrace.log.api import Disk
from headrace.log.memory_disk import MemoryDisk, VirtualClock
from headrace.log.segments import SegmentedLog
from headrace.wire import batches
from headrace.wire.batches import Record

TIMEOUT = 60
FOLDER = "orders-0"


class SlowLog:
    """Counts its syncs, each of which waits for `let_go`."""

    fault = None

    def __init__(self) -> None:
        self.end_offset = self.durable_end = 0
        self.begun = 0  # of them; what is appended later a sync leaves out
        self.syncs = 0
        self.is_closed = False
        self.let_go = threading.Semaphore(0)

    def append(self, data: bytearray, headers: Any, *, has_room: bool = False) -> int:
        self.end_offset += 1
        return self.end_offset - 1

    def close(self) -> None:
        self.is_closed = True

    def sync(self) -> None:
        end_offset = self.end_offset
        if end_offset == self.durable_end:
            return
        self.begun += 1
        assert self.let_go.acquire(timeout=TIMEOUT)
        if self.is_closed:
            raise OSError(9, "Bad file descriptor")
        self.syncs += 1
        self.durable_end = end_offset


def made(
    open_log: Callable[..., Any],
    *,
    disk: Disk | None = None,
    settings: TopicSettings | None = None,
    fsync: bool = True,
    topic: str = "orders",
) -> tuple[Partition, Waits]:
    waits = Waits(10)
    partition = Partition(
        Topic(topic, UUID(int=1), 1), 0, open_log, settings or TopicSettings(), waits,
        StorageFaults(VirtualClock()), disk or MemoryDisk(), fsync=fsync,
        producer_expiration_ms=1000, on_start_moved=[],
    )  # fmt: skip
    return partition, waits


def opened(*, fsync: bool = True) -> tuple[SlowLog, Partition, Waits]:
    log = SlowLog()
    return log, *made(lambda *_: log, fsync=fsync)


def on(
    disk: MemoryDisk, *, fsync: bool = True, topic: str = "orders", **settings: Any
) -> Partition:
    """A partition with a real log on a disk that can fail."""

    def open_log(given: TopicSettings, dropped: Any) -> SegmentedLog:
        return SegmentedLog(
            disk, FOLDER, segment_bytes=given.segment_bytes, segment_ms=given.segment_ms,
            dropped=dropped,
        )  # fmt: skip

    given = TopicSettings(**settings)
    return made(open_log, disk=disk, settings=given, fsync=fsync, topic=topic)[0]


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), TIMEOUT))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  # there is no event to wait for
        await asyncio.sleep(0.005)


def values(partition: Partition) -> list[bytes | None]:
    found: list[bytes | None] = []
    offset = partition.start_offset
    while offset < partition.high_watermark:
        piece = partition.read_through(offset, partition.high_watermark, 1 << 20)
        found += [one.value for one in batches.records(piece.data) if one.offset >= offset]
        offset = piece.headers[-1].last_offset + 1
    return found


def put(partition: Partition, value: bytes, *, at: int = 0) -> int:
    return partition.append_records([Record(0, at, None, value)])


def append(partition: Partition) -> int:
    return partition.append_records([Record(0, 0, None, b"v")])
