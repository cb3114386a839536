"""The rebuild of a shard's state in a thread: what is refused meanwhile, and what ends it."""

import asyncio
import random
import threading
from typing import Any

import pytest

from headrace.broker import replay
from headrace.broker.replay import JournalDamaged
from headrace.broker.runtime import StorageFault
from headrace.core.errors import Refused
from headrace.core.shard import ShareShard
from headrace.core.shard_words import Keep, ReleaseMember
from headrace.core.share_group import Heartbeat
from headrace.core.share_words import Verdict
from headrace.core.types import MemberId
from headrace.log.memory_disk import MemoryDisk, VirtualClock
from headrace.log.os_disk import SystemClock
from headrace.log.record_codec import ShareJournal
from headrace.log.segments import SegmentedLog

from .test_runtime import (
    FOLDER,
    KEY,
    MEMBER,
    Shard,
    World,
    _finished,
    acquired,
    joined,
    rebuilt,
    run,
    runs,
    said,
    shard_on,
)

ACCEPTED = [("0", "AVAILABLE", 0), ("1", "ACKNOWLEDGED", 1)]


class _Replaying:
    """A shard whose journal cannot be written once, and is replayed when it `may_go_on`.

    Attributes:
        replays: Number of replays that were begun.
    """

    def __init__(self, patch: pytest.MonkeyPatch, **settings: Any) -> None:
        self.disk, self.replays = MemoryDisk(), 0
        self.journal = SegmentedLog(self.disk, FOLDER, segment_bytes=400)
        self.has_begun, self.may_go_on = threading.Event(), threading.Event()
        self.shard = shard_on(self.disk, journal=self.journal, **settings)
        self._patch = patch
        self._apply = replay._apply

    async def begun(self) -> None:
        """Return when a thread replays the journal, in which record 1 is accepted."""
        await joined(self.shard)
        await acquired(self.shard, 0, 9)
        await said(self.shard, Verdict.ACCEPT, 1, 1)
        await self.shard.ask(Keep((KEY,), ()))
        self._patch.setattr(replay, "_apply", self._held)
        self.disk.failing.add("append")
        with pytest.raises(StorageFault):
            await said(self.shard, Verdict.ACCEPT, 2, 2)
        self.disk.failing.clear()
        await self.until_held()

    async def until_held(self) -> None:
        """Return when a thread has begun a replay since the last call."""
        async with asyncio.timeout(60):
            while not self.has_begun.is_set():  # noqa: ASYNC110  # it is set in a thread
                await asyncio.sleep(0.001)
        self.has_begun.clear()

    def _held(self, data: Any, machine: Any, *rest: Any) -> int:
        if not machine.partitions:
            self.replays += 1
            self.has_begun.set()
            assert self.may_go_on.wait(60)
        return self._apply(data, machine, *rest)


def test_commands_are_refused_and_nothing_is_confirmed_during_a_replay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        rig = _Replaying(monkeypatch)
        shard = rig.shard
        await rig.begun()
        dropped = shard.machine
        assert ("2", "ACKNOWLEDGED", 1) in [(a.split("-")[-1], b, c) for a, b, c in runs(shard)]
        for _ in range(3):
            with pytest.raises(StorageFault):
                await said(shard, Verdict.ACCEPT, 3, 3)
        with pytest.raises(StorageFault):
            await shard.durable()
        answers = list[Any]()
        shard.when_durable(answers.append)
        assert [type(one) for one in answers] == [StorageFault]
        was_durable = shard.is_durable
        assert shard.machine is dropped
        rig.may_go_on.set()
        await rebuilt(shard)
        assert shard.machine is not dropped
        assert runs(shard) == ACCEPTED
        assert rig.replays == 1
        await shard.durable()
        assert (was_durable, shard.is_durable) == (False, True)

    run(work)


def test_no_lock_ends_during_a_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock that a dropped state has is none of the journal's, and its timer tells nobody."""

    async def work() -> None:
        rig = _Replaying(monkeypatch, world=World(lock_ms=50), clock=SystemClock())
        events = list[Any]()
        await rig.begun()
        rig.shard.listeners.append(events.extend)
        async with asyncio.timeout(60):
            while rig.shard._alarm is not None:  # noqa: ASYNC110  # there is no event to wait for
                await asyncio.sleep(0.001)
        assert events == []
        rig.may_go_on.set()
        await rebuilt(rig.shard)
        assert runs(rig.shard) == ACCEPTED

    run(work)


def test_what_nobody_waits_for_is_decided_after_a_replay_and_before_other_commands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        rig = _Replaying(monkeypatch)
        await rig.begun()
        for number in range(250):
            rig.shard.tell(ReleaseMember("group", MemberId(f"m{number}")))
        decided, decide = list[str](), ShareShard.decide

        def noted(self: ShareShard, command: Any, now: Any) -> Any:
            decided.append(getattr(command, "member", type(command).__name__))
            return decide(self, command, now)

        monkeypatch.setattr(ShareShard, "decide", noted)
        rig.may_go_on.set()
        while len(decided) < 2:  # noqa: ASYNC110  # there is no event to wait for
            await asyncio.sleep(0)
        assert len(decided) < 250, "they are decided in several turns of the loop"
        with pytest.raises(StorageFault, match="is being rebuilt"):
            await joined(rig.shard)
        rig.shard.tell(ReleaseMember("group", MemberId("m250")))
        await rebuilt(rig.shard)
        assert decided == ["Recovered", *(f"m{number}" for number in range(251))]

    run(work)


def test_a_write_that_fails_at_the_end_of_a_rebuild_begins_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        rig = _Replaying(monkeypatch)
        await rig.begun()
        for number in range(150):
            rig.shard.tell(ReleaseMember("group", MemberId(f"m{number}")))
        rig.may_go_on.set()
        while rig.shard.fault is not None:  # noqa: ASYNC110  # there is no event to wait for
            await asyncio.sleep(0)
        rig.shard._drop(OSError(5, "a write failed"), [])
        await rebuilt(rig.shard)
        assert rig.replays == 2
        assert not rig.shard._to_tell
        assert runs(rig.shard) == ACCEPTED

    run(work)


def test_a_close_waits_for_the_thread_and_abandons_the_replay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        rig = _Replaying(monkeypatch)
        await rig.begun()
        dropped = rig.shard.machine
        closing = asyncio.ensure_future(rig.shard.close())
        for _ in range(5):
            await asyncio.sleep(0.001)
        assert not closing.done()
        rig.may_go_on.set()
        await asyncio.wait_for(closing, 60)
        assert rig.shard.machine is dropped
        assert rig.shard._rebuilding is None
        await _no_rebuild_any_more(rig)
        assert runs(shard_on(rig.disk)) == ACCEPTED

    run(work)


def test_no_timer_runs_after_a_close_at_the_end_of_a_rebuild(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        rig = _Replaying(monkeypatch)
        await rig.begun()
        shard = rig.shard
        shard.tell(Heartbeat("group", MEMBER, 0, frozenset({"topic"})))
        for number in range(150):
            shard.tell(ReleaseMember("group", MemberId(f"m{number}")))
        rig.may_go_on.set()
        while shard.fault is not None:  # noqa: ASYNC110  # there is no event to wait for
            await asyncio.sleep(0)
        await shard.close()
        assert shard.machine.next_deadline() is not None, "of the member"
        assert shard._alarm is None

    run(work)


async def _no_rebuild_any_more(rig: _Replaying) -> None:
    with pytest.raises(StorageFault):
        await joined(rig.shard)
    await asyncio.sleep(0)
    assert rig.shard._rebuilding is None


def test_a_fault_during_a_replay_begins_another(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        rig = _Replaying(monkeypatch)
        await rig.begun()
        dropped = rig.shard.machine
        rig.shard._drop(OSError(5, "a sync failed"), [])
        retry = rig.shard._retry
        assert retry is not None
        tried = asyncio.Event()
        asyncio.get_running_loop().call_at(retry.when(), tried.set)
        await tried.wait()
        await asyncio.sleep(0)
        assert rig.replays == 1, "the thread is at work"
        rig.may_go_on.set()
        await rebuilt(rig.shard)
        assert rig.replays == 2
        assert rig.shard.machine is not dropped
        assert runs(rig.shard) == ACCEPTED

    run(work)


def test_a_journal_that_is_rewritten_during_a_replay_is_replayed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Records before and after a compaction are no state that ever was."""

    async def work() -> None:
        rig = _Replaying(monkeypatch)
        await rig.begun()
        codec = rig.shard.codec
        assert isinstance(codec, ShareJournal)
        until = codec.needed_from(rig.journal.end_offset)
        await asyncio.to_thread(rig.journal.allow_drop, until)
        assert rig.journal.drop_segments(until)
        rig.may_go_on.set()
        await rebuilt(rig.shard)
        assert rig.replays == 2
        assert runs(rig.shard) == ACCEPTED

    run(work)


@pytest.mark.parametrize("error", [AssertionError("planted"), JournalDamaged("planted")])
def test_a_replay_that_fails_is_tried_again(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        rig = _Replaying(monkeypatch)
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        await rig.begun()
        held, failures = replay._apply, [error]

        def failing(*given: Any) -> int:
            if failures:
                raise failures.pop()
            return held(*given)

        monkeypatch.setattr(replay, "_apply", failing)
        rig.shard._drop(OSError(5, "a sync failed"), [])
        rig.may_go_on.set()
        await rebuilt(rig.shard)
        assert failures == []
        assert runs(rig.shard) == ACCEPTED

    run(work)


@pytest.mark.parametrize("fsync", [True, False])
@pytest.mark.parametrize("seed", range(30))
def test_faults_take_nothing_that_was_confirmed_and_leave_nothing_that_was_not_written(
    seed: int, fsync: bool
) -> None:
    """Acceptances that were answered, and those that readers were told to be durable, stay."""
    rng = random.Random(seed)
    disk, clock = MemoryDisk(), VirtualClock()
    confirmed: set[int] = set()
    sent: set[int] = set()

    async def accept(shard: Shard) -> None:
        first = rng.randrange(190)
        offsets = range(first, first + 1 + rng.randrange(3))
        sent.update(offsets)
        answer = await said(shard, Verdict.ACCEPT, offsets[0], offsets[-1])
        if not isinstance(answer, Refused):
            confirmed.update(offsets)

    async def read(shard: Shard) -> None:
        found = _finished(shard) if KEY in shard.machine.partitions else set()  # type: ignore[attr-defined]  # of ShareShard
        await shard.durable()
        confirmed.update(found)

    async def life() -> None:
        shard = shard_on(disk, fsync=fsync, clock=clock)
        for _ in range(4):
            await rebuilt(shard)
            await joined(shard)
            await acquired(shard, 0, 199)
            works = [rng.choice([accept, accept, read])(shard) for _ in range(20)]
            for work in works:
                tasks.append(asyncio.ensure_future(work))
                await asyncio.sleep(rng.choice([0, 0, 0.001]))
                if rng.random() < 0.15:
                    disk.failing.add(rng.choice(["append", "sync"] if fsync else ["append"]))
                elif rng.random() < 0.4:
                    disk.failing.clear()
            disk.failing.clear()
            clock.advance(5_000)
            await asyncio.gather(*tasks, return_exceptions=True)
            await rebuilt(shard)
            assert confirmed <= _finished(shard), "confirmed and lost"
        assert _finished(shard) <= sent
        await shard.close()

    tasks: list[asyncio.Task[None]] = []
    asyncio.run(asyncio.wait_for(life(), 60))
    disk.crash(0.0 if fsync else 1.0)

    async def recovered() -> set[int]:
        return _finished(shard_on(disk, fsync=fsync))

    assert confirmed <= asyncio.run(recovered()) <= sent
