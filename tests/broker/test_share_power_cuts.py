"""What power cuts leave of share groups where writes are not synced (headrace.durability=os)."""

import contextlib
from typing import Any
from uuid import UUID, uuid4

import pytest

from headrace.broker import share_bounds
from headrace.broker.partitions import Partitions
from headrace.broker.share_bounds import LogStarts
from headrace.broker.shares import Shares
from headrace.core.catalog import CreateTopic
from headrace.core.errors import Refused
from headrace.core.leases import Held, LeaseAcquired, LeaseOpened
from headrace.core.shard_words import LogEndLost, On
from headrace.core.share_group import Heartbeat
from headrace.core.share_words import Acknowledge, Acknowledged, Acquire, ShareKey, Verdict
from headrace.core.types import MemberId, Span
from headrace.log.memory_disk import MemoryDisk
from headrace.wire.batches import Record

from .inside_rig import Inside, play

MEMBER = MemberId("member")


class Broker(Inside):
    """A broker with the topic `orders`, under `headrace.durability=os`."""

    def __init__(self, disk: MemoryDisk) -> None:
        super().__init__(disk, headrace_durability="os")

    @property
    def topic_id(self) -> UUID:
        return self.services.catalog.topics["orders"].id

    @property
    def start_of_group(self) -> int:
        machine = self.services.shares.machine("group")
        return machine.partitions[ShareKey("group", self.topic_id, 0)].start

    def append(self, count: int, index: int = 0) -> None:
        partition = self.services.partition("orders", index)
        assert partition is not None
        partition.append_records([Record(0, self.clock.wall(), b"", b"") for _ in range(count)])

    async def ask(self, command: Any) -> None:
        answer = await self.services.shares.ask("group", command)
        assert not isinstance(answer, Refused), answer

    async def finish(self, span: Span, index: int = 0) -> None:
        """Acquire records from 0 on, and accept some."""
        key, taken = ShareKey("group", self.topic_id, index), Span(0, span.last)
        await self.ask(On(key, Acquire(MEMBER, [taken], len(taken), 2000, exact=True)))
        accepted = Acknowledged(span, [Verdict.ACCEPT], None)
        await self.ask(On(key, Acknowledge(MEMBER, [accepted])))


def sync(disk: MemoryDisk, prefix: str) -> None:
    """Bring some files to stable storage, as the operating system does at any time."""
    for path, content in disk._files.items():
        if path.startswith(prefix):
            content.sync()


async def finish_unsynced(broker: Broker, disk: MemoryDisk) -> None:
    """Have the group finish records 0 to 14, of which the log has only 0 to 9 in stable storage."""
    await broker.services.topics.create(CreateTopic("orders", uuid4(), 1, {}))
    await broker.ask(Heartbeat("group", MEMBER, 0, frozenset({"orders"})))
    broker.append(10)
    sync(disk, "")
    broker.append(10)
    await broker.finish(Span(0, 14))
    sync(disk, "__share_group_state")


def test_a_second_power_cut_does_not_bring_back_the_states_of_lost_records() -> None:
    disk, ends = MemoryDisk(), list[int]()

    async def first(broker: Broker) -> None:
        await finish_unsynced(broker, disk)
        disk.crash()

    async def second(broker: Broker) -> None:
        assert broker.start_of_group == 10
        broker.append(10)
        sync(disk, "orders")
        disk.crash()

    async def third(broker: Broker) -> None:
        ends.append(broker.start_of_group)

    for scene in (first, second, third):
        with contextlib.suppress(OSError):  # the files of a broker that died are of no use
            play(lambda: Broker(disk), scene)
    assert ends == [10]


def test_all_lost_ends_are_forgotten_before_the_broker_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where each takes several portions, and the next one begins only after those."""
    disk, count = MemoryDisk(), 4
    ends = list[int]()

    def in_portions(key: ShareKey, end: int) -> LogEndLost:
        return LogEndLost(key, end, 0)

    async def first(broker: Broker) -> None:
        await broker.services.topics.create(CreateTopic("orders", uuid4(), count, {}))
        await broker.ask(Heartbeat("group", MEMBER, 0, frozenset({"orders"})))
        for index in range(count):
            broker.append(10, index)
        sync(disk, "")
        for index in range(count):
            broker.append(10, index)
            await broker.finish(Span(5, 14), index)
        sync(disk, "__share_group_state")
        disk.crash()

    async def agree(shares: Shares, partitions: Partitions, starts: LogStarts) -> None:
        await share_bounds_agree(shares, partitions, starts)
        ends.extend(share.end for share in shares.machine("group").partitions.values())
        disk.crash()  # whatever the durability, all of it is on the disk

    async def no_scene(broker: Broker) -> None:
        assert broker

    monkeypatch.setattr(share_bounds, "_log_end_lost", in_portions)
    with contextlib.suppress(OSError):
        play(lambda: Broker(disk), first)
    share_bounds_agree = share_bounds.agree
    monkeypatch.setattr(share_bounds, "agree", agree)
    for _ in range(2):
        with contextlib.suppress(OSError):
            play(lambda: Broker(disk), no_scene)
    assert ends == [10] * count * 2


def test_the_end_of_a_log_that_is_opened_late_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full at the start after a power cut, so that the log cannot be opened yet.

    What groups know is collected once, and not for each log again.
    """
    disk, starts = MemoryDisk(), list[int]()

    async def first(broker: Broker) -> None:
        await finish_unsynced(broker, disk)
        disk.crash(lambda path, unsynced: unsynced[:9] if path.startswith("orders") else b"")
        disk.fail_after(0)

    async def second(broker: Broker) -> None:
        partition = broker.services.partition("orders", 0)
        assert partition is not None
        assert not partition.is_open
        starts.append(broker.start_of_group)
        disk.fail_after(None)
        monkeypatch.delattr(share_bounds, "_known")
        await partition.open_ready()
        broker.append(10)
        starts.append(broker.start_of_group)

    with contextlib.suppress(OSError):
        play(lambda: Broker(disk), first)
    play(lambda: Broker(disk), second)
    assert starts == [15, 10]


def test_a_lease_loses_what_it_had_of_lost_records_also_without_a_share_partition() -> None:
    """A repair of the journal may leave the lease and not the share-partition."""

    async def scene(broker: Broker) -> None:
        await broker.services.topics.create(CreateTopic("orders", uuid4(), 1, {}))
        shares, topic_id = broker.services.shares, broker.topic_id
        lease, key = ("group", "checkpoint"), ShareKey("group", topic_id, 0)
        broker.append(5)
        machine = shares.machine("group")
        machine.apply(LeaseOpened(lease, 1, ("orders",)))
        for number, last in ((1, 4), (2, 5)):
            machine.apply(LeaseAcquired(lease, number, (Held(key, Span(4, last), 1),)))
            starts = broker.services.log_starts
            await share_bounds.agree(shares, broker.services.partitions, starts)
            has_held = [bool(one.held) for one in machine.leases[lease].acquisitions.values()]
            assert has_held == ([True] if number == 1 else [False, False])

    play(lambda: Broker(MemoryDisk()), scene)
