"""Data folders as real brokers leave them: something of every kind of file, stopped or killed.

`build` runs a broker in memory through a fixed story and returns the files of its folder, with how
many bytes of each are on stable storage for certain.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any
from unittest import mock
from uuid import UUID

from tests.campaign.life import WALL_MS, Client, Life, recorded, run

from headrace.log.index import SUFFIXES
from headrace.log.memory_disk import MemoryDisk
from headrace.log.segment import Segment
from headrace.wire import batches
from headrace.wire import leases as lease
from headrace.wire.compression import Codec

STEP_MS = 500
SETTINGS = {
    "offsets.topic.segment.bytes": "3072",
    "log.index.interval.bytes": "256",
    "log.segment.delete.delay.ms": "0",
    "errors.deadletterqueue.auto.create.topics.enable": "true",
    "auto.create.topics.enable": "false",
}
_DEAD_RECORDS = 40  # after so many more than live ones the catalogue writes a checkpoint
_CONFIG_CHANGES = 110
_LARGE_BATCHES = 24  # half of them for each partition: 700 KiB
_LARGE_RECORDS = 250


@dataclass(frozen=True, slots=True)
class Folder:
    """A data folder as it was left.

    `files` maps paths to contents, `synced` to the bytes that were on stable storage.
    """

    name: str
    files: Mapping[str, bytes]
    synced: Mapping[str, int]
    settings: Mapping[str, str]
    is_clean: bool

    def disk(self) -> MemoryDisk:
        """A disk that holds a copy."""
        return disk_of(self.files, self.synced)


def disk_of(files: Mapping[str, bytes], synced: Mapping[str, int] | None = None) -> MemoryDisk:
    """A disk that holds files; all of them synced where nothing else is said."""
    disk = MemoryDisk()
    for path, data in files.items():
        disk.write(path, data)
        content = disk._files[path]
        content.synced = len(data) if synced is None else min(synced.get(path, 0), len(data))
    return disk


def build(*, durability: str, clean: bool, seed: int = 0, is_interrupted: bool = False) -> Folder:
    """Run the story and leave its folder.

    Args:
        is_interrupted: it ends amid two compactions.
    """
    settings = {**SETTINGS, "headrace.durability": durability}
    disk = MemoryDisk()
    with recorded([]), mock.patch("headrace.broker.topics._DEAD_RECORDS_MIN", _DEAD_RECORDS):
        run(_story(disk, settings, seed, clean=clean))
    if not clean:
        disk.kill()
    if is_interrupted:
        _interrupt_compactions(disk)
    return folder_of(f"{durability} {'stopped' if clean else 'killed'}", disk, settings, clean)


def _interrupt_compactions(disk: MemoryDisk) -> None:
    """Leave a replacement with its segments put away, and another one with them still there."""
    for folder, is_put_away in (("prices-0", True), ("__consumer_offsets-0", False)):
        first, second, *_ = [name for name in disk.list(folder) if name.endswith(".log")]
        assert disk.size(f"{folder}/{first}"), "a sealed segment"
        stem = f"{folder}/{second.removesuffix('.log')}"
        disk.write(f"{stem}.log.swap", disk.read(f"{stem}.log"))
        base_offset = int(second.removesuffix(".log"))
        swap = Segment(disk, folder, base_offset, 1 << 30, file_path=f"{stem}.log.swap")
        swap.take_whole(disk.size(swap.file_path))
        swap.save_digests()
        swap.release()
        if is_put_away:
            for suffix in (".log", *SUFFIXES):
                disk.remove(stem + suffix)


def build_large(*, clean: bool, seed: int = 0) -> Folder:
    """Leave a folder with segments of several blocks, of which a start after a stop reads few."""
    settings = {"auto.create.topics.enable": "false"}
    disk = MemoryDisk()
    with recorded([]):
        run(_large_story(disk, settings, seed, clean=clean))
    if not clean:
        disk.kill()
    return folder_of(f"large {'stopped' if clean else 'killed'}", disk, settings, clean)


def build_compacted() -> Folder:
    """Leave a folder with a compacted topic whose segments have gaps between batches."""
    settings = {"auto.create.topics.enable": "false"}
    disk = MemoryDisk()
    with recorded([]):
        run(_compacted_story(disk, settings))
    return folder_of("compacted", disk, settings, clean=True)


def folder_of(name: str, disk: MemoryDisk, settings: Mapping[str, str], clean: bool) -> Folder:
    """What a disk holds now."""
    contents = disk._files
    return Folder(
        name,
        {path: bytes(one.data) for path, one in contents.items()},
        {path: one.synced for path, one in contents.items()},
        settings,
        clean,
    )


async def _story(disk: MemoryDisk, settings: Mapping[str, str], seed: int, *, clean: bool) -> None:
    life = Life(disk, settings, _ids(seed))
    await life.start()
    story = Story(life, Random(seed))
    await story.topics()
    await story.records()
    await story.consumer_groups()
    await story.share_groups()
    await story.leases()
    await story.deletions()
    await story.compaction()
    await story.tail()
    if clean:
        await life.stop()


async def _large_story(
    disk: MemoryDisk, settings: Mapping[str, str], seed: int, *, clean: bool
) -> None:
    life = Life(disk, settings, _ids(seed))
    await life.start()
    story = Story(life, Random(seed))
    await story.create("orders", 2, {"max.message.bytes": "2000000"})
    await story.create("jobs", 2, {})
    await story.configure(32, "workers", "share.auto.offset.reset", "earliest")
    for number in range(_LARGE_BATCHES):
        await story.produce("orders", number % 2, _LARGE_RECORDS)
        await story.produce("jobs", number % 2, 3)
    for index in (0, 1):
        await story.commit("billing", "orders", index, _LARGE_BATCHES // 2 * _LARGE_RECORDS)
    session = ShareSession(story, "workers", ("jobs",))
    await session.join()
    await session.acknowledge(await session.fetch(8))
    for partition in life.services.partitions:
        partition.log.sync()
    life.services.topics._journal.sync()
    await story.produce("orders", 0, 3)
    await story.produce("orders", 0, 2)
    if clean:
        await life.stop()


async def _compacted_story(disk: MemoryDisk, settings: Mapping[str, str]) -> None:
    life = Life(disk, settings, _ids(0))
    await life.start()
    story = Story(life, Random(1))
    await story.create("prices", 1, {"cleanup.policy": "compact", "segment.bytes": "4096"})
    for number in range(40):
        await story.produce("prices", 0, 1, keys=1 if number % 3 else 1000)
    await story.compaction()
    await life.stop()


def _ids(seed: int) -> Callable[[], UUID]:
    rng = Random(f"ids {seed}")
    return lambda: UUID(int=rng.getrandbits(128), version=4)


class Story:
    """The steps of the story, each by requests of clients."""

    def __init__(self, life: Life, rng: Random) -> None:
        self.life = life
        self.rng = rng
        self.client: Client = life.client()
        self.topic_ids: dict[str, UUID] = {}
        self.step = 0
        self.sequences: dict[tuple[int, str, int], int] = {}

    async def topics(self) -> None:
        """Topics of each kind, one of which goes again, and a catalogue with a checkpoint."""
        small = {"segment.bytes": "2048"}
        await self.create("orders", 2, small)
        await self.create("prices", 1, small | {"cleanup.policy": "compact"})
        await self.create("events", 1, small)
        await self.create("jobs", 2, small)
        await self.create("batches", 1, small)
        await self.create("gone", 1, {})
        answer = await self.client.call(
            20, 6, topics=[{"name": "gone", "topic_id": None}], timeout=1000
        )
        assert not answer.responses[0].error_code
        for number in range(_CONFIG_CHANGES):
            await self.configure(2, "orders", "retention.ms", str(900_000_000 + number))
        await self.configure(32, "workers", "errors.deadletterqueue.topic.name", "dlq.workers")
        await self.configure(32, "workers", "share.auto.offset.reset", "earliest")
        await self.configure(32, "readers", "share.auto.offset.reset", "earliest")
        await self.configure(32, "payments", "consumer.session.timeout.ms", "50000")
        await self.configure(4, "", "log.retention.ms", "604800000")

    async def records(self) -> None:
        """Records of ordinary and idempotent producers, of several codecs."""
        first, second = await self.producer_id(), await self.producer_id()
        for number in range(12):
            await self.produce("orders", number % 2, 5, producer=first)
            await self.produce("events", 0, 4, producer=second if number % 3 else -1)
            codec = (Codec.NONE, Codec.GZIP, Codec.LZ4)[number % 3]
            await self.produce("jobs", number % 2, 3, compression=codec)
            await self.produce("prices", 0, 4, keys=6, producer=second)
            await self.produce("batches", 0, 3)
        # A producer that wrote to the first segments only: snapshots alone tell of it.
        await self.produce("events", 0, 2, producer=first)

    async def consumer_groups(self) -> None:
        """A group of each protocol with members and commits, and one of commits alone."""
        for number in range(30):
            await self.commit("billing", "orders", number % 2, 1 + number, meta=f"round {number}")
        joined = await self.client.call(11, 9, **_join(""))
        joined = await self.client.call(11, 9, **_join(joined.member_id))
        assert not joined.error_code
        await self.client.call(
            14, 5, group_id="payments", generation_id=joined.generation_id,
            member_id=joined.member_id, group_instance_id=None, protocol_type="consumer",
            protocol_name="range",
            assignments=[{"member_id": joined.member_id, "assignment": b"all of it"}],
        )  # fmt: skip
        await self.commit(
            "payments", "events", 0, 17, generation=joined.generation_id, member=joined.member_id
        )
        beat = await self.client.call(
            68, 1, group_id="modern", member_id="m-1", member_epoch=0, instance_id=None,
            rack_id=None, rebalance_timeout=60_000, subscribed_topic_names=["orders"],
            subscribed_topic_regex=None, server_assignor=None, topic_partitions=[],
        )  # fmt: skip
        assert not beat.error_code
        await self.commit("modern", "orders", 0, 9, generation=beat.member_epoch, member="m-1")

    async def share_groups(self) -> None:
        """Records accepted, released, rejected to a dead-letter topic, archived without one."""
        for group in ("workers", "readers"):
            session = ShareSession(self, group, ("jobs",))
            await session.join()
            for _ in range(3):
                taken = await session.fetch(8)
                await session.acknowledge(taken)
            await session.fetch(2)  # still acquired at the end
        for _ in range(30):  # dead letters are written by a task of the broker
            await _turn()

    async def leases(self) -> None:
        """A session with a committed, a staged and an outstanding acquisition."""
        topics = ("batches",)
        opened = await self.client.own(
            lease.LeaseApi.OPEN,
            lease.OpenRequest("spark", "query 1", -1, topics, "earliest"),
            lease.OpenResponse,
        )
        assert not opened.error_code, opened
        who = "spark", "query 1", opened.epoch
        for number in (1, 2, 3):
            answer = await self.client.own(
                lease.LeaseApi.ACQUIRE,
                lease.AcquireRequest(*who, number, 6, 0),
                lease.AcquireResponse,
            )
            assert answer.ranges, answer
            some = answer.ranges[0]
            staged = lease.Disposition(
                some.topic, some.partition, some.first, some.first, lease.Verdict.REJECT, "bad row"
            )
            if number < 3:
                stage = lease.StageRequest(*who, number, (staged,), f"task {number}")
                await self.client.own(lease.LeaseApi.STAGE, stage, lease.StageResponse)
            if number == 1:
                commit = lease.CommitRequest(*who, 1)
                await self.client.own(lease.LeaseApi.COMMIT, commit, lease.CommitResponse)

    async def deletions(self) -> None:
        """Records deleted up to an offset inside a segment, and whole segments with them."""
        answer = await self.client.call(
            21, 2, timeout=1000,
            topics=[{"name": "events", "partitions": [{"partition_index": 0, "offset": 22}]}],
        )  # fmt: skip
        assert not answer.topics[0].partitions[0].error_code

    async def compaction(self) -> None:
        """Compact what is dirty: `prices` and the journal of consumer groups."""
        while await self.life.services.housekeeping.clean_dirtiest():
            pass

    async def tail(self) -> None:
        """What follows the last sync, unless every response waits for one."""
        for partition in self.life.services.partitions:
            partition.log.sync()
        self.life.services.topics._journal.sync()
        for index in (0, 1):
            await self.produce("orders", index, 3)
            await self.produce("orders", index, 2, producer=0)
        await self.produce("jobs", 0, 2)
        await self.produce("prices", 0, 2, keys=2)
        await self.commit("billing", "orders", 0, 31)
        await self.commit("billing", "orders", 1, 32)
        session = ShareSession(self, "readers", ("jobs",), member="late")
        await session.join()
        await session.acknowledge(await session.fetch(3))
        await session.acknowledge(await session.fetch(2))
        await self.configure(2, "jobs", "retention.ms", "123456789")
        for _ in range(30):
            await _turn()

    # ---- requests

    async def create(self, name: str, partitions: int, configs: Mapping[str, str]) -> None:
        topic = {
            "name": name, "num_partitions": partitions, "replication_factor": 1, "assignments": [],
            "configs": [{"name": n, "value": v} for n, v in configs.items()],
        }  # fmt: skip
        answer = await self.client.call(19, 7, topics=[topic], timeout=1000, validate_only=False)
        assert not answer.topics[0].error_code, answer
        self.topic_ids[name] = answer.topics[0].topic_id

    async def configure(self, kind: int, name: str, setting: str, value: str) -> None:
        config = {"name": setting, "config_operation": 0, "value": value}
        resource = {"resource_type": kind, "resource_name": name, "configs": [config]}
        answer = await self.client.call(44, 1, resources=[resource], validate_only=False)
        assert not answer.responses[0].error_code, answer

    async def producer_id(self) -> int:
        answer = await self.client.call(
            22, 4, transactional_id=None, transaction_timeout=0, producer_id=-1, producer_epoch=-1
        )
        assert not answer.error_code
        return int(answer.producer_id)

    async def produce(
        self, topic: str, index: int, count: int, *,
        producer: int = -1, keys: int = 0, compression: int = Codec.NONE,
    ) -> None:  # fmt: skip
        """One batch, `STEP_MS` later than the one before it."""
        self.step += 1
        at = WALL_MS - 1_000_000 + STEP_MS * self.step // 4
        records = [
            batches.Record(
                n, at + n,
                b"key %d" % self.rng.randrange(keys) if keys else None,
                b"%s %d %s" % (topic.encode(), self.step, self.rng.randbytes(90).hex().encode()),
            )
            for n in range(count)
        ]  # fmt: skip
        key = producer, topic, index
        sequence = self.sequences.get(key, 0)
        data = batches.build(
            records, compression=compression, producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=sequence if producer >= 0 else -1,
        )  # fmt: skip
        self.sequences[key] = sequence + count
        answer = await self.client.call(
            0, 9, transactional_id=None, acks=-1, timeout=1000,
            topic_data=[
                {"name": topic, "partition_data": [{"index": index, "records": data}]}
            ],
        )  # fmt: skip
        code = answer.responses[0].partition_responses[0].error_code
        assert not code, (topic, index, code)

    async def commit(
        self, group: str, topic: str, index: int, offset: int, *,
        meta: str | None = None, generation: int = -1, member: str = "",
    ) -> None:  # fmt: skip
        one = {
            "partition_index": index, "committed_offset": offset, "committed_leader_epoch": -1,
            "committed_metadata": meta,
        }  # fmt: skip
        answer = await self.client.call(
            8, 9, group_id=group, generation_id_or_member_epoch=generation, member_id=member,
            group_instance_id=None, topics=[{"name": topic, "partitions": [one]}],
        )  # fmt: skip
        assert not answer.topics[0].partitions[0].error_code, answer


class ShareSession:
    """One member of a share group that acknowledges records one way after the other."""

    def __init__(
        self, story: Story, group: str, topics: tuple[str, ...], member: str = "member"
    ) -> None:
        self._story = story
        self._group = group
        self._topics = topics
        self._member = member
        self._epoch = 0
        self._client = story.life.client()
        self._count = 0

    async def join(self) -> None:
        answer = await self._client.call(
            76, 1, group_id=self._group, member_id=self._member, member_epoch=0, rack_id=None,
            subscribed_topic_names=list(self._topics),
        )  # fmt: skip
        assert not answer.error_code, answer

    async def fetch(self, records_max: int) -> list[tuple[str, int, int, int]]:
        topics = [self._topic(name, {0: [], 1: []}) for name in self._topics]
        answer = await self._client.call(
            78, 2, group_id=self._group, member_id=self._member, share_session_epoch=self._epoch,
            max_wait=0, min_bytes=0, max_bytes=1 << 20, max_records=records_max, batch_size=1,
            share_acquire_mode=1, is_renew_ack=False, forgotten_topics_data=[],
            topics=topics if self._epoch == 0 else [],
        )  # fmt: skip
        assert not answer.error_code, answer
        self._epoch += 1
        names = {self._story.topic_ids[name]: name for name in self._topics}
        return [
            (names[topic.topic_id], part.partition_index, one.first_offset, one.last_offset)
            for topic in answer.responses
            for part in topic.partitions
            for one in part.acquired_records
        ]

    async def acknowledge(self, taken: list[tuple[str, int, int, int]]) -> None:
        """Accept most, release some, reject some."""
        said: dict[str, dict[int, list[dict[str, Any]]]] = {}
        for topic, index, first, last in taken:
            for offset in range(first, last + 1):
                self._count += 1
                kind = (1, 1, 1, 2, 1, 3)[self._count % 6]
                one = {"first_offset": offset, "last_offset": offset, "acknowledge_types": [kind]}
                said.setdefault(topic, {}).setdefault(index, []).append(one)
        answer = await self._client.call(
            79, 2, group_id=self._group, member_id=self._member, share_session_epoch=self._epoch,
            is_renew_ack=False, topics=[self._topic(name, parts) for name, parts in said.items()],
        )  # fmt: skip
        assert not answer.error_code, answer
        self._epoch += 1

    def _topic(self, name: str, parts: Mapping[int, Any]) -> dict[str, Any]:
        return {
            "topic_id": self._story.topic_ids[name],
            "partitions": [
                {"partition_index": index, "acknowledgement_batches": said}
                for index, said in parts.items()
            ],
        }


def _join(member: str) -> dict[str, Any]:
    return {
        "group_id": "payments", "session_timeout": 30_000, "rebalance_timeout": 60_000,
        "member_id": member, "group_instance_id": None, "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"topics"}], "reason": None,
    }  # fmt: skip


async def _turn() -> None:
    await asyncio.sleep(0)
