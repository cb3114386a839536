"""One partition: who waits for which sync, what readers may see, and faults."""

import asyncio

import pytest

from headrace.broker.topic_settings import TopicSettings
from headrace.log.memory_disk import MemoryDisk

from .partition_rig import (
    TIMEOUT,
    append,
    on,
    opened,
    put,
    run,
    until,
    values,
)


def test_one_sync_serves_all_who_came_before_it() -> None:
    async def go() -> None:
        log, partition, _ = opened()
        append(partition)
        first = asyncio.create_task(partition.durable())
        await until(lambda: log.begun == 1)
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
        await until(lambda: log.begun == 1)
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


def test_a_closed_partition_that_nobody_used_stays_closed() -> None:
    """Its folder may be another topic's by now."""

    async def go() -> None:
        partition = on(MemoryDisk())
        partition.close()
        with pytest.raises(OSError, match="orders-0 is closed"):
            partition.read_through(0, 0, 1)
        assert not partition.is_open

    run(go)


@pytest.mark.parametrize(("topic", "limit_mib"), [("orders", 64), ("__consumer_offsets", 1)])
def test_little_is_left_to_sync_when_a_segment_is_full(topic: str, limit_mib: int) -> None:
    """Without fsync: so much is not known to be durable at most, and may pass for torn."""

    async def go() -> None:
        partition, half = on(MemoryDisk(), fsync=False, topic=topic), bytes(limit_mib << 19)
        put(partition, half[:-200])
        await asyncio.sleep(0)
        assert (partition.log.durable_end, partition.log.end_offset) == (0, 1)
        put(partition, half + bytes(200))
        await until(lambda: partition.log.durable_end == 2)

    run(go)


def test_a_journal_begins_its_next_segment_in_a_turn_of_its_own_before_the_last_is_full() -> None:
    """Whoever commits would wait for the syncs that a full segment costs."""

    async def go() -> None:
        partition = on(MemoryDisk(), fsync=False, topic="__consumer_offsets", segment_bytes=1 << 20)
        while partition.log.room > 8192:
            put(partition, b"a" * 2000)
        await asyncio.sleep(0)
        assert len(partition.log.segments()) == 1
        while partition.log.room >= (1 << 20) // 256:
            put(partition, b"b" * 1000)
        assert len(partition.log.segments()) == 1, "not in the turn of the append"
        await until(lambda: len(partition.log.segments()) == 2)
        assert [one.size for one in partition.log.segments()][1:] == [0]
        assert partition.log.durable_end == partition.log.end_offset

    run(go)
