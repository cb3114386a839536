"""What producers send: one whole batch a partition, validated by its header and its records.

A pass over the records makes no object of any: the compiled kernel does it, or plain Python where
there is none, with the same outcome. Cost: some 7 ns a record compiled.
Sources: LogValidator, DefaultRecordBatch and DefaultRecord (Kafka 4.3).
"""

import struct
import zlib
from array import array
from collections.abc import Sequence

from headrace.wire import kernel
from headrace.wire.batches import (
    CODEC_MASK,
    CONTROL,
    CRC,
    CRC_AT,
    CRC_FROM,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    MAGIC,
    OVERHEAD_BYTES,
    RECORD_BYTES_MIN,
    TRANSACTIONAL,
    VARINT_BYTES_MAX,
    VARLONG_BYTES_MAX,
    BatchHeader,
    CorruptBatch,
    read_header,
    read_varint,
    require_possible,
)
from headrace.wire.checksums import crc32c
from headrace.wire.compression import Codec
from headrace.wire.primitives import Buffer, Malformed

WRONG_RECORDS_MAX = 100
KEYLESS, UNTIMELY = 1, 2  # as the kernel numbers them

_ATTRIBUTES = struct.Struct(">h")
_MAX_TIMESTAMP = struct.Struct(">q")
_MAX_TIMESTAMP_AT = 35
_KNOWN_ATTRIBUTES = CODEC_MASK | LOG_APPEND_TIME | TRANSACTIONAL | CONTROL
_NO_TIMESTAMP = -1
_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1

_GZIP_BITS = 31  # for zlib: a header of gzip's
_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_FLAGS_AT = len(_LZ4_MAGIC)
_LZ4_CONTENT_CHECKSUM, _LZ4_CONTENT_SIZE, _LZ4_BLOCK_CHECKSUM = 0x04, 0x08, 0x10
_LZ4_KNOWN = 0xE3  # version, independence of blocks, a reserved bit, dictionary
_LZ4_INDEPENDENT = 0x60  # version 1, and no more of these than that
_LZ4_BLOCK = struct.Struct("<I")
_LZ4_UNCOMPRESSED = 1 << 31

_kernel = kernel.load()


class InvalidRecord(Exception):
    """An intact batch, or several, that nobody may produce; Kafka's INVALID_RECORD (87)."""


class TooManyHeaders(InvalidRecord):
    """A batch whose records carry more headers than are accepted."""


class UnknownCodec(InvalidRecord):
    """A batch compressed by a codec without a meaning; UNSUPPORTED_COMPRESSION_TYPE (76)."""


# What a topic demands of records: the lowest and the highest timestamp in ms that they may have, if
# they have one; whether every record needs a key; most headers of all records of a batch together.
Rules = tuple[int, int, bool, int]


# The highest timestamp, and the index and the fault (KEYLESS, UNTIMELY) of the records that break a
# rule, the first 100 of them.
Inspection = tuple[int, Sequence[tuple[int, int]]]


def check(data: memoryview) -> BatchHeader:
    """Validate the header and the checksum of exactly one batch; no record is parsed.

    Raises:
        CorruptBatch: bytes are damaged.
        InvalidRecord: they are as sent, but break a rule of Produce.

    Source: LogValidator.validateBatch, ProduceRequest.validateRecords (4.3).
    """
    if len(data) < HEADER_BYTES:
        raise InvalidRecord(f"{len(data)} bytes are no record batch")
    magic = data[CRC_AT - 1]
    if magic != MAGIC:
        raise InvalidRecord(f"magic {magic}: only record batches of magic {MAGIC} are accepted")
    # Names are faster than attributes; this is run for every batch.
    (base_offset, length, leader_epoch, _, crc, attributes, last_delta, base_timestamp,
     max_timestamp, producer, epoch, first, count) = HEADER.unpack_from(data)  # fmt: skip
    size = length + OVERHEAD_BYTES
    if size != len(data):
        read_header(data)  # which refuses a size without room for the header
        raise InvalidRecord(f"a batch of {size} bytes in {len(data)}: one whole batch")
    if crc32c(data[CRC_FROM:]) != crc:
        raise CorruptBatch("the checksum of the batch is wrong")
    if base_offset != 0:
        raise InvalidRecord(f"base offset {base_offset}: producers send 0")
    if count <= 0 or count != last_delta + 1:
        raise InvalidRecord(f"{count} records, last offset delta {last_delta}")
    if count > size:
        _require_possible(read_header(data))
    if attributes > LOG_APPEND_TIME | Codec.ZSTD or attributes < 0:
        _check_attributes(attributes)
    if attributes & CODEC_MASK > Codec.ZSTD:
        raise UnknownCodec(f"codec {attributes & CODEC_MASK} is not one of 0 to {Codec.ZSTD}")
    if producer >= 0 and (first < 0 or epoch < 0):
        raise InvalidRecord(f"producer {producer} without epoch or sequence")
    fields = (base_offset, size, leader_epoch, magic, crc, attributes, last_delta, base_timestamp,
              max_timestamp, producer, epoch, first, count)  # fmt: skip
    return tuple.__new__(BatchHeader, fields)  # `_make` is a function in Python


def _check_attributes(attributes: int) -> None:
    if attributes & CODEC_MASK > Codec.ZSTD:
        return  # its own error
    if attributes & CONTROL:
        raise InvalidRecord("clients may not write control records")
    if attributes & ~_KNOWN_ATTRIBUTES:
        raise InvalidRecord(f"attributes {attributes:#06x}: unknown bits must be 0")


def _require_possible(header: BatchHeader) -> None:
    try:
        require_possible(header)
    except CorruptBatch as error:
        raise InvalidRecord(str(error)) from error


def inspect(body: Buffer, start: int, stop: int, header: BatchHeader, rules: Rules) -> Inspection:
    """Validate the decompressed records `body[start:stop]` of a batch that `check` accepted.

    Every record lies inside the batch with all of its fields, offset deltas are 0, 1, 2, ..., and
    nothing follows the last record.

    Raises:
        InvalidRecord: a record is malformed, or there are not as many as the header claims.
    """
    count = header.record_count
    if count > (stop - start) // RECORD_BYTES_MIN:
        raise InvalidRecord(f"{count} records claimed in {stop - start} bytes")
    if _kernel is None:
        return _inspect(bytes(memoryview(body)[start:stop]), header, rules)
    base_timestamp = header.base_timestamp
    highest = _kernel.highest_timestamp(body, start, stop, count, base_timestamp, *rules)
    if highest != _INT64_MIN:
        return highest, ()
    wrong = array("q", bytes(16 * WRONG_RECORDS_MAX))
    scan = _kernel.Scan(base_timestamp, *rules, wrong)
    _kernel.check(body, start, stop, count, scan)
    if scan.refusal:
        raise _refusal(scan.refusal, scan.parsed, count, rules)
    end = 2 * min(scan.noted, WRONG_RECORDS_MAX)
    return scan.max_timestamp, tuple(zip(wrong[:end:2], wrong[1:end:2], strict=True))


def _refusal(number: int, parsed: int, count: int, rules: Rules) -> InvalidRecord:
    if kernel.REFUSALS[number] == "total of headers":
        return TooManyHeaders(f"more than {rules[3]} headers in one batch")
    if parsed == count:
        return InvalidRecord(f"bytes behind the last of {count} records")
    return InvalidRecord(f"record {parsed} of {count}: impossible {kernel.REFUSALS[number]}")


def _inspect(body: bytes, header: BatchHeader, rules: Rules) -> Inspection:
    """As `inspect`, in plain Python."""
    earliest, highest, is_keyed, headers_left = rules
    count, position, parsed = header.record_count, 0, 0
    latest, wrong = _INT64_MIN, list[tuple[int, int]]()
    try:
        for parsed in range(count):
            size, position = read_varint(body, position, VARINT_BYTES_MAX)
            end = position + size
            if size < 0 or end > len(body):
                raise InvalidRecord(f"record {parsed} of {count}: impossible length")
            timestamp, is_keyless, headers = _inspect_record(body, position, end, parsed, header)
            headers_left -= headers
            if headers_left < 0:
                raise TooManyHeaders(f"more than {rules[3]} headers in one batch")
            latest = max(latest, timestamp)
            if is_keyed and is_keyless:
                wrong.append((parsed, KEYLESS))
            elif timestamp != _NO_TIMESTAMP and not earliest <= timestamp <= highest:
                wrong.append((parsed, UNTIMELY))
            position = end
    except (IndexError, CorruptBatch) as error:
        raise InvalidRecord(f"record {parsed} of {count}: {error}") from error
    if position != len(body):
        raise InvalidRecord(f"bytes behind the last of {count} records")
    return latest, wrong[:WRONG_RECORDS_MAX]


def _inspect_record(
    body: bytes, position: int, end: int, index: int, header: BatchHeader
) -> tuple[int, bool, int]:
    """Return the timestamp, whether the key is missing, and the number of headers of a record."""
    elapsed, position = read_varint(body, position + 1, VARLONG_BYTES_MAX)
    delta, position = read_varint(body, position, VARINT_BYTES_MAX)
    key_size, position = _skip_field(body, position, end)
    _, position = _skip_field(body, position, end)
    count, position = read_varint(body, position, VARINT_BYTES_MAX)
    timestamp = header.base_timestamp + elapsed
    if not 0 <= count <= (end - position) // 2:
        raise CorruptBatch(f"{count} headers in {end - position} bytes")
    if delta != index:
        raise CorruptBatch(f"offset delta {delta}")
    if not _INT64_MIN <= timestamp <= _INT64_MAX:
        raise CorruptBatch(f"timestamp {timestamp} is no 64-bit number")
    for _ in range(count):
        size, position = _skip_field(body, position, end)
        if size < 0:
            raise CorruptBatch("header without a name")
        _, position = _skip_field(body, position, end)
    if position != end:
        raise CorruptBatch("impossible record length")
    return timestamp, key_size < 0, count


def _skip_field(body: bytes, position: int, end: int) -> tuple[int, int]:
    """Return the size of a field, -1 for null, and the position behind it."""
    size, position = read_varint(body, position, VARINT_BYTES_MAX)
    if size < -1 or position + max(size, 0) > end:
        raise CorruptBatch(f"impossible length {size}")
    return size, position + max(size, 0)


def require_readable(codec: int, stored: memoryview, size: int) -> None:
    """Require of compressed records what every stock client can read: one frame and no more.

    Of several LZ4 frames Kafka's decoder reads the first and librdkafka none; Kafka's refuses
    blocks that depend on each other. Of several gzip members librdkafka reads the first. Several
    zstd frames are read by all.

    Args:
        stored: the records as they were sent; they decompress.
        size: how many bytes they decompress to, below 2**32.

    Raises: Malformed.

    Sources: Lz4BlockInputStream.readHeader, readBlock (4.3); rd_kafka_lz4_decompress,
        rd_gz_decompress (librdkafka).
    """
    match codec:
        case Codec.LZ4:
            _require_lz4(stored)
        case Codec.GZIP:
            _require_gzip(stored, size)


def _require_gzip(stored: memoryview, size: int) -> None:
    # The last four bytes are the size of the last member alone, so that all before it are empty
    # where it is `size`; and the first is not where it holds a byte.
    is_one = int.from_bytes(stored[-4:], "little") == size
    try:
        is_one = is_one and bool(zlib.decompressobj(_GZIP_BITS).decompress(stored, 1))
    except zlib.error as error:
        raise Malformed(f"compressed records: {error}") from error
    if not is_one:
        raise Malformed("compressed records: they must be one gzip member")


def _require_lz4(stored: memoryview) -> None:
    if len(stored) < _LZ4_FLAGS_AT + 1 or stored[:_LZ4_FLAGS_AT] != _LZ4_MAGIC:
        raise Malformed("compressed records: they must be one LZ4 frame")
    flags = stored[_LZ4_FLAGS_AT]
    if flags & _LZ4_KNOWN != _LZ4_INDEPENDENT:
        raise Malformed(
            f"compressed records: an LZ4 frame with flags {flags:#04x}: it must be one of"
            " independent blocks, without a dictionary"
        )
    start = 15 if flags & _LZ4_CONTENT_SIZE else 7
    trailer = 4 if flags & _LZ4_BLOCK_CHECKSUM else 0
    # A kernel built from before this was added lacks it.
    end = getattr(_kernel, "lz4_end", _lz4_end)(stored, start, trailer)
    if end < 0 or end + (4 if flags & _LZ4_CONTENT_CHECKSUM else 0) != len(stored):
        raise Malformed("compressed records: they must be one LZ4 frame")


def _lz4_end(data: memoryview, position: int, trailer: int) -> int:
    """As that of the kernel."""
    while position + _LZ4_BLOCK.size <= len(data):
        size = _LZ4_BLOCK.unpack_from(data, position)[0] & ~_LZ4_UNCOMPRESSED
        position += _LZ4_BLOCK.size
        if size == 0:
            return position
        position += size + trailer
    return -1


def stamp_time(data: memoryview, header: BatchHeader, timestamp: int) -> BatchHeader:
    """Give all records of the batch at the start of `data` the time at which a log takes them.

    Returns the header as it is then; the checksum covers the time and is made anew.
    Source: DefaultRecordBatch.setMaxTimestamp.
    """
    attributes = header.attributes | LOG_APPEND_TIME
    return _with_max_timestamp(data, header._replace(attributes=attributes), timestamp)


def correct_max_timestamp(data: memoryview, header: BatchHeader, timestamp: int) -> BatchHeader:
    """Write the highest timestamp of the records into the batch at the start of `data`.

    Kafka does so for every batch, because searches by time trust the header.
    """
    return _with_max_timestamp(data, header, timestamp)


def _with_max_timestamp(data: memoryview, header: BatchHeader, timestamp: int) -> BatchHeader:
    _ATTRIBUTES.pack_into(data, CRC_FROM, header.attributes)
    _MAX_TIMESTAMP.pack_into(data, _MAX_TIMESTAMP_AT, timestamp)
    crc = crc32c(data[CRC_FROM : header.size])
    CRC.pack_into(data, CRC_AT, crc)
    return header._replace(max_timestamp=timestamp, crc=crc)
