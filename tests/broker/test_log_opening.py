"""Logs are opened at their first use: never many of them in one step of the event loop."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from prometheus_client.exposition import choose_encoder

from headrace.broker.handlers import leases
from headrace.broker.metrics_http import MetricsServer
from headrace.broker.partitions import Partitions
from headrace.log.memory_disk import MemoryDisk
from headrace.wire import batches
from headrace.wire import leases as lease_messages
from headrace.wire.batches import Record

from .loop_rig import Client, LoopRig

PARTITIONS, TOPIC = 60, "wide"
SHARERS, MEMBER = "sharers", "m" * 22
SHARED = 40  # partitions of a request that is answered where its bytes arrived
_HANDLE: Any = asyncio.Handle  # what the loop runs
BATCH = bytes(batches.build([Record(0, 1_700_000_000_000, None, b"v")]))


@contextmanager
def opened_at_once(partitions: Partitions) -> Iterator[list[int]]:
    """Yield how many logs each step of the loop opens."""
    run, counts = _HANDLE._run, list[int]()

    def counted(handle: Any) -> None:
        before = partitions.opens
        run(handle)
        counts.append(partitions.opens - before)

    _HANDLE._run = counted
    try:
        yield counts
    finally:
        _HANDLE._run = run


def of_each(name: str, **fields: Any) -> list[dict[str, Any]]:
    return [{name: index} | fields for index in range(PARTITIONS)]


FETCH: dict[str, Any] = {
    "replica_id": -1, "max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 30, "isolation_level": 0,
    "session_id": 0, "session_epoch": -1, "forgotten_topics_data": [], "rack_id": "",
    "topics": [{"topic": TOPIC, "partitions": of_each(
        "partition", current_leader_epoch=-1, fetch_offset=0, log_start_offset=-1,
        partition_max_bytes=1 << 20,
    )}],
}  # fmt: skip
LIST_OFFSETS: dict[str, Any] = {
    "replica_id": -1, "isolation_level": 0,
    "topics": [{"name": TOPIC, "partitions": of_each(
        "partition_index", current_leader_epoch=-1, timestamp=-1
    )}],
}  # fmt: skip
PRODUCE: dict[str, Any] = {
    "transactional_id": None, "acks": 1, "timeout": 1000,
    "topic_data": [{"name": TOPIC, "partition_data": of_each("index", records=BATCH)}],
}  # fmt: skip
EPOCHS: dict[str, Any] = {
    "replica_id": -1,
    "topics": [{"topic": TOPIC, "partitions": of_each(
        "partition", current_leader_epoch=-1, leader_epoch=0
    )}],
}  # fmt: skip
DELETE: dict[str, Any] = {
    "timeout": 1000,
    "topics": [{"name": TOPIC, "partitions": of_each("partition_index", offset=0)}],
}
PRODUCERS: dict[str, Any] = {
    "topics": [{"name": TOPIC, "partition_indexes": list(range(PARTITIONS))}]
}
SHARE_HEARTBEAT: dict[str, Any] = {
    "group_id": SHARERS, "member_id": MEMBER, "member_epoch": 0, "rack_id": None,
    "subscribed_topic_names": [TOPIC],
}  # fmt: skip
SHARE_FETCH: dict[str, Any] = {
    "group_id": SHARERS, "member_id": MEMBER, "share_session_epoch": 0, "max_bytes": 1 << 20,
    "max_records": 100, "batch_size": 100, "share_acquire_mode": 0, "is_renew_ack": False,
    "forgotten_topics_data": [],
}  # fmt: skip


@pytest.fixture(scope="module")
def stopped() -> MemoryDisk:
    """A data folder with a topic of many partitions, of a broker that stopped in order."""
    disk = MemoryDisk()
    rig = LoopRig(disk)
    try:
        rig.run(_fill(rig))
    finally:
        rig.close()
    return disk


async def _fill(rig: LoopRig) -> None:
    client = Client(rig.server)
    topic = {
        "name": TOPIC, "num_partitions": PARTITIONS, "replication_factor": 1, "assignments": [],
        "configs": [],
    }  # fmt: skip
    await client.call(19, 5, topics=[topic], timeout=1000, validate_only=False)
    from_start = {"name": "share.auto.offset.reset", "value": "earliest", "config_operation": 0}
    group = {"resource_type": 32, "resource_name": SHARERS, "configs": [from_start]}
    await client.call(44, 1, resources=[group], validate_only=False)
    await client.call(76, 1, **SHARE_HEARTBEAT)
    await client.call(0, 8, **PRODUCE)
    commits = of_each(
        "partition_index", committed_offset=0, committed_leader_epoch=-1, committed_metadata=""
    )
    await client.call(
        8, 8, group_id="readers", generation_id_or_member_epoch=-1, member_id="",
        group_instance_id=None, topics=[{"name": TOPIC, "partitions": commits}],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("key", "version", "fields"),
    [
        pytest.param(0, 8, PRODUCE, id="Produce"),
        pytest.param(1, 11, FETCH, id="Fetch"),
        pytest.param(2, 7, LIST_OFFSETS, id="ListOffsets"),
        pytest.param(21, 2, DELETE, id="DeleteRecords"),
        pytest.param(23, 4, EPOCHS, id="OffsetForLeaderEpoch"),
        pytest.param(61, 0, PRODUCERS, id="DescribeProducers"),
    ],
)
def test_a_request_opens_one_log_in_a_step(
    key: int, version: int, fields: dict[str, Any], stopped: MemoryDisk
) -> None:
    rig = LoopRig(stopped)
    try:
        partitions = rig.services.partitions
        before = partitions.opens
        with opened_at_once(partitions) as counts:
            rig.run(_call(rig, key, version, fields))
        assert partitions.opens - before == PARTITIONS
        assert max(counts) == 1
    finally:
        rig.close()


async def _call(rig: LoopRig, key: int, version: int, fields: dict[str, Any]) -> None:
    await Client(rig.server).call(key, version, **fields)


@pytest.mark.parametrize(
    ("min_bytes", "max_wait"), [(1, 0), (SHARED * len(BATCH), 60_000)], ids=["any", "all"]
)
def test_a_share_fetch_opens_one_log_in_a_step(
    min_bytes: int, max_wait: int, stopped: MemoryDisk
) -> None:
    rig = LoopRig(stopped)
    try:
        partitions = rig.services.partitions
        parts = of_each("partition_index", acknowledgement_batches=[])[:SHARED]
        topics = [{"topic_id": rig.services.catalog.topics[TOPIC].id, "partitions": parts}]
        fields = SHARE_FETCH | {"topics": topics, "min_bytes": min_bytes, "max_wait": max_wait}

        async def fetched() -> int:
            answer = await Client(rig.server).call(78, 2, **fields)
            return sum(len(one.acquired_records) for one in answer.responses[0].partitions)

        before = partitions.opens
        with opened_at_once(partitions) as counts:
            assert rig.run(fetched()) == SHARED
        assert partitions.opens - before == SHARED
        assert max(counts) == 1
    finally:
        rig.close()


def test_a_metrics_page_opens_one_log_in_a_step(stopped: MemoryDisk) -> None:
    rig = LoopRig(stopped, headrace_metrics_granularity="topic")
    try:
        partitions, page = rig.services.partitions, MetricsServer(rig.server)

        async def requested() -> bytes:
            return b"".join(await page._rendered(choose_encoder("")[0]))

        before = partitions.opens
        with opened_at_once(partitions) as counts:
            text = rig.run(requested()).decode()
        assert f'lag_sum{{consumergroup="readers",topic="{TOPIC}"}} ' in text
        assert partitions.opens - before == PARTITIONS
        assert max(counts) == 1
    finally:
        rig.close()


def test_the_description_of_a_lease_opens_one_log_in_a_step(stopped: MemoryDisk) -> None:
    rig = LoopRig(stopped)
    try:
        partitions, call = rig.services.partitions, lease_messages.DescribeRequest(SHARERS, "", -1)
        before = partitions.opens
        with opened_at_once(partitions) as counts:
            found = rig.run(leases._describe(call, rig.services)).partitions
        assert partitions.opens - before == len(found) > SHARED
        assert max(counts) == 1
    finally:
        rig.close()
