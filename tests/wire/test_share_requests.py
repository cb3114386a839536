"""ShareFetch and ShareAcknowledge by hand against the schema codec, with no code in common."""

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.wire import codec, share_requests
from headrace.wire.primitives import Malformed, Writer
from headrace.wire.share_requests import (
    AcknowledgedPart,
    AcknowledgeRequest,
    Batch,
    FetchedPart,
    FetchRequest,
    Part,
)

FETCH, ACKNOWLEDGE = 78, 79
VERSIONS = st.sampled_from((1, 2))
NAMES = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
INT16 = st.integers(-(1 << 15), (1 << 15) - 1)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
IDS = st.integers(1, (1 << 128) - 1).map(lambda number: UUID(int=number))
ACKNOWLEDGEMENTS = st.fixed_dictionaries(
    {
        "first_offset": INT64,
        "last_offset": INT64,
        "acknowledge_types": st.lists(st.integers(-128, 127), max_size=3).map(tuple),
    }
)
PARTITIONS = st.fixed_dictionaries(
    {
        "partition_index": INT32,
        "acknowledgement_batches": st.lists(ACKNOWLEDGEMENTS, max_size=3).map(tuple),
    }
)
TOPICS = st.fixed_dictionaries(
    {"topic_id": IDS, "partitions": st.lists(PARTITIONS, max_size=3).map(tuple)}
)
FORGOTTEN = st.fixed_dictionaries(
    {"topic_id": IDS, "partitions": st.lists(INT32, max_size=3).map(tuple)}
)
FETCHES = st.fixed_dictionaries(
    {
        "group_id": NAMES,
        "member_id": NAMES,
        "share_session_epoch": INT32,
        "max_wait": INT32,
        "min_bytes": INT32,
        "max_bytes": INT32,
        "max_records": INT32,
        "batch_size": INT32,
        "share_acquire_mode": st.integers(-128, 127),
        "is_renew_ack": st.booleans(),
        "topics": st.lists(TOPICS, max_size=3).map(tuple),
        "forgotten_topics_data": st.lists(FORGOTTEN, max_size=2).map(tuple),
    }
)
ACQUIRED = st.tuples(INT64, INT64, INT16)


def parts_of(message: Any) -> list[Part]:
    return [
        Part(
            topic.topic_id or UUID(int=0),
            part.partition_index,
            [
                Batch(
                    one.first_offset,
                    one.last_offset,
                    bytes(kind & 0xFF for kind in one.acknowledge_types),
                )
                for one in part.acknowledgement_batches
            ],
        )
        for topic in message.topics
        for part in topic.partitions
    ]


def fetch_by_schema(body: bytes, version: int) -> FetchRequest:
    """What the schema codec reads."""
    message: Any = codec.decode_request(FETCH, version, body)
    return FetchRequest(
        message.group_id, message.member_id, message.share_session_epoch,
        getattr(message, "is_renew_ack", False), parts_of(message), message.max_wait,
        message.min_bytes, message.max_bytes, message.max_records, message.batch_size,
        getattr(message, "share_acquire_mode", 0),
        [
            (topic.topic_id or UUID(int=0), index)
            for topic in message.forgotten_topics_data
            for index in topic.partitions
        ],
    )  # fmt: skip


def acknowledge_by_schema(body: bytes, version: int) -> AcknowledgeRequest:
    """What the schema codec reads."""
    message: Any = codec.decode_request(ACKNOWLEDGE, version, body)
    return AcknowledgeRequest(
        message.group_id,
        message.member_id,
        message.share_session_epoch,
        getattr(message, "is_renew_ack", False),
        parts_of(message),
    )


READERS = st.sampled_from(
    (
        (FETCH, share_requests.read_fetch, fetch_by_schema),
        (ACKNOWLEDGE, share_requests.read_acknowledge, acknowledge_by_schema),
    )
)


@given(READERS, VERSIONS, FETCHES)
def test_requests_are_read_as_their_schema_says(
    readers: Any, version: int, fields: dict[str, Any]
) -> None:
    key, read, by_schema = readers
    body = bytes(codec.encode_request(key, version, fields))
    assert read(body, version) == by_schema(body, version)


@given(READERS, VERSIONS, FETCHES, st.data())
def test_what_the_schema_refuses_is_refused(
    readers: Any, version: int, fields: dict[str, Any], data: st.DataObject
) -> None:
    key, read, by_schema = readers
    body = bytearray(codec.encode_request(key, version, fields))
    place = data.draw(st.integers(0, len(body) - 1))
    body[place] = data.draw(st.integers(0, 255))
    damaged = bytes(body[: data.draw(st.integers(place, len(body)))])
    try:
        expected = by_schema(damaged, version)
    except Malformed:
        with pytest.raises(Malformed):
            read(damaged, version)
    else:
        assert read(damaged, version) == expected


@pytest.mark.parametrize("reason", ["", "too old", "x" * 300])
def test_a_reason_comes_in_a_field_of_ours(reason: str) -> None:
    told = Writer()
    told.compact_nullable_string(reason)
    out = Writer()
    for name in ("group", "member"):
        out.compact_nullable_string(name)
    out.int32(7)
    out.boolean(False)
    out.uvarint(2)
    out.uuid(UUID(int=1))
    out.uvarint(2)
    out.int32(3)
    out.uvarint(3)
    for tags in (None, {share_requests.REASON_TAG: bytes(told.data)}):
        out.int64(5)
        out.int64(5)
        out.uvarint(2)
        out.int8(3)
        out.tags(tags)
    for _ in range(3):
        out.tags()
    (part,) = share_requests.read_acknowledge(out.data, 2).parts
    assert part.batches == [Batch(5, 5, b"\x03"), Batch(5, 5, b"\x03", reason)]


@given(
    VERSIONS,
    st.lists(st.builds(AcknowledgedPart, IDS, INT32, INT16, NAMES), max_size=4),
    INT16,
    NAMES,
    INT32,
    INT32,
)
def test_acknowledge_responses_are_as_their_schema_says(
    version: int,
    parts: list[AcknowledgedPart],
    code: int,
    message: str | None,
    lock_ms: int,
    leader_id: int,
) -> None:
    written = share_requests.written_acknowledge(
        parts, version, code=code, message=message, lock_ms=lock_ms, leader_id=leader_id
    )
    by_topic: dict[UUID, list[Any]] = {}
    for part in parts:
        leader = {"leader_id": leader_id, "leader_epoch": 0}
        told = {
            "partition_index": part.partition,
            "error_code": part.code,
            "error_message": part.message,
            "current_leader": leader,
        }
        by_topic.setdefault(part.topic_id, []).append(told)
    expected = {
        "error_code": code,
        "error_message": message,
        "acquisition_lock_timeout": lock_ms,
        "responses": [{"topic_id": one, "partitions": found} for one, found in by_topic.items()],
        "node_endpoints": [],
    }
    assert written == codec.encode_response(ACKNOWLEDGE, version, expected)


@given(
    VERSIONS,
    st.lists(
        st.builds(
            FetchedPart, IDS, INT32, INT16, NAMES, INT16, NAMES,
            st.binary(max_size=300), st.lists(ACQUIRED, max_size=3),
        ),
        max_size=4,
    ),
    INT32,
)  # fmt: skip
def test_fetch_responses_are_as_their_schema_says(
    version: int, parts: list[FetchedPart], lock_ms: int
) -> None:
    written = b"".join(share_requests.written_fetch(parts, lock_ms=lock_ms))
    by_topic: dict[UUID, list[Any]] = {}
    for part in parts:
        acquired = [
            {"first_offset": first, "last_offset": last, "delivery_count": deliveries}
            for first, last, deliveries in part.acquired
        ]
        told = {
            "partition_index": part.partition,
            "error_code": part.code,
            "error_message": part.message,
            "acknowledge_error_code": part.acknowledge_code,
            "acknowledge_error_message": part.acknowledge_message,
            "current_leader": {"leader_id": 0, "leader_epoch": 0},
            "records": part.records,
            "acquired_records": acquired,
        }
        by_topic.setdefault(part.topic_id, []).append(told)
    expected = {
        "error_code": 0,
        "error_message": None,
        "acquisition_lock_timeout": lock_ms,
        "responses": [{"topic_id": one, "partitions": found} for one, found in by_topic.items()],
        "node_endpoints": [],
    }
    assert written == codec.encode_response(FETCH, version, expected)
