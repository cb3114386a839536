"""Verifying the files of a data folder from their first byte to their last, without changing them.

A start trusts sealed segments by their checksums and reads what it needs. The check of a data
folder, a backup and the scrub of a running broker read everything, by these functions. Each is a
generator of the bytes that it verified since it was resumed last, so that its caller can pause,
report progress or give up.
"""

from collections.abc import Iterator

from headrace.log import checksums, small_files, snapshots
from headrace.log.api import CorruptFileError, Disk
from headrace.log.opening import SWAP
from headrace.log.segment import Segment
from headrace.wire import batches
from headrace.wire.batches import CorruptBatch

DERIVED = (".index", ".timeindex", checksums.SUFFIX, "recovery-point")
_STEP_BYTES = 256 * 1024  # a fifth of a millisecond of the processor, where batches are large
_STEP_BATCHES = 100  # a millisecond
_INTERVAL_BYTES = 1 << 30  # no index is of interest
_ROOT_FILES = ("headrace.manifest", "meta.properties", "log-start-offset-checkpoint")


class _Reader:
    """`log.api.File` for reading only; a file that is gone is not created again."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path

    def pread(self, count: int, position: int) -> bytes:
        return self._disk.read(self._path, count, position)

    def size(self) -> int:
        return self._disk.size(self._path)

    def append(self, data: bytes | bytearray | memoryview) -> None:  # noqa: ARG002  # as `log.api.File`
        raise AssertionError("the file is only read")

    def truncate(self, size: int) -> None:  # noqa: ARG002  # as `log.api.File`
        raise AssertionError("the file is only read")

    def rewrite(self, position: int) -> None:  # noqa: ARG002  # as `log.api.File`
        raise AssertionError("the file is only read")

    def sync(self) -> None:
        """Nothing is written."""

    def close(self) -> None:
        """Nothing is open."""


def verify_file(disk: Disk, path: str, size: int) -> Iterator[int]:
    """Verify a file by its name; a derived file counts as sound.

    Args:
        size: bytes of the file that count.

    Raises:
        CorruptFileError: the file is damaged.
        OSError: the file cannot be read.
    """
    name = path.rpartition("/")[2]
    if name.partition(".")[0].isdecimal() and name.endswith((".log", f".log{SWAP}")):
        yield from verify_segment(disk, path, size)
        return
    if name.endswith(snapshots.SUFFIX):
        if snapshots.decoded(disk.read(path), path) is None:
            raise CorruptFileError(path, "the checksum does not match")
    elif name.endswith(".checkpoint"):
        verify_batches(path, disk.read(path))
    elif path in _ROOT_FILES or name == "partition.metadata":
        small_files.read_file(disk, path, unsealed=not disk.exists("headrace.manifest"))
    yield size


def verify_segment(disk: Disk, path: str, size: int) -> Iterator[int]:
    """Verify every batch of a segment, and its offsets and sizes by its checksums where it has any.

    Raises:
        CorruptFileError: the position is that of the first damaged batch.
        OSError: the file cannot be read.
    """
    folder, _, name = path.rpartition("/")
    base = int(name.removesuffix(SWAP).removesuffix(".log"))
    segment = Segment(disk, folder, base, _INTERVAL_BYTES, file=_Reader(disk, path))
    passed = 0
    try:
        for number, _ in enumerate(segment.check(size)):
            is_long = number % _STEP_BATCHES == _STEP_BATCHES - 1
            if is_long or segment.size - passed >= _STEP_BYTES:
                yield segment.size - passed
                passed = segment.size
    except CorruptBatch as error:
        raise CorruptFileError(path, str(error), position=segment.size) from error
    finally:
        segment.release()
    # A replacement has its own; the others may be those of the segment that it replaces.
    written = checksums.load(disk, path if name.endswith(SWAP) else segment.path)
    if written is not None and written.summary.size == segment.size:
        _require_digests(path, segment, written)
    yield size - passed


def verify_batches(path: str, data: bytes) -> None:
    """Verify a file of batches that was read at once. Raises: CorruptFileError."""
    position = 0
    try:
        for header in batches.headers(data):
            batches.verify(data, position, header)
            position += header.size
    except CorruptBatch as error:
        raise CorruptFileError(path, str(error), position=position) from error
    if position != len(data) or not data:
        raise CorruptFileError(path, "the end of the file is missing", position=position)


def _require_digests(path: str, segment: Segment, written: checksums.Checksums) -> None:
    position = segment.digests.differing(written.blocks)
    if position is not None:
        raise CorruptFileError(path, checksums.MOVED, position=min(position, segment.size))
