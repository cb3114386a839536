"""Share-partitions with many in-flight ranges follow the start of their log in portions."""

import asyncio
import contextlib
from uuid import uuid4

import pytest

from headrace.broker import share_bounds
from headrace.broker.partitions import Partition
from headrace.broker.share_polls import SharePoll
from headrace.broker.shares import Shard
from headrace.core.catalog import CreateTopic, Topic
from headrace.core.errors import Refused
from headrace.core.runs import State
from headrace.core.shard_words import Keep, On, StartPartitions
from headrace.core.share_group import Heartbeat
from headrace.core.share_partition import SharePartition
from headrace.core.share_words import (
    PORTION_RUNS,
    Acknowledge,
    Acknowledged,
    Acquire,
    LogStartMoved,
    Replayed,
    ShareKey,
    Verdict,
)
from headrace.core.types import MemberId, Span, TopicPartition
from headrace.log.memory_disk import MemoryDisk
from headrace.wire.batches import Record
from headrace.wire.share_requests import FetchRequest

from .inside_rig import Inside, play

MEMBER = MemberId("member")
RECORDS = 20 * PORTION_RUNS


class Broker(Inside):
    """A broker with a group that has each record of a partition in flight, no two of them alike."""

    @property
    def partition(self) -> Partition:
        partition = self.services.partition("orders", 0)
        assert partition is not None
        return partition

    @property
    def share(self) -> SharePartition:
        key = ShareKey("group", self.partition.topic.id, 0)
        return self.services.shares.machine("group").partitions[key]

    async def fill(self) -> None:
        topic = CreateTopic("orders", uuid4(), 1, {})
        await self.services.topics.create(topic)
        shares = self.services.shares
        await shares.ask("group", Heartbeat("group", MEMBER, 0, frozenset({"orders"})))
        self.partition.append_records(
            [Record(0, self.clock.wall(), b"", b"") for _ in range(RECORDS)]
        )
        key = self.share.key
        acquire = Acquire(MEMBER, [Span(0, RECORDS - 1)], RECORDS, RECORDS, exact=True)
        released = [
            Acknowledged(Span(offset, offset), [Verdict.RELEASE]) for offset in range(0, RECORDS, 2)
        ]
        for command in (acquire, Acknowledge(MEMBER, released)):
            assert not isinstance(await shares.ask("group", On(key, command)), Refused)

    async def moved_to(self, offset: int) -> None:
        """Return once the group goes on at an offset."""
        while self.share.start != offset:
            self.services.log_starts.work.end_pauses()
            await asyncio.sleep(0)


async def is_failing(shard: Shard, *, expected: bool) -> None:
    """Return once the journal of a shard fails, or works again."""
    while (shard.fault is not None) != expected:  # noqa: ASYNC110  # neither sets an event
        await asyncio.sleep(0)


def test_one_portion_is_moved_at_once() -> None:
    async def scene(broker: Broker) -> None:
        await broker.fill()
        await broker.partition.begin_at(RECORDS)
        assert 0 < broker.share.start <= PORTION_RUNS
        await broker.moved_to(RECORDS)

    play(Broker, scene)


def test_a_start_that_moves_again_meanwhile_is_followed() -> None:
    async def scene(broker: Broker) -> None:
        await broker.fill()
        await broker.partition.begin_at(2 * PORTION_RUNS)
        await broker.partition.begin_at(RECORDS - 1)
        await broker.moved_to(RECORDS - 1)

    play(Broker, scene)


@pytest.mark.parametrize("before", [PORTION_RUNS // 2, RECORDS])
def test_portions_that_a_fault_takes_back_are_moved_again(before: int) -> None:
    async def scene(broker: Broker) -> None:
        await broker.fill()
        shard = broker.services.shares.shard("group")
        await broker.partition.begin_at(before)
        assert broker.share.start > 0
        broker.disk.fail_after(0)
        await is_failing(shard, expected=True)
        broker.disk.fail_after(None)
        await is_failing(shard, expected=False)
        await broker.moved_to(before)

    play(Broker, scene)


def test_a_group_that_was_moved_is_moved_again_after_a_fault_amid_another_one() -> None:
    """By the end of the other one's portions, the journal works again."""

    async def scene(broker: Broker) -> None:
        await broker.fill()
        shares, topic = broker.services.shares, broker.partition.topic
        shard = shares.shard("group")
        other = next(name for name in map(str, range(1000)) if shares.shard(name) is shard)
        await shares.ask(other, StartPartitions(other, ((topic.id, 0, 0),)))
        key = ShareKey(other, topic.id, 0)
        states = [(n, n, State.AVAILABLE, 1 + n % 2, None, None) for n in range(RECORDS)]
        shares.machine(other).apply(Replayed(key, states))
        await shares.ask(other, Keep((key,), ()))
        await broker.partition.begin_at(RECORDS)
        await broker.moved_to(RECORDS)
        assert shares.machine(other).partitions[key].start < RECORDS
        broker.disk.failing.add("append")
        await is_failing(shard, expected=True)
        broker.disk.failing.clear()
        await is_failing(shard, expected=False)
        assert broker.share.start < RECORDS
        await broker.moved_to(RECORDS)

    play(Broker, scene)


ASKING = FetchRequest("group", MEMBER, 1, False, [], 0, 1, 1 << 20, 500, 500, 0, [])


def test_a_look_for_records_goes_on_where_all_is_moved() -> None:
    async def scene(broker: Broker) -> None:
        await broker.fill()
        broker.partition.append_records([Record(0, broker.clock.wall(), b"", b"")])
        broker.services.partitions.on_start_moved.clear()
        moved = LogStartMoved(RECORDS - PORTION_RUNS, RECORDS)
        await broker.services.shares.ask("group", On(broker.share.key, moved))
        await broker.partition.begin_at(RECORDS)
        key, order = ("group", MEMBER), [broker.partition.key]
        assert SharePoll(broker.services, key, ASKING, order, [], []).look()

    play(Broker, scene)


def test_a_look_at_many_partitions_moves_one_portion() -> None:
    """A portion of each would take a second for 200 partitions."""

    async def scene(broker: Broker) -> None:
        services, shares = broker.services, broker.services.shares
        topic = await services.topics.create(CreateTopic("orders", uuid4(), 3, {}))
        assert isinstance(topic, Topic)
        keys = [ShareKey("group", topic.id, index) for index in range(topic.partitions)]
        await shares.ask(
            "group", StartPartitions("group", tuple((topic.id, n, 0) for n in range(3)))
        )
        services.partitions.on_start_moved.clear()
        order = list[TopicPartition]()
        for key in keys:
            partition = services.partition("orders", key.partition)
            assert partition is not None
            partition.append_records([Record(0, broker.clock.wall(), b"", b"")] * PORTION_RUNS)
            states = [(n, n, State.AVAILABLE, 1 + n % 2, None, None) for n in range(PORTION_RUNS)]
            shares.machine("group").apply(Replayed(key, states))
            await partition.begin_at(PORTION_RUNS)
            order.append(partition.key)
        await shares.ask("group", Keep(tuple(keys), ()))
        known = shares.machine("group").partitions
        assert not SharePoll(services, ("group", MEMBER), ASKING, order, [], []).look()
        assert [known[key].start for key in keys] == [PORTION_RUNS, 0, 0]
        await services.log_starts.settle()
        assert [known[key].start for key in keys] == [PORTION_RUNS] * 3

    play(Broker, scene)


def test_a_look_for_records_moves_a_portion() -> None:
    async def scene(broker: Broker) -> None:
        await broker.fill()
        broker.services.partitions.on_start_moved.clear()
        await broker.partition.begin_at(RECORDS)
        key = ("group", MEMBER)
        poll = SharePoll(broker.services, key, ASKING, [broker.partition.key], [], [])
        assert not poll.look()
        assert 0 < broker.share.start < RECORDS
        await broker.moved_to(RECORDS)

    play(Broker, scene)


def test_an_orderly_stop_moves_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_bounds, "PORTION_RUNS", 10)  # so that it takes many turns
    disk, starts = MemoryDisk(), list[int]()

    async def stop_amid(broker: Broker) -> None:
        await broker.fill()
        shares = broker.services.shares
        close = shares.close

        async def noted() -> None:
            starts.append(broker.share.start)
            await close()

        monkeypatch.setattr(shares, "close", noted)
        await broker.partition.begin_at(RECORDS)
        starts.append(broker.share.start)

    async def look(broker: Broker) -> None:
        starts.append(broker.share.start)

    for scene in (stop_amid, look):
        play(lambda: Broker(disk), scene)
    assert starts[0] < RECORDS
    assert starts[1:] == [RECORDS, RECORDS]


def test_a_stop_does_not_wait_for_a_disk_that_fails() -> None:
    async def scene(broker: Broker) -> None:
        await broker.fill()
        await broker.partition.begin_at(RECORDS)
        broker.disk.fail_after(0)

    with contextlib.suppress(OSError):
        play(Broker, scene)
