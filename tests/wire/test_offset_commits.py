"""OffsetCommit by hand against the schema codec, which shares no code with it."""

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.wire import codec, offset_commits
from headrace.wire.offset_commits import TOPIC_IDS_SINCE, CommitRequest, Place
from headrace.wire.primitives import Malformed

KEY = 8
VERSIONS = range(2, 11)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
PLACES = st.fixed_dictionaries(
    {
        "partition_index": st.integers(-(1 << 31), (1 << 31) - 1),
        "committed_offset": st.integers(-(1 << 63), (1 << 63) - 1),
        "committed_leader_epoch": st.integers(-1, (1 << 31) - 1),
        "committed_metadata": st.none() | NAMES,
    }
)
TOPICS = st.fixed_dictionaries(
    {
        "name": NAMES,
        "topic_id": st.none() | st.integers(1, (1 << 128) - 1).map(lambda number: UUID(int=number)),
        "partitions": st.lists(PLACES, max_size=3),
    }
)
REQUESTS = st.fixed_dictionaries(
    {
        "group_id": NAMES,
        "generation_id_or_member_epoch": st.integers(-1, (1 << 31) - 1),
        "member_id": NAMES,
        "group_instance_id": st.none() | NAMES,
        "retention_time": st.integers(-1, (1 << 63) - 1),
        "topics": st.lists(TOPICS, max_size=3),
    }
)


def read(body: bytes, version: int) -> CommitRequest:
    """What is read by hand, places of offsets aside."""
    found = offset_commits.read(body, version)
    topics = [(key, [one._replace(at=0) for one in places]) for key, places in found.topics]
    return found._replace(topics=topics)


def by_schema(body: bytes, version: int) -> CommitRequest:
    """What the schema codec reads."""
    message: Any = codec.decode_request(KEY, version, body)
    return CommitRequest(
        message.group_id,
        message.generation_id_or_member_epoch,
        message.member_id,
        getattr(message, "group_instance_id", None),
        getattr(message, "retention_time", -1),
        [
            (
                topic.topic_id if version >= TOPIC_IDS_SINCE else topic.name,
                [
                    Place(
                        one.partition_index,
                        one.committed_offset,
                        getattr(one, "committed_leader_epoch", -1),
                        one.committed_metadata,
                        0,
                    )
                    for one in topic.partitions
                ],
            )
            for topic in message.topics
        ],
    )


@given(st.sampled_from(VERSIONS), REQUESTS)
def test_requests_are_read_as_their_schema_says(version: int, fields: dict[str, Any]) -> None:
    body = bytes(codec.encode_request(KEY, version, fields))
    assert read(body, version) == by_schema(body, version)
    for _, places in offset_commits.read(body, version).topics:
        for one in places:
            assert int.from_bytes(body[one.at : one.at + 8], signed=True) == one.offset


@given(st.sampled_from(VERSIONS), REQUESTS, st.data())
def test_what_the_schema_refuses_is_refused(
    version: int, fields: dict[str, Any], data: st.DataObject
) -> None:
    body = bytearray(codec.encode_request(KEY, version, fields))
    place = data.draw(st.integers(0, len(body) - 1))
    body[place] = data.draw(st.integers(0, 255))
    damaged = bytes(body[: data.draw(st.integers(place, len(body)))])
    try:
        expected = by_schema(damaged, version)
    except Malformed:
        with pytest.raises(Malformed):
            offset_commits.read(damaged, version)
    else:
        assert read(damaged, version) == expected


@given(
    st.sampled_from(VERSIONS),
    st.lists(st.tuples(TOPICS, st.lists(st.tuples(st.integers(0, 9), st.integers(-1, 120))))),
)
def test_answers_are_written_as_their_schema_says(
    version: int, topics: list[tuple[dict[str, Any], list[tuple[int, int]]]]
) -> None:
    by_id = version >= TOPIC_IDS_SINCE
    told = [
        (topic["topic_id"] if by_id else topic["name"], partitions) for topic, partitions in topics
    ]
    fields = {
        "topics": [
            {
                "topic_id" if by_id else "name": key,
                "partitions": [
                    {"partition_index": index, "error_code": code} for index, code in partitions
                ],
            }
            for key, partitions in told
        ]
    }
    assert offset_commits.written(told, version) == codec.encode_response(KEY, version, fields)
