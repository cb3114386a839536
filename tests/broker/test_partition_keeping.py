"""One partition: what is kept of it, its end, and a log that cannot be opened."""

import asyncio
import errno
import threading
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from headrace.broker.topic_settings import TopicSettings
from headrace.core.catalog import Topic
from headrace.core.types import WallMs
from headrace.log.api import CorruptLog, OffsetOutOfRange
from headrace.log.memory_disk import MemoryDisk
from headrace.log.os_disk import OsDisk, OsFile
from headrace.log.producers import Duplicate, ProducerLimit
from headrace.log.segments import SegmentedLog
from headrace.wire import batches
from headrace.wire.batches import Record

from .partition_rig import (
    FOLDER,
    TIMEOUT,
    append,
    made,
    on,
    opened,
    put,
    run,
    until,
    values,
)


def test_old_segments_expire_and_their_files_go_after_a_delay() -> None:
    async def go() -> None:
        disk = MemoryDisk()
        partition = on(disk, fsync=False, segment_bytes=1024, retention_ms=1000,
                       file_delete_delay_ms=30)  # fmt: skip
        moved: list[int] = []
        partition.on_start_moved.append(lambda one: moved.append(one.start_offset))
        for n in range(4):
            put(partition, b"v" * 900, at=500 * n)
        assert await partition.expire(WallMs(1000)) == 0
        assert await partition.expire(WallMs(1501)) == 2
        assert (partition.start_offset, moved) == (2, [2])
        names = disk.list(FOLDER)
        assert f"{0:020d}.log.deleted" in names
        assert f"{0:020d}.log" not in names
        assert await partition.expire(WallMs(9999)) == 2, "the active segment goes too"
        assert (partition.start_offset, partition.high_watermark, moved) == (4, 4, [2, 4])
        assert await partition.expire(WallMs(99999)) == 0
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
        starts = []
        for before in (2, 1, 4):
            partition.require_deletable(before)
            partition.log.allow_drop(before)
            starts.append(await partition.begin_at(before))
        assert starts == [2, 2, 4]
        assert moved == [2, 4]
        assert len(partition.log.segments()) == 1
        for wrong in (-1, 5):
            with pytest.raises(OffsetOutOfRange):
                partition.require_deletable(wrong)

    run(go)


def test_many_segments_expire_in_portions_until_the_partition_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def go() -> None:
        disk = MemoryDisk()
        partition = on(disk, fsync=False, segment_bytes=100, retention_ms=1)
        for n in range(120):
            put(partition, b"v" * 60, at=n)
        counts: list[int] = []
        drop = SegmentedLog.drop_segments

        def counted(log: SegmentedLog, until: int, most: int = 0) -> int:
            counts.append(drop(log, until, most))
            if len(counts) == 2:
                partition.close()
            return counts[-1]

        monkeypatch.setattr(SegmentedLog, "drop_segments", counted)
        with pytest.raises(OSError, match="orders-0 is closed"):
            await partition.expire(WallMs(1 << 40))
        assert counts == [50, 50]
        assert partition.log.start_offset == 120, "the start moved at once"
        assert on(disk).log.segments()[0].base_offset == 120

    run(go)


def test_the_journal_of_an_internal_topic_does_not_expire() -> None:
    async def go() -> None:
        partition = on(MemoryDisk(), fsync=False, segment_bytes=1024, retention_ms=1)
        partition.topic = Topic("__share_group_state", UUID(int=1), 1)
        for _ in range(4):
            put(partition, b"v" * 900)
        assert await partition.expire(WallMs(1 << 40)) == 0
        partition.log.advance_start(2)
        assert await partition.expire(WallMs(1 << 40)) == 2

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


def from_producer(producer: int, at: int) -> bytearray:
    record = Record(0, at, None, b"v")
    return bytearray(
        batches.build([record], producer_id=producer, producer_epoch=0, base_sequence=0)
    )


def test_silent_producers_are_forgotten() -> None:
    async def go() -> None:
        partition = on(MemoryDisk(), fsync=False)
        for producer, at in ((1, 5000), (2, 5500)):
            data = from_producer(producer, at)
            partition.append(data, batches.headers(data))
        for now, count in ((5300, 2), (6299, 2), (6300, 1), (6499, 1), (6500, 0)):
            await partition.expire(WallMs(now))
            assert len(partition.log.producers) == count, now

    run(go)


@pytest.mark.parametrize("is_set_before_the_start", [False, True])
def test_a_clock_that_is_set_beside_a_start_has_no_producer_forgotten(
    is_set_before_the_start: bool,
) -> None:
    """The batches of two producers are a second apart; their timestamps say days."""

    async def go() -> None:
        disk = MemoryDisk()
        partition = on(disk, fsync=False)
        first, later = from_producer(1, 5000), from_producer(2, 9_005_000)
        partition.append(first, batches.headers(first))
        if not is_set_before_the_start:
            partition = on(disk, fsync=False)
        partition.append(later, batches.headers(later))
        if is_set_before_the_start:
            partition = on(disk, fsync=False)
        for now in (9_005_000, 9_005_999):
            await partition.expire(WallMs(now))
            for offset, batch in enumerate((first, later)):
                header = batches.read_header(batch)
                assert partition.log.producers.check(header) == Duplicate(offset)
        await partition.expire(WallMs(9_006_000))
        assert not len(partition.log.producers)

    run(go)


def test_a_log_that_cannot_be_opened_fails_its_users_and_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def open_log(*_: Any) -> SegmentedLog:
        raise CorruptLog("it is damaged; restore it")

    partition, _ = made(open_log)
    for _ in range(3):
        with pytest.raises(OSError, match="orders-0 is refused: it is damaged"):
            assert partition.start_offset
    assert len(caplog.records) == 1
    partition.settle()
    partition.close()


def test_a_log_that_cannot_be_synced_when_it_is_opened_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each use tries again, so that files and producers would become more and more."""

    class CountedFile(OsFile):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            files.append(self)

    def fails(_: OsFile) -> None:
        raise OSError(errno.EIO, "the disk fails")

    files = list[OsFile]()
    disk, limit = OsDisk(tmp_path), ProducerLimit(100)
    before = SegmentedLog(disk, FOLDER)
    data = bytearray(batches.build([Record(0, 0, None, b"v")], producer_id=7, base_sequence=0))
    before.append(data, batches.headers(data))
    before.close()

    def open_log(*_: Any) -> SegmentedLog:
        return SegmentedLog(disk, FOLDER, producer_limit=limit)

    partition, _ = made(open_log, fsync=True)
    with monkeypatch.context() as patch:
        patch.setattr("headrace.log.os_disk.OsFile", CountedFile)
        patch.setattr(CountedFile, "sync", fails)
        for _ in range(3):
            run(partition.open_ready)
    assert partition.is_failing
    assert files
    assert {file._fd for file in files} == {-1}
    assert limit.count == 0
    partition.close()


class _Held:
    """Opens the log of a folder in a thread, once `let_go` is set."""

    def __init__(self, disk: MemoryDisk) -> None:
        self.disk = disk
        self.has_begun, self.let_go = threading.Event(), threading.Event()
        self.logs: list[SegmentedLog] = []

    def __call__(self, *_: Any) -> SegmentedLog:
        self.has_begun.set()
        assert self.let_go.wait(TIMEOUT)
        self.logs.append(SegmentedLog(self.disk, FOLDER))
        return self.logs[-1]


def test_all_who_need_a_log_wait_for_one_opening() -> None:
    async def go() -> None:
        held = _Held(MemoryDisk())
        partition, _ = made(held)
        waiting = [asyncio.ensure_future(partition.open_ready()) for _ in range(3)]
        await until(held.has_begun.is_set)
        waiting[0].cancel()
        held.let_go.set()
        await asyncio.wait(waiting)
        assert [one.cancelled() for one in waiting] == [True, False, False]
        assert held.logs == [partition.log]

    run(go)


def test_a_folder_is_kept_until_a_thread_has_opened_its_log() -> None:
    async def go() -> None:
        held = _Held(MemoryDisk())
        partition, _ = made(held)
        opening = asyncio.ensure_future(partition.open_ready())
        await until(held.has_begun.is_set)
        partition.close()
        is_retiring = threading.Event()

        def retire() -> None:
            is_retiring.set()
            partition.retire()

        retiring = asyncio.get_running_loop().run_in_executor(None, retire)
        await until(is_retiring.is_set)
        held.let_go.set()
        await asyncio.gather(opening, retiring)
        with pytest.raises(OSError, match="removed"), held.logs[0].in_folder():
            pass
        await partition.open_ready()
        assert len(held.logs) == 1, "another topic may have the folder by now"

    run(go)


def test_a_failed_opening_is_raised_until_another_one_is_awaited() -> None:
    async def go() -> None:
        disk = MemoryDisk()
        put(on(disk, fsync=False), b"v")
        partition = on(disk, fsync=False)
        disk.failing.add("size")
        await partition.open_ready()
        assert partition.is_failing
        disk.failing.clear()
        for _ in range(2):
            with pytest.raises(OSError, match="orders-0 cannot be opened: "):
                assert partition.start_offset
        await partition.open_ready()
        assert values(partition) == [b"v"]

    run(go)


def test_a_log_that_is_opened_late_is_used_once_others_are_done_with_its_end() -> None:
    """Where they fail, the next opening tries again."""

    async def go() -> None:
        disk = MemoryDisk()
        put(on(disk, fsync=False), b"v")
        partition = on(disk, fsync=False)
        disk.failing.add("size")
        await partition.open_ready()
        disk.failing.clear()
        ends, may_end = list[int](), asyncio.Event()

        async def before(end: int) -> None:
            ends.append(end)
            if len(ends) == 1:
                raise OSError("planted")
            await may_end.wait()

        partition.before_use(before)
        for _ in range(2):
            with pytest.raises(OSError, match="orders-0"):
                assert partition.start_offset
        await partition.open_ready()
        assert (ends, partition.is_open) == ([1], False)
        opening = asyncio.ensure_future(partition.open_ready())
        while len(ends) < 2:  # noqa: ASYNC110  # there is no event to wait for
            await asyncio.sleep(0)
        with pytest.raises(OSError, match="planted"):
            assert partition.start_offset
        assert not opening.done()
        may_end.set()
        await opening
        assert values(partition) == [b"v"]

    run(go)


def test_settings_that_change_while_a_log_is_opened_are_the_logs() -> None:
    async def go() -> None:
        held = _Held(MemoryDisk())
        partition, _ = made(held, fsync=False)
        opening = asyncio.ensure_future(partition.open_ready())
        await until(held.has_begun.is_set)
        partition.configure(TopicSettings(segment_bytes=1024))
        held.let_go.set()
        await opening
        for _ in range(2):
            put(partition, b"v" * 900)
        assert len(partition.log.segments()) == 2

    run(go)


def test_a_log_that_is_opened_again_holds_up_nobody() -> None:
    async def go() -> None:
        disk = MemoryDisk()
        put(on(disk, fsync=False), b"v")
        held = _Held(disk)
        disk.failing.add("size")
        held.let_go.set()
        partition, _ = made(held)
        await partition.open_ready()
        assert partition.is_failing
        disk.failing.clear()
        held.let_go.clear()
        held.has_begun.clear()
        opening = asyncio.ensure_future(partition.open_ready())
        await until(held.has_begun.is_set)
        with pytest.raises(OSError, match="orders-0 cannot be opened: "):
            assert partition.start_offset
        held.let_go.set()
        await opening
        assert partition.start_offset == 0

    run(go)


def test_the_latest_settings_hold_once_an_opening_ends() -> None:
    async def go() -> None:
        held = _Held(MemoryDisk())
        put(on(held.disk, fsync=False), b"v")
        partition, _ = made(held, fsync=False)
        opening = asyncio.ensure_future(partition.open_ready())
        await until(held.has_begun.is_set)
        partition.configure(TopicSettings(segment_bytes=2048))
        latest = TopicSettings(segment_bytes=1024)

        def change_behind(error: CorruptLog | OSError) -> OSError:
            asyncio.get_running_loop().call_soon(partition.configure, latest)
            return OSError(str(error))

        held.disk.failing.add("size")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(partition, "_cannot_open", change_behind)
            held.let_go.set()
            await opening
        assert partition.settings == latest

    run(go)
