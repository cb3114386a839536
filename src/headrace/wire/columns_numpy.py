"""Record batches to Arrow columns by numpy: what runs where no compiled kernel is, and its oracle.

No Python object is made per record. All batches of a fetch are taken as one array of bytes; one
loop over the length of each record finds where records begin, then each varint field is decoded
for all records at once. Keys and values are pieces of that array: it is wrapped, without a copy, as
an Arrow array of the elements key, gap, value, gap, key ... and `take` copies out the wanted ones.
Every position is checked against the end of its record before a byte is read there, so hostile
bytes are refused and never followed.

Source: Kafka's DefaultRecord for the layout; Spark's KafkaRecordToRowConverter for the columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.wire import batches
from headrace.wire.batches import HEADER_BYTES, BatchHeader, CorruptBatch
from headrace.wire.compression import Codec
from headrace.wire.primitives import Buffer

Ints = npt.NDArray[np.int64]
Octets = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]

HEADER_LIST = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestamp_type", pa.int32()),
        pa.field("headers", HEADER_LIST),
    ]
)

_VARINT_BYTES_MAX = 5
_VARLONG_BYTES_MAX = 10
ARROW_BYTES_MAX = (1 << 31) - 1
DECOMPRESSED_BYTES_MAX = 512 << 20  # of all batches that are decoded at once
_US_PER_MS = 1000
_HEADER_ROUNDS_MAX = 256
_MS_MAX = ((1 << 63) - 1) // _US_PER_MS


def decode(
    data: Buffer, *, first: int, last: int, headers: bool, keys: bool, values: bool
) -> pa.RecordBatch:
    """As `columns.decode`."""
    wanted: list[tuple[int, BatchHeader]] = []
    position = 0
    for header in batches.headers(data):
        overlaps = header.base_offset <= last and header.last_offset >= first
        if overlaps and not header.is_control:
            wanted.append((position, header))
        position += header.size
    source, regions = _payloads(data, wanted)
    rows = _parse(source, regions, [header for _, header in wanted])
    rows = rows.where((rows.offset >= first) & (rows.offset <= last))
    if not len(rows.offset):
        return pa.RecordBatch.from_pylist([], schema=SCHEMA)
    nothing = np.full(len(rows.offset), -1)
    pairs = _pairs(
        source,
        rows.key_start,
        rows.key_size if keys else nothing,
        rows.value_start,
        rows.value_size if values else nothing,
    )
    too_far = (rows.timestamp > _MS_MAX) | (rows.timestamp < -_MS_MAX)
    micros = np.where(too_far, 0, rows.timestamp) * _US_PER_MS
    columns = [
        *pairs,
        pa.array(rows.offset),
        pa.array(micros, mask=too_far).cast(SCHEMA.field("timestamp").type),
        pa.array(rows.timestamp_type.astype(np.int32)),
        _headers(source, rows) if headers else pa.nulls(len(rows.offset), HEADER_LIST),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


@dataclass(frozen=True, slots=True)
class _Rows:
    """What is known of each record; starts and ends are positions in the array of bytes."""

    offset: Ints
    timestamp: Ints
    timestamp_type: Ints
    key_start: Ints
    key_size: Ints
    value_start: Ints
    value_size: Ints
    header_start: Ints
    header_count: Ints
    end: Ints

    def where(self, kept: Flags) -> "_Rows":
        if kept.all():
            return self
        return _Rows(*(getattr(self, field.name)[kept] for field in fields(self)))


def _payloads(
    data: Buffer, wanted: Sequence[tuple[int, BatchHeader]]
) -> tuple[Buffer, list[tuple[int, int]]]:
    """One buffer that holds the records of all wanted batches, and where in it each batch's are."""
    parts = []
    decompressed = 0
    for position, header in wanted:
        parts.append(batches.payload(data, position, header))
        decompressed += len(parts[-1]) if header.codec != Codec.NONE else 0
        refuse_large(decompressed)
    if all(header.codec == Codec.NONE for _, header in wanted):
        source = data
        starts = [position + HEADER_BYTES for position, _ in wanted]
    else:
        source = b"".join(parts)
        starts = [0, *np.cumsum([len(part) for part in parts]).tolist()]
    refuse_unaddressable(len(source))
    return source, [(start, start + len(part)) for start, part in zip(starts, parts, strict=False)]


def _parse(
    source: Buffer, regions: Sequence[tuple[int, int]], heads: Sequence[BatchHeader]
) -> _Rows:
    raw = np.frombuffer(source, np.uint8)
    position, end = _bodies(source, regions, heads)
    counts = np.array([head.record_count for head in heads], np.int64)

    def of_batch(values: Sequence[int]) -> Ints:
        return np.repeat(np.array(values, np.int64), counts)

    # The first byte of a record holds attributes, of which Kafka uses none.
    timestamp_delta, position = _varints(raw, position + 1, end, _VARLONG_BYTES_MAX)
    delta, position = _varints(raw, position, end, _VARINT_BYTES_MAX)
    key_start, key_size, position = _pieces(raw, position, end)
    value_start, value_size, position = _pieces(raw, position, end)
    header_count, position = _varints(raw, position, end, _VARINT_BYTES_MAX)
    _refuse((header_count < 0) | (header_count > (end - position) // 2), "number of headers")
    _refuse((header_count == 0) & (position != end), "record length")

    previous = np.empty_like(delta)
    previous[1:] = delta[:-1]
    previous[(np.cumsum(counts) - counts)[counts > 0]] = -1
    last_delta = of_batch([head.last_offset_delta for head in heads])
    _refuse((delta <= previous) | (delta > last_delta), "offset delta")

    base_timestamp = of_batch([head.base_timestamp for head in heads])
    timestamp = base_timestamp + timestamp_delta
    wrapped = ((base_timestamp ^ timestamp) & (timestamp_delta ^ timestamp)) < 0
    _refuse(wrapped, "timestamp")
    timestamp_type = of_batch([head.timestamp_type for head in heads])
    max_timestamp = of_batch([head.max_timestamp for head in heads])
    return _Rows(
        offset=of_batch([head.base_offset for head in heads]) + delta,
        timestamp=np.where(timestamp_type == 1, max_timestamp, timestamp),
        timestamp_type=timestamp_type,
        key_start=key_start,
        key_size=key_size,
        value_start=value_start,
        value_size=value_size,
        header_start=position,
        header_count=header_count,
        end=end,
    )


def _bodies(
    source: Buffer, regions: Sequence[tuple[int, int]], heads: Sequence[BatchHeader]
) -> tuple[Ints, Ints]:
    """Where the body of each record starts and ends: the one step that goes record by record."""
    starts: list[int] = []
    ends: list[int] = []
    for (position, stop), head in zip(regions, heads, strict=True):
        for _ in range(head.record_count):
            if position >= stop:
                raise CorruptBatch(f"records of offset {head.base_offset} end early")
            raw = source[position]
            position += 1
            if raw >= 0x80:
                raw, position = _long_length(source, position, stop, raw)
            if raw & 1:
                raise CorruptBatch(f"a negative length in the batch of offset {head.base_offset}")
            starts.append(position)
            position += raw >> 1
            ends.append(position)
        if position != stop:
            raise CorruptBatch(f"records of offset {head.base_offset} do not end with their batch")
    return np.array(starts, np.int64), np.array(ends, np.int64)


def _long_length(source: Buffer, position: int, stop: int, raw: int) -> tuple[int, int]:
    """The rest of a varint, still in zigzag, whose first byte was `raw`."""
    raw &= 0x7F
    for index in range(1, _VARINT_BYTES_MAX):
        if position >= stop:
            break
        byte = source[position]
        position += 1
        raw |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return raw, position
    raise CorruptBatch(f"a length without an end at {position} of the records")


def _refuse(wrong: Flags, what: str) -> None:
    if wrong.any():
        raise CorruptBatch(f"impossible {what} in record {int(np.argmax(wrong))} of the fetch")


def _varints(raw: Octets, position: Ints, end: Ints, bytes_max: int) -> tuple[Ints, Ints]:
    """The zigzag varint of each record at `position`, and the positions after it."""
    _refuse(position >= end, "varint")
    octet = raw[position]
    value = (octet & 0x7F).astype(np.uint64)
    following = position + 1
    longer = np.flatnonzero(octet >= 0x80)
    for index in range(1, bytes_max):
        if not len(longer):
            break
        _refuse(following[longer] >= end[longer], "varint")
        octet = raw[following[longer]]
        value[longer] |= (octet & 0x7F).astype(np.uint64) << np.uint64(7 * index)
        following[longer] += 1
        longer = longer[octet >= 0x80]
    if len(longer):
        raise CorruptBatch(f"a varint of more than {bytes_max} bytes")
    half = (value >> np.uint64(1)).view(np.int64)
    return half ^ -(value & np.uint64(1)).view(np.int64), following


def _pieces(raw: Octets, position: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
    """Start and size (-1 for null) of each field at `position`, and the positions after it."""
    size, start = _varints(raw, position, end, _VARINT_BYTES_MAX)
    _refuse((size < -1) | (size > end - start), "length")
    return start, size, start + np.maximum(size, 0)


def _pairs(
    source: Buffer, start: Ints, size: Ints, second_start: Ints, second_size: Ints
) -> tuple[pa.Array, pa.Array]:
    """Two binary arrays of pieces that lie in `source` alternately and in ascending order."""
    bounds = np.empty((len(start), 4), np.int32)
    bounds[:, 0] = start
    bounds[:, 1] = start + np.maximum(size, 0)
    bounds[:, 2] = second_start
    bounds[:, 3] = second_start + np.maximum(second_size, 0)
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(source)]
    pieces = pa.Array.from_buffers(pa.binary(), bounds.size - 1, buffers)
    places = np.arange(len(start), dtype=np.int64) * 4
    return (
        pieces.take(pa.array(places, mask=size < 0)),
        pieces.take(pa.array(places + 2, mask=second_size < 0)),
    )


def _headers(source: Buffer, rows: _Rows) -> pa.Array:
    """The list of headers of each row: round by round, the next header of all rows that have it."""
    raw = np.frombuffer(source, np.uint8)
    row = np.flatnonzero(rows.header_count > 0)
    if not len(row):
        return pa.nulls(len(rows.offset), HEADER_LIST)
    position, end, left = rows.header_start[row], rows.end[row], rows.header_count[row]
    found: list[tuple[Ints, ...]] = []
    for _ in range(_HEADER_ROUNDS_MAX):
        if not len(row):
            break
        name_start, name_size, position = _pieces(raw, position, end)
        _refuse(name_size < 0, "header without a name")
        value_start, value_size, position = _pieces(raw, position, end)
        found.append((row, name_start, name_size, value_start, value_size))
        left = left - 1
        _refuse((left == 0) & (position != end), "record length")
        more = left > 0
        row, position, end, left = row[more], position[more], end[more], left[more]
    if len(row):
        found.append(_many_headers(source, row, position, end, left))
    owner, *spans = (np.concatenate(column) for column in zip(*found, strict=True))
    # Rounds come one after the other, so a stable sort by row leaves each row's headers in order.
    order = np.argsort(owner, kind="stable")
    names, values = _pairs(source, *(span[order] for span in spans))
    offsets = np.concatenate(([0], np.cumsum(rows.header_count))).astype(np.int32)
    items = pa.StructArray.from_arrays(
        [header_names(names), values], fields=list(HEADER_LIST.value_type)
    )
    return pa.ListArray.from_arrays(
        pa.array(offsets), items, type=HEADER_LIST, mask=pa.array(rows.header_count == 0)
    )


def _many_headers(
    source: Buffer, row: Ints, position: Ints, end: Ints, left: Ints
) -> tuple[Ints, ...]:
    """The headers that are left of records with very many, one by one: a round costs more."""
    data = bytes(memoryview(source)[int(position.min()) : int(end.max())])
    base = int(position.min())
    columns: tuple[list[int], ...] = ([], [], [], [], [])
    try:
        for one, begin, stop, count in zip(row, position - base, end - base, left, strict=True):
            at = int(begin)
            for _ in range(int(count)):
                parts: list[int] = []
                for _ in range(2):
                    size, at = batches.read_varint(data, at, _VARINT_BYTES_MAX)
                    if size < -1 or size > stop - at:
                        raise CorruptBatch("impossible length of a header")
                    parts += (at + base, size)
                    at += max(size, 0)
                if parts[1] < 0:
                    raise CorruptBatch("impossible header without a name")
                for column, value in zip(columns, (int(one), *parts), strict=True):
                    column.append(value)
            if at != stop:
                raise CorruptBatch("impossible record length")
    except IndexError as error:
        raise CorruptBatch("headers end early") from error
    return tuple(np.array(column, np.int64) for column in columns)


def refuse_unaddressable(size: int) -> None:
    if size > ARROW_BYTES_MAX:
        raise OverflowError(f"{size} bytes of records at once, at most {ARROW_BYTES_MAX}")


def refuse_large(size: int) -> None:
    """Check, batch by batch, how much compressed batches hold together.

    Raises:
        OverflowError: it is more than `DECOMPRESSED_BYTES_MAX`.
    """
    if size > DECOMPRESSED_BYTES_MAX:
        raise OverflowError(f"batches of more than {DECOMPRESSED_BYTES_MAX} bytes, decompressed")


def header_names(names: pa.Array) -> pa.Array:
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        # Nobody checks names on their way in; Java's clients replace what is not UTF-8 too.
        return pa.array([name.decode(errors="replace") for name in names.to_pylist()], pa.string())
