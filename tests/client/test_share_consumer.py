"""`headrace.ShareConsumer` and its sync face against a real broker: what only Headrace has, and how
they end. What Apache Kafka has too is in tests/conformance/test_share_client.py.
"""

import asyncio
import gc
import itertools
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Producer

import headrace
from headrace.client.connection import Cluster
from headrace.client.errors import BrokerError
from headrace.client.records import read_records
from headrace.wire.batches import Record

SECONDS_MAX = 30.0
_NUMBERS = itertools.count(1)


class Rig:
    """A group of its own on a topic of its own, begun at the topic's start."""

    def __init__(self, servers: str) -> None:
        number = next(_NUMBERS)
        self.servers = servers
        self.topic, self.group = f"jobs-{number}", f"work-{number}"
        self.admin = headrace.SyncAdmin(servers)
        self.admin.create_topic(self.topic, 1)
        self.configure({"share.auto.offset.reset": "earliest"})

    def configure(self, values: dict[str, str]) -> None:
        group = headrace.ResourceType.GROUP
        self.admin.incremental_alter_configs(group, self.group, values=values)

    def produce(self, *values: str, topic: str = "", partition: int = 0) -> None:
        producer = Producer({"bootstrap.servers": self.servers})
        for value in values:
            producer.produce(topic or self.topic, value.encode(), partition=partition)
        assert producer.flush(SECONDS_MAX) == 0

    @property
    def about(self) -> dict[str, Any]:
        return {"group": self.group, "topics": [self.topic]}

    @asynccontextmanager
    async def consumer(self, **settings: Any) -> AsyncIterator[headrace.ShareConsumer]:
        async with (
            asyncio.timeout(SECONDS_MAX),
            headrace.ShareConsumer(self.servers, **(self.about | settings)) as consumer,
        ):
            yield consumer

    def sync(self) -> headrace.SyncShareConsumer:
        return headrace.SyncShareConsumer(self.servers, **self.about)

    def members(self) -> int:
        described = self.admin.describe_share_groups([self.group])[self.group]
        assert not isinstance(described, BrokerError)
        return len(described.members)


@pytest.fixture
def rig(running: headrace.Broker) -> Any:
    made = Rig(running.bootstrap_servers)
    yield made
    made.admin.close()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 -- what it waits for are counts, without events
        await asyncio.sleep(0.005)


def test_a_reason_stands_with_the_dead_letter(rig: Rig) -> None:
    rig.configure({"errors.deadletterqueue.topic.name": f"dlq.{rig.group}"})
    rig.produce("good", "bad", "worse")

    async def story() -> None:
        async with rig.consumer() as consumer:

            async def handler(record: headrace.ShareRecord) -> None:
                if record.value != b"good":
                    raise headrace.Reject(f"{(record.value or b'').decode()}: no such customer")

            running = asyncio.create_task(consumer.run(handler))
            await until(lambda: consumer.stats.accepted + consumer.stats.rejected == 3)
            consumer.stop()
            await running

    asyncio.run(story())
    letters = _letters(rig.servers, f"dlq.{rig.group}", 2)
    assert [(one.value, dict(one.headers)["__dlq.errors.message"]) for one in letters] == [
        (b"bad", b"bad: no such customer"),
        (b"worse", b"worse: no such customer"),
    ]


def _letters(servers: str, topic: str, count: int) -> list[Record]:
    until_s = time.monotonic() + SECONDS_MAX
    with Cluster(servers) as cluster:
        while True:
            try:
                found = list(read_records(cluster, topic, 0))
            except BrokerError:
                found = []
            if len(found) >= count:
                return found
            assert time.monotonic() < until_s, f"{len(found)} dead letters"
            time.sleep(0.01)


def test_nothing_is_left_of_a_consumer(rig: Rig) -> None:
    rig.produce("a", "b", "c")

    async def story() -> None:
        async with rig.consumer() as consumer:
            (first,) = await consumer.poll(1)
            first.accept()
            await consumer.poll(1)
            waiting = asyncio.create_task(consumer.run(lambda _: None, concurrency=3))
            await until(lambda: consumer.stats.accepted == 2)
        await waiting  # closing stops it
        assert rig.members() == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}
        with pytest.raises(headrace.Closed):
            await consumer.poll()
        with pytest.raises(headrace.Closed):
            await consumer.commit()
        await consumer.close()

    asyncio.run(story())
    gc.collect()  # a socket that was left open would warn, and warnings are errors


def test_what_was_not_shown_is_given_back_at_once(rig: Rig) -> None:
    rig.produce("a", "b", "c")

    async def story() -> None:
        async with rig.consumer() as consumer:
            async for record in consumer:
                await record.accept()
                break
            assert consumer.stats.in_hand == 2  # they are held ready
        async with rig.consumer() as another:
            found = await another.poll()
            assert [(one.offset, one.delivery_count) for one in found] == [(1, 2), (2, 2)]

    asyncio.run(story())


def test_leaving_the_loop_and_coming_back_misses_nothing(rig: Rig) -> None:
    rig.produce("a", "b", "c")

    async def story() -> None:
        async with rig.consumer() as consumer:
            seen = []
            for _ in range(3):
                async for record in consumer:
                    record.accept()
                    seen.append((record.offset, record.delivery_count))
                    break
            assert seen == [(0, 1), (1, 1), (2, 1)]

    asyncio.run(story())


def test_cancelling_run_releases_what_its_handlers_had(rig: Rig) -> None:
    rig.produce("a", "b")

    async def story() -> None:
        async with rig.consumer() as consumer, rig.consumer() as other:
            started = []

            async def forever(record: headrace.ShareRecord) -> None:
                started.append(record.offset)
                await asyncio.Event().wait()

            running = asyncio.create_task(consumer.run(forever, concurrency=2))
            await until(lambda: len(started) == 2)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            found: list[headrace.ShareRecord] = []
            while len(found) < 2:
                found += await other.poll()
            assert sorted((one.offset, one.delivery_count) for one in found) == [(0, 2), (1, 2)]
            assert consumer.stats.accepted == 0

    asyncio.run(story())


def test_a_handler_may_decide_itself(rig: Rig) -> None:
    rig.produce("a", "b")

    async def story() -> None:
        async with rig.consumer() as consumer:

            async def handler(record: headrace.ShareRecord) -> None:
                if record.offset == 0:
                    await record.reject()
                    raise ValueError("too late to release it")

            running = asyncio.create_task(consumer.run(handler))
            await until(lambda: consumer.stats.accepted + consumer.stats.rejected == 2)
            consumer.stop()
            await running
            assert (consumer.stats.rejected, consumer.stats.released) == (1, 0)

    asyncio.run(story())


def test_a_run_that_cannot_be(rig: Rig) -> None:
    async def story() -> None:
        async with rig.consumer(max_in_hand=10) as consumer:
            for wrong in ({"concurrency": 0}, {"prefetch": -1}, {"concurrency": 6}):
                with pytest.raises(ValueError, match=r"concurrency|max_in_hand"):
                    await consumer.run(print, **wrong)
            with pytest.raises(ValueError, match="max_records"):
                await consumer.poll(0)

    asyncio.run(story())


def test_topics_and_partitions_that_come_later_are_read() -> None:
    quick = {
        "group.share.min.heartbeat.interval.ms": 100,
        "group.share.heartbeat.interval.ms": 100,
    }
    with headrace.Broker(settings=quick) as broker:
        rig = Rig(broker.bootstrap_servers)
        asyncio.run(_later(rig))
        rig.admin.close()


async def _later(rig: Rig) -> None:
    later = f"later-{rig.group}"
    async with rig.consumer(topics=[rig.topic, later]) as consumer:
        await until(lambda: consumer.assignment == {(rig.topic, 0)})
        await asyncio.to_thread(rig.admin.create_topic, later, 1)
        await asyncio.to_thread(rig.admin.create_partitions, rig.topic, 2)
        await asyncio.to_thread(rig.produce, "new topic", topic=later)
        await asyncio.to_thread(rig.produce, "new partition", partition=1)
        found: list[headrace.ShareRecord] = []
        while len(found) < 2:
            found += await consumer.poll()
        assert {one.value for one in found} == {b"new topic", b"new partition"}
        assert consumer.assignment == {(rig.topic, 0), (rig.topic, 1), (later, 0)}


def test_the_sync_face_from_several_threads(rig: Rig) -> None:
    rig.produce(*map(str, range(40)))
    seen: list[int] = []
    with rig.sync() as consumer:

        def work() -> None:
            for record in consumer:
                with record:
                    seen.append(record.offset)
                if len(seen) == 40:
                    consumer.stop()

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS_MAX)
            assert not thread.is_alive()
        consumer.commit()
        assert consumer.stats.accepted == 40
    assert sorted(seen) == list(range(40))
    assert not [one for one in threading.enumerate() if one.name.startswith("headrace-share")]


def test_the_sync_face_when_it_is_closed(rig: Rig) -> None:
    rig.produce("a", "b")
    with rig.sync() as consumer:
        first, second = consumer.poll(timeout_s=SECONDS_MAX)
        answer = first.accept()
        answer.result()
        assert answer.done
    consumer.close()
    for late in (consumer.poll, consumer.commit, second.accept):
        with pytest.raises(headrace.Closed):
            late()
    with rig.sync() as again:
        (left,) = again.poll(timeout_s=SECONDS_MAX)
        assert (left.offset, left.delivery_count) == (1, 2)
        with pytest.raises(ZeroDivisionError), left:
            raise ZeroDivisionError
        assert [one.delivery_count for one in again.poll(timeout_s=SECONDS_MAX)] == [3]


def test_the_sync_face_that_cannot_start() -> None:
    with pytest.raises(headrace.Unreachable):
        headrace.SyncShareConsumer("127.0.0.1:1", group="g", topics=["t"], timeout_s=0.2).start()
    assert not [one for one in threading.enumerate() if one.name.startswith("headrace-share")]


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
