"""One partition: who waits for which sync, what readers may see, faults, and what is kept."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

import pytest

from headrace.broker.partition import Partition
from headrace.broker.storage_faults import StorageFaults
from headrace.broker.topic_settings import TopicSettings
from headrace.broker.waits import Waits
from headrace.core.catalog import Topic
from headrace.core.types import WallMs
from headrace.log.api import CorruptLog, Disk, OffsetOutOfRange
from headrace.log.memory_disk import MemoryDisk, VirtualClock
from headrace.log.segments import SegmentedLog
from headrace.wire import batches
from headrace.wire.batches import Record

TIMEOUT = 10
FOLDER = "orders-0"


class SlowLog:
    """Counts its syncs, each of which waits for `let_go`."""

    fault = None

    def __init__(self) -> None:
        self.end_offset = self.durable_end = 0
        self.syncs = 0
        self.is_closed = False
        self.let_go = threading.Semaphore(0)

    def append(self, data: bytearray, headers: Any) -> int:
        self.end_offset += 1
        return self.end_offset - 1

    def close(self) -> None:
        self.is_closed = True

    def sync(self) -> None:
        end_offset = self.end_offset
        if end_offset == self.durable_end:
            return
        assert self.let_go.acquire(timeout=TIMEOUT)
        if self.is_closed:
            raise OSError(9, "Bad file descriptor")
        self.syncs += 1
        self.durable_end = end_offset


def made(
    open_log: Callable[..., Any],
    *,
    disk: Disk | None = None,
    settings: TopicSettings | None = None,
    fsync: bool = True,
) -> tuple[Partition, Waits]:
    waits = Waits(10)
    partition = Partition(
        Topic("orders", UUID(int=1), 1), 0, open_log, settings or TopicSettings(), waits,
        StorageFaults(VirtualClock()), disk or MemoryDisk(), fsync=fsync,
        producer_expiration_ms=1000, on_start_moved=[],
    )  # fmt: skip
    return partition, waits


def opened(*, fsync: bool = True) -> tuple[SlowLog, Partition, Waits]:
    log = SlowLog()
    return log, *made(lambda *_: log, fsync=fsync)


def on(disk: MemoryDisk, *, fsync: bool = True, **settings: Any) -> Partition:
    """A partition with a real log on a disk that can fail."""

    def open_log(given: TopicSettings, dropped: Any) -> SegmentedLog:
        return SegmentedLog(
            disk, FOLDER, segment_bytes=given.segment_bytes, segment_ms=given.segment_ms,
            dropped=dropped,
        )  # fmt: skip

    return made(open_log, disk=disk, settings=TopicSettings(**settings), fsync=fsync)[0]


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), TIMEOUT))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  # there is no event to wait for
        await asyncio.sleep(0.005)


def values(partition: Partition) -> list[bytes | None]:
    found: list[bytes | None] = []
    offset = partition.start_offset
    while offset < partition.high_watermark:
        piece = partition.read(offset, 1 << 20)
        found += [one.value for one in batches.records(piece.data) if one.offset >= offset]
        offset = piece.headers[-1].last_offset + 1
    return found


def put(partition: Partition, value: bytes, *, at: int = 0) -> int:
    return partition.append_records([Record(0, at, None, value)])


def append(partition: Partition) -> int:
    return partition.append_records([Record(0, 0, None, b"v")])


def test_one_sync_serves_all_who_came_before_it() -> None:
    async def go() -> None:
        log, partition, _ = opened()
        append(partition)
        first = asyncio.create_task(partition.durable())
        await asyncio.sleep(0.01)
        later = []
        for _ in range(5):
            append(partition)
            later.append(asyncio.create_task(partition.durable()))
        await asyncio.sleep(0.01)
        assert partition.high_watermark == 0
        log.let_go.release()
        await first
        assert partition.high_watermark == 1
        assert not any(task.done() for task in later)
        log.let_go.release()
        await asyncio.gather(*later)
        assert (partition.high_watermark, log.syncs) == (6, 2)
        await partition.durable()
        assert log.syncs == 2, "nothing new, nothing to sync"

    asyncio.run(go())


def test_what_nobody_waits_for_is_synced_and_shown_too() -> None:
    async def go() -> None:
        log, partition, waits = opened()
        log.let_go.release()
        reader = asyncio.create_task(waits.wait([partition.key], TIMEOUT * 1000))
        await asyncio.sleep(0)
        append(partition)
        assert await reader
        assert partition.high_watermark == 1

    asyncio.run(go())


def test_a_caller_that_goes_away_does_not_end_the_sync_of_others() -> None:
    async def go() -> None:
        log, partition, _ = opened()
        append(partition)
        gone, stays = (asyncio.create_task(partition.durable()) for _ in range(2))
        await asyncio.sleep(0.01)
        gone.cancel()
        await asyncio.sleep(0.01)
        log.let_go.release()
        await stays
        assert gone.cancelled()

    asyncio.run(go())


def test_without_fsync_an_append_is_durable_and_seen_at_once() -> None:
    async def go() -> None:
        log, partition, waits = opened(fsync=False)
        reader = asyncio.create_task(waits.wait([partition.key], TIMEOUT * 1000))
        await asyncio.sleep(0)
        append(partition)
        assert await reader
        await partition.durable()
        assert (partition.high_watermark, log.syncs) == (1, 0)

    asyncio.run(go())


def test_a_failed_sync_is_told_cut_off_and_over_without_a_restart(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def go() -> None:
        disk = MemoryDisk()
        partition = on(disk)
        put(partition, b"kept")
        await partition.durable()
        disk.failing.add("sync")
        put(partition, b"lost")
        cuts = partition.cuts
        with pytest.raises(OSError, match="orders-0 is not mended yet"):
            await partition.durable()
        for _ in range(3):
            with pytest.raises(OSError, match="orders-0 is not mended yet"):
                put(partition, b"refused")
        assert (partition.high_watermark, values(partition)) == (1, [b"kept"])
        disk.failing.clear()
        await until(lambda: partition.log.fault is None and partition.log.end_offset == 1)
        await until(lambda: "written again" in caplog.text)
        with pytest.raises(OSError, match="orders-0 gave up"):
            await partition.durable(cuts=cuts)
        assert put(partition, b"next") == 1
        await partition.durable()
        disk.crash(0.0)
        assert values(on(disk)) == [b"kept", b"next"]

    run(go)
    told = [one.getMessage() for one in caplog.records if one.levelname in {"ERROR", "WARNING"}]
    assert len(told) == 2
    assert told[0].startswith("cannot write to orders-0: Input/output error; clients are told so")
    assert told[1].startswith("orders-0 is written again, after ")


def test_without_fsync_a_failed_sync_loses_nothing_that_was_acknowledged() -> None:
    """The sync before a further segment fails; what it left out is written once more."""

    async def go() -> None:
        disk = MemoryDisk()
        partition = on(disk, fsync=False, segment_bytes=1024)
        put(partition, b"a" * 600)
        disk.failing.add("sync")
        with pytest.raises(OSError, match="Input/output"):
            put(partition, b"b" * 600)
        assert values(partition) == [b"a" * 600], "still read while the disk fails"
        disk.failing.clear()
        await until(lambda: partition.log.fault is None)
        await asyncio.sleep(0)
        await until(lambda: not partition.is_failing)
        put(partition, b"c" * 600)
        assert partition.cuts == 0
        disk.crash(0.0)
        again = on(disk, fsync=False)
        assert values(again) == [b"a" * 600], "sealed, so it is durable; the rest was not"

    run(go)


def test_space_that_is_back_is_used_at_once_and_the_fault_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def go() -> None:
        disk = MemoryDisk()
        partition = on(disk, fsync=False)
        put(partition, b"0")
        disk.fail_after(10)
        for _ in range(4):
            with pytest.raises(OSError, match="No space"):
                put(partition, b"lost")
        disk.fail_after(None)
        assert put(partition, b"1") == 1
        assert values(partition) == [b"0", b"1"]

    run(go)
    first, second = (one.getMessage() for one in caplog.records if one.levelno > 20)
    assert first == (
        "cannot write to orders-0: No space left on device; clients are told so and try again. "
        "Free space, or raise the quota or file size limit; no restart is needed."
    )
    assert second == "orders-0 is written again, after 4 failures in 0 ms"


@pytest.mark.parametrize("messages", [1, 3])
def test_so_many_messages_force_a_sync_before_the_answer(messages: int) -> None:
    async def go() -> None:
        disk = MemoryDisk()
        partition = on(disk, fsync=False, flush_messages=messages)
        for n in range(7):
            put(partition, b"%d" % n)
            await partition.durable()
            assert partition.log.end_offset - partition.log.durable_end < messages
        assert partition.log.durable_end == 7 - 7 % messages
        assert partition.high_watermark == 7

    run(go)


def test_what_was_appended_is_synced_after_so_long() -> None:
    async def go() -> None:
        partition = on(MemoryDisk(), fsync=False, flush_ms=20)
        put(partition, b"v")
        await partition.durable()
        assert partition.log.durable_end == 0
        await until(lambda: partition.log.durable_end == 1)

    run(go)


def test_changed_settings_hold_from_the_next_append_on() -> None:
    async def go() -> None:
        disk = MemoryDisk()
        partition = on(disk, fsync=False)
        put(partition, b"a" * 900, at=0)
        partition.configure(TopicSettings(segment_bytes=1024))
        put(partition, b"b" * 900, at=0)
        partition.configure(TopicSettings(segment_ms=100))
        put(partition, b"c", at=100)
        put(partition, b"d", at=101)
        bases = [one.base_offset for one in partition.log.segments()]
        assert bases == [0, 1, 3]
        partition.configure(TopicSettings(flush_messages=1))
        assert partition.high_watermark == 4, "what was seen stays seen"
        await until(lambda: partition.log.durable_end == 4)
        disk.failing.add("sync")
        put(partition, b"e")
        assert partition.high_watermark == 4
        with pytest.raises(OSError, match="orders-0 is not mended yet"):
            await partition.durable()
        disk.failing.clear()
        await until(lambda: not partition.is_failing)
        assert values(partition)[-1] == b"d"

    run(go)


def test_old_segments_expire_and_their_files_go_after_a_delay() -> None:
    async def go() -> None:
        disk = MemoryDisk()
        partition = on(disk, fsync=False, segment_bytes=1024, retention_ms=1000,
                       file_delete_delay_ms=30)  # fmt: skip
        moved: list[int] = []
        partition.on_start_moved.append(lambda one: moved.append(one.start_offset))
        for n in range(4):
            put(partition, b"v" * 900, at=500 * n)
        assert partition.expire(WallMs(1000)) == 0
        assert partition.expire(WallMs(1501)) == 2
        assert (partition.start_offset, moved) == (2, [2])
        names = disk.list(FOLDER)
        assert f"{0:020d}.log.deleted" in names
        assert f"{0:020d}.log" not in names
        assert partition.expire(WallMs(9999)) == 2, "the active segment goes too"
        assert (partition.start_offset, partition.high_watermark, moved) == (4, 4, [2, 4])
        assert partition.expire(WallMs(99999)) == 0
        await until(lambda: not any(name.endswith(".deleted") for name in disk.list(FOLDER)))
        assert put(partition, b"next") == 4
        assert on(disk).log.start_offset == 4

    run(go)


def test_records_are_deleted_up_to_an_offset() -> None:
    async def go() -> None:
        partition = on(MemoryDisk(), fsync=False, segment_bytes=1024)
        moved: list[int] = []
        partition.on_start_moved.append(lambda one: moved.append(one.start_offset))
        for n in range(4):
            put(partition, b"%d" % n * 900)
        assert [partition.delete_records(before) for before in (2, 1, 4)] == [2, 2, 4]
        assert moved == [2, 4]
        assert len(partition.log.segments()) == 1
        for wrong in (-1, 5):
            with pytest.raises(OffsetOutOfRange):
                partition.delete_records(wrong)

    run(go)


def test_the_journal_of_an_internal_topic_does_not_expire() -> None:
    async def go() -> None:
        partition = on(MemoryDisk(), fsync=False, segment_bytes=1024, retention_ms=1)
        partition.topic = Topic("__share_group_state", UUID(int=1), 1)
        for _ in range(4):
            put(partition, b"v" * 900)
        assert partition.expire(WallMs(1 << 40)) == 0
        partition.log.advance_start(2)
        assert partition.expire(WallMs(1 << 40)) == 2

    run(go)


def test_those_who_wait_for_a_partition_that_is_closed_are_told() -> None:
    async def go() -> None:
        log, partition, _ = opened()
        append(partition)
        waiting = asyncio.create_task(partition.durable())
        await asyncio.sleep(0)
        partition.close()
        log.let_go.release()
        with pytest.raises(OSError, match="orders-0 is closed"):
            await waiting
        with pytest.raises(OSError, match="orders-0 is closed"):
            append(partition)

    run(go)


def test_silent_producers_are_forgotten() -> None:
    async def go() -> None:
        partition = on(MemoryDisk(), fsync=False)
        for producer, at in ((1, 5000), (2, 5500)):
            data = bytearray(
                batches.build([Record(0, at, None, b"v")], producer_id=producer,
                              producer_epoch=0, base_sequence=0)
            )  # fmt: skip
            partition.append(data, batches.headers(data))
        partition.expire(WallMs(5999))
        assert len(partition.log.producers) == 2
        partition.expire(WallMs(6000))
        assert len(partition.log.producers) == 1

    run(go)


def test_a_log_that_cannot_be_opened_fails_its_users_and_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def open_log(*_: Any) -> SegmentedLog:
        raise CorruptLog("it is damaged; restore it")

    partition, _ = made(open_log)
    for _ in range(3):
        with pytest.raises(OSError, match="orders-0 cannot be opened: it is damaged"):
            assert partition.start_offset
    assert len(caplog.records) == 1
    partition.settle()
    partition.close()
