"""Records that share fetches keep until they are answered have a bound over all connections."""

import asyncio
import gc
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any

import pytest

from headrace.broker.dispatch import Pending
from headrace.broker.server import Connection, Server
from headrace.broker.share_polls import SharePoll, room_left
from headrace.core.errors import Refused
from headrace.core.shard_words import AlterShareOffsets

from .inside_rig import play
from .test_share_polls import BATCH, LONG_MS, WINDOW, Broker, acquired

SECONDS_MAX = 10
HELD = 20  # records of each member
POLLS = 6
BATCHES = 3 * WINDOW // BATCH
ROOM = "headrace_queued_max_response_bytes"


def run(work: Callable[[Broker], Coroutine[Any, Any, None]], room: int) -> None:
    play(partial(Broker, **{ROOM: str(room)}), work)


async def _held(broker: Broker) -> dict[str, range]:
    """Let each member have records; return whose are which."""
    held = {}
    for name in broker.epochs:
        got = acquired(await broker.fetch(name, records=HELD))
        held[name] = range(got[0], got[-1] + 1)
    return held


async def _without_room(broker: Broker, group: str) -> "asyncio.Future[Any]":
    """Return the fetch of a new member, which waits as there was no room."""
    reset = AlterShareOffsets("other", (("orders", 0, 0),))
    assert not isinstance(await broker.services.shares.ask("other", reset), Refused)
    broker.epochs["d"] = 0
    broker.services.budgets.acquired_bytes += 1
    waiting = broker.fetch("d", group=group, wait_ms=LONG_MS, records=HELD)
    await broker.until_waiting(1)
    broker.services.budgets.acquired_bytes -= 1
    return waiting


def test_who_finds_no_room_gets_the_records_once_others_are_answered() -> None:
    async def work(broker: Broker) -> None:
        budgets = broker.services.budgets
        held = await _held(broker)
        assert not budgets.acquired_bytes
        first = broker.fetch("a", held["a"], records=HELD)
        kept = budgets.acquired_bytes
        assert kept > 0, "it waits for the journal"
        waiting = broker.fetch("b", records=HELD, wait_ms=LONG_MS)
        at_once = broker.fetch("c", held["c"], records=HELD)
        assert budgets.acquired_bytes == kept, "there is no room for more"
        assert acquired(await first) == list(range(60, 80))
        answer = await at_once
        assert answer.acknowledge_error_code == 0
        assert not acquired(answer), "it does not wait"
        assert acquired(await waiting) == list(range(80, 100))
        broker.responses.clear()
        gc.collect()
        assert not budgets.acquired_bytes

    run(work, room=1)


def test_several_share_the_room() -> None:
    async def work(broker: Broker) -> None:
        held = await _held(broker)
        batch = broker.partition.log.bytes_from(0, 1 << 20) // BATCHES
        fetches = [broker.fetch(name, held[name], records=HELD) for name in "abc"]
        kept = broker.services.budgets.acquired_bytes
        assert 2 * batch < kept <= 3 * batch, "two batches of one, one batch of the next"
        found = [acquired(one) for one in await asyncio.gather(*fetches)]
        assert found == [list(range(60, 80)), list(range(80, 90)), []]

    run(work, room=800)


def test_a_fetch_whose_connection_is_gone_leaves_its_room() -> None:
    async def work(broker: Broker) -> None:
        held = await _held(broker)
        broker.fetch("a", held["a"], records=HELD).cancel()
        assert broker.services.budgets.acquired_bytes > 0
        broker.responses.clear()  # its connection is closed
        waiting = broker.fetch("b", records=HELD, wait_ms=LONG_MS)
        assert acquired(await waiting) == list(range(80, 100))
        gc.collect()
        assert broker.services.budgets.acquired_bytes == 0

    run(work, room=1)


def test_a_fetch_that_is_cancelled_leaves_its_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a look with pauses, where those who wait for room look with pauses, too."""

    async def work(broker: Broker) -> None:
        held = await _held(broker)
        monkeypatch.setattr("headrace.broker.handlers.share_fetch.LOOK_PORTION", 0)
        waiting = await _without_room(broker, "other")
        fetch = broker.fetch("a", held["a"], records=HELD)
        await broker.until_room_is_taken()
        fetch.cancel()
        found = acquired(await asyncio.wait_for(waiting, SECONDS_MAX))
        assert found == list(range(HELD))
        assert fetch.cancelled()

    run(work, room=1)


def test_a_large_request_that_is_cancelled_leaves_its_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its task waits for the answer, and its connection is closed."""

    async def work(broker: Broker) -> None:
        held = await _held(broker)
        waiting = await _without_room(broker, "other")
        monkeypatch.setattr("headrace.broker.dispatch.DECODE_BYTES_MAX", 0)
        fetch = broker.fetch("a", held["a"], records=HELD)
        await broker.until_room_is_taken()
        fetch.cancel()
        found = acquired(await asyncio.wait_for(waiting, SECONDS_MAX))
        assert found == list(range(HELD))

    run(work, room=1)


def test_a_fetch_waits_for_clients_to_read() -> None:
    async def work(broker: Broker) -> None:
        server = Server(broker.services, broker.dispatcher)
        other = Connection(server)
        server.count_response_bytes(other, 2)
        fetch = broker.fetch("a", wait_ms=LONG_MS, records=HELD)
        await broker.until_waiting(1)
        server.count_response_bytes(other, 0)
        assert acquired(await asyncio.wait_for(fetch, SECONDS_MAX)) == list(range(HELD))

    run(work, room=1)


@pytest.mark.parametrize(("group", "first"), [("other", 0), ("g", 80)])
def test_an_answer_that_waited_for_the_journal_leaves_its_room(group: str, first: int) -> None:
    """Also where a member of its own group waits, and looks first."""

    async def work(broker: Broker) -> None:
        held = await _held(broker)
        waiting = await _without_room(broker, group)
        assert acquired(await broker.fetch("a", held["a"], records=HELD)) == list(range(60, 80))
        assert isinstance(broker.responses[-1], Pending) is (group == "other")
        found = acquired(await asyncio.wait_for(waiting, SECONDS_MAX))
        assert found == list(range(first, first + HELD))

    run(work, room=1)


@pytest.mark.parametrize(("room", "left"), [(2000, [50]), (1000, [])])
def test_pauses_of_a_look_share_the_room(
    monkeypatch: pytest.MonkeyPatch, room: int, left: list[int]
) -> None:
    """A look over many partitions pauses, and what others acquired meanwhile takes its room."""

    async def work(broker: Broker) -> None:
        budgets, limits, others = broker.services.budgets, list[int](), list[int]()
        look, look_at = SharePoll._look, SharePoll._look_at

        def paused(poll: SharePoll, bytes_min: int) -> Generator[None, None, bool]:
            looking = look(poll, bytes_min)
            while True:
                try:
                    next(looking)
                except StopIteration as end:
                    return bool(end.value)
                if not others:
                    others.append(900)
                    budgets.acquired_bytes += 900
                yield

        def limited(poll: SharePoll, where: Any, found: Any, bytes_max: int, most: int) -> None:
            limits.append(bytes_max)
            look_at(poll, where, found, bytes_max, most)

        monkeypatch.setattr(SharePoll, "_look", paused)
        monkeypatch.setattr(SharePoll, "_look_at", limited)
        monkeypatch.setattr("headrace.broker.share_polls.LOOK_PORTION", 1)
        monkeypatch.setattr("headrace.broker.handlers.share_fetch.LOOK_PORTION", 0)
        wait_ms = 0 if left else LONG_MS
        fetch = broker.fetch("a", records=HELD, wait_ms=wait_ms)
        if not left:
            await broker.until_waiting(1)
            assert not limits
            budgets.acquired_bytes -= 900
            room_left(broker.services)
        found = acquired(await asyncio.wait_for(fetch, SECONDS_MAX))
        assert found == list(range(BATCH if left else HELD))
        assert limits[: len(left)] == left

    run(work, room=room)


def test_the_room_is_counted_again_behind_the_pauses_for_enough_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Polls that wait for many bytes count what there is, with pauses, before they acquire."""

    async def work(broker: Broker) -> None:
        budgets, peak = broker.services.budgets, 0
        has, look_at = SharePoll._has, SharePoll._look_at
        batch = broker.partition.log.bytes_from(0, 1 << 20) // BATCHES

        def paused(poll: SharePoll, bytes_min: int) -> Generator[None, None, bool]:
            yield
            return (yield from has(poll, bytes_min))

        def counted(*args: Any) -> None:
            nonlocal peak
            look_at(*args)
            peak = max(peak, budgets.acquired_bytes)

        monkeypatch.setattr(SharePoll, "_has", paused)
        monkeypatch.setattr(SharePoll, "_look_at", counted)
        monkeypatch.setattr("headrace.broker.handlers.share_fetch.LOOK_PORTION", 0)
        fetches = list[asyncio.Future[Any]]()
        for number in range(POLLS):
            group, member = f"group-{number}", f"{number}"
            reset = AlterShareOffsets(group, (("orders", 0, 0),))
            assert not isinstance(await broker.services.shares.ask(group, reset), Refused)
            broker.epochs[member] = 0
            fetches.append(
                broker.fetch(member, group=group, wait_ms=LONG_MS, bytes_min=batch, records=WINDOW)
            )
        answers = await asyncio.wait_for(asyncio.gather(*fetches), SECONDS_MAX)
        assert all(acquired(one) for one in answers)
        whole = WINDOW // BATCH * batch
        assert whole <= peak <= whole + batch

    run(work, room=2000)


def test_polls_without_room_do_not_wake_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(broker: Broker) -> None:
        budgets, looks = broker.services.budgets, list[str]()
        look = SharePoll._look

        def counted(poll: SharePoll, bytes_min: int) -> Generator[None, None, bool]:
            looks.append(poll._member)
            return look(poll, bytes_min)

        monkeypatch.setattr(SharePoll, "_look", counted)
        budgets.acquired_bytes += 2
        members = [f"{number}" for number in range(POLLS)]
        broker.epochs |= dict.fromkeys(members, 0)
        fetches = [
            broker.fetch(member, wait_ms=50 * (1 + number), records=HELD)
            for number, member in enumerate(members)
        ]
        for answer in await asyncio.gather(*fetches):
            assert not acquired(answer)
        assert len(looks) == 2 * POLLS, "at once, and as the task begins"
        budgets.acquired_bytes -= 2

    run(work, room=2)


def test_what_comes_before_a_look_is_continued_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The look paused behind the partition, before a watch is set."""

    async def work(broker: Broker) -> None:
        reset = AlterShareOffsets("g", (("orders", 0, 3 * WINDOW),))
        assert not isinstance(await broker.services.shares.ask("g", reset), Refused)
        await broker.fetch("a", records=HELD)
        look = SharePoll._look

        def paused(poll: SharePoll, bytes_min: int) -> Generator[None, None, bool]:
            found = yield from look(poll, bytes_min)
            yield
            return found

        with monkeypatch.context() as patched:
            patched.setattr(SharePoll, "_look", paused)
            fetch = broker.fetch("a", records=HELD, wait_ms=LONG_MS)
        broker.append()
        found = acquired(await asyncio.wait_for(fetch, SECONDS_MAX))
        assert found == list(range(3 * WINDOW, 3 * WINDOW + BATCH))

    run(work, room=1 << 20)


def test_a_look_that_reads_much_continues_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its acknowledgements are decided at once, and what it acquires before a pause is kept."""

    async def work(broker: Broker) -> None:
        held = await _held(broker)
        steps = list[int]()
        look = SharePoll._look

        def counted(poll: SharePoll, bytes_min: int) -> Generator[None, None, bool]:
            looking = look(poll, bytes_min)
            for step in looking:
                steps.append(poll._read_bytes)
                yield step
            return True

        monkeypatch.setattr(SharePoll, "_look", counted)
        monkeypatch.setattr("headrace.broker.share_polls.READ_PORTION_BYTES", 0)
        answer = await broker.fetch("a", held["a"], records=HELD)
        assert answer.acknowledge_error_code == 0
        assert acquired(answer) == list(range(60, 80))
        assert steps == [0]

    run(work, room=1 << 20)
