"""The loop: time that jumps, threads that are none, and lives that end amid anything."""

import asyncio
from collections.abc import Callable, Iterator

import pytest

from headrace.sim.loop import OUTSIDE, Halted, Livelock, VirtualLoop

LIFE = 1


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    made = VirtualLoop(lambda: 0.25)  # type: ignore[abstract]  # all that is called is there
    yield made
    made.end(LIFE)
    made.end(OUTSIDE)


def test_an_hour_of_sleep_takes_no_time(loop: VirtualLoop) -> None:
    async def sleep() -> float:
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    task = loop.spawn(OUTSIDE, sleep())
    loop.run_until(3_599_999_999)
    assert not task.done()
    loop.run_until(3_600_000_000)
    assert task.result() == 3600


def test_a_wait_with_a_limit_ends_at_it(loop: VirtualLoop) -> None:
    async def wait() -> float:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 2.5)
        return asyncio.get_running_loop().time()

    task = loop.spawn(OUTSIDE, wait())
    loop.run_until(10_000_000)
    assert task.result() == 2.5


def test_work_for_threads_is_done_a_moment_later_and_known_another(loop: VirtualLoop) -> None:
    done: list[float] = []

    async def ask() -> float:
        running = asyncio.get_running_loop()
        await running.run_in_executor(None, lambda: done.append(running.time()))
        with pytest.raises(OSError, match="no space"):
            await running.run_in_executor(None, _fail)
        return running.time()

    task = loop.spawn(OUTSIDE, ask())
    loop.run_until(10_000_000)
    assert (done, task.result()) == ([0.25], 1.0)


def _fail() -> None:
    raise OSError("no space")


def test_a_life_ends_with_all_that_it_began_and_others_go_on(loop: VirtualLoop) -> None:
    happened: list[str] = []

    async def live(name: str) -> None:
        inner = asyncio.ensure_future(tick(name))
        try:
            await inner
        finally:
            happened.append(f"{name} cleans up")

    async def tick(name: str) -> None:
        while True:
            await asyncio.sleep(1)
            happened.append(name)

    loop.spawn(LIFE, live("broker"))
    loop.spawn(OUTSIDE, live("client"))
    loop.as_life(LIFE, lambda: loop.call_later(1.7, happened.append, "late"))
    loop.run_until(1_500_000)
    loop.end(LIFE)
    loop.run_until(2_500_000)
    assert happened == ["broker", "client", "broker cleans up", "client"]


def test_a_task_that_will_not_end_is_told(loop: VirtualLoop) -> None:
    stubborn = True

    async def stay() -> None:
        while stubborn:
            try:
                await asyncio.sleep(1)
            except asyncio.CancelledError:
                continue

    loop.spawn(LIFE, stay())
    loop.run_until(1_500_000)
    with pytest.raises(Livelock, match="do not end"):
        loop.end(LIFE)
    stubborn = False


def test_callbacks_without_end_are_told(loop: VirtualLoop) -> None:
    def again() -> None:
        loop.call_soon(again)

    loop.call_soon(again)
    with pytest.raises(Livelock, match="no time passes"):
        loop.run_until(1)


def test_an_exception_that_nobody_caught_stops_the_world(loop: VirtualLoop) -> None:
    broken: Callable[[], object] = {}.popitem
    loop.call_soon(broken)
    loop.run_until(1)
    assert loop.halted
    assert "KeyError" in loop.errors[0]


def test_time_that_passes_in_suspension_makes_timers_late(loop: VirtualLoop) -> None:
    seen: list[float] = []
    loop.call_later(1, lambda: seen.append(loop.time()))
    loop.suspend(20_000_000)
    loop.run_until(30_000_000)
    assert seen == [20.0]


def test_a_life_that_is_held_goes_on_in_the_order_of_what_waited(loop: VirtualLoop) -> None:
    seen: list[tuple[str, float]] = []

    def note(what: str) -> None:
        seen.append((what, loop.time()))

    loop.as_life(1, lambda: loop.call_later(2, note, "timer 1"))
    loop.as_life(2, lambda: loop.call_later(2, note, "timer 2"))
    cancelled = loop.as_life(1, lambda: loop.call_later(2, note, "cancelled"))
    loop.hold(1, 5_000_000)
    loop.call_later(1, loop.deliver, 1, lambda: note("first input"))
    loop.call_later(3, loop.deliver, 1, lambda: note("second input"))
    loop.call_later(4, cancelled.cancel)
    loop.run_until(4_000_000)
    assert seen == [("timer 2", 2.0)]
    loop.run_until(6_000_000)
    waited = [("first input", 5.0), ("timer 1", 5.0), ("second input", 5.0)]
    assert seen[1:] == waited
    loop.deliver(1, lambda: note("third input"))
    assert seen[-1] == ("third input", 6.0)


def test_a_life_that_ends_while_it_is_held_is_gone(loop: VirtualLoop) -> None:
    seen: list[str] = []
    loop.hold(1, 5_000_000)
    loop.deliver(1, lambda: seen.append("input"))
    loop.end(1)
    loop.run_until(10_000_000)
    assert seen == []


def test_who_blocks_has_an_answer_while_others_go_on(loop: VirtualLoop) -> None:
    happened: list[str] = []

    async def answer() -> str:
        await asyncio.sleep(2)
        return "answer"

    def block() -> None:
        happened.append(loop.wait(loop.spawn(OUTSIDE, answer())))

    loop.call_later(1, block)
    loop.call_later(2, happened.append, "meanwhile")
    loop.call_later(4, happened.append, "later")
    loop.run_until(10_000_000)
    assert happened == ["meanwhile", "answer", "later"]


def test_who_blocks_when_the_world_stops_is_told(loop: VirtualLoop) -> None:
    told: list[type[Exception]] = []

    def block() -> None:
        try:
            loop.wait(loop.create_future())
        except Halted:
            told.append(Halted)

    loop.call_later(1, block)
    loop.call_later(2, {}.popitem)
    loop.run_until(10_000_000)
    assert told == [Halted]
