"""Long polls: woken by their keys, by time and by the end, and never more than allowed."""

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable
from contextlib import ExitStack

from headrace.broker.waits import WAKE_PORTION, Waits

LONG_MS = 60_000


def test_a_waiter_is_woken_by_any_of_its_keys() -> None:
    async def go() -> None:
        waits = Waits(limit=10)
        tasks = [asyncio.create_task(waits.wait(keys, LONG_MS)) for keys in ("ab", "b", "c")]
        await asyncio.sleep(0)
        waits.notify("b")
        waits.notify("b")
        assert await asyncio.gather(*tasks[:2]) == [True, True]
        assert waits.waiting == 1
        tasks[2].cancel()
        await asyncio.gather(tasks[2], return_exceptions=True)
        assert waits.waiting == 0

    asyncio.run(go())


def test_time_close_and_the_limit_end_a_wait_unnotified() -> None:
    async def go() -> None:
        waits = Waits(limit=1)
        assert not await waits.wait("a", 1)
        assert not await waits.wait("a", 0)
        waiting = asyncio.create_task(waits.wait("a", LONG_MS))
        await asyncio.sleep(0)
        assert not await waits.wait("b", LONG_MS), "one waits already"
        waits.close()
        assert not await waiting
        assert not await waits.wait("a", LONG_MS), "nobody waits any more"

    asyncio.run(go())


def test_a_key_named_twice_is_waited_for_once() -> None:
    async def go() -> None:
        waits = Waits(limit=10)
        waiting = asyncio.create_task(waits.wait("aa", LONG_MS))
        await asyncio.sleep(0)
        waits.notify("a")
        assert await waiting
        assert waits.waiting == 0

    asyncio.run(go())


def test_what_is_notified_while_somebody_looks_ends_the_wait_at_once() -> None:
    async def go() -> None:
        waits = Waits(limit=10)
        with waits.watch("ab") as watch:
            waits.notify("b")
            assert await watch.wait(LONG_MS)
        with waits.watch("ab") as watch:
            assert not await watch.wait(1)
        waits.notify("a")
        assert waits.waiting == 0

    asyncio.run(go())


def test_a_notification_wakes_only_those_whose_check_holds() -> None:
    async def go() -> None:
        waits, is_enough = Waits(limit=10), False
        with waits.watch("ab", lambda key: is_enough and key == "a") as watch:
            waiting = asyncio.create_task(watch.wait(LONG_MS))
            await asyncio.sleep(0)
            waits.notify("a")
            is_enough = True
            waits.notify("b")
            await asyncio.sleep(0)
            assert not waiting.done()
            waits.notify("a")
            assert await waiting

    asyncio.run(go())


def test_many_waiters_are_notified_in_portions_and_all_of_them() -> None:
    async def go() -> None:
        waits, checked, turns = Waits(limit=10_000), Counter[int](), 0
        count = 10 * WAKE_PORTION + 7

        def checking(number: int) -> Callable[[Hashable], bool]:
            return lambda _: bool(checked.update([number]))

        with ExitStack() as stack:
            for number in range(count):
                stack.enter_context(waits.watch("a", checking(number)))
            other = stack.enter_context(waits.watch("b"))
            for _ in range(3):  # the second begins again once, the third is the same as it
                before = checked.total()
                waits.notify("a")
                waits.notify("b")
                assert checked.total() - before <= WAKE_PORTION
                assert await other.wait(LONG_MS)
            while checked.total() < 2 * count:
                before = checked.total()
                await asyncio.sleep(0)
                turns += 1
                assert 0 < checked.total() - before <= WAKE_PORTION
            await asyncio.sleep(0)
            assert set(checked.values()) == {2}
            waits.notify("a")
        await asyncio.sleep(0)  # those that are gone are not checked
        assert checked.total() == 2 * count + WAKE_PORTION

    asyncio.run(go())


def test_who_would_watch_a_key_too_many_does_not_wait() -> None:
    async def go() -> None:
        waits = Waits(limit=10, keys_max=3)
        with waits.watch("abc"):
            assert not await waits.wait("d", LONG_MS)
        waiting = asyncio.create_task(waits.wait("d", LONG_MS))
        await asyncio.sleep(0)
        waits.notify("d")
        assert await waiting

    asyncio.run(go())
