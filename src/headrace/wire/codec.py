"""The seam over kio: every message that is not encoded by hand passes here.

kio supplies the schemas, as typed dataclasses generated from Kafka's own message files. The bytes
are read and written here, because kio 0.6.5's native reader allocates whatever an array length
claims and so lets a 10-byte request abort the process; its tests are the oracle of ours.
A schema is compiled once per (key, version) into a list of field readers and writers.

One message is more than Kafka's: an acknowledgement of share groups may bring a reason, in a tagged
field that brokers and clients without it pass over (KIP-482).

Durations and timestamps are integers in milliseconds, error codes plain integers, although kio's
annotations say otherwise; field names are kio's (`throttle_time`, not `throttle_time_ms`).
Source: Kafka protocol guide; KIP-482 (flexible versions), KIP-893 (nullable structs).
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, make_dataclass
from dataclasses import field as declared
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from headrace.wire.primitives import Buffer, Malformed, Reader, Writer
from headrace.wire.schemas import has_schema, load_request_schema, load_response_schema

ReadField = Callable[[Reader], Any]
WriteField = Callable[[Writer, Any], None]
_ZERO_UUID = bytes(16)
_ACKNOWLEDGEMENT = "AcknowledgementBatch"  # part of ShareFetch and of ShareAcknowledge
_REASON = 10_000  # far from any tag that Kafka may add, as in the journal


def decode_request(key: int, version: int, body: Buffer, elements_max: int = 1 << 62) -> Any:
    """The request in `body` as kio's dataclass of that API and version.

    Raises: Malformed on bytes that are not this message, or that have more than `elements_max`
    array elements; KeyError when kio has no such message.
    """
    return _request(key, version).read(Reader(body, 0, elements_max))


def encode_response(key: int, version: int, values: Mapping[str, Any]) -> bytearray:
    """The response whose fields are `values`, in the layout of `version`.

    One nested mapping serves all versions: fields that this version does not have are dropped, and
    those with a default may be left out. AssertionError (a bug) when a field without one is absent.
    """
    out = Writer()
    _response(key, version).write(out, values)
    return out.data


def encode_request(key: int, version: int, values: Mapping[str, Any]) -> bytearray:
    """The request whose fields are `values`; for clients and tests, otherwise as a response."""
    out = Writer()
    _request(key, version).write(out, values)
    return out.data


def decode_response(key: int, version: int, body: Buffer) -> Any:
    """The response in `body`; for clients and tests. Raises: as `decode_request`."""
    return _response(key, version).read(Reader(body))


def schemas(key: int, version: int) -> tuple[Any, Any]:
    """kio's dataclasses of a request and of its response. Raises: KeyError when it has none."""
    return load_request_schema(key, version), load_response_schema(key, version)


def knows(key: int, version: int) -> bool:
    """Whether a request of this API and version has a schema."""
    return has_schema(key, version)


@cache
def is_flexible(key: int, version: int) -> bool:
    """Whether the message has tagged fields; then request header 2 and response header 1 are used.

    (The response to ApiVersions keeps header 0 in all versions: KIP-511.)
    """
    return bool(load_request_schema(key, version).__flexible__)


@dataclass(frozen=True, slots=True)
class _Field:
    """How a field of a message is read and written."""

    name: str
    read: ReadField
    write: WriteField
    default: Any = MISSING


@dataclass(frozen=True, slots=True)
class _Entity:
    """A compiled schema of one message or nested structure."""

    schema: Any
    plain: tuple[_Field, ...]
    tagged: dict[int, _Field]
    flexible: bool

    def read(self, source: Reader) -> Any:
        values = {field.name: field.read(source) for field in self.plain}
        if self.flexible:
            values.update({field.name: field.default for field in self.tagged.values()})
            for tag, data in source.tags().items():
                if tag in self.tagged:
                    values[self.tagged[tag].name] = self.tagged[tag].read(source.part(data))
        return self.schema(**values)

    def write(self, out: Writer, values: Mapping[str, Any]) -> None:
        for field in self.plain:
            value = values.get(field.name, field.default)
            assert value is not MISSING, f"{self.schema.__name__} needs {field.name}"
            field.write(out, value)
        if not self.flexible:
            return
        tags: dict[int, bytes] = {}
        for tag, field in self.tagged.items():
            value = values.get(field.name, field.default)
            if value != field.default:
                part = Writer()
                field.write(part, value)
                tags[tag] = bytes(part.data)
        out.tags(tags)


@cache
def _request(key: int, version: int) -> _Entity:
    """Look up the compiled request; kio resolves a schema by importing it each time."""
    return _entity(load_request_schema(key, version))


@cache
def _response(key: int, version: int) -> _Entity:
    """Look up the compiled response."""
    return _entity(load_response_schema(key, version))


@cache
def _entity(schema: Any) -> _Entity:
    plain: list[_Field] = []
    tagged: dict[int, _Field] = {}
    flexible = bool(schema.__flexible__)
    if schema.__name__ == _ACKNOWLEDGEMENT:
        schema = _with_reason(schema)
    for one in fields(schema):
        inner, is_array, nullable = unwrapped(one.type)
        if is_dataclass(inner):
            assert isinstance(inner, type)
            read, write = _structure(inner, nullable and not is_array)
        else:
            kind = one.metadata["kafka_type"]
            read, write = _primitive(kind, flexible, nullable and not is_array)
        if is_array:
            read, write = _array(read, write, flexible, nullable)
        default = 0 if one.name == "throttle_time" else _in_ms(one.default)
        tag = one.metadata.get("tag")
        if tag is None:
            plain.append(_Field(one.name, read, write, default))
        else:
            tagged[tag] = _Field(one.name, read, write, default)
    return _Entity(schema, tuple(plain), tagged, flexible)


def _with_reason(schema: Any) -> Any:
    """The schema of an acknowledgement with its `reason`, None without one."""
    reason = declared(metadata={"kafka_type": "string", "tag": _REASON}, default=None)
    return make_dataclass(
        schema.__name__,
        [("reason", str | None, reason)],
        bases=(schema,),
        frozen=True,
        slots=True,
        kw_only=True,
    )


def unwrapped(annotation: Any) -> tuple[Any, bool, bool]:
    """The innermost type of a field, whether it is an array, and whether null may stand for it."""
    nullable = False
    if get_origin(annotation) in (UnionType, Union):
        annotation = next(part for part in get_args(annotation) if part is not NoneType)
        nullable = True
    if get_origin(annotation) is tuple:
        return get_args(annotation)[0], True, nullable
    return annotation, False, nullable


def _in_ms(default: Any) -> Any:
    """A default of kio's; its durations become milliseconds."""
    return round(default.total_seconds() * 1000) if hasattr(default, "total_seconds") else default


def _structure(schema: Any, nullable: bool) -> tuple[ReadField, WriteField]:
    entity = _entity(schema)
    if not nullable:
        return entity.read, entity.write

    def read(source: Reader) -> Any:
        return None if source.int8() < 0 else entity.read(source)

    def write(out: Writer, value: Any) -> None:
        out.int8(-1 if value is None else 1)
        if value is not None:
            entity.write(out, value)

    return read, write


def _array(
    read_item: ReadField, write_item: WriteField, flexible: bool, nullable: bool
) -> tuple[ReadField, WriteField]:
    def read(source: Reader) -> Any:
        count = source.uvarint() - 1 if flexible else source.int32()
        if count < 0 and nullable:
            return None
        # An item takes at least one byte, so a larger count is a lie and must allocate nothing.
        if not 0 <= count <= source.remaining:
            raise Malformed(f"an array of {count} in {source.remaining} bytes")
        source.spend(count)
        return tuple(read_item(source) for _ in range(count))

    def write(out: Writer, value: Any) -> None:
        count = -1 if value is None else len(value)
        if flexible:
            out.uvarint(count + 1)
        else:
            out.int32(count)
        for item in value or ():
            write_item(out, item)

    return read, write


def _primitive(kind: str, flexible: bool, nullable: bool) -> tuple[ReadField, WriteField]:
    if kind in _FIXED:
        return _FIXED[kind]
    assert kind in {"string", "bytes", "records"}, f"kio added the type {kind}"
    text = kind == "string"

    def length(source: Reader) -> int:
        if flexible:
            return source.uvarint() - 1
        return source.int16() if text else source.int32()

    def read(source: Reader) -> Any:
        count = length(source)
        if count < 0:
            if not nullable:
                raise Malformed(f"null where a {kind} must stand at {source.position}")
            return None
        data = source.take(count)
        if not text:
            return bytes(data)
        try:
            return str(data, "utf-8")
        except UnicodeDecodeError as error:
            raise Malformed(f"not UTF-8 before {source.position}") from error

    def write(out: Writer, value: Any) -> None:
        # kio does not know all nullable strings of Kafka, so null is written wherever it is given.
        data = value.encode() if isinstance(value, str) else value
        count = -1 if data is None else len(data)
        if flexible:
            out.uvarint(count + 1)
        elif text:
            out.int16(count)
        else:
            out.int32(count)
        out.raw(data or b"")

    return read, write


def _packed(layout: str) -> tuple[ReadField, WriteField]:
    packer = struct.Struct(layout)

    def read(source: Reader) -> Any:
        return packer.unpack(source.take(packer.size))[0]

    def write(out: Writer, value: Any) -> None:
        out.raw(packer.pack(value))

    return read, write


def _read_uuid(source: Reader) -> Any:
    """Kafka's zero id means none."""
    value = source.uuid()
    return value if value.int else None


def _write_uuid(out: Writer, value: Any) -> None:
    out.raw(_ZERO_UUID if value is None else value.bytes)


_FIXED: dict[str, tuple[ReadField, WriteField]] = {
    "bool": (Reader.boolean, Writer.boolean),
    "uuid": (_read_uuid, _write_uuid),
    "float64": _packed(">d"),
    "uint16": _packed(">H"),
    **dict.fromkeys(("int8",), _packed(">b")),
    **dict.fromkeys(("int16", "error_code"), _packed(">h")),
    **dict.fromkeys(("int32", "timedelta_i32"), _packed(">i")),
    **dict.fromkeys(("int64", "timedelta_i64", "datetime_i64"), _packed(">q")),
}
