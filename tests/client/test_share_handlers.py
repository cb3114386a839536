"""What users are told by `headrace.ShareConsumer`, and what handlers may do on threads."""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial, wraps
from typing import Any

import pytest

import headrace

from .share_rig import SECONDS_MAX, Rig, until


@pytest.fixture
def rig(running: headrace.Broker) -> Any:
    made = Rig(running.bootstrap_servers)
    yield made
    made.admin.close()


def test_a_handler_on_a_thread_may_decide_itself(rig: Rig) -> None:
    rig.produce("a")

    async def story() -> None:
        async with rig.consumer() as consumer:
            asyncio.get_running_loop().set_debug(True)  # which forbids what is not for threads
            settled = threading.Event()

            def handler(record: headrace.ShareRecord) -> None:
                record.renew()
                record.accept()
                assert settled.wait(SECONDS_MAX), "sent while the handler still runs"
                consumer.stop()

            working = asyncio.create_task(consumer.run(handler, prefetch=0))
            await until(lambda: consumer.stats.accepted == 1)
            settled.set()
            await working
            await consumer.commit()

    asyncio.run(story())


@pytest.mark.parametrize("is_sync", [False, True])
def test_a_handler_that_raises_stop_iteration_ends_nothing(
    rig: Rig, caplog: pytest.LogCaptureFixture, *, is_sync: bool
) -> None:
    rig.produce("a")
    deliveries: list[int] = []

    def work(consumer: Any, record: Any) -> None:
        deliveries.append(record.delivery_count)
        if record.delivery_count == 2:
            consumer.stop()
        else:
            next(iter(()))

    async def story() -> None:
        async with rig.consumer() as consumer:
            await consumer.run(partial(work, consumer))

    if is_sync:
        with rig.sync() as consumer:
            consumer.run(partial(work, consumer))
    else:
        asyncio.run(story())
    assert deliveries == [1, 2]
    assert "the handler raised StopIteration" in caplog.text


async def _cancelled(_: object) -> None:
    task = asyncio.create_task(asyncio.sleep(60))
    task.cancel()
    await task


def _cancelled_elsewhere(_: object) -> None:
    future: Future[None] = Future()
    future.cancel()
    future.result()


def _later(_: object) -> Iterator[None]:
    yield


async def _much_later(_: object) -> AsyncIterator[None]:
    yield


async def _on_a_loop(_: object) -> None:
    """Nothing, if somebody awaits it."""


@pytest.mark.parametrize(
    ("fails", "told", "is_sync"),
    [
        (_cancelled, "in _cancelled", False),
        (_cancelled_elsewhere, "in _cancelled_elsewhere", False),
        (_cancelled_elsewhere, "in _cancelled_elsewhere", True),
        (lambda record: _later(record), "which nobody runs", False),
        (lambda record: _later(record), "which nobody runs", True),
        (lambda record: _much_later(record), "which nobody runs", False),
        (lambda record: _much_later(record), "which nobody runs", True),
        (lambda record: _on_a_loop(record), "which nobody runs", True),
    ],
)
def test_a_handler_that_handled_nothing_releases_its_record_and_the_next_one_comes(
    rig: Rig, caplog: pytest.LogCaptureFixture, fails: Any, told: str, *, is_sync: bool
) -> None:
    rig.produce("a", "b")

    def work(consumer: Any, record: Any) -> Any:
        if record.value == b"a":
            return fails(record)
        return consumer.stop()

    async def story() -> headrace.ShareStats:
        async with rig.consumer() as consumer:

            async def on_loop(record: headrace.ShareRecord) -> None:
                if found := work(consumer, record):
                    await found

            await consumer.run(on_loop if fails is _cancelled else partial(work, consumer))
            await consumer.commit()
            return consumer.stats

    if is_sync:
        with rig.sync() as consumer:
            consumer.run(partial(work, consumer))
            consumer.commit()
            stats = consumer.stats
    else:
        stats = asyncio.run(story())
    assert (stats.accepted, stats.released > 0) == (1, True)
    assert "failed, released it" in caplog.text
    assert told in caplog.text
    gc.collect()  # a coroutine that was left would warn, and warnings are errors


def test_a_handler_that_cancels_its_own_task_does_not_end_run_in_silence(rig: Rig) -> None:
    rig.produce("a")

    async def story() -> None:
        async with rig.consumer() as consumer:

            async def handler(_: headrace.ShareRecord) -> None:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await asyncio.sleep(0)

            with pytest.raises(RuntimeError, match=r"a task of run\(\) was cancelled"):
                await consumer.run(handler, concurrency=2)
            (record,) = await consumer.poll()
            assert record.delivery_count == 2

    asyncio.run(story())


def test_a_handler_that_eats_its_cancellation_does_not_keep_run(rig: Rig) -> None:
    rig.produce("a", "b")

    async def story() -> None:
        async with rig.consumer() as consumer:
            started = asyncio.Event()

            async def handler(_: headrace.ShareRecord) -> None:
                started.set()
                with suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()

            running = asyncio.create_task(consumer.run(handler, prefetch=0))
            await started.wait()
            running.cancel()
            await asyncio.wait([running], timeout=SECONDS_MAX / 3)
            assert running.cancelled()
            await consumer.commit()
            assert consumer.stats.accepted == 1

    asyncio.run(story())


class _Async:
    async def __call__(self, record: object) -> None:
        """Nothing."""


_WRONG: list[tuple[Any, str]] = [
    (None, "the handler is None"),
    ("work", "the handler is 'work'"),
    (lambda: None, "cannot be called with one argument"),
    (lambda record, more: None, "cannot be called with one argument"),
    (_later, "is a generator function"),
    (partial(_later), "is a generator function"),
    (_much_later, "is a generator function"),
]
_WRONG_WITHOUT_LOOP = [
    (one, "is a coroutine function") for one in (_on_a_loop, partial(_on_a_loop), _Async())
]


@pytest.mark.parametrize(("handler", "told"), _WRONG)
def test_what_is_no_handler_is_refused_before_anything_is_fetched(handler: Any, told: str) -> None:
    unused = headrace.ShareConsumer("127.0.0.1:1", group="g", topics=["t"])
    with pytest.raises(TypeError, match=told):
        asyncio.run(unused.run(handler))


@pytest.mark.parametrize(("handler", "told"), _WRONG + _WRONG_WITHOUT_LOOP)
def test_what_is_no_handler_is_refused_by_the_sync_face(handler: Any, told: str) -> None:
    unused = headrace.SyncShareConsumer("127.0.0.1:1", group="g", topics=["t"])
    with pytest.raises(TypeError, match=told):
        unused.run(handler)


def test_a_decorator_that_runs_what_it_wraps_makes_a_handler(rig: Rig) -> None:
    rig.produce("a")
    seen: list[str] = []

    async def wrapped(record: headrace.SyncShareRecord) -> None:
        seen.append(record.topic)

    with rig.sync() as consumer:

        @wraps(wrapped)
        def handler(record: headrace.SyncShareRecord) -> None:
            asyncio.run(wrapped(record))
            consumer.stop()

        consumer.run(handler)
        consumer.commit()
        assert (seen, consumer.stats.accepted) == ([rig.topic], 1)


def test_a_run_that_cannot_be_says_the_same_in_both_faces(rig: Rig) -> None:
    with rig.sync() as consumer, pytest.raises(ValueError, match="concurrency is 1 or more"):
        consumer.run(print, concurrency=0)
    with pytest.raises(headrace.Closed):
        consumer.run(print)

    async def story() -> None:
        async with rig.consumer() as other:
            pass
        with pytest.raises(headrace.Closed):
            await other.run(print)

    asyncio.run(story())


@pytest.mark.parametrize("late", [ValueError("too late"), headrace.Reject("too late")])
def test_what_is_told_of_a_handler_that_fails_after_its_verdict(
    rig: Rig, caplog: pytest.LogCaptureFixture, late: Exception
) -> None:
    rig.produce("a")

    async def story() -> None:
        async with rig.consumer() as consumer:

            async def handler(record: headrace.ShareRecord) -> None:
                await record.accept()
                consumer.stop()
                raise late

            await consumer.run(handler)

    asyncio.run(story())
    assert "its verdict was given before" in caplog.text
    assert "too late" in caplog.text
    assert "released it" not in caplog.text


def test_a_block_that_rejects_after_its_verdict_is_told(rig: Rig) -> None:
    rig.produce("a", "b")

    async def block(record: headrace.ShareRecord) -> None:
        async with record:
            await record.accept()
            raise headrace.Reject("too late")

    def sync_block(record: headrace.SyncShareRecord) -> None:
        with record:
            record.accept()
            raise headrace.Reject("too late")

    async def story() -> None:
        async with rig.consumer() as consumer:
            (record,) = await consumer.poll(1)
            with pytest.raises(headrace.Reject, match="too late"):
                await block(record)

    asyncio.run(story())
    with rig.sync() as other:
        (record,) = other.poll(timeout_s=SECONDS_MAX)
        with pytest.raises(headrace.Reject, match="too late"):
            sync_block(record)


def test_a_group_that_does_not_renew_is_told_whatever_the_number_of_partitions(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.configure({"share.renew.acknowledge.enable": "false"})
    rig.admin.create_partitions(rig.topic, 4)
    for partition in range(4):
        rig.produce("a", partition=partition)

    async def story() -> None:
        async with rig.consumer() as consumer:
            found: list[headrace.ShareRecord] = []
            while len(found) < 4:
                found += await consumer.poll()
            for record in found:
                record.renew()
            await until(lambda: "share.renew.acknowledge.enable is false" in caplog.text)

    asyncio.run(story())


def test_a_topic_that_is_not_there_is_told_once(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with rig.consumer(topics=["mistyped"]) as consumer:
            await until(lambda: "there is no topic mistyped; waiting for one" in caplog.text)
            assert await consumer.poll(timeout_s=0) == []

    asyncio.run(story())
    assert caplog.text.count("mistyped; waiting") == 1


def test_a_reason_that_is_no_text_is_refused_at_once_and_ends_nothing(rig: Rig) -> None:
    rig.produce("a", "b")
    wrong: Any = ValueError("no such customer")

    async def story() -> None:
        async with rig.consumer() as consumer:
            (record,) = await consumer.poll(1)
            with pytest.raises(TypeError, match="a reason is text"):
                record.reject(wrong)
            with pytest.raises(TypeError, match="a reason is text"):
                raise headrace.Reject(wrong)
            await record.reject("caf\udce9 " + "x" * 1_000_000)  # more than a request might hold

    asyncio.run(story())
    with rig.sync() as consumer:
        (other,) = consumer.poll(timeout_s=SECONDS_MAX)
        with pytest.raises(TypeError, match="a reason is text"):
            other.reject(wrong)
        other.accept().result(SECONDS_MAX)
    (listed,) = rig.admin.list_archived_share_records(rig.group).runs
    assert listed.reason.startswith("caf\\udce9 xxx")


def test_a_handler_that_closes_the_consumer(rig: Rig) -> None:
    rig.produce("a")
    consumer = rig.sync().start()
    with pytest.raises(headrace.Closed, match="closed"):
        consumer.run(lambda _: consumer.close())
    with rig.sync() as again:
        (record,) = again.poll(timeout_s=SECONDS_MAX)
        assert record.delivery_count == 2
        record.accept()
