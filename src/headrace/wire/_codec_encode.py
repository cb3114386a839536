# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, infer_types=True, annotation_typing=False
"""The compiled kernel's other half: columns, or objects, to the records of a batch.

One source, as `_codec.py`. No bounds are checked here at all: callers give an output with room for
all records.
"""

from typing import Any

import cython

COMPILED = bool(cython.compiled)
LAYOUT = 6  # of what callers pass; a build of another is out of date
_CHANGED = "a record was changed while it was encoded"


class Pieces:
    """A column of bytes to encode: where each value starts, and its size, -1 for null."""

    def __init__(self, data: memoryview, starts: memoryview, sizes: memoryview) -> None:
        self.views = (data, starts, sizes)
        self.data: memoryview = _source(data)
        self.starts: memoryview = _numbers(starts)
        self.sizes: memoryview = _numbers(sizes)


def encode(
    start: int,
    stop: int,
    timestamps: memoryview,
    keys: Pieces,
    values: Pieces,
    headers_end: memoryview,
    names: Pieces,
    contents: Pieces,
    output: memoryview,
) -> int:
    """The records of rows `start` to `stop` as in one batch; returns their size in bytes.

    Headers of row n are those from `headers_end[n]` to `headers_end[n + 1]`.
    """
    out = _octets(output)
    position = 0
    with cython.nogil:
        for row in range(start, stop):
            position = _put_record(
                out,
                position,
                row,
                timestamps[row] - timestamps[start],
                row - start,
                keys,
                values,
                headers_end[row],
                headers_end[row + 1],
                names,
                contents,
            )
    return position


def records_size(records: list[Any], base_timestamp: int) -> int:
    """The bytes that `put_records` writes."""
    total = 0
    for delta, record in enumerate(records):
        size = _record_size(record, delta, base_timestamp)
        total += _varint_size(size) + size
    return total


def put_records(records: list[Any], base_timestamp: int, output: bytearray) -> None:
    """Write objects `Record` as in one batch; `output` has their size (`records_size`).

    Raises: `ValueError` if they do not fill the output exactly: a record was changed meanwhile.
    """
    if output is None:
        raise TypeError("no output")
    out = _room(output)
    end = len(output)
    position = 0
    for delta, record in enumerate(records):
        headers = record[4]
        elapsed = record[1] - base_timestamp
        size = _record_size(record, delta, base_timestamp)
        position = _put_number(out, position, end, size)
        position = _put_number(out, position, end, 0)  # attributes
        position = _put_number(out, position, end, elapsed)
        position = _put_number(out, position, end, delta)
        position = _put_bytes(out, position, end, record[2])
        position = _put_bytes(out, position, end, record[3])
        position = _put_number(out, position, end, len(headers))
        for header in headers:
            position = _put_bytes(out, position, end, header[0].encode())
            position = _put_bytes(out, position, end, header[1])
    if position != end:
        raise ValueError(_CHANGED)


def _record_size(record: Any, delta: int, base_timestamp: int) -> int:
    headers = record[4]
    elapsed = record[1] - base_timestamp
    size = 1 + _varint_size(elapsed) + _varint_size(delta) + _varint_size(len(headers))
    size += _bytes_size(record[2]) + _bytes_size(record[3])
    for header in headers:
        size += _bytes_size(header[0].encode()) + _bytes_size(header[1])
    return size


def _bytes_size(value: Any) -> int:
    if value is None:
        return 1
    size = len(value)
    return _varint_size(size) + size


def _put_bytes(out: memoryview, position: int, end: int, value: Any) -> int:
    if value is None:
        return _put_number(out, position, end, -1)
    data = value if type(value) is bytes else bytes(value)
    size = len(data)
    if size != len(value):  # a view of larger items: there is no room for it
        raise TypeError("a field of a record is not bytes")
    position = _put_number(out, position, end, size)
    if size > end - position:
        raise ValueError(_CHANGED)
    if cython.compiled:
        memcpy(cython.address(out[position]), PyBytes_AsString(data), size)  # type: ignore[name-defined]  # noqa: F821 - cimported in _codec_encode.pxd
    else:
        out[position : position + size] = data
    return position + size


def _put_number(out: memoryview, position: int, end: int, value: int) -> int:
    if _varint_size(value) > end - position:
        raise ValueError(_CHANGED)
    return _put_varint(out, position, value)


def _room(output: bytearray) -> Any:
    return cython.cast("octet_t *", PyByteArray_AsString(output)) if cython.compiled else output  # type: ignore[name-defined]  # noqa: F821 - cimported in _codec_encode.pxd


def _octets(view: memoryview) -> Any:
    """The memory of a view, as in `_codec.py`."""
    return cython.address(view[0]) if cython.compiled else view


def _source(view: memoryview) -> Any:
    return cython.address(view[0]) if cython.compiled else view


def _numbers(view: memoryview) -> Any:
    return cython.address(view[0]) if cython.compiled else view


def _copy(target: memoryview, at: int, source: memoryview, start: int, size: int) -> None:
    if cython.compiled:
        memcpy(cython.address(target[at]), cython.address(source[start]), size)  # type: ignore[name-defined]  # noqa: F821 - cimported in _codec_encode.pxd
    else:
        target[at : at + size] = source[start : start + size]


def _varint_size(value: int) -> int:
    raw = _zigzag(value)
    size = 1
    while raw > 0x7F:
        raw >>= 7
        size += 1
    return size


def _zigzag(value: int) -> int:
    return (value << 1) ^ (value >> 63)


def _put_varint(out: memoryview, position: int, value: int) -> int:
    raw = _zigzag(value)
    while raw > 0x7F:
        out[position] = (raw & 0x7F) | 0x80
        raw >>= 7
        position += 1
    out[position] = raw
    return position + 1


def _field_size(column: Pieces, row: int) -> int:
    size = column.sizes[row]
    return _varint_size(size) + max(size, 0)


def _put_field(out: memoryview, position: int, column: Pieces, row: int) -> int:
    size = column.sizes[row]
    position = _put_varint(out, position, size)
    if size <= 0:
        return position
    _copy(out, position, column.data, column.starts[row], size)
    return position + size


def _put_record(
    out: memoryview,
    position: int,
    row: int,
    elapsed: int,
    delta: int,
    keys: Pieces,
    values: Pieces,
    header: int,
    headers_end: int,
    names: Pieces,
    contents: Pieces,
) -> int:
    size = 1 + _varint_size(elapsed) + _varint_size(delta) + _varint_size(headers_end - header)
    size += _field_size(keys, row) + _field_size(values, row)
    for index in range(header, headers_end):
        size += _field_size(names, index) + _field_size(contents, index)
    position = _put_varint(out, position, size)
    out[position] = 0
    position = _put_varint(out, position + 1, elapsed)
    position = _put_varint(out, position, delta)
    position = _put_field(out, position, keys, row)
    position = _put_field(out, position, values, row)
    position = _put_varint(out, position, headers_end - header)
    for index in range(header, headers_end):
        position = _put_field(out, position, names, index)
        position = _put_field(out, position, contents, index)
    return position
