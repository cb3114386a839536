"""What a closed segment and its indexes must be: sizes, checksums, a digest of each block.

`<base>.checksums` is a derived file: where it is missing or does not fit, it is rebuilt from the
batches, or done without. It lets an opening trust a segment after one look at its last batch, and
finds damage that the checksum of a batch does not cover, which are its offset and size.

Batches are digested in blocks: a block begins with the first batch that begins in another 256 KiB
of the file than the batch before it. The digest of a block is the CRC-32C over the first 21 bytes
of the headers of its batches; these hold offset, size and the checksum of the rest.

Layout, big-endian: magic `HRSC`, version (int16), CRC-32C of the path of the file, a newline and
all that follows (uint32); then `_FIELDS`; then for each block its position and digest (uint32).
"""

import struct
import sys
from array import array
from bisect import bisect_right
from itertools import zip_longest
from typing import NamedTuple

from headrace.log.api import Disk
from headrace.wire import batches
from headrace.wire.batches import MAGIC, BatchHeader, CorruptBatch
from headrace.wire.checksums import crc32c

SUFFIX = ".checksums"
BLOCK_BITS = 18
_MAGIC = b"HRSC"
_VERSION = 1
_HEAD = struct.Struct(">4shI")
_FIELDS = struct.Struct(">qqqqqqIIIIII")
_BATCH_HEAD = struct.Struct(">qiibI")
_LENGTH_LESS = 12
_NO_BLOCK = -1
_DIGEST_BITS = 32
_DIGEST_MAX = (1 << _DIGEST_BITS) - 1
MOVED = "offsets or sizes of batches are not those that were written"


class BlockDigests:
    """The blocks of a segment, in order; `add` extends the last one.

    `entries` has the position and the digest of each, as in the file: 32 bits of each in a number.
    """

    __slots__ = ("_block", "entries")

    def __init__(self) -> None:
        self.entries = array("Q")
        self._block = _NO_BLOCK

    def __len__(self) -> int:
        return len(self.entries)

    def add(self, position: int, base_offset: int, epoch: int, header: BatchHeader) -> None:
        """Add a batch at `position` with this offset and leader epoch, the rest from `header`."""
        head = _BATCH_HEAD.pack(base_offset, header.size - _LENGTH_LESS, epoch, MAGIC, header.crc)
        block = position >> BLOCK_BITS
        if block != self._block:
            self._block = block
            self.entries.append(position << _DIGEST_BITS | crc32c(head))
        else:
            entry = self.entries[-1]
            digest = entry & _DIGEST_MAX
            self.entries[-1] = entry - digest + crc32c(head, digest)

    def differing(self, found: "BlockDigests") -> int | None:
        """Return where the first block begins that is another one in `found`; None without any."""
        for one, other in zip_longest(self.entries, found.entries):
            if one != other:
                return int((other if one is None else one) >> _DIGEST_BITS)
        return None

    def copied(self) -> "BlockDigests":
        """Return an independent copy, to be extended."""
        copy = BlockDigests()
        copy.entries = self.entries[:]
        if copy.entries:
            copy._block = copy.entries[-1] >> _DIGEST_BITS >> BLOCK_BITS
        return copy


class Summary(NamedTuple):
    """The fixed part of the file; sizes in bytes, timestamps in ms, -1 for none."""

    base_offset: int
    end_offset: int
    size: int
    max_timestamp: int
    max_timestamp_offset: int
    last_position: int
    last_crc: int
    index_size: int
    index_crc: int
    timeindex_size: int
    timeindex_crc: int


class Checksums(NamedTuple):
    """A whole file."""

    summary: Summary
    blocks: BlockDigests


def save(disk: Disk, path: str, summary: Summary, blocks: BlockDigests) -> None:
    """Write `path`.checksums; not synced, as it can be rebuilt. Raises: OSError."""
    rows = blocks.entries[:]
    if sys.byteorder == "little":
        rows.byteswap()
    body = _FIELDS.pack(*summary, len(blocks)) + rows.tobytes()
    head = _HEAD.pack(_MAGIC, _VERSION, _checksum(path, body))
    disk.write(path + SUFFIX, head + body, durable=False)


def load(disk: Disk, path: str) -> Checksums | None:
    """Read `path`.checksums; None when it is missing or does not verify. Raises: OSError."""
    if not disk.exists(path + SUFFIX):
        return None
    data = disk.read(path + SUFFIX)
    if len(data) < _HEAD.size + _FIELDS.size:
        return None
    magic, version, crc = _HEAD.unpack_from(data)
    body = data[_HEAD.size :]
    if (magic, version) != (_MAGIC, _VERSION) or crc != _checksum(path, body):
        return None
    *fields, count = _FIELDS.unpack_from(body)
    if len(body) != _FIELDS.size + 8 * count:
        return None
    blocks = BlockDigests()
    blocks.entries.frombytes(body[_FIELDS.size :])
    if sys.byteorder == "little":
        blocks.entries.byteswap()
    return Checksums(Summary(*fields), blocks.copied())


class CorruptBlock(CorruptBatch):
    """A block is damaged.

    Args:
        position: the first damaged batch, in bytes from the start of the block; 0 where only the
            digest of the whole block is wrong.
    """

    def __init__(self, problem: str, position: int) -> None:
        super().__init__(problem)
        self.position = position


class Unverified:
    """The blocks of a segment that nobody verified yet in this process.

    Args:
        size: bytes of the segment that the blocks cover.
    """

    def __init__(self, blocks: BlockDigests, size: int) -> None:
        self._positions = array("I", (entry >> _DIGEST_BITS for entry in blocks.entries))
        self._digests = array("I", (entry & _DIGEST_MAX for entry in blocks.entries))
        self._size = size
        self._is_verified = bytearray(len(blocks))
        self.left = len(blocks)

    def of(self, start: int, end: int) -> list[tuple[int, int, int]]:
        """Return start, end and digest of the unverified blocks that hold bytes of [start, end)."""
        found = []
        number = max(bisect_right(self._positions, start) - 1, 0)
        while number < len(self._positions) and self._positions[number] < end:
            if not self._is_verified[number]:
                found.append((*self._bounds(number), self._digests[number]))
            number += 1
        return found

    def verified(self, start: int) -> None:
        """Count the block that begins at `start` as verified."""
        number = bisect_right(self._positions, start) - 1
        self.left -= not self._is_verified[number]
        self._is_verified[number] = 1

    def _bounds(self, number: int) -> tuple[int, int]:
        last = number + 1 == len(self._positions)
        return self._positions[number], self._size if last else self._positions[number + 1]


def verify_block(data: bytes, digest: int) -> None:
    """Verify the batches of a whole block. Raises: CorruptBlock."""
    position, end_offset, found = 0, 0, 0
    try:
        while position < len(data):
            header = batches.read_header(data, position)
            if header.size > len(data) - position:
                raise CorruptBatch(f"the batch of offset {header.base_offset} has a wrong size")
            if header.base_offset < end_offset:
                raise CorruptBatch(f"offset {header.base_offset} after {end_offset - 1}")
            batches.verify(data, position, header)
            found = crc32c(data[position : position + _BATCH_HEAD.size], found)
            position, end_offset = position + header.size, header.last_offset + 1
    except CorruptBatch as error:
        raise CorruptBlock(str(error), position) from error
    if found != digest:
        raise CorruptBlock(MOVED, 0)


def file_checksum(disk: Disk, path: str) -> tuple[int, int]:
    """Return size and CRC-32C of a file, zeros where it does not exist. Raises: OSError."""
    if not disk.exists(path):
        return 0, 0
    data = disk.read(path)
    return len(data), int(crc32c(data))


def _checksum(path: str, body: bytes) -> int:
    return int(crc32c(body, crc32c(path.encode() + b"\n")))
