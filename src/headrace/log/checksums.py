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
MOVED = "offsets or sizes of batches are not those that were written"


class BlockDigests:
    """Positions and digests of the blocks of a segment, in order; `add` extends the last one."""

    __slots__ = ("_block", "digests", "positions")

    def __init__(self) -> None:
        self.positions = array("I")
        self.digests = array("I")
        self._block = _NO_BLOCK

    def __len__(self) -> int:
        return len(self.positions)

    def add(self, position: int, base_offset: int, epoch: int, header: BatchHeader) -> None:
        """Add a batch at `position` with this offset and leader epoch, the rest from `header`."""
        head = _BATCH_HEAD.pack(base_offset, header.size - _LENGTH_LESS, epoch, MAGIC, header.crc)
        block = position >> BLOCK_BITS
        if block != self._block:
            self._block = block
            self.positions.append(position)
            self.digests.append(crc32c(head))
        else:
            self.digests[-1] = crc32c(head, self.digests[-1])

    def differing(self, found: "BlockDigests") -> int | None:
        """Return where the first block begins that is another one in `found`; None without any."""
        ours = zip(self.positions, self.digests, strict=True)
        theirs = zip(found.positions, found.digests, strict=True)
        pairs = zip_longest(ours, theirs)
        return next((one[0] if one else other[0] for one, other in pairs if one != other), None)

    def copied(self) -> "BlockDigests":
        """Return an independent copy, to be extended."""
        copy = BlockDigests()
        copy.positions, copy.digests = self.positions[:], self.digests[:]
        if copy.positions:
            copy._block = copy.positions[-1] >> BLOCK_BITS
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
    rows = array("I", bytes(8 * len(blocks)))
    rows[0::2], rows[1::2] = blocks.positions, blocks.digests
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
    rows = array("I", body[_FIELDS.size :])
    if sys.byteorder == "little":
        rows.byteswap()
    blocks = BlockDigests()
    blocks.positions, blocks.digests = rows[0::2], rows[1::2]
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
        self._positions, self._digests, self._size = blocks.positions[:], blocks.digests[:], size
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
