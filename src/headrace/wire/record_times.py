"""Timestamps of the records of one stored batch, found without an object a record.

Works for whatever a batch holds: one that a producer filled with millions of headers costs no more
than its decompression, and memory is bounded by `compression.OUTPUT_BYTES_MAX`.
"""

from array import array
from typing import NamedTuple

from headrace.wire import kernel
from headrace.wire.batches import (
    HEADER_BYTES,
    VARINT_BYTES_MAX,
    VARLONG_BYTES_MAX,
    BatchHeader,
    CorruptBatch,
    read_varint,
    require_possible,
)
from headrace.wire.compression import OUTPUT_BYTES_MAX, Codec, decompress_to, scratch
from headrace.wire.primitives import Buffer, Malformed

_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1
_kernel = kernel.load()


class InBatch(NamedTuple):
    """What was found in a batch.

    Args:
        first: offset and timestamp of the first record that is late enough; None without one.
        highest: the highest timestamp of the records up to that one; None without any.
    """

    first: tuple[int, int] | None
    highest: int | None


def find_time(data: Buffer, header: BatchHeader, wanted: int, least: int) -> InBatch:
    """Find the first record of offset `least` or above with a timestamp of `wanted` or later.

    Args:
        data: the batch, and nothing else; its checksum was verified.
        header: its header.
        wanted: a timestamp in ms.
        least: an offset.

    Raises:
        CorruptBatch: a producer made the batch so.
    """
    require_possible(header)
    stored = memoryview(data)[HEADER_BYTES : header.size]
    if header.codec == Codec.NONE:
        return _find(stored, len(stored), header, wanted, least)
    try:
        with scratch(OUTPUT_BYTES_MAX) as output:
            size = decompress_to(header.codec, stored, output)
            return _find(output, size, header, wanted, least)
    except CorruptBatch:
        raise
    except Malformed as error:
        raise CorruptBatch(f"batch of offset {header.base_offset}: {error}") from error


def _find(body: memoryview, size: int, header: BatchHeader, wanted: int, least: int) -> InBatch:
    is_stamped = bool(header.timestamp_type)  # then the header has the timestamp of all records
    if is_stamped and header.max_timestamp < wanted:
        wanted = _INT64_MAX
    delta, timestamp, highest = _search(
        body, size, header, _INT64_MIN if is_stamped else wanted, max(least - header.base_offset, 0)
    )
    if is_stamped and highest is not None:
        timestamp = highest = header.max_timestamp
    is_late = delta >= 0 and timestamp >= wanted
    return InBatch((header.base_offset + delta, timestamp) if is_late else None, highest)


def _search(
    body: memoryview, size: int, header: BatchHeader, wanted: int, least: int
) -> tuple[int, int, int | None]:
    """Return offset delta (-1 without one) and timestamp of a record, and the highest timestamp."""
    if _kernel is None:
        return _search_plain(bytes(body[:size]), header, wanted, least)
    found = array("q", bytes(32))
    refusal = _kernel.find_time(
        body, 0, size, header.record_count, header.last_offset_delta, header.base_timestamp,
        wanted, min(least, _INT64_MAX), found,
    )  # fmt: skip
    if refusal:
        what = kernel.REFUSALS[refusal]
        raise CorruptBatch(f"impossible {what} in the batch of offset {header.base_offset}")
    return found[0], found[1], found[2] if found[3] else None


def _search_plain(
    body: bytes, header: BatchHeader, wanted: int, least: int
) -> tuple[int, int, int | None]:
    """As `_search`, in plain Python."""
    position, previous, highest = 0, -1, None
    try:
        for _ in range(header.record_count):
            size, position = read_varint(body, position, VARINT_BYTES_MAX)
            end = position + size
            elapsed, position = read_varint(body, position + 1, VARLONG_BYTES_MAX)
            delta, position = read_varint(body, position, VARINT_BYTES_MAX)
            timestamp = header.base_timestamp + elapsed
            if not position <= end <= len(body) or not _INT64_MIN <= timestamp <= _INT64_MAX:
                raise CorruptBatch(f"a damaged record in the batch of offset {header.base_offset}")
            if not previous < delta <= header.last_offset_delta:
                raise CorruptBatch(f"offset delta {delta} after {previous}")
            if delta >= least:
                highest = timestamp if highest is None else max(highest, timestamp)
                if timestamp >= wanted:
                    return delta, timestamp, highest
            previous, position = delta, end
    except IndexError as error:
        raise CorruptBatch(f"records of offset {header.base_offset} end early") from error
    if position != len(body):
        raise CorruptBatch(f"{len(body) - position} bytes behind the last record")
    return -1, _INT64_MIN, highest
