"""JSON values by Python, one at a time: every type, every oddity, and the reason of each refusal.

What a value means is as in Spark's `from_json`: a field that is not there is null (and refused
where the schema has it NOT NULL, which `from_json` ignores), fields that
nobody asked for are passed over, the last of several with the same name counts. A string takes
anything else by its JSON text; a decimal or a timestamp takes what Spark takes for it. Unlike
`from_json`, a number that its type cannot hold is refused: no decimal is rounded, no integer
changed, and nothing becomes infinity or zero.
`wire/json_columns.py` does the same for what is usual.
Source: Spark's JacksonParser.
"""

import base64
import binascii
import json
import math
import re
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Context, Decimal, InvalidOperation
from typing import Any

import numpy as np
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

Converter = Callable[[Any], Any]

_SHOWN_MAX = 80
NULL_REFUSED = "null, and the schema has it NOT NULL"
_TOO_DEEP = "the value is nested too deep"
_INTEGER_MAX = 20  # characters; 64 bits need no more
_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_NOT_FINITE = {"NaN", "Infinity", "-Infinity"}
_INTEGERS_ALL = 1 << 24  # up to here 32 bits hold every integer
_INTEGER = re.compile(r"-?[0-9]+")
_SINGLE = struct.Struct("f")
_DECIMAL = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_TIME = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[T ]([0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?"
    r"(Z|[+-][0-9]{2}:[0-9]{2})?"
)
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_ZONE_S_MAX = 18 * 3600 + 59 * 60
_SECONDS_MAX = 253_402_300_799  # the end of year 9999
_WIDE = Context(prec=100, Emax=10**6, Emin=-(10**6))


class Misfit(Exception):
    """A value that is not of the type wanted, and at what place in the whole."""

    def __init__(self, reason: str, place: str = "") -> None:
        super().__init__(f"{place}: {reason}" if place else reason)
        self.reason, self.place = reason, place

    def inside(self, place: str) -> "Misfit":
        joint = "." if self.place and not self.place.startswith("[") else ""
        return Misfit(self.reason, f"{place}{joint}{self.place}")


class _Number(str):
    """The text of a number, as no type is wide enough for all of them."""

    __slots__ = ()


_DECODER = json.JSONDecoder(parse_float=_Number, parse_int=_Number, parse_constant=_Number)


def field_converter(kind: DataType) -> Callable[[str], Any]:
    """A function from the JSON of one field, not null, to its value; raises `Misfit`."""
    convert = _converter(kind)

    def converted(text: str) -> Any:
        try:
            return convert(_DECODER.decode(text))
        except RecursionError:
            raise Misfit(_TOO_DEEP) from None

    return converted


def converter(schema: StructType) -> Callable[[bytes | None], tuple[Any, ...]]:
    """A function from a value to those of the fields of `schema`, as `pyarrow.array` takes them.

    None lacks every field. It raises: `Misfit`, in one line, whatever the bytes are.
    """
    fields = _fields(schema)

    def convert(raw: bytes | None) -> tuple[Any, ...]:
        try:
            found = {} if raw is None else _parsed(raw)
            return tuple(_at(name, convert, found.get(name), may) for name, convert, may in fields)
        except RecursionError:
            raise Misfit(_TOO_DEEP) from None

    return convert


def unsupported(kind: DataType) -> str | None:
    """The type inside `kind` that JSON cannot be decoded to, if there is one."""
    if isinstance(kind, StructType):
        return next(filter(None, (unsupported(one.dataType) for one in kind.fields)), None)
    if isinstance(kind, ArrayType):
        return unsupported(kind.elementType)
    if isinstance(kind, MapType):
        if not isinstance(kind.keyType, StringType):
            return kind.simpleString()
        return unsupported(kind.valueType)
    simple = kind.simpleString()
    return None if simple in _SIMPLE or isinstance(kind, DecimalType) else simple


def _parsed(raw: bytes) -> dict[str, Any]:
    if not raw:
        raise Misfit("the value is empty")
    try:
        found = _DECODER.decode(raw.decode())
    except UnicodeDecodeError as error:
        raise Misfit(f"the value is not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        what = error.msg.removesuffix(" at")  # Python's own texts may go on with a place
        raise Misfit(f"the value is not JSON: {what} at character {error.pos}") from None
    if not isinstance(found, dict):
        raise Misfit(f"the value is no object: {_shown(found)}")
    return found


def _at(place: str, convert: Converter, value: Any, nullable: bool) -> Any:
    if value is None:
        if nullable:
            return None
        raise Misfit(NULL_REFUSED, place)
    try:
        return convert(value)
    except Misfit as error:
        raise error.inside(place) from None


def _converter(kind: DataType) -> Converter:
    if isinstance(kind, StructType):
        return _struct(kind)
    if isinstance(kind, ArrayType):
        return _array(kind)
    if isinstance(kind, MapType):
        return _map(kind)
    name = kind.simpleString()
    simple = _decimal_of(kind) if isinstance(kind, DecimalType) else _SIMPLE[name]

    def convert(value: Any) -> Any:
        try:
            return simple(value)
        except (ValueError, InvalidOperation, OverflowError):
            raise _misfit(value, name) from None

    return convert


def _misfit(value: Any, name: str) -> Misfit:
    return Misfit(f"{_shown(value)} is no {name}")


def _fields(kind: StructType) -> list[tuple[str, Converter, bool]]:
    """Name, converter, and whether it may be null, of each field."""
    return [(one.name, _converter(one.dataType), one.nullable) for one in kind.fields]


def _struct(kind: StructType) -> Converter:
    fields = _fields(kind)

    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _misfit(value, "struct")
        return {name: _at(name, inner, value.get(name), may) for name, inner, may in fields}

    return convert


def _array(kind: ArrayType) -> Converter:
    inner, may = _converter(kind.elementType), kind.containsNull

    def convert(value: Any) -> Any:
        if not isinstance(value, list):
            raise _misfit(value, "array")
        return [_at(f"[{number}]", inner, one, may) for number, one in enumerate(value)]

    return convert


def _map(kind: MapType) -> Converter:
    inner, name_of = _converter(kind.valueType), _converter(kind.keyType)
    may = kind.valueContainsNull

    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _misfit(value, "map")
        return [(name_of(name), _at(_shown(name), inner, one, may)) for name, one in value.items()]

    return convert


def _integer_of(bits: int) -> Converter:
    def convert(value: Any) -> int:
        if not isinstance(value, _Number) or len(value) > _INTEGER_MAX:
            raise ValueError
        found = int(value)
        if not -(1 << (bits - 1)) <= found < 1 << (bits - 1):
            raise ValueError
        return found

    return convert


def _double(value: Any) -> float:
    if not isinstance(value, str) or not (isinstance(value, _Number) or value in _NOT_FINITE):
        raise ValueError
    found = float(value)
    if value not in _NOT_FINITE:
        _check_kept(value, found, float)
    return found


def _float(value: Any) -> float:
    found = _double(value)
    if value not in _NOT_FINITE:
        (single,) = _SINGLE.unpack(_SINGLE.pack(found))  # raises for what would be infinity
        _check_kept(value, single, np.float32)
    return found


def _check_kept(text: str, found: float, kind: Callable[[float], object]) -> None:
    """Check what became of a number: `found`, which is of `kind`.

    Of an integer it must be the number itself, or one whose shortest text is that integer.
    Raises: ValueError for an integer that was changed, and for what became infinity or zero.
    """
    if math.isinf(found) or (not found and text.lower().partition("e")[0].strip("-0.")):
        raise ValueError
    if abs(found) >= _INTEGERS_ALL and _INTEGER.fullmatch(text):
        whole = int(text)
        if whole not in (found, Decimal(str(kind(found)))):
            raise ValueError


def _decimal_of(kind: DecimalType) -> Converter:
    step = Decimal(1).scaleb(-kind.scale)

    def convert(value: Any) -> Decimal:
        if not isinstance(value, str) or not _DECIMAL.fullmatch(value):
            raise ValueError
        found = Decimal(value)
        if found and not -kind.scale <= found.adjusted() < kind.precision - kind.scale:
            raise ValueError
        made = found.quantize(step, context=_WIDE)
        if made != found:  # digits beyond the scale
            raise ValueError
        return made

    return convert


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _string(value: Any) -> str:
    text = value if type(value) is str else _text(value)
    text.encode()  # raises for half a surrogate pair
    return text


def _binary(value: Any) -> bytes:
    if type(value) is not str:
        raise ValueError
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error:
        raise ValueError from None


def _timestamp(value: Any) -> int:
    """Microseconds since 1970 in UTC. A number is in seconds, a time without a zone in UTC."""
    if isinstance(value, _Number):
        seconds = _SIMPLE["bigint"](value)
        if abs(seconds) > _SECONDS_MAX:
            raise ValueError
        return int(seconds) * 1_000_000
    micros, zone = _local(value)
    if zone in {None, "Z"}:
        return micros
    assert zone is not None
    ahead = int(zone[1:3]) * 3600 + int(zone[4:]) * 60
    if ahead > _ZONE_S_MAX or int(zone[4:]) > 59:
        raise ValueError
    return micros - ahead * 1_000_000 if zone[0] == "+" else micros + ahead * 1_000_000


def _timestamp_ntz(value: Any) -> int:
    micros, zone = _local(value)
    if zone:
        raise ValueError
    return micros


def _local(value: Any) -> tuple[int, str | None]:
    """Microseconds since 1970 by the clock that the text tells, and its zone."""
    found = _TIME.fullmatch(value) if type(value) is str else None
    if not found:
        raise ValueError
    day, time, fraction, zone = found.groups()
    at = datetime.fromisoformat(f"{day}T{time}+00:00")
    since = at - datetime(1970, 1, 1, tzinfo=UTC)
    seconds = since.days * 86_400 + since.seconds
    return seconds * 1_000_000 + int(((fraction or "") + "000000")[:6]), zone


def _date(value: Any) -> int:
    if type(value) is not str or not _DATE.fullmatch(value):
        raise ValueError
    return (date.fromisoformat(value) - date(1970, 1, 1)).days


_SIMPLE: dict[str, Converter] = {
    **{name: _integer_of(bits) for name, bits in _BITS.items()},
    FloatType().simpleString(): _float,
    DoubleType().simpleString(): _double,
    BooleanType().simpleString(): _boolean,
    StringType().simpleString(): _string,
    BinaryType().simpleString(): _binary,
    TimestampType().simpleString(): _timestamp,
    TimestampNTZType().simpleString(): _timestamp_ntz,
    DateType().simpleString(): _date,
}


def _text(value: Any) -> str:
    """JSON again, without space; numbers as they were written."""
    if isinstance(value, _Number):
        return str.__str__(value)
    if isinstance(value, dict):
        inside = (
            f"{json.dumps(name, ensure_ascii=False)}:{_text(one)}" for name, one in value.items()
        )
        return "{" + ",".join(inside) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_text, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _shown(value: Any) -> str:
    text = _text(value).encode(errors="backslashreplace").decode()
    return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 3] + "..."
