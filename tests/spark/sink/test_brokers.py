"""The sink over Apache Kafka: a client that knows nothing of Spark reads what was in the rows."""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import SparkSession

from brokers import Broker, Kafka, prepared
from headrace.client.admin import create_topic
from headrace.client.connection import Cluster

pytestmark = pytest.mark.spark

COUNT, SECONDS = 1000, 60


@pytest.fixture(scope="module")
def kafka() -> Iterator[Broker]:
    with prepared(Kafka) as broker:
        broker.launch()
        try:
            yield broker
        finally:
            broker.kill()


def read(servers: str, topic: str) -> list[Any]:
    settings = {"bootstrap.servers": servers, "group.id": "unused", "enable.auto.commit": False}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[Any] = []
    while len(found) < COUNT and (more := consumer.consume(COUNT - len(found), SECONDS)):
        found += more
    consumer.close()
    return found


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_spark_wrote_is_there_once_and_the_same(
    kafka: Broker, spark: SparkSession, codec: str
) -> None:
    topic = f"to-{codec}"
    with Cluster(kafka.servers) as cluster:
        create_topic(cluster, topic, 1)
    rows = spark.range(0, COUNT, 1, 2).selectExpr(
        "IF(id % 3 = 0, NULL, string(id)) AS key",
        "IF(id % 5 = 0, NULL, repeat('v', int(id))) AS value",
        "array(struct('id' AS key, binary(string(id)) AS value)) AS headers",
    )
    writer = rows.write.format("headrace").mode("append").option("topic", topic)
    writer = writer.option("kafka.bootstrap.servers", kafka.servers)
    writer.option("kafka.compression.type", codec).save()
    found = {
        int(one.headers()[0][1]): (one.key(), one.value()) for one in read(kafka.servers, topic)
    }
    assert found == {
        number: (
            b"%d" % number if number % 3 else None,
            b"v" * number if number % 5 else None,
        )
        for number in range(COUNT)
    }
