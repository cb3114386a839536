"""How far a log's last segment is on stable storage for sure, for who opens it after a crash.

A sync that fails may leave the system taking for written what never reached the disk; no later sync
would bring it there. Should the process end before it mended that, or told anybody, nothing shows
it: so the next one writes once more whatever it does not know to be synced (`opening.py`).

`<folder>/recovery-point` has one line: the first offset of a segment, and how many of its bytes
were synced at least. Kafka has such a file for all logs (recovery-point-offset-checkpoint).
"""

import contextlib

from headrace.log.api import Disk

_POINTS_PER_SEGMENT = 64  # every 16 MiB of one of a gigabyte


class RecoveryPoint:
    """Keeps the point of one log; it is never beyond what is on stable storage."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self._path = f"{folder}/recovery-point"
        self._kept = (-1, 0)

    def passed(self, base_offset: int, size: int, segment_bytes: int) -> None:
        """The first `size` bytes of the last segment are synced; kept so many times a segment."""
        kept = self._kept[1] if self._kept[0] == base_offset else 0
        if size - kept < segment_bytes // _POINTS_PER_SEGMENT:
            return
        # Not synced itself: where it is lost, a power cut came, and what is there is on the disk.
        with contextlib.suppress(OSError):
            self._disk.write(self._path, f"{base_offset} {size}\n".encode(), durable=False)
            self._kept = base_offset, size

    def position(self, base_offset: int, size: int) -> int:
        """Up to where the last segment, of `size` bytes, need not be written once more.

        Forgotten where it does not fit: what will stand there is not what was synced.

        Raises: OSError.
        """
        if not self._disk.exists(self._path):
            return 0
        base, _, rest = self._disk.read(self._path).decode(errors="replace").partition(" ")
        digits, ended, _ = rest.partition("\n")
        if base == str(base_offset) and ended and digits.isdecimal() and int(digits) <= size:
            return int(digits)
        self.forget()
        return 0

    def forget(self) -> None:
        """Nothing counts as synced: something was cut off, or begins anew. Raises: OSError."""
        self._kept = -1, 0
        if self._disk.exists(self._path):
            self._disk.remove(self._path)
