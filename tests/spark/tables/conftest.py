"""A cluster with groups of all kinds, made once, as tables only look; and how they are read."""

import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import DataFrame, SparkSession

import headrace
from headrace.client.admin import create_topic, log_ends, set_group_configs
from headrace.client.connection import Cluster
from headrace.client.errors import BrokerError
from headrace.client.group_offsets import CommittedOffset, alter_group_offsets
from headrace.client.leases import Lease
from headrace.wire.leases import Disposition, Verdict

JOIN_S_MAX = 60
_SECONDS = re.compile(r'^headrace_request_seconds_count\{api="(\w+)"\} (\S+)$', re.MULTILINE)


class World:
    """Topic `orders` of two partitions with ten records each, and who reads it."""

    def __init__(self, broker: headrace.Broker) -> None:
        self.broker = broker
        self.servers = broker.bootstrap_servers
        self.cluster = Cluster(self.servers)
        create_topic(self.cluster, "orders", 2)
        producer = Producer({"bootstrap.servers": self.servers})
        for number in range(20):
            producer.produce("orders", b"%d" % number, partition=number % 2)
        assert producer.flush(30) == 0
        self._idle()
        self._queue()
        self._dead_letter()

    def _idle(self) -> None:
        """Groups that were only ever committed to."""
        by_hand = CommittedOffset(4, metadata="by hand")
        committed: dict[tuple[str, int], CommittedOffset | int] = {
            ("orders", 0): by_hand,
            ("orders", 1): 10,
        }
        alter_group_offsets(self.cluster, "idle-a", committed).check()
        for name in ("idle-b", "idle-c"):
            alter_group_offsets(self.cluster, name, {("orders", 0): 1}).check()

    def _queue(self) -> None:
        """Share group `work`: six records settled, two of them rejected, three held."""
        set_group_configs(self.cluster, "work", {"share.record.lock.duration.ms": "3600000"})
        self.lease = Lease(self.cluster, "work", "checkpoint-1")
        self.lease.open(("orders",), "earliest")
        first = self.lease.acquire(1, 6, 0)[0]
        bad = Disposition(
            first.topic, first.partition, first.first, first.first + 1, Verdict.REJECT, "no total"
        )
        self.lease.stage(1, (bad,))
        self.lease.commit(1)
        self.rejected = (first.partition, first.first, first.first + 1)
        self.held = self.lease.acquire(2, 3, 0)

    def _dead_letter(self) -> None:
        """Share group `strict`: the first record of orders-0 rejected, into `dlq.strict`."""
        settings = {"errors.deadletterqueue.topic.name": "dlq.strict"}
        set_group_configs(self.cluster, "strict", settings)
        lease = Lease(self.cluster, "strict", "checkpoint-2")
        lease.open(("orders",), "earliest")
        first = lease.acquire(1, 1, 0)[0]
        place = (first.topic, first.partition, first.first, first.last)
        lease.stage(1, (Disposition(*place, Verdict.REJECT, "too strict"),))
        lease.commit(1)
        self.lettered = (first.partition, first.first)
        deadline = time.monotonic() + JOIN_S_MAX
        while not self._letters():
            assert time.monotonic() < deadline, "the dead letter was not written"
            time.sleep(0.05)

    def _letters(self) -> int:
        try:
            return sum(log_ends(self.cluster, "dlq.strict").values())
        except BrokerError:
            return 0  # the topic comes with its first record

    def requests(self) -> dict[str, int]:
        """How many requests of each API the broker has answered."""
        url = f"http://127.0.0.1:{self.broker.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=JOIN_S_MAX) as answer:
            text = answer.read().decode()
        return {name: int(float(count)) for name, count in _SECONDS.findall(text)}


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    settings = {
        "headrace.metrics.port": "0",
        "group.share.max.record.lock.duration.ms": "3600000",
    }
    with headrace.Broker(settings=settings) as broker:
        made = World(broker)
        yield made
        made.cluster.close()


@pytest.fixture(scope="module")
def clerk(world: World) -> Iterator[Consumer]:
    """The member of the consumer group `billing`, which has committed 3 for orders-1."""
    consumer = Consumer(
        {
            "bootstrap.servers": world.servers,
            "group.id": "billing",
            "client.id": "clerk",
            "group.instance.id": "desk-1",
            "enable.auto.commit": False,
            "max.poll.interval.ms": 86_400_000,  # nobody polls it any more
        }
    )
    consumer.subscribe(["orders"])
    deadline = time.monotonic() + JOIN_S_MAX
    while not consumer.assignment():
        assert time.monotonic() < deadline, "the consumer got no partitions"
        consumer.poll(0.1)
    consumer.commit(offsets=[TopicPartition("orders", 1, 3)], asynchronous=False)
    yield consumer
    consumer.close()


@pytest.fixture
def table(spark: SparkSession, world: World) -> Callable[..., DataFrame]:
    """A table of the cluster by name."""

    def read(name: str, **options: str) -> DataFrame:
        given = {"kafka.bootstrap.servers": world.servers, "table": name, **options}
        return spark.read.format("headrace").options(**given).load()

    return read


@pytest.fixture
def asked(world: World) -> Callable[..., SimpleNamespace]:
    """What a function returns, and how many requests of each API it took."""

    def run(function: Callable[[], Any]) -> SimpleNamespace:
        before = world.requests()
        result = function()
        after = world.requests()
        spent = {name: count - before.get(name, 0) for name, count in after.items()}
        return SimpleNamespace(result=result, spent={n: c for n, c in spent.items() if c})

    return run
