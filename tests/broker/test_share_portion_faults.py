"""Requests of share groups that are carried out in portions, and a journal that fails meanwhile."""

import asyncio
import errno
from collections.abc import AsyncIterator, Iterable, Iterator
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from headrace.broker import share_polls
from headrace.broker.budgets import Budgets
from headrace.broker.errors import Code
from headrace.broker.handlers.share_acknowledge import ParsedPart
from headrace.broker.handlers.share_fetch import _fault
from headrace.broker.shards import PartitionJournal
from headrace.broker.share_polls import SharePoll
from headrace.core.catalog import CreateTopic, Topic
from headrace.core.runs import State
from headrace.core.shard_words import StartPartitions
from headrace.core.share_words import ShareKey
from headrace.core.types import MemberId, TopicPartition
from headrace.wire.batches import Record
from headrace.wire.share_requests import FetchRequest

from .inside_rig import Inside, play
from .loop_rig import Client, LoopRig
from .test_loop_time import MEMBER
from .test_runtime import rebuilt
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
        await rebuilt(shard)
        (share,) = rig.services.shares.machine(GROUP).partitions.values()
        assert share.start == 0

    rig.run(scene())


@pytest.mark.parametrize("is_over_in_pause", [True, False])
def test_what_a_fault_takes_back_is_not_sent(
    is_over_in_pause: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what a look acquires in portions, all is held when it is done."""
    monkeypatch.setattr(share_polls, "LOOK_PORTION", 1)
    asking = FetchRequest("g", MEMBER, 1, False, [], 0, 1, 1 << 20, 500, 500, 0, [])

    async def scene(broker: Inside) -> None:
        services, shares = broker.services, broker.services.shares
        topic = await services.topics.create(CreateTopic("orders", uuid4(), 3, {}))
        assert isinstance(topic, Topic)
        starts = tuple((topic.id, index, 0) for index in range(topic.partitions))
        await shares.ask("g", StartPartitions("g", starts))
        partitions = [services.partition("orders", index) for index in range(topic.partitions)]
        order = list[TopicPartition]()
        for partition in partitions:
            assert partition is not None
            partition.append_records([Record(0, broker.clock.wall(), None, b"v")] * 9)
            order.append(partition.key)
        shard, first = shares.shard("g"), ShareKey("g", topic.id, 0)
        faults = [OSError(errno.EIO, "planted")]

        async def pause(_: float) -> None:
            if faults and shares.machine("g").partitions[first].runs.records[State.ACQUIRED]:
                shard._drop(faults.pop(), [])
                if is_over_in_pause:
                    await rebuilt(shard)

        monkeypatch.setattr(share_polls, "asyncio", SimpleNamespace(sleep=pause))
        poll = SharePoll(services, ("g", MemberId(MEMBER)), asking, order, [], [])
        assert await poll.look_in_portions()
        fault = await _fault(services, ("g", MemberId(MEMBER)))
        await rebuilt(shard)
        assert not faults
        sent = {part.partition: bool(part.acquired) for part in poll.outcome(fault)}
        held = {
            key.partition: bool(share.runs.records[State.ACQUIRED])
            for key, share in shares.machine("g").partitions.items()
        }
        assert sent == held == dict.fromkeys(range(3), is_over_in_pause)

    play(Inside, scene)
