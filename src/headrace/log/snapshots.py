"""Producer snapshots: what a partition remembers of its producers at one offset, in a file.

`<offset>.snapshot` holds the state before the batch at that offset, so that opening a log need not
walk what came before. The format is Kafka's, version 1 (`kafka-dump-log` reads it): a checksum of
what follows it, and an entry for a batch of a producer. Kafka keeps one entry a producer, its last
batch; here up to five stand, oldest first, of which Kafka's own reader takes the last. Behind the
entries, where Kafka's reader stops, are four bytes: the CRC-32C of the path of the file, a newline
and the entries, so that the snapshot of another partition or offset does not verify. Those of a
format 0 folder lack them.
Source: ProducerSnapshot.json, ProducerStateManager.readSnapshot (4.3).
"""

import logging
import struct
from collections.abc import Collection, Container, Iterable
from typing import NamedTuple

from headrace.log.api import Disk
from headrace.wire.checksums import crc32c

log = logging.getLogger("headrace.log")

SUFFIX = ".snapshot"
_VERSION = 1
_HEAD = struct.Struct(">hIi")
_CRC_FROM = 6
_ENTRY = struct.Struct(">qhiqiqiq")
_SEAL = struct.Struct(">I")
_NO_COORDINATOR = -1
_NO_TRANSACTION = -1


class Entry(NamedTuple):
    """One batch of a producer; times in wall ms."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int


def encoded(entries: Iterable[Entry], path: str) -> bytes:
    """Return the bytes of a snapshot."""
    rows = [_ENTRY.pack(*one, _NO_COORDINATOR, _NO_TRANSACTION) for one in entries]
    body = b"".join(rows)
    data = bytearray(_HEAD.pack(_VERSION, 0, len(rows)) + body + _seal(path, body))
    struct.pack_into(">I", data, 2, crc32c(memoryview(data)[_CRC_FROM:]))
    return bytes(data)


def decoded(data: bytes, path: str | None = None) -> list[Entry] | None:
    """Return the entries of a snapshot; None when the bytes are no intact one.

    Args:
        path: the path of the file, to verify that it is the snapshot of this partition and offset.
    """
    if len(data) < _HEAD.size:
        return None
    version, crc, count = _HEAD.unpack_from(data)
    if version != _VERSION or crc != crc32c(memoryview(data)[_CRC_FROM:]):
        return None
    end = _HEAD.size + count * _ENTRY.size
    body, seal = data[_HEAD.size : end], data[end:]
    if count < 0 or len(data) < end or len(seal) not in {0, _SEAL.size}:
        return None
    if path is not None and seal and seal != _seal(path, body):
        return None
    return [Entry(*row[:6]) for row in _ENTRY.iter_unpack(body)]


def _seal(path: str, body: bytes) -> bytes:
    return _SEAL.pack(crc32c(body, crc32c(path.encode() + b"\n")))


def path_of(folder: str, offset: int) -> str:
    return f"{folder}/{offset:020d}{SUFFIX}"


def offsets(names: Iterable[str]) -> list[int]:
    """The offsets of the snapshots among the names of a folder, ascending."""
    stems = (name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX))
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def newest(disk: Disk, folder: str, candidates: Iterable[int]) -> tuple[int, list[Entry]]:
    """The latest of these snapshots that is intact: its offset and entries; 0 and none without.

    Raises: OSError.
    """
    for offset in sorted(candidates, reverse=True):
        path = path_of(folder, offset)
        entries = decoded(disk.read(path), path)
        if entries is not None:
            return offset, entries
        log.warning("%s: does not verify; rebuilt from the log", path)
    return 0, []


def save(
    disk: Disk, folder: str, offset: int, entries: Collection[Entry], *, durable: bool
) -> None:
    """Write the snapshot of an offset. Raises: OSError."""
    # Without producers nothing is lost with it; appends would wait for the disk in vain.
    is_needed = durable and bool(entries)
    path = path_of(folder, offset)
    disk.write(path, encoded(entries, path), durable=is_needed)


def prune(disk: Disk, folder: str, kept: Container[int]) -> None:
    """Remove the snapshots of other offsets than `kept`. Raises: OSError."""
    for offset in offsets(disk.list(folder)):
        if offset not in kept:
            disk.remove(path_of(folder, offset))
