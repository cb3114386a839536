"""`headrace.ShareConsumer` while its broker is killed and comes back, be it Kafka or Headrace."""

import asyncio
import contextlib
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

import headrace
from brokers import BROKERS, Broker, prepared

COUNT = 400
SECONDS_MAX = 300.0
_WORK_S = 0.005


@pytest.fixture(params=["headrace", "kafka"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    if request.param == "kafka":
        request.getfixturevalue("has_java")
    with prepared(BROKERS[request.param]) as one:
        one.launch()
        try:
            yield one
        finally:
            one.kill()


def prepare(servers: str) -> None:
    with headrace.SyncAdmin(servers) as admin:
        admin.create_topic("jobs", 2)
        earliest = {"share.auto.offset.reset": "earliest"}
        admin.incremental_alter_configs(headrace.ResourceType.GROUP, "work", values=earliest)
    producer = Producer({"bootstrap.servers": servers})
    for number in range(COUNT):
        producer.produce("jobs", str(number).encode(), partition=number % 2)
    assert producer.flush(SECONDS_MAX) == 0


def lag(servers: str) -> int:
    with headrace.SyncAdmin(servers) as admin:
        offsets = admin.list_share_group_offsets("work")
    lags = [one.lag for one in offsets.values() if one is not None]
    assert len(lags) == 2
    return sum(COUNT if one is None else one for one in lags)


def test_nothing_is_lost_and_what_was_confirmed_is_done_once(broker: Broker) -> None:
    prepare(broker.servers)
    handled: dict[bytes, int] = {}
    after_confirmation: list[bytes] = []
    confirmed: set[bytes] = set()

    async def handler(record: headrace.ShareRecord) -> None:
        value = record.value or b""
        if value in confirmed:
            after_confirmation.append(value)
        handled[value] = handled.get(value, 0) + 1
        await asyncio.sleep(_WORK_S)
        with contextlib.suppress(headrace.LockLost):
            await record.accept()
            confirmed.add(value)

    async def story() -> None:
        settings = {"group": "work", "topics": ["jobs"]}
        async with (
            asyncio.timeout(SECONDS_MAX),
            headrace.ShareConsumer(broker.servers, **settings) as consumer,  # type: ignore[arg-type]  # two kinds of values
        ):
            working = asyncio.create_task(consumer.run(handler, concurrency=10))
            for killed_at in (COUNT // 4, COUNT // 2):
                while len(confirmed) < killed_at:  # noqa: ASYNC110 -- a count has no event
                    await asyncio.sleep(0.005)
                await asyncio.to_thread(broker.kill)
                await asyncio.to_thread(broker.launch)
            # What was finished and not confirmed, as the answer was lost, does not come again.
            while await asyncio.to_thread(lag, broker.servers):  # noqa: ASYNC110 -- so has a lag
                await asyncio.sleep(0.1)
            consumer.stop()
            await working
            assert consumer.stats.reconnects >= 2

    asyncio.run(story())
    assert after_confirmation == []
    assert len(handled) == COUNT
