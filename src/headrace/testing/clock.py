"""The broker's time as a test moves it."""

import asyncio
from collections.abc import Coroutine, Sequence
from concurrent.futures import CancelledError, Future
from datetime import UTC, datetime, timedelta
from typing import Any

from headrace.broker.background import Background
from headrace.broker.node import Node
from headrace.testing.loop import SkippingClock, SkippingLoop

_NS_PER_MS, _NS_PER_US = 1_000_000, 1_000
_LOOKS_MAX = 256  # of each periodic work, in one advance, beside those that timers lead to


class NotRunning(RuntimeError):
    """The broker is not running, so it has no time."""


class BrokerClock:
    """The clock of one broker: the machine's, ahead by all that was skipped.

    Between two advances it runs on as the machine's does. It never goes back.
    """

    def __init__(self) -> None:
        self._loop: SkippingLoop | None = None
        self._clock: SkippingClock | None = None
        self._node: Node | None = None
        self._skipped_ns = 0
        self._one_by_one = asyncio.Lock()
        self._under_way: set[Future[None]] = set()

    def now(self) -> datetime:
        """What the broker takes for the time, in UTC."""
        if self._clock is None:
            raise NotRunning("the broker is not running; start it first")
        return datetime.fromtimestamp(self._clock.wall() / 1000, UTC)

    @property
    def skipped(self) -> timedelta:
        """How far the broker is ahead of the machine."""
        skipped_ns = self._skipped_ns if self._loop is None else self._loop.skipped_ns
        return timedelta(microseconds=skipped_ns // _NS_PER_US)

    def advance(
        self,
        *,
        weeks: float = 0,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        milliseconds: float = 0,
    ) -> None:
        """Let that much time pass for the broker, and return when all that was due has happened.

        What is due happens in the order of its due times, at those times: timeouts of members,
        locks and rebalances, delays, and what follows from them. Periodic work (retention,
        compaction, expiry of offsets) is done on the way, as often as its interval says but not
        more than some 256 times, and once more at the end. All of it is journaled. Nothing
        that clients send meanwhile is read before the end.

        Raises: ValueError for a negative duration; NotRunning.
        """
        duration = timedelta(
            weeks=weeks, days=days, hours=hours, minutes=minutes, seconds=seconds,
            milliseconds=milliseconds,
        )  # fmt: skip
        if duration < timedelta():
            raise ValueError(f"a clock never goes back: {duration.total_seconds():g} s were asked")
        if self._loop is None or self._node is None:
            raise NotRunning("the broker is not running; start it before you move its clock")
        duration_ns = duration // timedelta(microseconds=1) * _NS_PER_US
        self._wait_for(self._advance(self._loop, self._node, duration_ns), self._loop)

    def loop(self) -> SkippingLoop:
        """A loop for the broker's next run; what was skipped before it stays so."""
        loop = SkippingLoop()
        loop.skipped_ns = self._skipped_ns
        return loop

    def clock(self, loop: SkippingLoop) -> SkippingClock:
        """The broker's clock on its running loop."""
        self._loop, self._clock = loop, SkippingClock(loop)
        self._one_by_one = asyncio.Lock()  # which knows the loop that it was used on
        return self._clock

    def started(self, node: Node) -> None:
        """There is a broker to move."""
        self._node = node

    def ended(self) -> None:
        """There is none any more."""
        if self._loop is not None:
            self._skipped_ns = self._loop.skipped_ns
        self._loop = self._clock = self._node = None
        for advance in tuple(self._under_way):
            advance.cancel()

    def _wait_for(self, advance: Coroutine[Any, Any, None], loop: SkippingLoop) -> None:
        """Raises: NotRunning, when the broker is stopped meanwhile."""
        try:
            done = asyncio.run_coroutine_threadsafe(advance, loop)
        except RuntimeError as error:  # the loop is closed
            advance.close()
            raise NotRunning("the broker was stopped before its clock had moved") from error
        self._under_way.add(done)
        if self._loop is not loop:  # `ended` did not see it, and nobody would end it any more
            done.cancel()
        try:
            done.result()
        except CancelledError:
            raise NotRunning("the broker was stopped while its clock was moved") from None
        finally:
            self._under_way.discard(done)

    async def _advance(self, loop: SkippingLoop, node: Node, duration_ns: int) -> None:
        async with self._one_by_one:
            loop.be_deaf(True)
            try:
                target_ns = loop.now_ns + duration_ns
                await loop.rest()
                while loop.now_ns < target_ns:
                    stop_ns = _next_stop(loop, node, duration_ns // _LOOKS_MAX)
                    loop.skip_to(int(min(stop_ns, target_ns)))
                    node.services.clock.beat()  # a skip is no stall
                    await loop.rest()
                await _look(loop, node.background)
            finally:
                loop.be_deaf(False)


def _next_stop(loop: SkippingLoop, node: Node, look_ns: int) -> int | float:
    """Where time has to stop next: a timer at its time, periodic work at most each `look_ns`."""
    periodic = [pause for work in node.background for pause in work.pauses]
    if node.metrics is not None and node.metrics.lag_timer is not None:
        periodic.append(node.metrics.lag_timer)
    timer_ns = loop.next_timer_ns(but=periodic)
    return min(timer_ns, max(loop.next_timer_ns(), loop.now_ns + look_ns))


async def _look(loop: SkippingLoop, works: Sequence[Background]) -> None:
    for work in works:
        work.end_pauses()
    await loop.rest()
