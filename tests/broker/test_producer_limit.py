"""headrace.max.producers: what a broker remembers of idempotent producers is bounded (B8)."""

import asyncio
from collections.abc import Iterator
from itertools import chain, count
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import KafkaError, Producer
from tests.broker.inside_rig import Inside, play
from tests.broker.loop_rig import Client, LoopRig, framed
from tests.broker.test_loop_time import SECONDS_MAX, scaled

import headrace
from headrace.broker.budgets import PORTION
from headrace.broker.dispatch import Dispatcher, Peer
from headrace.broker.partition import Partition
from headrace.core.catalog import CreateTopic, DeleteTopic
from headrace.core.types import WallMs
from headrace.log.memory_disk import MemoryDisk
from headrace.wire import batches, codec
from headrace.wire.batches import Record

PEER = Peer(1, "127.0.0.1", 1)
POLICY_VIOLATION = 44
LIMIT = 50
PRODUCERS = 100_000  # as many as one partition may have by default
TIMEOUT = 30


def batch(producer: int, sequence: int = 0) -> bytearray:
    one = Record(0, 1_700_000_000_000, None, b"v")
    return bytearray(
        batches.build([one], producer_id=producer, producer_epoch=0, base_sequence=sequence)
    )


class Broker(Inside):
    """A broker that may remember few producers."""

    def __init__(self, disk: MemoryDisk, limit: int = LIMIT) -> None:
        super().__init__(disk, headrace_max_producers=str(limit))
        self.dispatcher = Dispatcher(self.services)

    @property
    def remembered(self) -> int:
        partitions = self.services.partitions
        count = sum(len(one.log.producers) for one in partitions)
        assert count == partitions.producer_limit.count
        return count

    async def produce(self, topic: str, *records: bytearray) -> list[int]:
        """Send one request with these batches for partition 0, 1, ...; return the error codes."""
        parts = [{"index": number, "records": one} for number, one in enumerate(records)]
        body = codec.encode_request(
            0, 8, {"transactional_id": None, "acks": 1, "timeout": 100,
                   "topic_data": [{"name": topic, "partition_data": parts}]},
        )  # fmt: skip
        frame = bytearray(b"\0\0\0\x08\0\0\0\1\xff\xff" + bytes(body))
        response: Any = self.dispatcher.respond(frame, PEER)
        data = b"".join(await response if asyncio.iscoroutine(response) else response)
        answer = codec.decode_response(0, 8, data[8:])
        return [one.error_code for one in answer.responses[0].partition_responses]


def test_invented_producers_are_refused_and_known_ones_write_on_also_after_a_restart() -> None:
    disk = MemoryDisk()

    async def scene(broker: Broker) -> None:
        topics = broker.services.topics
        await topics.create(CreateTopic("orders", uuid4(), 1, {}))
        await topics.create(CreateTopic("wide", uuid4(), 40, {}))
        assert await broker.produce("orders", batch(1)) == [0]
        codes = [await broker.produce("wide", *(batch(n * 100 + m) for m in range(40)))
                 for n in range(1, 5)]  # fmt: skip
        assert list(chain(*codes)) == [0] * (LIMIT - 1) + [POLICY_VIOLATION] * (160 - LIMIT + 1)
        assert await broker.produce("orders", batch(1, 1)) == [0]
        assert await broker.produce("orders", batch(2)) == [POLICY_VIOLATION]
        assert await broker.produce("orders", batch(-1, -1)) == [0]
        assert broker.remembered == LIMIT
        assert broker.services.partitions.producer_limit.refused == 160 - LIMIT + 2

    async def after(broker: Broker) -> None:
        assert broker.remembered == LIMIT
        assert await broker.produce("orders", batch(1, 2)) == [0]
        assert await broker.produce("orders", batch(2)) == [POLICY_VIOLATION]
        wide = broker.services.catalog.topics["wide"]
        await broker.services.topics.delete(DeleteTopic(wide.id))
        assert broker.remembered == 1
        assert await broker.produce("orders", batch(2)) == [0]

    play(lambda: Broker(disk), scene)
    play(lambda: Broker(disk), after)


def test_a_log_with_too_many_producers_is_opened_with_the_latest() -> None:
    disk = MemoryDisk()

    async def scene(broker: Broker) -> None:
        await broker.services.topics.create(CreateTopic("orders", uuid4(), 1, {}))
        for producer in range(3 * LIMIT):
            assert await broker.produce("orders", batch(producer)) == [0]

    async def after(broker: Broker) -> None:
        assert broker.remembered == LIMIT
        assert await broker.produce("orders", batch(2 * LIMIT - 1, 1)) == [POLICY_VIOLATION]
        assert await broker.produce("orders", batch(2 * LIMIT, 1)) == [0]

    play(lambda: Broker(disk, 3 * LIMIT), scene)
    play(lambda: Broker(disk), after)


def test_a_stock_producer_above_the_limit_fails_at_once_and_the_others_go_on() -> None:
    outcomes: list[Any] = []

    def send(producer: Producer) -> Any:
        producer.produce("orders", b"v", on_delivery=lambda error, _: outcomes.append(error))
        assert producer.flush(TIMEOUT) == 0
        return outcomes[-1]

    with headrace.Broker(settings={"headrace.max.producers": 2}) as broker:
        settings = {
            "bootstrap.servers": broker.bootstrap_servers,
            "enable.idempotence": True,
            "message.timeout.ms": 10 * TIMEOUT * 1000,  # a code that it repeats would take as long
        }
        first, second, third = (Producer(settings) for _ in range(3))
        assert (send(first), send(second)) == (None, None)
        assert send(third).code() == KafkaError.POLICY_VIOLATION
        assert (send(first), send(second)) == (None, None)


@pytest.fixture
def rig() -> Iterator[LoopRig]:
    rig = LoopRig()
    try:
        yield rig
    finally:
        rig.close()


def test_many_producers_of_one_partition_are_looked_after_in_short_steps(rig: LoopRig) -> None:
    """As many as there may be by default, at a roll, a retention check and a look at them."""
    times = count(1)

    async def prepare() -> Partition:
        await rig.services.topics.create(CreateTopic("orders", uuid4(), 1, {}))
        partition = rig.services.partition("orders", 0)
        assert partition is not None
        header = batches.read_header(batch(0))
        for producer in range(scaled(PRODUCERS)):
            for sequence in range(5):
                given = header._replace(producer_id=producer, base_sequence=sequence)
                partition.log.producers.record(given, sequence, is_live=True)
        return partition

    partition = rig.run(prepare())

    async def look_after() -> None:
        data = batch(0, 4 + next(times))
        partition.append(data, batches.headers(data))
        await partition.roll_ready()
        await partition.expire(WallMs(1))
        topics = [{"name": "orders", "partition_indexes": [0]}]
        await Client(rig.server).ask(framed(61, 0, {"topics": topics}))
        assert len(partition.log.producers) == scaled(PRODUCERS)

    rig.require_short(look_after, SECONDS_MAX)


def test_producers_of_many_partitions_are_described_in_short_steps(rig: LoopRig) -> None:
    """Each partition has fewer than a portion."""
    partitions = producers = PORTION - 1

    async def prepare() -> None:
        await rig.services.topics.create(CreateTopic("orders", uuid4(), partitions, {}))
        header = batches.read_header(batch(0))
        for index in range(partitions):
            partition = rig.services.partition("orders", index)
            assert partition is not None
            for producer in range(producers):
                given = header._replace(producer_id=producer)
                partition.log.producers.record(given, producer, is_live=True)

    async def describe() -> None:
        client = Client(rig.server)
        topics = [{"name": "orders", "partition_indexes": list(range(partitions))}]
        body = await client.ask(framed(61, 0, {"topics": topics}))
        assert len(body) > 30 * partitions * producers
        await client.hang_up()

    rig.run(prepare())
    rig.require_short(describe, SECONDS_MAX)
