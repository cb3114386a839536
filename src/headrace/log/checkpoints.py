"""Small files in the root of a data folder: start offsets, and a mark left by a stop.

`log-start-offset-checkpoint` has a line for each partition that starts inside a segment; where a
log starts with its first segment, the name of the segment is the start offset.
`.kafka_cleanshutdown` exists while no broker runs and the last one stopped in order; it has a line
for each log that still ends where it did then, and is removed when a broker starts. Both are sealed
(`small_files.py`).
Source: CheckpointFile, OffsetCheckpointFile, CleanShutdownFileHandler (4.3).
"""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from headrace.log import small_files
from headrace.log.api import CorruptFileError, Disk, NewerFormatError
from headrace.log.manifest import START_OFFSETS, Manifest
from headrace.log.opening import SWAP

log = logging.getLogger("headrace.log")

CLEAN_MARK = ".kafka_cleanshutdown"
_VERSION = "0"


class StartOffsets:
    """The start offsets of partitions where records were deleted up to an offset.

    A change is on stable storage when it is made; a thread makes it.

    Raises: CorruptFileError when the file is damaged or missing; OSError, from every method that
        changes something.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._lock = threading.Lock()
        found = manifest.read(START_OFFSETS)
        self._offsets = {} if found is None else parsed_offsets(found.text)
        if found is not None and not found.is_sealed:
            self._write(self._offsets)

    def get(self, topic: str, partition: int) -> int:
        """Return the start offset, 0 where nothing was deleted."""
        return self._offsets.get((topic, partition), 0)

    def put_all(
        self,
        offsets: Mapping[tuple[str, int], int],
        is_gone: Callable[[tuple[str, int]], bool] | None = None,
    ) -> None:
        """Keep start offsets, with one write; a higher one that is kept stays.

        Args:
            is_gone: returns whether a partition is not to be kept any more: it becomes so before
                `forget` is called.
        """
        with self._lock:
            kept = dict(self._offsets)
            for key, offset in offsets.items():
                if is_gone is None or not is_gone(key):
                    kept[key] = max(offset, kept.get(key, 0))
            if kept != self._offsets:
                self._write(kept)

    def restore(self, offsets: Mapping[tuple[str, int], int]) -> None:
        """Put start offsets in the place of those that are kept, with one write."""
        with self._lock:
            kept = {**self._offsets, **offsets}
            self._write({key: offset for key, offset in kept.items() if offset})

    def forget(self, topic: str, partitions: Iterable[int]) -> None:
        """Forget partitions that no longer exist, as others may get their names."""
        gone = {(topic, index) for index in partitions}
        with self._lock:
            if not gone.isdisjoint(self._offsets):
                self._write({key: n for key, n in self._offsets.items() if key not in gone})

    def _write(self, offsets: dict[tuple[str, int], int]) -> None:
        lines = [f"{topic} {index} {offset}" for (topic, index), offset in offsets.items()]
        self._manifest.write(START_OFFSETS, "\n".join([_VERSION, str(len(lines)), *lines, ""]))
        self._offsets = offsets


class Extent(NamedTuple):
    """Start and end offset of a log that was closed in order."""

    start: int
    end: int


def read_clean_mark(disk: Disk, *, unsealed: bool = False) -> Mapping[str, Extent] | None:
    """Return the logs that the last broker closed in order, by folder; None after another stop.

    A mark that does not verify counts for nothing, with a WARNING line.

    Args:
        unsealed: accept the mark of a format 0 folder, which names no logs.

    Raises: NewerFormatError; OSError.
    """
    if not disk.exists(CLEAN_MARK):
        return None
    try:
        found = small_files.read_file(disk, CLEAN_MARK, unsealed=unsealed)
        return _extents(found.text) if found.is_sealed else {}
    except NewerFormatError:
        raise
    except CorruptFileError as error:
        log.warning("%s: %s; all logs are checked, as after a crash", CLEAN_MARK, error.problem)
        return None


def remove_clean_mark(disk: Disk) -> None:
    """Record that a broker runs from now on. Raises: OSError."""
    if disk.exists(CLEAN_MARK):
        disk.remove(CLEAN_MARK)


def remove_from_clean_mark(disk: Disk, folder: str) -> None:
    """Record that a log may get another end than it was closed with; all other ends stay known.

    A mark that names no log, or does not verify, is removed. Raises: NewerFormatError; OSError.
    """
    extents = dict(read_clean_mark(disk) or {})
    if extents.pop(folder, None) is None and extents:
        return
    if extents:
        leave_clean_mark(disk, extents)
    else:
        remove_clean_mark(disk)


def leave_clean_mark(disk: Disk, extents: Mapping[str, Extent]) -> None:
    """Record that everything is synced and closed. Raises: OSError."""
    lines = (f"{start} {end} {folder}\n" for folder, (start, end) in sorted(extents.items()))
    small_files.write_file(disk, CLEAN_MARK, "".join(lines))


def other_starts(
    disk: Disk, closed: Mapping[str, Extent], kept: Callable[[str, int], int]
) -> dict[tuple[str, int], int]:
    """Return the starts with which logs were closed, where the checkpoint has other ones.

    The checkpoint looks sound when its last write was lost: it lacks a start, has a lower one, or
    has that of a former topic of the name, which may be higher.

    Args:
        closed: the logs that the last broker closed in order, by folder.
        kept: returns the start offset that the checkpoint has of a partition, or 0.
    """
    starts: dict[tuple[str, int], int] = {}
    for folder, extent in closed.items():
        topic, _, index = folder.rpartition("-")
        known = kept(topic, int(index))
        is_lower = known < extent.start and _begins_inside(disk, folder, extent.start)
        if is_lower or known > extent.start:
            starts[topic, int(index)] = extent.start
    return starts


def _begins_inside(disk: Disk, folder: str, start: int) -> bool:
    """Return whether a log begins inside a segment, so that its start needs an entry.

    The segment with which it begins may wait for its name after a compaction. A log without
    segments, or whose folder cannot be listed now, counts as such a log: the mark alone may know
    where it began, and an entry that is not needed does no harm.
    """
    first = f"{folder}/{start:020d}.log"
    try:
        if disk.exists(first) or disk.exists(first + SWAP):
            return False
        names = [name.removesuffix(SWAP) for name in disk.list(folder)]
    except OSError:
        return True
    stems = (name.removesuffix(".log") for name in names if name.endswith(".log"))
    bases = [int(stem) for stem in stems if stem.isdecimal()]
    return not bases or min(bases) < start


def _extents(text: str) -> dict[str, Extent]:
    """Raises: CorruptFileError."""
    try:
        rows = [line.split(" ") for line in text.splitlines()]
        return {folder: Extent(int(start), int(end)) for start, end, folder in rows}
    except ValueError as error:
        raise CorruptFileError(CLEAN_MARK, f"a line is malformed: {error}") from error


def read_offsets(disk: Disk, path: str = START_OFFSETS) -> dict[tuple[str, int], int]:
    """Return the offsets of a checkpoint file by topic and partition; none without a file.

    Raises: CorruptFileError; NewerFormatError; OSError.
    """
    if not disk.exists(path):
        return {}
    return parsed_offsets(small_files.read_file(disk, path).text, path)


def parsed_offsets(text: str, path: str = START_OFFSETS) -> dict[tuple[str, int], int]:
    """Parse a checkpoint file of offsets by topic and partition.

    Raises: CorruptFileError; NewerFormatError.
    """
    version, _, rest = text.partition("\n")
    if version.isdecimal() and version != _VERSION:
        raise NewerFormatError(path, version)
    count, *lines = rest.splitlines() or [""]
    try:
        rows = [line.split(" ") for line in lines]
        found = {(topic, int(index)): int(offset) for topic, index, offset in rows}
        if version != _VERSION or int(count) != len(lines):
            raise ValueError(f"{len(lines)} of {count} entries")
    except ValueError as error:
        raise CorruptFileError(path, f"the entries are malformed: {error}") from error
    return found
