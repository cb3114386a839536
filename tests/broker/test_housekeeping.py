"""Retention and compaction in the background: in which order, what is told, what faults leave."""

import asyncio
import errno
import logging
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from headrace.broker import data_folder_cut
from headrace.broker.cleaner import Kept, size_text
from headrace.broker.config import Config
from headrace.broker.partitions import Partition
from headrace.broker.services import open_services
from headrace.broker.topic_settings import TopicSettings
from headrace.core.catalog import CreateTopic, DeleteTopic
from headrace.log import compaction
from headrace.log.api import CorruptFileError, DamagedBlockError
from headrace.log.cleaner_checkpoint import read_checkpoint, write_checkpoint
from headrace.log.memory_disk import MemoryDisk, VirtualClock
from headrace.log.os_disk import OsDisk
from headrace.log.segments import SegmentedLog
from headrace.wire import batches
from headrace.wire.batches import Record
from headrace.wire.data_folder_cut import FOLDER as BACKUP_FOLDER

from .partition_rig import until

DAY_MS = 86_400_000
TIMEOUT = 20.0


class Running:
    """A broker's inside with a clock of its own; nothing is due but what a test calls."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self.clock = VirtualClock()
        named = {name.replace("_", "."): str(value) for name, value in settings.items()}
        quiet = {"log.cleaner.enable": "false"}  # its own task begins after a second
        config = Config.parse({"log.segment.bytes": "1024", **quiet, **named})
        self.services = open_services(config, folder, clock=self.clock, new_id=uuid4)
        self.house = self.services.housekeeping

    async def topic(self, name: str, **configs: str) -> Partition:
        named = {key.replace("_", "."): value for key, value in configs.items()}
        await self.services.topics.create(CreateTopic(name, uuid4(), 1, named))
        found = self.services.partition(name, 0)
        assert found is not None
        return found

    def fill(self, partition: Partition, keys: int = 2, count: int = 50) -> None:
        for number in range(count):
            key = b"k%d" % (number % keys)
            partition.append_records([Record(0, self.clock.wall(), key, b"v" * 20)])

    def leftovers(self) -> list[str]:
        return [path.name for path in self.folder.rglob("*.cleaned")]


Scene = Callable[[Running], Coroutine[Any, Any, None]]


def play(folder: Path, scene: Scene, **settings: Any) -> None:
    """A broker from its start to its stop."""

    async def go() -> None:
        running = Running(folder, **settings)
        await running.services.start()
        try:
            await asyncio.wait_for(scene(running), TIMEOUT)
        finally:
            await running.services.close()

    asyncio.run(go())


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    """All messages of level ERROR, of every component."""
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR]


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def records(partition: Partition) -> list[Record]:
    found: list[Record] = []
    offset = partition.start_offset
    while offset < partition.high_watermark:
        piece = partition.read_through(offset, partition.high_watermark, 1 << 20)
        found += batches.records(piece.data)
        offset = piece.headers[-1].last_offset + 1
    return found


def test_retention_deletes_what_is_old_and_counts_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headrace")

    async def scene(running: Running) -> None:
        jobs = await running.topic("jobs", retention_ms=str(DAY_MS))
        running.fill(jobs)
        segments, size = len(jobs.log.segments()), jobs.log.size_bytes
        assert segments > 2
        await running.house.expire_all()
        assert jobs.start_offset == 0
        journal = running.services.partition("__share_group_state", 0)
        assert journal is not None
        journal.append_records([Record(0, running.clock.wall(), b"\0", b"")])
        running.clock.advance(400 * DAY_MS)
        await running.house.expire_all()
        assert (jobs.start_offset, records(jobs)) == (50, [])
        counters = running.house.counters
        assert (counters.segments_deleted, counters.bytes_freed) == (segments, size)
        assert journal.start_offset == 0, "every record of a journal counts"

    play(tmp_path, scene)
    assert "retention of jobs-0:" in caplog.text


def test_a_partition_that_fails_is_told_once_and_the_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(running: Running) -> None:
        bad = await running.topic("bad", retention_ms="1")
        good = await running.topic("good", retention_ms="1")
        running.fill(bad)
        running.fill(good)
        running.clock.advance(DAY_MS)
        whole, fails = Partition.expire, True

        async def expire(self: Partition, now: Any, latest: Any) -> int:
            if self is bad and fails:
                raise OSError(errno.EIO, "Input/output error")
            return await whole(self, now, latest)

        monkeypatch.setattr(Partition, "expire", expire)
        for _ in range(3):
            await running.house.expire_all()
        assert (bad.start_offset, good.start_offset) == (0, 50)
        fails = False
        await running.house.expire_all()
        assert bad.start_offset == 50

    play(tmp_path, scene)
    assert caplog.text.count("retention of bad-0 failed: [Errno 5] Input/output error") == 1


def test_a_broker_that_never_runs_for_long_looks_after_its_logs(tmp_path: Path) -> None:
    settings = {
        "log_cleaner_enable": "true", "log_cleaner_backoff_ms": "86400000",
        "log_retention_check_interval_ms": "86400000",
    }  # fmt: skip

    async def scene(running: Running) -> None:
        loop = asyncio.get_running_loop()
        pauses = sorted(timer.when() - loop.time() for timer in running.house.work.pauses)
        assert len(pauses) == 2
        assert pauses[0] <= 1
        assert pauses[1] <= 30
        running.fill(await running.topic("keyed", cleanup_policy="compact"))
        running.house.work.end_pauses()
        await until(lambda: running.house.counters.cleanings > 0)
        pauses = sorted(timer.when() - loop.time() for timer in running.house.work.pauses)
        assert pauses[0] > 80_000

    play(tmp_path, scene, **settings)


def test_the_dirtiest_log_is_compacted_first(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headrace")

    async def scene(running: Running) -> None:
        house = running.house
        kept = await running.topic("kept")
        running.fill(kept)
        few = await running.topic("few", cleanup_policy="compact", min_cleanable_dirty_ratio="0.1")
        running.fill(few)
        assert await house.clean_dirtiest()
        running.fill(few, count=25)
        many = await running.topic("many", cleanup_policy="compact")
        running.fill(many, count=100)
        caplog.clear()
        assert await house.clean_dirtiest()
        assert "compacted many-0: " in caplog.text
        assert "few" not in caplog.text
        assert house.counters.dirty_ratio_max == 1.0
        assert await house.clean_dirtiest()
        assert "compacted few-0: " in caplog.text
        assert not await house.clean_dirtiest()
        assert house.counters.dirty_ratio_max < 0.1
        assert house.counters.cleanings == 3
        assert len(records(kept)) == 50
        ends = {one.topic.name: one.log.segments()[-1].base_offset for one in (few, many)}
        assert read_checkpoint(OsDisk(tmp_path)) == {
            ("few", 0): ends["few"],
            ("many", 0): ends["many"],
        }
        table = {one.key: one.offset for one in records(many)}
        assert table == {b"k0": 98, b"k1": 99}

    play(tmp_path, scene)

    async def again(running: Running) -> None:
        assert not await running.house.clean_dirtiest(), "the checkpoint tells where it stood"
        many = running.services.partition("many", 0)
        assert many is not None
        assert {one.key: one.offset for one in records(many)} == {b"k0": 98, b"k1": 99}

    play(tmp_path, again)


def test_one_log_is_compacted_at_a_time(tmp_path: Path) -> None:
    async def scene(running: Running) -> None:
        house = running.house
        for name in ("first", "second"):
            running.fill(await running.topic(name, cleanup_policy="compact"))
        cleaned = await asyncio.gather(*(house.clean_dirtiest() for _ in range(3)))
        assert sorted(cleaned) == [False, True, True]
        assert (house.counters.cleanings, house.counters.failures) == (2, 0)

    play(tmp_path, scene)


def test_both_policies_at_once(tmp_path: Path) -> None:
    async def scene(running: Running) -> None:
        both = await running.topic(
            "both", cleanup_policy="compact,delete", retention_ms=str(DAY_MS)
        )
        running.fill(both)
        assert await running.house.clean_dirtiest()
        assert 2 <= len(records(both)) < 25
        running.clock.advance(2 * DAY_MS)
        await running.house.expire_all()
        assert (both.start_offset, both.high_watermark) == (50, 50)

    play(tmp_path, scene)


def test_the_longest_lag_seals_what_is_written_to(tmp_path: Path) -> None:
    async def scene(running: Running) -> None:
        slow = await running.topic("slow", cleanup_policy="compact", max_compaction_lag_ms="60000")
        running.fill(slow, count=4)
        running.clock.advance(60_000)
        assert not await running.house.clean_dirtiest()
        running.clock.advance(1)
        assert await running.house.clean_dirtiest()
        assert [one.offset for one in records(slow)] == [2, 3]

    play(tmp_path, scene)


def test_a_segment_that_an_append_began_meanwhile_is_not_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(running: Running) -> None:
        slow = await running.topic("slow", cleanup_policy="compact", max_compaction_lag_ms="60000")
        running.fill(slow, count=4)
        running.clock.advance(60_001)
        loop, prepare = asyncio.get_running_loop(), SegmentedLog.prepare_next

        def followed_by_an_append(log: SegmentedLog) -> None:
            prepare(log)
            loop.call_soon_threadsafe(running.fill, slow, 1, 1)

        monkeypatch.setattr(SegmentedLog, "prepare_next", followed_by_an_append)
        assert await running.house.clean_dirtiest()
        assert [one.base_offset for one in slow.log.segments()] == [0, 4]
        assert slow.log.end_offset == 5

    play(tmp_path, scene)


def test_a_log_that_is_no_topic_is_looked_after_when_handed_in(tmp_path: Path) -> None:
    async def scene(running: Running) -> None:
        journal = SegmentedLog(OsDisk(tmp_path), "journal-0", segment_bytes=1024)
        for number in range(50):
            data = bytearray(batches.build([Record(0, 0, b"key", b"%d" % number)]))
            journal.append(data, batches.headers(data))
        settings = TopicSettings(cleanup_policy=("compact",))
        running.house.look_after(Kept("journal", 0, settings, lambda: journal))
        assert await running.house.clean_dirtiest()
        assert journal.size_bytes < 1200
        assert journal.end_offset == 50
        journal.close()

    play(tmp_path, scene)


def test_what_cannot_be_compacted_rests_and_the_next_has_its_turn(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(running: Running) -> None:
        house, full = running.house, True
        whole = compaction.Compaction.copy

        def copy(self: Any, group: Any, file: Any) -> Iterator[None]:
            if full and group.cleaned.startswith("large"):
                file.append(b"half a batch")
                raise OSError(errno.ENOSPC, "No space left on device")
            return whole(self, group, file)

        monkeypatch.setattr(compaction.Compaction, "copy", copy)
        large = await running.topic("large", cleanup_policy="compact")
        small = await running.topic("small", cleanup_policy="compact")
        running.fill(large, count=100)
        running.fill(small, count=100)
        assert await house.clean_dirtiest()
        assert len(records(small)) < 30
        assert len(records(large)) == 100
        assert running.leftovers() == []
        assert not await house.clean_dirtiest()
        assert house.counters.failures == 1
        full = False
        running.clock.advance(600_001)
        assert await house.clean_dirtiest()
        assert len(records(large)) < 30

    play(tmp_path, scene)
    assert caplog.text.count("large-0 cannot be compacted: [Errno 28] No space left") == 1


def test_a_log_that_cannot_be_compacted_for_its_damage_is_reported_with_a_remedy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(running: Running) -> None:
        keyed = await running.topic("keyed", cleanup_policy="compact")
        running.fill(keyed)
        path = tmp_path / "keyed-0" / f"{0:020d}.log"
        path.write_bytes(path.read_bytes()[:-1] + b"?")
        assert not await running.house.clean_dirtiest()

    play(tmp_path, scene)
    (record,) = (one for one in caplog.records if "keyed-0 cannot be compacted" in one.message)
    assert "space and permissions" not in record.message
    assert record.message.endswith("; stop the broker, and run `headrace check`, then "
                                   "`headrace repair` or restore a backup")  # fmt: skip


class StoppedRenames:
    """A disk that fails renames of files with these suffixes, or the sync after them."""

    def __init__(self, patch: pytest.MonkeyPatch, old: str, new: str, *, after: bool) -> None:
        self.fails = True
        rename = OsDisk.rename

        def fail(disk: OsDisk, source: str, target: str, *, durable: bool = True) -> None:
            is_one = source.endswith(old) and target.endswith(new) and source != target
            if after or not (self.fails and is_one):
                rename(disk, source, target, durable=durable)
            if self.fails and is_one:
                raise OSError(errno.EIO, "Input/output error")

        patch.setattr(OsDisk, "rename", fail)


STOPS = [
    pytest.param(".log", ".deleted", False, id="before the old file is put away"),
    pytest.param(".log", ".deleted", True, id="after the old file is put away"),
    pytest.param(".swap", ".log", False, id="before the copy has its name"),
]


@pytest.mark.parametrize(("old", "new", "after"), STOPS)
def test_a_replacement_that_the_disk_stops_is_finished_before_the_next_compaction(
    old: str, new: str, after: bool,
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The size of the copy is that of whole batches of the segment before, at the same path."""
    stopped = StoppedRenames(monkeypatch, old, new, after=after)
    latest: dict[bytes | None, int] = {}

    async def scene(running: Running) -> None:
        house, keyed = running.house, await running.topic("keyed", cleanup_policy="compact")
        for number in range(60):
            key = b"same" if number % 2 else b"u%03d" % number
            keyed.append_records([Record(0, running.clock.wall(), key, b"v" * 20)])
        before = {one.key: one.offset for one in records(keyed)}
        for _ in range(3):
            assert not await house.clean_dirtiest()
            assert any(one.file_path.endswith(".swap") for one in keyed.log.segments())
            assert {one.key: one.offset for one in records(keyed)} == before
            running.clock.advance(600_001)
        assert house.counters.failures == 3
        stopped.fails = False
        keyed.append_records([Record(0, running.clock.wall(), b"same", b"v" * 20)])
        assert await house.clean_dirtiest()
        assert all(one.file_path == f"{one.path}.log" for one in keyed.log.segments())
        latest.update(before | {b"same": 60})
        assert {one.key: one.offset for one in records(keyed)} == latest
        assert running.services.trouble() is None

    async def again(running: Running) -> None:
        keyed = running.services.partition("keyed", 0)
        assert keyed is not None
        await keyed.open_ready()
        assert {one.key: one.offset for one in records(keyed)} == latest

    play(tmp_path, scene)
    assert len(errors(caplog)) == 3
    assert all("keyed-0 cannot be compacted: [Errno 5]" in one for one in errors(caplog))
    caplog.clear()
    play(tmp_path, again)
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]


def test_damage_of_a_file_that_the_log_does_not_have_is_not_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def map_keys(_: Any) -> None:
        raise DamagedBlockError(CorruptFileError(f"keyed-0/{1:020d}.log", "the file is missing"))

    async def scene(running: Running) -> None:
        keyed = await running.topic("keyed", cleanup_policy="compact")
        running.fill(keyed)
        with monkeypatch.context() as patch:
            patch.setattr(compaction.Compaction, "map_keys", map_keys)
            for _ in range(2):
                assert not await running.house.clean_dirtiest()
        assert running.house.counters.failures == 1
        running.clock.advance(600_001)
        assert await running.house.clean_dirtiest()

    play(tmp_path, scene)
    (message,) = errors(caplog)
    assert "restore a backup" not in message
    assert "compaction is tried again in 10 minutes" in message


def test_a_backup_has_the_file_that_a_log_reads_while_a_replacement_is_unfinished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = StoppedRenames(monkeypatch, ".log", ".deleted", after=False)
    name = uuid4().hex
    folder = tmp_path / BACKUP_FOLDER / name

    async def scene(running: Running) -> None:
        keyed = await running.topic("keyed", cleanup_policy="compact")
        running.fill(keyed)
        assert not await running.house.clean_dirtiest()
        first = keyed.log.segments()[0]
        folder.mkdir(parents=True)
        await data_folder_cut.cut(running.services, name)
        copy = folder / first.file_path
        assert copy.name == f"{0:020d}.log.swap"
        assert copy.stat().st_size == first.size
        assert not copy.with_suffix("").exists()
        offsets = [one.offset for one in records(keyed)]
        stopped.fails = False
        log = SegmentedLog(OsDisk(folder), "keyed-0")
        found = b"".join(bytes(log.read(at, 1).data) for at in offsets)
        assert [one.offset for one in batches.records(found)] == offsets
        log.close()

    play(tmp_path, scene)


@pytest.mark.parametrize("drops", [False, True])
def test_a_damaged_leader_epoch_is_reported_once_and_not_compacted_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, drops: bool
) -> None:
    """A folder of format 0 has no checksums; the indexes, by which it is opened, hide the epoch."""

    async def fill(running: Running) -> None:
        keyed = await running.topic("keyed", cleanup_policy="compact", index_interval_bytes="100")
        running.fill(keyed)

    async def scene(running: Running) -> None:
        house, keyed = running.house, running.services.partition("keyed", 0)
        assert keyed is not None
        for _ in range(3):
            assert not await house.clean_dirtiest()
            running.clock.advance(600_001)
        assert house.counters.failures == 1
        assert running.leftovers() == []
        assert "leader epoch 256" in (running.services.trouble() or "")
        assert house.counters.dirty_ratio_max == 1.0, "it counts though it is set aside"
        if drops:
            first = keyed.log.segments()[0]
            await running.services.partitions.delete_records({keyed: first.end_offset})
            assert running.services.trouble() is None
            assert await house.clean_dirtiest()
            assert len(records(keyed)) < 30

    play(tmp_path, fill)
    path = tmp_path / "keyed-0" / f"{0:020d}.log"
    for one in path.parent.glob("*.checksums"):
        one.unlink()
    position = batches.read_header(path.read_bytes()).size
    flip(path, position + 14)
    play(tmp_path, scene)
    assert errors(caplog) == [
        f"keyed-0 cannot be compacted: keyed-0/{0:020d}.log at byte {position}: leader epoch 256 "
        "at offset 1; stop the broker, and run `headrace check`, then `headrace repair` or restore "
        "a backup"
    ]


def test_damage_met_while_a_log_is_chosen_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The longest lag is that of the first dirty batch, which is read for it."""

    async def scene(running: Running) -> None:
        keyed = await running.topic(
            "keyed", cleanup_policy="compact", max_compaction_lag_ms="60000"
        )
        running.fill(keyed)
        flip(tmp_path / "keyed-0" / f"{0:020d}.log", 16)
        for _ in range(3):
            running.clock.advance(600_001)
            assert not await running.house.clean_dirtiest()
        assert running.house.counters.failures == 1
        assert running.house.counters.dirty_ratio_max == 1.0
        assert "magic 3, not 2" in (running.services.trouble() or "")

    play(tmp_path, scene)
    assert errors(caplog) == [
        f"keyed-0 cannot be compacted: keyed-0/{0:020d}.log: magic 3, not 2; stop the broker, and "
        "run `headrace check`, then `headrace repair` or restore a backup"
    ]


@pytest.mark.parametrize("lag_ms", ["60000", str((1 << 63) - 1)])
def test_a_missing_segment_is_reported_once_with_a_remedy(
    lag_ms: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file is missing while a log is chosen, where that reads it, or while it is compacted."""

    async def scene(running: Running) -> None:
        keyed = await running.topic("keyed", cleanup_policy="compact", max_compaction_lag_ms=lag_ms)
        running.fill(keyed, count=100)  # so that the first segment is not kept open
        (tmp_path / "keyed-0" / f"{0:020d}.log").unlink()
        for _ in range(3):
            running.clock.advance(600_001)
            assert not await running.house.clean_dirtiest()
        assert running.house.counters.failures == 1
        assert "the file is missing" in (running.services.trouble() or "")

    play(tmp_path, scene)
    assert errors(caplog) == [
        f"keyed-0 cannot be compacted: keyed-0/{0:020d}.log: the file is missing; stop the "
        "broker, and run `headrace check`, then `headrace repair` or restore a backup"
    ]


def test_readers_of_a_segment_in_which_compaction_met_damage_are_refused(tmp_path: Path) -> None:
    """An offset that was moved into a gap fits; only the checksums of the segment differ."""

    async def scene(running: Running) -> None:
        keyed = await running.topic("keyed", cleanup_policy="compact")
        for number in range(50):
            key = b"only %d" % number if number % 4 == 3 else b"k"
            keyed.append_records([Record(0, running.clock.wall(), key, b"v" * 20)])
        assert await running.house.clean_dirtiest()
        running.fill(keyed, count=100)
        path = tmp_path / "keyed-0" / f"{0:020d}.log"
        data = bytearray(path.read_bytes())
        first, second, *_ = batches.headers(data)
        assert (first.base_offset, second.base_offset) == (3, 7)
        data[first.size : first.size + 8] = (5).to_bytes(8)
        path.write_bytes(data)
        assert keyed.read_through(5, 5, 1).headers[0].base_offset == 5
        assert not await running.house.clean_dirtiest()
        with pytest.raises(DamagedBlockError, match="are not those that were written"):
            keyed.read_through(5, 5, 1)

    play(tmp_path, scene)


def test_a_log_that_rests_counts_in_the_dirty_ratio(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(running: Running) -> None:
        running.fill(await running.topic("keyed", cleanup_policy="compact"))

        def open_copy(*_: Any) -> Any:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(compaction.Compaction, "open_copy", open_copy)
        for _ in range(2):
            assert not await running.house.clean_dirtiest()
            assert running.house.counters.dirty_ratio_max == 1.0
        assert running.house.counters.failures == 1

    play(tmp_path, scene)


def test_a_log_that_is_refused_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its partition has reported the damage and the remedy."""

    async def fill(running: Running) -> None:
        running.fill(await running.topic("keyed", cleanup_policy="compact"))

    async def scene(running: Running) -> None:
        for _ in range(2):
            assert not await running.house.clean_dirtiest()
            running.clock.advance(600_001)
        assert running.house.counters.failures == 0

    play(tmp_path, fill)
    (tmp_path / "keyed-0" / "recovery-point").unlink()
    play(tmp_path, scene)
    assert caplog.text.count("keyed-0/recovery-point: the file is missing") == 1


class Gate:
    """Holds a cleaning after its first step, until a test lets it go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.reached, self.let_go = threading.Event(), threading.Event()
        whole = getattr(compaction.Compaction, name)

        def steps(*given: Any) -> Iterator[None]:
            for step in whole(*given):
                self.reached.set()
                assert self.let_go.wait(TIMEOUT)
                yield step

        monkeypatch.setattr(compaction.Compaction, name, steps)

    async def wait(self) -> None:
        loop = asyncio.get_running_loop()
        assert await loop.run_in_executor(None, self.reached.wait, TIMEOUT)


@pytest.mark.parametrize("phase", ["map_keys", "copy"])
def test_a_topic_deleted_meanwhile_leaves_nothing(
    phase: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch, phase)

    async def scene(running: Running) -> None:
        gone = await running.topic("gone", cleanup_policy="compact")
        running.fill(gone)
        cleaning = asyncio.create_task(running.house.clean_dirtiest())
        await gate.wait()
        await running.services.topics.delete(DeleteTopic(gone.topic.id))
        again = await running.topic("gone", cleanup_policy="compact")
        running.fill(again)
        gate.let_go.set()
        assert not await cleaning
        assert len(records(again)) == 50
        assert running.leftovers() == []
        assert await running.house.clean_dirtiest(), "nothing is remembered of its namesake"
        assert len(records(again)) < 30

    play(tmp_path, scene)


@pytest.mark.parametrize("phase", ["map_keys", "copy"])
def test_a_stop_waits_for_one_step_and_leaves_nothing(
    phase: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch, phase)

    async def scene(running: Running) -> None:
        jobs = await running.topic("jobs", cleanup_policy="compact")
        running.fill(jobs)
        cleaning = asyncio.create_task(running.house.clean_dirtiest())
        await gate.wait()
        closing = asyncio.create_task(running.house.close())
        await asyncio.sleep(0)
        gate.let_go.set()
        assert not await cleaning
        await closing
        assert running.leftovers() == []
        assert len(records(jobs)) == 50

    play(tmp_path, scene)


def test_a_topic_whose_deletion_is_under_way_is_let_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files may be there yet, and go while they are read."""

    async def scene(running: Running) -> None:
        house, keyed = running.house, await running.topic("keyed", cleanup_policy="compact")
        running.fill(keyed)
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def forgotten() -> None:
            begun.set()
            await go_on.wait()

        running.services.topics.on_forgotten.append(forgotten)
        gate = Gate(monkeypatch, "map_keys")
        deletion = DeleteTopic(keyed.topic.id)
        deleting = asyncio.create_task(running.services.topics.delete(deletion))
        await begun.wait()
        cleaning = asyncio.create_task(house.clean_dirtiest())
        await until(lambda: gate.reached.is_set() or cleaning.done())
        go_on.set()
        await deleting
        gate.let_go.set()
        assert not await cleaning
        assert house.counters.failures == 0
        again = await running.topic("keyed", cleanup_policy="compact")
        running.fill(again)
        assert await house.clean_dirtiest()

    play(tmp_path, scene)
    assert errors(caplog) == []


def test_a_topic_deleted_before_its_turn_is_let_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch, "copy")

    async def scene(running: Running) -> None:
        first = await running.topic("first", cleanup_policy="compact")
        second = await running.topic("second", cleanup_policy="compact")
        running.fill(first)
        running.fill(second)
        cleaning = asyncio.create_task(running.house.clean_dirtiest())
        await gate.wait()
        partitions = running.services.topics.partitions
        await partitions.delete_records({first: 30})  # so that the second has its turn at once
        await running.services.topics.delete(DeleteTopic(second.topic.id))
        again = await running.topic("second", cleanup_policy="compact")
        running.fill(again)
        gate.let_go.set()
        assert not await cleaning
        assert len(records(again)) == 50

    play(tmp_path, scene)
    assert "cannot be compacted" not in caplog.text


def test_records_deleted_meanwhile_end_a_cleaning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch, "copy")

    async def scene(running: Running) -> None:
        jobs = await running.topic("jobs", cleanup_policy="compact")
        running.fill(jobs)
        cleaning = asyncio.create_task(running.house.clean_dirtiest())
        await gate.wait()
        await running.services.topics.partitions.delete_records({jobs: 30})
        gate.let_go.set()
        assert not await cleaning
        assert [one.offset for one in records(jobs)] == list(range(30, 50))
        assert running.leftovers() == []
        assert await running.house.clean_dirtiest()
        assert records(jobs)[-1].offset == 49
        assert jobs.start_offset == 30

    play(tmp_path, scene)


def test_a_log_that_is_gone_is_forgotten_at_once(tmp_path: Path) -> None:
    async def scene(running: Running) -> None:
        partition = await running.topic("t", cleanup_policy="compact")
        running.fill(partition)
        assert await running.house.clean_dirtiest()
        await running.services.topics.delete(DeleteTopic(partition.topic.id))
        assert read_checkpoint(OsDisk(tmp_path)) == {}

    play(tmp_path, scene)


def test_a_checkpoint_is_written_as_kafka_writes_it(caplog: pytest.LogCaptureFixture) -> None:
    disk = MemoryDisk()
    assert read_checkpoint(disk) == {}
    write_checkpoint(disk, {("orders", 1): 7, ("a.b-c", 0): 12})
    text = disk.read("cleaner-offset-checkpoint")
    assert text.startswith(b"0\n2\na.b-c 0 12\norders 1 7\n#headrace format=1 ")
    assert read_checkpoint(disk) == {("orders", 1): 7, ("a.b-c", 0): 12}
    for damaged in (b"", b"1\n0\n", b"0\n2\norders 1 7\n", b"0\n1\norders seven\n", b"\xff"):
        disk.write("cleaner-offset-checkpoint", damaged)
        caplog.clear()
        assert read_checkpoint(disk) == {}
        assert "cleaner-offset-checkpoint: " in caplog.text


def test_sizes_are_for_people() -> None:
    told = [size_text(count) for count in (0, 999, 1200, 340_000_000, 1.2e9, 5e15)]
    assert told == ["0 B", "999 B", "1.2 KB", "340 MB", "1.2 GB", "5000 TB"]
