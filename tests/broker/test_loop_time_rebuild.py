"""The state of a large journal is rebuilt after a failed write in short steps of the loop."""

from collections.abc import Iterator
from uuid import UUID

import pytest

from headrace.broker.groups import Shard
from headrace.broker.runtime import StorageFault
from headrace.core.errors import Refused
from headrace.core.group_words import NOBODY, Commit, Offset
from headrace.core.leases import Held, LeaseAcquired, LeaseOpened
from headrace.core.shard_words import Keep
from headrace.core.share_words import ShareKey, Started
from headrace.core.types import Span
from headrace.log.memory_disk import MemoryDisk

from .loop_rig import LoopRig
from .test_loop_time import SECONDS_MAX, scaled
from .test_runtime import rebuilt

GROUP = "large"
PARTITIONS = 1_000
TOPICS = scaled(200)
RANGES, RANGES_PER_NUMBER = scaled(100_000), 1_000
LEASE, KEY = (GROUP, "checkpoint"), ShareKey(GROUP, UUID(int=1), 0)


@pytest.fixture(scope="module")
def rig() -> Iterator[LoopRig]:
    """A broker with a group of many offsets."""
    rig = LoopRig(MemoryDisk(), offsets_topic_num_partitions="1")
    try:
        for topic in range(TOPICS):
            rig.run(_commit(rig, topic))
        yield rig
    finally:
        rig.close()


async def _commit(rig: LoopRig, topic: int) -> None:
    offsets = tuple(Offset(f"t{topic}", n, topic + n, -1, "", None) for n in range(PARTITIONS))
    answer = await rig.services.groups.ask(GROUP, Commit(GROUP, NOBODY, None, -1, offsets))
    assert not isinstance(answer, Refused), answer


def _shard(rig: LoopRig) -> Shard:
    return rig.services.groups.shards[0]


async def _fail(rig: LoopRig) -> None:
    """Let a write of the journal fail."""
    offset = Offset("t0", 0, 10**6, -1, "", None)
    rig.inside.disk.failing.add("append")
    answer = await rig.services.groups.ask(GROUP, Commit(GROUP, NOBODY, None, -1, (offset,)))
    rig.inside.disk.failing.clear()
    assert isinstance(answer, Refused)


def test_a_large_journal_is_replayed_in_short_steps(rig: LoopRig) -> None:
    shard = _shard(rig)

    async def rebuild() -> None:
        dropped = shard.machine
        await _fail(rig)
        await rebuilt(shard)
        assert shard.machine is not dropped
        del dropped

    rig.require_short(rebuild, SECONDS_MAX)
    offsets = rig.services.groups.offsets(GROUP)
    assert len(offsets) == TOPICS * PARTITIONS
    first = offsets.get("t0", 0)
    assert first is not None
    assert first.offset == 0, "the commit that failed is not there"


async def _write_lease(rig: LoopRig) -> None:
    """Let a lease have so many ranges outstanding, of which no two follow each other."""
    shares = rig.services.shares
    machine = shares.machine(GROUP)
    machine.apply_all([Started(KEY, 0, 0), LeaseOpened(LEASE, 1, ("topic",))])
    for number in range(RANGES // RANGES_PER_NUMBER):
        first = number * RANGES_PER_NUMBER
        offsets = range(2 * first, 2 * (first + RANGES_PER_NUMBER), 2)
        held = tuple([Held(KEY, Span(offset, offset), 1) for offset in offsets])
        machine.apply(LeaseAcquired(LEASE, number + 1, held))
    assert await shares.ask(GROUP, Keep((KEY,), (LEASE,))) is None


def test_a_lease_takes_many_locks_back_in_short_steps(rig: LoopRig) -> None:
    shares, disk = rig.services.shares, rig.inside.disk
    shard = shares.shard(GROUP)
    rig.run(_write_lease(rig))

    async def rebuild() -> None:
        dropped = shard.machine
        disk.failing.add("append")
        with pytest.raises(StorageFault):
            await shard.ask(Keep((), (LEASE,)))
        disk.failing.clear()
        await rebuilt(shard)
        assert shard.machine is not dropped
        del dropped

    rig.require_short(rebuild, SECONDS_MAX)
    machine = shares.machine(GROUP)
    locked = machine.partitions[KEY].runs.held_by(machine.leases[LEASE].holder)
    assert sum(status.records for status in locked) == RANGES
