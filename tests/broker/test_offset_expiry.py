"""Sweeps over committed offsets, on a clock of their own: what goes, in what steps, amid what."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any
from uuid import uuid4

import pytest

from headrace.broker import offset_expiry
from headrace.broker.offset_expiry import Swept
from headrace.core.catalog import CreateTopic, DeleteTopic, Resource, SetConfigs, Topic
from headrace.core.errors import Refused
from headrace.core.group_events import Event
from headrace.core.group_words import Commit, DeleteGroup, Expired, Offset
from headrace.core.types import MemberId
from headrace.log.memory_disk import MemoryDisk

from . import inside_rig
from .inside_rig import Inside
from .partition_rig import until

HOUR = 3_600_000


class Broker(Inside):
    def __init__(self, disk: MemoryDisk | None = None, **settings: str) -> None:
        super().__init__(disk, **{"offsets_retention_minutes": "60"} | settings)

    async def topic(self, name: str = "orders", partitions: int = 1) -> Topic:
        made = await self.services.topics.create(CreateTopic(name, uuid4(), partitions, {}))
        assert isinstance(made, Topic)
        return made

    async def commit(
        self, group: str, topic: Topic, partitions: int = 1, retention_ms: int | None = None
    ) -> Any:
        offsets = tuple(Offset(topic.name, n, 5, -1, "", topic.id) for n in range(partitions))
        command = Commit(group, MemberId(""), None, -1, offsets, retention_ms)
        return await self.services.groups.ask(group, command)

    async def sweep(self) -> Swept:
        return await self.services.offset_expiry.sweep()

    async def mended(self, topic: Topic) -> None:
        """Commit as group "other" until the disk is tried again, and takes it."""
        while isinstance(await self.commit("other", topic), Refused):
            self.clock.advance(1_000)
            await asyncio.sleep(0.001)  # the journal is replayed in a thread

    @property
    def offset_counts(self) -> dict[str, int]:
        """How many offsets each group has."""
        return {group.name: len(offsets) for group, offsets in self.services.groups.walk()}

    def watch(self) -> list[Sequence[Event]]:
        """What happens from now on, command by command."""
        seen: list[Sequence[Event]] = []
        for shard in self.services.groups.shards:
            shard.listeners.append(seen.append)
        return seen


Scene = Callable[[Broker], Coroutine[Any, Any, None]]


def play(scene: Scene, disk: MemoryDisk | None = None, **settings: str) -> None:
    inside_rig.play(lambda: Broker(disk, **settings), scene)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> int:
    """Portions of so few groups and offsets that everything takes many."""
    monkeypatch.setattr(offset_expiry, "PORTION", 4)
    return 4


def test_a_sweep_drops_what_is_due_and_tells_so_in_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "headrace.broker")
    disk = MemoryDisk()

    async def scene(broker: Broker) -> None:
        orders = await broker.topic(partitions=3)
        await broker.commit("old", orders, 3)
        broker.clock.advance(HOUR - 1)
        await broker.commit("new", orders)
        assert await broker.sweep() == Swept()
        broker.clock.advance(1)
        assert await broker.sweep() == Swept(3, 1, 1, ["old"])
        assert broker.offset_counts == {"new": 1}
        assert broker.services.groups.meters.offset_expirations == 3

    async def later(broker: Broker) -> None:
        assert broker.offset_counts == {"new": 1}

    play(scene, disk)
    play(later, disk)
    (line,) = (one.message for one in caplog.records if "expiry" in one.message)
    assert line == (
        "offset expiry: dropped 3 offsets of 1 group, last of 'old'; removed 1 group that had "
        "nothing left"
    )


def test_what_a_sweep_came_to_is_one_readable_line() -> None:
    assert str(Swept()) == "nothing"
    assert str(Swept(groups_removed=2)) == "removed 2 groups that had nothing left"
    named = Swept()
    for number in range(7):
        named.add(Expired(1, (f"g{number}",), 0))
    told = "dropped 7 offsets of 7 groups, last of 'g2', 'g3', 'g4', 'g5', 'g6'"
    assert str(named) == told
    strange = Swept(1, 1, 0, ["a\nb" + 1000 * "c"])
    assert str(strange) == f"dropped 1 offset of 1 group, last of 'a\\nb{77 * 'c'}'"


def test_many_groups_and_a_large_one_go_in_small_portions(small: int) -> None:
    async def scene(broker: Broker) -> None:
        orders, bills = await broker.topic(partitions=11), await broker.topic("bills", 2)
        for number in range(30):
            await broker.commit(f"g{number}", orders)
        await broker.commit("large", orders, 11)
        await broker.commit("large", bills, 2)
        broker.clock.advance(HOUR)
        portions = broker.watch()
        swept = await broker.sweep()
        assert (swept.offsets, swept.groups, swept.groups_removed) == (43, 31, 31)
        assert broker.offset_counts == {}
        # With each group that goes, at most as many events as there are groups and offsets.
        assert max(len(portion) for portion in portions) <= small + 1
        assert len(portions) >= 43 // small

    play(scene, offsets_topic_num_partitions="3")


def test_requests_are_answered_between_any_two_portions(small: int) -> None:
    async def scene(broker: Broker) -> None:
        orders = await broker.topic(partitions=50)
        await broker.commit("old", orders, 50)
        broker.clock.advance(HOUR)
        events = broker.watch()
        sweeping = asyncio.ensure_future(broker.sweep())
        waited = []
        while not sweeping.done():
            before = len(events)
            await broker.commit("other", orders)
            waited.append(len(events) - before - 1)
        assert (await sweeping).offsets == 50
        assert len(waited) > 5
        assert max(waited) <= 2  # the portion under way, and one more

    play(scene)


def test_groups_may_come_and_go_amid_a_sweep(small: int) -> None:
    async def scene(broker: Broker) -> None:
        orders = await broker.topic(partitions=20)
        for number in range(20):
            await broker.commit(f"old{number}", orders, 1 + number % 7)
        broker.clock.advance(HOUR)
        sweeping = asyncio.ensure_future(broker.sweep())
        kept = set()
        for number in range(0, 20, 3):
            await broker.services.groups.ask("", DeleteGroup(f"old{number}"))
            await broker.commit(f"old{number}", orders, 6)
            await broker.commit(f"new{number}", orders)
            kept |= {f"old{number}", f"new{number}"}
        swept = await sweeping
        assert broker.offset_counts.keys() == kept
        assert swept.groups_removed <= 20
        assert broker.services.groups.meters.offset_expirations == swept.offsets

    play(scene)


def test_a_disk_that_fails_leaves_the_rest_to_the_next_sweep(
    small: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(broker: Broker) -> None:
        orders = await broker.topic(partitions=20)
        await broker.commit("old", orders, 20)
        broker.clock.advance(HOUR)
        broker.disk.fail_after(500)
        swept = await broker.sweep()
        assert 0 < swept.offsets < 20
        assert isinstance(await broker.commit("other", orders), Refused)
        broker.disk.fail_after(None)
        await broker.mended(orders)
        left = broker.offset_counts["old"]
        assert left == 20 - swept.offsets
        assert (await broker.sweep()).offsets == left
        assert broker.offset_counts == {"other": 1}

    play(scene)


def test_sweeps_come_on_their_own() -> None:
    async def scene(broker: Broker) -> None:
        await broker.commit("old", await broker.topic())
        broker.clock.advance(HOUR)
        await until(lambda: not broker.offset_counts)

    play(scene, offsets_retention_check_interval_ms="1")


def test_a_group_has_the_retention_that_was_set_for_it() -> None:
    async def scene(broker: Broker) -> None:
        orders = await broker.topic()
        for group in ("long", "short", "other"):
            await broker.commit(group, orders)
        for group, minutes in (("long", "120"), ("short", "1")):
            values = {"offsets.retention.minutes": minutes}
            refused = await broker.services.topics.set_configs(
                SetConfigs(Resource.GROUP, group, values)
            )
            assert refused is None
        broker.clock.advance(60_000)
        await broker.sweep()
        assert broker.offset_counts == {"long": 1, "other": 1}
        broker.clock.advance(HOUR - 60_000)
        await broker.sweep()
        assert broker.offset_counts == {"long": 1}
        broker.clock.advance(HOUR)
        await broker.sweep()
        assert broker.offset_counts == {}

    play(scene)


# ---- topics that are deleted


def test_offsets_of_a_deleted_topic_go_in_portions(small: int) -> None:
    async def scene(broker: Broker) -> None:
        orders, bills = await broker.topic(partitions=9), await broker.topic("bills")
        for number in range(12):
            await broker.commit(f"g{number}", orders if number % 2 else bills)
        await broker.commit("large", orders, 9)
        portions = broker.watch()
        await broker.services.topics.delete(DeleteTopic(orders.id))
        again = await broker.topic(partitions=9)
        broker.clock.advance(1)
        await broker.commit("large", again, retention_ms=HOUR)  # does not tell for which of the two
        await until(lambda: len(broker.offset_counts) == 7)
        assert broker.offset_counts["large"] == 1
        assert max(len(portion) for portion in portions) <= small

    play(scene)


def test_a_broker_that_stops_leaves_the_rest_to_its_next_start(small: int) -> None:
    disk = MemoryDisk()
    left = []

    async def scene(broker: Broker) -> None:
        orders = await broker.topic()
        for number in range(40):
            await broker.commit(f"g{number}", orders)
        expiry, stops = broker.services.offset_expiry, []

        def stop(*_: object) -> None:  # right behind the first portion
            stops.append(asyncio.get_running_loop().create_task(expiry.close()))

        broker.services.topics.on_deleted.append(stop)
        await broker.services.topics.delete(DeleteTopic(orders.id))
        await stops[0]
        left.append(len(broker.offset_counts))

    async def later(broker: Broker) -> None:
        assert broker.offset_counts == {}

    play(scene, disk)
    assert 0 < left[0] < 40
    play(later, disk)


def test_offsets_of_a_topic_that_was_deleted_while_the_disk_failed(small: int) -> None:
    for count in (1, 12):
        play(_deleted_amid_a_fault(count))


def _deleted_amid_a_fault(count: int) -> Scene:
    async def scene(broker: Broker) -> None:
        orders = await broker.topic()
        for number in range(count):
            await broker.commit(f"g{number}", orders)
        broker.disk.fail_after(0)
        for told in broker.services.topics.on_deleted:
            told(orders, "")
        assert isinstance(await broker.commit("other", orders), Refused)
        broker.disk.fail_after(None)
        await broker.mended(orders)
        assert len(broker.offset_counts) == count + 1
        await broker.sweep()
        assert broker.offset_counts == {}

    return scene
