"""A disk that fails, tears, forgets and rots, by order of a seed.

Faults are inputs: a number of operations after which the power goes, in the middle of a write if
it comes to that; operations that fail for a while; space that runs out. A power cut leaves of what
was not synced a part, or holes, or some of the writes in any order, or nothing, each file for
itself; of folder entries that were not synced it keeps those up to a point, in their order.
`damage` is what happens to bytes that were synced (`damage.py`).
"""

import errno
import os
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any

from headrace.log.memory_disk import MemoryDisk, MemoryFile
from headrace.log.recovery_point import NAME as RECOVERY_POINT
from headrace.log.recovery_point import decoded
from headrace.sim.damage import BLOCK_BYTES, Damage

Undo = Callable[[], None]
_MADE = 0.5  # of the files that could not be opened
_ENTRIES_UNDONE = 0.5  # of folders with entries that were not synced, at a power cut
NOTHING, WHOLE, TORN, HOLES, REORDERED = "nothing", "whole", "torn", "holes", "reordered"
FATES = (NOTHING, WHOLE, TORN, HOLES, REORDERED)


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
        self._judged: Counter[str] = Counter()  # writes of a power cut, by path
        self._tearing = False
        self._entries: dict[str, list[Undo]] = {}  # by folder: how to take back what is not synced
        self._claimed: dict[str, int] = {}  # bytes of logs that a recovery point may claim
        self._writes: dict[Any, list[int]] = {}  # by content: where unsynced appends began
        self._unsynced_us: dict[Any, int] = {}  # by content: when the first of them was made
        self._sizes: dict[Any, int] = {}  # by content, as the process found it
        self.now_us: Callable[[], int] = lambda: 0
        self.fates: tuple[str, ...] = FATES
        self.losses: dict[str, str] = {}  # what the last power cut did, and one file of each kind
        self.cut_without_copy: list[str] = []  # while `watches_cuts`
        self.watches_cuts = False
        self._former: dict[
            str, bytes
        ] = {}  # files before they were last written in place or replaced
        self.damage = Damage(name, self._files, self._replace, self._claimed, self._former)

    def die_after(self, operations: int | None) -> None:
        """Let the process die with the operation after so many; None for never."""
        self._left = operations

    def write_back(self) -> None:
        """Bring everything to stable storage, as a system does that has the time for it."""
        for content in self._files.values():
            content.sync()

    def revive(self, *, power_cut: bool) -> None:
        """What the next process finds: everything written, or what a power cut left of it."""
        self.losses = {}
        if power_cut:
            self.damage.lose_claims()
            self.damage.lose_ends()
            if self.fates != (WHOLE,):
                self._lose_entries()
            self._judged.clear()
            self.crash(self._survivors)
            self._claimed.clear()
            self._unsynced_us.clear()
        else:
            self.kill()
        self.damage.is_live = False
        self._writes.clear()
        self._sizes = {content: len(content.data) for content in self._files.values()}
        self.dead = False
        self._left = None

    @property
    def contents(self) -> dict[str, bytes]:
        """All files, by path."""
        return {path: bytes(one.data) for path, one in self._files.items()}

    def _replace(self, path: str, data: bytes) -> None:
        spare = MemoryDisk()  # without the faults of this one
        spare.write(path, data)
        self._files[path] = spare._files[path]

    # ---- unsynced writes

    def open(self, path: str) -> "WatchedFile":
        """As `MemoryDisk.open`; amid a crash or a failure a power cut may take a new file."""
        was_dead, is_new = self.dead, path not in self._files
        try:
            super().open(path)
        except OSError:
            if is_new and not was_dead and self._is_made(path):
                self._replace(path, b"")
                self._entry(path, False, partial(self._put_back, path, None), "creation")
            raise
        if is_new:
            self._folder_is_synced(path)
        return WatchedFile(self, self._files[path], path)

    def _is_made(self, path: str) -> bool:
        """Return whether a file is there whose name could not be synced."""
        return Random(f"{self._name}/{self.operations}/{path}/made").random() < _MADE

    def appending(self, content: Any, position: int) -> None:
        """Note where an append begins."""
        self._writes.setdefault(content, []).append(position)
        if content.synced >= position:
            self._unsynced_us[content] = self.now_us()

    def is_synced(self, content: Any) -> None:
        """Forget the appends to a file: all of it is on stable storage."""
        self._writes.pop(content, None)

    def unsynced_us(self, prefix: str) -> int | None:
        """Return since when logs whose paths begin so are not wholly synced; None if they are."""
        return min(
            (
                self._unsynced_us.get(content, 0)
                for path, content in self._files.items()
                if path.startswith(prefix) and path.endswith(".log")
                if content.synced < len(content.data)
            ),
            default=None,
        )

    def cutting(self, path: str, content: Any, size: int) -> None:
        """Look for the copy of bytes that are about to be cut off.

        A process needs no copy of what it appended itself, as of an append that failed.
        """
        data = bytes(content.data[size : self._sizes.get(content, 0)])
        if self.watches_cuts and data and path.endswith(".log"):
            copies = (one.data for name, one in self._files.items() if f"{path}.torn." in name)
            if not any(copy == data for copy in copies):
                self.cut_without_copy.append(path)
        self._sizes[content] = min(self._sizes.get(content, 0), size)  # the rest is gone

    # ---- folder entries

    def remove(self, path: str) -> None:
        """As `MemoryDisk.remove`."""
        exists = self.exists(path)
        super().remove(path)
        if exists:
            self._folder_is_synced(path)
            self._entries.pop(path, None)  # of a folder

    def _folder_is_synced(self, path: str) -> None:
        """Let no power cut undo what was done to names in the folder of a file."""
        self._entries.pop(_folder(path), None)

    def write(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """As `MemoryDisk.write`; without `durable` a power cut may bring the old file back."""
        before = self._files.get(path)
        super().write(path, data, durable=durable)
        self._remember(path, None if before is None else bytes(before.data))
        self._entry(path, durable, partial(self._put_back, path, before), "replacement")

    def rename(self, old: str, new: str, *, durable: bool = True) -> None:
        """As `MemoryDisk.rename`; without `durable` a power cut may undo it."""
        replaced = self._files.get(new)
        super().rename(old, new, durable=durable)
        self._former.pop(new, None)
        self._entries.pop(old, None)  # of a folder

        def undo() -> None:
            moved = self._files.get(new)
            self._put_back(new, replaced)
            if moved is not None:
                self._files[old] = moved
                self.damage.renamed(new, old)

        self._entry(new, durable, undo, "rename")

    def overwrite(self, path: str, data: bytes, position: int, *, durable: bool = False) -> None:
        """As `MemoryDisk.overwrite`; without `durable` a power cut may take a new file.

        Remembers what a recovery point may claim.
        """
        before = self._files.get(path)
        copy = None if before is None else bytes(before.data)
        super().overwrite(path, data, position, durable=durable)
        self._remember(path, copy)
        if before is None or durable:
            self._entry(path, durable, partial(self._put_back, path, None), "creation")
        if path.endswith(f"/{RECOVERY_POINT}"):
            self._note_claim(path, data)

    def _note_claim(self, path: str, slot: bytes) -> None:
        """Remember what a slot of a recovery point claims of the segments in its folder."""
        found = decoded(path, bytes(slot))
        assert found is not None, f"{path}: a slot that does not verify is written"
        claim = found[1]
        for name in self._below(_folder(path)):
            base = name.rpartition("/")[2].removesuffix(".log")
            if not base.isdecimal() or int(base) > claim.base_offset:
                continue
            synced = self._files[name].synced
            is_last = int(base) == claim.base_offset
            self._claimed[name] = min(synced, claim.size) if is_last else synced

    def _remember(self, path: str, former: bytes | None) -> None:
        if former is None:
            self._former.pop(path, None)  # it is new, or was removed in between
        else:
            self._former[path] = former

    def _put_back(self, path: str, content: Any) -> None:
        if content is None:
            self._files.pop(path, None)
        else:
            self._files[path] = content

    def _entry(self, path: str, durable: bool, undo: Undo, kind: str) -> None:
        def lose() -> None:
            self.losses.setdefault(f"lost {kind}", path)
            undo()

        if durable:
            self._folder_is_synced(path)
        else:
            self._entries.setdefault(_folder(path), []).append(lose)

    def _lose_entries(self) -> None:
        entries, self._entries = self._entries, {}
        for folder, undos in entries.items():
            rng = Random(f"{self._name}/{self.crashes}/{folder}/entries")
            if rng.random() < _ENTRIES_UNDONE:
                for undo in reversed(undos[rng.randrange(len(undos)) :]):
                    undo()

    # ---- faults of operations

    def check(self, operation: str) -> None:
        """As `MemoryDisk.check`, and dead disks do nothing."""
        if self.dead:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self.operations += 1
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                if operation != "append" or operation in self.failing:
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
        """Return what is left of the appended end of a file, or of a write in place."""
        if not unsynced:
            return b""
        number = self._judged[path]  # of the write: those in place are brought out of order, too
        self._judged[path] += 1
        rng = Random(f"{self._name}/{self.crashes}/{path}" + (f"/{number}" if number else ""))
        fate = rng.choice(self.fates)
        self.losses.setdefault(fate, path)
        match fate:
            case "nothing":
                return b""
            case "whole":
                return unsynced
            case "torn":
                return unsynced[: rng.randrange(len(unsynced) + 1)]
            case "holes":
                return _holed(rng, unsynced[: rng.randrange(len(unsynced) + 1)])
            case _:
                content = self._files[path]
                begins = [one - content.synced for one in self._writes.get(content, ())]
                return _reordered(rng, unsynced, begins)


class WatchedFile(MemoryFile):
    """A file that notes its unsynced appends, and what is cut off."""

    def __init__(self, disk: FaultyDisk, content: Any, path: str) -> None:
        super().__init__(disk, content)
        self._faulty = disk
        self._path = path

    def append(self, data: bytes | bytearray | memoryview) -> None:
        self._faulty.appending(self._content, len(self._content.data))
        super().append(data)

    def sync(self) -> None:
        super().sync()
        self._faulty.is_synced(self._content)

    def truncate(self, size: int) -> None:
        self._faulty.cutting(self._path, self._content, size)
        super().truncate(size)
        self._faulty.damage.cut(self._path, size)


def _holed(rng: Random, data: bytes) -> bytes:
    """Lose some blocks of a write."""
    kept = bytearray(data)
    for at in range(0, len(kept), BLOCK_BYTES):
        if rng.randrange(3) == 0:
            size = len(kept[at : at + BLOCK_BYTES])
            kept[at : at + size] = bytes(size)
    return bytes(kept)


def _reordered(rng: Random, data: bytes, begins: Sequence[int]) -> bytes:
    """Keep some of the writes whole, whatever their order was; the file ends with the last one."""
    bounds = sorted({0, len(data), *(one for one in begins if 0 < one < len(data))})
    kept, size = bytearray(len(data)), 0
    for begin, end in pairwise(bounds):
        if rng.randrange(2):
            kept[begin:end], size = data[begin:end], end
    return bytes(kept[:size])


def _folder(path: str) -> str:
    return path.rpartition("/")[0]
