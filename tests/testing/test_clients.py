"""Each client of Python against a broker under test: faults in its way, and its session ended."""

import asyncio
from contextlib import closing
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from kafka import KafkaConsumer, KafkaProducer

import headrace
from headrace.testing import BrokerUnderTest

from .conftest import JOIN_S_MAX, produce


def test_aiokafka_in_an_async_test(broker: BrokerUnderTest) -> None:
    """No plugin for asyncio is needed: the broker has a thread and a loop of its own."""
    topic = broker.create_topic(partitions=3)
    refused = broker.faults.add(api="Produce", topic=topic, error="NOT_LEADER_OR_FOLLOWER", times=1)

    async def go() -> list[bytes | None]:
        producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers)
        await producer.start()
        await producer.send_and_wait(topic, b"a")
        await producer.stop()
        consumer = AIOKafkaConsumer(
            topic, bootstrap_servers=broker.bootstrap_servers, group_id="g",
            auto_offset_reset="earliest",
        )  # fmt: skip
        await consumer.start()
        found = [(await asyncio.wait_for(consumer.getone(), JOIN_S_MAX)).value]
        await consumer.commit()
        broker.clock.advance(minutes=5)  # its session ends; it joins again by itself
        await asyncio.to_thread(produce, broker, topic, b"b")
        found.append((await asyncio.wait_for(consumer.getone(), JOIN_S_MAX)).value)
        await consumer.stop()
        return found

    assert asyncio.run(go()) == [b"a", b"b"]
    assert refused.hits == 1


@pytest.mark.filterwarnings("ignore")  # kafka-python's own
@pytest.mark.usefixtures("unclosed_sockets_allowed")
def test_kafka_python(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic()
    dropped = broker.faults.drop(api="Fetch", topic=topic, times=2)
    servers = broker.bootstrap_servers
    with closing(KafkaProducer(bootstrap_servers=servers)) as producer:
        producer.send(topic, b"a").get(JOIN_S_MAX)
    with closing(
        KafkaConsumer(topic, bootstrap_servers=servers, group_id="g", auto_offset_reset="earliest")
    ) as consumer:
        # One poll, as kafka-python 3.0.12 forgets that it joins anew when one ends before.
        found = consumer.poll(JOIN_S_MAX * 1000).values()
        values = [record.value for records in found for record in records]
    assert values == [b"a"]
    assert dropped.hits == 2


def test_our_consumer_loses_nothing_while_a_topic_grows(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic()
    consumer = headrace.Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "g",
            "auto.offset.reset": "safe_latest",
            "topic.metadata.refresh.interval.ms": 200,
        }
    )
    joined: list[Any] = []
    consumer.subscribe([topic], on_assign=lambda _, partitions: joined.extend(partitions))
    while not joined:
        consumer.poll(0.1)
    with headrace.SyncAdmin(broker.bootstrap_servers) as admin:
        admin.create_partitions(topic, 2)
    produce(broker, topic, b"new", partition=1)
    message = None
    while message is None or message.error() is not None:
        message = consumer.poll(0.1)
    assert message.value() == b"new"
    consumer.close()
