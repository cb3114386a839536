"""What the floors above need of a log, a disk and a clock."""

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from headrace.core.types import MonoMs, Now, WallMs
from headrace.wire.batches import BatchHeader, CorruptBatch
from headrace.wire.primitives import Buffer


class Clock(Protocol):
    """Both times; real in the server, virtual in tests."""

    def mono(self) -> MonoMs: ...
    def wall(self) -> WallMs: ...
    def now(self) -> Now: ...


class File(Protocol):
    """An open file of a disk. Raises: OSError from every method, as the operating system does."""

    def append(self, data: bytes | bytearray | memoryview) -> None:
        """Add all of `data` at the end, or raise with the end unknown to the caller."""

    def pread(self, count: int, position: int) -> bytes:
        """Up to `count` bytes at `position`; fewer at the end of the file."""

    def size(self) -> int: ...
    def truncate(self, size: int) -> None: ...
    def sync(self) -> None:
        """Return once all data is on stable storage (fdatasync)."""

    def rewrite(self, position: int) -> None:
        """Write what stands from `position` on once more, in its place.

        After a failed `sync` a system may drop what it could not write and call it written; only
        what is written again will the next `sync` bring to stable storage.
        """

    def close(self) -> None: ...


class Disk(Protocol):
    """The few things a log asks of a file system; paths are relative, with `/`."""

    def open(self, path: str) -> File:
        """Open for reading and appending; created, with its folders, when absent."""

    def exists(self, path: str) -> bool:
        """Return whether a file or folder can be seen; also False where the disk does not say."""

    def list(self, folder: str) -> list[str]:
        """Names in a folder, sorted; none when it does not exist."""

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with all it holds; nothing when absent."""

    def rename(self, old: str, new: str, *, durable: bool = True) -> None:
        """Atomic replacement of `new` by `old`, on stable storage when `durable`."""

    def write(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """Replace a small file whole: written aside, synced when `durable`, renamed."""

    def overwrite(self, path: str, data: bytes, position: int, *, durable: bool = False) -> None:
        """Write `data` in place at `position`; the file is created when absent.

        Unless `durable`, a power cut may lose the write or keep a part of it.
        """

    def read(self, path: str, count: int = -1, position: int = 0) -> bytes:
        """Up to `count` bytes of a file at `position`, -1 for all; OSError when it is absent."""

    def size(self, path: str) -> int:
        """Bytes of a file. Raises: OSError when it is absent."""


class SegmentInfo(NamedTuple):
    """One segment of a log: offsets [base_offset, end_offset), `size` bytes of batches.

    `path` is that of its files without suffix, relative to the disk; `max_timestamp` is -1 without
    any. Only the last segment is not `sealed`: appends go there. The batches are in `file_path`,
    which has another suffix than `.log` where a replacement by compaction is unfinished.
    """

    base_offset: int
    end_offset: int
    size: int
    max_timestamp: int
    path: str
    sealed: bool
    file_path: str


@dataclass(frozen=True, slots=True)
class Slice:
    """Whole record batches as stored, the first of which holds or follows the asked offset."""

    data: Buffer
    headers: Sequence[BatchHeader]


class JournalLog(Protocol):
    """What a journal needs of a log; the methods are those of `Log`."""

    @property
    def start_offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...
    def append(self, batches: bytearray | memoryview, headers: Sequence[BatchHeader]) -> int: ...
    def read(self, offset: int, max_bytes: int, *, end: int | None = None) -> Slice: ...
    def sync(self) -> None: ...
    def must_roll(self, header: BatchHeader) -> bool:
        """Return whether an append of the batch begins a segment that is not prepared yet."""

    @property
    def rewrites(self) -> int:
        """Number of changes to batches that were appended: cut off, compacted or dropped."""

    def mend(self, *, keep: bool) -> None:
        """Begin to repair the journal after a failed append or sync; for a thread.

        Nothing changes when it is whole. `resume` must follow.

        Args:
            keep: Keep what was appended and never synced. Otherwise it is cut off, as no client was
                promised it.

        Raises: OSError while that cannot be done.
        """

    def resume(self) -> None:
        """End the repair that `mend` began: state from before it has to be read again.

        Raises: OSError while the journal is not whole; `mend` has to be tried again.
        """


class Log(Protocol):
    """One partition: an ordered sequence of record batches.

    Raises: `log.api.OffsetOutOfRange` from `read` outside [start_offset, end_offset];
    OSError when the disk does.
    """

    @property
    def start_offset(self) -> int:
        """The first offset that is kept."""

    @property
    def end_offset(self) -> int:
        """The offset that the next record will get (also the high watermark: one replica)."""

    def append(self, batches: bytearray | memoryview, headers: Sequence[BatchHeader]) -> int:
        """Give the batches their offsets in place, write them; returns the first offset."""

    def read(self, offset: int, max_bytes: int, *, end: int | None = None) -> Slice:
        """Batches from the one that holds `offset`, up to `max_bytes` but at least one batch.

        Empty at the end of the log. With `end`, batches that begin at `end` or later are left out.
        """

    def offset_for_time(self, timestamp: WallMs) -> tuple[int, WallMs] | None:
        """First offset whose record timestamp is >= `timestamp`, with that timestamp."""

    def offset_of_max_time(self) -> tuple[int, WallMs] | None:
        """Offset of a record with the highest timestamp, with that timestamp; None without any."""

    def sync(self) -> None:
        """Return once all that was appended is on stable storage."""

    def close(self) -> None:
        """Close the files; nothing is written."""

    def delete(self) -> None:
        """Close, and remove the folder with all it holds."""


class OffsetOutOfRange(Exception):
    """An offset below the log start or above the log end."""

    def __init__(self, offset: int, start: int, end: int) -> None:
        super().__init__(f"offset {offset} is outside [{start}, {end}]")
        self.offset, self.start, self.end = offset, start, end


class CorruptLog(Exception):
    """A file of the data folder is damaged or missing, and nothing of it may be given up silently.

    The message is one line: the file, the position where there is one, the problem, the remedy.
    """


class CorruptFileError(CorruptLog):
    """A named file of the data folder cannot be trusted.

    Args:
        path: the file, relative to the data folder.
        problem: the reason, as a phrase: "the checksum does not match".
        position: the byte at which the damage begins, where that is known.
        remedy: the next step of an operator.

    `where` is the file with the position.
    """

    def __init__(
        self, path: str, problem: str, *, position: int | None = None, remedy: str = ""
    ) -> None:
        self.path, self.problem, self.position = path, problem, position
        self.remedy = remedy or REMEDY
        self.where = path if position is None else f"{path} at byte {position}"
        super().__init__(f"{self.where}: {problem}; {self.remedy}")


class NewerFormatError(CorruptFileError):
    """A file was written by a newer release; it is left untouched."""

    def __init__(self, path: str, version: object) -> None:
        super().__init__(
            path,
            f"format version {version} was written by a newer Headrace",
            remedy="upgrade Headrace to open this data folder",
        )


class DamagedBlockError(OSError):
    """Batches that another process wrote are damaged; found when they are first read."""

    def __init__(self, damage: CorruptFileError) -> None:
        super().__init__(errno.EIO, str(damage))
        self.damage = damage


class CorruptRecordsError(CorruptBatch):
    """The checksum of a batch in a segment is right, and its records cannot be decoded."""

    def __init__(self, damage: CorruptFileError) -> None:
        super().__init__(damage.problem)
        self.damage = damage


MISSING = "the file is missing"
REMEDY = "run `headrace check`, then `headrace repair` or restore a backup"
