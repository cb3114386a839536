"""A partition's log: segments of record batches in Kafka's own layout, on any `Disk`.

`<folder>/00000000000000000000.log` holds batches as they are sent, named by its first offset, with
sparse indexes beside it. A batch gets its offset in place and is written with one append; if that
fails, what it left is cut off before anything else is written. Opening a log reads every batch
header, and checks every checksum of the last segment: what a crash left torn at its end is cut off
and said so. Damage anywhere else is refused, because cutting there would drop records silently.
"""

import logging
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise

from headrace.core.types import WallMs
from headrace.log.api import CorruptLog, Disk, File, OffsetOutOfRange, Slice
from headrace.log.index import SegmentIndex
from headrace.log.producers import Producers
from headrace.log.reading import Stops
from headrace.wire import batches
from headrace.wire.batches import HEADER_BYTES, BatchHeader, CorruptBatch
from headrace.wire.primitives import Buffer

log = logging.getLogger("headrace.log")

LEADER_EPOCH = 0
SEGMENT_BYTES = 1 << 30
INDEX_INTERVAL_BYTES = 4096
_CHUNK_BYTES = 1 << 20
_OFFSETS_PER_SEGMENT_MAX = (1 << 31) - 1


class _Segment:
    """One file of batches with its indexes."""

    def __init__(self, disk: Disk, folder: str, base_offset: int, interval_bytes: int) -> None:
        self.base_offset = base_offset
        self.end_offset = base_offset
        self.path = f"{folder}/{base_offset:020d}"
        self.file: File = disk.open(f"{self.path}.log")
        self.size = 0
        self.index = SegmentIndex(base_offset, interval_bytes)

    def add(self, header: BatchHeader) -> None:
        """Count a batch that stands at the end of the file."""
        self.index.add(header, self.size)
        self.size += header.size
        self.end_offset = header.last_offset + 1

    def header_at(self, position: int) -> BatchHeader:
        return batches.read_header(self.file.pread(HEADER_BYTES, position))

    def boundary(self, position: int) -> int:
        """As `reading.Source.boundary`."""
        return self.index.boundary(position)

    def find(self, offset: int) -> tuple[int, BatchHeader] | None:
        """As `reading.Source.find`."""
        for position, header in self.walk(self.index.position_of(offset)):
            if header.last_offset >= offset:
                return position, header
        return None

    def position_after(self, offset: int) -> int:
        """As `reading.Source.position_after`."""
        found = self.find(offset)
        return self.size if found is None else found[0]

    def walk(self, position: int) -> Iterator[tuple[int, BatchHeader]]:
        """The batches from one that begins at `position`."""
        while position < self.size:
            header = self.header_at(position)
            yield position, header
            position += header.size


class SegmentedLog:
    """The log of one partition; implements `log.api.Log`.

    Args:
        folder: where it stands on `disk`; made when absent.
        segment_bytes: size at which a further segment begins (segment.bytes).
        index_interval_bytes: log bytes for one index entry (index.interval.bytes).

    Raises: CorruptLog, OSError.
    """

    def __init__(
        self,
        disk: Disk,
        folder: str,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        index_interval_bytes: int = INDEX_INTERVAL_BYTES,
    ) -> None:
        self.producers = Producers()
        self._stops = Stops()
        self._disk = disk
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._interval_bytes = index_interval_bytes
        self._torn = False
        self._fault: OSError | None = None
        names = [name for name in disk.list(folder) if name.endswith(".log")]
        self._segments = [self._load(name, last=name == names[-1]) for name in names]
        self._bases = [segment.base_offset for segment in self._segments]
        self._require_continuity()
        if not self._segments:
            self._begin_segment(0)
        else:
            for segment in self._segments:
                segment.index.attach(disk, segment.path)
                if segment is not self._active:
                    segment.index.detach()

    @property
    def start_offset(self) -> int:
        return self._bases[0]

    @property
    def end_offset(self) -> int:
        return self._active.end_offset

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches."""
        return sum(segment.size for segment in self._segments)

    @property
    def _active(self) -> _Segment:
        return self._segments[-1]

    def append(self, data: bytearray | memoryview, headers: Sequence[BatchHeader]) -> int:
        """As `Log.append`. Raises: OSError, with the log as it was before; always after a failed
        `sync`, until the log is reopened.
        """
        self._refuse_after_fault()
        if self._torn:
            self._cut_tail()
        first = offset = self.end_offset
        placed: list[BatchHeader] = []
        position = 0
        for header in headers:
            batches.stamp(data, position, offset, LEADER_EPOCH)
            placed.append(header._replace(base_offset=offset, leader_epoch=LEADER_EPOCH))
            position += header.size
            offset += header.last_offset_delta + 1
        self._make_room(position, offset)
        segment = self._active
        try:
            segment.file.append(data)
        except OSError:
            self._torn = True
            raise
        for header in placed:
            segment.add(header)
            self.producers.record(header)
        return first

    def read(self, offset: int, max_bytes: int, *, end: int | None = None) -> Slice:
        """As `Log.read`; stops at the end of a segment. Raises: OffsetOutOfRange, OSError."""
        if not self.start_offset <= offset <= self.end_offset:
            raise OffsetOutOfRange(offset, self.start_offset, self.end_offset)
        for segment in self._segments[max(bisect_right(self._bases, offset) - 1, 0) :]:
            for position, header in segment.walk(segment.index.position_of(offset)):
                if header.last_offset >= offset:
                    return self._slice(segment, position, header, max_bytes, end)
        return Slice(b"", ())

    def read_bytes(
        self, offset: int, max_bytes: int, *, end: int | None = None, whole: bool = True
    ) -> Buffer:
        """As `read`, but bytes; none when the first batch is larger and not `whole`."""
        if not self.start_offset <= offset <= self.end_offset:
            raise OffsetOutOfRange(offset, self.start_offset, self.end_offset)
        segments = self._segments[max(bisect_right(self._bases, offset) - 1, 0) :]
        return self._stops.read(segments, offset, max_bytes, end, whole=whole)

    def offset_for_time(self, timestamp: WallMs) -> tuple[int, WallMs] | None:
        """As `Log.offset_for_time`."""
        for segment in self._segments:
            if segment.index.max_timestamp < timestamp:
                continue
            for position, header in segment.walk(segment.index.position_before(timestamp)):
                if header.max_timestamp < timestamp:
                    continue
                for record in batches.records(segment.file.pread(header.size, position)):
                    if record.timestamp >= timestamp:
                        return record.offset, WallMs(record.timestamp)
        return None

    def offset_of_max_time(self) -> tuple[int, WallMs] | None:
        """The first offset that has the highest timestamp, with it; None in an empty log."""
        latest = max(self._segments, key=lambda segment: segment.index.max_timestamp)
        if latest.size == 0:
            return None
        return self.offset_for_time(WallMs(latest.index.max_timestamp))

    def sync(self) -> None:
        """As `Log.sync`; may run in another thread than appends.

        Raises: OSError, and again until the log is reopened: what a system could not write it may
        drop and call written the next time, so later batches would be promised behind a hole.
        """
        self._refuse_after_fault()
        try:
            self._active.file.sync()
        except OSError as error:
            self._fault = error
            raise

    def close(self) -> None:
        """Close the files; nothing is synced."""
        for segment in self._segments:
            segment.index.detach()
            segment.file.close()

    def delete(self) -> None:
        """As `Log.delete`. Raises: OSError."""
        self.close()
        self._disk.remove(self._folder)

    # ---- writing

    def _make_room(self, size: int, end_offset: int) -> None:
        """Begin a further segment when the active one is full."""
        active = self._active
        full = active.size > 0 and active.size + size > self._segment_bytes
        if full or end_offset - active.base_offset > _OFFSETS_PER_SEGMENT_MAX:
            # Recovery looks for a torn end in the last segment only: this one must be whole.
            self.sync()
            self._begin_segment(active.end_offset)
            active.index.detach()

    def _begin_segment(self, base_offset: int) -> None:
        segment = _Segment(self._disk, self._folder, base_offset, self._interval_bytes)
        segment.index.attach(self._disk, segment.path)
        self._segments.append(segment)
        self._bases = [segment.base_offset for segment in self._segments]

    def _refuse_after_fault(self) -> None:
        if self._fault is not None:
            raise OSError(self._fault.errno, f"{self._folder}: an earlier sync failed; reopen it")

    def _cut_tail(self) -> None:
        """Cut off what a failed write left, so that no good batch follows a half one."""
        self._active.file.truncate(self._active.size)
        self._torn = False

    # ---- reading

    def _slice(
        self, segment: _Segment, position: int, first: BatchHeader, max_bytes: int, end: int | None
    ) -> Slice:
        if end is not None and first.base_offset >= end:
            return Slice(b"", ())
        wanted = min(max(max_bytes, first.size), segment.size - position)
        data = segment.file.pread(wanted, position)
        headers = batches.headers(data)
        if end is not None:
            headers = headers[: bisect_right(headers, end - 1, key=lambda one: one.base_offset)]
        size = sum(header.size for header in headers)
        return Slice(data if size == len(data) else data[:size], headers)

    # ---- opening

    def _require_continuity(self) -> None:
        for segment, following in pairwise(self._segments):
            if segment.end_offset != following.base_offset:
                raise CorruptLog(
                    f"{segment.path}.log ends before offset {segment.end_offset}, the next segment "
                    f"begins with {following.base_offset}; restore what is missing between them"
                )

    def _load(self, name: str, *, last: bool) -> _Segment:
        segment = _Segment(self._disk, self._folder, int(name[:-4]), self._interval_bytes)
        size = segment.file.size()
        try:
            found = self._checked(segment, size) if last else self._walked(segment, size)
            for header in found:
                segment.add(header)
                self.producers.record(header)
        except CorruptBatch as damage:
            if not last:
                raise CorruptLog(
                    f"{segment.path}.log is damaged at byte {segment.size} of {size} ({damage}) "
                    "and is not the last segment; restore it, or remove it and those before it to "
                    "give up their records"
                ) from damage
            log.warning(
                "%s.log: cut %d bytes at %d, left by a crash in the middle of a write (%s); "
                "the log ends at offset %d",
                segment.path,
                size - segment.size,
                segment.size,
                damage,
                segment.end_offset,
            )
            segment.file.truncate(segment.size)
        return segment

    @staticmethod
    def _walked(segment: _Segment, size: int) -> Iterator[BatchHeader]:
        """Headers of a segment that was full once, and so was synced or survived a restart."""
        while segment.size < size:
            header = segment.header_at(segment.size)
            _require_fit(segment, header, size)
            yield header

    @staticmethod
    def _checked(segment: _Segment, size: int) -> Iterator[BatchHeader]:
        """Headers of batches whose checksums are right."""
        data, start = b"", 0
        while segment.size < size:
            position = segment.size - start
            if len(data) - position < HEADER_BYTES:
                start, position = segment.size, 0
                data = segment.file.pread(_CHUNK_BYTES, start)
            header = batches.read_header(data, position)
            _require_fit(segment, header, size)
            if len(data) - position < header.size:
                start, position = segment.size, 0
                data = segment.file.pread(max(_CHUNK_BYTES, header.size), start)
            batches.verify(data, position, header)
            yield header


def _require_fit(segment: _Segment, header: BatchHeader, size: int) -> None:
    """Raises: CorruptBatch when a batch goes past the end of the file or does not follow."""
    if header.size > size - segment.size:
        raise CorruptBatch(f"a batch of {header.size} bytes, {size - segment.size} are there")
    if header.base_offset < segment.end_offset or header.last_offset_delta < 0:
        raise CorruptBatch(f"offset {header.base_offset} after {segment.end_offset - 1}")
