"""No sync of a file or folder happens on the event loop's thread while a broker serves.

What is excepted: the start and the orderly stop, and recovery from a disk that fails.
"""

import asyncio
import os
import threading
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from headrace.broker import topics
from headrace.broker.config import Config
from headrace.broker.dispatch import Dispatcher
from headrace.broker.partitions import Partition
from headrace.broker.server import Server
from headrace.broker.services import Services, open_services
from headrace.core.shard_words import AcquireLease, CommitLease, OpenLease, StageLease
from headrace.log import checkpointed_log
from headrace.log.clock_checkpoint import FILE as CLOCK_CHECKPOINT
from headrace.log.memory_disk import VirtualClock
from headrace.wire import batches
from headrace.wire.batches import Record

from .loop_rig import Client

DAY_MS = 86_400_000
SECONDS_MAX = 120
GROUP, MEMBER = "sharers", "m" * 22
SEGMENT_BYTES = 1024
SETTINGS = {
    "log.segment.bytes": str(SEGMENT_BYTES),
    "offsets.topic.segment.bytes": str(SEGMENT_BYTES),
    "share.coordinator.snapshot.update.records.per.snapshot": "5",
    "headrace.share.history.ms": "0",
    "log.segment.delete.delay.ms": "0",
}


class LoopSyncs:
    """The syncs of the thread that a broker's loop runs in, by what asked for them.

    `others` counts those of all other threads.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: Counter[str] = Counter()
        self.others = 0
        self.is_watching = False
        self._thread = threading.get_ident()
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, self._watched(getattr(os, name)))

    def _watched(self, sync: Callable[[int], None]) -> Callable[[int], None]:
        def watched(fd: int) -> None:
            if threading.get_ident() != self._thread:
                self.others += 1
            elif self.is_watching:
                self.found[_callers()] += 1
            sync(fd)

        return watched


def _callers() -> str:
    ours = [one for one in traceback.extract_stack() if f"{os.sep}headrace{os.sep}" in one.filename]
    return " > ".join(f"{Path(one.filename).stem}.{one.name}:{one.lineno}" for one in ours[-7:])


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> LoopSyncs:
    monkeypatch.setattr(topics, "_DEAD_RECORDS_MIN", 20)
    monkeypatch.setattr(checkpointed_log, "_SEGMENT_BYTES", SEGMENT_BYTES)
    return LoopSyncs(monkeypatch)


class Serving:
    """A broker on a real disk and a clock of its own, and one client."""

    def __init__(self, folder: Path, durability: str) -> None:
        self.clock = VirtualClock()
        config = Config.parse({**SETTINGS, "headrace.durability": durability})
        self.services: Services = open_services(config, folder, clock=self.clock, new_id=uuid4)
        self.server = Server(self.services, Dispatcher(self.services))
        self.client = Client(self.server)

    def partition(self, topic: str, index: int = 0) -> Partition:
        found = self.services.partition(topic, index)
        assert found is not None
        return found

    def segments(self, topic: str) -> int:
        return len(self.partition(topic).log.segments())

    async def create(self, name: str, partitions: int = 1, **configs: str) -> UUID:
        given = [{"name": key.replace("_", "."), "value": text} for key, text in configs.items()]
        topic = {"name": name, "num_partitions": partitions, "replication_factor": 1,
                 "assignments": [], "configs": given}  # fmt: skip
        answer = await self.client.call(19, 7, topics=[topic], timeout=0, validate_only=False)
        assert answer.topics[0].error_code == 0
        return UUID(str(answer.topics[0].topic_id))

    async def produce(self, topic: str, index: int = 0, count: int = 10, **built: int) -> None:
        for number in range(count):
            record = Record(0, self.clock.wall(), b"k%d" % (number % 3), b"v" * 300)
            if built:
                built["base_sequence"] = number
            data = {"index": index, "records": bytes(batches.build([record], **built))}
            told = await self.client.call(
                0, 9, transactional_id=None, acks=-1, timeout=1000,
                topic_data=[{"name": topic, "partition_data": [data]}],
            )  # fmt: skip
            assert told.responses[0].partition_responses[0].error_code == 0

    async def configure(self, topic: str, name: str, value: str) -> None:
        change = {"name": name, "config_operation": 0, "value": value}
        resource = {"resource_type": 2, "resource_name": topic, "configs": [change]}
        answer = await self.client.call(44, 1, resources=[resource], validate_only=False)
        assert answer.responses[0].error_code == 0


async def produces(serving: Serving) -> None:
    """Records with rolls, of an idempotent producer too; the first ones of many partitions."""
    await serving.create("orders", 3)
    for index in range(3):
        await serving.produce("orders", index)
    assert serving.segments("orders") > 2
    answer = await serving.client.call(
        22,
        4,
        transactional_id=None,
        transaction_timeout=0,
        producer_id=-1,
        producer_epoch=-1,
    )
    await serving.produce("orders", 1, producer_id=answer.producer_id, producer_epoch=0)


async def changes_topics(serving: Serving) -> None:
    """Creation, growth, settings with checkpoints of the catalogue, deletion, creation again."""
    await serving.create("changing", 2)
    await serving.produce("changing", count=2)
    grown = {"name": "changing", "count": 4, "assignments": None}
    answer = await serving.client.call(37, 3, topics=[grown], timeout=0, validate_only=False)
    assert answer.results[0].error_code == 0
    await serving.produce("changing", 3)
    journal = serving.services.topics.journal_log
    checkpoint, rolls = journal.checkpoint_path, 0
    for number in range(60):
        await serving.configure("changing", "segment.ms", str(10_000 + number))
        rolls = max(rolls, len(journal.log.segments()))
    assert journal.checkpoint_path != checkpoint
    assert rolls > 1
    await serving.configure("changing", "flush.messages", "1")
    await serving.produce("changing")
    for _ in range(2):
        told = await serving.client.call(20, 1, topic_names=["changing"], timeout=0)
        assert told.responses[0].error_code == 0
        await serving.create("changing", 2)
        await serving.produce("changing", count=2)


async def commits(serving: Serving) -> None:
    """Offsets, until their journal rolled and was compacted; a group is deleted."""
    for number in range(40):
        place = {"partition_index": number % 3, "committed_offset": number,
                 "committed_leader_epoch": -1, "committed_metadata": ""}  # fmt: skip
        answer = await serving.client.call(
            8, 8, group_id=f"g{number % 2}", generation_id_or_member_epoch=-1, member_id="",
            group_instance_id=None, topics=[{"name": "orders", "partitions": [place]}],
        )  # fmt: skip
        assert answer.topics[0].partitions[0].error_code == 0
    assert serving.segments("__consumer_offsets") > 2
    beat = {
        "group_id": "consumers", "member_id": MEMBER, "member_epoch": 0, "instance_id": None,
        "rack_id": None, "rebalance_timeout": 60_000, "subscribed_topic_names": ["orders"],
        "subscribed_topic_regex": None, "server_assignor": None, "topic_partitions": [],
    }  # fmt: skip
    assert (await serving.client.call(68, 1, **beat)).error_code == 0
    answer = await serving.client.call(42, 2, groups_names=["g1"])
    assert answer.results[0].error_code == 0


async def shares(serving: Serving) -> None:
    """A member of a share group acquires and acknowledges; leases; the journal rolls, is pruned."""
    journal = serving.partition("__share_group_state")
    journal.log.configure(segment_bytes=SEGMENT_BYTES, segment_ms=DAY_MS, index_interval_bytes=4096)
    topic_id = await serving.create("shared")
    config = {"name": "share.auto.offset.reset", "config_operation": 0, "value": "earliest"}
    resource = {"resource_type": 32, "resource_name": GROUP, "configs": [config]}
    await serving.client.call(44, 1, resources=[resource], validate_only=False)
    joined = await serving.client.call(
        76, 1, group_id=GROUP, member_id=MEMBER, member_epoch=0, rack_id=None,
        subscribed_topic_names=["shared"],
    )  # fmt: skip
    assert joined.error_code == 0
    await serving.produce("shared", count=30)
    acks: list[dict[str, Any]] = []
    for epoch in range(20):
        parts = [{"partition_index": 0, "acknowledgement_batches": acks}]
        answer = await serving.client.call(
            78, 1, group_id=GROUP, member_id=MEMBER, share_session_epoch=epoch, max_wait=0,
            min_bytes=1, max_bytes=600, max_records=1, batch_size=1, forgotten_topics_data=[],
            topics=[{"topic_id": topic_id, "partitions": parts}],
        )  # fmt: skip
        assert answer.error_code == 0
        acks = [
            {"first_offset": one.first_offset, "last_offset": one.last_offset,
             "acknowledge_types": [1 + epoch % 2]}
            for topic in answer.responses for part in topic.partitions
            for one in part.acquired_records
        ]  # fmt: skip
    await lease(serving)
    rolled = serving.segments("__share_group_state")
    assert rolled > 2
    for _ in range(2):
        serving.clock.advance(300_000)
        await serving.services.share_pruning.prune()
    assert serving.segments("__share_group_state") < rolled


async def lease(serving: Serving) -> None:
    key, ask = ("leased", "spark"), serving.services.shares.ask
    opened = await ask("leased", OpenLease(key, ("shared",), True))
    for seq in range(1, 6):
        await ask("leased", AcquireLease(key, opened.epoch, seq, 2))
        await ask("leased", StageLease(key, opened.epoch, seq, ()))
        await ask("leased", CommitLease(key, opened.epoch, seq))


async def deletes_records(serving: Serving) -> None:
    """Of some partitions, with segments to drop."""
    before = serving.segments("orders")
    parts = [{"partition_index": index, "offset": 7} for index in range(3)]
    topic = {"name": "orders", "partitions": parts}
    answer = await serving.client.call(21, 2, topics=[topic], timeout=0)
    told = [(one.error_code, one.low_watermark) for one in answer.topics[0].partitions]
    assert told == [(0, 7)] * 3
    assert serving.segments("orders") < before


async def compacts(serving: Serving) -> None:
    """A topic and the journal of offsets."""
    await serving.create("keyed", cleanup_policy="compact", min_cleanable_dirty_ratio="0.01")
    await serving.produce("keyed", count=20)
    house = serving.services.housekeeping
    while await house.clean_dirtiest():
        pass
    assert house.counters.cleanings >= 2
    assert house.counters.failures == 0


async def expires(serving: Serving) -> None:
    """Retention of everything, the segment that is written to included; offsets too."""
    serving.clock.advance(400 * DAY_MS)
    await serving.services.housekeeping.expire_all()
    assert serving.partition("orders").start_offset == serving.partition("orders").high_watermark
    assert serving.services.housekeeping.counters.segments_deleted > 3
    await serving.services.offset_expiry.sweep()
    await serving.produce("orders")


async def lets_background_work_run(serving: Serving) -> None:
    """The clock is saved each minute, sealed segments are read again, the disk is probed."""
    serving.clock.advance(600_000)
    saved = serving.services.folder / CLOCK_CHECKPOINT
    before = saved.read_bytes()
    while saved.read_bytes() == before:  # noqa: ASYNC110  # there is no event to wait for
        await asyncio.sleep(0.05)
    await serving.services.scrub.run_pass()
    await serving.services.write_probe.probe()


SCENES = [
    produces, changes_topics, commits, shares, deletes_records, compacts, expires,
    lets_background_work_run,
]  # fmt: skip


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_nothing_is_synced_on_the_event_loop(
    tmp_path: Path, syncs: LoopSyncs, durability: str
) -> None:
    async def go() -> None:
        serving = Serving(tmp_path, durability)
        await serving.services.start()
        syncs.is_watching = True
        try:
            for scene in SCENES:
                await scene(serving)
        finally:
            syncs.is_watching = False
            await serving.server.stop()
            await serving.services.close()

    asyncio.run(asyncio.wait_for(go(), SECONDS_MAX))
    assert syncs.others > 100
    assert dict(syncs.found) == {}


def test_a_sync_on_the_loop_would_be_found(tmp_path: Path, syncs: LoopSyncs) -> None:
    syncs.is_watching = True
    with (tmp_path / "file").open("wb") as file:
        os.fsync(file.fileno())
    assert sum(syncs.found.values()) == 1
