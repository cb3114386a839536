"""A group with a topic, on Apache Kafka or on Headrace, for tests of `headrace.ShareConsumer`."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from confluent_kafka import Producer

import headrace

SECONDS_MAX = 60.0
_NUMBERS = itertools.count(1)


class Rig:
    """A group of its own on a topic of its own, begun at the topic's start."""

    def __init__(self, servers: str, kind: str) -> None:
        number = next(_NUMBERS)
        self.kind = kind
        self.servers = servers
        self.topic, self.group = f"jobs-{number}", f"work-{number}"
        with headrace.SyncAdmin(servers) as admin:
            admin.create_topic(self.topic, 1)
        self.configure({"share.auto.offset.reset": "earliest"})

    def configure(self, values: dict[str, str]) -> None:
        with headrace.SyncAdmin(self.servers) as admin:
            admin.incremental_alter_configs(headrace.ResourceType.GROUP, self.group, values=values)

    def produce(self, *values: str, **settings: Any) -> None:
        producer = Producer({"bootstrap.servers": self.servers, "linger.ms": 50, **settings})
        for value in values:
            producer.produce(self.topic, value.encode(), key=b"k", headers={"h": b"1"})
        assert producer.flush(SECONDS_MAX) == 0

    def lag(self) -> int:
        with headrace.SyncAdmin(self.servers) as admin:
            found = admin.list_share_group_offsets(self.group)[self.topic, 0]
            assert found is not None
            assert found.lag is not None
            return found.lag

    @asynccontextmanager
    async def consumer(self, **settings: Any) -> AsyncIterator[headrace.ShareConsumer]:
        given = {"group": self.group, "topics": [self.topic], **settings}
        async with (
            asyncio.timeout(SECONDS_MAX),
            headrace.ShareConsumer(self.servers, **given) as consumer,
        ):
            yield consumer
