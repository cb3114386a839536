"""The folder that backups are kept in: contents by their digest, and a list of files a backup.

    headrace-backup                 the format of the store
    objects/ab/ab12...              a file's content, named by its SHA-256
    backups/20261124T162048Z.backup  the files of one backup, sealed as small files of a data folder

Contents that several backups share are stored once, so a backup after another one costs what is
new. A content is complete before a list names it, and a list appears whole or not at all.
"""

import fcntl
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from headrace.log import small_files
from headrace.log.api import CorruptFileError

_MARK, _LISTS, _OBJECTS, _LOCK = "headrace-backup", "backups", "objects", ".lock"
_MARK_TEXT = "a folder of Headrace backups\n"
_SUFFIX = ".backup"
_COPY_BYTES = 1 << 20
_SYNC_THREADS = 16
_FOLDER_MODE, _FILE_MODE = 0o700, 0o600
_FILE = re.compile(r"file ([0-9a-f]{64}) (\d{1,18}) (.+)")

Progress = Callable[[int], None]
"""Told the number of bytes that were copied or verified since the last call."""


class StoreError(Exception):
    """A store or a backup cannot be used; the message is one line with the remedy."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a backup: the SHA-256 of its content, and its size in bytes."""

    digest: str
    size: int


@dataclass(slots=True)
class Backup:
    """One backup: when its copy began, the cluster, whether the broker ran, and its files."""

    id: str
    created: datetime
    cluster: str
    online: bool
    files: dict[str, StoredFile] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files.values())


class Store:
    """A folder of backups. Every method raises OSError when the disk does."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._unsynced: list[Path] = []

    @property
    def root(self) -> Path:
        """The folder."""
        return self._root

    def require(self) -> None:
        """Raises: StoreError when the folder is not a store that this release can read."""
        try:
            data = (self._root / _MARK).read_bytes()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise StoreError(
                f"{self._root} holds no backups; name the folder given to `headrace backup`"
            ) from error
        _parsed(self._root, _MARK, data)

    def create(self) -> None:
        """Make the store where it does not exist.

        Raises: StoreError when the folder holds something else, or a newer store.
        """
        if (self._root / _MARK).exists():
            self.require()
            return
        if self._root.exists() and any(self._root.iterdir()):
            raise StoreError(f"{self._root} is not empty and holds no backups; name another folder")
        for folder in (self._root, self._root / _LISTS, self._root / _OBJECTS):
            folder.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        self._write(_MARK, small_files.sealed(_MARK, _MARK_TEXT))

    @contextmanager
    def locked(self, *, exclusive: bool) -> Iterator[None]:
        """Keep other commands from changing the store. Raises: StoreError when one is at work."""
        fd = os.open(self._root / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
        try:
            kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
            try:
                fcntl.flock(fd, kind | fcntl.LOCK_NB)
            except OSError as error:
                raise StoreError(
                    f"another command uses the backups in {self._root}; wait for it to end"
                ) from error
            yield
        finally:
            os.close(fd)

    # ---- lists

    def ids(self) -> list[str]:
        """The ids of all backups, oldest first."""
        names = (path.name for path in (self._root / _LISTS).glob(f"*{_SUFFIX}"))
        return sorted(name.removesuffix(_SUFFIX) for name in names)

    def load(self, id_: str) -> Backup:
        """Read one backup. Raises: StoreError when it is unknown, damaged or newer."""
        path = f"{_LISTS}/{id_}{_SUFFIX}"
        try:
            data = (self._root / path).read_bytes()
        except FileNotFoundError as error:
            known = ", ".join(self.ids()[-5:]) or "none"
            raise StoreError(
                f"there is no backup {id_} in {self._root}; the last ones are: {known}"
            ) from error
        return _backup(self._root, id_, _parsed(self._root, path, data))

    def save(self, backup: Backup) -> None:
        """Add a backup whose contents are stored."""
        head = [
            f"created {backup.created.isoformat()}",
            f"cluster {backup.cluster}",
            f"online {int(backup.online)}",
        ]
        rows = [f"file {one.digest} {one.size} {path}" for path, one in backup.files.items()]
        path = f"{_LISTS}/{backup.id}{_SUFFIX}"
        sync_all([*self._unsynced, *{one.parent for one in self._unsynced}])
        self._unsynced.clear()
        self._write(path, small_files.sealed(path, "\n".join([*head, *rows, ""])))

    def delete(self, id_: str) -> int:
        """Remove a backup, and contents that no other has; the bytes that became free.

        Raises: StoreError, and nothing is removed.
        """
        self.load(id_)
        kept = {
            file.digest
            for other in self.ids()
            if other != id_
            for file in self.load(other).files.values()
        }
        (self._root / _LISTS / f"{id_}{_SUFFIX}").unlink()
        sync_all([self._root / _LISTS])
        freed = 0
        for path in (self._root / _OBJECTS).glob("*/*"):
            if path.name not in kept:
                freed += path.stat().st_size
                path.unlink()
        return freed

    # ---- contents

    def has(self, file: StoredFile) -> bool:
        """Whether the content is stored, by its name and size."""
        try:
            return self._object(file.digest).stat().st_size == file.size
        except FileNotFoundError:
            return False

    def add(self, source: BinaryIO, size: int, progress: Progress) -> StoredFile:
        """Store the next `size` bytes of a file. Raises: StoreError when there are fewer."""
        partial = self._root / _OBJECTS / "partial"
        digest, left = hashlib.sha256(), size
        partial.unlink(missing_ok=True)
        with _written(partial) as out:
            assert out is not None
            while left:
                data = source.read(min(_COPY_BYTES, left))
                if not data:
                    raise StoreError(
                        f"{source.name} became shorter during the copy; run the backup again"
                    )
                digest.update(data)
                out.write(data)
                left -= len(data)
                progress(len(data))
        stored = StoredFile(digest.hexdigest(), size)
        if self.has(stored):
            partial.unlink()
            return stored
        target = self._object(stored.digest)
        if not target.parent.is_dir():
            target.parent.mkdir(mode=_FOLDER_MODE)
            sync_all([target.parent.parent])
        partial.replace(target)
        self._unsynced.append(target)
        return stored

    def copy(self, file: StoredFile, target: Path | None, progress: Progress) -> None:
        """Verify a content and write it to a new file; None to verify only.

        The file is not synced.

        Raises: StoreError when the content is missing or damaged; the file is then incomplete.
        """
        digest, size = hashlib.sha256(), 0
        path = self._object(file.digest)
        try:
            source = path.open("rb")
        except FileNotFoundError as error:
            raise StoreError(f"{path}: the content is missing; use another backup") from error
        with source, _written(target) as out:
            while data := source.read(_COPY_BYTES):
                digest.update(data)
                size += len(data)
                if out is not None:
                    out.write(data)
                progress(len(data))
        if digest.hexdigest() != file.digest or size != file.size:
            raise StoreError(f"{path}: the checksum does not match; use another backup")

    def _object(self, digest: str) -> Path:
        return self._root / _OBJECTS / digest[:2] / digest

    def _write(self, path: str, data: bytes) -> None:
        target = self._root / path
        new = target.with_name(f"{target.name}.new")
        new.unlink(missing_ok=True)
        with _written(new) as out:
            assert out is not None
            out.write(data)
        sync_all([new])
        new.replace(target)
        sync_all([target.parent])


@contextmanager
def _written(target: Path | None) -> Iterator[BinaryIO | None]:
    """A new file to write to; None without a target."""
    if target is None:
        yield None
        return
    target.touch(_FILE_MODE, exist_ok=False)
    with target.open("wb") as out:
        yield out


def sync_all(paths: Sequence[Path]) -> None:
    """Bring files and folders to stable storage, many at a time. Raises: OSError."""
    with ThreadPoolExecutor(_SYNC_THREADS) as threads:
        list(threads.map(_sync, paths))


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _parsed(root: Path, path: str, data: bytes) -> str:
    try:
        return small_files.parsed(path, data).text
    except CorruptFileError as error:
        newer = "newer" in error.problem
        remedy = error.remedy if newer else "use another backup"
        raise StoreError(f"{root / path}: {error.problem}; {remedy}") from error


def _backup(root: Path, id_: str, text: str) -> Backup:
    head: Mapping[str, str] = dict(
        line.split(" ", 1) for line in text.splitlines() if not line.startswith("file ")
    )
    try:
        created = datetime.fromisoformat(head["created"]).astimezone(UTC)
        backup = Backup(id_, created, head["cluster"], head["online"] == "1")
        for line in text.splitlines():
            found = _FILE.fullmatch(line)
            if found is not None:
                _require_inside(found[3])
                backup.files[found[3]] = StoredFile(found[1], int(found[2]))
    except (KeyError, ValueError) as error:
        raise StoreError(
            f"{root / _LISTS / id_}{_SUFFIX}: {error!r} in the list; use another backup"
        ) from error
    return backup


def _require_inside(path: str) -> None:
    """Raises: ValueError for a path that leads out of a data folder."""
    if path.startswith("/") or ".." in path.split("/"):
        raise ValueError(f"{path!r} leads out of the data folder")
