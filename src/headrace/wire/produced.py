"""What producers send: one whole batch a partition, validated by its header, given a time.

Sources: LogValidator and DefaultRecordBatch (Kafka 4.3).
"""

import struct

from headrace.wire.batches import (
    CRC,
    CRC_AT,
    CRC_FROM,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    MAGIC,
    BatchHeader,
    read_header,
    verify,
)
from headrace.wire.checksums import crc32c
from headrace.wire.compression import Codec

_ATTRIBUTES = struct.Struct(">h")
_MAX_TIMESTAMP = struct.Struct(">q")
_MAX_TIMESTAMP_AT = 35


class InvalidRecord(Exception):
    """An intact batch, or several, that nobody may produce; Kafka's INVALID_RECORD (87)."""


def check(data: memoryview) -> BatchHeader:
    """Validate what a producer sent for one partition: exactly one batch. No record is parsed.

    Raises: `CorruptBatch` when bytes are damaged; `InvalidRecord` when they are as sent, but break
    a rule of Produce.
    Source: LogValidator.validateBatch, ProduceRequest.validateRecords (4.3).
    """
    if len(data) < HEADER_BYTES:
        raise InvalidRecord(f"{len(data)} bytes are no record batch")
    magic = data[CRC_AT - 1]
    if magic != MAGIC:
        raise InvalidRecord(f"magic {magic}: only record batches of magic {MAGIC} are accepted")
    header = read_header(data)
    if header.size != len(data):
        raise InvalidRecord(f"a batch of {header.size} bytes in {len(data)}: one whole batch")
    verify(data, 0, header)
    if header.base_offset != 0:
        raise InvalidRecord(f"base offset {header.base_offset}: producers send 0")
    if header.record_count <= 0 or header.record_count != header.last_offset_delta + 1:
        raise InvalidRecord(
            f"{header.record_count} records, last offset delta {header.last_offset_delta}"
        )
    if header.codec > Codec.ZSTD:
        raise InvalidRecord(f"codec {header.codec} is not one of 0 to {Codec.ZSTD}")
    if header.is_control:
        raise InvalidRecord("clients may not write control records")
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        raise InvalidRecord(f"producer {header.producer_id} without epoch or sequence")
    return header


def stamp_time(data: memoryview, header: BatchHeader, timestamp: int) -> BatchHeader:
    """Give all records of the batch at the start of `data` the time at which a log takes them.

    Returns the header as it is then; the checksum covers the time and is made anew.
    Source: DefaultRecordBatch.setMaxTimestamp.
    """
    attributes = header.attributes | LOG_APPEND_TIME
    _ATTRIBUTES.pack_into(data, CRC_FROM, attributes)
    _MAX_TIMESTAMP.pack_into(data, _MAX_TIMESTAMP_AT, timestamp)
    crc = crc32c(data[CRC_FROM : header.size])
    CRC.pack_into(data, CRC_AT, crc)
    return header._replace(attributes=attributes, max_timestamp=timestamp, crc=crc)
