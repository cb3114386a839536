"""Files of dropped segments, which go only after a while.

Source: topic setting file.delete.delay.ms.
"""

import asyncio
import logging
from collections.abc import Sequence

from headrace.log.api import Disk

log = logging.getLogger("headrace.broker")


class DelayedRemoval:
    """Removes files of one partition in a thread, some time after they were given up.

    Args:
        name: the partition, for the log.
    """

    __slots__ = ("_disk", "_name", "_timers")  # one for each partition, and most never remove

    def __init__(self, disk: Disk, name: str) -> None:
        self._disk = disk
        self._name = name
        self._timers: set[asyncio.TimerHandle] | None = None

    def later(self, paths: Sequence[str], delay_ms: int) -> None:
        """Remove files after a delay."""
        loop = asyncio.get_running_loop()
        timers = self._timers = self._timers or set()

        def go() -> None:
            timers.discard(timer)
            loop.run_in_executor(None, self._remove, paths)

        timer = loop.call_later(delay_ms / 1000, go)
        timers.add(timer)

    def close(self) -> None:
        """Remove nothing further; what is left goes at the next start."""
        for timer in self._timers or ():
            timer.cancel()
        self._timers = None

    def _remove(self, paths: Sequence[str]) -> None:
        try:
            for path in paths:
                self._disk.remove(path)
        except OSError as error:
            log.warning("%s: a dropped segment stays until the next start: %s", self._name, error)
