"""confluent-kafka's ShareConsumer, unmodified, against a broker over the wire."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import AcknowledgeType
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

import headrace

GROUP, TOPIC = "work", "jobs"
SECONDS_MAX = 10.0


class Client:
    """What a test does with clients of one broker."""

    def __init__(self, broker: headrace.Broker) -> None:
        self.servers = broker.bootstrap_servers
        self.admin = AdminClient({"bootstrap.servers": self.servers})
        self.producer = confluent_kafka.Producer(
            {"bootstrap.servers": self.servers, "linger.ms": 0}
        )

    def create(self, topic: str = TOPIC, partitions: int = 1) -> None:
        for future in self.admin.create_topics([NewTopic(topic, partitions)]).values():
            future.result()

    def configure(self, **values: str) -> None:
        entries = [
            ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for name, value in values.items()
        ]
        resource = ConfigResource(ResourceType.GROUP, GROUP, incremental_configs=entries)
        for future in self.admin.incremental_alter_configs([resource]).values():
            future.result()

    def produce(self, *values: str, topic: str = TOPIC, partition: int = 0) -> None:
        for value in values:
            self.producer.produce(topic, value=value.encode(), key=b"k", partition=partition)
        assert self.producer.flush(SECONDS_MAX) == 0

    @contextlib.contextmanager
    def consumer(self, mode: str = "explicit", topic: str = TOPIC) -> Iterator[Any]:
        consumer = confluent_kafka.ShareConsumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": GROUP,
                "share.acknowledgement.mode": mode,
                "log_level": 2,
            }
        )
        consumer.subscribe([topic])
        try:
            yield consumer
        finally:
            consumer.close()

    def read(self, topic: str, count: int) -> list[Any]:
        """Records of a topic's partition 0 by an ordinary consumer."""
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": self.servers, "group.id": "reader", "enable.auto.commit": False}
        )
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        try:
            return take(lambda: consumer.consume(100, 0.1), count)
        finally:
            consumer.close()


def take(poll: Callable[[], list[Any]], count: int) -> list[Any]:
    """Poll until `count` messages came."""
    found: list[Any] = []
    until = time.monotonic() + SECONDS_MAX
    while len(found) < count and time.monotonic() < until:
        for message in poll():
            assert message.error() is None, message.error()
            found.append(message)
    assert len(found) == count, [message.value() for message in found]
    return found


def polled(consumer: Any, count: int) -> list[Any]:
    return take(lambda: consumer.poll(0.1), count)


def values(messages: list[Any]) -> list[str]:
    return [message.value().decode() for message in messages]


@pytest.fixture
def client(broker: headrace.Broker) -> Client:
    client = Client(broker)
    client.create()
    client.configure(share_auto_offset_reset="earliest")
    return client


def test_implicit_mode_accepts_what_the_last_poll_returned(client: Client) -> None:
    client.produce("a", "b", "c")
    with client.consumer("implicit") as consumer:
        assert values(polled(consumer, 3)) == ["a", "b", "c"]
        consumer.commit_sync()
    client.produce("d")
    with client.consumer("implicit") as consumer:
        assert values(polled(consumer, 1)) == ["d"]


def test_explicit_accept_release_reject(client: Client) -> None:
    client.produce("accepted", "released", "rejected")
    with client.consumer() as consumer:
        accepted, released, rejected = polled(consumer, 3)
        consumer.acknowledge(accepted, AcknowledgeType.ACCEPT)
        consumer.acknowledge(released, AcknowledgeType.RELEASE)
        consumer.acknowledge(rejected, AcknowledgeType.REJECT)
        consumer.commit_sync()
        (again,) = polled(consumer, 1)
        assert again.value() == b"released"
        consumer.acknowledge(again, AcknowledgeType.ACCEPT)
        consumer.commit_sync()
    client.produce("next")
    with client.consumer() as consumer:
        assert values(polled(consumer, 1)) == ["next"]


def test_rejected_and_exhausted_records_become_dead_letters(client: Client) -> None:
    client.configure(errors_deadletterqueue_topic_name="jobs.dlq", share_delivery_count_limit="2")
    client.produce("poison", "unlucky", "fine")
    with client.consumer() as consumer:
        for message in polled(consumer, 3):
            verdict = {
                b"poison": AcknowledgeType.REJECT,
                b"unlucky": AcknowledgeType.RELEASE,
                b"fine": AcknowledgeType.ACCEPT,
            }[message.value()]
            consumer.acknowledge(message, verdict)
        consumer.commit_sync()
        (unlucky,) = polled(consumer, 1)
        consumer.acknowledge(unlucky, AcknowledgeType.RELEASE)
        consumer.commit_sync()
    letters = {message.value(): dict(message.headers()) for message in client.read("jobs.dlq", 2)}
    assert letters[b"poison"] == {
        "__dlq.errors.group": b"work",
        "__dlq.errors.topic": b"jobs",
        "__dlq.errors.partition": b"0",
        "__dlq.errors.offset": b"0",
        "__dlq.errors.delivery.count": b"1",
        "__dlq.errors.message": b"rejected by the consumer",
    }
    assert letters[b"unlucky"]["__dlq.errors.delivery.count"] == b"2"
    assert letters[b"unlucky"]["__dlq.errors.message"] == b"delivery count limit 2 reached"


def test_two_consumers_share_one_partition(client: Client) -> None:
    with client.consumer() as first, client.consumer() as second:
        first.poll(0.2)
        second.poll(0.2)
        seen: dict[str, str] = {}
        until = time.monotonic() + SECONDS_MAX
        produced = 0
        while len(seen) < 40 and time.monotonic() < until:
            if produced < 40:
                client.produce(f"{produced}")
                produced += 1
            for name, consumer in (("first", first), ("second", second)):
                for message in consumer.poll(0.01):
                    assert message.value().decode() not in seen, "delivered twice"
                    seen[message.value().decode()] = name
                    consumer.acknowledge(message, AcknowledgeType.ACCEPT)
        assert sorted(map(int, seen)) == list(range(40))
        assert set(seen.values()) == {"first", "second"}


def test_records_of_a_closed_consumer_go_to_another(client: Client) -> None:
    client.produce("a", "b")
    with client.consumer() as consumer:
        polled(consumer, 2)
    with client.consumer() as consumer:
        assert values(polled(consumer, 2)) == ["a", "b"]


def test_latest_begins_at_the_first_heartbeat(client: Client) -> None:
    client.configure(share_auto_offset_reset="latest")
    client.produce("before")
    with client.consumer() as consumer:
        consumer.poll(0.5)
        client.produce("after")
        assert values(polled(consumer, 1)) == ["after"]


def test_topic_created_after_the_subscription(client: Client) -> None:
    """Also under `latest` nothing is skipped: there was nothing when the subscription was made."""
    client.configure(share_auto_offset_reset="latest")
    with client.consumer(topic="later") as consumer:
        consumer.poll(0.2)
        client.create("later")
        client.produce("hello", topic="later")
        assert values(polled(consumer, 1)) == ["hello"]


def test_state_survives_a_restart(tmp_path: Any) -> None:
    with headrace.Broker(data_dir=tmp_path) as broker:
        client = Client(broker)
        client.create()
        client.configure(share_auto_offset_reset="earliest")
        client.produce("accepted", "released", "unanswered")
        with client.consumer() as consumer:
            accepted, released, _ = polled(consumer, 3)
            consumer.acknowledge(accepted, AcknowledgeType.ACCEPT)
            consumer.acknowledge(released, AcknowledgeType.RELEASE)
            consumer.commit_sync()
    with headrace.Broker(data_dir=tmp_path) as broker, Client(broker).consumer() as consumer:
        assert values(polled(consumer, 2)) == ["released", "unanswered"]
