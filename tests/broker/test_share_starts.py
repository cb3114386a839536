"""Share-partitions of large topics: begun in portions, at the right offset, within the memory."""

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from tests.core.share_shard_rig import ShardRig

import headrace
from headrace.broker.share_starts import missing_topics, start_partitions
from headrace.core import share_starts
from headrace.core.catalog import CreateTopic
from headrace.core.errors import Refused, Why
from headrace.core.shard import ShareShard
from headrace.core.shard_words import AlterShareOffsets, OpenLease, StartPartitions
from headrace.core.share_group import CLOSED, Heartbeat, TopicView
from headrace.core.share_words import ShareKey, Started
from headrace.core.types import MemberId, MonoMs, Now, WallMs
from headrace.log.memory_disk import MemoryDisk

from .inside_rig import Inside, play
from .share_wire_rig import GROUP, Sharer, configure, produce, started
from .test_runtime import rebuilt

BROKER_SETTINGS = {"headrace.groups.max.bytes": 1_048_576}
PARTITIONS, PORTION = 7, 2
SINCE = tuple(range(8, 8 + PARTITIONS))  # offsets that a reset by duration leads to
ID = UUID(int=1)
NOW = Now(MonoMs(0), WallMs(0))


@pytest.fixture
def portions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many share-partitions each command began."""
    found: list[int] = []
    decide = ShareShard.decide

    def counting(shard: ShareShard, command: Any, now: Now) -> Any:
        decided = decide(shard, command, now)
        if isinstance(command, StartPartitions | Heartbeat | OpenLease):
            assert not isinstance(decided, Refused)
            found.append(sum(isinstance(one, Started) for one in decided.events))
        return decided

    monkeypatch.setattr(share_starts, "STARTED_AT_ONCE", PORTION)
    monkeypatch.setattr(ShareShard, "decide", counting)
    return found


@pytest.mark.parametrize("reset", ["latest", "earliest"])
def test_a_large_topic_is_begun_in_portions(
    connect: Callable[[], Any], portions: list[int], reset: str
) -> None:
    wire = connect()
    topic = wire.create("orders", num_partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        produce(wire, 1 + partition, partition=partition)
    configure(wire, share_auto_offset_reset=reset)
    one = Sharer(wire, topic.topic_id)
    assert one.assigned() == list(range(PARTITIONS))
    assert portions == [1, 2, 2, 2, 0]
    ends = {n: 1 + n for n in range(PARTITIONS)}
    latest = {n: (end, 0) for n, end in ends.items()}
    assert started(wire) == (latest if reset == "latest" else {n: (0, e) for n, e in ends.items()})
    portions.clear()
    assert one.beat(1, None).error_code == 0
    assert portions == [0]


def test_a_lease_begins_a_large_topic_in_portions(
    broker: headrace.Broker, connect: Callable[[], Any], portions: list[int]
) -> None:
    from headrace.client.connection import Cluster
    from headrace.client.leases import Lease

    wire = connect()
    wire.create("orders", num_partitions=PARTITIONS)
    produce(wire, 3, partition=4)
    with Cluster(broker.bootstrap_servers) as cluster:
        Lease(cluster, GROUP, "session").open(("orders",), start="latest")
    assert portions == [1, 2, 2, 2, 0]
    assert started(wire)[4] == (3, 0)


def test_share_partitions_draw_from_the_memory_of_groups(connect: Callable[[], Any]) -> None:
    wire = connect()
    topic = wire.create("orders", num_partitions=300)
    codes = [Sharer(wire, topic.topic_id, group=f"g{n}").beat().error_code for n in range(5)]
    assert codes == [0, 0, 0, 81, 81]
    assert started(wire, "g4") == {}


class World(ShardRig):
    closed: frozenset[int] = frozenset()  # partitions whose logs cannot be opened
    count = 4

    def topic(self, name: str) -> TopicView | None:
        starts = [CLOSED if one in self.closed else 0 for one in range(self.count)]
        ends = [CLOSED if one in self.closed else 5 + one for one in range(self.count)]
        closed = {one: f"orders-{one} is refused" for one in sorted(self.closed)}
        return TopicView(ID, starts, ends, closed) if name == "orders" else None


def test_what_a_crash_left_half_begun_goes_on_by_the_policy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(share_starts, "STARTED_AT_ONCE", PORTION)
    rig = World()
    rig.ask(StartPartitions(GROUP, ((ID, 3, 8), (ID, 2, 7))))
    rig.restart()
    rig.ask(Heartbeat(GROUP, MemberId("m"), 0, frozenset({"orders"})))
    starts = {key.partition: one.start for key, one in rig.shard.partitions.items()}
    assert starts == {0: 5, 1: 6, 2: 7, 3: 8}  # "latest", not 0 as of partitions that were added


def test_a_tick_looks_only_at_share_partitions_with_deadlines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from headrace.core.share_partition import SharePartition

    rig, looks = World(), [0]
    rig.ask(Heartbeat(GROUP, MemberId("m"), 0, frozenset({"orders"})))
    rig.ask(StartPartitions("other", tuple((ID, n, 0) for n in range(1000))))
    assert len(rig.shard.partitions) == 1004
    next_deadline = SharePartition.next_deadline

    def counting(partition: SharePartition) -> MonoMs | None:
        looks[0] += 1
        return next_deadline(partition)

    monkeypatch.setattr(SharePartition, "next_deadline", counting)
    rig.elapse(10)
    assert looks[0] <= 4
    assert ShareKey("other", ID, 7) in rig.shard.partitions


@pytest.mark.parametrize("closed", [0, 2])
def test_a_log_that_cannot_be_opened_begins_later_at_its_start(closed: int) -> None:
    """Until then nobody writes to it; its end at that time may be behind what is written since."""
    rig = World()
    rig.closed = frozenset({closed})
    rig.ask(Heartbeat(GROUP, MemberId("m"), 0, frozenset({"orders"})))
    starts = {key.partition: one.start for key, one in rig.shard.partitions.items()}
    assert starts == {one: 5 + one for one in range(4) if one != closed}
    rig.closed = frozenset()
    rig.ask(Heartbeat(GROUP, MemberId("m"), 1))
    starts = {key.partition: one.start for key, one in rig.shard.partitions.items()}
    assert starts == {one: 0 if one == closed else 5 + one for one in range(4)}


@pytest.mark.parametrize("closed", [{0}, {1, 3}, {0, 1, 2, 3}])
def test_a_heartbeat_begins_nothing_of_logs_that_cannot_be_opened(
    closed: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group has not begun those for as long as they are refused, and looks at no others."""
    rig = World()
    rig.closed = frozenset(closed)
    rig.ask(Heartbeat(GROUP, MemberId("m"), 0, frozenset({"orders"})))
    looks: list[int] = []

    def started(*given: Any, **how: Any) -> list[Started]:
        looks.extend(view.partitions for view in given[2])
        return share_starts.started(*given, **how)

    monkeypatch.setattr("headrace.core.shard.started", started)
    rig.ask(Heartbeat(GROUP, MemberId("m"), 1))
    assert looks == []
    rig.count += 1
    rig.ask(Heartbeat(GROUP, MemberId("m"), 1))
    assert ShareKey(GROUP, ID, 4) in rig.shard.partitions
    assert looks == [5]


def test_a_group_that_had_begun_a_refused_partition_begins_what_is_added() -> None:
    rig = World()
    rig.ask(Heartbeat(GROUP, MemberId("m"), 0, frozenset({"orders"})))
    rig.restart()
    rig.closed, rig.count = frozenset({0}), 5
    rig.ask(Heartbeat(GROUP, MemberId("m"), 0, frozenset({"orders"})))
    assert rig.shard.partitions[ShareKey(GROUP, ID, 4)].start == 0


def test_a_topic_begins_once_one_of_the_partitions_can_that_show_that_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of more partitions than begin at once, those are the first ones."""
    monkeypatch.setattr(share_starts, "STARTED_AT_ONCE", PORTION)
    rig = World()
    rig.closed = frozenset({0, 1})
    seen = rig.ask(Heartbeat(GROUP, MemberId("m"), 0, frozenset({"orders"})))
    assert (rig.shard.partitions, seen.assignment) == ({}, frozenset())


def test_offsets_are_not_altered_where_nothing_would_show_that_the_topic_has_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The group would take the other partitions for new ones, and begin behind records."""
    monkeypatch.setattr(share_starts, "STARTED_AT_ONCE", PORTION)
    rig = World()
    rig.closed = frozenset({0, 1})
    alter = AlterShareOffsets(GROUP, (("orders", 1, 0), ("orders", 2, 0), ("orders", 4, 0)))
    assert rig.ask(alter) == (
        Refused(Why.LOG_CLOSED, "orders-1 is refused"),
        Refused(Why.LOG_CLOSED, "orders-0 is refused"),
        Refused(Why.UNKNOWN_PARTITION, "This server does not host this topic-partition."),
    )
    assert rig.shard.partitions == {}
    rig.closed = frozenset({0})
    assert rig.ask(alter)[:2] == (None, None)
    rig.closed = frozenset({0, 1})
    assert rig.ask(alter)[:2] == (Refused(Why.LOG_CLOSED, "orders-1 is refused"), None)
    starts = {key.partition: one.start for key, one in rig.shard.partitions.items()}
    assert starts == {1: 0, 2: 0, 3: 8}


def test_a_topic_that_grows_stays_begun_where_a_log_cannot_be_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """More partitions begin in further portions, which must not show what the group has begun."""
    monkeypatch.setattr(share_starts, "STARTED_AT_ONCE", PORTION)
    rig = World()
    rig.count, rig.closed = PORTION, frozenset({0})
    rig.ask(Heartbeat(GROUP, MemberId("m"), 0, frozenset({"orders"})))
    rig.count += 1
    seen = rig.ask(Heartbeat(GROUP, MemberId("m"), 1))
    assert {one.partition for one in seen.assignment} == {0, 1, 2}
    rig.closed = frozenset()
    rig.ask(Heartbeat(GROUP, MemberId("m"), 2))
    assert {key.partition: one.start for key, one in rig.shard.partitions.items()} == {
        0: 0, 1: 6, 2: 0,
    }  # fmt: skip


def test_what_a_crash_left_half_begun_goes_on_by_the_policy_in_a_topic_that_grew(
    connect: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What begins first is no sign that the group has begun a topic of any size."""
    monkeypatch.setattr(share_starts, "STARTED_AT_ONCE", PORTION)
    wire = connect()
    topic = wire.create("orders", num_partitions=PORTION + 1)
    begun: list[tuple[int, ...]] = []
    decide = ShareShard.decide

    def noting(self: ShareShard, command: Any, now: Now) -> Any:
        if isinstance(command, StartPartitions):
            begun.append(tuple(index for _, index, _ in command.starts))
        return decide(self, command, now)

    monkeypatch.setattr(ShareShard, "decide", noting)
    Sharer(wire, topic.topic_id).assigned()
    rig = World()
    rig.count = PORTION + 1
    rig.ask(StartPartitions(GROUP, tuple((ID, one, 5 + one) for one in begun[0])))
    rig.restart()
    rig.count = 2 * PORTION
    rig.ask(Heartbeat(GROUP, MemberId("m"), 0, frozenset({"orders"})))
    assert [rig.shard.partitions[ShareKey(GROUP, ID, n)].start for n in range(4)] == [5, 6, 7, 8]


def test_what_a_failed_write_takes_back_has_not_begun_the_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A begin waits for its turn meanwhile; partitions of a begun topic begin at their start."""
    monkeypatch.setattr(share_starts, "STARTED_AT_ONCE", PORTION)
    disk = MemoryDisk()

    async def scene(inside: Inside) -> None:
        services = inside.services
        await services.topics.create(CreateTopic("orders", ID, PARTITIONS, {}))
        await services.shares.open_topics(["orders"])
        shard = services.shares.shard(GROUP)
        async with services.budgets.one_large():
            disk.fail_after(0)
            shard.decide(StartPartitions(GROUP, ((ID, 0, 8),)))
            missing = missing_topics(services, GROUP, ["orders"])
            starting = asyncio.ensure_future(
                start_partitions(
                    services, GROUP, missing, awaited=frozenset(), found={"orders": SINCE},
                    earliest=True,
                )
            )  # fmt: skip
            while shard.fault is None:  # noqa: ASYNC110  # there is no event to wait for
                await asyncio.sleep(0)
            assert not starting.done()
            disk.fail_after(None)
            inside.clock.advance(10_000)
            await rebuilt(shard)
            assert not services.shares.machine(GROUP).partitions
        await starting
        begun = services.shares.machine(GROUP).partitions
        assert sorted((key.partition, one.start) for key, one in begun.items()) == [
            *enumerate(SINCE)
        ]

    play(lambda: Inside(disk), scene)
