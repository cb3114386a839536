"""Turns of the event loop: connections with costly requests share a part of each turn.

One thread answers all connections. If every connection with a request were answered in the turn of
the loop in which the request arrives, a cheap request would wait for all costly ones that arrive
with it: 80 fetches of 16 MiB held the loop for more than a second.

A step is the work for one connection between two turns: the requests that `Connection` answers
together, or the time between two awaits of a handler. A step of `COSTLY_SECONDS` or more is costly.
Connections whose last steps were cheap are answered at once. Costly ones, and new ones, of which
nothing is known, have `TURN_SECONDS` of each turn together; beyond that they wait in one queue,
first in, first out. A connection waits there once at most, so the queue is a round robin, and a
cheap request waits for at most one costly step and the rest of a turn, however many connections
pipeline costly requests.

The unit is a connection and not an address: behind a proxy or on loopback all clients share one.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from headrace.broker.loop_stalls import STALL_SECONDS, LoopStalls, Timed

T = TypeVar("T")

TURN_SECONDS = 0.002
SLICE_SECONDS = 0.005  # for one connection while no other waits for its turn
COSTLY_SECONDS = 0.001
_NEW = 2.0  # score of a new connection
_WAITS_FROM = 1.5
_SCORE_MAX = 10.0
_CHEAP = 0.1  # what one cheap step takes from the score; a costly one adds 1
_CHECKS = 20


class Turns:
    """Steps of this turn of the loop, and what waits for the next ones.

    Args:
        timer: Returns seconds; it does not move during a step of a simulation.
        cpu_timer: Returns seconds of processor time of the thread.
    """

    def __init__(self, timer: Callable[[], float], cpu_timer: Callable[[], float]) -> None:
        self.timer, self.cpu_timer = timer, cpu_timer
        self._used = 0.0
        self._released = 0.0  # expected seconds of tasks that go on in the next turn
        self._waiting: deque[tuple[Callable[[], object], float]] = deque()
        self._is_due = False

    @property
    def is_over(self) -> bool:
        """Return whether costly steps have used up this turn."""
        return self._used >= TURN_SECONDS

    @property
    def slice_seconds(self) -> float:
        """Time that one connection may take at a stretch."""
        return TURN_SECONDS if self._waiting else SLICE_SECONDS

    @property
    def waiting(self) -> int:
        """Number of connections that wait for a turn."""
        return len(self._waiting)

    def spend(self, seconds: float) -> None:
        """Count a costly step of this turn."""
        self._used += seconds
        self._begin_next()

    def wait(self, go_on: Callable[[], object], expected_seconds: float = 0.0) -> None:
        """Call `go_on` in a later turn.

        Args:
            go_on: Works, or lets a task go on, which works in the turn after.
            expected_seconds: Duration of the step of that task.
        """
        self._waiting.append((go_on, expected_seconds))
        self._begin_next()

    def turn(self, expected_seconds: float) -> "asyncio.Future[None]":
        """Return a future that is done when a task may go on, with a step of this duration."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.wait(partial(_release, future), expected_seconds)
        return future

    def _begin_next(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._is_due = False
        self._used, self._released = self._released, 0.0
        try:
            while self._waiting and not self.is_over:
                go_on, expected_seconds = self._waiting.popleft()
                self._released += expected_seconds
                self._used += expected_seconds
                go_on()
        finally:
            if self._waiting or self._released:
                self._begin_next()


class LoopUse:
    """How costly the last steps of one connection were.

    A step that took long may have been cheap: the system ran other processes meanwhile. So one that
    took long has the next steps measured by the processor time of the thread, which is slower to
    read, and only those count.
    """

    __slots__ = ("_score", "_seconds", "_turns", "checks")

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._score = _NEW
        self.checks = _CHECKS  # next steps that are measured by processor time
        self._seconds = COSTLY_SECONDS  # of the last costly step

    @property
    def must_wait(self) -> bool:
        """Return whether the next step belongs into a later turn."""
        return self._turns.is_over and self._score >= _WAITS_FROM

    @property
    def timer(self) -> Callable[[], float]:
        """What measures the next step."""
        return self._turns.cpu_timer if self.checks else self._turns.timer

    def add(self, seconds: float, timer: Callable[[], float], *, is_counted: bool = False) -> None:
        """Record a step.

        Args:
            seconds: Its duration.
            timer: What measured it.
            is_counted: The turn has counted it when the step was released.
        """
        if seconds >= COSTLY_SECONDS:
            self.checks = _CHECKS
            if timer is self._turns.cpu_timer:
                self._score = min(self._score + 1, _SCORE_MAX)
                self._seconds = seconds
            if not is_counted:
                self._turns.spend(seconds)
        elif self.checks:
            self._score = max(self._score - _CHEAP, 0.0)
            self.checks -= self._score == 0

    def turn(self) -> "asyncio.Future[None]":
        """Return a future that is done when a task of this connection may go on."""
        return self._turns.turn(self._seconds)


def _release(future: "asyncio.Future[None]") -> None:
    if not future.done():  # else the request was cancelled
        future.set_result(None)


class InTurns(Timed[T]):
    """Runs the coroutine of a request; costly steps wait for their turn."""

    __slots__ = ("_is_released", "_is_started", "_use")

    def __init__(
        self, stalls: LoopStalls, name: str, work: Coroutine[Any, Any, T], use: LoopUse
    ) -> None:
        super().__init__(stalls, name, work)
        self._use = use
        self._is_released = False
        self._is_started = False

    def send(self, value: Any) -> Any:
        if not self._is_released and self._use.must_wait:
            self._is_released = True
            return self._use.turn().__await__().send(None)  # the task waits for this future
        is_counted, self._is_released = self._is_released, False
        self._is_started = True
        use = self._use
        is_checked, timer = use.checks > 0, use.timer
        began = timer()
        try:
            return super().send(value) if is_checked else self._work.send(value)
        finally:
            seconds = timer() - began
            if is_checked or seconds >= COSTLY_SECONDS:
                if not is_checked and seconds >= STALL_SECONDS:  # else `super` has counted it
                    self._stalls.add(self._name, seconds)
                use.add(seconds, timer, is_counted=is_counted)

    def throw(self, *error: Any) -> Any:
        if not self._is_started:  # a coroutine cleans up only what it has begun
            self._is_started = True
            super().send(None)
        try:
            return super().throw(*error)
        finally:
            del error  # as in `Timed.throw`
