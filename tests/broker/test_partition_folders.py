"""All partitions: what a start opens after which stop, and what outlives a topic."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

import pytest

from headrace.broker.config import Config
from headrace.broker.partitions import Partition, Partitions
from headrace.broker.waits import Waits
from headrace.core.catalog import Catalog, CreateTopic, DeleteTopic
from headrace.core.errors import Refused
from headrace.core.types import MonoMs, Now, WallMs
from headrace.log.checkpoints import Extent
from headrace.log.manifest import CATALOGUE, START_OFFSETS
from headrace.log.memory_disk import MemoryDisk, VirtualClock
from headrace.log.recovery_point import NO_CLAIM, read_claim
from headrace.log.small_files import write_file
from headrace.wire.batches import Record

MARK = ".kafka_cleanshutdown"
NOW = Now(MonoMs(0), WallMs(0))


def change(catalog: Catalog, command: CreateTopic | DeleteTopic) -> None:
    decided = catalog.decide(command, NOW)
    assert not isinstance(decided, Refused)
    for event in decided.events:
        catalog.apply(event)


def catalog_with(*names: str) -> Catalog:
    catalog = Catalog()
    for number, name in enumerate(names, 1):
        change(catalog, CreateTopic(name, UUID(int=number), 2, {}))
    return catalog


def started(disk: MemoryDisk, catalog: Catalog, **settings: Any) -> Partitions:
    partitions = Partitions(disk, Config(**settings), VirtualClock(), Waits(10))
    partitions.open_all(catalog)
    return partitions


def found(partitions: Partitions, index: int, number: int = 1) -> Partition:
    partition = partitions.get(UUID(int=number), index)
    assert partition is not None
    return partition


def put(partition: Partition, count: int = 1) -> None:
    for _ in range(count):
        partition.append_records([Record(0, 0, None, b"v")])


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 60))


def test_after_an_orderly_stop_a_log_is_opened_when_it_is_used() -> None:
    async def go() -> None:
        disk, catalog = MemoryDisk(), catalog_with("orders")
        partitions = started(disk, catalog)
        put(found(partitions, 0))
        assert not disk.exists(MARK)
        await partitions.close({CATALOGUE: Extent(0, 1)})
        assert disk.exists(MARK)
        disk.crash(0.0)
        again = started(disk, catalog)
        assert not disk.exists(MARK)
        assert [partition.is_open for partition in again] == [False, False]
        assert found(again, 0).high_watermark == 1
        assert [partition.is_open for partition in again] == [True, False]
        await again.close()
        assert disk.exists(MARK)

    run(go)


def test_after_any_other_stop_every_log_is_opened_and_a_damaged_one_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def go() -> None:
        disk, catalog = MemoryDisk(), catalog_with("orders")
        partitions = started(disk, catalog, segment_bytes=1024)
        put(found(partitions, 1), 60)
        disk.crash(1.0)
        again = started(disk, catalog)
        assert all(partition.is_open for partition in again)
        assert found(again, 1).high_watermark == 60
        disk.crash(1.0)
        disk.remove(f"orders-1/{found(partitions, 1).log.segments()[1].base_offset:020d}.log")
        last = started(disk, catalog)
        assert found(last, 0).high_watermark == 0
        refused = found(last, 1)
        assert "the segments between them are missing" in str(refused.refused)
        for _ in range(2):
            with pytest.raises(OSError, match="orders-1 is refused: orders-1/0"):
                put(refused)
        assert caplog.text.count("for partition orders-1") == 1

    run(go)


def test_what_cannot_be_synced_leaves_no_mark(caplog: pytest.LogCaptureFixture) -> None:
    async def go() -> None:
        disk, catalog = MemoryDisk(), catalog_with("orders")
        partitions = started(disk, catalog)
        for index in (0, 1):
            put(found(partitions, index))
        disk.failing.add("sync")
        await partitions.close()
        disk.failing.clear()
        assert not disk.exists(MARK)
        assert "not everything was synced: [Errno 5] Input/output error" in caplog.text
        disk.crash(1.0)
        assert found(started(disk, catalog), 0).high_watermark == 1

    run(go)


def test_deleted_records_stay_deleted_whatever_happens() -> None:
    async def go() -> None:
        disk, catalog = MemoryDisk(), catalog_with("orders")
        settings: dict[str, Any] = {"durability": "fsync"}
        partitions = started(disk, catalog, **settings)
        partition = found(partitions, 0)
        put(partition, 5)
        await partition.durable()
        assert await partitions.delete_records({partition: 3}) == {partition: 3}
        disk.crash(0.0)
        again = started(disk, catalog, **settings)
        assert (found(again, 0).start_offset, found(again, 0).high_watermark) == (3, 5)
        await again.close()
        assert found(started(disk, catalog, **settings), 0).start_offset == 3

    run(go)


def test_a_topic_of_the_same_name_begins_at_zero() -> None:
    async def go() -> None:
        for crashes in (False, True):
            disk, catalog = MemoryDisk(), catalog_with("orders")
            partitions = started(disk, catalog)
            put(found(partitions, 0), 5)
            await partitions.delete_records({found(partitions, 0): 3})
            topic = catalog.topics["orders"]
            change(catalog, DeleteTopic(topic.id))
            if crashes:
                partitions = started(disk, catalog)
            else:
                await partitions.delete_topic(topic)
            change(catalog, CreateTopic("orders", UUID(int=9), 2, {}))
            await partitions.open_topic(catalog.topics["orders"], catalog)
            fresh = found(partitions, 0, 9)
            assert (fresh.start_offset, fresh.high_watermark) == (0, 0)
            put(fresh)
            assert fresh.high_watermark == 1

    run(go)


def test_start_offsets_that_moved_are_told() -> None:
    async def go() -> None:
        partitions = started(MemoryDisk(), catalog_with("orders"))
        moved: list[tuple[str, int]] = []
        partitions.on_start_moved.append(lambda one: moved.append((one.name, one.start_offset)))
        put(found(partitions, 1), 2)
        await partitions.delete_records({found(partitions, 1): 1})
        assert moved == [("orders-1", 1)]

    run(go)


class CountsStarts(MemoryDisk):
    """Counts how often the start offsets are written, or refuses that."""

    writes = 0
    fails = False

    def write(self, path: str, data: bytes, *, durable: bool = True) -> None:
        if path == START_OFFSETS:
            self.writes += 1
            if self.fails:
                raise OSError(28, "No space left on device")
        super().write(path, data, durable=durable)


def test_starts_of_many_partitions_are_kept_with_one_write_before_they_move() -> None:
    async def go() -> None:
        disk, catalog = CountsStarts(), catalog_with("orders")
        partitions = started(disk, catalog)
        wanted = {found(partitions, index): 2 + index for index in (0, 1)}
        for partition in wanted:
            put(partition, 5)
        disk.fails, before = True, disk.writes
        refused = await partitions.delete_records(wanted)
        assert [type(one) for one in refused.values()] == [OSError, OSError]
        assert [one.start_offset for one in wanted] == [0, 0]
        disk.fails = False
        assert await partitions.delete_records(wanted) == wanted
        assert disk.writes == before + 2
        assert await partitions.delete_records(dict.fromkeys(wanted, 1)) == wanted
        assert disk.writes == before + 2, "no start moved"

    run(go)


def test_a_topic_deleted_while_its_records_are_leaves_no_start_to_the_next() -> None:
    async def go() -> None:
        disk, catalog = MemoryDisk(), catalog_with("orders")
        partitions = started(disk, catalog)
        put(found(partitions, 0), 5)
        topic = catalog.topics["orders"]
        with partitions._kept_starts._lock:  # whoever gets it first
            deleting = asyncio.ensure_future(partitions.delete_records({found(partitions, 0): 3}))
            await asyncio.sleep(0)
            change(catalog, DeleteTopic(topic.id))
            gone = asyncio.ensure_future(partitions.delete_topic(topic))
            await asyncio.sleep(0)
        await gone
        (outcome,) = (await deleting).values()
        assert isinstance(outcome, OSError)
        change(catalog, CreateTopic("orders", UUID(int=9), 2, {}))
        await partitions.open_topic(catalog.topics["orders"], catalog)
        assert found(partitions, 0, 9).start_offset == 0
        assert read_claim(disk, "orders-0")[1] == NO_CLAIM, "nor a claim about the old log"

    run(go)


@pytest.mark.parametrize("state", ["damaged", "missing"])
def test_a_folder_that_names_no_topic_makes_room_for_a_new_one(
    state: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The folder of a deleted topic may stay where the disk fails; a damaged one tells no id."""

    async def go() -> None:
        disk = MemoryDisk()
        for number in (1, 2):
            catalog = Catalog()
            change(catalog, CreateTopic("orders", UUID(int=number), 1, {}))
            partitions = started(disk, Catalog())
            await partitions.open_topic(catalog.topics["orders"], catalog)
            assert found(partitions, 0, number).high_watermark == 0
            put(found(partitions, 0, number), number)
            await partitions.close()
            if state == "missing":
                disk.remove("orders-0/partition.metadata")
            else:
                disk.write("orders-0/partition.metadata", b"version: 0")
        partitions = started(disk, Catalog())
        await partitions.open_topic(catalog_with("orders").topics["orders"], catalog)
        assert found(partitions, 0).high_watermark == 0
        await partitions.close()
        for aside in ("orders.unknown-0-stray", "orders.unknown1-0-stray"):
            assert f"orders-0: the folder belongs to no topic; renamed to {aside}" in caplog.text
            assert disk.size(f"{aside}/{0:020d}.log")

    run(go)


@pytest.mark.parametrize(
    "left", [("partition.metadata.new",), (f"{0:020d}.log.new",), (f"{0:020d}.log",), ()]
)
def test_a_folder_that_a_kill_left_half_made_is_made_whole(
    left: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    async def go() -> None:
        disk, catalog = MemoryDisk(), catalog_with("orders")
        for name in left:
            disk.write(f"orders-0/{name}", b"" if name.endswith(".log") else b"ver")
        if "partition.metadata.new" in left:
            disk.write(f"orders-0/{0:020d}.log", b"")
        partitions = started(disk, catalog)
        assert found(partitions, 0).high_watermark == 0
        await partitions.close()
        folders = [name for name in disk.list("") if name.startswith("orders")]
        assert folders == ["orders-0", "orders-1"]
        assert not caplog.records

    run(go)


def test_no_topic_is_created_in_the_place_of_a_folder_of_a_newer_release() -> None:
    async def go() -> None:
        disk, catalog = MemoryDisk(), catalog_with("orders")
        partitions = started(disk, Catalog())
        write_file(disk, "orders-0/partition.metadata", "version: 7\ntopic_id: AAAA\n")
        before = disk.read("orders-0/partition.metadata")
        with pytest.raises(OSError, match="was written by a newer Headrace"):
            await partitions.open_topic(catalog.topics["orders"], catalog)
        assert disk.read("orders-0/partition.metadata") == before

    run(go)
