"""The scrub of data at rest: what it finds, what it tells, and how fast it reads."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from tests.broker.inside_rig import Inside, counted_turns, play

from headrace.broker.partitions import Partition
from headrace.broker.scrub import Scrub
from headrace.core.catalog import CreateTopic, DeleteTopic, Topic
from headrace.log.api import DamagedBlockError, Disk
from headrace.log.segments import SegmentedLog
from headrace.log.verify import verify_file
from headrace.wire.batches import Record, read_header

SETTINGS = {"log_segment_bytes": "1024", "headrace_scrub_interval_ms": "0"}


async def filled(broker: Inside) -> Partition:
    """A partition with several sealed segments."""
    topics = broker.services.topics
    await topics.create(CreateTopic("orders", topics.new_id(), 1, {}))
    partition = broker.services.partition("orders", 0)
    assert partition is not None
    for number in range(8):
        partition.append_records([Record(0, 1, None, b"%d" % number * (400 + number))])
    return partition


def scene(scene: Callable[[Inside], Coroutine[Any, Any, None]], **settings: str) -> None:
    play(lambda: Inside(None, **(SETTINGS | settings)), scene)


def test_a_sound_broker_is_verified_to_the_last_byte() -> None:
    async def sound(broker: Inside) -> None:
        partition, scrub = await filled(broker), broker.services.scrub
        await scrub.run_pass()
        segments = partition.log.segments()
        assert len(segments) > 3
        assert segments[-1].size > 0
        written = sum(one.log.size_bytes for one in broker.services.partitions)
        assert scrub.bytes_verified == written >= partition.log.size_bytes
        assert (scrub.passes, scrub.damages) == (1, {})
        assert broker.services.trouble() is None

    scene(sound)


def test_a_pass_lists_the_segments_of_a_partition_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be thousands, and a list of all for each of them holds the event loop."""
    listed: list[object] = []
    segments = SegmentedLog.segments

    def counted(log: SegmentedLog) -> Any:
        listed.append(log)
        return segments(log)

    async def scrubbed(broker: Inside) -> None:
        partition = await filled(broker)
        monkeypatch.setattr(SegmentedLog, "segments", counted)
        await broker.services.scrub.run_pass()
        assert listed.count(partition.log) == 1

    scene(scrubbed)


def test_damage_is_logged_once_and_shown_until_it_is_gone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def damaged(broker: Inside) -> None:
        partition, scrub = await filled(broker), broker.services.scrub
        path = f"{partition.log.segments()[1].path}.log"
        content = broker.disk._files[path]
        content.data[100] ^= 1
        for _ in range(2):
            await scrub.run_pass()
        assert list(scrub.damages) == [path]
        lines = [one.getMessage() for one in caplog.records if path in one.getMessage()]
        assert len(lines) == 1
        assert "headrace check" in lines[0]
        trouble = broker.services.trouble()
        assert trouble is not None
        assert path in trouble
        content.data[100] ^= 1
        await scrub.run_pass()
        assert scrub.damages == {}

    scene(damaged)


def test_damage_in_the_active_segment_is_found_and_shown() -> None:
    async def damaged(broker: Inside) -> None:
        partition, scrub = await filled(broker), broker.services.scrub
        path = f"{partition.log.segments()[-1].path}.log"
        broker.disk._files[path].data[100] ^= 1
        await scrub.run_pass()
        assert list(scrub.damages) == [path]
        assert partition.damage is scrub.damages[path]

    scene(damaged)


@pytest.mark.parametrize("is_scrubbed", [False, True])
def test_damage_is_shown_until_its_segment_is_dropped(is_scrubbed: bool) -> None:
    async def damaged(broker: Inside) -> None:
        partition, scrub = await filled(broker), broker.services.scrub
        first, second, *_ = partition.log.segments()
        for one in (first, second):
            broker.disk._files[f"{one.path}.log"].data[16] ^= 1
            if not is_scrubbed:
                with pytest.raises(DamagedBlockError) as caught:
                    partition.log.read_bytes(one.base_offset, 1)
                partition.read_failed(caught.value)
        if is_scrubbed:
            await scrub.run_pass()
        assert len(scrub.damages) == 2 * is_scrubbed
        await broker.services.partitions.delete_records({partition: first.end_offset})
        assert f"{second.path}.log" in (broker.services.trouble() or "")
        assert len(scrub.damages) == is_scrubbed
        await broker.services.partitions.delete_records({partition: second.end_offset})
        assert broker.services.trouble() is None
        assert scrub.damages == {}

    scene(damaged)


def test_a_missing_segment_is_damage_until_it_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    async def missing(broker: Inside) -> None:
        partition, scrub = await filled(broker), broker.services.scrub
        first = partition.log.segments()[0]
        del broker.disk._files[first.file_path]
        for _ in range(2):
            await scrub.run_pass()
            assert str(scrub.damages[first.file_path]).startswith(f"{first.file_path}: the file is")
        assert "the file is missing" in (broker.services.trouble() or "")
        lines = [one.getMessage() for one in caplog.records if first.path in one.getMessage()]
        assert lines == [
            f"orders-0 is damaged: {first.file_path}: the file is missing; stop the broker, and "
            "run `headrace check`, then `headrace repair` or restore a backup"
        ]

    caplog.set_level("WARNING", "headrace")
    scene(missing)


def test_a_read_of_a_missing_segment_is_damage() -> None:
    async def missing(broker: Inside) -> None:
        partition = await filled(broker)
        first = partition.log.segments()[0]
        del broker.disk._files[first.file_path]
        next(iter(partition.log._segments)).release()  # as of one that was not read for some time
        with pytest.raises(DamagedBlockError, match="the file is missing; run") as caught:
            partition.log.read_bytes(0, 1)
        partition.read_failed(caught.value)
        assert "the file is missing" in (broker.services.trouble() or "")
        partition.close()
        with pytest.raises(FileNotFoundError, match="a segment is gone"):
            partition.log.read_bytes(0, 1)

    scene(missing)


@pytest.mark.parametrize("is_staged", [False, True])
def test_a_segment_whose_replacement_is_unfinished_is_verified(is_staged: bool) -> None:
    async def unfinished(broker: Inside) -> None:
        partition, scrub = await filled(broker), broker.services.scrub
        log, first = partition.log, partition.log.segments()[0]
        cleaned = f"{first.path}.log.cleaned"
        broker.disk.write(cleaned, broker.disk.read(first.file_path))
        log.prepare([0], cleaned)
        assert log.take_place([0])
        if not is_staged:
            log.finish_replacement(log.put_away_replaced())
        path = log.segments()[0].file_path
        assert path.endswith(".swap") == is_staged
        broker.disk._files[path].data[100] ^= 1
        await scrub.run_pass()
        assert list(scrub.damages) == [path]
        with pytest.raises(DamagedBlockError, match="checksum of the batch"):
            log.read_bytes(0, 1)

    scene(unfinished)


def test_an_append_that_is_under_way_is_no_damage() -> None:
    async def growing(broker: Inside) -> None:
        partition, scrub = await filled(broker), broker.services.scrub
        active = partition.log.segment_at(f"{partition.log.segments()[-1].path}.log")
        assert active is not None
        active.file.append(b"half a bat")
        await scrub.run_pass()
        assert (scrub.damages, partition.damage) == ({}, None)
        broker.disk._files[active.file_path].data[70] ^= 1
        await scrub.run_pass()
        assert list(scrub.damages) == [active.file_path]

    scene(growing)


def test_an_active_segment_that_is_cut_meanwhile_is_no_damage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def changed(broker: Inside) -> None:
        partition, scrub = await filled(broker), broker.services.scrub
        partition.append_records([Record(0, 1, None, b"synced")])
        log = partition.log
        log.sync()
        partition.append_records([Record(0, 1, None, b"not synced")])
        active = log.segment_at(f"{log.segments()[-1].path}.log")
        assert active is not None
        cuts = []

        def after_a_cut(disk: Disk, path: str, size: int) -> Iterator[int]:
            if path == active.file_path:
                cuts.append(size)
                broker.disk.failing.add("sync")
                with pytest.raises(OSError, match="Input"):
                    log.sync()
                broker.disk.failing.clear()
                log.mend(keep=False)
            yield from verify_file(disk, path, size)

        monkeypatch.setattr("headrace.broker.scrub.verify_file", after_a_cut)
        size = active.size
        await scrub.run_pass()
        assert (cuts, scrub.damages, partition.damage) == ([size], {}, None)
        log.resume()

    scene(changed)


def test_an_active_segment_that_is_cut_and_grows_again_is_no_damage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def changed(broker: Inside) -> None:
        partition, scrub = await filled(broker), broker.services.scrub
        partition.append_records([Record(0, 1, None, b"synced")])
        log = partition.log
        await partition.on_disk(log.end_offset)
        broker.disk.failing.add("sync")
        partition.append_records([Record(0, 1, None, b"not synced")])
        active = log.segment_at(f"{log.segments()[-1].path}.log")
        assert active is not None
        begun = list[int]()
        step = Scrub._step

        def noted(disk: Disk, path: str, size: int) -> Iterator[int]:
            if path == active.file_path:
                begun.append(size)
            return verify_file(disk, path, size)

        async def after_a_cut(scrub: Scrub, steps: Iterator[int]) -> bool:
            if begun and broker.disk.failing:
                broker.disk.failing.clear()
                assert partition._mending is not None
                await partition._mending
                assert active.size < begun[0]
                partition.append_records([Record(0, 1, None, b"a longer one" * 10)])
                assert begun[0] < active.size
            return await step(scrub, steps)

        monkeypatch.setattr("headrace.broker.scrub.verify_file", noted)
        monkeypatch.setattr(Scrub, "_step", after_a_cut)
        await scrub.run_pass()
        assert not broker.disk.failing
        assert (scrub.damages, partition.damage) == ({}, None)

    scene(changed, headrace_durability="fsync")


def test_a_segment_that_goes_meanwhile_is_neither_damage_nor_made_again() -> None:
    async def gone(broker: Inside) -> None:
        partition, scrub = await filled(broker), broker.services.scrub
        first = f"{partition.log.segments()[0].path}.log"
        size = broker.disk.size

        def removed(path: str) -> int:
            found = size(path)
            if path == first:
                second = partition.log.segments()[1].base_offset
                partition.log.allow_drop(second)
                partition.log.drop_segments(second)
            return found

        broker.disk.size = removed  # type: ignore[method-assign]  # a fault of the disk
        await scrub.run_pass()
        broker.disk.size = size  # type: ignore[method-assign]  # a fault of the disk
        assert scrub.damages == {}
        assert not broker.disk.exists(first)

    scene(gone)


def test_a_segment_that_compaction_replaces_meanwhile_is_no_damage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def compacted(broker: Inside) -> None:
        partition, scrub = await filled(broker), broker.services.scrub
        first, second = partition.log.segments()[:2]
        path, size = f"{first.path}.log", broker.disk.size

        def replaced(requested: str) -> int:
            count = size(requested)
            if requested == path and count == first.size:
                both = broker.disk.read(path) + broker.disk.read(f"{second.path}.log")
                without_first = both[read_header(both, 0).size :]
                broker.disk.write(f"{path}.cleaned", without_first)
                partition.log.replace([first.base_offset, second.base_offset], f"{path}.cleaned")
            return count

        monkeypatch.setattr(broker.disk, "size", replaced)
        await scrub.run_pass()
        assert size(path) != first.size
        assert (scrub.passes, scrub.damages, partition.damage) == (1, {}, None)

    scene(compacted)


def test_the_pauses_cost_as_much_time_as_the_rate_says() -> None:
    async def slow(broker: Inside) -> None:
        await filled(broker)
        scrub = broker.services.scrub
        pauses: list[int] = []

        async def pause(pause_ms: int) -> bool:
            pauses.append(pause_ms)
            return True

        scrub.work.pause = pause  # type: ignore[method-assign]  # a fault of the disk
        await scrub.run_pass()
        assert abs(sum(pauses) - scrub.bytes_verified) <= 1  # a byte a millisecond

    scene(slow, headrace_scrub_bytes_per_second="1000")


def test_passes_follow_each_other_unless_the_scrub_is_off() -> None:
    async def running(broker: Inside) -> None:
        await filled(broker)
        scrub = broker.services.scrub
        ended = asyncio.Event()
        run_pass = scrub.run_pass

        async def counted() -> None:
            await run_pass()
            if scrub.passes == 2:
                ended.set()

        scrub.run_pass = counted  # type: ignore[method-assign]  # a fault of the disk
        await ended.wait()

    scene(running, headrace_scrub_interval_ms="1")

    async def off(broker: Inside) -> None:
        assert not broker.services.scrub.work.pauses

    scene(off, headrace_scrub_bytes_per_second="0")


def test_partitions_without_sealed_segments_do_not_hold_the_loop() -> None:
    async def many(broker: Inside) -> None:
        topics = broker.services.topics
        await topics.create(CreateTopic("orders", topics.new_id(), 50, {}))
        async with counted_turns() as turns:
            await broker.services.scrub.run_pass()
        assert turns[0] >= 50

    scene(many)


def test_a_checkpoint_that_is_replaced_meanwhile_is_no_damage(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def replaced(broker: Inside) -> None:
        monkeypatch.setattr("headrace.broker.topics._DEAD_RECORDS_MIN", 0)
        services = broker.services
        topics, journal = services.topics, services.topics.journal_log

        async def change() -> None:
            before = journal.checkpoint_path
            while journal.checkpoint_path == before:
                topic = await topics.create(CreateTopic("short", topics.new_id(), 1, {}))
                assert isinstance(topic, Topic)
                await topics.delete(DeleteTopic(topic.id))

        await change()
        listed = journal.checkpoint_path
        assert listed is not None
        step = Scrub._step

        async def after_a_change(scrub: Scrub, steps: Iterator[int]) -> bool:
            monkeypatch.setattr(Scrub, "_step", step)
            await change()
            return await step(scrub, steps)

        monkeypatch.setattr(Scrub, "_step", after_a_change)
        await services.scrub.run_pass()
        assert not broker.disk.exists(listed)
        assert services.scrub.damages == {}
        assert "cannot be read" not in caplog.text

    scene(replaced)
