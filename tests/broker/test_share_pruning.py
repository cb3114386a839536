"""The journal of share groups is cut at its front, and what it says stays the same."""

import asyncio
import contextlib
import errno
import logging
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from headrace.broker.partitions import Partition, Partitions, StartOutcome
from headrace.broker.replay import JournalDamaged
from headrace.broker.runtime import StorageFault
from headrace.broker.shares import STATE_TOPIC
from headrace.core.catalog import CreateTopic, Topic
from headrace.core.errors import Refused
from headrace.core.runs import State
from headrace.core.shard_words import (
    AcquireLease,
    AlterShareOffsets,
    CommitLease,
    DeleteShareGroup,
    DeleteShareOffsets,
    On,
    OpenLease,
)
from headrace.core.share_group import Heartbeat
from headrace.core.share_words import Acknowledge, Acknowledged, Acquire, ShareKey, Verdict
from headrace.core.types import MemberId, Span
from headrace.folder.overlay import OverlayDisk
from headrace.folder.repair import repair_disk
from headrace.log import share_batches, times
from headrace.log.api import CorruptFileError, CorruptRecordsError, OffsetOutOfRange
from headrace.log.memory_disk import MemoryDisk, MemoryFile
from headrace.wire.batches import HEADER_BYTES, Record, read_header
from headrace.wire.checksums import crc32c

from . import inside_rig
from .inside_rig import Inside, counted_turns
from .partition_rig import until

MEMBER = MemberId("member")
MINUTES_5 = 300_000
DAY = 86_400_000


class Broker(Inside):
    def __init__(self, disk: MemoryDisk, **settings: str) -> None:
        given = {"headrace_share_history_ms": "0", "headrace_durability": "fsync"}
        super().__init__(disk, **given | settings)
        self.clock.advance(10 * MINUTES_5)

    @property
    def journal(self) -> Partition:
        return self.services.shares.journals[0]

    async def topic(self) -> Topic:
        known = self.services.catalog.topics.get("orders")
        if known is not None:
            return known
        made = await self.services.topics.create(CreateTopic("orders", uuid4(), 1, {}))
        assert isinstance(made, Topic)
        await self.produce(1000)
        return made

    async def produce(self, count: int) -> None:
        log = self.services.topics.partition("orders", 0)
        assert log is not None
        log.append_records([Record(0, self.clock.wall(), b"", b"") for _ in range(count)])
        await log.durable()

    async def ask(self, group: str, command: Any) -> Any:
        answer = await self.services.shares.ask(group, command)
        assert not isinstance(answer, Refused), answer
        return answer

    async def join(self, group: str) -> ShareKey:
        topic = await self.topic()
        await self.ask(group, Heartbeat(group, MEMBER, 0, frozenset({"orders"})))
        return ShareKey(group, topic.id, 0)

    async def work(self, key: ShareKey, times: int, second: Verdict = Verdict.REJECT) -> None:
        """Acquire two records and settle one of them, so many times."""
        for _ in range(times):
            first = self.share(key).next_fetch_offset()
            wanted = Acquire(MEMBER, [Span(first, first + 1)], 2, 2000, exact=True)
            (taken, *_) = await self.ask(key.group, On(key, wanted))
            offsets = Span(*next(iter(taken.spans)))
            for offset, verdict in zip(offsets, (Verdict.ACCEPT, second), strict=False):
                said = Acknowledged(Span(offset, offset), [verdict], None)
                await self.ask(key.group, On(key, Acknowledge(MEMBER, [said])))

    def share(self, key: ShareKey) -> Any:
        return self.services.shares.machine(key.group).partitions[key]

    def state(self, group: str = "busy") -> dict[str, Any]:
        """All that must be the same after a restart, of the groups of one shard."""
        machine = self.services.shares.machine(group)
        found: dict[str, Any] = {
            str(key): (one.start, [(run.span, run.state, run.deliveries) for run in one.runs])
            for key, one in machine.partitions.items()
        }
        return found | {str(key): lease for key, lease in machine.leases.items()}

    async def prune(self, rounds: int = 1) -> None:
        for _ in range(rounds):
            self.clock.advance(MINUTES_5)
            await self.services.share_pruning.prune()


Scene = Callable[[Broker], Coroutine[Any, Any, None]]


def play(scene: Scene, disk: MemoryDisk, **settings: str) -> None:
    inside_rig.play(lambda: Broker(disk, **settings), scene)


def test_the_journal_begins_at_the_oldest_of_the_newest_snapshots() -> None:
    disk, kept = MemoryDisk(), list[Any]()

    async def scene(broker: Broker) -> None:
        settings = broker.services.config.share_updates_per_snapshot
        assert settings == 5
        busy = await broker.join("busy")
        await broker.work(busy, 20)
        assert broker.journal.start_offset == 0
        await broker.prune()
        end = broker.journal.log.end_offset
        assert 0 < end - broker.journal.start_offset <= settings + 1
        await broker.work(busy, 1)
        kept.append(broker.state())

    async def later(broker: Broker) -> None:
        assert broker.journal.start_offset > 0
        assert broker.state() == kept[0]
        await broker.work(next(iter(broker.services.shares.machine("busy").partitions)), 3)

    updates = {"share_coordinator_snapshot_update_records_per_snapshot": "5"}
    play(scene, disk, **updates)
    disk.crash()
    play(later, disk, **updates)


def test_what_rests_is_written_anew_once_it_holds_much_back() -> None:
    disk, kept = MemoryDisk(), list[Any]()

    async def scene(broker: Broker) -> None:
        idle = await broker.join("idle")
        await broker.work(idle, 2)
        lease = ("lease", "checkpoint")
        await broker.ask("lease", OpenLease(lease, ("orders",), True))
        await broker.ask("lease", AcquireLease(lease, 1, 1, 7))
        busy = await broker.join("busy")
        await broker.work(busy, 30)
        await broker.prune()
        assert broker.journal.start_offset == 0  # nothing is cold yet: the group is too young
        await broker.prune()
        assert broker.journal.start_offset > 50
        start, end = broker.journal.start_offset, broker.journal.log.end_offset
        await broker.prune(5)
        assert broker.journal.log.end_offset - end < 5  # nothing is gained by writing it again
        assert broker.journal.start_offset >= start
        kept.append(broker.state())

    async def later(broker: Broker) -> None:
        await broker.ask("lease", OpenLease(("lease", "checkpoint"), ("orders",), True))
        done = await broker.ask("lease", CommitLease(("lease", "checkpoint"), 2, 1))
        assert done.accepted == 7
        before = kept[0]
        after = broker.state()
        for name in before:
            if name.startswith(("idle", "busy")):
                assert after[name] == before[name]

    updates = {"share_coordinator_snapshot_update_records_per_snapshot": "5"}
    play(scene, disk, **updates)
    disk.crash()
    play(later, disk, **updates)


def test_who_prunes_often_does_not_wait_for_ever_for_what_rests() -> None:
    async def scene(broker: Broker) -> None:
        await broker.work(await broker.join("idle"), 2)
        await broker.work(await broker.join("busy"), 30)
        for _ in range(1_500):
            broker.clock.advance(MINUTES_5 // 1_200)
            await broker.services.share_pruning.prune()
        assert broker.journal.start_offset > 50

    play(
        scene,
        MemoryDisk(),
        share_coordinator_snapshot_update_records_per_snapshot="5",
        share_coordinator_state_topic_num_partitions="1",
    )


class _Life(Broker):
    """A life of a broker, ten minutes after the one before; `pruned` is set by its first prune."""

    def __init__(self, disk: MemoryDisk, number: int) -> None:
        super().__init__(disk, share_coordinator_snapshot_update_records_per_snapshot="5")
        self.clock.advance(number * 2 * MINUTES_5)
        self.pruned = asyncio.Event()
        self.services.partitions.on_start_moved.append(lambda _: self.pruned.set())


def test_lives_shorter_than_the_interval_do_not_let_the_journal_grow() -> None:
    disk, ends = MemoryDisk(), list[int]()

    async def scene(broker: _Life) -> None:
        if not ends:
            await broker.work(await broker.join("idle"), 2)
        else:
            await broker.pruned.wait()
            assert broker.journal.log.end_offset - broker.journal.start_offset <= 12
        await broker.work(await broker.join("busy"), 30)
        ends.append(broker.journal.log.end_offset)

    for _ in range(4):
        inside_rig.play(lambda: _Life(disk, len(ends)), scene)
        disk.crash()
    assert ends[-1] > 4 * 30


def test_what_was_reset_or_deleted_stays_so() -> None:
    disk, kept, lease = MemoryDisk(), list[Any](), ("gone", "checkpoint")

    async def scene(broker: Broker) -> None:
        busy, reset = await broker.join("busy"), await broker.join("reset")
        await broker.work(reset, 2)
        await broker.ask("gone", OpenLease(lease, ("orders",), True))
        await broker.ask("gone", AcquireLease(lease, 1, 1, 7))
        await broker.ask("reset", Heartbeat("reset", MEMBER, -1))
        broker.clock.advance(MINUTES_5)  # the lease is silent
        await broker.work(busy, 3)
        await broker.ask("reset", AlterShareOffsets("reset", (("orders", 0, 9),)))
        await broker.ask("gone", DeleteShareGroup("gone"))
        await broker.work(busy, 7)
        await broker.prune()
        assert broker.journal.start_offset > 5
        kept.append(broker.state())
        assert {name.split(":")[0] for name in kept[0]} == {"busy", "reset"}

    async def later(broker: Broker) -> None:
        assert broker.state() == kept[0]
        (reset,) = broker.services.shares.machine("reset").partitions_of("reset").values()
        assert (reset.start, reset.end, reset.state_epoch) == (9, 9, 1)
        await broker.work(await broker.join("busy"), 30)
        await broker.prune(2)  # the deletion itself is pruned, and the reset written anew
        kept[0] = broker.state()

    updates = {"share_coordinator_snapshot_update_records_per_snapshot": "5"}
    play(scene, disk, **updates)
    for _ in range(2):
        disk.crash()
        play(later, disk, **updates)


def test_history_is_kept_for_people_as_long_as_is_set() -> None:
    async def scene(broker: Broker) -> None:
        busy = await broker.join("busy")
        await broker.work(busy, 20)
        await broker.prune(2)  # ten minutes are over
        assert broker.journal.start_offset == 0
        await broker.work(busy, 20)
        await broker.prune(2)
        assert broker.journal.start_offset > 0

    play(
        scene,
        MemoryDisk(),
        headrace_share_history_ms=str(3 * MINUTES_5),
        share_coordinator_snapshot_update_records_per_snapshot="5",
    )


def test_the_search_for_young_records_lets_others_have_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a wall clock was set back, it may walk over a whole segment of the journal."""
    monkeypatch.setattr(times, "_HEADERS_PER_STEP", 1)

    async def scene(broker: Broker) -> None:
        busy = await broker.join("busy")
        await broker.work(busy, 10)
        broker.clock.advance(3 * MINUTES_5)
        old = broker.journal.log.end_offset
        await broker.work(busy, 1)
        async with counted_turns() as turns:
            await broker.services.share_pruning.prune()
        assert turns[0] > old

    play(scene, MemoryDisk(), headrace_share_history_ms=str(2 * MINUTES_5))


def test_a_state_that_is_written_during_the_search_replaces_none_before_it_is_durable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk, kept, is_cut = MemoryDisk(), list[Any](), threading.Event()
    sync = MemoryFile.sync

    def sync_once_cut(file: MemoryFile) -> None:
        assert is_cut.wait(5)
        sync(file)

    async def scene(broker: Broker) -> None:
        busy = await broker.join("busy")
        await broker.produce(100)
        await broker.work(busy, 20, Verdict.ACCEPT)
        kept.append(broker.state())
        threads, before = broker.services.decoding_threads, broker.journal.log.end_offset
        search, tasks = threads.search, list[asyncio.Task[None]]()

        async def searched(partition: Partition, begin: Any) -> Any:
            found = await search(partition, begin)
            if not tasks and broker.journal.log.durable_end == before and searches.pop():
                monkeypatch.setattr(MemoryFile, "sync", sync_once_cut)
                tasks.append(asyncio.create_task(broker.work(busy, 1)))
                await until(lambda: broker.journal.log.end_offset > before)
            return found

        shard = broker.services.shares.shards[0]
        durable, waits = shard.durable, asyncio.Event()

        async def waited() -> None:
            if tasks:
                waits.set()
            await durable()

        monkeypatch.setattr(shard, "durable", waited)
        searches = [True, False]  # the second one is for history
        threads.search = searched  # type: ignore[method-assign]  # with a write before its end
        broker.clock.advance(MINUTES_5)
        pruning = asyncio.create_task(broker.services.share_pruning.prune())
        waiting = asyncio.create_task(waits.wait())
        await asyncio.wait((pruning, waiting), return_when=asyncio.FIRST_COMPLETED)
        (writing,) = tasks
        disk.crash()
        is_cut.set()
        for task in (pruning, writing):
            with contextlib.suppress(StorageFault, OSError, AssertionError):
                await task

    async def later(broker: Broker) -> None:
        assert broker.state() == kept[0]

    updates = {"share_coordinator_snapshot_update_records_per_snapshot": "1"}
    with contextlib.suppress(OSError):  # closing a log that the power cut left
        play(scene, disk, **updates)
    monkeypatch.setattr(MemoryFile, "sync", sync)
    play(later, disk, **updates)


@pytest.mark.parametrize("error", [30 * DAY, -300 * DAY])
def test_history_is_kept_while_the_wall_clock_is_wrong(error: int) -> None:
    async def scene(broker: Broker) -> None:
        await broker.work(await broker.join("busy"), 20)
        broker.clock.set_wall(error)
        broker.clock.advance(2_000)
        await broker.prune()
        assert broker.journal.start_offset == 0
        broker.clock.set_wall(-error)
        broker.clock.advance(DAY)
        await broker.work(await broker.join("busy"), 20)
        await broker.prune()
        assert broker.journal.start_offset > 0

    play(
        scene,
        MemoryDisk(),
        headrace_share_history_ms=str(DAY),
        share_coordinator_snapshot_update_records_per_snapshot="5",
    )


@pytest.mark.parametrize(
    "outcome",
    [OSError(errno.ENOSPC, "No space left on device"), OffsetOutOfRange(9, 0, 5)],
    ids=lambda one: type(one).__name__,
)
def test_a_disk_that_fails_is_told_and_nothing_is_removed(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch,
    outcome: OSError | OffsetOutOfRange,
) -> None:  # fmt: skip
    """A failed sync may move the end of the journal below the offset."""
    caplog.set_level(logging.WARNING, "headrace.broker")

    async def delete_records(
        _self: Partitions, wanted: dict[Partition, int]
    ) -> dict[Partition, StartOutcome]:
        return dict.fromkeys(wanted, outcome)

    async def scene(broker: Broker) -> None:
        await broker.work(await broker.join("busy"), 20)
        monkeypatch.setattr(Partitions, "delete_records", delete_records)
        await broker.prune()
        assert broker.journal.start_offset == 0
        monkeypatch.undo()
        await broker.prune()
        assert broker.journal.start_offset > 0

    play(scene, MemoryDisk(), share_coordinator_snapshot_update_records_per_snapshot="5")
    assert f"{STATE_TOPIC}-0 is not pruned this time: " in caplog.text


def _undecodable(data: bytes | bytearray) -> bytes:
    """Change the length of the first record of a batch; its checksum is right."""
    changed = bytearray(data)
    changed[HEADER_BYTES] ^= 0x7F
    changed[17:21] = int(crc32c(bytes(changed[21:]))).to_bytes(4)
    return bytes(changed)


@pytest.mark.parametrize("is_decodable", [False, True])
def test_damage_that_pruning_meets_is_reported_once_with_a_remedy(
    caplog: pytest.LogCaptureFixture, is_decodable: bool
) -> None:
    disk = MemoryDisk()

    async def scene(broker: Broker) -> None:
        await broker.work(await broker.join("busy"), 3)
        path = f"{broker.journal.log.segments()[-1].path}.log"
        content = disk._files[path]
        size = read_header(bytes(content.data)).size
        if is_decodable:
            content.data[size - 1] ^= 1
        else:
            content.data[:size] = _undecodable(content.data[:size])
        for _ in range(3):  # the first batch is younger than a snapshot at rest
            await broker.services.share_pruning.prune()
        assert broker.journal.start_offset == 0
        assert path in (broker.services.trouble() or "")
        (message,) = (one.getMessage() for one in caplog.records if "prune" in one.getMessage())
        assert message.startswith(f"{STATE_TOPIC}-0 cannot be pruned: {path} at byte 0: ")
        assert message.endswith(
            "; stop the broker, and run `headrace check`, then `headrace repair` or restore a "
            "backup"
        )

    caplog.set_level(logging.WARNING, "headrace")
    play(scene, disk, share_coordinator_state_topic_num_partitions="1")


def test_a_missing_segment_that_pruning_meets_is_reported_once_with_a_remedy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = MemoryDisk()

    async def scene(broker: Broker) -> None:
        await broker.work(await broker.join("busy"), 3)
        log = broker.journal.log
        path = log.segments()[-1].file_path
        next(iter(log._segments)).release()  # as of a segment that was not read for some time
        del disk._files[path]
        for _ in range(3):
            await broker.services.share_pruning.prune()
        assert f"{path}: the file is missing" in (broker.services.trouble() or "")
        (message,) = (one.getMessage() for one in caplog.records if "prune" in one.getMessage())
        assert message.startswith(f"{STATE_TOPIC}-0 cannot be pruned: {path}: the file is missing;")

    caplog.set_level(logging.WARNING, "headrace")
    play(scene, disk, share_coordinator_state_topic_num_partitions="1")


def test_a_search_that_meets_damage_is_reported_and_made_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING, "headrace.broker")
    damage = CorruptFileError("x.log", "a record goes past its end", position=9)

    async def search(*_: Any) -> None:
        raise CorruptRecordsError(damage)

    async def scene(broker: Broker) -> None:
        await broker.work(await broker.join("busy"), 20)
        threads, pruning = broker.services.decoding_threads, broker.services.share_pruning
        monkeypatch.setattr(threads, "search", search)
        broker.clock.advance(MINUTES_5)
        pruning.work.end_pauses()
        await until(lambda: "cannot be pruned" in caplog.text)
        assert broker.journal.start_offset == 0
        monkeypatch.undo()
        pruning.work.end_pauses()
        await until(lambda: broker.journal.start_offset > 0)

    play(scene, MemoryDisk(), share_coordinator_snapshot_update_records_per_snapshot="5")
    message = f"{STATE_TOPIC}-0 cannot be pruned: x.log at byte 9: a record goes past its end; stop"
    assert caplog.text.count(message) == 1


def test_updates_whose_snapshot_never_comes_stop_the_start() -> None:
    disk = MemoryDisk()

    async def scene(broker: Broker) -> None:
        await broker.work(await broker.join("busy"), 2)
        partitions = broker.services.topics.partitions
        await partitions.delete_records({broker.journal: 1})  # the snapshot, which is still needed

    play(scene, disk)
    with pytest.raises(JournalDamaged, match=r"updates of busy:.*:0 without a snapshot of it"):
        play(scene, disk)


@pytest.mark.parametrize(
    "group",
    [
        "busy",
        "missing-x",
        "the file is missing",
        "a newer Headrace",
        "the file cannot be read: x",
        "the record at offset 1 cannot be replayed",
    ],
)
def test_a_repair_restores_a_share_partition_from_its_updates(group: str) -> None:
    disk = MemoryDisk()
    before, after = dict[str, Any](), dict[str, Any]()

    async def scene(broker: Broker) -> None:
        await broker.topic()
        for name in (group, "other"):
            await broker.ask(name, AlterShareOffsets(name, (("orders", 0, 0),)))
            await broker.work(await broker.join(name), 5)
        before.update(broker.state(group))
        partitions = broker.services.topics.partitions
        await partitions.delete_records({broker.journal: 1})  # the snapshot of the first group

    async def later(broker: Broker) -> None:
        after.update(broker.state(group))
        await broker.work(await broker.join(group), 5)

    one_shard = {"share_coordinator_state_topic_num_partitions": "1"}
    play(scene, disk, **one_shard)
    done = repair_disk(disk, partial(_view_of, disk), Path(), lambda _: None)
    assert done.is_complete, done.left
    (action,) = done.actions
    assert action.path == f"{STATE_TOPIC}-0"
    assert f"write a snapshot of {group}:" in action.text
    assert not action.lost
    play(later, disk, **one_shard)
    assert _finished(after) == _finished(before)
    play(later, disk, **one_shard)


def test_a_repair_writes_a_long_snapshot_in_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first record alone would be a snapshot that lacks ranges."""
    disk, ends = MemoryDisk(), list[int]()

    async def scene(broker: Broker) -> None:
        await broker.topic()
        await broker.ask("busy", AlterShareOffsets("busy", (("orders", 0, 0),)))
        key = await broker.join("busy")
        await broker.ask("busy", On(key, Acquire(MEMBER, [Span(0, 9)], 10, 2000, exact=True)))
        for offset in range(1, 10, 2):  # so that a range is left for each
            accepted = Acknowledged(Span(offset, offset), [Verdict.ACCEPT], None)
            await broker.ask("busy", On(key, Acknowledge(MEMBER, [accepted])))
        await broker.services.topics.partitions.delete_records({broker.journal: 1})
        ends.append(broker.journal.log.end_offset)

    async def later(broker: Broker) -> None:
        (written,) = broker.journal.log.read(ends[0], 1 << 20).headers
        assert written.last_offset > written.base_offset == ends[0]

    play(scene, disk)
    monkeypatch.setattr(share_batches, "RECORD_BYTES_MAX", 20)
    assert repair_disk(disk, partial(_view_of, disk), Path(), lambda _: None).is_complete
    play(later, disk)


def _view_of(disk: MemoryDisk) -> OverlayDisk:
    return OverlayDisk.of_contents({path: bytes(one.data) for path, one in disk._files.items()})


def _finished(state: dict[str, Any]) -> dict[str, Any]:
    """The SPSO and the finished records: locks are not kept."""
    return {
        key: (start, [run for run in runs if run[1] in (State.ACKNOWLEDGED, State.ARCHIVED)])
        for key, (start, runs) in state.items()
    }


def test_a_retained_group_is_written_again_before_its_record_goes() -> None:
    disk = MemoryDisk()

    async def scene(broker: Broker) -> None:
        await broker.topic()
        await broker.ask("bare", AlterShareOffsets("bare", (("orders", 0, 0),)))
        await broker.ask("bare", DeleteShareOffsets("bare", ("orders",)))
        busy = await broker.join("busy")
        for _ in range(4):
            await broker.work(busy, 20)
            await broker.prune(2)
        assert broker.journal.start_offset > 2

    async def later(broker: Broker) -> None:
        assert broker.services.shares.exists("bare")
        assert not broker.services.shares.exists("never")

    updates = {"share_coordinator_snapshot_update_records_per_snapshot": "5"}
    play(scene, disk, **updates)
    disk.crash()
    play(later, disk, **updates)
