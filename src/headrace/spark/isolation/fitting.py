"""Convert values of user functions to column types without changing any of them.

Arrow's own conversion truncates 2.999 to 2 in a bigint and takes 5 for a date or `True` for a
double. Here a value either fits its type or is refused with a reason that names it, as typed values
of the source are (`values_json`). Most columns hold values of one exact Python type, which needs no
look at each value; all others are checked one by one.
Source: Spark SQL reference, "Data Types"; pyarrow `array` and `cast`.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    TimeType,
)

from headrace.spark.dispositions import REASON_LENGTH_MAX
from headrace.spark.values_json import NULL_REFUSED, Misfit

# What a function raises is its record's fault, but for these: they concern the whole process.
NO_FAULT_OF_A_RECORD = (MemoryError, SystemExit, KeyboardInterrupt, GeneratorExit)

Fits = Callable[[Any], bool]
Check = Callable[[Any], None]

_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_FLOAT_MAX = float.fromhex("0x1.fffffefffffffp+127")  # the greatest that 32 bits round to a number
_FLOAT_NONE = 2.0**-150  # the greatest that 32 bits round to zero
_LISTS = (list, tuple, set, frozenset, np.ndarray)


@dataclass(frozen=True)
class Field:
    """A column that a function makes.

    `exact` are the Python types that Arrow converts to it without loss or refuses itself. `check`
    raises `Misfit` for a value that does not fit, except for None.
    """

    name: str
    arrow: pa.DataType
    shown: str
    nullable: bool
    exact: frozenset[type]
    check: Check

    @classmethod
    def of(cls, field: StructField) -> "Field":
        """Make the column of a field of a schema."""
        kind = field.dataType
        return cls(
            field.name,
            to_arrow_type(kind, timezone="UTC"),
            kind.simpleString(),
            field.nullable,
            _exact(kind) | {type(None)},
            _checker(kind),
        )

    def misfits(self, values: Sequence[Any]) -> dict[int, str]:
        """Find the values that do not fit, by their index with the reason; None is passed."""
        if self.exact.issuperset(map(type, values)):
            return {}
        found: dict[int, str] = {}
        for index, value in enumerate(values):
            if value is not None and (reason := self._reason(value)):
                found[index] = reason
        return found

    def refusal(self, value: Any) -> str:
        """Say that a value does not fit."""
        return f"{self.name}: {_shown(value)} is no {self.shown}"

    @property
    def null_refusal(self) -> str:
        """Say that there is no value."""
        return f"{self.name}: {NULL_REFUSED}"

    def cast(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """Convert a column of a batch. Raises: ValueError when a value of it does not fit."""
        if column.null_count and not self.nullable:
            raise ValueError(self.null_refusal)
        if column.type == self.arrow:
            return column
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if pa.types.is_nested(column.type) or pa.types.is_decimal(self.arrow):
            values = column.to_pylist()
            if misfits := self.misfits(values):
                raise ValueError(next(iter(misfits.values())))
            try:
                return pa.chunked_array([pa.array(values, self.arrow)])
            except pa.ArrowException as error:
                raise ValueError(f"{self.name}: {error}") from None
        if not _is_alike(column.type, self.arrow):
            raise ValueError(f"{self.name}: a column of {column.type} is no {self.shown}")
        try:
            made = column.cast(self.arrow)
        except pa.ArrowInvalid as error:
            is_one = len(column) == 1
            reason = self.refusal(column[0].as_py()) if is_one else f"{self.name}: {error}"
            raise ValueError(reason) from None
        if _has_lost(column, made):
            raise ValueError(self.refusal(column[0].as_py()))
        return made

    def _reason(self, value: Any) -> str | None:
        try:
            self.check(value)
        except Misfit as error:
            return str(error.inside(self.name))
        except NO_FAULT_OF_A_RECORD:
            raise
        except BaseException:  # a value of a user's class may raise anything when it is looked at
            return self.refusal(value)
        return None


def fields_of(schema: StructType) -> tuple[Field, ...]:
    """Make the columns of a schema."""
    return tuple(map(Field.of, schema.fields))


def _exact(kind: DataType) -> frozenset[type]:
    if isinstance(kind, IntegralType):
        return frozenset({int})
    return _EXACT.get(type(kind), frozenset())


def _checker(kind: DataType) -> Check:
    if isinstance(kind, StructType):
        return _struct(kind)
    if isinstance(kind, ArrayType):
        return _array(kind)
    if isinstance(kind, MapType):
        return _map(kind)
    fits = _integer(kind) if isinstance(kind, IntegralType) else _FITS.get(type(kind))
    shown = kind.simpleString()

    def check(value: Any) -> None:
        if fits is not None and not fits(value):
            raise Misfit(f"{_shown(value)} is no {shown}")

    return check


def _inside(place: str, check: Check, nullable: bool, value: Any) -> None:
    try:
        if value is not None:
            check(value)
        elif not nullable:
            raise Misfit(NULL_REFUSED)
    except Misfit as error:
        raise error.inside(place) from None


def _struct(kind: StructType) -> Check:
    inner = [(one.name, _checker(one.dataType), one.nullable) for one in kind.fields]

    def check(value: Any) -> None:
        if isinstance(value, tuple) and len(value) == len(inner):
            value = dict(zip(kind.names, value, strict=True))
        if not isinstance(value, dict):
            raise Misfit(f"{_shown(value)} is no struct")
        for name, check_one, nullable in inner:
            _inside(name, check_one, nullable, value.get(name))

    return check


def _array(kind: ArrayType) -> Check:
    check_one = _checker(kind.elementType)

    def check(value: Any) -> None:
        if not isinstance(value, _LISTS):
            raise Misfit(f"{_shown(value)} is no array")
        for number, one in enumerate(value):
            _inside(f"[{number}]", check_one, kind.containsNull, one)

    return check


def _map(kind: MapType) -> Check:
    check_key, check_value = _checker(kind.keyType), _checker(kind.valueType)

    def check(value: Any) -> None:
        if isinstance(value, dict):
            value = value.items()
        elif not isinstance(value, list | tuple):
            raise Misfit(f"{_shown(value)} is no map")
        for name, one in value:
            _inside("key", check_key, False, name)
            _inside(_shown(name), check_value, kind.valueContainsNull, one)

    return check


def _integer(kind: DataType) -> Fits:
    most = 1 << (_BITS[kind.simpleString()] - 1)
    return lambda value: _is_integer(value) and -most <= value < most


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, float | np.floating) or _is_integer(value)


def _is_double(value: Any) -> bool:
    """Whether it is a number of at most 64 bits; `numpy.longdouble` may have more."""
    if not _is_number(value):
        return False
    return not isinstance(value, np.longdouble) or math.isnan(value) or float(value) == value


def _is_float(value: Any) -> bool:
    if not _is_double(value):
        return False
    return not ((math.isfinite(value) and abs(value) > _FLOAT_MAX) or 0 < abs(value) <= _FLOAT_NONE)


def _is_date(value: Any) -> bool:
    if isinstance(value, np.datetime64):
        value = value.item()
    if isinstance(value, datetime):
        return value.tzinfo is None and value.time() == time(0)
    return isinstance(value, date)


def _is_timestamp(value: Any) -> bool:
    """Whether it is a time of whole microseconds, which a whole number counts."""
    if getattr(value, "nanosecond", 0):  # pandas.Timestamp, which Arrow takes for a datetime
        return False
    return isinstance(value, datetime | np.datetime64) or _is_integer(value)


def _is_interval(value: Any) -> bool:
    """Whether it is a duration of whole microseconds, which a whole number counts."""
    if getattr(value, "nanoseconds", 0):  # pandas.Timedelta, which Arrow takes for a timedelta
        return False
    return isinstance(value, timedelta | np.timedelta64) or _is_integer(value)


def _is_time(value: Any) -> bool:
    return isinstance(value, time) and value.tzinfo is None


def _is_local_time(value: Any) -> bool:
    return _is_timestamp(value) and getattr(value, "tzinfo", None) is None


_FITS: dict[type[DataType], Fits] = {
    FloatType: _is_float,
    DoubleType: _is_double,
    BooleanType: lambda value: isinstance(value, bool | np.bool_),
    StringType: lambda value: isinstance(value, str),
    BinaryType: lambda value: isinstance(value, bytes | bytearray | memoryview),
    DecimalType: lambda value: isinstance(value, Decimal) or _is_integer(value),
    DateType: _is_date,
    TimestampType: _is_timestamp,
    TimestampNTZType: _is_local_time,
    DayTimeIntervalType: _is_interval,
    TimeType: _is_time,
}
_EXACT: dict[type[DataType], frozenset[type]] = {
    DoubleType: frozenset({float, int}),
    BooleanType: frozenset({bool}),
    StringType: frozenset({str}),
    BinaryType: frozenset({bytes}),
    DecimalType: frozenset({Decimal, int}),
    DateType: frozenset({date}),
    TimestampType: frozenset({datetime, int}),
}


def _is_alike(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a cast between flat types keeps values or refuses them; see also `_has_lost`."""
    types = pa.types
    if types.is_null(found):
        return True
    if types.is_timestamp(found) and types.is_timestamp(wanted):
        return wanted.tz is not None or found.tz is None
    return any(
        is_found(found) and is_wanted(wanted)
        for is_found, is_wanted in (
            (types.is_integer, types.is_integer),
            (types.is_integer, types.is_floating),
            (types.is_integer, types.is_timestamp),
            (types.is_floating, types.is_integer),
            (types.is_floating, types.is_floating),
            (types.is_boolean, types.is_boolean),
            (_is_text, _is_text),
            (_is_bytes, _is_bytes),
            (types.is_date, types.is_date),
            (types.is_timestamp, types.is_date),
            (types.is_duration, types.is_duration),
            (types.is_time, types.is_time),
        )
    )


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _has_lost(column: pa.ChunkedArray, made: pa.ChunkedArray) -> bool:
    """Whether a cast that Arrow takes for safe lost the time of a day, or all of a number."""
    if pa.types.is_timestamp(column.type) and pa.types.is_date(made.type):
        return not made.cast(column.type).equals(column)
    if pa.types.is_float64(column.type) and pa.types.is_float32(made.type):
        return any(_count(which, made) != _count(which, column) for which in (pc.is_inf, _is_zero))
    return False


def _is_zero(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.equal(column, 0)


def _count(which: Callable[[pa.ChunkedArray], pa.ChunkedArray], column: pa.ChunkedArray) -> int:
    return pc.sum(which(column)).as_py() or 0


def _shown(value: Any) -> str:
    """Show a value; not even Python's own can always be shown: numbers of too many digits."""
    try:
        return short(repr(value))
    except NO_FAULT_OF_A_RECORD:
        raise
    except BaseException:
        return f"<{type(value).__name__}>"


def short(text: str) -> str:
    """Shorten a text to the length of a reason; quoted input may not be text at all."""
    text = text.encode(errors="backslashreplace").decode()
    return text if len(text) <= REASON_LENGTH_MAX else text[: REASON_LENGTH_MAX - 3] + "..."


def nulls_in(values: Iterable[Any]) -> list[int]:
    """Find the indexes of null."""
    return [index for index, value in enumerate(values) if value is None]
