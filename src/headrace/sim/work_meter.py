"""A clock that counts work: how long a step of the broker holds the loop, without real time.

The broker measures each call of a handler and each step of a task with `perf_counter`, and counts
those of 20 ms or more (`broker/loop_stalls.py`). While a meter is installed, that clock advances by
the functions that were called, so that the same code decides whether a step was too long, the same
way on every machine. A function of C counts as one call.
"""

import sys
from types import FrameType, ModuleType
from typing import Any

from headrace.broker import dispatch, loop_stalls
from headrace.broker.loop_stalls import STALL_SECONDS

CALLS_MAX = 40_000  # in one step: 10 to 20 ms of the broker's code
_SECONDS_PER_CALL = STALL_SECONDS / CALLS_MAX
_MODULES: tuple[ModuleType, ...] = (dispatch, loop_stalls)


class WorkMeter:
    """Counts the calls of a process while it is installed; there is one at a time."""

    def __init__(self) -> None:
        self._calls = 0
        self._clocks: dict[ModuleType, Any] = {}
        self._profiler: Any = None

    def install(self) -> None:
        """Count from now on, and let the broker measure its steps by the count."""
        self._clocks = {one: one.perf_counter for one in _MODULES}
        for module in _MODULES:
            module.perf_counter = self._seconds  # type: ignore[attr-defined]  # imported there
        self._profiler = sys.getprofile()
        sys.setprofile(self._count)

    def remove(self) -> None:
        """Give the broker its clock back."""
        if not self._clocks:
            return
        sys.setprofile(self._profiler)
        for module, clock in self._clocks.items():
            module.perf_counter = clock  # type: ignore[attr-defined]  # imported there
        self._clocks = {}

    def _count(self, _frame: FrameType, event: str, _argument: object) -> None:
        if event in ("call", "c_call"):
            self._calls += 1

    def _seconds(self) -> float:
        return self._calls * _SECONDS_PER_CALL
