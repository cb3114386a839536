"""Reset policies while a topic grows, is deleted and made again, on a disk that fails at times.

Whatever comes together: a member that is told offsets has one of each partition, of a new one its
start, and never one from before its own commit.
"""

import asyncio
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from random import Random
from typing import Any
from uuid import UUID, uuid4

import pytest

from headrace.broker.errors import Code
from headrace.broker.runtime import StorageFault
from headrace.core.catalog import AddPartitions, CreateTopic, DeleteTopic, Topic
from headrace.core.consumer_group import ConsumerGroup
from headrace.core.group_words import Commit, Offset

from .seeding_rig import MEMBER, Broker, play

ANSWERS, FAULTS, PARTITIONS_MAX = 300, 20, 12
SEEDS = range(6)
POLICIES = ("latest", "safe_latest", "earliest")


class Storm:
    """Whoever does something to one broker; `floor` has what is committed, or about to be."""

    def __init__(self, broker: Broker, rng: Random) -> None:
        self.broker, self.rng = broker, rng
        self.floor: dict[tuple[UUID, int], int] = {}
        self.added: set[tuple[UUID, int]] = set()
        self.told: Counter[int] = Counter()
        self.is_over = False

    async def turns(self, most: int) -> bool:
        """Let others have their turn; whether the storm goes on."""
        for _ in range(self.rng.randrange(1, most)):
            await asyncio.sleep(0)
        return not self.is_over

    @property
    def orders(self) -> Topic | None:
        return self.broker.services.catalog.topics.get("orders")

    async def fail(self) -> None:
        """The disk fails for a few turns: often no longer than one write."""
        broker, rng = self.broker, self.rng
        while await self.turns(40):
            broker.disk.fail_after(rng.choice((0, 50, 300)))
            await self.turns(6)
            broker.disk.fail_after(None)
            broker.clock.advance(rng.choice((0, 1, 1_000)))

    async def grow(self) -> None:
        topics = self.broker.services.topics
        while await self.turns(60):
            with suppress(OSError, StorageFault):
                topic = self.orders
                if topic is None:
                    await topics.create(CreateTopic("orders", uuid4(), 2, {}))
                elif topic.partitions < PARTITIONS_MAX:
                    before, total = topic.partitions, topic.partitions + self.rng.randint(1, 2)
                    await topics.add_partitions(AddPartitions("orders", total))
                    self.added |= {(topic.id, n) for n in range(before, topic.partitions)}
                else:
                    await topics.delete(DeleteTopic(topic.id))

    async def produce(self) -> None:
        while await self.turns(8):
            topic = self.orders
            index = self.rng.randrange(topic.partitions) if topic is not None else 0
            if self.broker.services.partition("orders", index) is not None:
                with suppress(OSError):
                    self.broker.produce(index, self.rng.randint(1, 3))

    async def commit(self) -> None:
        """The member goes on, as far as there are records."""
        groups = self.broker.services.groups
        while await self.turns(20):
            topic, group = self.orders, groups.find("g")
            index = self.rng.randrange(topic.partitions) if topic is not None else 0
            partition = self.broker.services.partition("orders", index)
            if topic is None or partition is None or not isinstance(group, ConsumerGroup):
                continue
            before = self.floor.setdefault((topic.id, index), 0)
            offset = self.rng.randint(before, max(before, partition.high_watermark))
            one = Offset("orders", index, offset, -1, "", topic.id)
            epoch = group.holdings[MEMBER].epoch
            if await groups.ask("g", Commit("g", MEMBER, None, epoch, (one,))) == [None]:
                self.floor[topic.id, index] = offset

    async def ask(self) -> None:
        """A member starts, and is told where to."""
        while await self.turns(8):
            topic = self.orders
            if topic is None:
                continue
            count = topic.partitions
            indexes = self.rng.sample(range(count), self.rng.randint(1, count))
            floor = {n: self.floor.get((topic.id, n), 0) for n in indexes}
            with suppress(KeyError):  # the topic is gone
                code, offsets = await self.broker.fetch(*indexes)
                if topic is self.orders:
                    self.told[code] += 1
                    for n, offset in zip(indexes, offsets, strict=code == Code.NONE):
                        assert offset >= floor[n], f"{n} is set back to {offset} from {floor[n]}"
                        is_unread = (topic.id, n) not in self.floor
                        assert offset == 0 or not is_unread or (topic.id, n) not in self.added


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_skipped_and_nobody_is_set_back(seed: int) -> None:
    async def scene(broker: Broker) -> None:
        await broker.prepare(POLICIES[seed % len(POLICIES)], partitions=2)
        broker.clock.advance(10)
        storm = Storm(broker, Random(seed))
        work: list[Coroutine[Any, Any, None]] = [storm.ask(), storm.ask(), storm.fail()]
        work += [storm.grow(), storm.produce(), storm.commit()]
        tasks = [asyncio.ensure_future(one) for one in work]
        told = storm.told
        while told[Code.NONE] < ANSWERS or told[Code.NOT_COORDINATOR] < FAULTS:
            await asyncio.sleep(0)
            if any(one.done() for one in tasks):  # with an error
                break
        storm.is_over = True
        await asyncio.gather(*tasks)
        broker.disk.fail_after(None)
        assert storm.added

    play(scene)
