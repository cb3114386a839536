"""Values of columns as a function gets them that was written for PySpark's `udf`.

Arrow makes dictionaries of structs, and lists of pairs of maps; such a function expects rows and
dictionaries. Times have their zone, UTC, where `udf` has none.
"""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql import Row

_Shape = Callable[[Any], Any]


def as_udf_gets(column: pa.Array) -> list[Any]:
    """The values: a struct as a `Row`, a map as a dictionary, at any depth."""
    values: list[Any] = column.to_pylist()
    shape = _shape(column.type)
    return values if shape is None else list(map(shape, values))


def _shape(kind: pa.DataType) -> _Shape | None:
    """What makes of a value, which may be None, the one that is handed out; None: it stays."""
    if pa.types.is_struct(kind):
        return _struct(kind)
    if pa.types.is_map(kind):
        return _map(_shape(kind.key_type) or _same, _shape(kind.item_type) or _same)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = _shape(kind.value_type)
        return None if inner is None else _list(inner)
    return None


def _same(value: Any) -> Any:
    return value


def _struct(kind: pa.StructType) -> _Shape:
    named = [(one.name, _shape(one.type) or _same) for one in kind]
    row = Row(*(name for name, _ in named))
    return lambda value: (
        None if value is None else row(*(shape(value[name]) for name, shape in named))
    )


def _map(key: _Shape, item: _Shape) -> _Shape:
    return lambda value: None if value is None else {key(k): item(v) for k, v in value}


def _list(inner: _Shape) -> _Shape:
    return lambda value: None if value is None else list(map(inner, value))
