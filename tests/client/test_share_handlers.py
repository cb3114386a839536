"""What users are told by `headrace.ShareConsumer`, and what handlers may do on threads."""

import asyncio
import threading
from functools import partial
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


def test_what_is_told_of_a_handler_that_fails_after_its_verdict(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.produce("a")

    async def story() -> None:
        async with rig.consumer() as consumer:

            async def handler(record: headrace.ShareRecord) -> None:
                await record.accept()
                consumer.stop()
                raise ValueError("too late")

            await consumer.run(handler)

    asyncio.run(story())
    assert "its verdict was given before" in caplog.text
    assert "released it" not in caplog.text


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
