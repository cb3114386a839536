"""Work that a broker does on its own, beside its clients' requests, until it stops."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger("headrace.broker")

_PAUSE_MS_MIN, _PAUSE_MS_MAX = 10, 86_400_000


class Background:
    """Tasks on the event loop.

    Args:
        lost: what the broker no longer does when a bug ends one of them; for the log.
    """

    def __init__(self, lost: str) -> None:
        self._lost = lost
        self._stop = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_stopping(self) -> bool:
        """Whether the work has to end; it looks as often as it lets the loop turn."""
        return self._stop.is_set()

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Do `work` from now on."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    async def pause(self, pause_ms: int) -> bool:
        """Wait; False at once when the broker stops. A pause is between 10 ms and a day."""
        pause = min(max(pause_ms, _PAUSE_MS_MIN), _PAUSE_MS_MAX)
        try:
            await asyncio.wait_for(self._stop.wait(), pause / 1000)
        except TimeoutError:
            return True
        return False

    async def stop(self) -> None:
        """Tell the work to end, and return when it has."""
        self._stop.set()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _done(self, task: asyncio.Task[None]) -> None:
        """A bug ends the task; nobody awaits it, so it is told here."""
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.critical("%s", self._lost, exc_info=task.exception())


_tasks: set[asyncio.Task[None]] = set()


def in_background(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Run `work` as a task that the loop cannot forget (it keeps only weak references)."""
    task = asyncio.get_running_loop().create_task(work)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    return task
