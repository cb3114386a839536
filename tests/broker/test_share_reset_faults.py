"""Start offsets of share groups where a log cannot be opened for a while."""

import errno
from typing import Any
from uuid import UUID

import pytest

from headrace.broker import share_resets
from headrace.broker.handlers import alter_share_group_offsets, share_group_heartbeat
from headrace.broker.partition import Partition
from headrace.broker.request import Request
from headrace.core.catalog import CreateTopic, Resource, SetConfigs
from headrace.log.memory_disk import MemoryDisk
from headrace.log.segments import SegmentedLog
from headrace.wire import codec
from headrace.wire.batches import Record

from .inside_rig import Inside, play

GROUP, TOPIC, ID = "workers", "orders", UUID(int=1)
ALTER, HEARTBEAT = 91, 76
COORDINATOR_NOT_AVAILABLE = 15


class Failing:
    """Opening partition 0 of the topic fails with EMFILE while `is_failing`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_failing = True
        opened = Partition._opened

        def opening(partition: Partition) -> SegmentedLog:
            if self.is_failing and partition.name == f"{TOPIC}-0":
                raise OSError(errno.EMFILE, "Too many open files")
            return opened(partition)

        monkeypatch.setattr(Partition, "_opened", opening)


@pytest.fixture
def disk() -> MemoryDisk:
    """A topic of two partitions with records, for a group that starts by duration."""
    disk = MemoryDisk()

    async def fill(inside: Inside) -> None:
        topics = inside.services.topics
        await topics.create(CreateTopic(TOPIC, ID, 2, {}))
        reset = {"share.auto.offset.reset": "by_duration:PT1H"}
        await topics.set_configs(SetConfigs(Resource.GROUP, GROUP, reset))
        for number in range(2):
            partition = inside.services.partition(TOPIC, number)
            assert partition is not None
            for _ in range(5):
                partition.append_records([Record(0, 1, b"k", b"v")])

    play(lambda: Inside(disk), fill)
    return disk


async def call(inside: Inside, key: int, version: int, **fields: Any) -> Any:
    """Return the answer of the handler of an API."""
    body = memoryview(codec.encode_request(key, version, fields))
    handler = {ALTER: alter_share_group_offsets, HEARTBEAT: share_group_heartbeat}[key]
    request = Request(key, version, 1, "client", "::1", 1, body)
    return await handler.handle(request, inside.services)


async def alter(inside: Inside, start: int) -> tuple[int, list[int]]:
    """Set the start of both partitions; the code of the group, and those of the partitions."""
    partitions = [{"partition_index": number, "start_offset": start} for number in range(2)]
    topics = [{"topic_name": TOPIC, "partitions": partitions}]
    answer = await call(inside, ALTER, 0, group_id=GROUP, topics=topics)
    codes = [one["error_code"] for topic in answer["responses"] for one in topic["partitions"]]
    return answer["error_code"], codes


async def join(inside: Inside) -> int:
    answer = await call(
        inside, HEARTBEAT, 1, group_id=GROUP, member_id="m", member_epoch=0, rack_id=None,
        subscribed_topic_names=[TOPIC],
    )  # fmt: skip
    return int(answer["error_code"])


def starts(inside: Inside) -> dict[int, int]:
    partitions = inside.services.shares.machine(GROUP).partitions
    return {key.partition: one.start for key, one in sorted(partitions.items())}


def opened_during_the_search(
    inside: Inside, monkeypatch: pytest.MonkeyPatch, failing: Failing
) -> None:
    """Let another request open the partition that failed while the next one is searched."""
    search = share_resets._start

    async def searching(partition: Partition, *given: Any) -> int:
        if partition.name == f"{TOPIC}-1":
            failing.is_failing = False
            await inside.services.opened(TOPIC, 0)
        return await search(partition, *given)

    monkeypatch.setattr(share_resets, "_start", searching)


@pytest.mark.parametrize("is_known", [False, True])
def test_a_reset_by_duration_does_not_begin_at_the_start_of_a_log_that_was_not_searched(
    disk: MemoryDisk, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    """All records of the partition would be delivered again."""

    async def begin(inside: Inside) -> None:
        assert await alter(inside, 3) == (0, [0, 0])

    if is_known:
        play(lambda: Inside(disk), begin)

    async def scene(inside: Inside) -> None:
        inside.clock.advance(60_000)  # members of before the restart had time for heartbeats
        opened_during_the_search(inside, monkeypatch, failing)
        assert await alter(inside, -1) == (COORDINATOR_NOT_AVAILABLE, [])
        assert starts(inside) == ({0: 3, 1: 3} if is_known else {})
        failing.is_failing = False
        assert await alter(inside, -1) == (0, [0, 0])
        assert starts(inside) == {0: 5, 1: 5}

    failing = Failing(monkeypatch)
    play(lambda: Inside(disk), scene)


def test_a_heartbeat_does_not_begin_at_the_start_of_a_log_that_was_not_searched(
    disk: MemoryDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(inside: Inside) -> None:
        opened_during_the_search(inside, monkeypatch, failing)
        assert await join(inside) == COORDINATOR_NOT_AVAILABLE
        assert starts(inside) == {}
        failing.is_failing = False
        assert await join(inside) == 0
        assert starts(inside) == {0: 5, 1: 5}

    failing = Failing(monkeypatch)
    play(lambda: Inside(disk), scene)


@pytest.mark.parametrize("reset", ["earliest", "latest", "by_duration:PT1H"])
def test_offsets_are_altered_once_a_log_can_be_opened_again(
    disk: MemoryDisk, monkeypatch: pytest.MonkeyPatch, reset: str
) -> None:
    """Clients retry by themselves: unlike a refused log, this one can open without a restart."""

    async def scene(inside: Inside) -> None:
        configs = {"share.auto.offset.reset": reset}
        await inside.services.topics.set_configs(SetConfigs(Resource.GROUP, GROUP, configs))
        assert await alter(inside, 2) == (COORDINATOR_NOT_AVAILABLE, [])
        assert starts(inside) == {}
        failing.is_failing = False
        assert await alter(inside, 2) == (0, [0, 0])
        assert starts(inside) == {0: 2, 1: 2}

    failing = Failing(monkeypatch)
    play(lambda: Inside(disk), scene)
