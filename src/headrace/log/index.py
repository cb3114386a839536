"""Sparse indexes of a segment: offset to position and timestamp to offset, in Kafka's formats.

An entry is written for the first batch after every `interval_bytes` of log. Offsets are relative to
the segment's first. Both indexes are rebuilt from batch headers whenever a log is opened, so a
missing or damaged index file costs nothing but the rewrite.
Source: OffsetIndex, TimeIndex, LogSegment.append (4.3).
"""

import logging
import struct
from bisect import bisect_left, bisect_right

from headrace.log.api import Disk, File
from headrace.wire.batches import BatchHeader

log = logging.getLogger("headrace.log")

_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")


class SegmentIndex:
    """Both indexes of one segment, in memory and in their files."""

    def __init__(self, base_offset: int, interval_bytes: int) -> None:
        self.max_timestamp = -1
        self.max_timestamp_offset = base_offset
        self._base_offset = base_offset
        self._interval_bytes = interval_bytes
        self._bytes_since_entry = 0
        self._offsets: list[int] = []
        self._positions: list[int] = []
        self._timestamps: list[int] = []
        self._timestamp_offsets: list[int] = []
        self._files: tuple[File, File] | None = None

    def add(self, header: BatchHeader, position: int) -> None:
        """Take notice of a batch at `position`."""
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp = header.max_timestamp
            self.max_timestamp_offset = header.last_offset
        if self._bytes_since_entry > self._interval_bytes:
            self._bytes_since_entry = 0
            self._offsets.append(header.last_offset)
            self._positions.append(position)
            later = not self._timestamps or self.max_timestamp > self._timestamps[-1]
            if later:
                self._timestamps.append(self.max_timestamp)
                self._timestamp_offsets.append(self.max_timestamp_offset)
            self._write_entry(later)
        self._bytes_since_entry += header.size

    def position_of(self, offset: int) -> int:
        """Where to begin to look for `offset`: the position of a batch not behind it."""
        index = bisect_right(self._offsets, offset) - 1
        return self._positions[index] if index >= 0 else 0

    def boundary(self, position: int) -> int:
        """The position of the last batch with an entry that begins at `position` or before."""
        index = bisect_right(self._positions, position) - 1
        return self._positions[index] if index >= 0 else 0

    def position_before(self, timestamp: int) -> int:
        """Where to begin to look for the first record as late as `timestamp`."""
        index = bisect_left(self._timestamps, timestamp) - 1
        return self.position_of(self._timestamp_offsets[index]) if index >= 0 else 0

    def attach(self, disk: Disk, path: str) -> None:
        """Write the indexes to `path`.index and `path`.timeindex where those differ; keep both up.

        Raises: OSError.
        """
        offsets = b"".join(self._offset_entry(i) for i in range(len(self._offsets)))
        times = b"".join(self._time_entry(i) for i in range(len(self._timestamps)))
        files = (disk.open(f"{path}.index"), disk.open(f"{path}.timeindex"))
        for file, data in zip(files, (offsets, times), strict=True):
            if file.pread(len(data) + 1, 0) != data:
                file.truncate(0)
                file.append(data)
        self._files = files

    def detach(self) -> None:
        """Close the files: the segment is full, or the log is closed."""
        for file in self._files or ():
            file.close()
        self._files = None

    def _write_entry(self, later: bool) -> None:
        if self._files is None:
            return
        try:
            self._files[0].append(self._offset_entry(-1))
            if later:
                self._files[1].append(self._time_entry(-1))
        except OSError as error:
            # The batch is in the log already and must count; the next opening writes the index.
            log.warning("an index is no longer kept up until the log is reopened: %s", error)
            self.detach()

    def _offset_entry(self, index: int) -> bytes:
        return _OFFSET_ENTRY.pack(self._offsets[index] - self._base_offset, self._positions[index])

    def _time_entry(self, index: int) -> bytes:
        relative = self._timestamp_offsets[index] - self._base_offset
        return _TIME_ENTRY.pack(self._timestamps[index], relative)
