"""Work beside the requests: how it ends, and that nobody misses a bug in it."""

import asyncio
import logging

import pytest

from headrace.broker.background import Background

HOUR_MS = 3_600_000


def test_a_pause_ends_with_the_broker_and_stopping_waits_for_the_work() -> None:
    done: list[bool] = []

    async def go() -> None:
        work = Background("nothing is done any more")

        async def look_now_and_then() -> None:
            done.extend((await work.pause(0), work.is_stopping))
            done.extend((await work.pause(HOUR_MS), work.is_stopping))
            await asyncio.sleep(0.01)
            done.append(True)

        work.begin(look_now_and_then())
        while not done:  # noqa: ASYNC110  # there is no event to wait for
            await asyncio.sleep(0.001)
        await work.stop()
        assert done == [True, False, False, True, True]
        assert not await work.pause(HOUR_MS)

    asyncio.run(asyncio.wait_for(go(), 20))


def test_pauses_can_be_ended_and_tell_when_they_would_be_over() -> None:
    async def go() -> None:
        work, looks = Background("nothing is done any more"), [0]
        loop = asyncio.get_running_loop()

        async def look_now_and_then() -> None:
            while await work.pause(HOUR_MS):
                looks[0] += 1

        work.begin(look_now_and_then())
        await asyncio.sleep(0)
        for expected in (1, 2):
            (pause,) = work.pauses
            assert pause.when() > loop.time() + 3_000
            work.end_pauses()
            while looks[0] < expected:  # noqa: ASYNC110  # there is no event to wait for
                await asyncio.sleep(0)
            assert pause.cancelled()
        await work.stop()
        assert (looks, list(work.pauses)) == ([2], [])

    asyncio.run(asyncio.wait_for(go(), 20))


def test_a_bug_is_told_with_what_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    async def go() -> None:
        work = Background("nothing is done any more")

        async def fail() -> None:
            raise LookupError("a bug")

        work.begin(fail())
        await work.stop()

    asyncio.run(go())
    (line,) = caplog.records
    assert (line.levelno, line.message) == (logging.CRITICAL, "nothing is done any more")
    assert line.exc_info is not None
    assert isinstance(line.exc_info[1], LookupError)
