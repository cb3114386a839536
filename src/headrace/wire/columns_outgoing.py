"""Arrow columns on their way to record batches: what both encoders take, and where batches end."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.wire.columns_numpy import SCHEMA, Ints, Octets

Int32s = npt.NDArray[np.int32]
Span = tuple[int, int]  # the first row of a batch, and the one behind its last

_US_PER_MS = 1000
_BITS_PER_VARINT_BYTE = 7


@dataclass(frozen=True, slots=True)
class Pieces:
    """A column of bytes: where in `data` each value starts, and its size, -1 for null."""

    data: Octets
    starts: Int32s | Ints
    sizes: Int32s


@dataclass(frozen=True, slots=True)
class Outgoing:
    """Records to encode; headers of row n are `headers_end[n]` to `headers_end[n + 1]`."""

    timestamps: Ints  # in ms
    keys: Pieces
    values: Pieces
    headers_end: Int32s
    names: Pieces
    contents: Pieces


def outgoing(rows: pa.RecordBatch, timestamp_ms: int) -> Outgoing:
    """The columns of `rows` that records have. Raises: as `columns.encode`."""
    headers_end, names, contents = _headers(_column(rows, "headers"))
    return Outgoing(
        timestamps=_timestamps(_column(rows, "timestamp"), timestamp_ms),
        keys=_pieces(_column(rows, "key")),
        values=_pieces(_column(rows, "value")),
        headers_end=headers_end,
        names=names,
        contents=contents,
    )


def spans(records: Outgoing, bytes_max: int) -> Iterator[tuple[Span, int]]:
    """The rows of one batch after the other, and how many bytes its records take at most.

    That is at most `bytes_max` in each, but where one record is larger and stands alone.
    """
    count = len(records.timestamps)
    total = np.zeros(count + 1, np.int64)
    np.cumsum(_sizes(records), out=total[1:])
    start = 0
    while start < count:
        reach = int(np.searchsorted(total, total[start] + bytes_max, side="right")) - 1
        stop = max(reach, start + 1)
        yield (start, stop), int(total[stop] - total[start])
        start = stop


def _sizes(records: Outgoing) -> Ints:
    """A bound for each record: its bytes, and each length as long as the longest of its kind."""
    times, names, contents = records.timestamps, records.names.sizes, records.contents.sizes
    if not len(times):
        return np.zeros(0, np.int64)
    sizes = np.maximum(records.keys.sizes, 0).astype(np.int64)
    sizes += np.maximum(records.values.sizes, 0)
    if len(names):
        in_headers = np.zeros(len(names) + 1, np.int64)
        np.cumsum(names + np.maximum(contents, 0).astype(np.int64), out=in_headers[1:])
        counts = np.diff(records.headers_end)
        sizes += np.diff(in_headers[records.headers_end])
        sizes += counts * (_varint_bytes(names.max()) + _varint_bytes(contents.max()))
        sizes += _varint_bytes(counts.max()) - 1
    number_of_headers = attributes = 1
    sizes += number_of_headers + attributes
    sizes += _varint_bytes(int(times.max()) - int(times.min())) + _varint_bytes(len(times))
    sizes += _varint_bytes(records.keys.sizes.max()) + _varint_bytes(records.values.sizes.max())
    return sizes + _varint_bytes(sizes.max())


def _varint_bytes(value: int) -> int:
    """How many bytes a zigzag varint of `value`, or less, takes."""
    bits = int(max(value, 0)).bit_length() + 1
    return -(-bits // _BITS_PER_VARINT_BYTE)


def _column(rows: pa.RecordBatch, name: str) -> pa.Array:
    index = rows.schema.get_field_index(name)
    wanted = SCHEMA.field(name).type
    if index < 0:
        return pa.nulls(rows.num_rows, wanted)
    column = rows.column(index)
    try:
        return column.cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ValueError(f"column {name} is {column.type}, not {wanted}: {error}") from error


def _timestamps(column: pa.Array, timestamp_ms: int) -> Ints:
    micros = column.cast(pa.int64())
    if not column.null_count:
        return np.asarray(micros.to_numpy() // _US_PER_MS)
    absent = column.is_null().to_numpy(zero_copy_only=False)
    known: Ints = micros.fill_null(0).to_numpy() // _US_PER_MS
    known[absent] = timestamp_ms
    return known


def _pieces(column: pa.Array) -> Pieces:
    _, offsets, data = column.buffers()
    if offsets is None or not len(column):
        bounds = np.zeros(len(column) + 1, np.int32)
    else:
        bounds = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    sizes = np.diff(bounds)
    if column.null_count:
        sizes[column.is_null().to_numpy(zero_copy_only=False)] = -1
    octets = np.zeros(1, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return Pieces(octets, bounds[:-1], sizes)


def _headers(column: pa.Array) -> tuple[Int32s, Pieces, Pieces]:
    # Flattened: without the spans that nulls may have, and without what a slice leaves out.
    items = column.flatten()
    if items.null_count or items.field("key").null_count:
        raise ValueError("a header without a name: Kafka has none, give every header a key")
    counts = column.value_lengths().fill_null(0).to_numpy()
    headers_end = np.zeros(len(column) + 1, np.int32)
    np.cumsum(counts, out=headers_end[1:])
    names = items.field("key").cast(pa.binary())
    return headers_end, _pieces(names), _pieces(items.field("value"))
