"""The administration clients of three libraries: topics, settings, records and folders."""

import asyncio
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewPartitions as AioPartitions
from aiokafka.admin import NewTopic as AioTopic
from aiokafka.admin.config_resource import ConfigResource as AioResource
from aiokafka.admin.config_resource import ConfigResourceType as AioType
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from kafka import TopicPartition as KafkaPartition
from kafka.admin import ConfigResource as KafkaResource
from kafka.admin import ConfigResourceType as KafkaType
from kafka.admin import KafkaAdminClient
from kafka.admin import NewTopic as KafkaTopic
from kafka.errors import TopicAlreadyExistsError

import headrace

TIMEOUT = 10


def produce(broker: headrace.Broker, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for _ in range(count):
        producer.produce(topic, b"v", partition=0)
    assert producer.flush(TIMEOUT) == 0


@pytest.mark.usefixtures("unclosed_sockets_allowed")
def test_kafka_python(broker: headrace.Broker) -> None:
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    wanted = KafkaTopic("orders", 3, 1, topic_configs={"segment.ms": "7000"})
    (made,) = admin.create_topics([wanted])["topics"]
    assert (made["error_code"], made["num_partitions"]) == (0, 3)
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topics([wanted])
    admin.create_partitions({"orders": 5})
    (topic,) = admin.describe_topics(["orders"])
    assert len(topic["partitions"]) == 5
    for incremental, value in ((True, "8"), (False, "9")):
        change = KafkaResource(KafkaType.TOPIC, "orders", {"retention.ms": value})
        admin.alter_configs([change], incremental=incremental)
        shown = admin.describe_configs([KafkaResource(KafkaType.TOPIC, "orders")])
        modified = {name: one["value"] for name, one in shown["topic"]["orders"].items()}
        assert modified == {"segment.ms": "7000", "retention.ms": value}
    produce(broker, "orders", 4)
    first = KafkaPartition("orders", 0)
    assert admin.delete_records({first: 3})[first]["low_watermark"] == 3
    (folders,) = admin.describe_log_dirs()
    (held,) = [one for one in folders["log_dirs"][0]["topics"] if one["name"] == "orders"]
    assert len(held["partitions"]) == 5
    admin.delete_topics(["orders"])
    assert "orders" not in admin.list_topics()
    admin.close()


def test_aiokafka(broker: headrace.Broker) -> None:
    async def go() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
        await admin.start()
        await admin.create_topics([AioTopic("orders", 2, 1, topic_configs={"segment.ms": "7000"})])
        await admin.create_partitions({"orders": AioPartitions(4)})
        (topic,) = await admin.describe_topics(["orders"])
        assert (topic["error_code"], len(topic["partitions"])) == (0, 4)
        # This client has the older request alone, which replaces what was set.
        await admin.alter_configs([AioResource(AioType.TOPIC, "orders", {"retention.ms": "9"})])
        shown = await admin.describe_configs([AioResource(AioType.TOPIC, "orders")])
        assert topic_values(shown) == {"retention.ms": "9"}
        await admin.delete_topics(["orders"])
        assert "orders" not in await admin.list_topics()
        await admin.close()

    asyncio.run(go())


def topic_values(shown: Any) -> dict[str, str]:
    """What was set for the topic, of aiokafka's rows of name, value, read-only and source."""
    return {row[0]: row[1] for row in shown[0].resources[0][4] if row[3] == 1}


def test_confluent_kafka(broker: headrace.Broker) -> None:
    produce(broker, "orders", 4)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    first = TopicPartition("orders", 0, 3)
    deleted = admin.delete_records([first])
    assert [one.result(TIMEOUT).low_watermark for one in deleted.values()] == [3]
    resource = ConfigResource(ResourceType.BROKER, "1")
    shown = admin.describe_configs([resource])[resource].result(TIMEOUT)
    assert shown["num.partitions"].is_read_only
    assert set(shown["log.retention.hours"].synonyms) == {"log.retention.hours"}
