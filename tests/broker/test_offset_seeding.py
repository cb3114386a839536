"""When reset policies see to new partitions: before others, and after a crash."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from headrace.broker import offset_seeding
from headrace.broker.errors import Code
from headrace.core.catalog import AddPartitions, Topic
from headrace.core.errors import Refused
from headrace.core.group_events import OffsetCommitted
from headrace.core.group_words import Commit, Offset
from headrace.log.memory_disk import MemoryDisk

from .seeding_rig import MEMBER, Broker, die_after, play


def test_seeds_are_in_the_journal_before_anybody_can_produce() -> None:
    seen: list[tuple[int, bool]] = []

    async def scene(broker: Broker) -> None:
        await broker.prepare()
        (shard,) = broker.services.groups.shards

        async def look(topic: Topic, first: int) -> None:
            assert topic is broker.orders
            is_open = broker.services.partition("orders", first) is not None
            seen.append((shard.records, is_open))

        before = shard.records
        broker.services.topics.on_grown.append(look)  # behind the seeding itself
        await broker.grow(4)
        assert seen == [(before + 3, False)]
        assert broker.committed() == {1: 0, 2: 0, 3: 0}

    play(scene)


def test_a_member_that_asks_before_the_new_partitions_are_open() -> None:
    """It can know them from Metadata already; -1 would send it to an end that has moved by then."""

    async def scene(broker: Broker) -> None:
        await broker.prepare()
        found: list[Any] = []

        async def ask(topic: Topic, first: int) -> None:
            found.append(await broker.fetch(first))

        broker.services.topics.on_grown.insert(0, ask)
        await broker.grow(2)
        assert found == [(Code.NONE, [0])]

    play(scene)


@pytest.mark.parametrize("policy", ["latest", "safe_latest"])
def test_partitions_that_the_process_died_over_are_seeded_at_the_next_start(policy: str) -> None:
    disk = MemoryDisk()

    async def dying(broker: Broker) -> None:
        await broker.prepare(policy)
        broker.produce(0, 5)
        broker.services.topics.on_grown.clear()  # it dies between the two journals
        await broker.grow(3)
        assert broker.committed() == {}

    async def later(broker: Broker) -> None:
        assert broker.committed() == {1: 0, 2: 0}
        broker.produce(1, 7)
        assert await broker.fetch(1) == (Code.NONE, [0])

    die_after(dying, disk)
    play(later, disk)


def test_what_was_seeded_outlives_the_process_whole() -> None:
    disk = MemoryDisk()

    async def first(broker: Broker) -> None:
        await broker.prepare(partitions=2)
        broker.produce(0, 5)
        assert await broker.fetch(0, 1) == (Code.NONE, [5, 0])
        await broker.grow(300)

    async def later(broker: Broker) -> None:
        assert broker.committed() == {0: 5} | dict.fromkeys(range(1, 300), 0)

    die_after(first, disk)
    play(later, disk)


def test_seeds_of_one_command_are_one_batch() -> None:
    """Which a process that dies writes whole or not at all."""

    async def scene(broker: Broker) -> None:
        await broker.prepare()
        (shard,) = broker.services.groups.shards
        appends, records = shard.appends, shard.records
        await broker.grow(500)
        assert (shard.appends - appends, shard.records - records) == (1, 499)

    play(scene)


def test_a_name_so_long_that_one_batch_would_be_too_large() -> None:
    async def scene(broker: Broker) -> None:
        name = "g" * 30_000
        await broker.topic("orders", 1)
        await broker.configure(name, "latest")
        await broker.commit(name, 0, 0)
        await broker.grow(300)
        assert len(broker.committed(name)) == 300

    play(scene)


@pytest.mark.parametrize(("batch_bytes_max", "writes"), [(None, 1), (800, 3), (1, 5)])
def test_groups_share_a_write_up_to_a_bound(
    monkeypatch: pytest.MonkeyPatch, batch_bytes_max: int | None, writes: int
) -> None:
    if batch_bytes_max is not None:
        monkeypatch.setattr(offset_seeding, "_BATCH_BYTES_MAX", batch_bytes_max)

    async def scene(broker: Broker) -> None:
        await broker.topic("orders", 1)
        names = [f"group-{number}" for number in range(5)]
        for name in names:
            await broker.configure(name, "latest")
            await broker.commit(name, 0, 0)
        (shard,) = broker.services.groups.shards
        appends = shard.appends
        await broker.grow(2)
        assert shard.appends - appends == writes
        assert [broker.committed(name) for name in names] == [{0: 0, 1: 0}] * 5

    play(scene)


def test_in_a_second_write_the_ends_of_logs_are_those_of_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A member that reads on meanwhile must not be set back to an end that was."""
    monkeypatch.setattr(offset_seeding, "_BATCH_BYTES_MAX", 1)

    async def scene(broker: Broker) -> None:
        await broker.prepare(partitions=2)
        (shard,) = broker.services.groups.shards

        def go_on() -> None:
            broker.produce(1, 5)
            one = Offset("orders", 1, 5, -1, "", broker.orders.id)
            assert shard.decide(Commit("g", MEMBER, None, 2, (one,))) == [None]

        def begin(events: Sequence[Any]) -> None:
            if events[0].partition == 0:
                asyncio.get_running_loop().call_soon(go_on)

        shard.listeners.append(begin, {OffsetCommitted})
        assert await broker.fetch(0, 1) == (Code.NONE, [0, 5])

    play(scene)


def test_every_group_with_a_policy_and_no_other() -> None:
    async def scene(broker: Broker) -> None:
        await broker.prepare()
        for group in ("simple", "without", "none"):
            await broker.commit(group, 0, 0)
        await broker.configure("simple", "safe_latest")
        await broker.configure("none", "none")
        await broker.configure("absent", "latest")
        await broker.grow(3)
        groups = ("g", "simple", "without", "none", "absent")
        assert [sorted(broker.committed(name)) for name in groups] == [
            [1, 2], [0, 1, 2], [0], [0], [],
        ]  # fmt: skip
        assert broker.services.groups.find("absent") is None

    play(scene)


def test_a_partition_count_that_is_only_tried_out_seeds_nothing() -> None:
    async def scene(broker: Broker) -> None:
        await broker.prepare()
        tried = await broker.services.topics.add_partitions(AddPartitions("orders", 9, True))
        assert isinstance(tried, Topic)
        refused = await broker.services.topics.add_partitions(AddPartitions("orders", 1))
        assert isinstance(refused, Refused)
        assert broker.committed() == {}

    play(scene)


def test_seeds_are_counted_and_told_in_a_line_a_command(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headrace.broker")

    async def scene(broker: Broker) -> None:
        await broker.prepare("safe_latest")
        broker.produce(0, 5)
        broker.clock.advance(1)
        await broker.fetch(0)
        await broker.grow(23)
        meters = broker.services.groups.meters
        assert (meters.offset_seeds, meters.offset_commits) == (23, 0)

    play(scene)
    first, added = (one.message for one in caplog.records if "seeded" in one.message)
    assert first == (
        "group g: seeded orders: partition 0 at 0, by safe_latest: new partition (m /127.0.0.1)"
    )
    places = ", ".join(f"{index} at 0" for index in range(1, 21))
    told = f"group g: seeded orders: partition {places}, 2 more, by safe_latest: new partition"
    assert added == told


def test_without_a_policy_an_answer_asks_nothing_of_the_shard() -> None:
    """What it costs a group that has none: a look into its settings."""

    async def scene(broker: Broker) -> None:
        await broker.prepare("")
        (shard,) = broker.services.groups.shards
        events: list[Any] = []
        shard.listeners.append(events.append, {OffsetCommitted})
        before = shard.records
        assert await broker.fetch(0) == (Code.NONE, [-1])
        assert (shard.records, events) == (before, [])

    play(scene)
