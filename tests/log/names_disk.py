"""A disk from which a power cut takes the names in folders that were not synced since."""

import errno
from collections.abc import Callable

from headrace.log.memory_disk import MemoryDisk, MemoryFile


class NamesDisk(MemoryDisk):
    """A `MemoryDisk` that syncs folders where `OsDisk` does.

    Attributes:
        fails: returns whether the sync of a folder fails, and with it the operation that was done.
    """

    def __init__(self) -> None:
        super().__init__()
        self._synced = dict(self._files)
        self.fails: Callable[[], bool] = lambda: False

    def has(self, path: str) -> bool:
        """Return whether a file exists, whatever operations fail."""
        return path in self._files

    def power_cut(self, keep: float = 0.0) -> None:
        """Lose the names that were not synced, and unsynced bytes.

        Args:
            keep: the part of the unsynced bytes that stays.
        """
        self.kill()
        self._files.clear()
        self._files.update(self._synced)
        self.crash(keep)

    def open(self, path: str) -> MemoryFile:
        is_new = path not in self._files
        file = super().open(path)
        if is_new:
            self._sync_folder(path)
        return file

    def remove(self, path: str) -> None:
        exists = self.exists(path)
        super().remove(path)
        if exists:
            self._sync_folder(path)

    def rename(self, old: str, new: str, *, durable: bool = True) -> None:
        super().rename(old, new, durable=durable)
        if durable:
            self._sync_folder(new)

    def write(self, path: str, data: bytes, *, durable: bool = True) -> None:
        super().write(path, data, durable=durable)
        if durable:
            self._sync_folder(path)

    def overwrite(self, path: str, data: bytes, position: int, *, durable: bool = False) -> None:
        super().overwrite(path, data, position, durable=durable)
        if durable:
            self._sync_folder(path)

    def _sync_folder(self, path: str) -> None:
        if self.fails():
            raise InterruptedError(errno.EINTR, "the folder cannot be synced")
        folder = path.rpartition("/")[0]
        others = {one: it for one, it in self._synced.items() if one.rpartition("/")[0] != folder}
        here = {one: it for one, it in self._files.items() if one.rpartition("/")[0] == folder}
        self._synced = others | here
