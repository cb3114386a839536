"""An event loop and a clock of real time plus what was skipped.

Loop and clock read the same counter, so timers, elapsed time and the calendar move together. They
read it where freezegun and time-machine do not reach: a test that stops its own time would stop
the broker's timers with it.
While time is skipped the loop is deaf: what clients send waits in their sockets.
"""

import asyncio
import math
import selectors
import time
from collections.abc import Callable, Collection
from typing import Any

from headrace.core.types import MonoMs, Now, WallMs

_NS_PER_S, _NS_PER_MS = 1_000_000_000, 1_000_000
_ROUNDING_NS = 1_000  # a moment reached as a float must not lie before itself as an integer


class _Selector(selectors.DefaultSelector):
    deaf = False

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(timeout)
        return [] if self.deaf else found


class SkippingLoop(asyncio.SelectorEventLoop):
    """asyncio's event loop in a time that can be skipped forward."""

    def __init__(self) -> None:
        self.skipped_ns = 0
        self._connections = _Selector()
        self._working: set[asyncio.Future[Any]] = set()
        super().__init__(self._connections)
        self.slow_callback_duration = math.inf  # or, debugging, it takes what skips for slow

    def time(self) -> float:
        return self.now_ns / _NS_PER_S

    @property
    def now_ns(self) -> int:
        """The loop's time as an integer."""
        return time.clock_gettime_ns(time.CLOCK_MONOTONIC) + self.skipped_ns

    def skip_to(self, moment_ns: int) -> None:
        """Let it be `moment_ns`; nothing when it is later already."""
        self.skipped_ns += max(0, moment_ns + _ROUNDING_NS - self.now_ns)

    def be_deaf(self, deaf: bool) -> None:
        """Whether connections are taken no notice of; who is connected notices nothing."""
        self._connections.deaf = deaf

    def run_in_executor(  # type: ignore[override]  # typed with as many variables as arguments
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> "asyncio.Future[Any]":
        future = super().run_in_executor(executor, func, *args)
        self._working.add(future)
        future.add_done_callback(self._working.discard)
        return future

    async def rest(self) -> None:
        """Return once nothing is left to do now: no callback, no timer, no work in a thread.

        The loop has to be deaf, or clients could keep it busy for ever.
        """
        # Both queues have had these names since Python 3.4; there is no public way to ask.
        ready: Collection[asyncio.Handle] = self._ready  # type: ignore[attr-defined]  # typeshed hides it
        while True:
            await asyncio.sleep(0)
            if ready or self.next_timer_ns() <= self.now_ns:
                continue
            if not self._working:
                return
            await asyncio.wait(self._working)

    def next_timer_ns(self, but: Collection[asyncio.TimerHandle] = ()) -> int | float:
        """When the next timer is due, those of `but` left out; infinity without any."""
        timers: Collection[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]  # typeshed hides it
        left_out = set(map(id, but))
        due = (one.when() for one in timers if not one.cancelled() and id(one) not in left_out)
        first = min(due, default=math.inf)
        return first if first == math.inf else math.ceil(first * _NS_PER_S)


class SkippingClock:
    """`log.api.Clock` of a broker on such a loop."""

    def __init__(self, loop: SkippingLoop) -> None:
        self._loop = loop
        real_ns, now_ns = map(time.clock_gettime_ns, (time.CLOCK_REALTIME, time.CLOCK_MONOTONIC))
        self._began_ns = real_ns - now_ns

    def mono(self) -> MonoMs:
        return MonoMs(self._loop.now_ns // _NS_PER_MS)

    def wall(self) -> WallMs:
        return WallMs((self._began_ns + self._loop.now_ns) // _NS_PER_MS)

    def now(self) -> Now:
        return Now(self.mono(), self.wall())
