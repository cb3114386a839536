"""A broker of each test's own, and members that keep quiet when nobody tells them to speak."""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, Producer

import headrace
from headrace.client.connection import Cluster
from headrace.testing import BrokerUnderTest
from headrace.wire.batches import Record, build

JOIN_S_MAX = 60
PRODUCE, GROUP_HEARTBEAT = 0, 68


@pytest.fixture
def broker() -> Iterator[BrokerUnderTest]:
    with BrokerUnderTest() as running:
        yield running


@pytest.fixture
def admin(broker: BrokerUnderTest) -> Iterator[headrace.SyncAdmin]:
    with headrace.SyncAdmin(broker.bootstrap_servers) as admin:
        yield admin


@pytest.fixture
def cluster(broker: BrokerUnderTest) -> Iterator[Cluster]:
    with Cluster(broker.bootstrap_servers) as cluster:
        yield cluster


def produce(broker: BrokerUnderTest, topic: str, *values: bytes, **fields: Any) -> None:
    """Produce, and return when the broker has it all."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    for value in values:
        producer.produce(topic, value, **fields)
    assert producer.flush(JOIN_S_MAX) == 0


def consumer(broker: BrokerUnderTest, group: str = "g", **settings: Any) -> Consumer:
    """confluent-kafka's, from the earliest record on, which commits nothing by itself."""
    return Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
        | {name.replace("_", "."): value for name, value in settings.items()}
    )


def next_of(consumer: Consumer) -> Message:
    """The next record; what the client tells of lost connections is passed over."""
    for _ in range(10 * JOIN_S_MAX):
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            return message
    raise AssertionError(f"no record within {JOIN_S_MAX} s")


def join(cluster: Cluster, group: str, topic: str, member: str = "m-1") -> Any:
    """The first heartbeat of a member of KIP-848 who then says nothing any more."""
    return cluster.ask(
        GROUP_HEARTBEAT,
        1,
        {
            "group_id": group,
            "member_id": member,
            "member_epoch": 0,
            "instance_id": None,
            "rack_id": None,
            "rebalance_timeout": 60_000,
            "subscribed_topic_names": [topic],
            "server_assignor": None,
            "topic_partitions": [],
        },
    )


def batch(value: bytes = b"x") -> bytes:
    return bytes(build([Record(0, 1_700_000_000_000, None, value)]))


def produced(cluster: Cluster, *topics: str, acks: int = -1) -> dict[str, int]:
    """Send one request with a record for each topic; the error code of each."""
    data = [{"name": one, "partition_data": [{"index": 0, "records": batch()}]} for one in topics]
    asked = {"transactional_id": None, "acks": acks, "timeout": 30_000, "topic_data": data}
    answer = cluster.ask(PRODUCE, 9, asked)
    return {one.name: one.partition_responses[0].error_code for one in answer.responses}
