"""How long single steps hold the event loop, and which API or background task took them.

All clients wait while one step runs. A step is a call of a handler, the time between two awaits of
a handler's coroutine, or of a background task. Steps longer than `STALL_SECONDS` are counted by
what ran. Nothing is recorded for shorter ones, so the cost is two readings of a clock for a step.
"""

import logging
from collections.abc import Coroutine, Generator
from time import perf_counter
from typing import Any, TypeVar

from headrace.broker.histogram import Histogram

log = logging.getLogger("headrace.broker")
T = TypeVar("T")

STALL_SECONDS = 0.020
BOUNDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class LoopStalls:
    """Stalls by what ran; `warn_seconds` is the duration from which a warning is logged."""

    def __init__(self, warn_seconds: float | None = None) -> None:
        self.warn_seconds = warn_seconds
        self.by_name: dict[str, Histogram] = {}

    @property
    def count(self) -> int:
        """Stalls since the start."""
        return sum(sum(one.counts) for one in self.by_name.values())

    def add(self, name: str, seconds: float) -> None:
        """Record a step of `seconds`, at least `STALL_SECONDS`, of the API or task `name`."""
        if name not in self.by_name:
            self.by_name[name] = Histogram(BOUNDS)
        self.by_name[name].observe(seconds)
        if self.warn_seconds is not None and seconds >= self.warn_seconds:
            log.warning(
                "event loop: %s held it for %d ms; other requests waited meanwhile"
                " (headrace.loop.stall.warn.ms)", name, seconds * 1000,
            )  # fmt: skip

    def timed(self, name: str, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """Return a coroutine for a task that runs `work` and records its long steps."""
        return Timed(self, name, work)


class Timed(Coroutine[Any, Any, T]):
    """Runs a coroutine in its place, and measures each step of it."""

    __slots__ = ("_name", "_stalls", "_work")

    def __init__(self, stalls: LoopStalls, name: str, work: Coroutine[Any, Any, T]) -> None:
        self._stalls = stalls
        self._name = name
        self._work = work

    def send(self, value: Any) -> Any:
        began = perf_counter()
        try:
            return self._work.send(value)
        finally:
            seconds = perf_counter() - began
            if seconds >= STALL_SECONDS:
                self._stalls.add(self._name, seconds)

    def throw(self, *error: Any) -> Any:
        try:
            return self._work.throw(*error)
        finally:
            del error  # its traceback has this frame: what the work keeps would be freed late

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self._work.__await__()
