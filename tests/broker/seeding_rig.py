"""The inside of a broker with a group that has a reset policy, and the member that asks."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import uuid4

from headrace.broker.handlers import offset_fetch
from headrace.broker.request import Request
from headrace.core.catalog import AddPartitions, CreateTopic, Resource, SetConfigs, Topic
from headrace.core.consumer_words import Beaten, ConsumerBeat
from headrace.core.group_words import Commit, Offset
from headrace.core.types import MemberId
from headrace.log.memory_disk import MemoryDisk
from headrace.wire import batches, codec

from . import inside_rig
from .inside_rig import Inside

MEMBER = MemberId("m")


class Broker(Inside):
    """Group "g" has a policy, and once `join` is called a member that subscribes to "orders"."""

    async def prepare(self, policy: str = "latest", partitions: int = 1) -> None:
        await self.topic("orders", partitions)
        await self.configure("g", policy)
        await self.join()

    async def topic(self, name: str, partitions: int) -> Topic:
        made = await self.services.topics.create(CreateTopic(name, uuid4(), partitions, {}))
        assert isinstance(made, Topic)
        return made

    async def configure(self, group: str, policy: str) -> None:
        changed = SetConfigs(Resource.GROUP, group, {"auto.offset.reset": policy})
        assert await self.services.topics.set_configs(changed) is None

    async def join(self) -> None:
        beat = ConsumerBeat(
            "g", MEMBER, 0, rebalance_ms=60_000, topics=frozenset(["orders"]), owned=frozenset()
        )
        assert isinstance(await self.services.groups.ask("g", beat), Beaten)

    async def grow(self, total: int) -> None:
        grown = await self.services.topics.add_partitions(AddPartitions("orders", total))
        assert isinstance(grown, Topic)

    async def commit(self, group: str, partition: int, offset: int) -> None:
        one = Offset("orders", partition, offset, -1, "", self.orders.id)
        told = await self.services.groups.ask(group, Commit(group, MemberId(""), None, -1, (one,)))
        assert told == [None]

    async def fetch(self, *indexes: int) -> tuple[int, list[int]]:
        """The code of the group, and the offsets, as the member of "g" is told them."""
        topic = {"topic_id": self.orders.id, "partition_indexes": indexes}
        one = {"group_id": "g", "member_id": "m", "member_epoch": 2, "topics": (topic,)}
        fields = {"groups": (one,), "require_stable": True}
        body = memoryview(bytearray(codec.encode_request(9, 10, fields)))
        request = Request(9, 10, 1, "client", "127.0.0.1", 1, body)
        answer: Any = await offset_fetch.handle(request, self.services)
        (group,) = answer["groups"]
        partitions = [one for topic in group["topics"] for one in topic["partitions"]]
        return group["error_code"], [one["committed_offset"] for one in partitions]

    def produce(self, partition: int, count: int) -> None:
        found = self.services.partition("orders", partition)
        assert found is not None
        found.append_records([batches.Record(0, self.clock.wall(), None, b"v")] * count)

    @property
    def orders(self) -> Topic:
        return self.services.catalog.topics["orders"]

    def committed(self, group: str = "g") -> dict[int, int]:
        return {index: one.offset for _, index, one in self.services.groups.offsets(group)}


Scene = Callable[[Broker], Coroutine[Any, Any, None]]


def play(scene: Scene, disk: MemoryDisk | None = None, **settings: str) -> None:
    inside_rig.play(lambda: Broker(disk, **settings), scene)


def die_after(scene: Scene, disk: MemoryDisk) -> None:
    """Play it, and end the process: what it wrote is there, and nothing is put in order."""

    async def go() -> None:
        broker = Broker(disk)
        await broker.start()
        await scene(broker)
        disk.kill()

    asyncio.run(asyncio.wait_for(go(), inside_rig.SECONDS_MAX))
