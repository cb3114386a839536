"""Whether a broker runs on a data folder, without writing to the folder."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.log.manifest import NAME, RESTORE_REMEDY, RESTORING

_LOCK = ".lock"


class FolderError(Exception):
    """A data folder cannot be used; the message is one line with the remedy."""


def require_folder(folder: Path) -> None:
    """Raises: FolderError when there is no data folder."""
    if not folder.is_dir():
        raise FolderError(f"there is no folder {folder}; name a data folder with --data-dir")
    if is_restore_interrupted(folder):
        raise FolderError(f"the restore of {folder} did not end; {RESTORE_REMEDY}")
    if not (folder / "meta.properties").exists() and not (folder / "__cluster_metadata-0").exists():
        raise FolderError(
            f"{folder} is not a data folder: it has neither meta.properties nor "
            "__cluster_metadata-0; name a data folder with --data-dir"
        )


def is_restore_interrupted(folder: Path) -> bool:
    """Whether a restore to a folder began and did not end: the manifest is written last."""
    return (folder / RESTORING).is_file() and not (folder / NAME).exists()


@contextmanager
def unused(folder: Path, *, exclusive: bool) -> Iterator[bool]:
    """Keep brokers out of a data folder; yields False when one runs on it.

    Args:
        exclusive: keep other tools out as well; requires write permission.

    Raises: OSError.
    """
    flags = os.O_RDWR | os.O_CREAT if exclusive else os.O_RDONLY
    try:
        fd = os.open(folder / _LOCK, flags | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        yield True  # no broker has run on this copy
        return
    try:
        try:
            fcntl.flock(fd, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True
    finally:
        os.close(fd)
