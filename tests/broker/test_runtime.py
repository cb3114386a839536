"""The runtime: what an answer promises, what a failing disk and a power cut leave, and timers."""

import asyncio
import random
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import pytest

from headrace.broker import runtime
from headrace.broker.loop_turns import Turns
from headrace.broker.replay import JournalDamaged
from headrace.broker.runtime import ShardRuntime, StorageFault
from headrace.broker.shards import all_durable
from headrace.core.errors import Refused
from headrace.core.machine import Entry, LateEntries
from headrace.core.runs import State
from headrace.core.shard import ShareShard
from headrace.core.shard_words import Command, Event, Keep, On, Recovered
from headrace.core.share_group import Heartbeat, Timing, TopicView
from headrace.core.share_words import (
    Acknowledge,
    Acknowledged,
    Acquire,
    Policy,
    ShareKey,
    Verdict,
)
from headrace.core.types import MemberId, Now, Span
from headrace.log import record_codec, share_batches
from headrace.log.memory_disk import MemoryDisk, VirtualClock
from headrace.log.os_disk import SystemClock
from headrace.log.record_codec import ShareJournal
from headrace.log.segments import SegmentedLog
from headrace.wire import batches

TOPIC = UUID(int=3)
KEY = ShareKey("group", TOPIC, 0)
MEMBER = MemberId("member")
FOLDER = "__share_group_state-0"


@dataclass
class World:
    """The outside of the shard, with locks as long as a test wants them."""

    lock_ms: int = 30_000

    def policy(self, group: str) -> Policy:
        return Policy(lock_ms=self.lock_ms, window=100_000)

    def timing(self, group: str) -> Timing:
        return Timing()

    def starts_earliest(self, group: str) -> bool:
        return True

    def topic(self, name: str) -> TopicView | None:
        return TopicView(TOPIC, (0,), (10_000,))


Shard = ShardRuntime[Command, Event]


def shard_on(
    disk: MemoryDisk,
    *,
    fsync: bool = False,
    world: World | None = None,
    clock: Any = None,
    synced: asyncio.Event | None = None,
    journal: SegmentedLog | None = None,
    roll: Callable[[], Coroutine[Any, Any, None]] | None = None,
    turns: Turns | None = None,
) -> Shard:
    """A process: opens the journal, replays it, and begins; a sync takes until `synced`."""

    async def sync() -> None:
        assert synced is not None
        await synced.wait()

    def build() -> tuple[ShareShard, ShareJournal]:
        machine = ShareShard(world or World())
        return machine, ShareJournal(machine, updates_per_snapshot=7)

    log = journal or SegmentedLog(disk, FOLDER)

    async def roll_in_thread() -> None:
        log.begin_seal()
        await asyncio.get_running_loop().run_in_executor(None, log.prepare_next)

    shard: Shard = ShardRuntime(
        "shard",
        build,
        log,
        clock or VirtualClock(),
        fsync=fsync,
        recovered=Recovered(),
        sync=sync if synced is not None else None,
        roll=roll or roll_in_thread,
        turns=turns,
    )
    shard.load()
    shard.start()
    return shard


def runs(shard: Shard) -> list[tuple[str, str, int]]:
    machine = shard.machine
    assert isinstance(machine, ShareShard)
    return [(str(r.span), r.state.name, r.deliveries) for r in machine.partitions[KEY].runs]


async def joined(shard: Shard) -> None:
    await shard.ask(Heartbeat("group", MEMBER, 0, frozenset({"topic"})))


async def acquired(shard: Shard, first: int, last: int) -> None:
    command = Acquire(MEMBER, [Span(first, last)], 10_000, 100_000, exact=True)
    await shard.ask(On(KEY, command))


async def said(shard: Shard, verdict: Verdict, first: int, last: int) -> Any:
    batch = Acknowledged(Span(first, last), [verdict])
    return await shard.ask(On(KEY, Acknowledge(MEMBER, [batch])))


async def rebuilt(shard: ShardRuntime[Any, Any]) -> None:
    """Return once the shard has no fault, and decides commands."""
    async with asyncio.timeout(60):
        while shard.fault is not None or shard._rebuilding is not None:  # noqa: ASYNC110  # there is no event to wait for
            await asyncio.sleep(0.001)


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(work())


def test_replay_finds_what_was_answered() -> None:
    async def work() -> None:
        disk = MemoryDisk()
        shard = shard_on(disk)
        await joined(shard)
        await acquired(shard, 0, 9)
        await said(shard, Verdict.ACCEPT, 2, 3)
        await said(shard, Verdict.RELEASE, 5, 5)
        again = shard_on(disk)
        assert runs(again) == [
            ("0-1", "AVAILABLE", 0),
            ("2-3", "ACKNOWLEDGED", 1),
            ("4", "AVAILABLE", 0),
            ("5", "AVAILABLE", 1),
        ]

    run(work)


def test_commands_of_one_turn_are_one_batch() -> None:
    async def work() -> None:
        disk = MemoryDisk()
        shard = shard_on(disk)
        await joined(shard)
        await acquired(shard, 0, 99)
        log = SegmentedLog(disk, FOLDER)
        before = len(log.read(0, 1 << 20).headers)
        await asyncio.gather(*(said(shard, Verdict.ACCEPT, n, n) for n in range(100)))
        log = SegmentedLog(disk, FOLDER)
        assert len(log.read(0, 1 << 20).headers) == before + 1

    run(work)


def test_failing_disk_is_told_and_nothing_unwritten_stays() -> None:
    async def work() -> None:
        disk = MemoryDisk()
        shard = shard_on(disk)
        await joined(shard)
        await acquired(shard, 0, 9)
        await said(shard, Verdict.ACCEPT, 1, 1)
        disk.fail_after(20)
        with pytest.raises(StorageFault, match="space"):
            await said(shard, Verdict.ACCEPT, 2, 2)
        disk.fail_after(None)
        await rebuilt(shard)
        await joined(shard)  # membership went with the machine; the client rejoins
        assert runs(shard) == [("0", "AVAILABLE", 0), ("1", "ACKNOWLEDGED", 1)]
        await acquired(shard, 0, 0)
        await said(shard, Verdict.ACCEPT, 0, 0)
        assert runs(shard_on(disk)) == []

    run(work)


def test_what_a_fault_took_back_is_not_told_as_durable() -> None:
    """Who reads the state, and then waits until it is durable, may have read what is no more."""

    async def work() -> None:
        disk = MemoryDisk()
        shard = shard_on(disk)
        await joined(shard)
        await acquired(shard, 0, 9)
        disk.failing.add("append")
        with pytest.raises(StorageFault):
            await said(shard, Verdict.ACCEPT, 0, 4)
        disk.failing.clear()
        read = runs(shard)
        with pytest.raises(StorageFault):
            await shard.durable()
        await rebuilt(shard)
        assert runs(shard) != read
        await shard.durable()

    run(work)


def test_a_fault_that_is_over_when_the_other_shards_are_durable_is_told() -> None:
    async def work() -> None:
        disk, synced = MemoryDisk(), asyncio.Event()
        synced.set()
        slow = shard_on(MemoryDisk(), fsync=True, synced=synced)
        shard = shard_on(disk)
        for one in (slow, shard):
            await joined(one)
            await acquired(one, 0, 9)
        synced.clear()
        disk.failing.add("append")
        accepting = [
            asyncio.ensure_future(said(one, Verdict.ACCEPT, 0, 4)) for one in (slow, shard)
        ]
        await asyncio.sleep(0)
        read = runs(shard)
        waiting = asyncio.ensure_future(all_durable([slow, shard]))
        with pytest.raises(StorageFault):
            await accepting[1]
        disk.failing.clear()
        await rebuilt(shard)
        assert (runs(shard) != read, shard.fault) == (True, None)
        assert not waiting.done()
        synced.set()
        assert isinstance(await waiting, Refused)
        await accepting[0]
        assert await all_durable([slow, shard]) is None

    run(work)


def test_disk_that_still_fails_keeps_being_told() -> None:
    async def work() -> None:
        disk = MemoryDisk()
        shard = shard_on(disk)
        await joined(shard)
        disk.fail_after(0)
        for _ in range(2):
            with pytest.raises(StorageFault):
                await shard.ask(Heartbeat("other", MEMBER, 0, frozenset({"topic"})))

    run(work)


def test_failed_sync_takes_nothing_that_was_answered_and_needs_no_restart(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work() -> None:
        disk, clock = MemoryDisk(), VirtualClock()
        shard = shard_on(disk, fsync=True, clock=clock)
        await joined(shard)
        await acquired(shard, 0, 9)
        await said(shard, Verdict.ACCEPT, 1, 1)
        disk.failing.add("sync")
        for _ in range(4):
            with pytest.raises(StorageFault):
                await said(shard, Verdict.ACCEPT, 2, 2)
        disk.failing.clear()
        clock.advance(5_000)
        await rebuilt(shard)
        await joined(shard)
        assert runs(shard) == [("0", "AVAILABLE", 0), ("1", "ACKNOWLEDGED", 1)]
        await acquired(shard, 0, 0)
        await said(shard, Verdict.ACCEPT, 0, 0)
        disk.crash(0.0)
        assert runs(shard_on(disk, fsync=True)) == []

    run(work)
    told = [one.getMessage() for one in caplog.records if one.levelname in {"ERROR", "WARNING"}]
    assert [one.split(":")[1].split(",")[0] for one in told] == [
        " journal write failed",
        " journal is written again",
    ]


def test_disk_that_comes_back_is_noticed_without_any_request() -> None:
    async def work() -> None:
        disk = MemoryDisk()
        shard = shard_on(disk)
        await joined(shard)
        dropped = shard.machine
        disk.fail_after(0)
        disk.failing.add("pread")
        with pytest.raises(StorageFault):
            await shard.ask(Heartbeat("other", MEMBER, 0, frozenset({"topic"})))
        await asyncio.sleep(0)
        assert shard.machine is dropped
        disk.fail_after(None)
        disk.failing.clear()

        async def rebuilt() -> None:
            while shard.machine is dropped:  # noqa: ASYNC110  # there is no event to wait for
                await asyncio.sleep(0.01)

        await asyncio.wait_for(rebuilt(), 60)
        assert isinstance(shard.machine, ShareShard)
        assert KEY in shard.machine.partitions

    run(work)


def test_lock_ends_without_any_request() -> None:
    async def work() -> None:
        shard = shard_on(MemoryDisk(), world=World(lock_ms=500), clock=SystemClock())
        await joined(shard)
        await acquired(shard, 0, 9)
        assert runs(shard) == [("0-9", "ACQUIRED", 1)]
        released = asyncio.Event()
        shard.listeners.append(lambda events: released.set())
        await asyncio.wait_for(released.wait(), 60)
        assert runs(shard) == [("0-9", "AVAILABLE", 1)]
        await shard.close()

    run(work)


def test_records_have_the_time_of_their_decision() -> None:
    async def work() -> None:
        disk, clock = MemoryDisk(), VirtualClock()
        shard = shard_on(disk, clock=clock)
        await joined(shard)
        await acquired(shard, 0, 9)
        decided_at, appends = clock.wall(), shard.appends
        batch = Acknowledged(Span(0, 9), [Verdict.ACCEPT])
        shard.decide(On(KEY, Acknowledge(MEMBER, [batch])))
        clock.advance(5_000)  # it is written in the next turn of the loop
        assert shard.appends == appends
        await shard.durable()
        assert shard.appends == appends + 1
        data = disk.read(f"{FOLDER}/{0:020}.log", 1 << 20, 0)
        assert batches.headers(data)[-1].max_timestamp == decided_at
        await shard.close()

    run(work)


def test_an_alarm_stands_while_the_state_is_rebuilt() -> None:
    """The new machine has the deadlines, and the alarm of the old one does for them."""

    async def work() -> None:
        disk, clock = MemoryDisk(), VirtualClock()
        shard = shard_on(disk, world=World(lock_ms=500), clock=clock)
        await joined(shard)
        await acquired(shard, 0, 9)
        disk.failing.add("append")
        with pytest.raises(StorageFault):
            await said(shard, Verdict.ACCEPT, 0, 0)
        disk.failing.clear()
        await rebuilt(shard)
        clock.advance(400)
        await joined(shard)
        await acquired(shard, 0, 9)
        clock.advance(100)  # the alarm of before
        shard._tick()
        assert [state for _, state, _ in runs(shard)] == ["ACQUIRED"]
        assert shard._alarm is not None
        clock.advance(400)
        shard._tick()
        assert [state for _, state, _ in runs(shard)] == ["AVAILABLE"]
        await shard.close()

    run(work)


def test_an_alarm_that_is_early_is_set_again() -> None:
    """A deadline that moves away, as with every heartbeat, leaves the alarm where it was."""

    async def work() -> None:
        clock = VirtualClock()
        shard = shard_on(MemoryDisk(), world=World(lock_ms=500), clock=clock)
        await joined(shard)
        await acquired(shard, 0, 9)
        alarm = shard._alarm
        clock.advance(400)
        await said(shard, Verdict.ACCEPT, 0, 9)
        await acquired(shard, 10, 19)
        assert shard._alarm is alarm
        clock.advance(100)  # the lock of the first acquisition would end
        shard._tick()
        assert runs(shard)[-1] == ("10-19", "ACQUIRED", 1)
        assert shard._alarm is not None
        assert shard._alarm is not alarm
        clock.advance(400)
        shard._tick()
        assert runs(shard)[-1] == ("10-19", "AVAILABLE", 1)
        await shard.close()

    run(work)


def test_what_ended_by_time_is_durable_before_an_answer_rests_on_it() -> None:
    """Nobody waits for the write of a lock that ended; who comes next does."""

    async def work() -> None:
        disk = MemoryDisk()
        shard = shard_on(disk, fsync=True, world=World(lock_ms=500), clock=SystemClock())
        await joined(shard)
        await acquired(shard, 0, 9)
        was_durable, appends = shard.is_durable, shard.appends

        async def written() -> None:
            while shard.appends == appends:  # noqa: ASYNC110  # there is no event to wait for
                await asyncio.sleep(0.001)

        await asyncio.wait_for(written(), 60)
        assert (was_durable, shard.is_durable) == (True, False)
        await shard.durable()
        disk.crash(0.0)
        assert runs(shard_on(disk, fsync=True)) == [("0-9", "AVAILABLE", 1)]

    run(work)


def test_record_from_the_future_stops_the_start() -> None:
    async def work() -> None:
        disk = MemoryDisk()
        data = bytearray(batches.build([batches.Record(0, 0, b"\x7f\xff", b"")]))
        SegmentedLog(disk, FOLDER).append(data, batches.headers(data))
        with pytest.raises(JournalDamaged, match="from the future"):
            shard_on(disk)

    run(work)


class Rolling:
    """A shard whose journal is full, and that makes room once it may."""

    def __init__(self, *, fsync: bool = False) -> None:
        self.disk, self.clock = MemoryDisk(), VirtualClock()
        self.rolls = 0
        self.may_end = asyncio.Event()
        self.journal = SegmentedLog(self.disk, FOLDER, segment_bytes=1)
        self.shard = shard_on(
            self.disk, fsync=fsync, clock=self.clock, journal=self.journal, roll=self.roll
        )

    async def roll(self) -> None:
        self.rolls += 1
        await self.may_end.wait()
        self.journal.begin_seal()
        await asyncio.get_running_loop().run_in_executor(None, self.journal.prepare_next)

    @property
    def batches(self) -> int:
        return len(self.journal.segments())  # one in each

    async def full(self) -> list[asyncio.Task[Any]]:
        """Make two commands wait for room."""
        self.may_end.set()
        await joined(self.shard)
        await acquired(self.shard, 0, 9)
        self.may_end.clear()
        waiting = [asyncio.create_task(said(self.shard, Verdict.ACCEPT, 0, 1))]
        rolls = self.rolls
        while self.rolls == rolls:  # noqa: ASYNC110  # there is no event to wait for
            await asyncio.sleep(0)
        waiting.append(asyncio.create_task(said(self.shard, Verdict.ACCEPT, 2, 3)))
        for _ in range(5):
            await asyncio.sleep(0)
        return waiting


def test_answers_wait_while_the_journal_makes_room_and_then_share_one_write() -> None:
    async def work() -> None:
        rig = Rolling()
        waiting = await rig.full()
        assert [one.done() for one in waiting] == [False, False]
        assert not rig.shard.is_durable
        before, rolls = rig.batches, rig.rolls
        rig.may_end.set()
        await asyncio.gather(*waiting)
        assert (rig.batches, rig.rolls) == (before + 1, rolls)
        rig.disk.crash(1.0)
        assert _finished(shard_on(rig.disk)) == {0, 1, 2, 3}

    run(work)


@pytest.mark.parametrize("fsync", [True, False])
def test_a_sync_that_fails_while_the_journal_makes_room_is_told_and_healed(fsync: bool) -> None:
    async def work() -> None:
        rig = Rolling(fsync=fsync)
        waiting = await rig.full()
        assert (rig.journal.durable_end < rig.journal.end_offset) == (not fsync)
        dropped = rig.shard.machine
        rig.disk.failing |= {"sync", "open"}
        rig.may_end.set()
        for one in waiting:
            with pytest.raises(StorageFault):
                await one
        rig.disk.failing.clear()
        rig.clock.advance(5_000)
        await rebuilt(rig.shard)
        await joined(rig.shard)
        assert rig.shard.machine is not dropped
        assert _finished(rig.shard) == set()
        await acquired(rig.shard, 0, 9)
        await said(rig.shard, Verdict.ACCEPT, 0, 1)
        assert _finished(rig.shard) == {0, 1}

    run(work)


def test_state_is_not_rebuilt_while_a_thread_works_on_the_journal() -> None:
    async def work() -> None:
        rig = Rolling(fsync=True)
        waiting = await rig.full()
        dropped = rig.shard.machine
        rig.shard._drop(OSError(5, "a sync failed"), [])
        with pytest.raises(StorageFault):
            await waiting[0]
        with pytest.raises(StorageFault):
            await joined(rig.shard)
        assert rig.shard.machine is dropped
        rig.may_end.set()
        await rebuilt(rig.shard)
        assert rig.shard.machine is not dropped
        await joined(rig.shard)
        with pytest.raises(StorageFault):
            await waiting[1]

    run(work)


def test_a_close_waits_for_room_and_writes_what_was_decided() -> None:
    async def work() -> None:
        rig = Rolling()
        waiting = await rig.full()
        closing = asyncio.ensure_future(rig.shard.close())
        await asyncio.sleep(0)
        assert not closing.done()
        rig.may_end.set()
        await closing
        await asyncio.gather(*waiting)
        rig.disk.crash(0.0)
        assert _finished(shard_on(rig.disk)) == {0, 1, 2, 3}

    run(work)


def test_records_that_are_encoded_later_are_where_the_journal_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A snapshot may be several records: where each is decides what may be pruned."""
    monkeypatch.setattr(record_codec, "_RANGES_ON_LOOP", -1)
    monkeypatch.setattr(share_batches, "RECORD_BYTES_MAX", 100)

    async def work() -> None:
        disk = MemoryDisk()
        shard = shard_on(disk)
        await joined(shard)
        await acquired(shard, 0, 99)
        for offset in range(1, 40, 2):
            await said(shard, Verdict.ACCEPT, offset, offset)
        await shard.ask(Keep((KEY,), ()))
        again = shard_on(disk)
        assert shard.records > 25  # those of a snapshot, too
        assert again.codec._newest == shard.codec._newest  # type: ignore[attr-defined]  # of ShareJournal
        assert runs(again)[-1] == ("39", "ACKNOWLEDGED", 1)

    run(work)


def test_a_bug_in_a_thread_that_encodes_takes_back_what_is_decided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken() -> list[Entry]:
        raise ValueError("planted")

    async def work() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        disk = MemoryDisk()
        shard = shard_on(disk)
        await joined(shard)
        await acquired(shard, 0, 9)
        with monkeypatch.context() as patched:
            patched.setattr(ShareJournal, "records", lambda *_: [LateEntries(broken)])
            answer = asyncio.ensure_future(said(shard, Verdict.ACCEPT, 0, 4))
            for is_begun in (True, False):
                while (shard._rolling is not None) != is_begun:  # noqa: ASYNC110  # it sets no event
                    await asyncio.sleep(0)
        await asyncio.sleep(0)  # for what the answer wakes
        assert isinstance(answer.exception(), StorageFault)
        await rebuilt(shard)
        await joined(shard)
        assert runs(shard) == []
        await acquired(shard, 0, 9)
        await said(shard, Verdict.ACCEPT, 0, 0)
        await shard.close()
        assert runs(shard_on(disk)) == []

    run(work)


def test_long_data_that_is_not_used_any_more_is_freed_in_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    freed_in: list[int] = []

    async def work() -> None:
        loop, are_freed = asyncio.get_running_loop(), asyncio.Event()

        class Range:
            def __del__(self) -> None:
                freed_in.append(threading.get_ident())
                if len(freed_in) == 3:
                    loop.call_soon_threadsafe(are_freed.set)

        shard = shard_on(MemoryDisk())
        await joined(shard)
        decide = shard.machine.decide

        def discarding(command: Command, now: Now) -> Any:
            answer = decide(command, now)
            assert not isinstance(answer, Refused)
            return replace(answer, unused=[(Range(), Range()), (Range(),)])

        monkeypatch.setattr(shard.machine, "decide", discarding)
        await shard.ask(Keep((KEY,), ()))
        await are_freed.wait()
        assert threading.get_ident() not in freed_in

    run(work)


class _Encoding:
    """A shard whose batches are encoded in a thread, each once `may_go_on`."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.disk, self.has_begun, self.may_go_on = (
            MemoryDisk(),
            threading.Event(),
            threading.Event(),
        )
        self.shard = shard_on(self.disk)
        encoded = runtime._encoded

        def held(records: Any, now: Any) -> Any:
            self.has_begun.set()
            assert self.may_go_on.wait(60)
            return encoded(records, now)

        self._patch = patch
        self._held = held

    async def begun(self) -> "asyncio.Future[Any]":
        """Wait for the answer to an acceptance whose batch is being encoded."""
        await joined(self.shard)
        await acquired(self.shard, 0, 9)
        self._patch.setattr(runtime, "_encoded", self._held)
        self._patch.setattr(runtime, "_ENCODED_MAX", 0)
        waiting = asyncio.ensure_future(said(self.shard, Verdict.ACCEPT, 0, 1))
        while not self.has_begun.is_set():  # noqa: ASYNC110  # it is set in a thread
            await asyncio.sleep(0.001)
        return waiting


def test_answers_wait_while_many_records_are_encoded_in_a_thread() -> None:
    async def work() -> None:
        with pytest.MonkeyPatch.context() as patch:
            rig = _Encoding(patch)
            first = await rig.begun()
            second = asyncio.ensure_future(said(rig.shard, Verdict.ACCEPT, 2, 3))
            await asyncio.sleep(0)
            assert [first.done(), second.done(), rig.shard.is_durable] == [False] * 3
            assert _finished(shard_on(rig.disk)) == set()
            before = rig.shard.appends
            rig.may_go_on.set()
            await asyncio.gather(first, second)
            assert rig.shard.appends == before + 2
            assert _finished(shard_on(rig.disk)) == {0, 1, 2, 3}

    run(work)


def test_a_fault_while_records_are_encoded_gives_them_up() -> None:
    async def work() -> None:
        with pytest.MonkeyPatch.context() as patch:
            rig = _Encoding(patch)
            waiting = await rig.begun()
            dropped = rig.shard.machine
            rig.shard._drop(OSError(5, "a sync failed"), [])
            with pytest.raises(StorageFault):
                await waiting
            assert rig.shard.machine is dropped, "not rebuilt while a thread is at work"
            rig.may_go_on.set()
            while rig.shard.fault is not None:  # noqa: ASYNC110  # there is no event to wait for
                await asyncio.sleep(0.001)
            assert _finished(rig.shard) == _finished(shard_on(rig.disk)) == set()

    run(work)


def test_a_close_waits_for_what_is_encoded_in_a_thread() -> None:
    async def work() -> None:
        with pytest.MonkeyPatch.context() as patch:
            rig = _Encoding(patch)
            first = await rig.begun()
            second = asyncio.ensure_future(said(rig.shard, Verdict.ACCEPT, 2, 3))
            await asyncio.sleep(0)
            closing = asyncio.ensure_future(rig.shard.close())
            rig.may_go_on.set()
            await closing
            await asyncio.gather(first, second)
            rig.disk.crash(0.0)
            assert _finished(shard_on(rig.disk)) == {0, 1, 2, 3}

    run(work)


@pytest.mark.parametrize(
    ("encoded_max", "ranges_max"),
    [(runtime._ENCODED_MAX, 4_000), (0, 4_000), (runtime._ENCODED_MAX, -1)],
    ids=["", "in-threads", "late"],
)
@pytest.mark.parametrize("fsync", [True, False])
@pytest.mark.parametrize("seed", range(40))
def test_what_a_caller_was_told_stays_true(
    seed: int, fsync: bool, encoded_max: int, ranges_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Acceptances that were answered survive a power cut with `fsync`, a killed process without."""
    monkeypatch.setattr(runtime, "_ENCODED_MAX", encoded_max)
    monkeypatch.setattr(record_codec, "_RANGES_ON_LOOP", ranges_max)
    rng = random.Random(seed)
    disk = MemoryDisk()
    told: set[int] = set()

    async def accept(shard: Shard, first: int, last: int) -> None:
        answer = await said(shard, Verdict.ACCEPT, first, last)
        if not isinstance(answer, Refused):
            told.update(range(first, last + 1))

    async def life() -> None:
        shard = shard_on(disk, fsync=fsync)
        await joined(shard)
        await acquired(shard, 0, 199)
        waiting = [
            asyncio.ensure_future(accept(shard, n, n + rng.randrange(3)))
            for n in rng.sample(range(190), 30)
        ]
        await _some_turns(rng)
        if not fsync:
            disk.crash(keep=1.0)
        else:
            disk.crash(keep=lambda _, lost: lost[: rng.randrange(len(lost) + 1)])
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    async def recovered() -> set[int]:
        return _finished(shard_on(disk, fsync=fsync))

    for _ in range(3):
        asyncio.run(life())  # in its own loop: its threads are gone when the next one starts
        finished = asyncio.run(recovered())
        assert told <= finished, f"answered and lost: {sorted(told - finished)}"


async def _some_turns(rng: random.Random) -> None:
    for _ in range(rng.randrange(6)):
        await asyncio.sleep(rng.choice([0, 0, 0.002]))


def _finished(shard: Shard) -> set[int]:
    machine = shard.machine
    assert isinstance(machine, ShareShard)
    partition = machine.partitions[KEY]
    done = set(range(partition.start))
    for one in partition.runs:
        if one.state is State.ACKNOWLEDGED:
            done |= set(one.span)
    return done
