"""Records that come when nobody asks for them any more: others are to have them."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import headrace

from .share_rig import SECONDS_MAX, Rig, until

LONG_WAIT_MS = 20_000  # of a fetch, which is on its way then when its poll has ended
Story = Callable[[headrace.ShareConsumer], Awaitable[None]]


@pytest.fixture
def rig(running: headrace.Broker) -> Any:
    made = Rig(running.bootstrap_servers)
    yield made
    made.admin.close()


async def _poll_that_is_cancelled(consumer: headrace.ShareConsumer) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await consumer.poll(10)


async def _poll_that_found_nothing(consumer: headrace.ShareConsumer) -> None:
    assert await consumer.poll(timeout_s=0.3) == []


@pytest.mark.parametrize("asks", [_poll_that_is_cancelled, _poll_that_found_nothing])
def test_what_comes_after_a_poll_is_had_by_the_next_one_or_by_others(rig: Rig, asks: Story) -> None:
    rig.configure({"share.record.lock.duration.ms": "3000"})

    async def story() -> None:
        async with (
            rig.consumer(fetch_max_wait_ms=LONG_WAIT_MS) as consumer,
            rig.consumer() as other,
        ):
            for value in "ab":
                await asks(consumer)
                rig.produce(value)
                await until(lambda: consumer.stats.in_hand == 1)
                if value == "a":
                    (record,) = await consumer.poll()
                    await record.accept()
            (record,) = await other.poll()
            assert (record.value, record.delivery_count) == (b"b", 2)
            await until(lambda: consumer.stats.released == 1)  # it did not wait for the lock's end
            assert consumer.stats.in_hand == 0

    asyncio.run(story())


@pytest.mark.parametrize("is_sync", [False, True])
def test_what_a_loop_left_behind_is_had_by_others(rig: Rig, *, is_sync: bool) -> None:
    rig.configure({"share.record.lock.duration.ms": "1000"})
    rig.produce("a", "b", "c")

    async def story() -> None:
        async with rig.consumer() as consumer:
            async for record in consumer:
                record.accept()
                break
            await until(lambda: consumer.stats.released == 2)
            assert consumer.stats.in_hand == 0

    if is_sync:
        with rig.sync() as consumer:
            for record in consumer:
                record.accept()
                break
            released = until(lambda: consumer.stats.released == 2)
            asyncio.run(asyncio.wait_for(released, SECONDS_MAX))
    else:
        asyncio.run(story())


def test_what_is_held_ready_for_a_loop_is_renewed_while_it_works(rig: Rig) -> None:
    rig.configure({"share.record.lock.duration.ms": "1000"})
    rig.produce("a", "b", "c")

    async def story() -> None:
        async with rig.consumer() as consumer:
            deliveries = []
            async for record in consumer:
                async with record:
                    deliveries.append((record.offset, record.delivery_count))
                    await asyncio.sleep(0.6)
                if len(deliveries) == 3:
                    break
            assert deliveries == [(0, 1), (1, 1), (2, 1)]

    asyncio.run(story())


async def _cancelled(consumer: headrace.ShareConsumer, running: asyncio.Task[None]) -> None:
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def _stopped(consumer: headrace.ShareConsumer, running: asyncio.Task[None]) -> None:
    consumer.stop()
    await running


@pytest.mark.parametrize("end", [_cancelled, _stopped])
def test_what_comes_when_run_has_ended_is_given_back_at_once(
    rig: Rig, end: Callable[[headrace.ShareConsumer, asyncio.Task[None]], Awaitable[None]]
) -> None:
    async def story() -> None:
        async with (
            rig.consumer(fetch_max_wait_ms=LONG_WAIT_MS) as consumer,
            rig.consumer() as other,
        ):
            running = asyncio.create_task(consumer.run(print))
            await until(lambda: consumer.assignment == {(rig.topic, 0)})
            await asyncio.sleep(0.2)  # a fetch is on its way by now
            await end(consumer, running)
            rig.produce("a")
            (record,) = await other.poll(timeout_s=5.0)  # half of what a renewal would be due after
            assert record.delivery_count == 2
            await until(lambda: consumer.stats.released == 1)

    asyncio.run(story())


def test_a_record_is_not_held_when_its_lock_has_ended(rig: Rig) -> None:
    rig.configure({"share.record.lock.duration.ms": "1000"})
    rig.produce("a")

    async def story() -> None:
        async with rig.consumer(renew_s_max=0) as consumer:
            (record,) = await consumer.poll()
            assert record.is_held
            await asyncio.sleep(record.lock_deadline - time.time())
            await until(lambda: not record.is_held)

    asyncio.run(story())
