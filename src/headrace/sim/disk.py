"""A disk that fails, tears and forgets, by order of a seed.

Faults are inputs: a number of operations after which the power goes, in the middle of a write if
it comes to that; operations that fail for a while; space that runs out. A power cut leaves of what
was not synced a part, or holes, or nothing, each file for itself.
"""

import errno
import os
from collections.abc import Callable
from random import Random

from headrace.log.memory_disk import MemoryDisk

_BLOCK_BYTES = 64  # what a torn write may lose in its middle; small, as simulated batches are


class FaultyDisk(MemoryDisk):
    """A `MemoryDisk` whose process dies after so many operations.

    Args:
        name: what the fate of unsynced bytes is drawn from.
        died: called once when the countdown is over; from then on every operation fails.
    """

    def __init__(self, name: str, died: Callable[[], None]) -> None:
        super().__init__()
        self.operations = 0
        self.errors = 0
        self.dead = False
        self._name = name
        self._died = died
        self._rng = Random(f"{name}/torn")
        self._left: int | None = None
        self._tearing = False

    def die_after(self, operations: int | None) -> None:
        """Let the process die with the operation after so many; None for never."""
        self._left = operations

    def write_back(self) -> None:
        """Bring everything to stable storage, as a system does that has the time for it."""
        for content in self._files.values():
            content.sync()

    def revive(self, *, power_cut: bool) -> None:
        """What the next process finds: everything written, or what a power cut left of it."""
        if power_cut:
            self.crash(self._survivors)
        else:
            self.kill()
        self.dead = False
        self._left = None

    def check(self, operation: str) -> None:
        """As `MemoryDisk.check`, and dead disks do nothing."""
        if self.dead:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self.operations += 1
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                if operation != "append":
                    self._die()
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                self._tearing = True
        if operation in self.failing:
            self.errors += 1
        super().check(operation)

    def grant(self, count: int) -> int:
        """As `MemoryDisk.grant`, or what is written when the process dies amid it."""
        if self._tearing:
            self._tearing = False
            self._die()
            return self._rng.randrange(count + 1)
        granted = super().grant(count)
        self.errors += granted < count
        return granted

    def _die(self) -> None:
        self.dead = True
        self._left = None
        self._died()

    def _survivors(self, path: str, unsynced: bytes) -> bytes:
        if not unsynced:
            return b""
        rng = Random(f"{self._name}/{self.crashes}/{path}")
        match rng.randrange(4):
            case 0:
                return b""
            case 1:
                return unsynced
            case 2:
                return unsynced[: rng.randrange(len(unsynced) + 1)]
            case _:
                kept = bytearray(unsynced[: rng.randrange(len(unsynced) + 1)])
                for at in range(0, len(kept), _BLOCK_BYTES):
                    if rng.randrange(3) == 0:
                        size = len(kept[at : at + _BLOCK_BYTES])
                        kept[at : at + size] = bytes(size)
                return bytes(kept)
