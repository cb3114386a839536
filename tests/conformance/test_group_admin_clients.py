"""Groups as the administration clients of three libraries see them, and aiokafka's members."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.structs import TopicPartition as AioPartition
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import TopicPartition as KafkaPartition
from kafka.admin import KafkaAdminClient, MemberToRemove, OffsetSpec
from kafka.errors import (
    GroupIdNotFoundError,
    GroupSubscribedToTopicError,
    NoError,
    UnknownMemberIdError,
)
from kafka.structs import OffsetAndMetadata

import headrace

TIMEOUT_S = 60
PARTITIONS, RECORDS = 6, 60


@pytest.fixture(autouse=True)
def topics(broker: headrace.Broker) -> None:
    """ "orders" and "returns", with ten records in each partition."""
    settings: dict[str, Any] = {"bootstrap.servers": broker.bootstrap_servers, "log_level": 2}
    admin, producer = AdminClient(settings), Producer(settings)
    for topic in ("orders", "returns"):
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(TIMEOUT_S)
        for number in range(RECORDS):
            producer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(TIMEOUT_S) == 0


@contextmanager
def member(broker: headrace.Broker, *topics: str, instance: str | None = None) -> Iterator[Any]:
    """A member of "team" that has all partitions of its topics."""
    settings: dict[str, Any] = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": "team",
        "client.id": "python",
        "enable.auto.commit": False,
        # One that is removed hears of it, and comes back, with its next heartbeat.
        "heartbeat.interval.ms": 10_000,
        "log_level": 2,
    }
    if instance:
        settings["group.instance.id"] = instance
    consumer = Consumer(settings)
    consumer.subscribe(list(topics))
    poll_until(consumer, len(topics) * PARTITIONS)
    try:
        yield consumer
    finally:
        consumer.close()


def poll_until(consumer: Consumer, owned: int) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while len(consumer.assignment()) != owned:
        assert time.monotonic() < deadline, consumer.assignment()
        consumer.poll(0.05)


# ---- confluent-kafka


def test_confluent_lists_and_describes(broker: headrace.Broker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 2})
    wanted = ConsumerGroupTopicPartitions("simple", [TopicPartition("orders", 0, 4)])
    admin.alter_consumer_group_offsets([wanted])["simple"].result(TIMEOUT_S)

    def listed(**filters: Any) -> dict[str, tuple[Any, Any, bool]]:
        answer = admin.list_consumer_groups(**filters).result(TIMEOUT_S)
        assert answer.errors == []
        return {
            one.group_id: (one.state, one.type, one.is_simple_consumer_group)
            for one in answer.valid
        }

    classic = ConsumerGroupType.CLASSIC
    simple = (ConsumerGroupState.EMPTY, classic, True)
    with member(broker, "orders", instance="one"):
        team = (ConsumerGroupState.STABLE, classic, False)
        assert listed() == {"simple": simple, "team": team}
        assert listed(states={ConsumerGroupState.STABLE}) == {"team": team}
        assert listed(states={ConsumerGroupState.EMPTY}) == {"simple": simple}
        assert listed(types={classic}) == {"simple": simple, "team": team}
        assert listed(types={ConsumerGroupType.CONSUMER}) == {}
        described = admin.describe_consumer_groups(["team"])["team"].result(TIMEOUT_S)
        assert (described.state, described.partition_assignor) == (team[0], "range")
        assert (described.coordinator.id, described.type) == (1, classic)
        (one,) = described.members
        assert (one.client_id, one.group_instance_id, one.host) == ("python", "one", "/127.0.0.1")
        assert len(one.assignment.topic_partitions) == PARTITIONS
    nobody = admin.describe_consumer_groups(["nobody"])["nobody"].result(TIMEOUT_S)
    assert nobody.state == ConsumerGroupState.DEAD  # all that its version of the request can say
    with pytest.raises(KafkaException, match="GROUP_ID_NOT_FOUND"):
        admin.delete_consumer_groups(["nobody"])["nobody"].result(TIMEOUT_S)


def test_confluent_alters_offsets_partition_by_partition(broker: headrace.Broker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 2})
    places = [TopicPartition("orders", 0, 4, "by hand"), TopicPartition("orders", 99, 4)]
    wanted = ConsumerGroupTopicPartitions("team", places)
    altered = admin.alter_consumer_group_offsets([wanted])["team"].result(TIMEOUT_S)
    codes = {one.partition: one.error and one.error.name() for one in altered.topic_partitions}
    assert codes == {0: None, 99: "UNKNOWN_TOPIC_OR_PART"}

    def offsets(*places: TopicPartition) -> dict[int, tuple[int, str | None]]:
        asked = [ConsumerGroupTopicPartitions("team", list(places) or None)]
        found = admin.list_consumer_group_offsets(asked)["team"].result(TIMEOUT_S)
        return {one.partition: (one.offset, one.metadata) for one in found.topic_partitions}

    assert offsets() == {0: (4, "by hand")}
    assert offsets(TopicPartition("orders", 0), TopicPartition("orders", 1)) == {
        0: (4, "by hand"),
        1: (-1001, None),
    }
    with member(broker, "orders"):
        again = admin.alter_consumer_group_offsets([wanted])["team"].result(TIMEOUT_S)
        codes = {one.partition: one.error and one.error.name() for one in again.topic_partitions}
        assert codes == {0: "UNKNOWN_MEMBER_ID", 99: "UNKNOWN_TOPIC_OR_PART"}
    assert offsets() == {0: (4, "by hand")}


# ---- kafka-python


@pytest.fixture
def kafka_admin(
    broker: headrace.Broker, unclosed_sockets_allowed: None
) -> Iterator[KafkaAdminClient]:
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    yield admin
    admin.close()


def test_kafka_python_resets_offsets(kafka_admin: KafkaAdminClient) -> None:
    zero, one = KafkaPartition("orders", 0), KafkaPartition("orders", 1)
    given = {zero: OffsetAndMetadata(4, "by hand", -1), one: OffsetAndMetadata(5, "", -1)}
    altered = kafka_admin.alter_group_offsets("team", given)
    assert altered == {zero: NoError, one: NoError}
    found = kafka_admin.list_group_offsets({"team": None})["team"]
    assert {place: (it.offset, it.metadata) for place, it in found.items()} == {
        zero: (4, "by hand"),
        one: (5, ""),
    }
    reset = kafka_admin.reset_group_offsets("team", {zero: OffsetSpec.LATEST, one: 999})
    assert {place: it["offset"] for place, it in reset.items()} == {zero: 10, one: 10}
    (listed,) = kafka_admin.list_groups()
    assert (listed["group_id"], listed["group_state"]) == ("team", "Empty")


def test_kafka_python_deletes_offsets_and_groups(
    broker: headrace.Broker, kafka_admin: KafkaAdminClient
) -> None:
    kept, left = KafkaPartition("orders", 0), KafkaPartition("returns", 0)
    with pytest.raises(GroupIdNotFoundError):
        kafka_admin.delete_group_offsets("team", [kept])
    given = {place: OffsetAndMetadata(4, "", -1) for place in (kept, left)}
    kafka_admin.alter_group_offsets("team", given)
    with member(broker, "orders"):
        deleted = kafka_admin.delete_group_offsets("team", [kept, left])
        assert deleted == {kept: GroupSubscribedToTopicError, left: NoError}
        assert kafka_admin.delete_groups(["team"]) == {"team": "NonEmptyGroupError"}
    assert set(kafka_admin.list_group_offsets({"team": None})["team"]) == {kept}
    assert kafka_admin.delete_groups(["team"]) == {"team": "OK"}
    assert kafka_admin.delete_groups(["team"]) == {"team": "GroupIdNotFoundError"}


def test_kafka_python_describes_and_removes_members(
    broker: headrace.Broker, kafka_admin: KafkaAdminClient
) -> None:
    with member(broker, "orders", instance="one"):
        described = kafka_admin.describe_groups(["team"])["team"]
        assert (described["error"], described["group_state"]) == (None, "Stable")
        assert (described["protocol_type"], described["protocol_data"]) == ("consumer", "range")
        (one,) = described["members"]
        assert (one["group_instance_id"], one["client_id"]) == ("one", "python")
        assert one["member_metadata"]["topics"] == ["orders"]
        removed = kafka_admin.remove_group_members(
            "team", [MemberToRemove(group_instance_id=name) for name in ("one", "two")]
        )
        assert {told.__name__ for told in removed.values()} == {
            NoError.__name__,
            UnknownMemberIdError.__name__,
        }
        assert kafka_admin.describe_groups(["team"])["team"]["members"] == []


# ---- aiokafka


def test_aiokafka_lists_and_describes(broker: headrace.Broker) -> None:
    async def go() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
        await admin.start()
        assert await admin.list_consumer_groups() == [("team", "consumer")]
        (answer,) = await admin.describe_consumer_groups(["team"])
        (group,) = answer.groups
        assert group[:5] == (0, "team", "Stable", "consumer", "range")
        assert len(group[5]) == 1
        offsets = await admin.list_consumer_group_offsets("team")
        assert {place: it.offset for place, it in offsets.items()} == {AioPartition("orders", 0): 4}
        await admin.close()

    with member(broker, "orders") as one:
        one.commit(offsets=[TopicPartition("orders", 0, 4)], asynchronous=False)
        asyncio.run(asyncio.wait_for(go(), TIMEOUT_S))


def test_aiokafka_members_come_and_go(broker: headrace.Broker) -> None:
    """Three members share, one leaves and two are left, one is lost and one has all."""

    async def started() -> AIOKafkaConsumer:
        one = AIOKafkaConsumer(
            "orders",
            bootstrap_servers=broker.bootstrap_servers,
            group_id="team",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=200,
            session_timeout_ms=6_000,
        )
        await one.start()
        return one

    async def read(one: AIOKafkaConsumer, seen: set[bytes]) -> None:
        for records in (await one.getmany(timeout_ms=20)).values():
            seen.update(record.value for record in records)

    async def read_all(members: list[AIOKafkaConsumer], seen: set[bytes]) -> None:
        """Until all are at the ends, so that nothing comes after that but with a rebalance."""
        ends = {RECORDS // PARTITIONS}
        while {await one.position(at) for one in members for at in one.assignment()} != ends:
            for one in members:
                await read(one, seen)
        assert len(seen) == RECORDS

    async def until(counts: list[int], members: list[AIOKafkaConsumer], seen: set[bytes]) -> None:
        while [len(one.assignment()) for one in members] != counts:
            for one in members:
                await read(one, seen)

    async def go() -> None:
        members = [await started() for _ in range(3)]
        seen: set[bytes] = set()
        await until([2, 2, 2], members, seen)
        await read_all(members, seen)
        seen.clear()  # nothing is committed: they read all of it again
        await members.pop().stop()
        await until([3, 3], members, seen)
        await read_all(members, seen)
        for one in members:
            await one.commit()
        await members.pop().stop()
        await until([6], members, seen)
        committed = [await members[0].committed(place) for place in sorted(members[0].assignment())]
        assert committed == [RECORDS // PARTITIONS] * PARTITIONS
        await members[0].stop()

    asyncio.run(asyncio.wait_for(go(), 3 * TIMEOUT_S))
