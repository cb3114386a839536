"""One partition with durability `fsync`: who waits for which sync, and what readers may see."""

import asyncio
import threading
from typing import Any, cast
from uuid import UUID

import pytest

from headrace.broker.partitions import Partition
from headrace.broker.topic_settings import TopicSettings
from headrace.broker.waits import Waits
from headrace.core.catalog import Topic
from headrace.wire.batches import Record

TIMEOUT = 10


class SlowLog:
    """Counts its syncs, each of which waits for `let_go`; fails them when told to."""

    def __init__(self) -> None:
        self.end_offset = 0
        self.syncs = 0
        self.fails = False
        self.let_go = threading.Semaphore(0)

    def append(self, data: bytearray, headers: Any) -> int:
        self.end_offset += 1
        return self.end_offset - 1

    def sync(self) -> None:
        assert self.let_go.acquire(timeout=TIMEOUT)
        self.syncs += 1
        if self.fails:
            raise OSError(5, "Input/output error")


def opened(*, fsync: bool = True) -> tuple[SlowLog, Partition, Waits]:
    log, waits = SlowLog(), Waits(10)
    topic = Topic("orders", UUID(int=1), 1)
    return log, Partition(topic, 0, cast(Any, log), TopicSettings(), waits, fsync=fsync), waits


def append(partition: Partition) -> int:
    return partition.append_records([Record(0, 0, None, b"v")])


def test_one_sync_serves_all_who_came_before_it() -> None:
    async def go() -> None:
        log, partition, _ = opened()
        append(partition)
        first = asyncio.create_task(partition.durable())
        await asyncio.sleep(0.01)
        later = []
        for _ in range(5):
            append(partition)
            later.append(asyncio.create_task(partition.durable()))
        await asyncio.sleep(0.01)
        assert partition.high_watermark == 0
        log.let_go.release()
        await first
        assert partition.high_watermark == 1
        assert not any(task.done() for task in later)
        log.let_go.release()
        await asyncio.gather(*later)
        assert (partition.high_watermark, log.syncs) == (6, 2)
        await partition.durable()
        assert log.syncs == 2, "nothing new, nothing to sync"

    asyncio.run(go())


def test_what_nobody_waits_for_is_synced_and_shown_too() -> None:
    async def go() -> None:
        log, partition, waits = opened()
        log.let_go.release()
        reader = asyncio.create_task(waits.wait([partition.key], TIMEOUT * 1000))
        await asyncio.sleep(0)
        append(partition)
        assert await reader
        assert partition.high_watermark == 1

    asyncio.run(go())


def test_a_caller_that_goes_away_does_not_end_the_sync_of_others() -> None:
    async def go() -> None:
        log, partition, _ = opened()
        append(partition)
        gone, stays = (asyncio.create_task(partition.durable()) for _ in range(2))
        await asyncio.sleep(0.01)
        gone.cancel()
        await asyncio.sleep(0.01)
        log.let_go.release()
        await stays
        assert gone.cancelled()

    asyncio.run(go())


def test_after_a_failed_sync_nothing_is_promised_any_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def go() -> None:
        log, partition, _ = opened()
        log.fails = True
        log.let_go.release()
        append(partition)
        with pytest.raises(OSError, match="Input/output error"):
            await partition.durable()
        log.fails = False
        with pytest.raises(OSError, match="Input/output error"):
            append(partition)
        assert partition.high_watermark == 0

    asyncio.run(go())
    assert "until the broker is restarted" in caplog.text


def test_without_fsync_an_append_is_durable_and_seen_at_once() -> None:
    async def go() -> None:
        log, partition, waits = opened(fsync=False)
        reader = asyncio.create_task(waits.wait([partition.key], TIMEOUT * 1000))
        await asyncio.sleep(0)
        append(partition)
        assert await reader
        await partition.durable()
        assert (partition.high_watermark, log.syncs) == (1, 0)

    asyncio.run(go())
