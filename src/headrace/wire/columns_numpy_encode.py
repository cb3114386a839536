"""Arrow columns to record batches by numpy: what runs where no compiled kernel is, and its oracle.

All varints of all records are computed at once. They and the five columns of bytes are laid behind
each other, without a copy of a single value by Python, as one Arrow array whose elements are piece,
gap, piece ...; `take` then puts the pieces of each record, and record behind record, in order.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from headrace.wire.columns_numpy import Ints
from headrace.wire.columns_outgoing import Int32s, Outgoing, Pieces, Span

_VARINT_BYTES_MAX = 10
_PIECES_A_RECORD, _PIECES_A_HEADER = 8, 4


def bodies(
    records: Outgoing, spans: Iterable[tuple[Span, int]]
) -> Iterator[tuple[Span, memoryview]]:
    """The encoded records of each span."""
    bounds = [span for span, _ in spans]
    if bounds:
        data, starts = _joined(records, np.array([start for start, _ in bounds]))
        for start, stop in bounds:
            yield (start, stop), data[starts[start] : starts[stop]]


def _joined(records: Outgoing, firsts: Ints) -> tuple[memoryview, Ints]:
    """All records one behind the other, and where each begins, and where the last one ends.

    `firsts` are the rows that begin a batch: a record says how far it is from that row.
    """
    rows = np.arange(len(records.timestamps))
    first = firsts[np.searchsorted(firsts, rows, side="right") - 1]
    ends = records.headers_end.astype(np.int64)
    of_header = (
        _varints(records.names.sizes),
        records.names,
        _varints(records.contents.sizes),
        records.contents,
    )
    of_record = (
        _varints(records.timestamps - records.timestamps[first]),
        _varints(rows - first),
        _varints(records.keys.sizes),
        records.keys,
        _varints(records.values.sizes),
        records.values,
        _varints(np.diff(ends)),
    )
    in_headers = np.concatenate(([0], np.cumsum(_total(of_header))))
    lengths = _varints(1 + _total(of_record) + np.diff(in_headers[ends]), followed_by=1)
    places = _PIECES_A_RECORD * np.arange(len(ends)) + _PIECES_A_HEADER * ends
    order = np.empty(places[-1], np.int64)
    element = 0
    for index, column in enumerate((lengths, *of_record)):
        order[places[:-1] + index] = np.arange(len(column.sizes)) + element
        element += len(column.sizes)
    # A header comes behind the pieces of its record, those before that, and of headers before it.
    owner = np.repeat(rows, np.diff(ends))
    header = _PIECES_A_RECORD * (owner + 1) + _PIECES_A_HEADER * np.arange(len(owner))
    for index, column in enumerate(of_header):
        order[header + index] = np.arange(len(column.sizes)) + element
        element += len(column.sizes)
    _, offsets, data = _elements((lengths, *of_record, *of_header)).take(order * 2).buffers()
    return memoryview(data).cast("B"), np.frombuffer(offsets, np.int64)[places]


def _total(columns: Iterable[Pieces]) -> Ints:
    sizes: Ints = np.sum([np.maximum(one.sizes, 0) for one in columns], axis=0, dtype=np.int64)
    return sizes


def _varints(values: Ints | Int32s, *, followed_by: int = 0) -> Pieces:
    """The zigzag varint of each value, and so many bytes of 0 behind it."""
    wide = values.astype(np.int64)
    left = ((wide << 1) ^ (wide >> 63)).view(np.uint64)
    width = _VARINT_BYTES_MAX + followed_by
    octets = np.zeros((len(left), width), np.uint8)
    sizes = np.ones(len(left), np.int32)
    for index in range(_VARINT_BYTES_MAX):
        octets[:, index] = left & np.uint64(0x7F)
        left = left >> np.uint64(7)
        more = left > 0
        if not more.any():
            break
        octets[more, index] |= 0x80
        sizes += more
    starts = np.arange(len(left), dtype=np.int64) * width
    return Pieces(octets.reshape(-1), starts, sizes + np.int32(followed_by))


def _elements(columns: Sequence[Pieces]) -> pa.Array:
    """The pieces of all columns; behind each one, what lies between it and the next."""
    bounds = np.empty((sum(len(one.sizes) for one in columns), 2), np.int64)
    row = position = 0
    for one in columns:
        here = bounds[row : row + len(one.sizes)]
        here[:, 0] = one.starts + np.int64(position)
        here[:, 1] = here[:, 0] + np.maximum(one.sizes, 0)
        row += len(one.sizes)
        position += len(one.data)
    data = np.concatenate([one.data for one in columns])
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), bounds.size - 1, buffers)
