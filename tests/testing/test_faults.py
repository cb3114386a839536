"""Faults hit what they are meant for, as often as they say, and nothing else."""

import re
import socket
import struct
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer

import headrace
from headrace.client.connection import Cluster
from headrace.testing import BrokerUnderTest, Faults
from headrace.testing.faults import APIS
from headrace.wire import codec
from headrace.wire.message_items import Item, Kind, items_of
from headrace.wire.refusals import places_of, refusal

from .conftest import consumer, join, next_of, produce, produced

FETCH, METADATA, OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR = 1, 3, 8, 9, 10
NONE, OFFSET_OUT_OF_RANGE, NOT_LEADER, NOT_COORDINATOR, UNKNOWN_MEMBER = 0, 1, 6, 16, 25
START = headrace.OffsetSpec.LATEST


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"api": "Fetsch"}, "no API is named 'Fetsch'; did you mean Fetch?"),
        ({"error": "NOT_LEADER"}, "Kafka has no error 'NOT_LEADER'; did you mean NOT_LEADER_OR_"),
        ({"error": "NONE"}, "Kafka has no error 'NONE'"),
        ({"topik": "t"}, "faults know no word 'topik'; did you mean topic?"),
        ({"api": None}, 'name the api whose answers are to be NOT_LEADER_OR_FOLLOWER: api="Fetch"'),
        ({"group": "g"}, "Fetch requests name no group; leave group out"),
        ({"member": "m"}, "Fetch requests name no member; leave member out"),
        ({"api": "Heartbeat", "topic": "t"}, "Heartbeat requests name no topic"),
        (
            {"api": "ConsumerGroupHeartbeat", "topic": "t"},
            "ConsumerGroupHeartbeat answers have no place for an error of one topic: NOT_LEADER",
        ),
        ({"api": "LeaseOpen"}, "LeaseOpen answers have no place for an error"),
        ({"times": 0}, "times=0: a fault hits once at least, or leave times out"),
        ({"probability": 1.5}, "probability=1.5: give one above 0, up to 1"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(words: dict[str, Any], told: str) -> None:
    faults = Faults()
    with pytest.raises(ValueError, match=re.escape(told)) as found:
        faults.add(**({"api": "Fetch", "error": "NOT_LEADER_OR_FOLLOWER"} | words))
    assert "\n" not in str(found.value)
    assert len(faults) == 0


def test_a_delay_is_not_negative() -> None:
    with pytest.raises(ValueError, match="seconds=-1: no request is answered before it comes"):
        Faults().delay(-1)


ITEMS = [
    Item(Kind.TOPIC, {"name": "t", "topic_id": None}, [Item(Kind.PARTITION, {"partition": 3})]),
    Item(Kind.MEMBER, {"member_id": "m", "group_instance_id": None}),
    Item(Kind.COORDINATOR, {"key": "g"}),
    Item(Kind.RESOURCE, {"resource_type": 2, "resource_name": "t"}),
]
WITH_GROUPS = [Item(Kind.GROUP, {"group_id": "g"}, ITEMS[:1]), *ITEMS]


@pytest.mark.parametrize("name", [name for name, api in APIS.items() if codec.knows(api.key, 1)])
def test_every_answer_can_be_an_error_wherever_it_has_a_place(name: str) -> None:
    api = APIS[name]
    seen = 0
    for version in api.versions:
        response = codec.schemas(api.key, version)[1]
        for place in places_of(response):
            seen += 1
            values = refusal(response, WITH_GROUPS, place, NOT_LEADER, "")
            body = codec.encode_response(api.key, version, values)
            decoded = codec.decode_response(api.key, version, body)
            assert codes(decoded).count(NOT_LEADER) == 1, (version, place)
    assert seen


def codes(message: Any) -> list[int]:
    """All error codes of a decoded answer, in their order."""
    found: list[int] = []
    if hasattr(message, "error_code"):
        found.append(message.error_code)
    for name in message.__dataclass_fields__:
        value = getattr(message, name)
        for part in value if isinstance(value, tuple) else (value,):
            if hasattr(part, "__dataclass_fields__"):
                found += codes(part)
    return found


def ends(admin: headrace.SyncAdmin, *topics: str) -> list[int | None]:
    found = admin.list_offsets({(one, 0): START for one in topics})
    return [found[one, 0].offset for one in topics]


def test_one_topic_is_refused_and_the_others_are_served(
    broker: BrokerUnderTest, admin: headrace.SyncAdmin, cluster: Cluster
) -> None:
    first, second = broker.create_topic(), broker.create_topic()
    fault = broker.faults.add(api="Produce", topic=first, error="not_leader_or_follower", times=1)
    assert produced(cluster, first, second) == {first: NOT_LEADER, second: NONE}
    assert ends(admin, first, second) == [0, 1]
    (hit,) = fault.hit
    assert (hit.api, hit.client_id) == ("Produce", "headrace")
    assert sorted(hit.topics) == [first, second]
    assert produced(cluster, first, second) == {first: NONE, second: NONE}
    assert ends(admin, first, second) == [1, 2]
    assert fault.hits == 1


def test_after_means_that_the_request_took_effect(
    broker: BrokerUnderTest, admin: headrace.SyncAdmin, cluster: Cluster
) -> None:
    topic, other = broker.create_topic(), broker.create_topic()
    with broker.faults.add(api="Produce", topic=topic, error="REQUEST_TIMED_OUT", after=True):
        assert produced(cluster, topic, other) == {topic: 7, other: NONE}
    assert ends(admin, topic, other) == [1, 1]
    with broker.faults.drop(api="Produce", after=True) as fault, pytest.raises(ConnectionError):
        produced(cluster, topic)
    with broker.faults.drop(api="Produce"), pytest.raises(ConnectionError):
        produced(cluster, topic)
    assert ends(admin, topic) == [2]
    assert fault.hits == 1
    assert len(broker.faults) == 0


def test_an_error_without_an_answer_ends_the_connection_as_in_kafka(
    broker: BrokerUnderTest, admin: headrace.SyncAdmin, cluster: Cluster
) -> None:
    topic = broker.create_topic()
    fault = broker.faults.add(api="Produce", error="NOT_LEADER_OR_FOLLOWER")
    with pytest.raises(ConnectionError):
        produced(cluster, topic, acks=0)
    assert fault.hits == 1
    assert ends(admin, topic) == [0]


def fetch(cluster: Cluster, session: int, epoch: int, topics: Mapping[str, int]) -> Any:
    asked = [
        {"topic": name, "partitions": [
            {"partition": 0, "current_leader_epoch": -1, "fetch_offset": offset,
             "last_fetched_epoch": -1, "log_start_offset": -1, "partition_max_bytes": 1 << 20}
        ]}
        for name, offset in topics.items()
    ]  # fmt: skip
    return cluster.ask(
        FETCH,
        12,
        {
            "replica_id": -1, "max_wait": 60_000, "min_bytes": 1, "max_bytes": 1 << 20,
            "isolation_level": 0, "session_id": session, "session_epoch": epoch,
            "topics": asked, "forgotten_topics_data": [], "rack_id": "",
        },
    )  # fmt: skip


def test_a_topic_that_is_fetched_in_a_session_is_hit_though_the_request_does_not_name_it(
    broker: BrokerUnderTest, cluster: Cluster
) -> None:
    first, second = broker.create_topic(), broker.create_topic()
    produce(broker, first, b"a")
    opened = fetch(cluster, 0, 0, {first: 0, second: 0})
    assert codes(opened) == [NONE, NONE, NONE]
    with broker.faults.add(api="Fetch", topic=second, error="OFFSET_OUT_OF_RANGE") as fault:
        answer = fetch(cluster, opened.session_id, 1, {first: 1})
    assert fault.hits == 1
    told = {one.topic: one.partitions[0].error_code for one in answer.responses}
    assert told == {second: OFFSET_OUT_OF_RANGE}
    produce(broker, second, b"b")
    answer = fetch(cluster, opened.session_id, 2, {})
    assert {one.topic for one in answer.responses} == {second}
    assert codes(answer) == [NONE, NONE]


def test_a_consumer_gets_over_it(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic()
    produce(broker, topic, b"a")
    reader = consumer(broker)
    reader.subscribe([topic])
    assert next_of(reader).value() == b"a"
    fault = broker.faults.add(api="Fetch", topic=topic, error="NOT_LEADER_OR_FOLLOWER", times=3)
    while fault.hits < 3:
        assert reader.poll(0.05) is None
    produce(broker, topic, b"b")
    assert next_of(reader).value() == b"b"
    reader.close()


def test_a_commit_that_is_refused_changes_nothing(
    broker: BrokerUnderTest, admin: headrace.SyncAdmin
) -> None:
    topic = broker.create_topic()
    produce(broker, topic, b"a")
    reader = consumer(broker)
    reader.subscribe([topic])
    message = next_of(reader)
    refused = broker.faults.add(api="OffsetCommit", group="g", error="UNKNOWN_TOPIC_OR_PARTITION")
    with refused, pytest.raises(KafkaException):
        reader.commit(message=message, asynchronous=False)
    assert admin.list_consumer_group_offsets("g") == {}
    with broker.faults.add(api="OffsetCommit", group="other", error="NOT_COORDINATOR") as other:
        reader.commit(message=message, asynchronous=False)
    assert other.hits == 0
    assert len(admin.list_consumer_group_offsets("g")) == 1
    reader.close()


def test_one_member_is_hit(broker: BrokerUnderTest, cluster: Cluster) -> None:
    topic = broker.create_topic()
    broker.faults.add(api="ConsumerGroupHeartbeat", member="m-1", error="UNKNOWN_MEMBER_ID")
    assert join(cluster, "g", topic, "m-1").error_code == UNKNOWN_MEMBER
    assert join(cluster, "g", topic, "m-2").error_code == NONE


def test_one_group_of_several_is_refused(broker: BrokerUnderTest, cluster: Cluster) -> None:
    broker.faults.add(api="FindCoordinator", group="b", error="COORDINATOR_NOT_AVAILABLE")
    asked = {"key_type": 0, "coordinator_keys": ["a", "b", "c"]}
    answer = cluster.ask(FIND_COORDINATOR, 4, asked)
    assert {one.key: one.error_code for one in answer.coordinators} == {"a": 0, "b": 15, "c": 0}
    topic = broker.create_topic()
    with headrace.SyncAdmin(broker.bootstrap_servers) as admin:
        admin.alter_consumer_group_offsets("a", {(topic, 0): 0})
    broker.faults.clear()
    broker.faults.add(api="OffsetFetch", topic=topic, error="UNSTABLE_OFFSET_COMMIT")
    broker.faults.add(api="OffsetFetch", group="c", error="NOT_COORDINATOR")
    for group, expected in (("a", (NONE, 88)), ("b", (NONE,)), ("c", (NOT_COORDINATOR,))):
        groups = [{"group_id": group, "topics": None, "member_id": None, "member_epoch": -1}]
        answer = cluster.ask(OFFSET_FETCH, 9, {"groups": groups, "require_stable": False})
        assert len(answer.groups) == 1
        assert tuple(codes(answer.groups[0])[:1]) == expected[:1]
        assert [code for code in codes(answer.groups[0])[1:] if code] == list(expected[1:])


def test_all_topics_are_hit_where_none_is_named(broker: BrokerUnderTest, cluster: Cluster) -> None:
    topics = {broker.create_topic(), broker.create_topic()}
    broker.faults.add(api="Metadata", error="LEADER_NOT_AVAILABLE")
    asked = {
        "topics": None,
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
    }
    answer = cluster.ask(METADATA, 9, asked | {"include_cluster_authorized_operations": False})
    told = {one.name: one.error_code for one in answer.topics if one.name in topics}
    assert told == dict.fromkeys(topics, 5)
    assert answer.brokers


def test_an_idempotent_producer_is_dropped_twice_and_its_record_is_there_once(
    broker: BrokerUnderTest, admin: headrace.SyncAdmin
) -> None:
    topic = broker.create_topic()
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "enable.idempotence": True,
            "log_level": 0,
        }
    )
    before = broker.faults.drop(api="Produce", times=1)
    after = broker.faults.drop(api="Produce", times=1, after=True)
    producer.produce(topic, b"once")
    assert producer.flush(60) == 0
    assert (before.hits, after.hits) == (1, 1)
    assert ends(admin, topic) == [1]


def test_a_delay_passes_with_the_clock(broker: BrokerUnderTest) -> None:
    broker.create_topic("orders")
    fault = broker.faults.delay(3600, api="Metadata", client_id="late")
    answers: list[Any] = []

    def ask() -> None:
        with Cluster(broker.bootstrap_servers, client_id="late") as cluster:
            answers.append(cluster.partitions("orders"))

    asking = threading.Thread(target=ask)
    asking.start()
    while not fault.hits:
        assert asking.is_alive()
    broker.clock.advance(minutes=59)
    assert answers == []
    broker.clock.advance(minutes=1)
    asking.join(60)
    assert answers == [(0,)]


def test_share_consumers_get_over_it(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic()
    produce(broker, topic, b"a", b"b")
    with headrace.SyncAdmin(broker.bootstrap_servers) as admin:
        group = headrace.ResourceType.GROUP
        admin.incremental_alter_configs(group, "q", values={"share.auto.offset.reset": "earliest"})
    fetches = broker.faults.add(
        api="ShareFetch", topic=topic, error="NOT_LEADER_OR_FOLLOWER", times=1
    )
    drops = broker.faults.drop(api="ShareGroupHeartbeat", group="q", times=1)
    with headrace.SyncShareConsumer(broker.bootstrap_servers, group="q", topics=[topic]) as worker:
        found: set[bytes | None] = set()
        while found != {b"a", b"b"}:
            for record in worker.poll(timeout_s=60):
                found.add(record.value)
                record.accept().result(60)
    assert (fetches.hits, drops.hits) == (1, 1)


def test_an_acknowledgement_that_is_refused_leaves_the_record_locked(
    broker: BrokerUnderTest, admin: headrace.SyncAdmin
) -> None:
    topic = broker.create_topic()
    produce(broker, topic, b"a")
    group = headrace.ResourceType.GROUP
    admin.incremental_alter_configs(group, "q", values={"share.auto.offset.reset": "earliest"})
    refused = broker.faults.add(api="ShareAcknowledge", topic=topic, error="INVALID_RECORD_STATE")
    worker = headrace.SyncShareConsumer(broker.bootstrap_servers, group="q", topics=[topic])
    with worker:
        (record,) = worker.poll(timeout_s=60)
        with pytest.raises(headrace.LockLost):
            record.accept().result(60)
        assert refused.hits == 1
        states = [run.state for run in admin.browse_share_group_runs("q")]
        assert states == [headrace.RecordState.ACQUIRED]


def commit_frame(number: int, topic: str) -> bytes:
    partition = {"partition_index": 0, "committed_offset": number, "committed_metadata": None}
    asked = {
        "group_id": "g",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "retention_time": -1,
        "topics": [{"name": topic, "partitions": [partition]}],
    }
    head = struct.pack(">hhih", OFFSET_COMMIT, 2, number, -1)
    frame = head + codec.encode_request(OFFSET_COMMIT, 2, asked)
    return struct.pack(">i", len(frame)) + frame


def test_answers_keep_the_order_of_requests_whatever_hits_them(
    broker: BrokerUnderTest, admin: headrace.SyncAdmin
) -> None:
    topic = broker.create_topic()
    host, _, port = broker.bootstrap_servers.partition(":")
    delayed = broker.faults.delay(0.05, api="OffsetCommit", probability=0.5)
    refused = broker.faults.add(api="OffsetCommit", topic=topic, error="NOT_COORDINATOR", times=3)
    with socket.create_connection((host, int(port)), 60) as connection:
        connection.sendall(b"".join(commit_frame(number, topic) for number in range(1, 21)))
        stream = connection.makefile("rb")
        numbers = []
        for _ in range(20):
            (size,) = struct.unpack(">i", stream.read(4))
            numbers.append(struct.unpack_from(">i", stream.read(size))[0])
    assert numbers == list(range(1, 21))
    assert 0 < delayed.hits < 20
    assert refused.hits == 3
    assert admin.list_consumer_group_offsets("g")[topic, 0].offset == 20


def test_names_are_found_in_the_arrays_of_a_message() -> None:
    request = codec.schemas(42, 2)[0](groups_names=("a", "b"))
    assert [item.names["group_id"] for item in items_of(request)] == ["a", "b"]
