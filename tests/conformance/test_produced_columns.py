"""What the producer of columns writes to Apache Kafka and to Headrace: another client reads it."""

import random
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from brokers import BROKERS, Broker, prepared
from headrace.client.admin import create_topic
from headrace.client.connection import Cluster, Patience
from headrace.client.errors import BrokerError
from headrace.client.produce.producer import Limits, RecordTooLarge
from headrace.client.produce.producer import Producer as ColumnProducer
from headrace.client.topics import describe_topics
from headrace.wire.columns import SCHEMA
from headrace.wire.compression import Codec

PARTITIONS, SECONDS = 3, 30
PRODUCE = 0
NUMBERS = range(3000)
ROWS = pa.RecordBatch.from_pylist(
    [
        {
            "key": b"%d" % n if n % 7 else None,
            "value": b"v" * (n % 300) if n % 11 else None,
            "headers": [{"key": "n", "value": b"%d" % n}, {"key": "none", "value": None}],
            "timestamp": 1_790_000_000_000_000 + 1000 * n,
        }
        for n in NUMBERS
    ],
    schema=pa.schema([SCHEMA.field(name) for name in ("key", "value", "headers", "timestamp")]),
)


@pytest.fixture(scope="module", params=["kafka", "headrace"])
def peer(request: pytest.FixtureRequest, has_java: None) -> Iterator[Broker]:
    with prepared(BROKERS[request.param]) as broker:
        broker.launch({"log.retention.ms": "-1"})
        try:
            yield broker
        finally:
            broker.kill()


@pytest.fixture
def topic(peer: Broker, request: pytest.FixtureRequest) -> str:
    name = "".join(one if one.isalnum() else "-" for one in request.node.name)
    with Cluster(peer.servers) as cluster:
        create(cluster, name, PARTITIONS)
    return name


def create(cluster: Cluster, topic: str, partitions: int, **configs: str) -> None:
    named = {name.replace("_", "."): value for name, value in configs.items()}
    create_topic(cluster, topic, partitions, configs=named)
    deadline = time.monotonic() + 60
    while topic not in describe_topics(cluster):  # Kafka answers before its metadata has it
        assert time.monotonic() < deadline
        time.sleep(0.05)


def read(servers: str, topic: str, count: int) -> list[Any]:
    """So many records, as an ordinary client has them, each partition in its order."""
    settings = {"bootstrap.servers": servers, "group.id": "unused", "enable.auto.commit": False}
    consumer = Consumer({**settings, "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, at, 0) for at in range(PARTITIONS)])
    found: list[Any] = []
    ended = 0
    while ended < PARTITIONS:
        message = consumer.poll(SECONDS)
        assert message is not None, f"{len(found)} of {count} came"
        error = message.error()
        if error is None:
            found.append(message)
        else:
            assert error.name() == "_PARTITION_EOF"
            ended += 1
    consumer.close()
    return found


@pytest.mark.parametrize("codec", Codec)
def test_an_ordinary_client_reads_the_same(peer: Broker, topic: str, codec: Codec) -> None:
    with Cluster(peer.servers) as cluster:
        producer = ColumnProducer(cluster, codec=codec, limits=Limits(request=40_000, batch=9_000))
        for start in range(0, len(NUMBERS), 1000):
            producer.write(topic, ROWS.slice(start, 1000))
    found = read(peer.servers, topic, len(NUMBERS))
    assert len(found) == len(NUMBERS)
    wanted = ROWS.to_pylist()
    for message in found:
        number = int(message.headers()[0][1])
        row = wanted[number]
        assert (message.key(), message.value()) == (row["key"], row["value"])
        assert message.headers()[1] == ("none", None)
        assert message.timestamp()[1] == 1_790_000_000_000 + number


def test_keys_go_where_an_ordinary_producer_puts_them(peer: Broker, topic: str) -> None:
    keys = [b"key %d" % number for number in range(300)]
    with Cluster(peer.servers) as cluster:
        rows = pa.RecordBatch.from_pydict({"key": pa.array(keys), "value": pa.array(keys)})
        ColumnProducer(cluster).write(topic, rows)
    ordinary = Producer({"bootstrap.servers": peer.servers, "partitioner": "murmur2_random"})
    for key in keys:
        ordinary.produce(topic, key, key)
    assert ordinary.flush(SECONDS) == 0
    places: dict[bytes, set[int]] = {}
    for message in read(peer.servers, topic, 600):
        places.setdefault(message.key(), set()).add(message.partition())
    assert len(places) == 300
    assert all(len(partitions) == 1 for partitions in places.values())


class Forgetful(Cluster):
    """Loses half of the answers: what was asked is done, and nobody is told."""

    lost = 0
    dice = random.Random(5)

    def exchange(self, address: Any, key: int, *rest: Any, **more: Any) -> Any:
        answer = super().exchange(address, key, *rest, **more)
        if key == PRODUCE and self.dice.random() < 0.5:
            self.lost += 1
            raise ConnectionError("lost")
        return answer


def test_lost_answers_repeat_nothing_and_reorder_nothing(peer: Broker, topic: str) -> None:
    values = [b"%d" % number for number in NUMBERS]
    patience = Patience(total_s=60, first_s=0.001, most_s=0.01)
    with Forgetful(peer.servers, patience=patience) as cluster:
        producer = ColumnProducer(cluster, limits=Limits(batch=500))
        for start in range(0, len(values), 300):
            part = values[start : start + 300]
            places = pa.array([1] * len(part), pa.int32())
            producer.write(topic, pa.RecordBatch.from_pydict({"value": part, "partition": places}))
        assert cluster.lost > 5
    assert [one.value() for one in read(peer.servers, topic, len(values))] == values


def test_what_the_broker_refuses_is_told(peer: Broker, topic: str) -> None:
    small, keyed = f"{topic}-small", f"{topic}-keyed"
    with Cluster(peer.servers) as cluster:
        create(cluster, small, 1, max_message_bytes="2000")
        create(cluster, keyed, 1, cleanup_policy="compact")
        producer = ColumnProducer(cluster)
        producer.write(small, pa.RecordBatch.from_pydict({"value": [b"x" * 100] * 100}))
        with pytest.raises(RecordTooLarge, match=f"a record for {small}-0 takes 30"):
            producer.write(small, pa.RecordBatch.from_pydict({"value": [b"x" * 3000]}))
        with pytest.raises(BrokerError, match=f"writing to {keyed}-0: INVALID_RECORD"):
            producer.write(keyed, pa.RecordBatch.from_pydict({"value": [b"x"]}))
