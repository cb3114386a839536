"""Work that a broker does on its own, beside its clients' requests, until it stops."""

import asyncio
import logging
from collections.abc import Collection, Coroutine
from typing import Any, TypeVar

from headrace.broker.loop_stalls import LoopStalls

T = TypeVar("T")
log = logging.getLogger("headrace.broker")

_PAUSE_MS_MIN, _PAUSE_MS_MAX = 10, 86_400_000


class Background:
    """Tasks on the event loop.

    Args:
        lost: what the broker no longer does when a bug ends one of them; for the log.
        name: Name of the task in `headrace_loop_stall_seconds`.

    Attributes:
        stalls: Records long steps of the tasks begun from then on; None records nothing.
    """

    def __init__(self, lost: str, name: str = "") -> None:
        self._lost = lost
        self._name = name
        self.stalls: LoopStalls | None = None
        self._is_stopping = False
        self._pauses: dict[asyncio.Future[None], asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_stopping(self) -> bool:
        """Whether the work has to end; it looks as often as it lets the loop turn."""
        return self._is_stopping

    @property
    def pauses(self) -> Collection[asyncio.TimerHandle]:
        """When the pauses under way end by themselves."""
        return self._pauses.values()

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Do `work` from now on."""
        if self.stalls is not None:
            work = self.stalls.timed(self._name, work)
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    async def pause(self, pause_ms: int) -> bool:
        """Wait; False at once when the broker stops. A pause is between 10 ms and a day."""
        if self._is_stopping:
            return False
        pause = min(max(pause_ms, _PAUSE_MS_MIN), _PAUSE_MS_MAX)
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()
        self._pauses[over] = loop.call_later(pause / 1000, _end, over)
        try:
            await over
        finally:
            self._pauses.pop(over).cancel()
        return not self._is_stopping

    def end_pauses(self) -> None:
        """Go on at once, as if the pauses under way were over."""
        for over in self._pauses:
            _end(over)

    async def stop(self) -> None:
        """Tell the work to end, and return when it has."""
        self._is_stopping = True
        self.end_pauses()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _done(self, task: asyncio.Task[None]) -> None:
        """A bug ends the task; nobody awaits it, so it is told here."""
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.critical("%s", self._lost, exc_info=task.exception())


def _end(pause: asyncio.Future[None]) -> None:
    if not pause.done():
        pause.set_result(None)


_tasks: set[asyncio.Task[Any]] = set()


def in_background(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Run `work` as a task that the loop cannot forget (it keeps only weak references)."""
    task = asyncio.get_running_loop().create_task(work)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    return task
