"""Large share groups follow the starts of logs, and are described, in short steps."""

import asyncio
from collections.abc import Collection, Iterator
from random import Random
from uuid import uuid4

import pytest

from headrace.broker import share_bounds
from headrace.broker.partitions import Partition
from headrace.core.leases import Held, LeaseAcquired, LeaseOpened
from headrace.core.runs import State
from headrace.core.shard_words import StartPartitions
from headrace.core.share_words import Replayed, ShareKey, Started
from headrace.core.types import Span
from headrace.wire import batches, codec
from headrace.wire.batches import Record

from .loop_rig import TRIES, Client, LoopRig, framed
from .test_loop_time import SECONDS_MAX, created, scaled

TOPIC = "removed"
RANGES_MAX = 200_000  # of one share-partition
SHARE_PARTITIONS_MAX = 60_000  # as many as headrace.groups.max.bytes allows, or some less
GROUPS, GROUP_RANGES = 100, 2_000
RECORDS_PER_BATCH = 1_000
_DESCRIBE_OFFSETS = 90


@pytest.fixture
def rig() -> Iterator[LoopRig]:
    """A broker with a topic that has a partition for each try."""
    rig = LoopRig()
    try:
        rig.run(_create(rig))
        yield rig
    finally:
        rig.close()


async def _create(rig: LoopRig) -> None:
    topics = [created(TOPIC, num_partitions=TRIES)]
    answer = await Client(rig.server).call(19, 7, topics=topics, timeout=0, validate_only=False)
    assert answer.topics[0].error_code == 0, answer


def partition_of(rig: LoopRig, index: int) -> Partition:
    partition = rig.services.partition(TOPIC, index)
    assert partition is not None
    return partition


async def fill(rig: LoopRig, index: int, groups: Collection[str], ranges: int) -> None:
    """Let groups have so many ranges of a partition in flight, of which no two are alike."""
    partition, shares = partition_of(rig, index), rig.services.shares
    records = [Record(0, rig.inside.clock.wall(), None, b"v")] * RECORDS_PER_BATCH
    data = bytes(batches.build(records))
    for _ in range(-(-ranges // RECORDS_PER_BATCH)):
        partition.append(bytearray(data), batches.headers(data))
    states = [(n, n, State.AVAILABLE, 1 + n % 2, None, None) for n in range(ranges)]
    for group in groups:
        await shares.ask(group, StartPartitions(group, ((partition.topic.id, index, 0),)))
        key = ShareKey(group, partition.topic.id, index)
        shares.machine(group).apply(Replayed(key, states))
        assert len(shares.machine(group).partitions[key].runs) == ranges


async def remove(rig: LoopRig, index: int, groups: Collection[str], before: int) -> None:
    """Delete records, and return once all groups go on behind them."""
    partition, shares = partition_of(rig, index), rig.services.shares
    await asyncio.sleep(0)
    outcome = await rig.services.partitions.delete_records({partition: before})
    assert outcome == {partition: before}
    keys = [ShareKey(group, partition.topic.id, index) for group in groups]
    for key in keys:
        machine = shares.machine(key.group)
        while machine.partitions[key].start < before:  # noqa: ASYNC110  # portions set no event
            await asyncio.sleep(0)
        listed = machine.archive.lists[key]
        assert sum(len(run.span) for run in listed.runs) + listed.dropped == before


@pytest.mark.parametrize(
    ("groups", "ranges"),
    [(1, scaled(RANGES_MAX)), (scaled(GROUPS), GROUP_RANGES), (scaled(10 * GROUPS), 1)],
)
def test_records_in_flight_are_removed_in_short_steps(
    rig: LoopRig, groups: int, ranges: int
) -> None:
    names, tries = [f"group-{number}" for number in range(groups)], iter(range(TRIES))

    async def prepare() -> None:
        for index in range(TRIES):
            await fill(rig, index, names, ranges)

    rig.run(prepare())
    rig.require_short(lambda: remove(rig, next(tries), names, ranges), SECONDS_MAX)


def test_lost_records_are_forgotten_in_short_steps(rig: LoopRig) -> None:
    """The log is opened late, and lost the second half of what the group and a lease had."""
    ranges, tries, shares = scaled(RANGES_MAX), iter(range(TRIES)), rig.services.shares
    end = ranges // 2
    leases = [("group", f"checkpoint-{number}") for number in range(TRIES)]
    shard = shares.shard("group")
    topic_id = partition_of(rig, 0).topic.id
    keys = [ShareKey("group", topic_id, index) for index in range(TRIES)]

    async def prepare() -> None:
        machine = shares.machine("group")
        for index, (key, lease) in enumerate(zip(keys, leases, strict=True)):
            machine.apply(LeaseOpened(lease, 1, (TOPIC,)))
            await fill(rig, index, ["group"], ranges)
            for number in range(ranges // RECORDS_PER_BATCH):
                first = number * RECORDS_PER_BATCH
                spans = (Span(n, n) for n in range(first, first + RECORDS_PER_BATCH))
                held = tuple([Held(key, span, 1) for span in spans])
                machine.apply(LeaseAcquired(lease, number, held))

    async def forget() -> None:
        index = next(tries)
        known = [(shard, keys[index], ranges)]
        await asyncio.sleep(0)
        await share_bounds._agree_late(shares, partition_of(rig, index), known, set(), end)
        machine = shares.machine("group")
        assert machine.partitions[keys[index]].end == end
        assert len(machine.partitions[keys[index]].runs) == end
        acquisitions = machine.leases[leases[index]].acquisitions.values()
        assert not any(acquisition.held for acquisition in acquisitions)

    rig.run(prepare())
    rig.require_short(forget, SECONDS_MAX)


@pytest.mark.parametrize("topics", [1, scaled(SHARE_PARTITIONS_MAX)])
def test_the_offsets_of_a_large_group_are_described_in_short_steps(
    rig: LoopRig, topics: int
) -> None:
    """Most of its share-partitions are of partitions, or of topics, that are not there any more."""
    count, shares = scaled(SHARE_PARTITIONS_MAX), rig.services.shares
    ids = [rig.services.catalog.topics[TOPIC].id, *(uuid4() for _ in range(topics - 1))]
    keys = [ShareKey("large", ids[n % topics], n // topics) for n in range(count)]
    Random(1).shuffle(keys)

    request = framed(_DESCRIBE_OFFSETS, 0, {"groups": [{"group_id": "large", "topics": None}]})
    bodies = list[bytes]()

    async def describe() -> None:
        await asyncio.sleep(0)
        bodies.append(await Client(rig.server).ask(request))

    shares.machine("large").apply_all([Started(key, 0, 0) for key in keys])
    rig.require_short(describe, SECONDS_MAX)
    (topic,) = codec.decode_response(_DESCRIBE_OFFSETS, 0, bodies[-1][1:]).groups[0].topics
    indexes = [one.partition_index for one in topic.partitions]
    assert indexes == list(range(-(-count // topics)))
