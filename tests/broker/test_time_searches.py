"""Searches by time beside writes that fail."""

import asyncio
import threading

from headrace.broker.decoding_threads import DecodingThreads
from headrace.broker.handlers import list_offsets
from headrace.log.memory_disk import MemoryDisk
from headrace.wire.batches import Record

from .partition_rig import TIMEOUT, on, put, until


def test_a_record_that_is_cut_off_during_the_search_is_not_the_answer() -> None:
    """Another record has its offset, and is synced, before the search ends."""

    async def go() -> None:
        disk, threads, is_free = MemoryDisk(), DecodingThreads(1), threading.Event()
        partition = on(disk)
        put(partition, b"kept", at=1)
        await partition.durable()
        disk.failing.add("sync")
        put(partition, b"cut off", at=20)
        other = asyncio.create_task(threads.run(lambda: is_free.wait(TIMEOUT)))
        await asyncio.sleep(0)
        search = asyncio.create_task(list_offsets._find(partition, 5, threads))
        await asyncio.sleep(0)
        disk.failing.clear()
        await until(lambda: partition.log.fault is None and partition.log.end_offset == 1)
        assert put(partition, b"written again", at=10) == 1
        await partition.durable()
        is_free.set()
        await other
        assert await search == (-1, -1)
        assert await list_offsets._find(partition, 5, threads) == (1, 10)

    asyncio.run(go())


def test_the_highest_time_may_be_that_of_a_record_which_comes_during_the_search() -> None:
    async def go() -> None:
        disk, threads, is_free = MemoryDisk(), DecodingThreads(1), threading.Event()
        partition = on(disk)
        partition.append_records([Record(0, 50, None, b"deleted"), Record(0, 5, None, b"kept")])
        await partition.durable()
        partition.log.advance_start(1)  # so that the batch has to be decoded
        other = asyncio.create_task(threads.run(lambda: is_free.wait(TIMEOUT)))
        await asyncio.sleep(0)
        search = asyncio.create_task(list_offsets._find(partition, -3, threads))
        await asyncio.sleep(0)
        assert put(partition, b"later", at=30) == 2
        await partition.durable()
        is_free.set()
        await other
        assert await search == (2, 30)

    asyncio.run(go())
