"""Reading a log as bytes: whole batches, cut without looking at more of them than is needed.

A reader that goes on where it stopped is the usual one, so the last stops are remembered: one
`pread` then serves it. One that reads up to an offset goes on inside the batch that it read last,
which is remembered too. Both are hints; they count only when the batch of that offset stands there.
"""

import struct
from collections.abc import Iterable
from typing import Protocol

from headrace.log.api import File, Slice
from headrace.wire.batches import (
    HEADER_BYTES,
    BatchHeader,
    CorruptBatch,
    read_header,
    require_places,
)
from headrace.wire.primitives import Buffer

STOPS_MAX = 64
_BASE_OFFSET = struct.Struct(">q")
_LENGTH = struct.Struct(">i")
_LENGTH_AT = 8
_MAGIC_AT = 16
_MAGIC = 2
_OVERHEAD = 12
# Of the two batches of a producer in which what is wanted begins and ends.
_SPARE_BYTES = 2 * 16 * 1024


class Source(Protocol):
    """What a segment has to be able to do."""

    @property
    def file(self) -> File: ...
    @property
    def size(self) -> int: ...
    @property
    def base_offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...
    def boundary(self, position: int) -> int:
        """A position, at most `position`, at which a batch begins; not far below."""

    def intact_until(self, start: int, end: int) -> int:
        """Verify what another process wrote, where that was not done yet.

        Returns: `end`, or the end of the batches before damage. Raises: OSError.
        """

    def damaged(self, damage: CorruptBatch) -> OSError:
        """Return the error that names the file to who reads it."""

    def find(self, offset: int) -> tuple[int, BatchHeader] | None:
        """The batch that holds or follows `offset`, with its position."""

    def position_after(self, offset: int) -> int:
        """Where the batches below `offset` end."""


class Stops:
    """Where readers stopped: offset to segment and position, the last `STOPS_MAX` of them."""

    def __init__(self) -> None:
        self._positions: dict[int, tuple[Source, int]] = {}
        self._latest: tuple[Source, BatchHeader, int] | None = None  # the batch, its position
        self.read_bytes = 0  # from files by the last read, which can be many more than it returned

    def __len__(self) -> int:
        return len(self._positions)

    def read(
        self, segments: Iterable[Source], offset: int, max_bytes: int, end: int | None, *,
        whole: bool,
    ) -> Buffer:  # fmt: skip
        """Whole batches of one segment, from the one that holds `offset` and below `end`.

        At most `max_bytes`, but a first batch that is larger when `whole`. `segments` are the one
        that may hold `offset` and those that follow. Raises: OSError, also for damage.
        """
        self.read_bytes = 0
        for segment in segments:
            try:
                stop = segment.size
                if end is not None and end < segment.end_offset:
                    stop = segment.position_after(end)
                found = self._read(segment, offset, max_bytes, stop, whole=whole)
            except CorruptBatch as damage:
                raise segment.damaged(damage) from damage
            if found is not None:
                return found
        return b""

    def read_through(
        self, segments: Iterable[Source], offset: int, last: int, max_bytes: int, end: int
    ) -> Slice:
        """Whole batches of one segment, from the one that holds or follows `offset` to `last`'s.

        At most `max_bytes`, but at least one batch; none that begins at `end` or later. Little
        beyond is looked at. Raises: OSError, also for damage.
        """
        self.read_bytes = 0
        for segment in segments:
            try:
                found = self._read_through(segment, offset, last, max_bytes, end)
            except CorruptBatch as damage:
                raise segment.damaged(damage) from damage
            if found is not None:
                return found
        return Slice(b"", ())

    def _read_through(
        self, segment: Source, offset: int, last: int, max_bytes: int, end: int
    ) -> Slice | None:
        offsets = segment.end_offset - segment.base_offset
        guess = (last - offset + 1) * segment.size // max(offsets, 1)
        wanted = min(guess + guess // 4 + _SPARE_BYTES, max_bytes)
        found = self._begin(segment, offset, wanted, segment.size)
        if found is None:
            return None
        data, position = found
        self.read_bytes = len(data)
        wanted, room = max(wanted, HEADER_BYTES), segment.size - position
        while True:
            headers, size, is_passed = _up_to(data, wanted, last, end)
            if is_passed or wanted >= room or (headers and wanted >= max_bytes):
                break
            wanted = min(2 * wanted, max_bytes) if headers else _size_at(data, 0)
            data = _bytes(segment, position, wanted, segment.size)
            self.read_bytes += len(data)
            if len(data) < min(wanted, room):  # a failed sync is being cut off
                break
        require_in_place(segment, data, size, position)
        if not headers and len(data) >= HEADER_BYTES:
            require_fit(segment, read_header(data, 0), position)
        if headers:
            self._remember(headers[-1].last_offset + 1, segment, position + size)
            self._latest = segment, headers[-1], position + size - headers[-1].size
        return Slice(part_of(data, 0, size), headers)

    def _read(
        self, segment: Source, offset: int, max_bytes: int, stop: int, *, whole: bool
    ) -> Buffer | None:
        """From one segment, up to its byte `stop`; None when all its offsets are lower."""
        found = self._begin(segment, offset, max_bytes, stop)
        if found is None:
            return None
        data, position = found
        self.read_bytes = len(data)
        if len(data) < HEADER_BYTES:
            begun = segment.file.pread(HEADER_BYTES, position)
            if len(begun) == HEADER_BYTES:  # it is not below `end`
                require_fit(segment, read_header(begun, 0), position)
            return b""
        first, room = _size_at(data, 0), stop - position
        if first > room:  # a batch begins at `stop`
            raise CorruptBatch(f"a batch of {first} bytes, {room} are there")
        if whole and first > len(data):
            data = _bytes(segment, position, first, segment.size)
            self.read_bytes += len(data)
        wanted = min(max(max_bytes, first if whole else 0), room, len(data))
        if wanted < first:
            return b""
        # An index is quicker than a walk, where batches are small.
        near = max(segment.boundary(position + wanted) - position, 0)
        end = _last_whole(data, near, wanted)
        following = require_in_place(segment, data, end, position)
        if following is not None:
            self._remember(following, segment, position + end)
        if end == len(data):
            return data
        # As `part_of`, without a call.
        return data[:end] if len(data) > 2 * end else memoryview(data)[:end]

    def _begin(
        self, segment: Source, offset: int, max_bytes: int, stop: int
    ) -> tuple[bytes, int] | None:
        """The bytes from the batch that holds `offset`, and their position."""
        known, position = self._positions.get(offset, (None, 0))
        if known is segment:
            data = _bytes(segment, position, max_bytes, stop)
            if _begins_with(data, offset):
                return data, position
        if self._latest is not None:
            known, header, position = self._latest
            if known is segment and header.base_offset <= offset <= header.last_offset:
                data = _bytes(segment, position, max_bytes, stop)
                if _begins_with(data, header.base_offset) and read_header(data, 0) == header:
                    return data, position
        found = segment.find(offset)
        if found is None:
            return None
        position, header = found
        if header.base_offset == offset:  # for the next read from there
            self._remember(offset, segment, position)
        return _bytes(segment, position, max_bytes, stop), position

    def _remember(self, offset: int, segment: Source, position: int) -> None:
        self._positions[offset] = segment, position
        if len(self._positions) > STOPS_MAX:
            del self._positions[next(iter(self._positions))]


def bytes_from(segments: Iterable[Source], offset: int, enough: int) -> int:
    """Bytes of the batch that holds or follows `offset`, and of those behind it.

    They are not read, and counted until they are `enough`. Raises: OSError; CorruptBatch.
    """
    count = 0
    for segment in segments:
        count += segment.size - segment.position_after(offset)
        if count >= enough:
            break
    return count


def require_in_place(segment: Source, data: bytes, size: int, position: int) -> int | None:
    """Check the offsets of the batches in the first `size` bytes of `data`.

    Args:
        position: where `data` stands in the segment.

    Returns: the offset of what follows; None where that is damaged. Raises: CorruptBatch.
    """
    end = position + size
    if size and _is_damaged(segment, end):
        require_places(data, size, segment.base_offset, segment.end_offset)
        return None
    if end >= segment.size:
        following = segment.end_offset
    elif len(data) - size >= _BASE_OFFSET.size:
        following = _following(segment, data, size)
    else:
        following = _following(segment, segment.file.pread(_BASE_OFFSET.size, end))
    require_places(data, size, segment.base_offset, following)
    return following


def require_fit(segment: Source, first: BatchHeader, position: int) -> None:
    """Check that a batch ends within its segment and below the next. Raises: CorruptBatch."""
    end = position + first.size
    if end > segment.size:
        raise CorruptBatch(f"a batch of {first.size} bytes, {segment.size - position} are there")
    is_known = end < segment.size and not _is_damaged(segment, end)
    following = _following(segment, segment.file.pread(_BASE_OFFSET.size, end) if is_known else b"")
    if first.last_offset >= following:
        raise CorruptBatch(f"offset {first.base_offset} before {following}")


def _is_damaged(segment: Source, position: int) -> bool:
    """Return whether a damaged block begins at the end of a batch. Raises: OSError."""
    if position >= segment.size:
        return False
    return segment.intact_until(position - 1, position + 1) <= position


def _following(segment: Source, data: bytes, position: int = 0) -> int:
    """Return the offset of the batch that begins at `position` of `data`.

    Too few bytes are left at the end, and while a failed sync is being cut off.

    Raises: CorruptBatch.
    """
    if len(data) - position < _BASE_OFFSET.size:
        return segment.end_offset
    offset: int
    (offset,) = _BASE_OFFSET.unpack_from(data, position)
    if not segment.base_offset <= offset <= segment.end_offset:
        raise CorruptBatch(f"offset {offset}, and the last is {segment.end_offset - 1}")
    return offset


def _bytes(segment: Source, position: int, max_bytes: int, stop: int) -> bytes:
    """Up to `max_bytes` before `stop` or damage, and the offset of what follows, if it is there."""
    wanted = min(max(max_bytes, HEADER_BYTES), stop - position)
    if wanted < HEADER_BYTES:
        return b""
    wanted = segment.intact_until(position, position + wanted) - position
    return segment.file.pread(min(wanted + _BASE_OFFSET.size, segment.size - position), position)


def part_of(data: Buffer, first: int, end: int) -> Buffer:
    """Return a part of `data` that keeps at most twice its size in memory."""
    size = end - first
    if size == len(data):
        return data
    whole = data.obj if isinstance(data, memoryview) else data
    assert isinstance(whole, bytes)
    return bytes(data[first:end]) if len(whole) > 2 * size else memoryview(data)[first:end]


def _begins_with(data: bytes, offset: int) -> bool:
    """Whether a batch of this first offset stands there; where logs are cut, anything may."""
    if len(data) < HEADER_BYTES or data[_MAGIC_AT] != _MAGIC:
        return False
    return bool(_BASE_OFFSET.unpack_from(data)[0] == offset)


def _size_at(data: bytes, position: int) -> int:
    size = int(_LENGTH.unpack_from(data, position + _LENGTH_AT)[0]) + _OVERHEAD
    if size < HEADER_BYTES:
        raise CorruptBatch(f"a batch of {size} bytes at {position}")
    return size


def _last_whole(data: bytes, position: int, stop: int) -> int:
    """Where the last whole batch before `stop` ends, from the one at `position`."""
    while stop - position >= HEADER_BYTES and position + (size := _size_at(data, position)) <= stop:
        position += size
    return position


def _up_to(data: bytes, stop: int, last: int, end: int) -> tuple[list[BatchHeader], int, bool]:
    """The whole batches before `stop` up to the one that holds `last`, their size; if that is all.

    The first one also where it follows `last`: so it is told that nothing stands before.
    """
    found: list[BatchHeader] = []
    size = 0
    stop = min(stop, len(data))
    while stop - size >= HEADER_BYTES:
        header = read_header(data, size)
        if header.base_offset >= end or (found and header.base_offset > last):
            return found, size, True
        if header.size > stop - size:
            break
        found.append(header)
        size += header.size
        if header.last_offset >= last:
            return found, size, True
    return found, size, False
