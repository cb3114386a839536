"""Threads for decoding that is too large for the event loop, and how many work at a time."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from headrace.broker.partition import Partition
from headrace.log import times

_SEARCHES_MAX = 3

ResultT = TypeVar("ResultT")


class DecodingThreads:
    """Runs decoding beside the event loop; the memory that it takes is bounded by their number.

    Args:
        threads: most pieces of work at a time (headrace.decoding.threads); others wait in order.
    """

    def __init__(self, threads: int) -> None:
        self._free = asyncio.Semaphore(threads)

    async def run(self, work: Callable[[], ResultT]) -> ResultT:
        """Return what `work` returns; raise what it raises."""
        await self._free.acquire()
        future = asyncio.get_running_loop().run_in_executor(None, work)
        future.add_done_callback(self._done)
        # A caller that goes away does not end a thread: its memory counts until it is done.
        return await asyncio.shield(future)

    async def search(self, partition: Partition, begin: Callable[[], times.Search]) -> times.Found:
        """Carry out a search by time in the log of a partition; batches are decoded in threads.

        A search that meets a segment which retention or compaction removed meanwhile begins again.

        Returns:
            The result of the search; None where readers may not see the record, or where it may
            have been cut off during the search, and another record have its offset.

        Raises:
            OSError: the log cannot be read, or is damaged.
            CorruptRecordsError: a producer made a batch so.
        """
        end, cuts = partition.high_watermark, partition.cuts
        found = await self._searched(begin)
        if found is None or found[0] < end:
            return found
        is_seen = partition.cuts == cuts and found[0] < partition.high_watermark
        return found if is_seen else None

    async def _searched(self, begin: Callable[[], times.Search]) -> times.Found:
        for _ in range(_SEARCHES_MAX - 1):
            try:
                return await self._search(begin())
            except FileNotFoundError:
                continue
        return await self._search(begin())

    async def _search(self, search: times.Search) -> times.Found:
        result = None
        while True:
            try:
                step = search.send(result)
            except StopIteration as end:
                found: times.Found = end.value
                return found
            if step is None:
                result = None
                await asyncio.sleep(0)
            else:
                result = await self.run(step)

    def _done(self, future: "asyncio.Future[ResultT]") -> None:
        self._free.release()
        if not future.cancelled():
            future.exception()  # of a caller that went away, nobody retrieves it
