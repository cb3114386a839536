"""Temporary folders that do not outlive their process for long, even where SIGKILL ends it.

A process removes its folders itself. After SIGKILL they stay, so the first folder that a process
makes is preceded by a sweep: folders of the same user whose lock is free are removed. The lock is
on a file in the folder, and the kernel releases it with the process. The file gets its name only
once it is locked: so a sweep never takes a folder that is being made for an abandoned one.
"""

import fcntl
import functools
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "headrace-tmp-"
_LOCK = ".temporary"


class TemporaryFolder:
    """A new folder for this process.

    Raises: from the constructor, OSError.

    Attributes:
        path: Where it is; mode 0700.
    """

    def __init__(self) -> None:
        remove_abandoned()
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        unnamed = self.path / f"{_LOCK}.new"
        self._lock = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        unnamed.rename(self.path / _LOCK)

    def remove(self) -> None:
        """Remove the folder with everything in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


@functools.cache
def remove_abandoned() -> None:
    """Remove the temporary folders of processes of this user that are gone, once in a process."""
    with os.scandir(tempfile.gettempdir()) as entries:
        named = [one for one in entries if one.name.startswith(_PREFIX)]
    for entry in named:
        try:
            is_ours = entry.is_dir(follow_symlinks=False) and (
                entry.stat(follow_symlinks=False).st_uid == os.geteuid()
            )
            if is_ours:
                _remove_if_abandoned(Path(entry.path))
        except OSError:
            continue  # in use, being made, or removed by another process


def _remove_if_abandoned(folder: Path) -> None:
    """Raises: OSError when a process uses the folder, or it is not a whole one."""
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
