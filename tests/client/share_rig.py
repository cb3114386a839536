"""A group of its own on a topic of its own, for tests of share consumers on a real broker."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from confluent_kafka import Producer

import headrace
from headrace.client.errors import BrokerError

SECONDS_MAX = 30.0
_NUMBERS = itertools.count(1)


class Rig:
    """A group of its own on a topic of its own, begun at the topic's start."""

    def __init__(self, servers: str) -> None:
        number = next(_NUMBERS)
        self.servers = servers
        self.topic, self.group = f"jobs-{number}", f"work-{number}"
        self.admin = headrace.SyncAdmin(servers)
        self.admin.create_topic(self.topic, 1)
        self.configure({"share.auto.offset.reset": "earliest"})

    def configure(self, values: dict[str, str]) -> None:
        group = headrace.ResourceType.GROUP
        self.admin.incremental_alter_configs(group, self.group, values=values)

    def produce(self, *values: str, topic: str = "", partition: int = 0) -> None:
        producer = Producer({"bootstrap.servers": self.servers})
        for value in values:
            producer.produce(topic or self.topic, value.encode(), partition=partition)
        assert producer.flush(SECONDS_MAX) == 0

    @property
    def about(self) -> dict[str, Any]:
        return {"group": self.group, "topics": [self.topic]}

    @asynccontextmanager
    async def consumer(self, **settings: Any) -> AsyncIterator[headrace.ShareConsumer]:
        async with (
            asyncio.timeout(SECONDS_MAX),
            headrace.ShareConsumer(self.servers, **(self.about | settings)) as consumer,
        ):
            yield consumer

    def sync(self) -> headrace.SyncShareConsumer:
        return headrace.SyncShareConsumer(self.servers, **self.about)

    def members(self) -> int:
        described = self.admin.describe_share_groups([self.group])[self.group]
        assert not isinstance(described, BrokerError)
        return len(described.members)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 -- what it waits for are counts, without events
        await asyncio.sleep(0.005)
