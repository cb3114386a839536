"""A command that is decided in portions: all of it is durable, or nothing."""

import asyncio
import threading
from functools import partial
from time import perf_counter, thread_time
from typing import Any

import pytest

from headrace.broker import runtime
from headrace.broker.loop_turns import Turns
from headrace.broker.runtime import StorageFault
from headrace.core.leases import Staged
from headrace.core.machine import Unfinished
from headrace.core.shard import ShareShard
from headrace.core.shard_words import (
    AcquireLease,
    CommitLease,
    Committed,
    Opened,
    OpenLease,
    Renewed,
    RenewLease,
    SettleLease,
    StageLease,
)
from headrace.core.share_words import Verdict
from headrace.core.types import Span
from headrace.log.memory_disk import MemoryDisk, VirtualClock

from .test_runtime import KEY, Rolling, Shard, joined, rebuilt, run, runs, shard_on

SESSION = ("group", "session")
RECORDS = 20


class Committing:
    """A shard with a lease, whose commit of 20 records takes ten portions and more."""

    def __init__(self, **settings: Any) -> None:
        self.disk, self.clock = MemoryDisk(), VirtualClock()
        self.shard = shard_on(self.disk, clock=self.clock, **settings)

    async def begun(self) -> "asyncio.Future[Any]":
        """The answer to a commit of which a part is decided."""
        await joined(self.shard)
        opened = await self.shard.ask(OpenLease(SESSION, ("topic",), True))
        await self.shard.ask(AcquireLease(SESSION, opened.epoch, 1, RECORDS))
        said = tuple(Staged(KEY, Span(n, n), Verdict.RELEASE) for n in range(1, RECORDS, 2))
        await self.shard.ask(StageLease(SESSION, opened.epoch, 1, said))
        answer = asyncio.ensure_future(self.shard.ask(CommitLease(SESSION, opened.epoch, 1, 2)))
        while not self.is_amid:  # noqa: ASYNC110  # there is no event to wait for
            await asyncio.sleep(0)
        assert not answer.done()
        return answer

    @property
    def is_amid(self) -> bool:
        """Whether some records are settled, and others are not."""
        states = {state for _, state, _ in runs(self.shard)}
        return "ACKNOWLEDGED" in states or "AVAILABLE" in states

    def after_a_crash(self) -> tuple[int, int]:
        """What is committed, and how many records are finished."""
        self.disk.crash(1.0)
        shard = shard_on(self.disk)
        assert isinstance(shard.machine, ShareShard)
        lease = shard.machine.leases[SESSION]
        partition = shard.machine.partitions[KEY]
        return lease.committed, partition.start + partition.finished


def test_nothing_is_written_before_the_last_portion() -> None:
    async def work() -> None:
        rig = Committing()
        await rig.begun()
        assert not rig.shard.is_durable
        assert rig.after_a_crash() == (0, 0)

    run(work)


def test_all_portions_are_one_batch() -> None:
    async def work() -> None:
        rig = Committing()
        answer = await rig.begun()
        appends = rig.shard.appends
        assert await answer == Committed(10, 10, 0, 0)
        assert rig.shard.appends == appends + 1
        assert rig.shard.is_durable
        assert rig.after_a_crash() == (1, 10)

    run(work)


def test_other_commands_have_their_turn_and_their_answers_wait() -> None:
    async def work() -> None:
        rig = Committing()
        answer = await rig.begun()
        beside = asyncio.ensure_future(rig.shard.ask(OpenLease(SESSION, ("topic",), True)))
        reading = rig.shard.durable()
        await asyncio.sleep(0)
        assert isinstance(rig.shard.machine, ShareShard)
        assert rig.shard.machine.leases[SESSION].epoch == 2
        while rig.shard._unfinished:
            assert not beside.done()
            assert not reading.done()
            await asyncio.sleep(0)
        opened = await beside
        assert isinstance(opened, Opened)
        assert (opened.epoch, opened.committed, opened.outstanding) == (2, 1, ())
        await reading
        assert await answer == Committed(10, 10, 0, 0)

    run(work)


def test_a_fault_abandons_the_rest() -> None:
    async def work() -> None:
        rig = Committing(fsync=True)
        answer = await rig.begun()
        dropped = rig.shard.machine
        rig.shard._drop(OSError(5, "a sync failed"), [])
        with pytest.raises(StorageFault):
            await answer
        await rebuilt(rig.shard)
        assert rig.shard.machine is not dropped
        assert rig.after_a_crash() == (0, 0)

    run(work)


def test_a_state_that_is_rebuilt_amid_portions_gets_none_of_them() -> None:
    async def work() -> None:
        rig = Committing()
        answer = await rig.begun()
        rig.shard._drop(OSError(5, "a sync failed"), [])
        await rebuilt(rig.shard)
        again = await rig.shard.ask(OpenLease(SESSION, ("topic",), True))
        assert (again.committed, again.outstanding) == (0, (1,))
        with pytest.raises(StorageFault):
            await answer
        assert {state for _, state, _ in runs(rig.shard)} == {"ACQUIRED"}
        assert await rig.shard.ask(CommitLease(SESSION, again.epoch, 1, 2)) == Committed(
            10, 10, 0, 0
        )
        assert rig.after_a_crash() == (1, 10)

    run(work)


def test_a_rebuilt_state_does_not_wait_for_what_was_abandoned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        rig, may_go_on = Committing(), threading.Event()
        following = Unfinished.following

        def held(reply: Any) -> Any:
            assert may_go_on.wait(60)
            return following(reply)

        await joined(rig.shard)
        opened = await rig.shard.ask(OpenLease(SESSION, ("topic",), True))
        await rig.shard.ask(AcquireLease(SESSION, opened.epoch, 1, RECORDS))
        said = tuple(Staged(KEY, Span(n, n), Verdict.RELEASE) for n in range(1, RECORDS, 2))
        await rig.shard.ask(StageLease(SESSION, opened.epoch, 1, said))
        monkeypatch.setattr(Unfinished, "following", held)
        answer = asyncio.ensure_future(rig.shard.ask(CommitLease(SESSION, opened.epoch, 1, 2)))
        await asyncio.sleep(0)
        rig.shard._drop(OSError(5, "a sync failed"), [])
        await rebuilt(rig.shard)
        assert (await rig.shard.ask(OpenLease(SESSION, ("topic",), True))).committed == 0
        assert not answer.done()
        may_go_on.set()
        with pytest.raises(StorageFault):
            await answer

    run(work)


def test_a_bug_amid_portions_takes_back_what_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        rig = Committing()
        answer = await rig.begun()
        decide = ShareShard.decide

        def broken(self: ShareShard, command: Any, now: Any) -> Any:
            if isinstance(command, SettleLease):
                raise AssertionError("planted")
            return decide(self, command, now)

        monkeypatch.setattr(ShareShard, "decide", broken)
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        with pytest.raises(StorageFault):
            await answer
        await rebuilt(rig.shard)
        assert rig.after_a_crash() == (0, 0)

    run(work)


def test_a_close_waits_for_the_last_portion() -> None:
    async def work() -> None:
        rig = Committing()
        answer = await rig.begun()
        await rig.shard.close()
        assert rig.after_a_crash() == (1, 10)
        await answer

    run(work)


def test_a_batch_that_is_being_encoded_has_no_portion_of_a_later_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it has is what was decided when it was begun, and not when the thread begins."""

    async def work() -> None:
        rig = Committing()
        await joined(rig.shard)
        opened = await rig.shard.ask(OpenLease(SESSION, ("topic",), True))
        await rig.shard.ask(AcquireLease(SESSION, opened.epoch, 1, RECORDS))
        said = tuple(Staged(KEY, Span(n, n), Verdict.RELEASE) for n in range(1, RECORDS, 2))
        monkeypatch.setattr(runtime, "_ENCODED_MAX", 0)
        staging = asyncio.ensure_future(rig.shard.ask(StageLease(SESSION, opened.epoch, 1, said)))
        while rig.shard._rolling is None:  # noqa: ASYNC110  # there is no event to wait for
            await asyncio.sleep(0)
        appends = rig.shard.appends
        answer = asyncio.ensure_future(rig.shard.ask(CommitLease(SESSION, opened.epoch, 1, 2)))
        rig.shard.submit(CommitLease(SESSION, opened.epoch, 1, 2), lambda _: None)
        await staging
        assert rig.shard.appends == appends + 1
        if not answer.done():
            assert rig.after_a_crash() == (0, 0)

    run(work)


def test_an_atomic_command_begins_when_the_journal_has_made_room() -> None:
    async def work() -> None:
        rig = Rolling()
        shard: Shard = rig.shard
        rig.may_end.set()
        await joined(shard)
        opened = await shard.ask(OpenLease(SESSION, ("topic",), True))
        await shard.ask(AcquireLease(SESSION, opened.epoch, 1, RECORDS))
        said = tuple(Staged(KEY, Span(n, n), Verdict.RELEASE) for n in range(1, RECORDS, 2))
        rig.may_end.clear()
        rolls = rig.rolls
        staging = asyncio.ensure_future(shard.ask(StageLease(SESSION, opened.epoch, 1, said)))
        while rig.rolls == rolls:  # noqa: ASYNC110  # there is no event to wait for
            await asyncio.sleep(0)
        answer = asyncio.ensure_future(shard.ask(CommitLease(SESSION, opened.epoch, 1, 2)))
        await asyncio.sleep(0)
        while shard._unfinished:  # noqa: ASYNC110  # there is no event to wait for
            await asyncio.sleep(0)
        assert not staging.done()
        rig.may_end.set()
        assert await answer == Committed(10, 10, 0, 0)
        await staging

    run(work)


class Sessions:
    """A shard with leases, whose commits of 20 records take ten portions each."""

    def __init__(self, *names: str, **settings: Any) -> None:
        self.names = names
        self.disk = MemoryDisk()
        self.shard = shard_on(self.disk, **settings)

    async def prepare(self) -> None:
        await joined(self.shard)
        for number, name in enumerate(self.names):
            lease, first = ("group", name), number * RECORDS
            await self.shard.ask(OpenLease(lease, ("topic",), True))
            await self.shard.ask(AcquireLease(lease, 1, 1, RECORDS))
            offsets = range(first + 1, first + RECORDS, 2)
            said = tuple(Staged(KEY, Span(n, n), Verdict.RELEASE) for n in offsets)
            await self.shard.ask(StageLease(lease, 1, 1, said))

    def commit(self, *names: str) -> "list[asyncio.Future[Any]]":
        commands = [CommitLease(("group", name), 1, 1, 2) for name in names or self.names]
        return [asyncio.ensure_future(self.shard.ask(one)) for one in commands]

    async def until_amid(self) -> None:
        while not any(state == "ACKNOWLEDGED" for _, state, _ in runs(self.shard)):  # noqa: ASYNC110  # there is no event to wait for
            await asyncio.sleep(0)

    def after_a_crash(self) -> list[int]:
        """What is committed of each."""
        self.disk.crash(1.0)
        machine = shard_on(self.disk).machine
        assert isinstance(machine, ShareShard)
        return [machine.leases["group", name].committed for name in self.names]


def test_an_atomic_command_waits_until_the_one_before_is_written() -> None:
    async def work() -> None:
        rig = Sessions("a", "b", "c")
        await rig.prepare()
        appends = rig.shard.appends
        first, *others = rig.commit("a", "b")
        await rig.until_amid()
        others += rig.commit("c")
        for number, answer in enumerate([first, *others], 1):
            assert await answer == Committed(10, 10, 0, 0)
            assert rig.shard.appends == appends + number
            assert [one.done() for one in others] == [n < number - 1 for n in range(2)]
        assert rig.after_a_crash() == [1, 1, 1]

    run(work)


def test_an_answer_waits_for_no_second_atomic_command() -> None:
    async def work() -> None:
        rig = Sessions("a", "b")
        await rig.prepare()
        first, second = rig.commit()
        reading = rig.shard.durable()
        await rig.until_amid()
        beside = rig.shard.durable()
        await asyncio.gather(first, reading, beside)
        assert not second.done()
        assert rig.after_a_crash() == [1, 0]

    run(work)


def test_a_renewal_in_portions_keeps_nothing_from_being_written() -> None:
    async def work() -> None:
        rig = Sessions("a")
        await rig.prepare()
        for number in range(2, RECORDS):
            await rig.shard.ask(AcquireLease(("group", "a"), 1, number, 1))
        renewal = asyncio.ensure_future(rig.shard.ask(RenewLease(("group", "a"), 1, 1)))
        await asyncio.sleep(0)
        opened = await rig.shard.ask(OpenLease(("group", "b"), ("topic",), True))
        assert isinstance(opened, Opened)
        assert rig.shard._unfinished
        assert not renewal.done()
        assert await renewal == Renewed(2 * RECORDS - 2, 0)

    run(work)


@pytest.mark.parametrize("closes", [True, False])
def test_an_atomic_command_that_waits_is_given_up(closes: bool) -> None:
    """With a fault, and when the broker stops before its first portion."""

    async def work() -> None:
        rig = Sessions("a", "b")
        await rig.prepare()
        first, second = rig.commit()
        await rig.until_amid()
        if closes:
            await rig.shard.close()
            assert await first == Committed(10, 10, 0, 0)
        else:
            rig.shard._drop(OSError(5, "a sync failed"), [])
            with pytest.raises(StorageFault):
                await first
            await rebuilt(rig.shard)
        with pytest.raises(StorageFault):
            await second
        assert rig.after_a_crash() == [int(closes), 0]

    run(work)


def test_a_bug_in_an_atomic_command_that_waited_ends_that_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        rig = Sessions("a", "b", "c")
        await rig.prepare()
        first, second, third = rig.commit()
        await rig.until_amid()
        decide = ShareShard.decide

        def broken(self: ShareShard, command: Any, now: Any) -> Any:
            if isinstance(command, CommitLease) and command.lease == ("group", "b"):
                raise AssertionError("planted")
            return decide(self, command, now)

        monkeypatch.setattr(ShareShard, "decide", broken)
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        async with asyncio.timeout(60):
            assert [await first, await third] == [Committed(10, 10, 0, 0)] * 2
            with pytest.raises(StorageFault):
                await second
        assert rig.after_a_crash() == [1, 0, 1]

    run(work)


def test_a_turn_of_the_loop_has_one_portion_of_all_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        loop, turns = asyncio.get_running_loop(), Turns(perf_counter, thread_time)
        rigs = [Sessions("a", turns=turns) for _ in range(3)]
        for rig in rigs:
            await rig.prepare()
        decide, at, turn = ShareShard.decide, list[tuple[int, int]](), 0

        def noting(self: ShareShard, command: Any, now: Any) -> Any:
            if isinstance(command, SettleLease):
                at.append((turn, id(self)))
            return decide(self, command, now)

        def begin_turn() -> None:
            nonlocal turn
            turn += 1
            loop.call_soon(begin_turn)

        first, turn_of = list[asyncio.Future[None]](), turns.turn

        def turn_for(seconds: float) -> asyncio.Future[None]:
            """Give the first turns once all wait for one: a thread prepares what comes before."""
            if len(first) == len(rigs):
                return turn_of(seconds)
            first.append(loop.create_future())
            if len(first) == len(rigs):
                for one in first:
                    turns.wait(partial(one.set_result, None), seconds)
            return first[-1]

        monkeypatch.setattr(ShareShard, "decide", noting)
        monkeypatch.setattr(turns, "turn", turn_for)
        begin_turn()
        answers = await asyncio.gather(*(one for rig in rigs for one in rig.commit()))
        assert answers == [Committed(10, 10, 0, 0)] * 3
        assert len({number for number, _ in at}) == len(at) >= 30
        order = [machine for _, machine in at]
        begun = max(map(order.index, set(order)))
        ended = min(len(order) - order[::-1].index(one) for one in set(order))
        assert ended - begun > 10
        triples = zip(
            order[begun:ended], order[begun + 1 :], order[begun + 2 : ended], strict=False
        )
        assert all(len(set(three)) == 3 for three in triples), "each in turn"

    run(work)
