"""Requests of share groups that are carried out in portions, and a journal that fails meanwhile."""

import asyncio
import errno
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any
from uuid import uuid4

import pytest

from headrace.broker import share_polls
from headrace.broker.budgets import Budgets
from headrace.broker.errors import Code
from headrace.broker.handlers.share_acknowledge import ParsedPart
from headrace.broker.shards import PartitionJournal
from headrace.broker.share_polls import SharePoll
from headrace.core.catalog import CreateTopic, Topic
from headrace.core.runs import State
from headrace.core.shard_words import ReleaseMember, StartPartitions
from headrace.core.types import MemberId, TopicPartition
from headrace.wire.batches import Record
from headrace.wire.share_requests import FetchRequest

from .inside_rig import Inside, play
from .loop_rig import Client, LoopRig
from .test_loop_time import MEMBER
from .test_share_session_ends import (
    ACKNOWLEDGE,
    FETCH,
    FINAL,
    GROUP,
    acknowledging_in_portions,
    fetch,
    named,
    ranges,
)


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopRig]:
    yield from acknowledging_in_portions(monkeypatch)


async def accepted(rig: LoopRig, key: int, client: Client, epoch: int) -> int:
    """Accept the first five records by the API of this key; return the error code."""
    topics = named(rig, (0, 4))
    if key == FETCH:
        answer = await fetch(client, topics, epoch)
        return int(answer.responses[0].partitions[0].acknowledge_error_code)
    answer = await client.call(
        ACKNOWLEDGE, 2, group_id=GROUP, member_id=MEMBER, share_session_epoch=epoch,
        is_renew_ack=False, topics=topics,
    )  # fmt: skip
    return int(answer.responses[0].partitions[0].error_code)


@pytest.mark.parametrize("key", [FETCH, ACKNOWLEDGE])
@pytest.mark.parametrize("epoch", [1, FINAL])
@pytest.mark.parametrize("is_over_in_pause", [True, False], ids=["in a pause", "behind the last"])
def test_what_a_fault_takes_back_is_not_acknowledged(
    rig: LoopRig, key: int, epoch: int, is_over_in_pause: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = rig.services.shares.shard(GROUP)
    machine, append = shard.machine, PartitionJournal.append
    faults = [OSError(errno.EIO, "planted")]

    def failing_once(journal: PartitionJournal, *args: Any) -> int:
        if faults:
            raise faults.pop()
        return append(journal, *args)

    async def paused(_: Budgets, parts: Iterable[ParsedPart], __: int) -> AsyncIterator[ParsedPart]:
        for part in parts:
            yield part
            while is_over_in_pause and shard.machine is machine:  # noqa: ASYNC110  # it sets no event
                await asyncio.sleep(0)

    async def scene() -> None:
        client = Client(rig.server)
        assert ranges(await fetch(client, named(rig), 0)) == [(0, 9, 1)]
        monkeypatch.setattr(Budgets, "portions", paused)
        monkeypatch.setattr(PartitionJournal, "append", failing_once)
        assert await accepted(rig, key, client, epoch) == Code.STORAGE_ERROR
        (share,) = rig.services.shares.machine(GROUP).partitions.values()
        assert share.start == 0

    rig.run(scene())


class Look:
    """A look for records of three partitions."""

    def __init__(self, broker: Inside) -> None:
        self._broker = broker
        self.shares = broker.services.shares
        self.shard = self.shares.shard("g")

    async def begin(self) -> None:
        """Begin to look in a task."""
        services = self._broker.services
        topic = await services.topics.create(CreateTopic("orders", uuid4(), 3, {}))
        assert isinstance(topic, Topic)
        starts = tuple((topic.id, index, 0) for index in range(topic.partitions))
        await self.shares.ask("g", StartPartitions("g", starts))
        partitions = [services.partition("orders", index) for index in range(topic.partitions)]
        order = list[TopicPartition]()
        for partition in partitions:
            assert partition is not None
            partition.append_records([Record(0, self._broker.clock.wall(), None, b"v")] * 9)
            order.append(partition.key)
        asking = FetchRequest("g", MEMBER, 1, False, [], 0, 1, 1 << 20, 500, 500, 0, [])
        self.poll = SharePoll(services, ("g", MemberId(MEMBER)), asking, order, [], [])
        self.task = asyncio.ensure_future(self.poll.look_in_portions())

    async def acquired(self, count: int) -> None:
        """Return once records of so many partitions are acquired."""
        while sum(self.held().values()) < count:  # noqa: ASYNC110  # it sets no event
            await asyncio.sleep(0)

    def held(self) -> dict[int, bool]:
        """Return of which partitions records are acquired."""
        return {
            key.partition: bool(share.runs.records[State.ACQUIRED])
            for key, share in self.shares.machine("g").partitions.items()
        }

    def sent(self) -> dict[int, bool]:
        """Return of which partitions acquired records would be sent now."""
        return {part.partition: bool(part.acquired) for part in self.poll.outcome(None)}


def test_what_a_fault_takes_back_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what a look acquires in portions, all is held when it is done."""
    monkeypatch.setattr(share_polls, "LOOK_PORTION", 1)

    async def scene(broker: Inside) -> None:
        look = Look(broker)
        await look.begin()
        await look.acquired(1)
        look.shard._drop(OSError(errno.EIO, "planted"), [])
        assert not await look.shares.ask("g", ReleaseMember("g", MemberId("other")))  # it rebuilds
        assert await look.task
        assert look.sent() == look.held() == dict.fromkeys(range(3), True)

    play(Inside, scene)


@pytest.mark.parametrize(("portion", "count"), [(1, 1), (1, 2), (2, 0)])
def test_what_a_look_acquires_before_it_rebuilds_the_shard_is_not_sent(
    portion: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And all that it acquires after that is sent."""
    monkeypatch.setattr(share_polls, "LOOK_PORTION", portion)

    async def scene(broker: Inside) -> None:
        look = Look(broker)
        await look.begin()
        await look.acquired(count)
        machine = look.shard.machine
        look.shard._drop(OSError(errno.EIO, "planted"), [])
        assert await look.task
        assert look.shard.machine is not machine
        held = look.held()
        assert {index: is_sent for index, is_sent in look.sent().items() if is_sent} == {
            index: is_held for index, is_held in held.items() if is_held
        }
        assert held == {index: index >= count for index in range(3)}

    play(Inside, scene)
