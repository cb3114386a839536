"""A disk over an existing folder that is never written to: changes stay in memory.

The check of a data folder opens its logs as a broker does at its start, which cuts torn ends,
rebuilds indexes and removes leftovers. On this disk all of that happens in memory, so that the
check comes to the results of a start and leaves every byte of the folder as it is.
"""

import errno
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_PARTITION = re.compile(r".+-\d+")
_HAS_EFFECTIVE_IDS = os.access in os.supports_effective_ids


def is_hidden(folder: str) -> bool:
    """Return whether a folder holds nothing of a broker: `.backup`, but not `.topic-0`."""
    return folder.startswith(".") and _PARTITION.fullmatch(folder) is None


@dataclass(slots=True)
class _Entry:
    """A file: the first `kept` bytes of a real one, and what was appended to them."""

    real: Path | None
    kept: int
    added: bytearray

    @property
    def size(self) -> int:
        return self.kept + len(self.added)


class OverlayFile:
    """`log.api.File` over an entry; the real file is opened for reading, at the first read.

    Args:
        reading: the files of a disk whose real file is open; this one is among them while it is.
    """

    def __init__(self, entry: _Entry, reading: "set[OverlayFile]") -> None:
        self._entry = entry
        self._reading = reading
        self._fd: int | None = None

    def append(self, data: bytes | bytearray | memoryview) -> None:
        self._entry.added += data

    def pread(self, count: int, position: int) -> bytes:
        kept = self._entry.kept
        data = self._real(min(count, kept - position), position) if position < kept else b""
        if len(data) < count:
            at = max(position - kept, 0)
            data += self._entry.added[at : at + count - len(data)]
        return data

    def size(self) -> int:
        return self._entry.size

    def truncate(self, size: int) -> None:
        del self._entry.added[max(size - self._entry.kept, 0) :]
        self._entry.kept = min(size, self._entry.kept)

    def sync(self) -> None:
        """Nothing is written."""

    def rewrite(self, position: int) -> None:
        """Nothing is written."""

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
            self._reading.discard(self)

    def _real(self, count: int, position: int) -> bytes:
        assert self._entry.real is not None
        if self._fd is None:
            self._fd = os.open(self._entry.real, os.O_RDONLY | os.O_CLOEXEC)
            self._reading.add(self)
        data = os.pread(self._fd, count, position)
        while 0 < len(data) < count:
            more = os.pread(self._fd, count - len(data), position + len(data))
            if not more:
                break
            data += more
        return data


def _require_file(entry: _Entry) -> None:
    """Raises: IsADirectoryError."""
    if not entry.size and entry.real is not None and entry.real.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(entry.real))


class OverlayDisk:
    """`log.api.Disk` over the folder `root`.

    Args:
        sizes: the only files that there are, with as many bytes of each as count; all that the
            folder holds when None.
    """

    def __init__(self, root: Path, sizes: Mapping[str, int] | None = None) -> None:
        self._folders: dict[str, dict[str, _Entry | None]] = {"": {}}  # None for a folder
        self._reading: set[OverlayFile] = set()
        self.unreadable: set[str] = set()  # files and folders that this process may not read
        if sizes is None:
            self._scan(root, "")
        else:
            for path, size in sizes.items():
                self._put(path, _Entry(root / path, size, bytearray()))

    @classmethod
    def of_contents(cls, contents: Mapping[str, bytes]) -> "OverlayDisk":
        """Return a disk with these files, which are in memory."""
        disk = cls(Path(), {})
        for path, data in contents.items():
            disk._put(path, _Entry(None, 0, bytearray(data)))
        return disk

    @property
    def contents(self) -> dict[str, bytes]:
        """All files, by path."""
        return {
            path: self.read(path)
            for folder, names in self._folders.items()
            for name, entry in names.items()
            if entry is not None
            for path in (f"{folder}/{name}" if folder else name,)
        }

    def copied(self) -> "OverlayDisk":
        """Return an independent disk with the same contents."""
        copy = OverlayDisk.__new__(OverlayDisk)
        copy._reading = set()
        copy.unreadable = set(self.unreadable)
        copy._folders = {
            folder: {
                name: entry and _Entry(entry.real, entry.kept, entry.added[:])
                for name, entry in names.items()
            }
            for folder, names in self._folders.items()
        }
        return copy

    def close(self) -> None:
        """Close the real files that are still open for reading."""
        for file in list(self._reading):
            file.close()

    @property
    def folders(self) -> list[str]:
        """All folders below the root, sorted."""
        return sorted(name for name in self._folders if name)

    def open(self, path: str) -> OverlayFile:
        entry = self._find(path)
        if entry is None:
            entry = _Entry(None, 0, bytearray())
            self._put(path, entry)
        _require_file(entry)
        return OverlayFile(entry, self._reading)

    def exists(self, path: str) -> bool:
        return path in self._folders or self._find(path) is not None

    def list(self, folder: str) -> list[str]:
        return sorted(self._folders.get(folder, ()))

    def remove(self, path: str) -> None:
        folder, _, name = path.rpartition("/")
        self._folders.get(folder, {}).pop(name, None)
        for one in [one for one in self._folders if one == path or one.startswith(f"{path}/")]:
            del self._folders[one]

    def rename(self, old: str, new: str, *, durable: bool = True) -> None:
        del durable
        folder, _, name = old.rpartition("/")
        if not self.exists(old):
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), old)
        entry = self._folders[folder].pop(name)
        self.remove(new)
        self._put(new, entry)
        for one in [one for one in self._folders if one == old or one.startswith(f"{old}/")]:
            self._folders[new + one[len(old) :]] = self._folders.pop(one)

    def write(self, path: str, data: bytes, *, durable: bool = True) -> None:
        del durable
        self._put(path, _Entry(None, 0, bytearray(data)))

    def overwrite(self, path: str, data: bytes, position: int, *, durable: bool = False) -> None:
        del durable
        old = bytearray(self.read(path) if self.exists(path) else b"")
        old.extend(bytes(max(position + len(data) - len(old), 0)))
        old[position : position + len(data)] = data
        self.write(path, bytes(old))

    def read(self, path: str, count: int = -1, position: int = 0) -> bytes:
        entry = self._require(path)
        _require_file(entry)
        file = OverlayFile(entry, self._reading)
        try:
            return file.pread(file.size() - position if count < 0 else count, position)
        finally:
            file.close()

    def size(self, path: str) -> int:
        return self._require(path).size

    def _find(self, path: str) -> _Entry | None:
        folder, _, name = path.rpartition("/")
        return self._folders.get(folder, {}).get(name)

    def _require(self, path: str) -> _Entry:
        entry = self._find(path)
        if entry is None:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return entry

    def _put(self, path: str, entry: _Entry | None) -> None:
        folder, _, name = path.rpartition("/")
        if folder not in self._folders:
            self._folders[folder] = {}
            self._put(folder, None)
        self._folders[folder][name] = entry

    def _scan(self, root: Path, folder: str) -> None:
        with os.scandir(root / folder) as entries:
            for entry in entries:
                path = f"{folder}/{entry.name}" if folder else entry.name
                try:
                    self._take(root, path, entry)
                except PermissionError:
                    is_other = "/" not in path and entry.is_dir() and not _PARTITION.fullmatch(path)
                    if not is_other:  # such as lost+found
                        self.unreadable.add(path)

    def _take(self, root: Path, path: str, entry: "os.DirEntry[str]") -> None:
        """Raises: PermissionError."""
        if entry.is_dir(follow_symlinks=False) and "/" not in path:
            self._folders[path] = {}
            self._put(path, None)
            if not is_hidden(path):
                self._scan(root, path)
            return
        self._put(path, _Entry(Path(entry.path), 0, bytearray()))
        if not os.access(entry.path, os.R_OK, effective_ids=_HAS_EFFECTIVE_IDS):
            raise PermissionError
        size = 0 if entry.is_dir() else entry.stat().st_size
        self._put(path, _Entry(Path(entry.path), size, bytearray()))
