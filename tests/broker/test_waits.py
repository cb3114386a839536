"""Long polls: woken by their keys, by time and by the end, and never more than allowed."""

import asyncio

from headrace.broker.waits import Waits

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
