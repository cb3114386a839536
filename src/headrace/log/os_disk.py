"""The real disk and the real clocks: the only place below the broker that meets them.

Folder entries are synced with what they name, so that a file whose data is on stable storage can
also be found there after a power cut.
"""

import os
import threading
import time
from collections.abc import Callable
from io import FileIO
from pathlib import Path

from headrace.core.types import MonoMs, Now, WallMs

_NS_PER_MS = 1_000_000
_CLOSED = -1
_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_REWRITE_BYTES = 1 << 20
# Records and settings are nobody else's business on a shared machine.
FOLDER_MODE = 0o700
FILE_MODE = 0o600


class SystemClock:
    """`log.api.Clock` of the operating system."""

    def mono(self) -> MonoMs:
        return time.monotonic_ns() // _NS_PER_MS  # type: ignore[return-value]  # MonoMs() is a call

    def boot(self) -> MonoMs:
        """Return the milliseconds since the machine booted, suspended time included."""
        return time.clock_gettime_ns(_BOOT_CLOCK) // _NS_PER_MS  # type: ignore[return-value]  # MonoMs() costs a call

    @property
    def boot_id(self) -> str:
        """Name of the machine's current run; empty where the system has none."""
        try:
            return _BOOT_ID.read_text().strip()
        except OSError:
            return ""

    def wall(self) -> WallMs:
        return WallMs(time.time_ns() // _NS_PER_MS)

    def now(self) -> Now:
        return Now(self.mono(), self.wall())


class OsFile:
    """`log.api.File` over a file descriptor; `on_sync` is told how many seconds each sync took."""

    __slots__ = ("_closing", "_fd", "_on_sync", "_path")

    def __init__(self, path: str, on_sync: Callable[[float], None] | None) -> None:
        self._path = path
        self._on_sync = on_sync
        self._closing = threading.Lock()
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, FILE_MODE)

    def append(self, data: bytes | bytearray | memoryview) -> None:
        written = os.write(self._fd, data)
        if written < len(data):
            rest = memoryview(data)
            while written < len(rest):
                written += os.write(self._fd, rest[written:])

    def pread(self, count: int, position: int) -> bytes:
        data = os.pread(self._fd, count, position)
        # One call returns at most 2 GiB less a page, and less on some file systems.
        while 0 < len(data) < count:
            more = os.pread(self._fd, count - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        began = time.perf_counter()
        # Syncs run in other threads, which must not find another file under a number just closed.
        with self._closing:
            fd = os.dup(self._fd)
        try:
            os.fdatasync(fd)
        finally:
            os.close(fd)
        if self._on_sync is not None:
            self._on_sync(time.perf_counter() - began)

    def rewrite(self, position: int) -> None:
        # Linux appends whatever is written to a file opened with O_APPEND, at any position.
        fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        try:
            while data := os.pread(fd, _REWRITE_BYTES, position):
                position += os.pwrite(fd, data, position)
        finally:
            os.close(fd)

    def close(self) -> None:
        with self._closing:
            # The number may soon be another file's: it must not be used a second time.
            fd, self._fd = self._fd, _CLOSED
        if fd != _CLOSED:
            os.close(fd)


class OsDisk:
    """`log.api.Disk` over the folder `root`, which is made when absent.

    `on_sync` is called with the seconds that each fdatasync took, in the thread that did it. Paths
    are joined as text: at a start with thousands of partitions `pathlib` takes a third of the time.
    """

    def __init__(self, root: Path, *, on_sync: Callable[[float], None] | None = None) -> None:
        self._on_sync = on_sync
        self._root = str(root)
        _make_folder(self._root)

    def open(self, path: str) -> OsFile:
        target = self._at(path)
        is_new = not os.path.exists(target)
        if is_new:
            _make_folder(os.path.dirname(target))
        file = OsFile(target, self._on_sync)
        try:
            if is_new:
                _sync_folder(os.path.dirname(target))
        except OSError:
            file.close()
            raise
        return file

    def exists(self, path: str) -> bool:
        return os.path.exists(self._at(path))

    def list(self, folder: str) -> list[str]:
        try:
            return sorted(os.listdir(self._at(folder)))
        except FileNotFoundError:
            return []

    def remove(self, path: str) -> None:
        target = self._at(path)
        try:
            if os.path.isdir(target):
                import shutil  # late: it brings every kind of archive with it

                shutil.rmtree(target)
            else:
                os.unlink(target)
        except FileNotFoundError:
            return
        _sync_folder(os.path.dirname(target))

    def rename(self, old: str, new: str, *, durable: bool = True) -> None:
        source, target = self._at(old), self._at(new)
        os.replace(source, target)
        if durable:
            for folder in {os.path.dirname(source), os.path.dirname(target)}:
                _sync_folder(folder)

    def write(self, path: str, data: bytes, *, durable: bool = True) -> None:
        target = self._at(path)
        _make_folder(os.path.dirname(target))
        aside = f"{target}.new"
        fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(aside, target)
        if durable:
            _sync_folder(os.path.dirname(target))

    def overwrite(self, path: str, data: bytes, position: int, *, durable: bool = False) -> None:
        target = self._at(path)
        if durable:
            _make_folder(os.path.dirname(target))
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            _pwrite(fd, data, position)
            if durable:
                os.fdatasync(fd)
        finally:
            os.close(fd)
        if durable:
            _sync_folder(os.path.dirname(target))

    def read(self, path: str, count: int = -1, position: int = 0) -> bytes:
        with open(self._at(path), "rb", buffering=0) as file:
            if position:
                file.seek(position)
            if count < 0:
                return file.readall()
            return _read_whole(file, count)

    def size(self, path: str) -> int:
        return os.stat(self._at(path)).st_size

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root


def _read_whole(file: FileIO, count: int) -> bytes:
    """Read `count` bytes, or up to the end: one call of the system may return less."""
    data = file.read(count)
    while 0 < len(data) < count and (more := file.read(count - len(data))):
        data += more
    return data


def _make_folder(folder: str) -> None:
    if not os.path.isdir(folder):
        parent = os.path.dirname(folder) or os.curdir
        _make_folder(parent)
        try:
            os.mkdir(folder, FOLDER_MODE)
        except FileExistsError:
            if not os.path.isdir(folder):
                raise
        _sync_folder(parent)


def _pwrite(fd: int, data: bytes, position: int) -> None:
    written = os.pwrite(fd, data, position)
    while written < len(data):
        written += os.pwrite(fd, data[written:], position + written)


def _sync_folder(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
