"""Record batches, magic 2 (KIP-98): header, checksum, and records where a caller wants them.

A batch is a 61-byte header and its records, which one codec may have compressed together. The
checksum covers everything from the attributes on, so base offset and leader epoch can be patched in
place. Produced batches are validated (`produced.py`) and searched by time (`record_times.py`)
without an object a record; journals and dead letters build and read records (`build`, `records`);
`wire/columns.py` decodes in bulk.
Source: Kafka's RecordBatch schema, DefaultRecordBatch and DefaultRecord.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from headrace.wire import kernel
from headrace.wire.checksums import crc32c
from headrace.wire.compression import OUTPUT_BYTES_MAX, Codec, compress, decompress
from headrace.wire.primitives import Buffer, Malformed

HEADER = struct.Struct(">qiibIhiqqqhii")
_PLACE = struct.Struct(">qii")  # base offset, length, leader epoch
_OFFSET = struct.Struct(">q")
_OFFSET_LENGTH = struct.Struct(">qi")
_LAST_DELTA = struct.Struct(">i")
_LAST_DELTA_AT = 23
CRC = struct.Struct(">I")
CRC_AT = 17
CRC_FROM = 21
MAGIC = 2
OVERHEAD_BYTES = 12  # base offset and length, which the length does not count
HEADER_BYTES = HEADER.size

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40

_UINT64 = (1 << 64) - 1
_INT64 = range(-(1 << 63), 1 << 63)
VARINT_BYTES_MAX = 5
RECORD_BYTES_MIN = 7
RECORD_HEADERS_MAX = 1_000_000  # that are made objects of
VARLONG_BYTES_MAX = 10


class CorruptBatch(Malformed):
    """Bytes that are no intact record batch; Kafka's CORRUPT_MESSAGE (2)."""


class BatchHeader(NamedTuple):
    """The 61-byte header of one record batch; fields as in Kafka's RecordBatch schema.

    `size` is the whole batch in bytes, the 12 bytes of base offset and length included.
    """

    base_offset: int
    size: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def timestamp_type(self) -> int:
        """0 when producers set the timestamps (CreateTime), 1 when the log did (LogAppendTime)."""
        return 1 if self.attributes & LOG_APPEND_TIME else 0

    @property
    def is_control(self) -> bool:
        """Whether the batch holds markers of transactions, which are no records of a user."""
        return bool(self.attributes & CONTROL)

    @property
    def delete_horizon(self) -> int | None:
        """When compaction may remove the batch's tombstones (KIP-534); it is the base timestamp."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON else None


class Record(NamedTuple):
    """One record; `timestamp` in ms, -1 for none."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def read_header(data: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`; neither checksum nor records are looked at.

    Raises: `CorruptBatch` when no header of magic 2 stands there.
    """
    if len(data) - position < HEADER_BYTES:
        raise CorruptBatch(f"{len(data) - position} bytes are no batch header")
    base_offset, length, epoch, magic, *rest = HEADER.unpack_from(data, position)
    if magic != MAGIC:
        raise CorruptBatch(f"magic {magic}, not {MAGIC}")
    if length < HEADER_BYTES - OVERHEAD_BYTES:
        raise CorruptBatch(f"a batch of {length} bytes has no room for its header")
    return BatchHeader(base_offset, length + OVERHEAD_BYTES, epoch, magic, *rest)


def headers(data: Buffer) -> list[BatchHeader]:
    """Headers of consecutive batches; a last one that is not whole is left out, as in a fetch.

    Raises: `CorruptBatch` where a batch must begin and none does.
    """
    found = []
    position = 0
    while len(data) - position >= HEADER_BYTES:
        header = read_header(data, position)
        if header.size > len(data) - position:
            break
        found.append(header)
        position += header.size
    return found


def require_places(data: bytes, stop: int, first: int, end: int) -> None:
    """Check that the offsets of the batches in `data[:stop]` ascend, from `first` to below `end`.

    Raises: CorruptBatch: no checksum of a batch covers its offset.
    """
    position = _misplaced(data, stop, first, end) if stop else -1
    if position >= 0:
        offset = _OFFSET.unpack_from(data, position)[0] if stop - position >= _OFFSET.size else -1
        raise CorruptBatch(f"a batch of offset {offset} stands in another's place")


def _misplaced_plainly(data: bytes, stop: int, first: int, end: int) -> int:
    position = 0
    if stop > len(data):
        return 0
    while position < stop:
        if stop - position < HEADER_BYTES:
            return position
        base_offset, length = _OFFSET_LENGTH.unpack_from(data, position)
        (last_delta,) = _LAST_DELTA.unpack_from(data, position + _LAST_DELTA_AT)
        size = length + OVERHEAD_BYTES
        if not HEADER_BYTES <= size <= stop - position or last_delta < 0:
            return position
        if not first <= base_offset < end - last_delta:
            return position
        first = base_offset + last_delta + 1
        position += size
    return -1


_decoder = kernel.load()
_misplaced = _misplaced_plainly if _decoder is None else _decoder.misplaced


def verify(data: Buffer, position: int, header: BatchHeader) -> None:
    """Raises: `CorruptBatch` when the checksum of the batch at `position` is wrong."""
    covered = memoryview(data)[position + CRC_FROM : position + header.size]
    if crc32c(covered) != header.crc:
        raise CorruptBatch(f"checksum of the batch of offset {header.base_offset} is wrong")


def stamp(
    data: bytearray | memoryview, position: int, size: int, base_offset: int, leader_epoch: int
) -> None:
    """Give the batch of `size` bytes at `position` its place; the checksum covers none of it."""
    _PLACE.pack_into(data, position, base_offset, size - OVERHEAD_BYTES, leader_epoch)


def payload(data: Buffer, position: int, header: BatchHeader) -> memoryview:
    """The records of the batch at `position`, decompressed, once its checksum was found right.

    Raises: `CorruptBatch`, also on offsets that are none, which the checksum does not cover.
    """
    verify(data, position, header)
    require_possible(header)
    stored = memoryview(data)[position + HEADER_BYTES : position + header.size]
    try:
        return decompress(header.codec, stored)
    except Malformed as error:
        raise CorruptBatch(f"batch of offset {header.base_offset}: {error}") from error


def require_possible(header: BatchHeader) -> None:
    """Check offsets and count, as far as a header alone shows that they are impossible.

    Raises:
        CorruptBatch: they are.
    """
    if header.base_offset < 0 or header.last_offset not in _INT64:
        raise CorruptBatch(f"base offset {header.base_offset} is no offset")
    is_plain = header.codec == Codec.NONE
    room = header.size - HEADER_BYTES if is_plain else OUTPUT_BYTES_MAX
    if not 0 <= header.record_count <= room // RECORD_BYTES_MIN:
        raise CorruptBatch(
            f"the batch of offset {header.base_offset} claims {header.record_count} records"
            f" in {header.size} bytes"
        )


def build(
    records: Iterable[Record],
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    compression: int = Codec.NONE,
    attributes: int = 0,
) -> bytes:
    """One batch of at least one record; offsets count from `base_offset`, whatever theirs say.

    `attributes` are the bits beside the codec.
    """
    given = list(records)
    assert given, "a batch holds at least one record"
    base_timestamp = given[0].timestamp
    return build_encoded(
        _encode_all(given, base_timestamp),
        record_count=len(given),
        base_timestamp=base_timestamp,
        max_timestamp=max([one.timestamp for one in given]),
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        compression=compression,
        attributes=attributes,
    )


def build_encoded(
    body: Buffer,
    *,
    record_count: int,
    base_timestamp: int,
    max_timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    compression: int = Codec.NONE,
    attributes: int = 0,
) -> bytes:
    """The batch of `record_count` records that `body` holds encoded, not compressed yet."""
    header = BatchHeader(
        base_offset, 0, leader_epoch, MAGIC, 0, attributes | compression, record_count - 1,
        base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence, record_count,
    )  # fmt: skip
    return seal(header, body if compression == Codec.NONE else compress(compression, body))


def seal(header: BatchHeader, stored: Buffer) -> bytes:
    """A batch of this header and of records as they are stored; size and checksum are made anew."""
    return bytes(_sealed(header, stored)[0])


def _sealed(header: BatchHeader, stored: Buffer) -> tuple[bytearray, BatchHeader]:
    data = bytearray(HEADER_BYTES)
    data += stored
    size = len(data)
    base_offset, _, leader_epoch, _, _, *fields = header
    HEADER.pack_into(data, 0, base_offset, size - OVERHEAD_BYTES, leader_epoch, MAGIC, 0, *fields)
    crc = crc32c(memoryview(data)[CRC_FROM:])
    CRC.pack_into(data, CRC_AT, crc)
    return data, BatchHeader(base_offset, size, leader_epoch, MAGIC, crc, *fields)


def build_with_header(records: Sequence[Record]) -> tuple[bytearray, BatchHeader]:
    """One batch of at least one record, from offset 0 and without compression, and its header."""
    base_timestamp, count = records[0].timestamp, len(records)
    header = BatchHeader(
        0, 0, -1, MAGIC, 0, Codec.NONE, count - 1,
        base_timestamp, max([one.timestamp for one in records]), -1, -1, -1, count,
    )  # fmt: skip
    if count > _COMPILED_MAX:
        return _sealed(header, _encode_in_slices(records, base_timestamp))
    return _sealed(header, _encode_all(list(records), base_timestamp))


def can_share_batch(first: Record, record: Record) -> bool:
    """Return whether a batch that begins with `first` can hold the timestamp of another record."""
    return record.timestamp - first.timestamp in _INT64


def records(data: Buffer) -> Iterator[Record]:
    """The records of one or many batches, control batches and a partial last one left out.

    Raises: `CorruptBatch` at the first batch that is damaged.
    """
    position = 0
    for header in headers(data):
        if not header.is_control:
            yield from _decode(bytes(payload(data, position, header)), header)
        position += header.size


def entries(data: Buffer) -> Iterator[tuple[int, bytes | None, bytes | None]]:
    """Offset, key and value of what `records` returns, in a third of its time.

    For journals, which are replayed at every start; times and headers are passed over unread.
    Raises: `CorruptBatch`, as `records`.
    """
    position = 0
    for header in headers(data):
        if not header.is_control:
            yield from _entries(bytes(payload(data, position, header)), header)
        position += header.size


def _entries(data: bytes, header: BatchHeader) -> Iterator[tuple[int, bytes | None, bytes | None]]:
    base, position = header.base_offset, 0
    try:
        for _ in range(header.record_count):
            size, position = read_varint(data, position, VARINT_BYTES_MAX)
            end = position + size
            if size < 0 or end > len(data):
                raise CorruptBatch(f"a record of {size} bytes at {position} of the records")
            at = position + 1  # behind the attributes
            while data[at] > 0x7F:
                at += 1
            delta, at = read_varint(data, at + 1, VARINT_BYTES_MAX)
            key, at = _read_field(data, at, end)
            value, at = _read_field(data, at, end)
            yield base + delta, key, value
            position = end
    except IndexError as error:
        raise CorruptBatch(f"records of offset {base} end early") from error
    if position != len(data):
        raise CorruptBatch(f"{len(data) - position} bytes behind the last record")


def varint(value: int) -> bytes:
    """A number as records have it: zigzag, seven bits a byte."""
    if 0 <= value < _SMALL_END:
        return _SMALL[value]
    return _varint(value)


def _varint(value: int) -> bytes:
    raw = (value << 1) ^ (value >> 63)
    encoded = bytearray()
    while raw > 0x7F:
        encoded.append((raw & 0x7F) | 0x80)
        raw >>= 7
    encoded.append(raw)
    return bytes(encoded)


_SMALL_END = 512
_SMALL = [_varint(value) for value in range(_SMALL_END)]
_NULL = b"\x01"
_COMPILED_MAX = 10_000  # records that are encoded without a pause for other threads: 10 ms


def _field(value: bytes | None) -> bytes:
    if value is None:
        return _NULL
    data = value if type(value) is bytes else bytes(value)
    if len(data) != len(value):
        raise TypeError("a field of a record is not bytes")
    return varint(len(data)) + data


def _encode_all_plainly(given: list[Record], base_timestamp: int) -> bytes:
    return b"".join([_encode(one, index, base_timestamp) for index, one in enumerate(given)])


def _encode_in_slices(given: Sequence[Record], base_timestamp: int) -> bytearray:
    """Encode records with pauses for other threads, which the compiled kernel does not have."""
    out = bytearray()
    for start in range(0, len(given), _COMPILED_MAX):
        part = enumerate(given[start : start + _COMPILED_MAX], start)
        out += b"".join([_encode(record, index, base_timestamp) for index, record in part])
    return out


def _encode_all_compiled(given: list[Record], base_timestamp: int) -> bytearray:
    assert _kernel is not None
    out = bytearray(_kernel.records_size(given, base_timestamp))
    _kernel.put_records(given, base_timestamp, out)
    return out


_kernel = kernel.load("_codec_encode")
_encode_all = _encode_all_plainly if _kernel is None else _encode_all_compiled


def _encode(record: Record, offset_delta: int, base_timestamp: int) -> bytes:
    _, timestamp, key, value, headers = record
    elapsed = timestamp - base_timestamp
    if elapsed not in _INT64:
        raise OverflowError(f"a timestamp is {elapsed} ms after that of the batch")
    fields = [_field(name.encode()) + _field(content) for name, content in headers]
    body = b"".join(
        (
            b"\x00", varint(elapsed), varint(offset_delta), _field(key), _field(value),
            varint(len(headers)), *fields,
        )
    )  # fmt: skip
    return varint(len(body)) + body


def read_varint(data: bytes, position: int, bytes_max: int) -> tuple[int, int]:
    """A zigzag varint and the position after it; IndexError where the bytes end."""
    byte = data[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    following = data[position + 1]
    if following < 0x80:
        raw = byte & 0x7F | following << 7
        return (raw >> 1) ^ -(raw & 1), position + 2
    raw = 0
    for index in range(bytes_max):
        byte = data[position + index]
        raw |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            raw &= _UINT64
            return (raw >> 1) ^ -(raw & 1), position + index + 1
    raise CorruptBatch(f"a varint of more than {bytes_max} bytes at {position} of the records")


def _read_field(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    size, start = data[position], position + 1
    if size < 0x80 and not size & 1:  # nearly always
        size >>= 1
    else:
        size, start = read_varint(data, position, VARINT_BYTES_MAX)
    if size < 0:
        if size == -1:
            return None, start
        raise CorruptBatch(f"a length of {size} at {position} of the records")
    stop = start + size
    if stop > end:
        raise CorruptBatch(f"a field of {size} bytes leaves its record at {position}")
    return data[start:stop], stop


def _decode(data: bytes, header: BatchHeader) -> Iterator[Record]:
    position = 0
    previous = -1
    try:
        for _ in range(header.record_count):
            size, position = read_varint(data, position, VARINT_BYTES_MAX)
            end = position + size
            if size < 0 or end > len(data):
                raise CorruptBatch(f"a record of {size} bytes at {position} of the records")
            record, delta = decode_record(data, position, end, header)
            if not previous < delta <= header.last_offset_delta:
                raise CorruptBatch(f"offset delta {delta} after {previous}")
            yield record
            previous, position = delta, end
    except IndexError as error:
        raise CorruptBatch(f"records of offset {header.base_offset} end early") from error
    if position != len(data):
        raise CorruptBatch(f"{len(data) - position} bytes behind the last record")


def decode_record(data: bytes, position: int, end: int, header: BatchHeader) -> tuple[Record, int]:
    """The record behind its size, and its offset delta. Raises: `CorruptBatch`; IndexError."""
    # The first byte of a record holds attributes, of which Kafka uses none.
    timestamp_delta, position = read_varint(data, position + 1, VARLONG_BYTES_MAX)
    delta, position = read_varint(data, position, VARINT_BYTES_MAX)
    key, position = _read_field(data, position, end)
    value, position = _read_field(data, position, end)
    count, position = read_varint(data, position, VARINT_BYTES_MAX)
    if not 0 <= count <= (end - position) // 2:
        raise CorruptBatch(f"{count} headers in {end - position} bytes")
    if count > RECORD_HEADERS_MAX:
        raise CorruptBatch(f"{count} headers in one record; {RECORD_HEADERS_MAX} are decoded")
    found: Sequence[tuple[str, bytes | None]] = ()
    if count:
        found = []
        for _ in range(count):
            name, position = _read_field(data, position, end)
            if name is None:
                raise CorruptBatch(f"a header without a name at {position} of the records")
            content, position = _read_field(data, position, end)
            # Nobody checks names on their way in; Java's clients replace what is not UTF-8 too.
            found.append((name.decode(errors="replace"), content))
    if position != end:
        raise CorruptBatch(f"a record ends at {position} of the records, not at {end}")
    timestamp = header.base_timestamp + timestamp_delta
    if timestamp not in _INT64:
        raise CorruptBatch(f"timestamp {timestamp} is no 64-bit number")
    if header.timestamp_type:
        timestamp = header.max_timestamp
    return Record(header.base_offset + delta, timestamp, key, value, tuple(found)), delta
