"""Flat fields of JSON values as Arrow columns, by the compiled kernel, for the rows that it can do.

What it cannot is left to the caller: all without a kernel (`IS_COMPILED`), fields of types that it
does not know, which come as the JSON that they are, and single rows, which `decode` names. Nothing
here raises for what a value holds.
"""

import os
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

try:
    from headrace.wire import _codec_json as kernel
    from headrace.wire import _codec_json_times as times
except ImportError:  # neither the kernel nor the Cython that would run its source
    IS_COMPILED = False
else:
    IS_COMPILED = (
        kernel.COMPILED
        and times.COMPILED
        and getattr(kernel, "LAYOUT", None) == 2  # else a build from before an update lies there
        and os.environ.get("HEADRACE_KERNEL") != "numpy"
    )

Bools = npt.NDArray[np.bool_]

_SIZE_BITS = 32
_INTEGERS_ALL = 1 << 24  # up to here 32 bits hold every integer
_TIMES = (pa.timestamp("us", tz="UTC"), pa.date32())


def knows(kind: pa.DataType) -> bool:
    """Whether fields of a type are decoded; others come as strings of JSON."""
    return _kind(kind) != kernel.JSON


def decode(values: pa.Array, schema: pa.Schema) -> tuple[list[pa.Array], Bools]:
    """The fields of `schema` from a binary array of JSON objects, and which rows are not decoded.

    Those rows have null in all columns: their values are null, damaged, of another type, or legal
    but unusual. Fields that a value lacks are null.
    """
    rows, is_text = len(values), _is_text(values)
    _, ends_buffer, data_buffer = values.buffers()
    ends = np.frombuffer(ends_buffer, np.int32)[values.offset : values.offset + rows + 1]
    data = memoryview(data_buffer if data_buffer is not None else b"").cast("B")
    names, numbers = _fields(schema)
    cells = np.empty((len(schema), rows), np.int64)
    valid = np.zeros((len(schema), rows), np.uint8)
    unusual = np.empty(rows, np.uint8)
    plan = kernel.Plan(
        rows,
        data,
        numbers.data,
        memoryview(names),
        (10.0 ** np.arange(kernel.POWERS_EXACT)).data,
        cells.reshape(-1).data,
        cells.reshape(-1).view(np.float64).data,
        valid.reshape(-1).data,
        is_text,
    )
    kernel.decode(plan, ends.data, unusual.data)
    for number, field in enumerate(schema):
        if field.type in _TIMES:
            is_date = pa.types.is_date(field.type)
            times.parse(data, cells[number].data, valid[number].data, is_date, unusual.data)
        elif pa.types.is_floating(field.type):
            _mark_changed(field.type, cells[number], valid[number] == 1, unusual)
    skipped = unusual.astype(bool)
    if values.null_count:
        skipped |= values.is_null().to_numpy(zero_copy_only=False)
    columns = [
        _strings(plan, number, cells[number], valid[number] == 1)
        if _kind(field.type) in (kernel.JSON, kernel.STRING) and field.type not in _TIMES
        else _numbers(field.type, cells[number], valid[number] == 1)
        for number, field in enumerate(schema)
    ]
    return columns, skipped


def _kind(kind: pa.DataType) -> int:
    """The kernel's number of a type; JSON for one that it does not know."""
    if pa.types.is_signed_integer(kind):
        return int(kernel.INTEGER)
    if kind in (pa.float32(), pa.float64()):
        return int(kernel.DOUBLE)
    known = {
        pa.bool_(): kernel.BOOLEAN,
        pa.string(): kernel.STRING,
        **dict.fromkeys(_TIMES, kernel.STRING),
    }
    return int(known.get(kind, kernel.JSON))


def _fields(schema: pa.Schema) -> tuple[bytes, npt.NDArray[np.int64]]:
    names, numbers = b"", []
    for field in schema:
        name = field.name.encode()
        bits = field.type.bit_width if pa.types.is_integer(field.type) else 64
        greatest = (1 << (bits - 1)) - 1
        numbers.append(
            (_kind(field.type), len(names), len(names) + len(name), -greatest - 1, greatest)
        )
        names += name
    return names, np.array(numbers, np.int64).reshape(-1)


def _is_text(values: pa.Array) -> bool:
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _numbers(kind: pa.DataType, cells: Any, valid: Bools) -> pa.Array:
    mask = None if valid.all() else ~valid
    if mask is not None:
        cells = np.where(valid, cells, 0)
    if pa.types.is_floating(kind):
        with np.errstate(over="ignore"):
            return pa.array(cells.view(np.float64).astype(kind.to_pandas_dtype()), mask=mask)
    if pa.types.is_boolean(kind):
        return pa.array(cells.astype(bool), mask=mask)
    if pa.types.is_date(kind):
        return pa.array(cells.astype(np.int32), mask=mask).cast(kind)
    if pa.types.is_timestamp(kind):
        return pa.array(cells, mask=mask).cast(kind)
    return pa.array(cells.astype(kind.to_pandas_dtype()), mask=mask)


def _mark_changed(kind: pa.DataType, cells: Any, valid: Bools, unusual: Any) -> None:
    """Mark rows as unusual whose number is infinite, or of 32 bits and not kept by them.

    These are numbers that become infinity or zero, and integers that change.
    """
    doubles = cells.view(np.float64)
    with np.errstate(all="ignore"):
        found = doubles.astype(kind.to_pandas_dtype())
        changed = np.isinf(found)
        if kind == pa.float32():
            changed |= (found == 0) & (doubles != 0)
            if (large := np.abs(found) >= _INTEGERS_ALL).any():
                changed |= large & (found != doubles) & (np.trunc(doubles) == doubles)
    unusual[changed & valid] = 1


def _strings(plan: Any, number: int, cells: Any, valid: Bools) -> pa.Array:
    rows = len(valid)
    sizes = np.where(valid, cells & ((1 << _SIZE_BITS) - 1), 0)
    data = np.empty(max(int(sizes.sum()), 1), np.uint8)
    ends = np.empty(rows + 1, np.int32)
    kernel.gather(plan, number, data.data, ends.data)
    nulls = rows - int(np.count_nonzero(valid))
    mask = pa.py_buffer(np.packbits(valid, bitorder="little").tobytes()) if nulls else None
    buffers = [mask, pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.string(), rows, buffers, nulls)
