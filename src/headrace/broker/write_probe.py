"""Looks whether a disk that refused writes takes them again, without waiting for a client's write.

A partition whose append failed is reported by `/-/ready`. Behind a readiness gate no client would
ever write to it again, so the probe writes and syncs a small file of its own until that succeeds.
Where the size of files is limited, the file begins with a hole as large as the log's segment.
Partitions with a failed sync and journals repair themselves (`partition.py`, `runtime.py`).
"""

import asyncio
import contextlib

from headrace.broker.background import Background
from headrace.broker.partitions import Partitions
from headrace.log.api import Disk

FILE = ".write-probe"
PROBE_MS = 2_000
_BYTES_MIN = 64 << 10


class WriteProbe:
    """Runs from `start` to `close`, on the event loop."""

    def __init__(self, disk: Disk, partitions: Partitions) -> None:
        self.work = Background("partitions that failed are no longer probed", "write probe")
        self._disk = disk
        self._partitions = partitions

    def start(self) -> None:
        """Begin to probe."""
        self.work.begin(self._run())

    async def close(self) -> None:
        """Finish the probe under way."""
        await self.work.stop()

    async def probe(self) -> None:
        """Clear the failure of every partition that can be written again."""
        failing = [one for one in self._partitions if one.is_failing]
        if not failing:
            return
        size_bytes = max(_BYTES_MIN, *(one.failed_bytes for one in failing))
        position = max(one.failed_position for one in failing)
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(None, self._write, size_bytes, position)
        except OSError:
            return
        for one in failing:
            await one.open_ready()
            one.retry()

    def _write(self, size_bytes: int, position: int) -> None:
        """Write and sync so many bytes at `position` of a file, and remove it. Raises: OSError."""
        try:
            file = self._disk.open(FILE)
            try:
                if position:
                    file.truncate(position)
                file.append(bytes(size_bytes))
                file.sync()
            finally:
                file.close()
        finally:
            with contextlib.suppress(OSError):  # an empty file is left, which the next probe uses
                self._disk.remove(FILE)

    async def _run(self) -> None:
        while await self.work.pause(PROBE_MS):
            await self.probe()
