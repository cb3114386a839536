"""A disk and a clock in memory: the same interface, for tests and simulation, with faults on order.

The disk knows how much of each file was synced. `crash` forgets or tears the rest, as a power cut
does; `kill` ends the process alone. Either makes every open file useless; the disk itself can then
be used by the next process.
Names (create, rename, remove) and truncation take effect at once, like data that `write` replaced.
Threads may use it at once: names are looked through as they are at that moment.
"""

import errno
import os
from collections.abc import Callable
from functools import partial

from headrace.core.types import MonoMs, Now, WallMs

Survives = Callable[[str, bytes], bytes]
"""Given a path and its unsynced bytes, what stands in their place after a crash."""


class VirtualClock:
    """`log.api.Clock` that moves only when told to."""

    def __init__(self, *, mono_ms: int = 0, wall_ms: int = 1_700_000_000_000) -> None:
        self._mono_ms = mono_ms
        self._wall_ms = wall_ms

    def mono(self) -> MonoMs:
        return MonoMs(self._mono_ms)

    def wall(self) -> WallMs:
        return WallMs(self._wall_ms)

    def now(self) -> Now:
        return Now(self.mono(), self.wall())

    def advance(self, duration_ms: int) -> None:
        """Let `duration_ms` pass on both clocks."""
        assert duration_ms >= 0, "a clock does not go back"
        self._mono_ms += duration_ms
        self._wall_ms += duration_ms

    def set_wall(self, step_ms: int) -> None:
        """Set the wall clock forward or back; elapsed time stays as it is."""
        self._wall_ms += step_ms


class _Content:
    """What the disk holds of one file; the first `synced` bytes survive anything.

    What a failed sync left out, from `dropped` on, no later sync brings there: the system takes it
    for written, until somebody writes it again.
    """

    def __init__(self) -> None:
        self.data = bytearray()
        self.synced = 0
        self.dropped: int | None = None
        self.overwritten: list[tuple[int, bytes]] = []  # synced bytes under unsynced ones

    def drop(self) -> None:
        """A sync fails; nothing is left out where nothing was to be written."""
        if self.dropped is None and self.synced < len(self.data):
            self.dropped = self.synced

    def sync(self) -> None:
        self.synced = len(self.data) if self.dropped is None else self.dropped
        self.overwritten.clear()

    def overwrite(self, data: bytes, position: int) -> None:
        """Put bytes in place; what they cover of the synced bytes is remembered."""
        if len(self.data) < position:
            self.data += bytes(position - len(self.data))
        covered = bytes(self.data[position : min(position + len(data), self.synced)])
        if covered:
            self.overwritten.append((position, covered))
        self.data[position : position + len(data)] = data

    def forget_overwritten(self, keep: Callable[[bytes], bytes]) -> None:
        """Cut the power amid writes in place: of the newest, `keep` returns what is there.

        Where nothing of it is there, the one before it at the same position decides.
        """
        is_there: set[int] = set()
        for position, covered in reversed(self.overwritten):
            if position not in is_there:
                now = bytes(self.data[position : position + len(covered)])
                kept = keep(now)[: len(covered)]
                self.data[position : position + len(covered)] = kept + covered[len(kept) :]
                if kept:
                    is_there.add(position)
        self.overwritten.clear()

    def again_from(self, position: int) -> None:
        """Bytes from `position` on were cut off or written once more."""
        if self.dropped is not None and position <= self.dropped:
            self.dropped = None


class MemoryFile:
    """`log.api.File` over a file of a `MemoryDisk`."""

    def __init__(self, disk: "MemoryDisk", content: _Content) -> None:
        self._disk = disk
        self._content = content
        self._crashes = disk.crashes
        self._is_open = True

    def append(self, data: bytes | bytearray | memoryview) -> None:
        self._check("append")
        granted = self._disk.grant(len(data))
        self._content.data += data[:granted]
        if granted < len(data):
            raise _fault(errno.ENOSPC)

    def pread(self, count: int, position: int) -> bytes:
        self._check("pread")
        return bytes(self._content.data[position : position + count])

    def size(self) -> int:
        self._check("size")
        return len(self._content.data)

    def truncate(self, size: int) -> None:
        self._check("truncate")
        del self._content.data[size:]
        self._content.synced = min(self._content.synced, size)
        self._content.again_from(size)

    def sync(self) -> None:
        if "sync" in self._disk.failing:
            self._content.drop()
        self._check("sync")
        self._content.sync()

    def rewrite(self, position: int) -> None:
        self._check("rewrite")
        self._content.again_from(position)

    def close(self) -> None:
        self._is_open = False

    def _check(self, operation: str) -> None:
        if not self._is_open or self._crashes != self._disk.crashes:
            raise _fault(errno.EBADF)
        self._disk.check(operation)


class MemoryDisk:
    """`log.api.Disk` in memory.

    Operations of files and of the disk whose name is in `failing` raise EIO.
    """

    def __init__(self) -> None:
        self._files: dict[str, _Content] = {}
        self._bytes_left: int | None = None
        self.failing: set[str] = set()
        self.crashes = 0

    def fail_after(self, count: int | None) -> None:
        """Have space for `count` more bytes, then ENOSPC amid the write; None for no bound."""
        self._bytes_left = count

    def crash(self, keep: float | Survives = 0.0) -> None:
        """Cut the power: of each file's unsynced bytes, `keep` says which part or what survives."""
        self.crashes += 1
        for path, content in self._files.copy().items():
            if callable(keep):
                content.forget_overwritten(partial(keep, path))
            else:
                content.forget_overwritten(lambda now: now[: int(len(now) * keep)])
            unsynced = bytes(content.data[content.synced :])
            if callable(keep):
                survived = keep(path, unsynced)
            else:
                survived = unsynced[: int(len(unsynced) * keep)]
            content.data[content.synced :] = survived
            content.synced = len(content.data)
            content.dropped = None  # no memory is left that could be taken for what is on the disk

    def kill(self) -> None:
        """End the process: all it wrote stays, what was not synced in the system's memory only."""
        self.crashes += 1

    def open(self, path: str) -> MemoryFile:
        self.check("open")
        return MemoryFile(self, self._files.setdefault(path, _Content()))

    def exists(self, path: str) -> bool:
        return path in self._files or any(self._below(path))

    def list(self, folder: str) -> list[str]:
        prefix = f"{folder}/" if folder else ""
        return sorted({path[len(prefix) :].split("/")[0] for path in self._below(folder)})

    def remove(self, path: str) -> None:
        self.check("remove")
        for one in [path, *self._below(path)]:
            self._files.pop(one, None)

    def rename(
        self,
        old: str,
        new: str,
        *,
        durable: bool = True,  # noqa: ARG002  # names survive anything here
    ) -> None:
        self.check("rename")
        moved = [*([old] if old in self._files else []), *self._below(old)]
        if not moved:
            raise _fault(errno.ENOENT)
        for path in moved:
            self._files[new + path[len(old) :]] = self._files.pop(path)

    def write(self, path: str, data: bytes, *, durable: bool = True) -> None:
        self.check("write")
        if self.grant(len(data)) < len(data):
            raise _fault(errno.ENOSPC)
        content = self._files[path] = _Content()
        content.data += data
        content.synced = len(data) if durable else 0

    def overwrite(self, path: str, data: bytes, position: int, *, durable: bool = False) -> None:
        self.check("write")
        if self.grant(len(data)) < len(data):
            raise _fault(errno.ENOSPC)
        content = self._files.setdefault(path, _Content())
        content.overwrite(data, position)
        if durable:
            content.sync()

    def read(self, path: str, count: int = -1, position: int = 0) -> bytes:
        self.check("read")
        data = self._content(path).data
        return bytes(data[position:] if count < 0 else data[position : position + count])

    def size(self, path: str) -> int:
        self.check("size")
        return len(self._content(path).data)

    def grant(self, count: int) -> int:
        """How many of `count` bytes there is space for; they are taken."""
        if self._bytes_left is None:
            return count
        granted = min(count, self._bytes_left)
        self._bytes_left -= granted
        return granted

    def check(self, operation: str) -> None:
        """Raises: OSError when the operation is to fail."""
        if operation in self.failing:
            raise _fault(errno.EIO)

    def _content(self, path: str) -> _Content:
        if path not in self._files:
            raise _fault(errno.ENOENT)
        return self._files[path]

    def _below(self, folder: str) -> tuple[str, ...]:
        if folder in self._files:
            return ()
        prefix = f"{folder}/" if folder else ""
        # A copy: other threads may change it while a tuple of its keys is made.
        return tuple([path for path in self._files.copy() if path.startswith(prefix)])


def _fault(code: int) -> OSError:
    return OSError(code, os.strerror(code))
