"""The codec against kio's own reader and writer, which share no code with it."""

import dataclasses
import io
from datetime import timedelta
from enum import IntEnum
from types import UnionType
from typing import Any, Union, get_args, get_origin
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader, entity_writer

from headrace.wire import codec
from headrace.wire.primitives import Malformed

KEYS = (2, 3, 10, 18, 19, 20, 22, 32, 37, 44, 60, 75, 76, 78, 79)
MESSAGES = [(key, version) for key in KEYS for version in schema_name_map[api_key_map[key]]]
SAMPLES: dict[str, Any] = {
    "string": "naïve",
    "bytes": b"\x00\xff",
    "records": b"\x01\x02",
    "bool": True,
    "uuid": UUID(int=7),
    "error_code": 3,
    "int8": 5,
    "int16": 300,
    "int32": 70_000,
    "int64": 5_000_000_000,
    "uint16": 65_000,
    "float64": 0.5,
    "timedelta_i32": 1500,
    "timedelta_i64": 1500,
    "datetime_i64": 1_700_000_000_123,
}


def sample(schema: type[Any], *, null: bool) -> dict[str, Any]:
    """A value for every field: arrays of two, or null wherever the schema allows it."""
    return {field.name: _value(field, null=null) for field in dataclasses.fields(schema)}


def _value(field: Any, *, null: bool) -> Any:
    annotation, optional = field.type, False
    if get_origin(annotation) in (UnionType, Union):
        annotation = next(part for part in get_args(annotation) if part is not type(None))
        optional = True
    if null and optional and "tag" not in field.metadata:
        return None
    array = get_origin(annotation) is tuple
    inner = get_args(annotation)[0] if array else annotation
    if dataclasses.is_dataclass(inner):
        item: Any = sample(inner, null=null)  # type: ignore[arg-type]  # an instance never stands here
    else:
        item = SAMPLES[field.metadata["kafka_type"]]
    return [item, item] if array else item


def plain(value: Any) -> Any:
    """A kio object as nested dictionaries, its durations and codes as integers.

    The reason of an acknowledgement, which Kafka's message has not, is left out when there is none.
    """
    if dataclasses.is_dataclass(value):
        return {
            field.name: plain(found)
            for field in dataclasses.fields(value)
            if (found := getattr(value, field.name)) is not None or field.name != "reason"
        }
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, timedelta):
        return round(value.total_seconds() * 1000)
    if isinstance(value, IntEnum):
        return int(value)
    return value


@pytest.mark.parametrize("null", [False, True])
@pytest.mark.parametrize(("key", "version"), MESSAGES)
def test_kio_reads_what_we_write(key: int, version: int, null: bool) -> None:
    schema = load_response_schema(key, version)
    values = sample(schema, null=null)
    written = codec.encode_response(key, version, values)
    read, size = entity_reader(schema)(bytes(written), 0)
    assert size == len(written)
    assert plain(read) == plain(values)
    assert plain(codec.decode_response(key, version, written)) == plain(values)


@pytest.mark.parametrize("null", [False, True])
@pytest.mark.parametrize(("key", "version"), MESSAGES)
def test_we_read_what_kio_writes(key: int, version: int, null: bool) -> None:
    schema = load_request_schema(key, version)
    written = codec.encode_request(key, version, sample(schema, null=null))
    read, _ = entity_reader(schema)(bytes(written), 0)
    with io.BytesIO() as again:
        entity_writer(schema)(again, read)
        assert plain(codec.decode_request(key, version, again.getvalue())) == plain(read)


@pytest.mark.parametrize(("key", "version"), MESSAGES)
def test_kio_and_we_agree_on_header_versions(key: int, version: int) -> None:
    assert codec.knows(key, version)
    header = load_request_schema(key, version).__header_schema__
    assert codec.is_flexible(key, version) == (header.__version__ == 2)


@pytest.mark.parametrize(("key", "version"), [(78, 1), (78, 2), (79, 1), (79, 2)])
def test_an_acknowledgement_may_bring_a_reason(key: int, version: int) -> None:
    values = sample(load_request_schema(key, version), null=False)
    said = values["topics"][0]["partitions"][0]["acknowledgement_batches"]
    said[0] = said[0] | {"reason": "schäbig"}
    read = codec.decode_request(key, version, codec.encode_request(key, version, values))
    batches = read.topics[0].partitions[0].acknowledgement_batches
    assert [one.reason for one in batches] == ["schäbig", None]


def test_fields_of_other_versions_are_dropped_and_defaults_left_out() -> None:
    body = codec.encode_response(
        3, 0, {"brokers": [], "topics": [], "cluster_id": "c", "no_such_field": 1}
    )
    assert plain(codec.decode_response(3, 0, body)) == {"brokers": [], "topics": []}


def test_a_field_without_a_default_must_be_given() -> None:
    with pytest.raises(AssertionError, match="needs brokers"):
        codec.encode_response(3, 12, {"topics": []})


def test_unknown_messages_are_not_known() -> None:
    assert not codec.knows(3, 99)
    assert not codec.knows(20900, 0)


def test_a_claimed_array_allocates_nothing() -> None:
    with pytest.raises(Malformed, match="an array of"):
        codec.decode_request(3, 1, b"\x7f\xff\xff\xff")
    with pytest.raises(Malformed, match="an array of"):
        codec.decode_request(3, 12, b"\xff\xff\xff\xff\x07" + bytes(20))


@settings(max_examples=300)
@given(st.sampled_from(MESSAGES), st.binary(max_size=80))
def test_random_bytes_are_read_or_malformed(message: tuple[int, int], body: bytes) -> None:
    try:
        read = codec.decode_request(*message, body)
    except Malformed:
        return
    assert type(read) is load_request_schema(*message)


@given(st.sampled_from(MESSAGES), st.data())
def test_a_message_cut_short_is_malformed(message: tuple[int, int], data: st.DataObject) -> None:
    whole = codec.encode_request(*message, sample(load_request_schema(*message), null=False))
    if whole:
        cut = data.draw(st.integers(0, len(whole) - 1))
        with pytest.raises(Malformed):
            codec.decode_request(*message, whole[:cut])
