"""`headrace.ShareConsumer` against Apache Kafka and against Headrace: the same cases for both."""

import asyncio
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer

import headrace
from brokers import BROKERS, prepared

from .share_client_rig import SECONDS_MAX, Rig

# A third of a lock passes before each renewal: five are more than a lock lasts.
LOCK_MS, RENEWALS = "3000", 5
_OF_ONE = {
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}


@pytest.fixture(scope="module", params=["headrace", "kafka"])
def servers(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    if request.param == "kafka":
        request.getfixturevalue("has_java")
    with prepared(BROKERS[request.param]) as broker:
        broker.launch(_OF_ONE if request.param == "kafka" else None)
        try:
            yield broker.servers, request.param
        finally:
            broker.stop()


@pytest.fixture
def rig(servers: tuple[str, str]) -> Rig:
    return Rig(*servers)


def numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that other tasks bring about."""
    async with asyncio.timeout(SECONDS_MAX):
        while not condition():  # noqa: ASYNC110 -- what it waits for are counts, without events
            await asyncio.sleep(0.01)


async def take(consumer: headrace.ShareConsumer, count: int) -> list[headrace.ShareRecord]:
    found: list[headrace.ShareRecord] = []
    while len(found) < count:
        found += await consumer.poll(count - len(found))
    return found


def test_a_poll_waits_for_as_many_bytes_as_were_asked_for(rig: Rig) -> None:
    async def story() -> None:
        async with rig.consumer(fetch_min_bytes=2_000, fetch_max_wait_ms=30_000) as consumer:
            polling = asyncio.create_task(consumer.poll())
            await asyncio.to_thread(rig.produce, "x" * 900)
            await asyncio.sleep(1)
            assert not polling.done()
            for _ in range(2):
                await asyncio.to_thread(rig.produce, "x" * 900)
            found = await polling
            assert [record.offset for record in found] == [0, 1, 2]

    asyncio.run(story())


def test_what_is_accepted_is_never_delivered_again(rig: Rig) -> None:
    rig.produce(*numbers(50))

    async def story() -> None:
        async with rig.consumer() as consumer:
            seen = []
            async for record in consumer:
                async with record:
                    seen.append((record.value or b"").decode())
                assert (record.topic, record.partition, record.delivery_count) == (rig.topic, 0, 1)
                assert (record.key, record.headers) == (b"k", (("h", b"1"),))
                assert (record.timestamp_type, record.timestamp > 0) == ("CreateTime", True)
                if len(seen) == 50:
                    consumer.stop()
            assert seen == numbers(50)
            await consumer.commit()
            assert (consumer.stats.accepted, consumer.stats.in_hand) == (50, 0)
        async with rig.consumer() as another:
            assert await another.poll(timeout_s=1.0) == []

    asyncio.run(story())
    assert rig.lag() == 0


def test_an_exception_that_leaves_the_loop_accepts_nothing_but_what_was_done(rig: Rig) -> None:
    rig.produce(*numbers(4))

    async def fail() -> None:
        async with rig.consumer() as consumer:
            async for record in consumer:
                async with record:
                    if record.offset == 2:
                        raise ZeroDivisionError

    async def story() -> None:
        with pytest.raises(ZeroDivisionError):
            await fail()
        async with rig.consumer() as again:
            found = await take(again, 2)
            assert [(one.offset, one.delivery_count) for one in found] == [(2, 2), (3, 2)]

    asyncio.run(story())


def test_leaving_the_loop_without_a_verdict_accepts_nothing(rig: Rig) -> None:
    rig.produce(*numbers(3))

    async def story() -> None:
        async with rig.consumer() as consumer:
            async for record in consumer:
                if record.offset == 1:
                    break  # as somebody does who forgets to accept
        async with rig.consumer() as again:
            assert [one.offset for one in await take(again, 3)] == [0, 1, 2]

    asyncio.run(story())


def test_run_accepts_releases_and_rejects(rig: Rig) -> None:
    rig.produce(*numbers(20))
    handled: list[tuple[int, int]] = []

    async def story() -> None:
        async with rig.consumer() as consumer:

            async def handler(record: headrace.ShareRecord) -> None:
                handled.append((record.offset, record.delivery_count))
                if record.offset == 3:
                    raise headrace.Reject("not a job")
                if record.offset == 5 and record.delivery_count == 1:
                    raise ValueError("try again")

            running = asyncio.create_task(consumer.run(handler, concurrency=4))
            await until(lambda: consumer.stats.accepted == 19)
            consumer.stop()
            await running
            stats = consumer.stats
            assert (stats.rejected, stats.released, stats.lost) == (1, 1, 0)

    asyncio.run(story())
    expected = [(offset, 1) for offset in range(20)] + [(5, 2)]
    assert sorted(handled) == sorted(expected)
    assert rig.lag() == 0


def test_a_lock_is_renewed_while_a_handler_runs(rig: Rig) -> None:
    rig.configure({"share.record.lock.duration.ms": LOCK_MS})
    rig.produce("slow")

    async def story() -> None:
        deliveries = []
        async with rig.consumer() as consumer, rig.consumer() as other:

            async def slow(record: headrace.ShareRecord) -> None:
                deliveries.append(record.delivery_count)
                await until(lambda: consumer.stats.renewed >= RENEWALS)

            running = asyncio.create_task(consumer.run(slow))
            await until(lambda: bool(deliveries))
            stolen = asyncio.create_task(other.poll())
            await until(lambda: consumer.stats.accepted == 1)
            consumer.stop()
            await running
            assert not stolen.done()
            other.stop()
            assert await stolen == []
        assert deliveries == [1]

    asyncio.run(story())
    assert rig.lag() == 0


def test_a_thread_may_work_longer_than_the_lock(rig: Rig) -> None:
    rig.configure({"share.record.lock.duration.ms": LOCK_MS})
    rig.produce("slow")
    deliveries = []

    with headrace.SyncShareConsumer(rig.servers, group=rig.group, topics=[rig.topic]) as consumer:

        def slow(record: headrace.SyncShareRecord) -> None:
            deliveries.append(record.delivery_count)
            asyncio.run(until(lambda: consumer.stats.renewed >= RENEWALS))
            consumer.stop()

        consumer.run(slow)
        consumer.commit()
        assert consumer.stats.accepted == 1
    assert deliveries == [1]
    assert rig.lag() == 0


def test_a_lost_lock_fails_its_own_verdict_only(rig: Rig) -> None:
    rig.configure({"share.record.lock.duration.ms": "1000"})
    rig.produce(*numbers(4))

    async def story() -> None:
        told: list[headrace.AcknowledgeResult] = []
        one = rig.consumer(renew_s_max=0, on_acknowledged=told.append)
        async with one as late, rig.consumer() as other:
            lost = await take(late, 4)
            await asyncio.to_thread(rig.configure, {"share.record.lock.duration.ms": "30000"})
            stolen = await take(other, 4)  # their locks have ended
            assert [record.delivery_count for record in stolen] == [2] * 4
            await stolen[1].release()
            (mine,) = await take(late, 1)
            assert (mine.offset, mine.delivery_count) == (1, 3)
            said = [record.accept() for record in (lost[0], mine, lost[2], lost[3])]
            with pytest.raises(headrace.LockLost):
                await said[0]
            await said[1]
            with pytest.raises(headrace.LockLost, match="lock"):
                await late.commit()
            await late.commit()  # it is told once
            outcomes = {(result.first, result.error is None) for result in told}
            assert outcomes == {(0, False), (1, True), (2, False), (3, False)}
            for record in (stolen[0], stolen[2], stolen[3]):
                await record.accept()

    asyncio.run(story())
    assert rig.lag() == 0


def test_a_group_that_does_not_renew_locks(rig: Rig) -> None:
    rig.configure({"share.renew.acknowledge.enable": "false"})
    rig.produce("one")

    async def story() -> None:
        async with rig.consumer() as consumer:
            (record,) = await consumer.poll(1)
            assert record.is_held
            refused = []
            for _ in range(4):
                try:
                    await record.renew()
                except headrace.ClientError as error:
                    refused.append(error)
            assert len(refused) == 4
            assert isinstance(refused[-1], headrace.Unsupported)
            await record.accept()

    asyncio.run(story())
    assert rig.lag() == 0


def test_a_lock_is_renewed_when_asked(rig: Rig) -> None:
    rig.produce("one")

    async def story() -> None:
        async with rig.consumer() as consumer:
            (record,) = await consumer.poll(1)
            before = record.lock_deadline
            await record.renew()
            assert record.lock_deadline > before
            assert consumer.stats.renewed == 1
            await record.accept()

    asyncio.run(story())


def test_members_share_and_nothing_is_done_twice(rig: Rig) -> None:
    rig.produce(*numbers(300))
    done: list[int] = []

    async def story() -> None:
        async with rig.consumer() as one, rig.consumer() as two, rig.consumer() as three:

            async def handler(record: headrace.ShareRecord) -> None:
                done.append(record.offset)
                await asyncio.sleep(0)

            members = (one, two, three)
            running = [asyncio.create_task(each.run(handler, concurrency=5)) for each in members]
            await until(lambda: sum(each.stats.accepted for each in members) == 300)
            for each in members:
                each.stop()
            await asyncio.gather(*running)

    asyncio.run(story())
    assert sorted(done) == list(range(300))
    assert rig.lag() == 0


def test_no_more_is_held_than_was_asked_for(rig: Rig) -> None:
    rig.produce(*numbers(10))  # one batch

    async def story() -> None:
        async with rig.consumer(max_in_hand=5) as consumer, rig.consumer() as other:
            first = await consumer.poll(3)
            assert [one.offset for one in first] == [0, 1, 2]
            assert consumer.stats.in_hand == 3
            assert [one.offset for one in await other.poll(2)] == [3, 4]
            await take(consumer, 2)
            with pytest.raises(headrace.HandFull, match="5 records"):
                await consumer.poll()
            first[0].accept()
            assert len(await consumer.poll()) == 1

    asyncio.run(story())


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches(rig: Rig, codec: str) -> None:
    rig.produce(*numbers(30), **{"compression.type": codec})

    async def story() -> None:
        async with rig.consumer() as consumer:
            found = await take(consumer, 30)
            assert [(one.value or b"").decode() for one in found] == numbers(30)
            for record in found:
                record.reject("Kafka has no room for this reason")
            await consumer.commit()

    asyncio.run(story())
    assert rig.lag() == 0


@pytest.mark.parametrize("servers", ["kafka"], indirect=True)
def test_markers_of_transactions_are_passed_over(rig: Rig) -> None:
    """Headrace has no transactions."""
    producer = Producer({"bootstrap.servers": rig.servers, "transactional.id": rig.group})
    producer.init_transactions(SECONDS_MAX)
    for value in numbers(3):
        producer.begin_transaction()
        producer.produce(rig.topic, value.encode())
        producer.commit_transaction(SECONDS_MAX)

    async def story() -> None:
        async with rig.consumer() as consumer:
            for record in await take(consumer, 3):
                await record.accept()
            while await asyncio.to_thread(rig.lag):
                assert await consumer.poll(timeout_s=0.1) == []  # it carries what is left to say

    asyncio.run(story())
    assert rig.lag() == 0


def test_without_an_event_loop(rig: Rig) -> None:
    rig.produce(*numbers(6))
    with headrace.SyncShareConsumer(rig.servers, group=rig.group, topics=[rig.topic]) as consumer:
        for record in consumer:
            with record:
                if record.offset == 1:
                    raise headrace.Reject("no")
            if record.offset == 3:
                break
        last = consumer.poll(5, timeout_s=SECONDS_MAX)
        while len(last) < 2:
            last += consumer.poll(5, timeout_s=SECONDS_MAX)
        assert [one.offset for one in last] == [4, 5]
        last[0].accept().result(SECONDS_MAX)
        with pytest.raises(headrace.AlreadyAcknowledged):
            last[0].release()
        assert last[1].is_held
        consumer.commit()
        assert (consumer.stats.accepted, consumer.stats.rejected) == (4, 1)
    with headrace.SyncShareConsumer(rig.servers, group=rig.group, topics=[rig.topic]) as again:
        (left,) = again.poll(timeout_s=SECONDS_MAX)
        assert (left.offset, left.delivery_count) == (5, 2)
