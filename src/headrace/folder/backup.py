"""Making and restoring backups of a data folder.

While a broker runs, it cuts its data folder (`broker/data_folder_cut.py`) and the cut is copied;
else the folder itself is. Each file is verified before a backup counts, so a backup never replaces
good data by damage. A sealed segment whose `.checksums` file is the same as in the last backup is
not read again: that file digests all of it.
"""

import fcntl
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from headrace.folder.lock import FolderError, is_restore_interrupted, require_folder, unused
from headrace.folder.overlay import OverlayDisk, is_hidden
from headrace.folder.store import Backup, Progress, Store, StoredFile, StoreError, sync_all
from headrace.log import checksums
from headrace.log.api import CorruptFileError
from headrace.log.manifest import NAME, RESTORING
from headrace.log.opening import SWAP
from headrace.log.verify import verify_file
from headrace.wire.data_folder_cut import FOLDER, LIST

RequestCut = Callable[[str], None]
"""Request a cut of this name from the broker. Raises: what its caller expects."""

_SKIPPED = (".torn.", ".deleted", ".cleaned", ".swap", ".new")
_STAGED = (f".log{SWAP}", f".log{SWAP}{checksums.SUFFIX}")
_LOCK_FOLDER = "lock"


@dataclass(frozen=True, slots=True)
class Made:
    """A backup that was made, and the bytes that the store did not have before."""

    backup: Backup
    new_bytes: int


def make(folder: Path, store: Store, request_cut: RequestCut, progress: Progress) -> Made:
    """Back up a data folder, whether or not a broker runs on it.

    Args:
        request_cut: called when a broker runs.

    Raises:
        FolderError: there is no data folder.
        StoreError: the store cannot be used, lies in the data folder, or another command uses it.
        CorruptFileError: a file is damaged; no backup is made.
        OSError: the disk failed.
    """
    require_folder(folder)
    if store.root.resolve().is_relative_to(folder.resolve()):
        raise StoreError(
            f"{store.root} lies in the data folder {folder}, and would be lost with it; "
            "name a folder outside"
        )
    store.create()
    with store.locked(exclusive=True), unused(folder, exclusive=True) as is_unused:
        created = datetime.now(UTC).replace(microsecond=0)
        id_ = _free_id(store, created)
        if is_unused:
            backup = Backup(id_, created, _cluster(folder), online=False)
            return _copy(folder, _listed(folder), store, backup, progress)
        with _cut(folder, request_cut) as cut:
            backup = Backup(id_, created, _cluster(cut), online=True)
            return _copy(cut, _list_of(cut), store, backup, progress)


def restore(store: Store, id_: str | None, folder: Path, progress: Progress) -> Backup:
    """Write the files of a backup, the newest when `id_` is None, to a new data folder.

    The manifest is written last, and as a whole: a broker refuses a folder whose restore was
    interrupted, and the file `RESTORING` lets a further restore begin again there.

    Raises:
        FolderError: the folder is not empty, and not one whose restore was interrupted.
        StoreError: the backup is unknown or damaged; the folder is incomplete.
        OSError: the disk failed.
    """
    store.require()
    is_interrupted = is_restore_interrupted(folder)
    if not is_interrupted and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FolderError(f"{folder} is not empty; name a folder that does not exist")
    with store.locked(exclusive=False):
        backup = chosen(store, id_)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _begin_restore(folder)
        first = [path for path in backup.files if path != NAME]
        for path in first:
            (folder / path).parent.mkdir(mode=0o700, exist_ok=True)
            store.copy(backup.files[path], folder / path, progress)
        sync_all([folder, *(folder / path for path in {*first, *map(os.path.dirname, first)})])
        for path in backup.files.keys() - first:
            new = folder / f"{path}.new"  # a part of the manifest would look like damage
            store.copy(backup.files[path], new, progress)
            sync_all([new])
            new.replace(folder / path)
            sync_all([folder])
        (folder / RESTORING).unlink(missing_ok=True)  # a broker started by now removed it
        sync_all([folder])
    return backup


def _begin_restore(folder: Path) -> None:
    """Mark a folder as one under restore, and remove what a restore before left in it."""
    (folder / RESTORING).touch(mode=0o600)
    sync_all([folder])
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != RESTORING:
            path.unlink()


def verify(store: Store, id_: str | None, progress: Progress) -> Backup:
    """Verify the contents of a backup. Raises: StoreError; OSError."""
    store.require()
    with store.locked(exclusive=False):
        backup = chosen(store, id_)
        for file in {file.digest: file for file in backup.files.values()}.values():
            store.copy(file, None, progress)
    return backup


def chosen(store: Store, id_: str | None) -> Backup:
    """Load a backup, the newest when `id_` is None. Raises: StoreError."""
    ids = store.ids()
    if id_ is None and not ids:
        raise StoreError("there is no backup yet; make one with `headrace backup`")
    return store.load(ids[-1] if id_ is None else id_)


# ---- making


def _copy(
    root: Path, sizes: Mapping[str, int], store: Store, backup: Backup, progress: Progress
) -> Made:
    disk = OverlayDisk(root, sizes)
    ids = store.ids()
    before = store.load(ids[-1]).files if ids else {}
    new_bytes = 0
    for path, size in sorted(sizes.items()):
        known = _unchanged(disk, path, size, before, backup.files)
        if known is not None and store.has(known):
            backup.files[path] = known
            progress(size)
            continue
        for _ in verify_file(disk, path, size):
            pass
        with (root / path).open("rb") as source:
            stored = store.add(source, size, progress)
        new_bytes += 0 if stored in before.values() else size
        backup.files[path] = stored
    store.save(backup)
    return Made(backup, new_bytes)


def _unchanged(
    disk: OverlayDisk,
    path: str,
    size: int,
    before: Mapping[str, StoredFile],
    files: Mapping[str, StoredFile],
) -> StoredFile | None:
    """Return the stored content of a segment that is the same as in the backup before.

    Its `.checksums` file comes first by name, and so does nothing else that has to be compared.
    """
    old = before.get(path)
    if not path.endswith(".log") or old is None or old.size != size:
        return None
    beside = path.removesuffix(".log") + checksums.SUFFIX
    if beside not in files or files[beside] != before.get(beside):
        return None
    written = checksums.load(disk, path.removesuffix(".log"))
    return old if written is not None and written.summary.size == size else None


def _listed(folder: Path) -> dict[str, int]:
    """List the files of a folder that no broker uses, with their sizes."""
    found = {}
    for path in (*folder.iterdir(), *folder.glob("*/*")):
        name = str(path.relative_to(folder))
        parent = name.rpartition("/")[0]
        skipped = any(part in path.name for part in _SKIPPED) or path.name == ".lock"
        if path.name.endswith(_STAGED):  # the only file that has all of its records
            skipped = False
        if path.is_dir() or skipped or is_hidden(parent) or _is_aside(parent):
            continue
        found[name] = path.stat().st_size
    return found


def _is_aside(folder: str) -> bool:
    return folder.endswith(("-stray", "-delete"))


def _list_of(cut: Path) -> dict[str, int]:
    rows = (line.split(" ", 1) for line in (cut / LIST).read_text().splitlines())
    return {path: int(size) for size, path in rows}


@contextmanager
def _cut(folder: Path, request_cut: RequestCut) -> Iterator[Path]:
    """Have the broker cut its folder; what a command that was killed left behind is removed."""
    parent = folder / FOLDER
    parent.mkdir(mode=0o700, exist_ok=True)
    fd = os.open(parent / _LOCK_FOLDER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise FolderError(
                f"another backup of {folder} is being made; wait for it to end"
            ) from error
        for left in parent.iterdir():
            if left.is_dir():
                shutil.rmtree(left)
        name = secrets.token_hex(16)
        (parent / name).mkdir(mode=0o700)
        try:
            request_cut(name)
            yield parent / name
        finally:
            shutil.rmtree(parent / name, ignore_errors=True)
    finally:
        os.close(fd)


def _cluster(folder: Path) -> str:
    try:
        lines = (folder / "meta.properties").read_text(errors="replace").splitlines()
    except FileNotFoundError as error:
        raise CorruptFileError("meta.properties", "the file is missing") from error
    found = [line.partition("=")[2] for line in lines if line.startswith("cluster.id=")]
    return found[0] if found else ""


def _free_id(store: Store, created: datetime) -> str:
    base = id_ = f"{created:%Y%m%dT%H%M%SZ}"
    number, taken = 1, set(store.ids())
    while id_ in taken:
        number += 1
        id_ = f"{base}-{number}"
    return id_
