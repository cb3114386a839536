"""confluent-kafka's clients of one broker, as tests of its share consumer use them."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

import headrace
from headrace.client.admin import log_end
from headrace.client.connection import Cluster
from headrace.client.errors import BrokerError
from headrace.client.share_groups import describe_share_groups, list_share_group_offsets

GROUP, TOPIC = "work", "jobs"
SECONDS_MAX = 60.0


class Client:
    """What a test does with clients of one broker."""

    def __init__(self, broker: headrace.Broker) -> None:
        self.servers = broker.bootstrap_servers
        self.admin = AdminClient({"bootstrap.servers": self.servers})
        self.producer = confluent_kafka.Producer(
            {"bootstrap.servers": self.servers, "linger.ms": 0}
        )

    def create(
        self, topic: str = TOPIC, partitions: int = 1, config: dict[str, str] | None = None
    ) -> None:
        wanted = NewTopic(topic, partitions, config=config or {})
        for future in self.admin.create_topics([wanted]).values():
            future.result()

    def left(self) -> int:
        """How many offsets the group has not finished."""
        with contextlib.closing(Cluster(self.servers)) as cluster:
            found = list_share_group_offsets(cluster, GROUP)
        return sum(place.lag or 0 for place in found.values() if place is not None)

    def joined(self, consumer: Any) -> None:
        """Poll until the broker knows the member: where `latest` is, is decided by then."""
        until = time.monotonic() + SECONDS_MAX
        with contextlib.closing(Cluster(self.servers)) as cluster:
            while True:
                consumer.poll(0.05)
                found = describe_share_groups(cluster, [GROUP])[GROUP]
                if not isinstance(found, BrokerError) and found.members:
                    return
                assert time.monotonic() < until, found

    def all_of(self, topic: str) -> list[str]:
        """The values of all records that partition 0 has now."""
        with contextlib.closing(Cluster(self.servers)) as cluster:
            end = log_end(cluster, topic, 0)
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": self.servers, "group.id": "reader", "enable.auto.commit": False}
        )
        place = confluent_kafka.TopicPartition(topic, 0, 0)
        consumer.assign([place])
        found: list[str] = []
        try:
            while consumer.position([place])[0].offset < end:
                found += values(consumer.consume(500, 0.2))
        finally:
            consumer.close()
        return found

    def configure(self, group: str = GROUP, **values: str) -> None:
        entries = [
            ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for name, value in values.items()
        ]
        resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
        for future in self.admin.incremental_alter_configs([resource]).values():
            future.result()

    def produce(self, *values: str, topic: str = TOPIC, partition: int = 0) -> None:
        for value in values:
            self.producer.produce(topic, value=value.encode(), key=b"k", partition=partition)
        assert self.producer.flush(SECONDS_MAX) == 0

    @contextlib.contextmanager
    def consumer(
        self, mode: str = "explicit", topic: str = TOPIC, group: str = GROUP, **settings: Any
    ) -> Iterator[Any]:
        consumer = confluent_kafka.ShareConsumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": group,
                "share.acknowledgement.mode": mode,
                "log_level": 2,
                **{name.replace("_", "."): value for name, value in settings.items()},
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


def accepted(consumer: Any, count: int) -> list[Any]:
    """Poll, accept and commit until `count` messages came."""
    return take(lambda: accepted_now(consumer), count)


def accepted_now(consumer: Any) -> list[Any]:
    """What one poll brings, accepted and committed."""
    found = list(consumer.poll(0.1))
    for message in found:
        consumer.acknowledge(message)
    assert set(consumer.commit_sync().values()) <= {None}
    return found


def values(messages: list[Any]) -> list[str]:
    return [message.value().decode() for message in messages]
