"""Deciding whether the end of a log is torn or corrupt.

A process that dies while it appends, or a power cut, leaves at most one kind of damage: bytes at
the end of the last segment that were never synced and that no valid batch follows. Such an end is
*torn*. Everything else is *corrupt*: damage below what is known to be on stable storage, damage
after an orderly stop, and damage with a valid batch behind it, which a write cut short cannot
leave. Cutting a corrupt log would drop records that somebody was promised.

Functions here read only, so that an offline check comes to the same result as a start.
"""

import contextlib
import errno
from collections.abc import Callable

from headrace.log.api import CorruptFileError, Disk
from headrace.wire import batches
from headrace.wire.batches import HEADER_BYTES, MAGIC, BatchHeader, CorruptBatch

_CHUNK_BYTES = 1 << 20
_MAGIC_AT = 16
_MAGIC_BYTE = bytes((MAGIC,))
_OFFSETS_AHEAD_MAX = (1 << 31) - 1  # as many as a segment can hold

Pread = Callable[[int, int], bytes]
"""Return up to `count` bytes at `position`."""


def require_torn(
    path: str,
    problem: str,
    position: int,
    size: int,
    *,
    expected: int,
    durable_size: int,
    clean: bool,
    pread: Pread,
) -> None:
    """Return where damage is the torn end of an unclean stop.

    Args:
        path: the segment file, for the error.
        problem: the damage, as a phrase.
        position: the first damaged byte.
        size: bytes of the file.
        expected: the offset that the batch at `position` should have.
        durable_size: bytes of the file that are known to be on stable storage.
        clean: the log was closed in order.

    Raises:
        CorruptFileError: it is anything else.
        OSError: the file cannot be read.
    """
    if position < durable_size:
        reason = f"{problem}, below the recovery point at byte {durable_size}"
    elif clean:
        reason = f"{problem}, although the broker stopped in order"
    elif (follower := next_batch(pread, position + 1, size, expected)) is not None:
        reason = f"{problem}, and a valid batch follows at byte {follower}"
    elif _is_misplaced(pread, position, size):
        reason = f"{problem}, although the batch there is whole"
    else:
        return
    raise CorruptFileError(path, reason, position=position)


def _is_misplaced(pread: Pread, position: int, size: int) -> bool:
    """Return whether a whole batch is at `position`, which no crash puts where it does not belong.

    Raises: OSError.
    """
    data = pread(HEADER_BYTES, position)
    try:
        header = batches.read_header(data, 0)
    except CorruptBatch:
        return False
    return header.size <= size - position and _is_valid(pread, position, header)


def next_batch(pread: Pread, position: int, size: int, expected: int) -> int | None:
    """Find the first valid batch at or after `position`.

    A batch counts when its header is sane, it fits into the file, its checksum is right, and its
    offset is at least `expected` and not further away than a segment can reach.

    Raises: OSError.
    """
    # Comparing four bytes is cheaper than decoding a header at each byte that could be a magic.
    high = {(expected >> 32).to_bytes(4, "big"), ((expected >> 32) + 1).to_bytes(4, "big")}
    while size - position >= HEADER_BYTES:
        data = pread(min(_CHUNK_BYTES, size - position), position)
        at = data.find(_MAGIC_BYTE, _MAGIC_AT)
        while at >= 0 and at - _MAGIC_AT + HEADER_BYTES <= len(data):
            begin = at - _MAGIC_AT
            if data[begin : begin + 4] in high:
                header = _plausible(data, begin, size - position, expected)
                if header is not None and _is_valid(pread, position + begin, header):
                    return position + begin
            at = data.find(_MAGIC_BYTE, at + 1)
        if len(data) < HEADER_BYTES:
            break
        position += len(data) - HEADER_BYTES + 1
    return None


def _plausible(data: bytes, at: int, room: int, expected: int) -> BatchHeader | None:
    """The header at `at` if it can be one of the log; `room` counts from the start of `data`."""
    try:
        header = batches.read_header(data, at)
    except CorruptBatch:
        return None
    ahead = header.base_offset - expected
    if header.size > room - at or not 0 <= ahead <= _OFFSETS_AHEAD_MAX:
        return None
    return header if header.last_offset_delta >= 0 else None


def _is_valid(pread: Pread, position: int, header: BatchHeader) -> bool:
    data = pread(header.size, position)
    if len(data) < header.size:
        return False
    try:
        batches.verify(data, 0, header)
    except CorruptBatch:
        return False
    return True


def torn_name(disk: Disk, path: str, position: int) -> str:
    """Choose the path of a copy of the bytes of `path` from `position` on."""
    name = f"{path}.torn.{position}"
    number = 1
    while disk.exists(name):
        number += 1
        name = f"{path}.torn.{position}.{number}"
    return name


def keep_copy(disk: Disk, path: str, position: int, size: int) -> str:
    """Copy the bytes of a file from `position` to `size` beside it, durably; return the path.

    Raises: OSError, and nothing has changed.
    """
    name = torn_name(disk, path, position)
    copy = disk.open(name)
    try:
        while position < size:
            data = disk.read(path, min(_CHUNK_BYTES, size - position), position)
            if not data:
                raise OSError(errno.EIO, f"the file ends at byte {position} of {size}", path)
            copy.append(data)
            position += len(data)
        copy.sync()
    except OSError:
        with contextlib.suppress(OSError):
            disk.remove(name)
        raise
    finally:
        copy.close()
    return name
