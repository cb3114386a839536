"""The real disk and the real clocks: the only place below the broker that meets them.

Folder entries are synced with what they name, so that a file whose data is on stable storage can
also be found there after a power cut.
"""

import os
import threading
import time
from collections.abc import Callable
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

    def __init__(self, path: Path, on_sync: Callable[[float], None] | None) -> None:
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


class OsInPlaceFile:
    """`log.api.InPlaceFile` over a file descriptor."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)

    def pwrite(self, data: bytes, position: int) -> None:
        _pwrite(self._fd, data, position)

    def close(self) -> None:
        # The number may soon be another file's: it must not be used a second time.
        fd, self._fd = self._fd, _CLOSED
        if fd != _CLOSED:
            os.close(fd)


class OsDisk:
    """`log.api.Disk` over the folder `root`, which is made when absent.

    `on_sync` is called with the seconds that each fdatasync took, in the thread that did it.
    """

    def __init__(self, root: Path, *, on_sync: Callable[[float], None] | None = None) -> None:
        self._on_sync = on_sync
        self._root = root
        self._make_folder(root)

    def open(self, path: str) -> OsFile:
        target = self._root / path
        is_new = not target.exists()
        if is_new:
            self._make_folder(target.parent)
        file = OsFile(target, self._on_sync)
        if is_new:
            _sync_folder(target.parent)
        return file

    def exists(self, path: str) -> bool:
        return (self._root / path).exists()

    def list(self, folder: str) -> list[str]:
        try:
            return sorted(entry.name for entry in (self._root / folder).iterdir())
        except FileNotFoundError:
            return []

    def remove(self, path: str) -> None:
        target = self._root / path
        try:
            if target.is_dir():
                import shutil  # late: it brings every kind of archive with it

                shutil.rmtree(target)
            else:
                target.unlink()
        except FileNotFoundError:
            return
        _sync_folder(target.parent)

    def rename(self, old: str, new: str, *, durable: bool = True) -> None:
        source, target = self._root / old, self._root / new
        source.replace(target)
        if durable:
            for folder in {source.parent, target.parent}:
                _sync_folder(folder)

    def write(self, path: str, data: bytes, *, durable: bool = True) -> None:
        target = self._root / path
        self._make_folder(target.parent)
        aside = target.with_name(f"{target.name}.new")
        fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        aside.replace(target)
        if durable:
            _sync_folder(target.parent)

    def overwrite(self, path: str, data: bytes, position: int, *, durable: bool = False) -> None:
        target = self._root / path
        if durable:
            self._make_folder(target.parent)
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            _pwrite(fd, data, position)
            if durable:
                os.fdatasync(fd)
        finally:
            os.close(fd)
        if durable:
            _sync_folder(target.parent)

    def open_in_place(self, path: str) -> "OsInPlaceFile":
        return OsInPlaceFile(self._root / path)

    def read(self, path: str, count: int = -1, position: int = 0) -> bytes:
        with (self._root / path).open("rb") as file:
            if position:
                file.seek(position)
            return file.read(count)

    def size(self, path: str) -> int:
        return (self._root / path).stat().st_size

    def _make_folder(self, folder: Path) -> None:
        if not folder.is_dir():
            self._make_folder(folder.parent)
            folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
            _sync_folder(folder.parent)


def _pwrite(fd: int, data: bytes, position: int) -> None:
    written = os.pwrite(fd, data, position)
    while written < len(data):
        written += os.pwrite(fd, data[written:], position + written)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
