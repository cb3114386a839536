"""Threads for decoding that is too large for the event loop, and how many work at a time."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

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

    async def search(self, begin: Callable[[], times.Search], *, end: int) -> times.Found:
        """Carry out a search by time, whose batches are decoded in threads.

        A search that meets a segment which retention or compaction removed meanwhile begins again.

        Args:
            begin: begins the search.
            end: the high watermark before the search. Records from there on may be cut off, and
                others written at their offsets, before the search ends.

        Returns:
            The result of the search; None where its offset is `end` or above.

        Raises:
            OSError: the log cannot be read, or is damaged.
            CorruptBatch: a producer made a batch so.
        """
        for _ in range(_SEARCHES_MAX - 1):
            try:
                return await self._search(begin(), end)
            except FileNotFoundError:
                continue
        return await self._search(begin(), end)

    async def _search(self, search: times.Search, end: int) -> times.Found:
        result = None
        while True:
            try:
                step = search.send(result)
            except StopIteration as stop:
                found: times.Found = stop.value
                return found if found is not None and found[0] < end else None
            if step is None:
                result = None
                await asyncio.sleep(0)
            else:
                result = await self.run(step)

    def _done(self, future: "asyncio.Future[ResultT]") -> None:
        self._free.release()
        if not future.cancelled():
            future.exception()  # of a caller that went away, nobody retrieves it
