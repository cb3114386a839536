"""`headrace.ShareConsumer` and its sync face against a real broker: what only Headrace has, and how
they end. What Apache Kafka has too is in tests/conformance/test_share_client.py.
"""

import asyncio
import gc
import threading
import time
from typing import Any

import pytest

import headrace
from headrace.client.connection import Cluster
from headrace.client.errors import BrokerError
from headrace.client.records import read_records
from headrace.client.share_consumer import engine
from headrace.wire.batches import Record

from .share_rig import SECONDS_MAX, Rig, until


@pytest.fixture
def rig(running: headrace.Broker) -> Any:
    made = Rig(running.bootstrap_servers)
    yield made
    made.admin.close()


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


def test_nothing_comes_after_stop_also_when_the_hand_is_full(rig: Rig) -> None:
    rig.produce("a", "b")

    async def story() -> None:
        async with rig.consumer(max_in_hand=1) as consumer:
            assert len(await consumer.poll()) == 1
            with pytest.raises(headrace.HandFull):
                await consumer.poll()
            consumer.stop()
            assert await consumer.poll() == []

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


def test_what_is_assigned_is_known_from_the_start(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_FIRST_LOOK_S_MAX", SECONDS_MAX)  # a busy machine answers too

    async def story() -> None:
        async with rig.consumer() as consumer:
            assert consumer.assignment == {(rig.topic, 0)}

    asyncio.run(story())
    with rig.sync() as consumer:
        assert consumer.assignment == {(rig.topic, 0)}


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


def test_results_of_the_sync_face_after_it_is_closed(rig: Rig) -> None:
    rig.produce("a", "b")
    with rig.sync() as consumer:
        first, second = consumer.poll(timeout_s=SECONDS_MAX)
        accepted = first.accept()
    accepted.result()  # closing has sent it
    with pytest.raises(headrace.Closed):
        second.accept()


def test_the_sync_face_when_it_is_closed(rig: Rig) -> None:
    rig.produce("a", "b")
    with rig.sync() as consumer:
        first, second = consumer.poll(timeout_s=SECONDS_MAX)
        answer = first.accept()
        answer.result()
        assert answer.done
    consumer.close()
    answer.result()  # it is durable
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
