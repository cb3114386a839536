"""Record batches to Arrow columns by the compiled kernel: buffers for it, and columns of them.

The kernel gets room for all that the bytes can hold, from Arrow's pool, which keeps its pages: new
ones from the system cost several times the copying. What was not used is given back.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.wire import _codec, _codec_encode, batches
from headrace.wire.batches import HEADER_BYTES, CorruptBatch
from headrace.wire.checksums import crc32c
from headrace.wire.columns_numpy import (
    HEADER_LIST,
    SCHEMA,
    header_names,
    refuse_large,
    refuse_unaddressable,
)
from headrace.wire.columns_outgoing import Outgoing, Span
from headrace.wire.compression import OUTPUT_BYTES_MAX, Codec, decompress_into
from headrace.wire.kernel import LAYOUT, REFUSALS
from headrace.wire.primitives import Buffer

Table = npt.NDArray[np.int64]

# A build from before the source was updated may be lying there: numpy is slower, but right.
COMPILED = all(
    half.COMPILED and getattr(half, "LAYOUT", None) == LAYOUT for half in (_codec, _codec_encode)
)
_TABLE_COLUMNS = 11
_CRC_FROM = 21
_RECORD_BYTES_MIN = 7
_GROWTH = 4  # decompressed bytes that are expected of a compressed one
_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1


def decode(
    data: Buffer, *, first: int, last: int, headers: bool, keys: bool, values: bool
) -> pa.RecordBatch:
    """As `columns.decode`."""
    view = memoryview(data)
    table = _survey(view, max(first, _INT64_MIN), min(last, _INT64_MAX))
    source = _payloads(view, table)
    refuse_unaddressable(len(source))
    if not len(table):
        return pa.RecordBatch.from_pylist([], schema=SCHEMA)
    sizes = table[:, 1] - table[:, 0]
    # What a batch counts is not believed, so that nobody makes this allocate what is not there.
    rows_max = int(np.minimum(table[:, 10], sizes // _RECORD_BYTES_MIN).sum())
    bytes_max = int(sizes.sum())
    pairs = [_Bytes(rows_max, bytes_max, wanted=wanted) for wanted in (keys, values)]
    numbers = _Numbers(rows_max, first, last, headers=headers)
    _codec.decode(source, table.data, len(table), numbers.rows, *(one.column for one in pairs))
    numbers.check()
    if not numbers.rows.count:
        return pa.RecordBatch.from_pylist([], schema=SCHEMA)
    columns = [
        *(one.array(numbers.rows.count) for one in pairs),
        *numbers.arrays(),
        numbers.headers(source) if headers else pa.nulls(numbers.rows.count, HEADER_LIST),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def bodies(
    records: Outgoing, spans: Iterable[tuple[Span, int]]
) -> Iterator[tuple[Span, memoryview]]:
    """The encoded records of each span; a body lasts until the next is asked for."""
    keys, values, names, contents = (
        _codec_encode.Pieces(one.data.data, one.starts.data, one.sizes.data)
        for one in (records.keys, records.values, records.names, records.contents)
    )
    timestamps, headers_end = records.timestamps.data, records.headers_end.data
    room = _room(0)
    for (start, stop), bytes_max in spans:
        if bytes_max > len(room):
            room = _room(bytes_max)
        size = _codec_encode.encode(
            start, stop, timestamps, keys, values, headers_end, names, contents, room
        )
        yield (start, stop), room[:size]


def _survey(view: memoryview, first: int, last: int) -> Table:
    count = _codec.frames(view)
    if count < 0:
        batches.headers(view)
        raise AssertionError("two readers of headers disagree")
    table = np.empty((count, _TABLE_COLUMNS), np.int64)
    return table[: _codec.survey(view, count, first, last, table.data)]


def _payloads(view: memoryview, table: Table) -> memoryview:
    """One buffer that holds the records of all batches; `table` now says where each one's are."""
    stored = table[:, :5].tolist()
    for position, size, crc, _, impossible in stored:
        if impossible or crc32c(view[position + _CRC_FROM : position + size]) != crc:
            _payload(view, position)
            raise AssertionError("two readers of a batch disagree")
    if not table[:, 3].any():
        table[:, 1] += table[:, 0]
        table[:, 0] += HEADER_BYTES
        return view
    arena = _Arena(_GROWTH * int(table[:, 1].sum()))
    for position, size, _, codec, _ in stored:
        part = view[position + HEADER_BYTES : position + size]
        if codec == Codec.NONE or not arena.decompress(codec, part):
            arena.append(_payload(view, position))
        refuse_large(arena.size)
    table[:, 1] = arena.ends
    table[0, 0] = 0
    table[1:, 0] = table[:-1, 1]
    return arena.view[: arena.size]


def _payload(view: memoryview, position: int) -> memoryview:
    return batches.payload(view, position, batches.read_header(view, position))


class _Arena:
    """Bytes put behind each other in one buffer of Arrow's pool."""

    def __init__(self, size_expected: int) -> None:
        self.view = _room(size_expected)
        self.size = 0
        self.ends: list[int] = []

    def decompress(self, codec: int, data: memoryview) -> bool:
        """Append what `data` holds; False when there is no room for it or it is damaged."""
        output = self.view[self.size : self.size + OUTPUT_BYTES_MAX]
        size = decompress_into(codec, data, output)
        if size is None:
            return False
        self.size += size
        self.ends.append(self.size)
        return True

    def append(self, data: memoryview) -> None:
        end = self.size + len(data)
        if end > len(self.view):
            grown = _room(2 * end)
            grown[: self.size] = self.view[: self.size]
            self.view = grown
        self.view[self.size : end] = data
        self.size = end
        self.ends.append(end)


def _room(size: int) -> memoryview:
    return memoryview(pa.allocate_buffer(max(size, 1), resizable=True)).cast("B")


def _buffer(count: int, kind: Literal["B", "i", "q"]) -> tuple[pa.ResizableBuffer, memoryview]:
    """Room for `count` numbers of a kind as in `struct`, at least one, and a view of it."""
    buffer = pa.allocate_buffer(max(count, 1) * struct.calcsize(kind), resizable=True)
    return buffer, memoryview(buffer).cast("B").cast(kind)


class _Bytes:
    """Buffers of a binary column; the kernel writes to `column`."""

    def __init__(self, rows_max: int, bytes_max: int, *, wanted: bool = True) -> None:
        rows_max, bytes_max = (rows_max, bytes_max) if wanted else (0, 0)
        self._wanted = wanted
        self._data, data = _buffer(bytes_max, "B")
        self._ends, ends = _buffer(rows_max + 1, "i")
        self._valid, valid = _buffer((rows_max + 7) // 8, "B")
        self.column = _codec.Binary(data, ends, valid, wanted)

    def array(self, rows: int | None = None) -> pa.Array:
        """The column, null in `rows` rows when it was not wanted.

        The kernel must be done with it: its memory may move.
        """
        if not self._wanted:
            return pa.nulls(rows, pa.binary())
        made = self.column
        self._data.resize(made.size, shrink_to_fit=True)
        self._ends.resize(4 * (made.rows + 1), shrink_to_fit=True)
        buffers = [self._valid if made.nulls else None, self._ends, self._data]
        return pa.Array.from_buffers(pa.binary(), made.rows, buffers, made.nulls)


class _Numbers:
    """Buffers of all other columns; the kernel writes to `rows`."""

    def __init__(self, rows_max: int, first: int, last: int, *, headers: bool) -> None:
        self._offset, offset = _buffer(rows_max, "q")
        self._micros, micros = _buffer(rows_max, "q")
        self._kind, kind = _buffer(rows_max, "i")
        self._valid, valid = _buffer((rows_max + 7) // 8, "B")
        places = None
        if headers:
            self._headers_end, headers_end = _buffer(rows_max + 1, "i")
            places = (_buffer(rows_max, "q")[1], _buffer(rows_max, "q")[1], headers_end)
        self.rows = _codec.Rows(first, last, (offset, micros, kind), valid, places)

    def check(self) -> None:
        if self.rows.refusal:
            what = REFUSALS[self.rows.refusal]
            raise CorruptBatch(f"impossible {what} in record {self.rows.parsed} of the fetch")

    def arrays(self) -> list[pa.Array]:
        """Offset, timestamp and type of timestamp."""
        count, too_far = self.rows.count, self.rows.too_far
        parts = (
            ("offset", None, self._offset, 8, 0),
            ("timestamp", self._valid if too_far else None, self._micros, 8, too_far),
            ("timestamp_type", None, self._kind, 4, 0),
        )
        arrays = []
        for name, valid, buffer, width, nulls in parts:
            buffer.resize(width * count, shrink_to_fit=True)
            kind = SCHEMA.field(name).type
            arrays.append(pa.Array.from_buffers(kind, count, [valid, buffer], nulls))
        return arrays

    def headers(self, source: memoryview) -> pa.Array:
        """The headers of each record, read from `source`."""
        count = self.rows.count
        ends = np.frombuffer(self._headers_end, np.int32)[: count + 1]
        if not ends[-1]:
            return pa.nulls(count, HEADER_LIST)
        names = _Bytes(int(ends[-1]), self.rows.header_bytes)
        contents = _Bytes(int(ends[-1]), self.rows.header_bytes)
        _codec.decode_headers(source, self.rows, names.column, contents.column)
        self.check()
        items = [header_names(names.array()), contents.array()]
        return pa.ListArray.from_arrays(
            pa.array(ends),
            pa.StructArray.from_arrays(items, fields=list(HEADER_LIST.value_type)),
            type=HEADER_LIST,
            mask=pa.array(ends[1:] == ends[:-1]),
        )
