"""Stock clients without groups: produce, administer, read assigned partitions."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

import headrace

TIMEOUT = 10
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def produce(broker: headrace.Broker, topic: str, values: list[bytes], **settings: Any) -> None:
    """Produce values and wait until every one was acknowledged."""
    errors: list[Any] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, **settings})
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: errors.append(error))
        producer.poll(0)
    assert producer.flush(TIMEOUT) == 0
    assert errors == [None] * len(values)


def read(broker: headrace.Broker, topic: str, partitions: int, count: int) -> list[bytes]:
    """The first `count` values of a topic's partitions, read from their start."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    found: list[bytes] = []
    while len(found) < count:
        messages = consumer.consume(count - len(found), TIMEOUT)
        assert messages, f"{len(found)} of {count} records after {TIMEOUT} s"
        for message in messages:
            assert message.error() is None
            found.append(message.value() or b"")
    consumer.close()
    return found


def admin(broker: headrace.Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers})


def create(broker: headrace.Broker, topic: str, partitions: int, **config: str) -> None:
    client = admin(broker)
    client.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(TIMEOUT)


def users_topics(metadata: Any) -> list[str]:
    return [name for name in metadata.topics if not name.startswith("__")]


@pytest.mark.parametrize("codec", CODECS)
def test_confluent_produces_and_reads_back(broker: headrace.Broker, codec: str) -> None:
    create(broker, "orders", 4)
    values = [b"%d" % number * 50 for number in range(1000)]
    idempotent = {"enable.idempotence": True} if codec in {"none", "zstd"} else {}
    produce(broker, "orders", values, **{"compression.type": codec, **idempotent})
    assert sorted(read(broker, "orders", 4, 1000)) == sorted(values)


def test_a_topic_is_created_by_producing_to_it(broker: headrace.Broker) -> None:
    produce(broker, "new", [b"first"])
    assert read(broker, "new", 1, 1) == [b"first"]


def test_a_large_record_is_refused_and_the_connection_lives(broker: headrace.Broker) -> None:
    create(broker, "small", 1, **{"max.message.bytes": "2000"})
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    codes: list[Any] = []
    for value in (b"x" * 3000, b"y"):
        producer.produce("small", value, on_delivery=lambda error, _: codes.append(error))
        producer.flush(TIMEOUT)
    assert [error and error.name() for error in codes] == ["MSG_SIZE_TOO_LARGE", None]


def test_admin_creates_describes_extends_and_deletes_topics(broker: headrace.Broker) -> None:
    client = admin(broker)
    create(broker, "orders", 2)
    with pytest.raises(KafkaException, match="already exists"):
        create(broker, "orders", 2)
    client.create_partitions([NewPartitions("orders", 5)])["orders"].result(TIMEOUT)
    metadata = client.list_topics(timeout=TIMEOUT)
    assert users_topics(metadata) == ["orders"]
    assert sorted(metadata.topics["orders"].partitions) == [0, 1, 2, 3, 4]
    cluster = client.describe_cluster().result(TIMEOUT)
    assert cluster.cluster_id == metadata.cluster_id
    assert [node.id for node in cluster.nodes] == [1]
    client.delete_topics(["orders"])["orders"].result(TIMEOUT)
    assert users_topics(client.list_topics(timeout=TIMEOUT)) == []
    assert not list(broker.data_dir.glob("orders-*"))


@pytest.mark.parametrize(
    ("kind", "name", "setting", "value", "default"),
    [
        (ResourceType.TOPIC, "orders", "segment.bytes", "4096", "1073741824"),
        (ResourceType.GROUP, "team", "share.auto.offset.reset", "earliest", "latest"),
        (ResourceType.GROUP, "team", "share.record.lock.duration.ms", "2000", "30000"),
    ],
)
def test_admin_sets_and_deletes_configuration(
    broker: headrace.Broker, kind: ResourceType, name: str, setting: str, value: str, default: str
) -> None:
    client = admin(broker)
    create(broker, "orders", 1)

    def alter(operation: AlterConfigOpType, text: str | None) -> None:
        entry = ConfigEntry(setting, text, incremental_operation=operation)
        resource = ConfigResource(kind, name, incremental_configs=[entry])
        client.incremental_alter_configs([resource])[resource].result(TIMEOUT)

    def shown() -> str:
        resource = ConfigResource(kind, name)
        return str(client.describe_configs([resource])[resource].result(TIMEOUT)[setting].value)

    assert shown() == default
    alter(AlterConfigOpType.SET, value)
    assert shown() == value
    with pytest.raises(KafkaException, match="INVALID_CONFIG"):
        alter(AlterConfigOpType.SET, "-7")
    assert shown() == value
    alter(AlterConfigOpType.DELETE, None)
    assert shown() == default


def test_admin_finds_offsets_by_place_and_by_time(broker: headrace.Broker) -> None:
    create(broker, "orders", 1)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(10):
        producer.produce("orders", b"v", timestamp=1000 + number)
        producer.flush(TIMEOUT)
    partition = TopicPartition("orders", 0)
    client, found = admin(broker), {}
    offsets: Any = OffsetSpec
    for name, spec in {
        "start": offsets.earliest(),
        "end": offsets.latest(),
        "newest": offsets.max_timestamp(),
        "at": offsets.for_timestamp(1004),
        "later": offsets.for_timestamp(5000),
    }.items():
        answer = client.list_offsets({partition: spec})[partition].result(TIMEOUT)
        found[name] = (answer.offset, answer.timestamp)
    assert found == {
        "start": (0, -1),
        "end": (10, -1),
        "newest": (9, 1009),
        "at": (4, 1004),
        "later": (-1, -1),
    }


def test_aiokafka_produces_and_reads_assigned_partitions(broker: headrace.Broker) -> None:
    create(broker, "orders", 4)

    async def go() -> list[bytes]:
        producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers, acks="all")
        await producer.start()
        for number in range(100):
            await producer.send_and_wait("orders", b"%d" % number, partition=number % 4)
        await producer.stop()
        consumer = AIOKafkaConsumer(
            bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest"
        )
        await consumer.start()
        consumer.assign([AioPartition("orders", number) for number in range(4)])
        found = []
        async with asyncio.timeout(TIMEOUT):
            async for message in consumer:
                found.append(message.value)
                if len(found) == 100:
                    break
        await consumer.stop()
        return found

    assert sorted(asyncio.run(go()), key=int) == [b"%d" % number for number in range(100)]


def test_a_waiting_consumer_gets_a_record_at_once(broker: headrace.Broker) -> None:
    create(broker, "orders", 1)

    async def go() -> bytes:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=broker.bootstrap_servers, fetch_max_wait_ms=60_000
        )
        await consumer.start()
        consumer.assign([AioPartition("orders", 0)])
        await consumer.seek_to_beginning()
        waiting = asyncio.ensure_future(consumer.getone())
        await asyncio.sleep(0.2)
        await asyncio.to_thread(produce, broker, "orders", [b"now"])
        message = await asyncio.wait_for(waiting, TIMEOUT)
        await consumer.stop()
        return bytes(message.value)

    assert asyncio.run(go()) == b"now"


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_topics_and_records_outlive_a_restart(tmp_path: Path, durability: str) -> None:
    settings = {"headrace.durability": durability}
    with headrace.Broker(tmp_path, settings=settings) as broker:
        create(broker, "orders", 4, **{"segment.bytes": "4096"})
        produce(broker, "orders", [b"%d" % n for n in range(200)], **{"enable.idempotence": True})
        before = admin(broker).list_topics(timeout=TIMEOUT)
    with headrace.Broker(tmp_path, settings=settings) as broker:
        after = admin(broker).list_topics(timeout=TIMEOUT)
        assert after.cluster_id == before.cluster_id
        assert sorted(after.topics["orders"].partitions) == [0, 1, 2, 3]
        produce(broker, "orders", [b"200"], **{"enable.idempotence": True})
        assert sorted(read(broker, "orders", 4, 201), key=int) == [b"%d" % n for n in range(201)]
