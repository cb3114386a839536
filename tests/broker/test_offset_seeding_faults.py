"""Reset policies on a disk that fails: members wait, and nothing is skipped."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from headrace.broker.errors import Code
from headrace.core.catalog import Topic
from headrace.core.group_events import OffsetCommitted
from headrace.log.memory_disk import MemoryDisk
from headrace.wire import batches

from .seeding_rig import Broker, play
from .test_runtime import rebuilt


@pytest.mark.parametrize("policy", ["latest", "safe_latest"])
def test_a_disk_that_fails_puts_it_off(policy: str, caplog: pytest.LogCaptureFixture) -> None:
    """By the time that it works again there are records, which are not skipped all the same."""

    async def scene(broker: Broker) -> None:
        await broker.prepare(policy)
        broker.clock.advance(1_000)

        async def fail(topic: Topic, first: int) -> None:
            broker.disk.fail_after(0)

        async def mend(topic: Topic, first: int) -> None:
            broker.disk.fail_after(None)

        grown = broker.services.topics.on_grown
        grown[:] = [fail, *grown, mend]
        await broker.grow(3)
        broker.produce(1, 3)
        while (told := await broker.fetch(1, 2))[0]:
            assert told == (Code.NOT_COORDINATOR, [])
            broker.clock.advance(1_000)
        assert told == (Code.NONE, [0, 0])

    play(scene)
    (line,) = (one.message for one in caplog.records if "for new partitions" in one.message)
    assert line.startswith("group g has no offsets for new partitions of orders yet: ")
    assert line.endswith("; they are seeded, at 0, as soon as the journal can be written")


def test_a_write_that_fails_once_is_told_to_the_member_that_asked() -> None:
    """With no error and no offset it would go on by a rule of its own, and skip what is there."""

    async def scene(broker: Broker) -> None:
        await broker.prepare("earliest")
        broker.produce(0, 3)
        (shard,) = broker.services.groups.shards
        loop = asyncio.get_running_loop()
        is_due = [True]

        def fail(events: Sequence[Any]) -> None:
            """The write of the next turn alone: the disk works when the member is answered."""
            if is_due and is_due.pop():
                broker.disk.fail_after(0)
                loop.call_soon(loop.call_soon, broker.disk.fail_after, None)

        shard.listeners.append(fail, {OffsetCommitted})
        assert await broker.fetch(0) == (Code.NOT_COORDINATOR, [])
        await rebuilt(shard)
        assert await broker.fetch(0) == (Code.NONE, [0])

    play(scene)


@pytest.mark.parametrize("policy", ["earliest", "latest", "safe_latest"])
def test_while_a_log_cannot_be_read_a_member_without_an_offset_has_to_wait(
    policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    """And one that has an offset goes on from there."""
    disk, wanted = MemoryDisk(), 5 if policy == "latest" else 0

    async def first(broker: Broker) -> None:
        await broker.prepare(policy)
        broker.clock.advance(1)
        broker.produce(0, 5)

    async def later(broker: Broker) -> None:
        disk.failing |= {"open", "size"}  # logs are opened when they are first needed
        assert await broker.fetch(0) == (Code.NOT_COORDINATOR, [])
        disk.failing.clear()
        assert await broker.fetch(0) == (Code.NONE, [wanted])

    async def last(broker: Broker) -> None:
        disk.failing |= {"open", "size"}
        assert await broker.fetch(0) == (Code.NONE, [wanted])
        disk.failing.clear()

    play(first, disk)
    play(later, disk)
    play(last, disk)
    (line,) = (one.message for one in caplog.records if "by its reset policy" in one.message)
    assert line.startswith("group g has no offsets by its reset policy yet: orders-0 cannot be")


def test_when_a_partition_began_has_to_be_read(caplog: pytest.LogCaptureFixture) -> None:
    """Of the ends alone one cannot tell, and either could be wrong."""

    async def scene(broker: Broker) -> None:
        await broker.topic("orders", 1)
        broker.produce(0, 5)
        broker.clock.advance(1)
        await broker.configure("g", "safe_latest")
        await broker.join()
        broker.disk.failing.add("pread")
        assert await broker.fetch(0) == (Code.NOT_COORDINATOR, [])
        broker.disk.failing.clear()
        assert await broker.fetch(0) == (Code.NONE, [5])

    play(scene)
    assert any("by its reset policy" in one.message for one in caplog.records)


def test_a_batch_that_a_producer_damaged_hides_when_a_partition_began(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its checksum is right, so the broker took it. To read it all is better than to skip it."""

    async def scene(broker: Broker) -> None:
        await broker.topic("orders", 1)
        partition = broker.services.partition("orders", 0)
        assert partition is not None
        data = bytearray(
            batches.build_encoded(
                b"no gzip at all", record_count=3, base_timestamp=5, max_timestamp=5, compression=1
            )
        )
        partition.append(data, batches.headers(data))
        await broker.configure("g", "safe_latest")
        await broker.join()
        assert await broker.fetch(0) == (Code.NONE, [0])

    play(scene)
    (line,) = (one.message for one in caplog.records if one.levelno == logging.WARNING)
    assert line.startswith("orders-0: a batch that a producer damaged hides when")
