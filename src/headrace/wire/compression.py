"""The codecs of record batches, by Kafka's numbers: gzip, snappy, lz4, zstd.

Source: Kafka's CompressionType; snappy comes in the block framing of xerial's snappy-java, which
every client reads, or raw; lz4 must be written as frames of independent blocks, as Kafka refuses
linked ones. All work is done by cramjam, which releases the GIL.

A few bytes can claim to be gigabytes, so decompression writes into a buffer that grows up to a
limit, and never beyond it.
"""

import mmap
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from importlib import import_module
from typing import Any

from headrace.wire.primitives import Buffer, Malformed

OUTPUT_BYTES_MAX = 256 << 20
_OUTPUT_BYTES_FIRST = 64 << 10
_FULL = "failed to write whole buffer"  # cramjam's word for an output that is too small

_XERIAL = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
_XERIAL_MAGIC = _XERIAL[:8]
_XERIAL_BLOCK_BYTES = 32 << 10
# A copy of 64 bytes takes at least 3: memory for more than that is not given on a claim alone.
_SNAPPY_RATIO_MAX = 22
_LENGTH = struct.Struct(">i")


class _Cramjam:
    """The library, imported at its first use: it takes 2 MB, and not every broker needs it."""

    def __getattr__(self, name: str) -> Any:
        globals()["cramjam"] = module = import_module("cramjam")
        return getattr(module, name)


cramjam: Any = _Cramjam()


class Codec(IntEnum):
    """The lowest three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_GZIP_LEVEL, _LZ4_LEVEL, _ZSTD_LEVEL = 6, 1, 3


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """`data` as the records of a batch with this codec; None is the level for speed."""
    match Codec(codec):
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            return bytes(cramjam.gzip.compress(data, level=_GZIP_LEVEL if level is None else level))
        case Codec.SNAPPY:
            return _snappy_compress(memoryview(data))
        case Codec.LZ4:
            frame = cramjam.lz4.Compressor(
                level=_LZ4_LEVEL if level is None else level,
                content_checksum=False,
                block_linked=False,
            )
            frame.compress(bytes(data))
            return bytes(frame.finish())
        case Codec.ZSTD:
            return bytes(cramjam.zstd.compress(data, level=_ZSTD_LEVEL if level is None else level))


def decompress(codec: int, data: Buffer, *, limit: int = OUTPUT_BYTES_MAX) -> memoryview:
    """The bytes that `compress` was given.

    Raises: `Malformed` on an unknown codec, damaged input, or an output of more than `limit` bytes.
    """
    match codec:
        case Codec.NONE:
            return memoryview(data)
        case Codec.GZIP:
            return _grow(cramjam.gzip.decompress_into, data, limit)
        case Codec.SNAPPY:
            return _snappy_decompress(memoryview(data), limit)
        case Codec.LZ4:
            return _grow(cramjam.lz4.decompress_into, data, limit)
        case Codec.ZSTD:
            return _grow(cramjam.zstd.decompress_into, data, limit)
        case _:
            raise Malformed(f"codec {codec} is not one of 0 to {Codec.ZSTD}")


@contextmanager
def scratch(size: int) -> Iterator[memoryview]:
    """Provide `size` bytes for the time of a block; pages are taken as they are written to."""
    pages = mmap.mmap(-1, size)
    output = memoryview(pages)
    try:
        yield output
    finally:
        # The traceback of an error may refer to a part of it: then the memory goes with the error.
        with suppress(BufferError):
            output.release()
            pages.close()


class OutputFull(Malformed):
    """Compressed data holds more than the buffer that it was to be decompressed to."""


def decompress_to(codec: int, data: Buffer, output: memoryview) -> int:
    """Decompress to the start of `output` and never beyond it; no memory grows with a claim.

    Returns:
        The number of bytes written.

    Raises:
        OutputFull: `output` is too small.
        Malformed: the codec is unknown or compresses nothing, or `data` is damaged.
    """
    try:
        match codec:
            case Codec.GZIP:
                return int(cramjam.gzip.decompress_into(data, output))
            case Codec.SNAPPY:
                return _snappy_into(memoryview(data), output)
            case Codec.LZ4:
                return int(cramjam.lz4.decompress_into(data, output))
            case Codec.ZSTD:
                return int(cramjam.zstd.decompress_into(data, output))
            case _:
                raise Malformed(f"codec {codec} is not one of 1 to {Codec.ZSTD}")
    except cramjam.DecompressionError as error:
        if _FULL in str(error):
            raise OutputFull(f"compressed records grow beyond {len(output)} bytes") from error
        raise Malformed(f"compressed records: {error}") from error


def decompress_into(codec: int, data: Buffer, output: memoryview) -> int | None:
    """Decompress to the start of `output`; returns the number of bytes there.

    None when they do not fit or `data` is damaged: `decompress` tells which.
    """
    try:
        return decompress_to(codec, data, output)
    except Malformed:
        return None


def _grow(decompress_into: Any, data: Buffer, limit: int) -> memoryview:
    size = min(max(_OUTPUT_BYTES_FIRST, 4 * len(data)), limit)
    while True:
        output = bytearray(size)
        try:
            return memoryview(output)[: decompress_into(data, output)]
        except cramjam.DecompressionError as error:
            if _FULL not in str(error):
                raise Malformed(f"compressed records: {error}") from error
            if size == limit:
                raise Malformed(f"compressed records grow beyond {limit} bytes") from error
        size = min(4 * size, limit)


def _snappy_compress(data: memoryview) -> bytes:
    parts = [_XERIAL]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (_LENGTH.pack(len(block)), block)
    return b"".join(parts)


def _snappy_decompress(data: memoryview, limit: int) -> memoryview:
    if data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return memoryview(_snappy_block(data, limit))
    output = bytearray()
    for block in _xerial_blocks(data):
        output += _snappy_block(block, limit - len(output))
    return memoryview(output)


def _snappy_into(data: memoryview, output: memoryview) -> int:
    xerial = data[: len(_XERIAL_MAGIC)] == _XERIAL_MAGIC
    position = 0
    for block in _xerial_blocks(data) if xerial else (data,):
        size = _snappy_size(block)
        if size > len(output) - position:
            raise OutputFull(f"compressed records grow beyond {len(output)} bytes")
        if size:
            cramjam.snappy.decompress_raw_into(block, output[position : position + size])
        position += size
    return position


def _snappy_size(block: memoryview) -> int:
    """Return how many bytes a block holds. Raises: Malformed, on an impossible claim too."""
    size = int(cramjam.snappy.decompress_raw_len(block))
    if size > len(block) * _SNAPPY_RATIO_MAX:
        raise Malformed(f"compressed records: {len(block)} bytes of snappy claim to be {size}")
    return size


def _xerial_blocks(data: memoryview) -> Iterator[memoryview]:
    position = len(_XERIAL)
    while position < len(data):
        start = position + _LENGTH.size
        if start > len(data):
            raise Malformed("compressed records: a snappy block without its length")
        (size,) = _LENGTH.unpack_from(data, position)
        if not 0 < size <= len(data) - start:
            raise Malformed(f"compressed records: a snappy block of {size} bytes")
        position = start + size
        yield data[start:position]


def _snappy_block(block: memoryview, limit: int) -> bytearray:
    try:
        size = _snappy_size(block)
        if size > limit:
            raise Malformed(f"compressed records grow by {size} bytes beyond their limit")
        output = bytearray(size)
        cramjam.snappy.decompress_raw_into(block, output)
    except cramjam.DecompressionError as error:
        raise Malformed(f"compressed records: {error}") from error
    return output
