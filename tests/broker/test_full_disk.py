"""Administration while the disk is full: an error that names the cause, and no lost connection."""

import errno
import logging
from typing import Any
from uuid import UUID, uuid4

import pytest

from headrace.broker.handlers import alter_configs, create_partitions, metadata, topics
from headrace.broker.request import Raw, Request
from headrace.broker.runtime import StorageFault
from headrace.core.catalog import AddPartitions, CreateTopic, DeleteTopic, Topic
from headrace.log import small_files
from headrace.log.manifest import NAME as MANIFEST
from headrace.log.manifest import ListedTopic, Manifest
from headrace.log.memory_disk import MemoryDisk, MemoryFile
from headrace.wire import batches, codec

from .inside_rig import Inside, play
from .partition_rig import until
from .test_runtime import rebuilt

STORAGE_ERROR = 56
NAMED = {"name": "new", "num_partitions": 1, "replication_factor": 1, "assignments": [],
         "configs": []}  # fmt: skip
CREATE: tuple[Any, ...] = (topics, 19, 7, {"topics": [NAMED], "timeout": 0, "validate_only": False})
DELETE: tuple[Any, ...] = (
    topics, 20, 6, {"topics": [{"name": "orders", "topic_id": None}], "timeout": 0}
)  # fmt: skip
GROW: tuple[Any, ...] = (
    create_partitions, 37, 3,
    {"topics": [{"name": "orders", "count": 2, "assignments": None}], "timeout": 0,
     "validate_only": False},
)  # fmt: skip
CONFIGURE: tuple[Any, ...] = (
    alter_configs, 44, 1,
    {"resources": [{"resource_type": 2, "resource_name": "orders", "configs": [
        {"name": "retention.ms", "config_operation": 0, "value": "5"}]}], "validate_only": False},
)  # fmt: skip
METADATA: tuple[Any, ...] = (
    metadata, 3, 12,
    {"topics": [{"topic_id": None, "name": "new"}], "allow_auto_topic_creation": True,
     "include_topic_authorized_operations": False},
)  # fmt: skip


@pytest.mark.parametrize("asked", [CREATE, DELETE, GROW, CONFIGURE, METADATA])
def test_an_administrator_reads_why(asked: tuple[Any, int, int, dict[str, Any]]) -> None:
    api, key, version, fields = asked
    disk = MemoryDisk()

    async def ask(broker: Inside) -> Any:
        body = codec.encode_request(key, version, fields)
        request = Request(key, version, 1, "c", "::1", 1, memoryview(body))
        answer = await api.handle(request, broker.services)
        assert not isinstance(answer, Raw)
        ((part,),) = (answer[name] for name in ("topics", "responses", "results") if name in answer)
        return part

    async def scene(broker: Inside) -> None:
        await broker.services.topics.create(CreateTopic("orders", uuid4(), 1, {}))
        disk.fail_after(0)
        failed = await ask(broker)
        assert failed["error_code"] == STORAGE_ERROR
        assert api is metadata or "No space left on device" in failed["error_message"]
        assert api is metadata or "free space" in failed["error_message"]
        disk.fail_after(None)
        broker.clock.advance(10_000)
        await rebuilt(broker.services.topics.journal)
        done = await ask(broker)
        assert done["error_code"] in {0, 37}, "a partition may have been added before the failure"

    play(lambda: Inside(disk), scene)


def test_a_topic_that_could_be_neither_opened_nor_deleted_is_opened_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = MemoryDisk()

    async def scene(broker: Inside) -> None:
        services = broker.services
        opening = services.partitions.open_topic

        async def fail(topic: Any, catalog: Any) -> None:
            disk.fail_after(0)
            await opening(topic, catalog)
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(services.partitions, "open_topic", fail)
        with pytest.raises(OSError, match="No space"):
            await services.topics.create(CreateTopic("new", uuid4(), 1, {}))
        disk.fail_after(None)
        broker.clock.advance(10_000)
        await rebuilt(services.topics.journal)
        monkeypatch.setattr(services.partitions, "open_topic", opening)
        (topic,) = (one for one in services.catalog.topics.values() if one.name == "new")
        await services.topics._open_missing(topic.id)
        assert services.partition("new", 0) is not None

    play(lambda: Inside(disk), scene)


class FullDisk(MemoryDisk):
    """A disk without room for the files in `full`, as long as `filler` exists."""

    def __init__(self, filler: str) -> None:
        super().__init__()
        self.filler = filler
        self.full: tuple[str, ...] = ()

    def write(self, path: str, data: bytes, *, durable: bool = True) -> None:
        self._require_room(path)
        super().write(path, data, durable=durable)

    def _require_room(self, path: str) -> None:
        if path.startswith(self.full) and self.exists(self.filler):
            raise OSError(errno.ENOSPC, "No space left on device")

    def open(self, path: str) -> MemoryFile:
        self._require_room(path)
        return super().open(path)


def appended(broker: Inside, name: str, count: int) -> None:
    partition = broker.services.partition(name, 0)
    assert partition is not None
    for number in range(count):
        partition.append_records([batches.Record(number, 0, None, b"x" * 50)])


def test_deleting_a_topic_frees_space_although_the_manifest_cannot_be_written() -> None:
    disk = FullDisk("orders-0")

    async def scene(broker: Inside) -> None:
        id_ = uuid4()
        await broker.services.topics.create(CreateTopic("orders", id_, 1, {}))
        disk.full = (MANIFEST,)
        await broker.services.topics.delete(DeleteTopic(id_))
        assert not [path for path in disk.list("") if path.startswith("orders")]
        assert "orders" not in {one.name for one in Manifest(disk).topics.values()}

    play(lambda: Inside(disk), scene)


def test_a_broker_starts_although_the_manifest_cannot_be_written(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = FullDisk(MANIFEST)

    async def scene(broker: Inside) -> None:
        del broker

    play(lambda: Inside(disk), scene)
    Manifest(disk).put_topic(str(UUID(int=5)), ListedTopic(1, "deleted"))
    disk.full = (MANIFEST,)
    with caplog.at_level(logging.WARNING):
        play(lambda: Inside(disk), scene)
    assert "headrace.manifest: cannot be written now: No space left on device" in caplog.text


def test_a_broker_starts_on_a_folder_of_an_earlier_release_and_marks_it_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = FullDisk("filler")

    async def create(broker: Inside) -> None:
        await broker.services.topics.create(CreateTopic("orders", uuid4(), 1, {}))

    async def delete(broker: Inside) -> None:
        assert not Manifest(disk).journals_with_points
        disk.remove("filler")
        await broker.services.topics.delete(
            DeleteTopic(broker.services.catalog.topics["orders"].id)
        )
        assert Manifest(disk).journals_with_points

    play(lambda: Inside(disk), create)
    text = small_files.read_file(disk, MANIFEST).text.replace(" recovery-points", "")
    small_files.write_file(disk, MANIFEST, text)
    disk.write("filler", b"")
    disk.full = (MANIFEST,)
    play(lambda: Inside(disk), delete)
    assert "__cluster_metadata-0: cannot be marked now: No space left" in caplog.text


def test_a_torn_end_that_cannot_be_copied_keeps_no_other_partition_from_starting() -> None:
    disk = FullDisk("full")

    async def fill(broker: Inside) -> None:
        for name in ("torn", "whole"):
            await broker.services.topics.create(CreateTopic(name, uuid4(), 1, {}))
            appended(broker, name, 3)
        disk.kill()

    play(lambda: Inside(disk), fill)
    disk.remove(".kafka_cleanshutdown")
    path = f"torn-0/{0:020d}.log"
    disk.write(path, disk.read(path) + b"torn")
    disk.write("full", b"")
    disk.full = (f"{path}.torn",)

    async def scene(broker: Inside) -> None:
        torn, whole = (broker.services.partition(name, 0) for name in ("torn", "whole"))
        assert torn is not None
        assert torn.is_failing
        assert torn.refused is None
        assert whole is not None
        assert whole.log.end_offset == 3
        with pytest.raises(OSError, match="No space"):
            _ = torn.log
        disk.remove("full")
        await broker.services.write_probe.probe()
        assert torn.log.end_offset == 3
        assert not torn.is_failing

    play(lambda: Inside(disk), scene)


def test_a_partition_that_a_full_disk_kept_from_being_made_is_made_later() -> None:
    disk = FullDisk("filler")

    async def begin_full(broker: Inside) -> None:
        partition = broker.services.partition("orders", 1)
        assert partition is not None
        assert partition.refused is None
        with pytest.raises(OSError, match="No space"):
            partition.append_records([batches.Record(0, 0, None, b"x")])
        assert _listed(disk, "orders") == 1
        disk.remove("filler")
        partition.append_records([batches.Record(0, 0, None, b"x")])
        assert _listed(disk, "orders") == 2

    async def begin_again(broker: Inside) -> None:
        partition = broker.services.partition("orders", 1)
        assert partition is not None
        assert partition.refused is None
        assert partition.log.end_offset == 1

    play(lambda: Inside(disk), lambda broker: grow_without_room(broker, disk))
    for scene in (begin_full, begin_again):
        play(lambda: Inside(disk), scene)


async def grow_without_room(broker: Inside, disk: FullDisk) -> None:
    """Create orders, and add a second partition whose folder cannot be made."""
    await broker.services.topics.create(CreateTopic("orders", uuid4(), 1, {}))
    disk.write(disk.filler, b"")
    disk.full = ("orders-1/partition.metadata",)
    with pytest.raises(OSError, match="No space"):
        await broker.services.topics.add_partitions(AddPartitions("orders", 2))


@pytest.mark.parametrize("change", ["growth", "deletion that is undone"])
def test_a_partition_that_was_not_made_is_not_listed_by(change: str) -> None:
    disk = FullDisk("filler")

    async def change_topic(broker: Inside) -> None:
        topics = broker.services.topics
        disk.remove("filler")
        if change == "growth":
            await topics.add_partitions(AddPartitions("orders", 3))
            assert topics.partition("orders", 2) is not None
        else:
            await topics.partitions.begin_deletion(topics.catalog.topics["orders"])
            assert _entry(disk, "orders") == (1, "orders", True)
            await topics.partitions.cancel_deletion(topics.catalog.topics["orders"])
        assert _entry(disk, "orders") == (1, "orders", False)

    async def begin_again(broker: Inside) -> None:
        count = broker.services.catalog.topics["orders"].partitions
        opened = [broker.services.partition("orders", n) for n in range(count)]
        assert [each is not None and each.refused for each in opened] == [None] * count
        assert _listed(disk, "orders") == count

    play(lambda: Inside(disk), lambda broker: grow_without_room(broker, disk))
    for scene in (change_topic, begin_again):
        play(lambda: Inside(disk), scene)


def test_a_partition_made_late_is_listed_with_those_added_before() -> None:
    disk = FullDisk("filler")

    async def use(broker: Inside) -> None:
        disk.remove("filler")
        await broker.services.topics.add_partitions(AddPartitions("orders", 3))
        partition = broker.services.partition("orders", 1)
        assert partition is not None
        assert partition.log.end_offset == 0
        assert _listed(disk, "orders") == 3

    play(lambda: Inside(disk), lambda broker: grow_without_room(broker, disk))
    play(lambda: Inside(disk), use)


def test_a_topic_kept_at_a_start_on_a_full_disk_is_listed_with_what_is_made() -> None:
    """The mark of its deletion, which a crash interrupted, counted a partition without a folder."""
    disk = FullDisk("filler")

    async def begin_full(broker: Inside) -> None:
        del broker
        assert _entry(disk, "orders") == (1, "orders", False)

    play(lambda: Inside(disk), lambda broker: grow_without_room(broker, disk))
    (topic_id,) = (id_ for id_, topic in Manifest(disk).topics.items() if topic.name == "orders")
    Manifest(disk).begin_deletion(topic_id, ListedTopic(2, "orders"))
    play(lambda: Inside(disk), begin_full)


def test_the_use_of_an_unmade_partition_keeps_the_mark_of_a_deletion() -> None:
    disk = FullDisk("filler")

    async def delete(broker: Inside) -> None:
        topics = broker.services.topics
        topic, partition = topics.catalog.topics["orders"], topics.partition("orders", 1)
        assert partition is not None
        disk.remove("filler")
        await topics.partitions.begin_deletion(topic)
        files = disk.list("orders-1")
        with pytest.raises(OSError, match="is being deleted"):
            _ = partition.log
        assert _entry(disk, "orders") == (1, "orders", True)
        assert disk.list("orders-1") == files
        await topics.partitions.cancel_deletion(topic)
        assert partition.log.end_offset == 0
        assert _entry(disk, "orders") == (2, "orders", False)

    play(lambda: Inside(disk), lambda broker: grow_without_room(broker, disk))
    play(lambda: Inside(disk), delete)


def test_a_deleted_topic_leaves_no_unmade_partition_behind() -> None:
    disk = FullDisk("filler")

    async def delete(broker: Inside) -> None:
        topics = broker.services.topics
        assert topics.partitions._unmade
        await topics.delete(DeleteTopic(topics.catalog.topics["orders"].id))
        assert not topics.partitions._unmade
        assert not topics.partitions._deletions

    play(lambda: Inside(disk), lambda broker: grow_without_room(broker, disk))
    play(lambda: Inside(disk), delete)


async def create_and_fail(broker: Inside, monkeypatch: pytest.MonkeyPatch) -> Topic:
    """Create a topic; then let the catalogue's journal fail until `monkeypatch.undo`."""
    topics = broker.services.topics
    topic = await topics.create(CreateTopic("orders", uuid4(), 1, {}))
    assert isinstance(topic, Topic)

    def fail(batch: Any) -> bool:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(topics.journal, "_append", fail)
    return topic


def test_a_topic_whose_deletion_is_not_in_the_journal_loses_its_mark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headrace.broker.topics._OPEN_AGAIN_SECONDS", 0.01)
    disk = MemoryDisk()

    async def scene(broker: Inside) -> None:
        topics = broker.services.topics
        topic = await create_and_fail(broker, monkeypatch)
        with pytest.raises(StorageFault):
            await topics.delete(DeleteTopic(topic.id))
        assert _entry(disk, "orders")[2]
        monkeypatch.undo()
        await until(lambda: not _entry(disk, "orders")[2])
        assert topics.catalog.topics["orders"] == topic
        assert not topics.partitions._deletions
        appended(broker, "orders", 1)

    play(lambda: Inside(disk), scene)


def test_deletions_repeated_while_the_journal_fails_wait_for_it_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = MemoryDisk()

    async def scene(broker: Inside) -> None:
        topics = broker.services.topics
        topic = await create_and_fail(broker, monkeypatch)
        for _ in range(3):
            with pytest.raises(StorageFault):
                await topics.delete(DeleteTopic(topic.id))
        assert len(topics._openings) == 1
        monkeypatch.undo()

    play(lambda: Inside(disk), scene)


def _entry(disk: MemoryDisk, name: str) -> tuple[int, str, bool]:
    (topic,) = (topic for topic in Manifest(disk).topics.values() if topic.name == name)
    return topic.partitions, topic.name, topic.is_deleting


def _listed(disk: MemoryDisk, name: str) -> int:
    return _entry(disk, name)[0]
