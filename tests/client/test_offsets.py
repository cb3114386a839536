"""Offsets by what is asked, and records that are deleted up to one."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import Producer

from headrace.client.connection import Cluster, Patience
from headrace.client.errors import BrokerError, Unsupported
from headrace.client.group_offsets import alter_group_offsets
from headrace.client.offsets import ListedOffset, OffsetSpec, list_offsets
from headrace.client.share_groups import reset_share_group_offsets
from headrace.client.topics import create_topic, delete_records, list_topics
from headrace.wire.codec import decode_request, encode_response

LIST_OFFSETS, METADATA, DELETE_RECORDS = 2, 3, 21


def produce(servers: str, topic: str, *seconds: int) -> None:
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 0})
    for second in seconds:
        producer.produce(topic, b"v", partition=0, timestamp=second * 1000)
    assert producer.flush(30) == 0


def test_offsets_by_ends_and_times(real: Cluster, running: Any) -> None:
    create_topic(real, "o", 2)
    produce(running.bootstrap_servers, "o", 10, 40, 30)
    ends = list_offsets(real, {("o", 1): OffsetSpec.LATEST, ("o", 0): OffsetSpec.LATEST})
    assert list(ends) == [("o", 1), ("o", 0)]
    assert (ends["o", 1].offset, ends["o", 0].offset) == (0, 3)
    assert ends["o", 0].timestamp is None

    def first(spec: Any) -> ListedOffset:
        return list_offsets(real, {("o", 0): spec})["o", 0]

    assert first(OffsetSpec.EARLIEST).offset == 0
    assert first(OffsetSpec.MAX_TIMESTAMP) == ListedOffset(1, 40_000, 0)
    assert first(20_000) == ListedOffset(1, 40_000, 0)
    assert first(datetime.fromtimestamp(10, UTC)) == ListedOffset(0, 10_000, 0)
    assert first(datetime.fromtimestamp(40, UTC) + timedelta(milliseconds=1)).offset is None
    assert list_offsets(real, {}) == {}


def test_what_cannot_be_asked_for(real: Cluster) -> None:
    wrong: Any = "earliest"
    with pytest.raises(TypeError, match=r"'earliest'; give a mapping of \(topic, partition\)"):
        list_offsets(real, wrong)
    with pytest.raises(TypeError, match="give a mapping"):
        reset_share_group_offsets(real, "g", wrong)
    with pytest.raises(BrokerError, match=r"missing.*UNKNOWN_TOPIC_OR_PARTITION"):
        list_offsets(real, {("missing", 0): OffsetSpec.LATEST})
    with pytest.raises(ValueError, match="no time zone"):
        list_offsets(real, {("o", 0): datetime(2026, 1, 1)})  # noqa: DTZ001 -- what is refused
    for early in (-1, datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC)):
        with pytest.raises(ValueError, match="-1 is no time in ms since 1970"):
            list_offsets(real, {("o", 0): early})


def test_the_newest_record_needs_a_broker_that_knows_it(cluster: Cluster, broker: Any) -> None:
    broker.versions[LIST_OFFSETS] = (1, 6)
    with pytest.raises(Unsupported, match="API 2 in version 7"):
        list_offsets(cluster, {("t", 0): OffsetSpec.MAX_TIMESTAMP})


def test_a_leader_that_moves_is_looked_up_again(cluster: Cluster, broker: Any) -> None:
    left = [6, 0]

    def listed(body: Any) -> bytes:
        one = {"partition_index": 0, "error_code": left.pop(0), "offset": 4}
        topics = [{"name": "t", "partitions": [one]}]
        return bytes(encode_response(LIST_OFFSETS, 7, {"topics": topics}))

    broker.answers[LIST_OFFSETS] = listed
    assert list_offsets(cluster, {("t", 0): OffsetSpec.LATEST})["t", 0].offset == 4
    assert broker.asked.count(3) == 2


def test_records_are_deleted_up_to_an_offset(real: Cluster, running: Any) -> None:
    create_topic(real, "k", 2)
    produce(running.bootstrap_servers, "k", 1, 2, 3)
    wanted = {("k", 0): 2, ("none", 0): 1, ("k", 1): 5, ("k", 9): 0}
    found = delete_records(real, wanted)
    assert list(found) == list(wanted)
    assert found["k", 0] == 2
    codes = {one: error.code for one, error in found.items() if isinstance(error, BrokerError)}
    assert codes == {("none", 0): 3, ("k", 1): 1, ("k", 9): 3}
    assert list_offsets(real, {("k", 0): OffsetSpec.EARLIEST})["k", 0].offset == 2
    assert delete_records(real, {("k", 0): -1}) == {("k", 0): 3}
    assert delete_records(real, {}) == {}


def test_deleting_records_goes_on_with_a_new_leader(cluster: Cluster, broker: Any) -> None:
    left = [6, 0]

    def deleted(body: Any) -> bytes:
        one = {"partition_index": 0, "error_code": left.pop(0), "low_watermark": 3}
        topics = [{"name": "t", "partitions": [one]}]
        return bytes(encode_response(DELETE_RECORDS, 1, {"topics": topics}))

    broker.answers[DELETE_RECORDS] = deleted
    assert delete_records(cluster, {("t", 0): 3}) == {("t", 0): 3}
    assert left == []


def leading(broker: Any, *topics: str) -> None:
    """Let the scripted broker lead partition 0 of the topics, and no broker that of `headless`."""

    def metadata(body: Any) -> bytes:
        [requested] = decode_request(METADATA, 9, body.take(body.remaining)).topics
        leader = 1 if requested.name in topics else -1
        partition = {"error_code": 0, "partition_index": 0, "leader_id": leader}
        topic = {"error_code": 0, "name": requested.name, "partitions": [partition]}
        brokers = [{"node_id": 1, "host": "127.0.0.1", "port": broker.port}]
        return bytes(encode_response(METADATA, 9, {"brokers": brokers, "topics": [topic]}))

    broker.answers[METADATA] = metadata


def deleting(broker: Any, codes: dict[str, int]) -> list[str]:
    """Let the scripted broker delete records of these topics. Returns: the topics requested."""
    requested: list[str] = []

    def deleted(body: Any) -> bytes:
        names = [
            one.name for one in decode_request(DELETE_RECORDS, 1, body.take(body.remaining)).topics
        ]
        requested.extend(names)
        topics = [
            {
                "name": name,
                "partitions": [
                    {"partition_index": 0, "error_code": codes[name], "low_watermark": 3}
                ],
            }
            for name in names
            if name in codes
        ]
        return bytes(encode_response(DELETE_RECORDS, 1, {"topics": topics}))

    broker.answers[DELETE_RECORDS] = deleted
    return requested


def test_deleted_records_are_returned_when_another_partition_has_no_leader(broker: Any) -> None:
    leading(broker, "t", "u")
    requested = deleting(broker, {"t": 0, "u": 6})
    offsets = {("headless", 0): 3, ("u", 0): 3, ("t", 0): 3}
    patience = Patience(total_s=0.2, first_s=0.01, most_s=0.05)
    with Cluster(broker.address, patience=patience) as cluster:
        results = delete_records(cluster, offsets)
    assert list(results) == list(offsets)
    assert (results["t", 0], requested.count("t")) == (3, 1)
    names = {one[0]: error.name for one, error in results.items() if not isinstance(error, int)}
    assert names == {"headless": "LEADER_NOT_AVAILABLE", "u": "NOT_LEADER_OR_FOLLOWER"}


def test_a_disk_that_fails_is_returned_at_once(cluster: Cluster, broker: Any) -> None:
    leading(broker, "t")
    requested = deleting(broker, {"t": 56})
    error = delete_records(cluster, {("t", 0): 3})["t", 0]
    assert isinstance(error, BrokerError)
    assert (error.name, requested) == ("KAFKA_STORAGE_ERROR", ["t"])


def test_a_partition_that_a_response_leaves_out_is_an_error(cluster: Cluster, broker: Any) -> None:
    leading(broker, "t", "u")
    deleting(broker, {"t": 0})
    results = delete_records(cluster, {("t", 0): 3, ("u", 0): 3})
    assert results["t", 0] == 3
    assert "u-0 was not included in the response" in str(results["u", 0])

    def listed(_: Any) -> bytes:
        topic = {"name": "t", "partitions": [{"partition_index": 0, "error_code": 0, "offset": 4}]}
        return bytes(encode_response(LIST_OFFSETS, 7, {"topics": [topic]}))

    broker.answers[LIST_OFFSETS] = listed
    with pytest.raises(BrokerError, match="u-0 was not included in the response"):
        list_offsets(cluster, {("t", 0): OffsetSpec.LATEST, ("u", 0): OffsetSpec.LATEST})


def test_topics_are_listed_without_those_of_the_broker(real: Cluster) -> None:
    create_topic(real, "listed", 1)
    alter_group_offsets(real, "a-group", {("listed", 0): 0}).check()
    assert "listed" in list_topics(real)
    assert "__consumer_offsets" not in list_topics(real)
    assert {"listed", "__consumer_offsets"} <= set(list_topics(real, internal=True))
