"""Some records of a batch: those before are passed over, those behind are not looked at.

A share fetch sends whole batches of which a member may have acquired a few records (KIP-932).
"""

from collections.abc import Iterator

from headrace.wire.batches import (
    VARINT_BYTES_MAX,
    BatchHeader,
    CorruptBatch,
    Record,
    decode_record,
    payload,
    read_varint,
)
from headrace.wire.primitives import Buffer


def excerpt(
    data: Buffer, position: int, header: BatchHeader, *, first: int, last: int
) -> Iterator[Record]:
    """The records of offsets `first` to `last` in the batch at `position`; no markers.

    Raises: `CorruptBatch` when the batch or one of these records is damaged.
    """
    if header.is_control:
        return
    body = bytes(payload(data, position, header))
    # Without holes, as before compaction, a record's place says its offset.
    is_whole = header.record_count == header.last_offset_delta + 1
    skipped = max(0, first - header.base_offset) if is_whole else 0
    previous, at = -1, 0
    try:
        for index in range(header.record_count):
            size, at = read_varint(body, at, VARINT_BYTES_MAX)
            end = at + size
            if size < 0 or end > len(body):
                raise CorruptBatch(f"a record of {size} bytes at {at} of the records")
            if index >= skipped:
                record, delta = decode_record(body, at, end, header)
                if not previous < delta <= header.last_offset_delta:
                    raise CorruptBatch(f"offset delta {delta} after {previous}")
                previous = delta
                if record.offset > last:
                    return
                if record.offset >= first:
                    yield record
            at = end
    except IndexError as error:
        raise CorruptBatch(f"records of offset {header.base_offset} end early") from error
