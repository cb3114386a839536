"""A log on Apache Kafka and on Headrace: the same queries, the same rows, the same group."""

import itertools
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from tests.java_archives import quick_java

from brokers import BROKERS, Broker, java, prepared
from headrace.client.connection import Cluster
from headrace.client.topics import (
    add_partitions,
    create_topic,
    delete_records,
    delete_topic,
    describe_topics,
)

pytestmark = pytest.mark.spark

BEGAN_MS = 1_790_000_000_000
SECONDS_MAX = 60
_NUMBERS = itertools.count(1)
_SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.ms": "-1",
}
_OF_ONE = {
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}
_GROUP_TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"


class Rig:
    """A topic of its own with two partitions, and a query over it with a group of its own."""

    def __init__(self, spark: SparkSession, servers: str, folder: Path) -> None:
        number = next(_NUMBERS)
        self.topic, self.group = f"orders-{number}", f"billing-{number}"
        self.servers = servers
        self.cluster = Cluster(servers)
        self.seen: dict[int, list[tuple[int, int]]] = {}
        self._spark = spark
        self._checkpoint = str(folder / "checkpoint")
        create_topic(self.cluster, self.topic, 2)

    def produce(self, first: int, count: int, **settings: Any) -> None:
        """Records with the numbers from `first` on, one a second, by turns to the partitions."""
        producer = Producer({"bootstrap.servers": self.servers, "linger.ms": 20, **settings})
        for number in range(first, first + count):
            self.send(producer, number)
        assert producer.flush(SECONDS_MAX) == 0

    def send(self, producer: Producer, number: int) -> None:
        producer.produce(
            self.topic, b"%d" % number, partition=number % 2, timestamp=BEGAN_MS + 1000 * number
        )

    @property
    def given(self) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self.servers,
            "subscribe": self.topic,
            "startingOffsets": "earliest",
            "kafka.group.id": self.group,
        }

    def stream(self, **options: str) -> None:
        """Run a query until nothing is left."""
        rows = self._spark.readStream.format("headrace").options(**{**self.given, **options}).load()
        writer = rows.writeStream.option("checkpointLocation", self._checkpoint)
        writer.foreachBatch(self._note).trigger(availableNow=True).start().awaitTermination()

    def batch(self, **options: str) -> list[int]:
        """The numbers that a batch query finds, sorted."""
        found = self._spark.read.format("headrace").options(**{**self.given, **options}).load()
        return sorted(int(row.value) for row in found.select("value").collect())

    def lag(self) -> dict[int, tuple[str, str, str]]:
        """What kafka-consumer-groups tells of each partition: its offset, the end, the lag."""
        asked = ("--bootstrap-server", self.servers, "--describe", "--group", self.group)
        told = subprocess.run(
            java(_GROUP_TOOL, *asked, options=(*quick_java(), "-Xmx128m")),
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=True,
        )
        lines = [line.split() for line in told.stdout.splitlines()]
        return {int(one[2]): (one[3], one[4], one[5]) for one in lines if self.topic in one}

    @property
    def noted(self) -> list[tuple[int, int]]:
        return sorted(one for batch in self.seen.values() for one in batch)

    def _note(self, rows: DataFrame, batch_id: int) -> None:
        found = rows.select("partition", "offset").collect()
        self.seen[batch_id] = sorted((row.partition, row.offset) for row in found)


@pytest.fixture(scope="module")
def launched() -> Iterator[dict[str, Broker]]:
    """Both brokers, launched together, for the tests of this module."""
    with prepared(BROKERS["kafka"]) as kafka, prepared(BROKERS["headrace"]) as headrace:
        found = {"kafka": kafka, "headrace": headrace}
        settings = {"kafka": _SETTINGS | _OF_ONE, "headrace": _SETTINGS}
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda kind: found[kind].launch(settings[kind]), found))
        try:
            yield found
        finally:
            kafka.kill()
            headrace.kill()


@pytest.fixture(params=["kafka", "headrace"])
def rig(
    request: pytest.FixtureRequest, launched: dict[str, Broker], spark: SparkSession, tmp_path: Path
) -> Iterator[Rig]:
    made = Rig(spark, launched[request.param].servers, tmp_path)
    yield made
    made.cluster.close()


def offsets(count: int, first: int = 0) -> list[tuple[int, int]]:
    return [(partition, offset) for partition in (0, 1) for offset in range(first, count)]


def test_a_stream_reads_all_and_kafka_s_tool_sees_its_group_without_lag(rig: Rig) -> None:
    rig.produce(0, 100)
    rig.stream(maxOffsetsPerTrigger="60", minPartitions="4")
    assert [len(batch) for batch in rig.seen.values()] == [60, 40]
    assert rig.noted == offsets(50)
    assert rig.lag() == {0: ("50", "50", "0"), 1: ("50", "50", "0")}
    rig.produce(100, 10)
    assert rig.lag() == {0: ("50", "55", "5"), 1: ("50", "55", "5")}
    assert rig.batch(startingOffsets="committed") == list(range(100, 110))
    add_partitions(rig.cluster, rig.topic, 3)
    rig.stream()
    assert rig.noted == offsets(55)


def test_a_batch_reads_between_its_bounds(rig: Rig) -> None:
    rig.produce(0, 20)
    assert rig.batch() == list(range(20))
    assert rig.batch(startingTimestamp=str(BEGAN_MS + 4000)) == list(range(4, 20))
    assert rig.batch(endingTimestamp=str(BEGAN_MS + 4000)) == list(range(4))
    bounds = {
        "startingOffsets": f'{{"{rig.topic}":{{"0":3,"1":-2}}}}',
        "endingOffsets": f'{{"{rig.topic}":{{"0":-1,"1":2}}}}',
    }
    assert rig.batch(**bounds) == sorted([*range(6, 20, 2), 1, 3])


def test_what_was_removed_is_told(rig: Rig) -> None:
    rig.produce(0, 4)
    rig.stream()
    rig.produce(4, 16)
    delete_records(rig.cluster, {(rig.topic, 0): 7})
    with pytest.raises(StreamingQueryException, match=f"{rig.topic}-0: offsets 2 to 6 were remov"):
        rig.stream()
    rig.stream(failOnDataLoss="false")
    assert rig.noted == [one for one in offsets(10) if one not in [(0, o) for o in range(2, 7)]]


def test_a_topic_that_was_made_again_is_told(rig: Rig) -> None:
    rig.produce(0, 4)
    rig.stream()
    delete_topic(rig.cluster, rig.topic)
    make_again(rig)
    rig.produce(0, 20)
    with pytest.raises(StreamingQueryException, match="was deleted and created again after offse"):
        rig.stream()
    rig.seen.clear()
    rig.stream(failOnDataLoss="false")
    assert rig.noted == offsets(10)


def test_what_comes_while_a_query_is_away_is_read_from_its_start(rig: Rig) -> None:
    """Also what came before its first run had anything to read."""
    rig.produce(0, 4)
    rig.stream(startingOffsets="safe_latest")
    assert rig.noted == []
    add_partitions(rig.cluster, rig.topic, 3)
    until = time.monotonic() + SECONDS_MAX
    while len(describe_topics(rig.cluster, [rig.topic])[rig.topic].partitions) < 3:
        assert time.monotonic() < until, "Kafka's metadata does not have the new partition"
    producer, told = Producer({"bootstrap.servers": rig.servers}), list[Any]()
    for partition in (0, 2, 2):
        producer.produce(
            rig.topic, b"v", partition=partition, on_delivery=lambda error, _: told.append(error)
        )
    assert producer.flush(SECONDS_MAX) == 0
    assert told == [None] * 3
    rig.stream(startingOffsets="safe_latest")
    assert rig.noted == [(0, 2), (2, 0), (2, 1)]


def make_again(rig: Rig) -> None:
    """Kafka deletes a topic in its own time."""
    until = time.monotonic() + SECONDS_MAX
    while not create_topic(rig.cluster, rig.topic, 2, exist_ok=True):
        assert time.monotonic() < until, "the topic is still there"
        time.sleep(0.1)


class TestTransactions:
    """They need Apache Kafka. Their markers take offsets, which are not lost records."""

    @pytest.fixture
    def rig(
        self, launched: dict[str, Broker], spark: SparkSession, tmp_path: Path
    ) -> Iterator[Rig]:
        made = Rig(spark, launched["kafka"].servers, tmp_path)
        settings = {"bootstrap.servers": made.servers, "transactional.id": made.group}
        producer = Producer(settings)
        producer.init_transactions(SECONDS_MAX)
        for number in range(0, 40, 4):
            producer.begin_transaction()
            for one in range(number, number + 4):
                made.send(producer, one)
            assert producer.flush(SECONDS_MAX) == 0
            if number % 8:
                producer.abort_transaction(SECONDS_MAX)
            else:
                producer.commit_transaction(SECONDS_MAX)
        yield made
        made.cluster.close()

    COMMITTED = tuple(number for number in range(40) if number % 8 < 4)

    def test_all_records_are_read_as_by_kafka_s_consumers(self, rig: Rig) -> None:
        assert rig.batch() == list(range(40))
        assert rig.batch(maxRecordsPerPartition="3") == list(range(40))
        rig.stream(maxOffsetsPerTrigger="7")
        assert len(rig.noted) == 40
        assert {told[2] for told in rig.lag().values()} == {"0"}

    def test_committed_ones_alone_where_asked_for(self, rig: Rig) -> None:
        given = {"kafka.isolation.level": "read_committed"}
        assert tuple(rig.batch(**given)) == self.COMMITTED
        assert tuple(rig.batch(**given, maxRecordsPerPartition="3")) == self.COMMITTED
        rig.stream(**given, maxOffsetsPerTrigger="7")
        assert len(rig.noted) == len(self.COMMITTED)

    def test_a_transaction_that_goes_on_is_waited_for(self, rig: Rig) -> None:
        producer = Producer({"bootstrap.servers": rig.servers, "transactional.id": "goes on"})
        producer.init_transactions(SECONDS_MAX)
        producer.begin_transaction()
        rig.send(producer, 40)
        assert producer.flush(SECONDS_MAX) == 0
        rig.produce(41, 4)
        given = {"kafka.isolation.level": "read_committed"}
        after = (41, 43)  # of the other partition
        assert tuple(rig.batch(**given)) == (*self.COMMITTED, *after)
        assert 40 in rig.batch()
        producer.commit_transaction(SECONDS_MAX)
        assert tuple(rig.batch(**given)) == (*self.COMMITTED, *range(40, 45))
