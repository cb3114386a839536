"""A disk that fails, tears, forgets and rots, by order of a seed.

Faults are inputs: a number of operations after which the power goes, in the middle of a write if
it comes to that; operations that fail for a while; space that runs out. A power cut leaves of what
was not synced a part, or holes, or nothing, each file for itself; of folder entries that were not
synced it keeps those up to a point, in their order. While no broker runs, `damage` flips bits,
loses files and synced writes, and puts blocks where they do not belong; `undo_damage` is the
operator's copy.
"""

import errno
import os
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from headrace.log.memory_disk import MemoryDisk

_RECOVERY_POINT = "recovery-point"
_LEFT_ALONE = (".torn", "-stray", "-delete", ".deleted", ".cleaned", ".swap", ".new")
Undo = Callable[[], None]
_ENTRIES_UNDONE = 0.5  # of folders with entries that were not synced, at a power cut
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
        self._entries: dict[str, list[Undo]] = {}  # by folder: how to take back what is not synced
        self._claimed: dict[str, int] = {}  # bytes of logs that a recovery point may claim
        self._damaged: dict[str, bytes | None] = {}  # files as the damage left them
        self._copies: dict[str, bytes] = {}  # files as they were before they were damaged

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
            self._lose_entries()
            self.crash(self._survivors)
            self._claimed.clear()
        else:
            self.kill()
        self.dead = False
        self._left = None

    # ---- folder entries

    def write(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """As `MemoryDisk.write`; without `durable` a power cut may bring the old file back."""
        before = self._files.get(path)
        super().write(path, data, durable=durable)
        self._entry(path, durable, partial(self._put_back, path, before))

    def rename(self, old: str, new: str, *, durable: bool = True) -> None:
        """As `MemoryDisk.rename`; without `durable` a power cut may undo it."""
        replaced = self._files.get(new)
        super().rename(old, new, durable=durable)

        def undo() -> None:
            moved = self._files.get(new)
            self._put_back(new, replaced)
            if moved is not None:
                self._files[old] = moved

        self._entry(new, durable, undo)

    def overwrite(self, path: str, data: bytes, position: int, *, durable: bool = False) -> None:
        """As `MemoryDisk.overwrite`; remembers what a recovery point may claim."""
        super().overwrite(path, data, position, durable=durable)
        if path.endswith(f"/{_RECOVERY_POINT}"):
            for name in self._below(_folder(path)):
                if name.endswith(".log"):
                    self._claimed[name] = self._files[name].synced

    def _put_back(self, path: str, content: Any) -> None:
        if content is None:
            self._files.pop(path, None)
        else:
            self._files[path] = content

    def _entry(self, path: str, durable: bool, undo: Undo) -> None:
        if durable:
            self._entries.pop(_folder(path), None)  # the folder is synced, with all its entries
        else:
            self._entries.setdefault(_folder(path), []).append(undo)

    def _lose_entries(self) -> None:
        entries, self._entries = self._entries, {}
        for folder, undos in entries.items():
            rng = Random(f"{self._name}/{self.crashes}/{folder}/entries")
            if rng.random() < _ENTRIES_UNDONE:
                for undo in reversed(undos[rng.randrange(len(undos)) :]):
                    undo()

    # ---- damage, while no broker runs

    @property
    def is_damaged(self) -> bool:
        """Whether damage was done that nobody undid."""
        return bool(self._copies)

    def damage(self, *, in_order: bool) -> str | None:
        """Damage one file that has to be what it was.

        Args:
            in_order: the broker stopped in order, so that every byte of every file counts. Else the
                end of a log may be torn, and only what its recovery point claims is damaged.

        Returns:
            What was done; None when there is no such file.
        """
        rng = self._rng
        choices = [
            (path, least)
            for path in sorted(self._files)
            if (least := self._damageable(path, in_order)) > 0
        ]
        if not choices:
            return None
        logs = [one for one in choices if one[0].endswith(".log") and not one[0].startswith("__")]
        small = [one for one in choices if "/" not in one[0] or one[0].endswith(".metadata")]
        path, size = rng.choice(rng.choice([some for some in (choices, logs, small) if some]))
        content = self._files[path]
        self._copies = {path: bytes(content.data)}
        kind = rng.choice(("bit", "bit", "zeros", "misdirected", "short", "missing"))
        at = rng.randrange(size)
        if path.endswith(f"/{_RECOVERY_POINT}"):
            for name in self._below(_folder(path)):
                self._claimed.pop(name, None)
        match kind:
            case "bit":
                content.data[at] ^= 1 << rng.randrange(8)
            case "zeros":
                end = min(at + _BLOCK_BYTES, size)
                content.data[at:end] = bytes(end - at)
            case "misdirected":
                other = self._files[rng.choice(choices)[0]].data
                source = rng.randrange(max(len(other) - _BLOCK_BYTES, 0) + 1)
                block = bytes(other[source : source + min(_BLOCK_BYTES, size - at)])
                content.data[at : at + len(block)] = block
            case "short":
                del content.data[at:]
            case _:
                del self._files[path]
        if self._files.get(path) is content and bytes(content.data) == self._copies[path]:
            self._copies = {}
            return None  # as a block of zeros that is zeroed
        content.synced = min(content.synced, len(content.data))
        self._damaged = {path: bytes(content.data) if path in self._files else None}
        return f"{kind}: {path} at byte {at}"

    def undo_damage(self) -> str:
        """Restore what was damaged from a copy; returns the names of the files.

        What the broker appended to a damaged file since is kept behind the copy.
        """
        copies, self._copies = self._copies, {}
        for path, data in copies.items():
            now, damaged = self._files.get(path), self._damaged[path]
            tail = b""
            if now is not None and damaged is not None and now.data.startswith(damaged):
                tail = bytes(now.data[len(damaged) :])
            spare = MemoryDisk()  # without the faults of this one
            spare.write(path, data + tail)
            self._files[path] = spare._files[path]
        return ", ".join(copies)

    def settle_damage(self) -> None:
        """Restore what is still damaged, and leave what a broker rebuilt."""
        for path, damaged in self._damaged.items():
            now = self._files.get(path)
            is_as_damaged = (
                damaged is None if now is None else damaged and now.data.startswith(damaged)
            )
            if not is_as_damaged:
                self._copies.pop(path, None)
        self.undo_damage()

    def cut(self, path: str, position: int) -> None:
        """Cut a file off, as `headrace repair` does."""
        content = self._content(path)
        del content.data[position:]
        content.synced = min(content.synced, position)

    def _damageable(self, path: str, in_order: bool) -> int:
        """How many bytes of a file, from its start, have to be what they were; 0 for none."""
        if any(mark in path for mark in _LEFT_ALONE) or path.startswith("."):
            return 0
        size = len(self._files[path].data)
        if path.endswith(".log") and not in_order:
            return min(self._claimed.get(path, 0), size)
        if path.endswith(f"/{_RECOVERY_POINT}") and not in_order:
            return 0  # without a claim the end of the log counts as torn
        return size

    # ---- faults of operations

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


def _folder(path: str) -> str:
    return path.rpartition("/")[0]
