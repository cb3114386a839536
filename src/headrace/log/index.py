"""Sparse indexes of a segment: offset to position and timestamp to offset, in Kafka's formats.

An entry is made for the first batch after every `interval_bytes` of log. Offsets are relative to
the segment's first. The indexes of the active segment live in memory; they are written when it is
sealed or its log closed, and a last entry then names the highest timestamp of all. A segment
without any entry has no index files: reading it from its beginning costs as little.
Source: OffsetIndex, TimeIndex, LogSegment.append, LogSegment.onBecomeInactiveSegment (4.3).
"""

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Self

from headrace.log.api import Disk

_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
NO_TIMESTAMP = -1
INDEX_SUFFIXES = (".index", ".timeindex")
# Files that are rebuilt from the batches, and go with them.
SUFFIXES = (*INDEX_SUFFIXES, ".checksums")


class Tail(NamedTuple):
    """The last entries of a segment's index files; offsets are absolute."""

    offset: int
    position: int
    max_timestamp: int
    max_timestamp_offset: int


class SegmentIndex:
    """Both indexes of one segment, in memory."""

    __slots__ = (
        "_base_offset", "_bytes_since_entry", "_offsets", "_positions", "_timestamp_offsets",
        "_timestamps", "interval_bytes", "max_timestamp", "max_timestamp_offset",
    )  # fmt: skip

    def __init__(self, base_offset: int, interval_bytes: int) -> None:
        self.interval_bytes = interval_bytes
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset
        self._base_offset = base_offset
        self._bytes_since_entry = 0
        self._offsets = array("i")
        self._positions = array("i")
        self._timestamps = array("q")
        self._timestamp_offsets = array("i")

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, last_offset: int, position: int, size: int, timestamp: int) -> None:
        """Take notice of a batch of `size` bytes at `position`; `timestamp` is its highest."""
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
            self.max_timestamp_offset = last_offset
        if self._bytes_since_entry > self.interval_bytes:
            self._bytes_since_entry = 0
            self._offsets.append(last_offset - self._base_offset)
            self._positions.append(position)
            self._add_time()
        self._bytes_since_entry += size

    def entries(self) -> Iterator[tuple[int, int]]:
        """Yield the last offset and the position of the batch of each entry."""
        for offset, position in zip(self._offsets, self._positions, strict=True):
            yield self._base_offset + offset, position

    def times(self) -> Iterator[tuple[int, int]]:
        """Yield the last offset and the highest timestamp of the batch of each entry."""
        for offset, timestamp in zip(self._timestamp_offsets, self._timestamps, strict=True):
            yield self._base_offset + offset, timestamp

    def position_of(self, offset: int) -> int:
        """Where to begin to look for `offset`: the position of a batch not behind it."""
        index = bisect_right(self._offsets, offset - self._base_offset) - 1
        return self._positions[index] if index >= 0 else 0

    def offset_at(self, position: int) -> int | None:
        """Return the last offset of the batch at a position; None without an entry of it."""
        index = bisect_left(self._positions, position)
        if index == len(self._positions) or self._positions[index] != position:
            return None
        return self._base_offset + self._offsets[index]

    def boundary(self, position: int) -> int:
        """The position of the last batch with an entry that begins at `position` or before."""
        index = bisect_right(self._positions, position) - 1
        return self._positions[index] if index >= 0 else 0

    def time_before(self, timestamp: int) -> tuple[int, int] | None:
        """Return offset and timestamp of the last entry that is earlier than `timestamp`.

        No batch up to that offset has a record as late as `timestamp`.
        """
        index = bisect_left(self._timestamps, timestamp) - 1
        if index < 0:
            return None
        return self._base_offset + self._timestamp_offsets[index], self._timestamps[index]

    @property
    def last_position(self) -> int:
        """The position of the last entry, 0 without any."""
        return self._positions[-1] if self._positions else 0

    def contents(self) -> tuple[bytes, bytes]:
        """Return what the files of `INDEX_SUFFIXES` contain."""
        self._add_time()
        halves = array("i", _swapped(self._timestamps[:]).tobytes())  # each high, then low
        times = array("i", bytes(_TIME_ENTRY.size * len(self._timestamps)))
        times[0::3], times[1::3] = halves[0::2], halves[1::2]
        times[2::3] = _swapped(self._timestamp_offsets[:])
        entries = array("i", bytes(_OFFSET_ENTRY.size * len(self._offsets)))
        entries[0::2], entries[1::2] = self._offsets, self._positions
        return _swapped(entries).tobytes(), times.tobytes()

    @classmethod
    def load(cls, disk: Disk, path: str, base_offset: int, interval_bytes: int) -> Self | None:
        """The indexes from their files; None when those are missing or not sane.

        The next batch to `add` is the one of the last entry.
        """
        tail = read_tail(disk, path, base_offset)
        if tail is None:
            return None
        found = cls(base_offset, interval_bytes)
        entries = _swapped(array("i", disk.read(f"{path}.index")))
        found._offsets, found._positions = entries[0::2], entries[1::2]
        # Not entry by entry: a segment may have 262,144 of them, and this holds the event loop.
        times = array("i", disk.read(f"{path}.timeindex"))
        halves = array("i", bytes(8 * (len(times) // 3)))  # each high, then low
        halves[0::2], halves[1::2] = times[0::3], times[1::3]
        found._timestamps = _swapped(array("q", halves.tobytes()))
        found._timestamp_offsets = _swapped(times[2::3])
        found.max_timestamp = tail.max_timestamp
        found.max_timestamp_offset = tail.max_timestamp_offset
        return found

    def _add_time(self) -> None:
        if self.max_timestamp > (self._timestamps[-1] if self._timestamps else NO_TIMESTAMP):
            self._timestamps.append(self.max_timestamp)
            self._timestamp_offsets.append(self.max_timestamp_offset - self._base_offset)


def read_tail(disk: Disk, path: str, base_offset: int) -> Tail | None:
    """The last entries of a segment's indexes; None when a file is missing or not sane.

    Raises: OSError.
    """
    if not all(disk.exists(path + suffix) for suffix in INDEX_SUFFIXES):
        return None
    sizes = [disk.size(path + suffix) for suffix in INDEX_SUFFIXES]
    if not sizes[0] or sizes[0] % _OFFSET_ENTRY.size or sizes[1] % _TIME_ENTRY.size:
        return None
    at = sizes[0] - _OFFSET_ENTRY.size
    offset, position = _OFFSET_ENTRY.unpack(disk.read(f"{path}.index", _OFFSET_ENTRY.size, at))
    timestamp, timestamp_offset = NO_TIMESTAMP, 0
    if sizes[1]:
        at = sizes[1] - _TIME_ENTRY.size
        last = disk.read(f"{path}.timeindex", _TIME_ENTRY.size, at)
        timestamp, timestamp_offset = _TIME_ENTRY.unpack(last)
    if offset < 0 or position <= 0 or timestamp_offset < 0:
        return None
    return Tail(base_offset + offset, position, timestamp, base_offset + timestamp_offset)


def save_index(disk: Disk, path: str, contents: Sequence[bytes]) -> None:
    """Write `path`.index and `path`.timeindex, as `SegmentIndex.contents` returned them.

    They are not synced: `.checksums` shows whether all of them is there. Raises: OSError.
    """
    for suffix, data in zip(INDEX_SUFFIXES, contents, strict=True):
        disk.write(path + suffix, data, durable=False)


def remove_index(disk: Disk, path: str) -> None:
    """Remove the derived files of a segment. Raises: OSError."""
    for suffix in SUFFIXES:
        if disk.exists(path + suffix):
            disk.remove(path + suffix)


def _swapped(entries: "array[int]") -> "array[int]":
    """Numbers of this machine's order of bytes in that of the network, and back."""
    if sys.byteorder == "little":
        entries.byteswap()
    return entries
