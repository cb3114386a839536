"""Timers, periodic tasks and the metrics page work in short steps, however large the state is."""

import asyncio
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.metrics_http import MetricsServer
from headrace.broker.partitions import Partition
from headrace.core.catalog import Topic
from headrace.core.shard_words import On, OpenLease
from headrace.core.share_words import Acknowledge, Acknowledged, Acquire, ShareKey, Verdict
from headrace.core.types import MemberId, Span
from headrace.log.os_disk import OsDisk
from headrace.wire import batches
from headrace.wire.batches import Record

from .loop_rig import TRIES, Client, LoopRig
from .test_loop_time import SECONDS_MAX, WIDE, commit, created, scaled

DAY_MS = 86_400_000
PARTITIONS = 200
SHARE_PARTITIONS_MAX = 60_000  # as many as headrace.groups.max.bytes allows, or some less
LOCKS_MAX = 10_000  # of a share-partition, by group.share.max.partition.max.record.locks
SEGMENTS = 1_000
MANY = ("one", "two", "three", "four")
MEMBER = MemberId("m" * 22)


@pytest.fixture
def rig() -> Iterator[LoopRig]:
    rig = LoopRig(headrace_metrics_granularity="partition")
    try:
        rig.run(create(rig, WIDE, PARTITIONS))
        yield rig
    finally:
        rig.close()


async def create(rig: LoopRig, name: str, partitions: int, **configs: str) -> None:
    entries = [
        {"name": key.replace("_", "."), "value": value} for key, value in configs.items()
    ]  # fmt: skip
    topics = [created(name, num_partitions=partitions, configs=entries)]
    answer = await Client(rig.server).call(19, 7, topics=topics, timeout=0, validate_only=False)
    assert answer.topics[0].error_code == 0, answer


def wide(rig: LoopRig) -> Topic:
    return rig.services.catalog.topics[WIDE]


async def subscribe(rig: LoopRig, group: str) -> list[ShareKey]:
    """Let a share group begin to read all partitions."""
    shard = rig.services.shares.shard(group)
    await shard.ask(OpenLease((group, "session"), (WIDE,), True))
    return [ShareKey(group, wide(rig).id, index) for index in range(PARTITIONS)]


async def acquire(rig: LoopRig, key: ShareKey, records: int, *, spread: bool) -> None:
    """Acquire records of a share-partition; `spread`: each second one, so that none are alike."""
    shard = rig.services.shares.shard(key.group)
    first = rig.services.shares.machine(key.group).partitions[key].start
    for begin in range(first, first + records, 100):
        span = Span(begin, begin + min(100, records) - 1)
        await shard.ask(On(key, Acquire(MEMBER, [span], len(span), 2 * LOCKS_MAX, exact=True)))
        if spread:
            verdicts = [(Verdict.RENEW, Verdict.ACCEPT)[n % 2] for n in range(len(span))]
            await shard.ask(On(key, Acknowledge(MEMBER, [Acknowledged(span, verdicts)])))


def test_many_locks_end_in_short_steps(rig: LoopRig) -> None:
    """Of many share-partitions with a lock each, and of many records of one of them."""
    groups_of_tries = [
        [f"{number}-{index}" for index in range(scaled(40))] for number in range(TRIES)
    ]
    tries = iter(groups_of_tries)

    async def prepare() -> None:
        for group in chain(*groups_of_tries):
            await subscribe(rig, group)

    async def expire() -> None:
        groups = next(tries)
        keys = [ShareKey(name, wide(rig).id, n) for name in groups for n in range(PARTITIONS)]
        for key in keys:
            await acquire(rig, key, 1, spread=False)
        await acquire(rig, keys[0], scaled(LOCKS_MAX), spread=True)
        shards = rig.services.shares.shards
        rig.inside.clock.advance(60_000)
        await asyncio.sleep(0)
        for shard in shards:
            asyncio.get_running_loop().call_soon(shard._tick)
        for share in shares(rig, groups):
            while share.next_deadline() is not None:  # noqa: ASYNC110  # the ticks set no event
                await asyncio.sleep(0)

    rig.run(prepare())
    rig.require_short(expire, SECONDS_MAX)


def shares(rig: LoopRig, groups: list[str]) -> Iterator[Any]:
    for name in groups:
        yield from rig.services.shares.machine(name).partitions_of(name).values()


def test_many_offsets_expire_in_short_steps(rig: LoopRig) -> None:
    """Of many groups, and of one with many."""
    names, count = iter(("first", "second", "third")), scaled(8000)

    async def expire() -> None:
        client, name = Client(rig.server), next(names)
        for number in range(count):
            await client.call(8, 8, **commit(2, group_id=f"{name}-{number}"))
        for topic in (WIDE, *MANY):
            fields = commit(PARTITIONS, group_id=name)
            fields["topics"][0]["name"] = topic
            await client.call(8, 8, **fields)
        rig.inside.clock.advance(8 * DAY_MS)
        swept = await rig.services.offset_expiry.sweep()
        assert swept.offsets == 2 * count + (1 + len(MANY)) * PARTITIONS

    for topic in MANY:
        rig.run(create(rig, topic, PARTITIONS))
    rig.require_short(expire, SECONDS_MAX)


def test_the_metrics_page_is_made_in_short_steps(rig: LoopRig) -> None:
    """Of as many share-partitions and groups as there can be, about."""
    shared, groups = scaled(SHARE_PARTITIONS_MAX) // PARTITIONS, scaled(8000)
    page = MetricsServer(rig.server)

    async def fill() -> None:
        client = Client(rig.server)
        for number in range(shared):
            await subscribe(rig, f"shared-{number}")
        for number in range(groups):
            await client.call(8, 8, **commit(2, group_id=f"g{number}"))

    async def scrape() -> None:
        await asyncio.sleep(0)
        status, _, parts = await page._page("/metrics", {})
        assert status == 200
        assert len(parts) > groups // 200

    rig.run(fill())
    rig.require_short(scrape, SECONDS_MAX)


def test_cold_share_groups_are_snapshotted_in_short_steps(rig: LoopRig) -> None:
    """Whose share-partitions have many separate ranges."""
    shares, names = rig.services.shares, iter([f"cold-{number}" for number in range(TRIES)])
    count = scaled(40)

    async def fill(group: str) -> None:
        for key in (await subscribe(rig, group))[:count]:
            await acquire(rig, key, LOCKS_MAX, spread=True)
        rig.inside.clock.advance(60_000)
        shares.shard(group)._tick()
        for share in shares.machine(group).partitions.values():
            while share.next_deadline() is not None:  # noqa: ASYNC110  # the ticks set no event
                await asyncio.sleep(0)

    async def snapshot() -> None:
        group = next(names)
        await fill(group)
        shard = shares.shard(group)
        was, journal = shard.records, shares.journals[shares.shards.index(shard)]
        await rig.services.share_pruning._replace_cold(shard, journal.log.end_offset)
        assert shard.records - was >= count, "each has a snapshot"

    rig.require_short(snapshot, SECONDS_MAX)


def test_many_segments_are_scrubbed_and_dropped_in_short_steps(tmp_path: Path) -> None:
    """On a disk, as what is in memory searches all names for each that it renames."""
    rig = LoopRig(OsDisk(tmp_path))
    partitions = [
        rig.run(filled(rig, f"small-{number}", scaled(SEGMENTS))) for number in range(TRIES)
    ]
    tries = iter(partitions)

    async def scrub() -> None:
        await asyncio.sleep(0)
        await rig.services.scrub.run_pass()

    async def expire() -> None:
        partition = next(tries)
        await asyncio.sleep(0)
        assert await rig.services.housekeeping._expire(partition) >= scaled(SEGMENTS) - 1

    try:
        rig.require_short(scrub, SECONDS_MAX)
        rig.inside.clock.advance(8 * DAY_MS)
        rig.require_short(expire, SECONDS_MAX)
    finally:
        rig.close()


async def filled(rig: LoopRig, name: str, segments: int) -> Partition:
    """A partition with a batch in each of its segments."""
    await create(rig, name, 1, segment_bytes="1024")
    partition = rig.services.partition(name, 0)
    assert partition is not None
    for _ in range(segments):
        data = batches.build([Record(0, rig.inside.clock.wall(), None, bytes(900))])
        partition.append(bytearray(data), batches.headers(data))
    return partition
