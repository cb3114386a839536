"""Committed offsets: listed, set, reset and deleted, with one result a partition."""

from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import Producer

from headrace.client.connection import Cluster
from headrace.client.errors import BrokerError
from headrace.client.group_offsets import (
    CommittedOffset,
    PartitionResults,
    alter_group_offsets,
    delete_group_offsets,
    list_group_offsets,
    reset_group_offsets,
)
from headrace.client.offsets import OffsetSpec
from headrace.client.topics import create_topic
from headrace.wire.codec import decode_request, encode_response

OFFSET_COMMIT, OFFSET_FETCH, OFFSET_DELETE = 8, 9, 47


def codes(found: PartitionResults) -> dict[tuple[str, int], int]:
    return {one: error.code if error else 0 for one, error in found.errors.items()}


def deleting(script: Any, *answers: dict[str, Any]) -> list[Any]:
    """Let the scripted broker delete offsets; returns what it was asked for."""
    asked, left = [], list(answers)

    def delete(body: Any) -> bytes:
        asked.append(decode_request(OFFSET_DELETE, 0, body.take(body.remaining)))
        values = {"error_code": 0, "topics": [], **left.pop(0)}
        return bytes(encode_response(OFFSET_DELETE, 0, values))

    script.answers[OFFSET_DELETE] = delete
    return asked


def topic(name: str, *partitions: tuple[int, int]) -> dict[str, Any]:
    return {
        "name": name,
        "partitions": [
            {"partition_index": index, "error_code": code} for index, code in partitions
        ],
    }


def test_offsets_are_set_and_listed(real: Cluster) -> None:
    create_topic(real, "s", 3)
    given: dict[tuple[str, int], CommittedOffset | int]
    given = {("s", 1): CommittedOffset(2, 0, "note"), ("s", 0): 3}
    found = alter_group_offsets(real, "s-group", given)
    assert (found.all(), found.partitions) == (None, (("s", 1), ("s", 0)))
    found.check()
    stored = {("s", 0): CommittedOffset(3), ("s", 1): CommittedOffset(2, 0, "note")}
    assert list(list_group_offsets(real, "s-group").items()) == sorted(stored.items())
    assert list_group_offsets(real, "s-group", [("s", 2), ("s", 1), ("none", 0)]) == {
        ("s", 1): stored["s", 1]
    }
    assert list_group_offsets(real, "s-group", []) == {}
    assert list_group_offsets(real, "s-group", require_stable=True) == stored
    assert list_group_offsets(real, "s-missing") == {}


def test_setting_offsets_tells_each_partitions_error(real: Cluster) -> None:
    create_topic(real, "e", 1)
    wanted: dict[tuple[str, int], CommittedOffset | int]
    wanted = {("e", 9): 1, ("e", 0): CommittedOffset(1, metadata="x" * 5000), ("none", 0): 1}
    found = alter_group_offsets(real, "e-group", wanted)
    assert codes(found) == {("e", 9): 3, ("e", 0): 12, ("none", 0): 3}
    assert found.all() is found.errors["e", 9]
    with pytest.raises(BrokerError, match=r"group 'e-group' in e-9: UNKNOWN_TOPIC_OR_PARTITION"):
        found.check()
    assert alter_group_offsets(real, "e-nothing", {}).all() is None


def test_an_offset_below_0_is_no_offset(cluster: Cluster, script: Any) -> None:
    """Brokers store whatever they get; Java refuses to send it, and passes over one it is told."""
    with pytest.raises(ValueError, match="-5 is no offset; the first one of t-0 is 0"):
        alter_group_offsets(cluster, "g", {("t", 0): -5})
    with pytest.raises(ValueError, match="-1 is no offset"):
        alter_group_offsets(cluster, "g", {("t", 0): CommittedOffset(-1)})


def test_offsets_are_not_set_under_members(real: Cluster, joined: Any) -> None:
    create_topic(real, "m", 1)
    with joined("m-group", "m"):
        error = alter_group_offsets(real, "m-group", {("m", 0): 1}).all()
    assert error is not None
    assert error.code == 25
    assert str(error).endswith("offsets can be set while the group has no members; stop them first")


def test_reset_goes_to_ends_and_points_in_time(real: Cluster, running: Any, joined: Any) -> None:
    create_topic(real, "z", 2)
    producer = Producer({"bootstrap.servers": running.bootstrap_servers})
    for second in (10, 20, 30):
        producer.produce("z", b"v", partition=0, timestamp=second * 1000)
    assert producer.flush(30) == 0
    at_15 = datetime.fromtimestamp(15, UTC)
    to = {("z", 0): at_15, ("z", 1): at_15}
    moved = reset_group_offsets(real, "z-group", to, dry_run=True)
    assert {one: found.offset for one, found in moved.items()} == {("z", 0): 1, ("z", 1): 0}
    assert list_group_offsets(real, "z-group") == {}
    assert reset_group_offsets(real, "z-group", to) == moved
    assert list_group_offsets(real, "z-group") == moved
    assert reset_group_offsets(real, "z-group", {("z", 0): OffsetSpec.LATEST})["z", 0].offset == 3
    assert reset_group_offsets(real, "z-group", {("z", 0): OffsetSpec.EARLIEST})["z", 0].offset == 0
    with joined("z-group", "z"), pytest.raises(BrokerError, match="UNKNOWN_MEMBER_ID"):
        reset_group_offsets(real, "z-group", to)
    with pytest.raises(BrokerError, match="z-7"):
        reset_group_offsets(real, "z-group", {("z", 7): OffsetSpec.LATEST})


def test_kip_496_delete_consumer_group_offsets_result(cluster: Cluster, script: Any) -> None:
    """Seed KIP-496: "partitionResult(TopicPartition)" and "all()"."""
    asked = deleting(script, {"topics": [topic("t", (1, 0), (0, 86)), topic("u", (0, 3))]})
    found = delete_group_offsets(cluster, "g", [("u", 0), ("t", 0), ("t", 1), ("t", 0)])
    assert [
        (one.name, [part.partition_index for part in one.partitions]) for one in asked[0].topics
    ] == [("u", [0]), ("t", [0, 1])]
    assert found.partitions == (("u", 0), ("t", 0), ("t", 1))
    assert found.partition_result(("t", 1)) is None
    subscribed = found.partition_result(("t", 0))
    assert subscribed is not None
    assert (subscribed.code, subscribed.name) == (86, "GROUP_SUBSCRIBED_TO_TOPIC")
    assert "The consumer group is actively subscribed to the topic; stop" in str(subscribed)
    assert found.all() is found.partition_result(("u", 0)), "the first in the order asked"
    with pytest.raises(ValueError, match="t-7 was not asked for"):
        found.partition_result(("t", 7))


def test_kip_496_a_group_error_is_that_of_all_partitions(cluster: Cluster, script: Any) -> None:
    deleting(script, {"error_code": 69})
    found = delete_group_offsets(cluster, "g", [("t", 0), ("t", 1)])
    assert found.group_error is not None
    assert (found.group_error.code, found.group_error.message) == (
        69,
        "The group id does not exist.",
    )
    assert found.partition_result(("t", 1)) is found.group_error
    assert found.all() is found.group_error
    with pytest.raises(ValueError, match="was not asked for"):
        found.partition_result(("u", 0))
    with pytest.raises(BrokerError, match="deleting offsets of group 'g': GROUP_ID_NOT_FOUND"):
        found.check()


def test_kip_496_an_empty_set_succeeds_but_not_for_a_group_that_is_not_there(
    cluster: Cluster, script: Any
) -> None:
    deleting(script, {}, {"error_code": 69})
    assert delete_group_offsets(cluster, "g", []).all() is None
    error = delete_group_offsets(cluster, "none", []).all()
    assert error is not None
    assert error.code == 69


def test_kip_496_a_partition_that_the_answer_leaves_out_failed(
    cluster: Cluster, script: Any
) -> None:
    deleting(script, {"topics": [topic("t", (0, 0))]})
    found = delete_group_offsets(cluster, "g", [("t", 0), ("t", 1)])
    assert found.partition_result(("t", 0)) is None
    error = found.partition_result(("t", 1))
    assert error is not None
    assert error.message == "t-1 was not included in the response"


def test_kip_496_a_live_group_keeps_what_it_subscribes_to(real: Cluster, joined: Any) -> None:
    """Seed KIP-496: GROUP_SUBSCRIBED_TO_TOPIC, and else "the deletion can be done immediately"."""
    for name in ("mine", "other"):
        create_topic(real, name, 2)
    wanted = [("mine", 0), ("other", 1), ("other", 9)]
    alter_group_offsets(real, "k-group", dict.fromkeys(wanted[:2], 1)).check()
    with joined("k-group", "mine"):
        found = delete_group_offsets(real, "k-group", wanted)
        assert codes(found) == {("mine", 0): 86, ("other", 1): 0, ("other", 9): 3}
        assert list(list_group_offsets(real, "k-group")) == [("mine", 0)]
    assert delete_group_offsets(real, "k-group", wanted[:1]).all() is None
    assert list_group_offsets(real, "k-group") == {}


def test_kip_496_errors_of_groups(real: Cluster) -> None:
    create_topic(real, "n", 1)
    for group, code in (("k-none", 69), ("", 24)):
        found = delete_group_offsets(real, group, [("n", 0)])
        assert found.group_error is not None
        assert found.group_error.code == code
        assert found.errors == {}


def test_a_coordinator_that_moves_is_looked_up_again(cluster: Cluster, script: Any) -> None:
    script.coordinator_errors = [15]
    asked = deleting(
        script, {"error_code": 16}, {"error_code": 14}, {"topics": [topic("t", (0, 0))]}
    )
    assert delete_group_offsets(cluster, "g", [("t", 0)]).all() is None
    assert len(asked) == 3
    script.coordinator_errors = [30]
    error = delete_group_offsets(cluster, "g", [("t", 0)]).group_error
    assert error is not None
    assert error.code == 30


def test_a_commit_that_a_coordinator_has_no_time_for_is_sent_again(
    cluster: Cluster, script: Any
) -> None:
    left, requests = [16, 14, 0], []

    def commit(body: Any) -> bytes:
        requests.append(decode_request(OFFSET_COMMIT, 9, body.take(body.remaining)))
        topics = [topic("t", (0, left.pop(0)))]
        return bytes(encode_response(OFFSET_COMMIT, 9, {"topics": topics}))

    script.answers[OFFSET_COMMIT] = commit
    assert alter_group_offsets(cluster, "g", {("t", 0): 5}).all() is None
    assert left == []
    sent = requests[-1]
    assert (sent.generation_id_or_member_epoch, sent.member_id) == (-1, "")
    assert sent.topics[0].partitions[0].committed_leader_epoch == -1


def fetching(script: Any, *answers: dict[str, Any]) -> None:
    left = list(answers)

    def fetch(body: Any) -> bytes:
        return bytes(
            encode_response(OFFSET_FETCH, 7, {"error_code": 0, "topics": [], **left.pop(0)})
        )

    script.answers[OFFSET_FETCH] = fetch


def test_offsets_of_a_running_transaction_are_waited_for(cluster: Cluster, script: Any) -> None:
    def stored(code: int, offset: int) -> dict[str, Any]:
        one = {"partition_index": 0, "committed_offset": offset, "error_code": code}
        part = {**one, "committed_leader_epoch": -1, "metadata": None}
        return {"topics": [{"name": "t", "partitions": [part]}]}

    fetching(script, stored(88, -1), stored(0, 4))
    found = list_group_offsets(cluster, "g", [("t", 0)], require_stable=True)
    assert found == {("t", 0): CommittedOffset(4, None, "")}


def test_offsets_that_may_not_be_seen(cluster: Cluster, script: Any) -> None:
    fetching(script, {"error_code": 30})
    with pytest.raises(BrokerError, match="listing offsets of group 'g': GROUP_AUTHORIZATION"):
        list_group_offsets(cluster, "g")
    script.coordinator_errors = [24]
    with pytest.raises(BrokerError, match="finding the coordinator of group 'g': INVALID_GROUP_ID"):
        list_group_offsets(cluster, "g")
