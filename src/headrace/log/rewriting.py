"""One batch under compaction: what its records say, and the batch without some of them.

Records are cut out of the batch as bytes: their offsets are relative to a base that stays, so what
remains needs no new encoding. Only a batch that gets a delete horizon has its timestamps written
anew, because the horizon takes the place of the base timestamp (KIP-534).
Source: Kafka's MemoryRecords.filterTo, DefaultRecordBatch.writeEmptyHeader (4.3).
"""

from collections.abc import Iterator
from typing import NamedTuple

from headrace.wire.batches import (
    CODEC_MASK,
    DELETE_HORIZON,
    VARINT_BYTES_MAX,
    VARLONG_BYTES_MAX,
    BatchHeader,
    CorruptBatch,
    read_varint,
    seal,
    varint,
)
from headrace.wire.compression import compress


class Found(NamedTuple):
    """One record: where it stands in its batch's records, and what compaction asks of it.

    It goes from `start` to `end`; its length ends at `body`, its timestamp at `rest`.
    """

    start: int
    body: int
    rest: int
    end: int
    timestamp_delta: int
    offset: int
    key: bytes | None
    is_tombstone: bool


def scan(data: bytes, header: BatchHeader) -> Iterator[Found]:
    """The records in the decompressed `data` of a batch, values and headers passed over.

    Raises: CorruptBatch, possibly after the first ones.
    """
    base, position, previous = header.base_offset, 0, -1
    try:
        for _ in range(header.record_count):
            start = position
            size, body = read_varint(data, position, VARINT_BYTES_MAX)
            end = body + size
            if end > len(data) or size < 0:
                raise CorruptBatch(f"a record of {size} bytes at {start} of the records")
            # The first byte of a record holds attributes, of which Kafka uses none.
            timestamp_delta, rest = read_varint(data, body + 1, VARLONG_BYTES_MAX)
            delta, position = read_varint(data, rest, VARINT_BYTES_MAX)
            key_size, position = read_varint(data, position, VARINT_BYTES_MAX)
            key = None
            if key_size >= 0:
                key = data[position : position + key_size]
                position += key_size
            value_size, position = read_varint(data, position, VARINT_BYTES_MAX)
            if position > end or not previous < delta <= header.last_offset_delta:
                raise CorruptBatch(f"the record at {start} of the records is damaged")
            yield Found(start, body, rest, end, timestamp_delta, base + delta, key, value_size < 0)
            previous, position = delta, end
    except IndexError as error:
        raise CorruptBatch(f"records of offset {base} end early") from error
    if position != len(data):
        raise CorruptBatch(f"{len(data) - position} bytes behind the last record")


def without_records(header: BatchHeader) -> bytes:
    """The batch as an empty one, which keeps its offsets and its producer's sequence."""
    return seal(
        header._replace(
            attributes=header.attributes & ~(CODEC_MASK | DELETE_HORIZON),
            base_timestamp=header.max_timestamp,
            record_count=0,
        ),
        b"",
    )


def with_records(
    header: BatchHeader, kept: bytes, count: int, latest: int, *, horizon: int | None = None
) -> bytes:
    """The batch with `count` of its records, at least one.

    Args:
        kept: their bytes, decompressed; with a horizon those that `moved` gave.
        latest: the highest of their timestamps, as a distance to the base timestamp.
        horizon: time in ms from which its tombstones may go, for a batch that has none yet.
    """
    attributes, base = header.attributes, header.base_timestamp
    made = header._replace(
        attributes=attributes if horizon is None else attributes | DELETE_HORIZON,
        base_timestamp=base if horizon is None else horizon,
        max_timestamp=header.max_timestamp if header.timestamp_type else base + latest,
        record_count=count,
    )
    return seal(made, compress(header.codec, kept))


def moved(data: bytes, one: Found, shift: int) -> bytes:
    """The record with its timestamp counted from a base `shift` ms earlier."""
    attributes, delta = data[one.body : one.body + 1], varint(one.timestamp_delta + shift)
    rest = data[one.rest : one.end]
    return b"".join((varint(len(attributes) + len(delta) + len(rest)), attributes, delta, rest))
