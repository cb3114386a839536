"""Requests that repeat an element: answered once, or refused once where a batch would be lost."""

from typing import Any

import pytest
from tests.broker.conftest import Wire

from headrace.wire import batches, codec
from headrace.wire.batches import Record

TIMES = 1000
INVALID_REQUEST = 42
PRODUCE, LIST_OFFSETS, COMMIT, OFFSET_FETCH = 0, 2, 8, 9


def records(size: int) -> bytes:
    return bytes(batches.build([Record(0, 1000, None, bytes(size))]))


def topics(key: str, name: str, partitions: str, element: Any) -> dict[str, Any]:
    """Repeat a partition: half of the times in one topic, and half with the topic."""
    half = TIMES // 2
    repeated = [{name: "orders", partitions: [element]}] * half
    return {key: [{name: "orders", partitions: [element] * half}, *repeated]}


def committed(offset: int) -> dict[str, Any]:
    return {"partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1,
            "committed_metadata": ""}  # fmt: skip


COMMITS = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "",
           "group_instance_id": None}  # fmt: skip
# API, its key and version, a request that repeats an element, where the response has its answers
# (a topic and its partitions, or a list), and their error code.
REPEATED: list[tuple[str, int, int, dict[str, Any], tuple[str, ...], int]] = [
    ("Produce", PRODUCE, 8, {"transactional_id": None, "acks": 1, "timeout": 1000}
     | topics("topic_data", "name", "partition_data", {"index": 0, "records": records(10)}),
     ("responses", "partition_responses"), INVALID_REQUEST),
    ("OffsetCommit", COMMIT, 8, COMMITS | topics("topics", "name", "partitions", committed(1)),
     ("topics", "partitions"), 0),
    ("OffsetDelete", 47, 0, {"group_id": "g"}
     | topics("topics", "name", "partitions", {"partition_index": 0}),
     ("topics", "partitions"), 0),
    ("DeleteRecords", 21, 2, {"timeout": 1000}
     | topics("topics", "name", "partitions", {"partition_index": 0, "offset": 0}),
     ("topics", "partitions"), 0),
    ("FindCoordinator", 10, 4, {"key_type": 0, "coordinator_keys": ["g"] * TIMES},
     ("coordinators",), 0),
    ("ElectLeaders", 43, 2, {"election_type": 0, "timeout": 1000}
     | topics("topic_partitions", "topic", "partitions", 0),
     ("replica_election_results", "partition_result"), 84),
    ("OffsetForLeaderEpoch", 23, 4, {"replica_id": -1}
     | topics("topics", "topic", "partitions",
              {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}),
     ("topics", "partitions"), 0),
    ("AlterPartitionReassignments", 45, 0, {"timeout": 1000}
     | topics("topics", "name", "partitions", {"partition_index": 0, "replicas": [1]}),
     ("responses", "partitions"), 0),
    ("DescribeShareGroupOffsets", 90, 0, {"groups": [
        {"group_id": "s"} | topics("topics", "topic_name", "partitions", 0)]},
     ("groups", "topics", "partitions"), 0),
    ("AlterShareGroupOffsets", 91, 0, {"group_id": "s"}
     | topics("topics", "topic_name", "partitions", {"partition_index": 0, "start_offset": 0}),
     ("responses", "partitions"), 0),
    ("LeaveGroup", 13, 5, {"group_id": "g", "members": [
        {"member_id": "m", "group_instance_id": None, "reason": None}] * TIMES},
     ("members",), 25),
    ("DescribeUserScramCredentials", 50, 0, {"users": [{"name": "u"}] * TIMES}, ("results",), 91),
]  # fmt: skip


# API, its key and version, a request for a topic without partitions, where the response has topics,
# their names and their partitions, and whether it has the topic.
WITHOUT_PARTITIONS: list[tuple[str, int, int, dict[str, Any], tuple[str, str, str], bool]] = [
    ("OffsetForLeaderEpoch", 23, 4,
     {"replica_id": -1, "topics": [{"topic": "orders", "partitions": []}]},
     ("topics", "topic", "partitions"), True),
    ("DescribeProducers", 61, 0, {"topics": [{"name": "orders", "partition_indexes": []}]},
     ("topics", "name", "partitions"), True),
    ("ElectLeaders", 43, 2, {"election_type": 0, "timeout": 1000,
     "topic_partitions": [{"topic": "orders", "partitions": []}]},
     ("replica_election_results", "topic", "partition_result"), True),
    ("AlterPartitionReassignments", 45, 0,
     {"timeout": 1000, "topics": [{"name": "orders", "partitions": []}]},
     ("responses", "name", "partitions"), True),
    ("DeleteRecords", 21, 2, {"timeout": 1000, "topics": [{"name": "orders", "partitions": []}]},
     ("topics", "name", "partitions"), False),
    ("OffsetDelete", 47, 0, {"group_id": "g", "topics": [{"name": "orders", "partitions": []}]},
     ("topics", "name", "partitions"), False),
    ("OffsetDelete of an unknown topic", 47, 0,
     {"group_id": "g", "topics": [{"name": "unknown", "partitions": []}]},
     ("topics", "name", "partitions"), True),
]  # fmt: skip


@pytest.fixture
def orders(wire: Wire) -> Wire:
    """One connection; there are the topic `orders`, and an offset of group "g" in it."""
    wire.create("orders", num_partitions=1)
    partitions = [{"name": "orders", "partitions": [committed(1)]}]
    wire.call(COMMIT, 8, **COMMITS, topics=partitions)
    return wire


@pytest.mark.parametrize(
    ("key", "version", "fields", "path", "code"),
    [case[1:] for case in REPEATED], ids=[case[0] for case in REPEATED],
)  # fmt: skip
def test_a_repeated_element_is_answered_once(
    orders: Wire, key: int, version: int, fields: dict[str, Any], path: tuple[str, ...], code: int
) -> None:
    answers = [orders.call(key, version, **fields)]
    for name in path:
        answers = [inner for outer in answers for inner in getattr(outer, name)]
        assert len(answers) == 1
    assert answers[0].error_code == code


@pytest.mark.parametrize(
    ("key", "version", "fields", "path", "is_answered"),
    [case[1:] for case in WITHOUT_PARTITIONS], ids=[case[0] for case in WITHOUT_PARTITIONS],
)  # fmt: skip
def test_a_topic_without_partitions_is_answered_where_kafka_answers_by_topic(
    orders: Wire, key: int, version: int, fields: dict[str, Any], path: tuple[str, str, str],
    is_answered: bool,
) -> None:  # fmt: skip
    topics, name, partitions = path
    answered = getattr(orders.call(key, version, **fields), topics)
    shown = [(getattr(one, name), len(getattr(one, partitions))) for one in answered]
    (requested,) = next(one for one in fields.values() if isinstance(one, list))
    assert shown == ([(requested[name], 0)] if is_answered else [])


def test_the_last_offset_of_a_commit_counts(orders: Wire) -> None:
    partitions = [committed(offset) for offset in (5, 9, 7)]
    orders.call(COMMIT, 8, **COMMITS, topics=[{"name": "orders", "partitions": partitions}])
    requested = [{"name": "orders", "partition_indexes": [0]}]
    answer = orders.call(OFFSET_FETCH, 5, group_id="g", topics=requested)
    assert answer.topics[0].partitions[0].committed_offset == 7


def test_of_several_batches_for_a_partition_none_is_appended_and_others_are(wire: Wire) -> None:
    wire.create("orders", num_partitions=2)
    data = [{"index": index, "records": records(index)} for index in (0, 1, 0)]
    fields = {"transactional_id": None, "acks": 1, "timeout": 1000,
              "topic_data": [{"name": "orders", "partition_data": data}]}  # fmt: skip
    (answer,) = wire.call(PRODUCE, 8, **fields).responses
    results = answer.partition_responses
    assert [(result.index, result.error_code, result.base_offset) for result in results] == [
        (0, INVALID_REQUEST, -1), (1, 0, 0),
    ]  # fmt: skip
    assert "several batches" in results[0].error_message
    partitions = [{"partition_index": index, "current_leader_epoch": -1, "timestamp": -1}
                  for index in (0, 1)]  # fmt: skip
    latest = [{"name": "orders", "partitions": partitions}]
    (ends,) = wire.call(LIST_OFFSETS, 5, replica_id=-1, isolation_level=0, topics=latest).topics
    assert [end.offset for end in ends.partitions] == [0, 1]
    wire.send(PRODUCE, 8, bytes(codec.encode_request(PRODUCE, 8, fields | {"acks": 0})))
    assert wire.closed(), "without acks there is no other way to refuse"
