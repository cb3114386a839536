"""One Spark session for all tests of the source (it is what takes the time), and a broker."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import headrace
from headrace.client.admin import create_topic, set_group_configs
from headrace.client.connection import Cluster
from headrace.client.leases import describe
from headrace.client.records import read_records
from headrace.spark import local_session, register
from headrace.wire.batches import Record
from headrace.wire.leases import SharePartition

GROUP = "g"
Batches = dict[int, list[tuple[int, int]]]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = local_session("headrace tests")
    register(session)
    yield session
    session.stop()


class Flow:
    """A topic `t` with two partitions, the group `g`, and a query from one to the other."""

    def __init__(self, spark: SparkSession, broker: headrace.Broker, folder: Path) -> None:
        self.spark = spark
        self.broker = broker
        self.servers = broker.bootstrap_servers
        self.checkpoint = folder / "checkpoint"
        self.cluster = Cluster(self.servers)
        self.seen: Batches = {}
        create_topic(self.cluster, "t", 2)

    def produce(self, count: int, value: str = "value {}") -> None:
        """`count` records, by turns to both partitions."""
        producer = Producer({"bootstrap.servers": self.servers, "linger.ms": 20})
        for number in range(count):
            producer.produce(
                "t",
                value.format(number),
                key=f"key {number}",
                partition=number % 2,
                headers={"number": str(number)},
            )
        assert producer.flush(60) == 0

    def set_group(self, **configs: str) -> None:
        names = {name.replace("_", "."): value for name, value in configs.items()}
        set_group_configs(self.cluster, GROUP, names)

    def rows(self, **options: str) -> DataFrame:
        reader = self.spark.readStream.format("headrace")
        return reader.options(**{**self.options, **options}).load()

    @property
    def options(self) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self.servers,
            "subscribe": "t",
            "share.group.id": GROUP,
            "startingOffsets": "earliest",
        }

    def start(
        self, rows: DataFrame, sink: Callable[[DataFrame, int], None], **trigger: Any
    ) -> StreamingQuery:
        writer = rows.writeStream.option("checkpointLocation", str(self.checkpoint))
        writer = writer.foreachBatch(sink)
        return (writer.trigger(**trigger) if trigger else writer).start()

    def run(self, rows: DataFrame, sink: Callable[[DataFrame, int], None]) -> None:
        """Run until nothing is left."""
        self.start(rows, sink, availableNow=True).awaitTermination()

    def note(self, rows: DataFrame, batch_id: int) -> None:
        """A sink that remembers which records a batch had; a batch seen again replaces itself."""
        found = rows.select("partition", "offset").collect()
        self.seen[batch_id] = sorted((row.partition, row.offset) for row in found)

    @property
    def noted(self) -> list[tuple[int, int]]:
        # At once: a batch may be added meanwhile.
        return sorted(one for batch in tuple(self.seen.values()) for one in batch)

    def state(self) -> tuple[SharePartition, ...]:
        return describe(self.cluster, GROUP)

    def finished(self) -> bool:
        """Whether every record of the topic is finished, and there were some."""
        state = self.state()
        return bool(state) and all(
            one.start == one.log_end > 0 and not one.in_flight for one in state
        )

    def dead_letters(self) -> list[Record]:
        return [
            record
            for partition in self.cluster.partitions("dlq.t")
            for record in read_records(self.cluster, "dlq.t", partition)
        ]

    @staticmethod
    def until(condition: Callable[[], object], seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.05)


@pytest.fixture
def flow(spark: SparkSession, tmp_path: Path) -> Iterator[Flow]:
    settings = {"group.share.max.record.lock.duration.ms": "3600000"}
    with headrace.Broker(data_dir=tmp_path / "broker", settings=settings) as broker:
        made = Flow(spark, broker, tmp_path)
        yield made
        for query in spark.streams.active:
            query.stop()
        made.cluster.close()


def everything(count: int) -> list[tuple[int, int]]:
    return sorted((number % 2, number // 2) for number in range(count))


@pytest.fixture
def all_of() -> Callable[[int], list[tuple[int, int]]]:
    """Partition and offset of every record after `produce(count)`."""
    return everything
