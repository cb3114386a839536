"""A query by the stock share protocol: on Apache Kafka, and on Headrace made to use it."""

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from headrace.client.admin import create_topic, set_group_configs
from headrace.client.connection import Cluster
from headrace.client.share_groups import list_share_group_offsets
from headrace.spark import IncomingRecord, Reject, Release
from headrace.spark.queue.kafka import KafkaDriver
from headrace.spark.queue.options import QueueOptions
from headrace.spark.queue.reader import ShareReader
from headrace.spark.source import HeadraceDataSource

Batches = dict[int, list[tuple[int, int]]]
_names = itertools.count()


def stock_source() -> type[DataSource]:
    """The data source with the choice made beforehand; local, so that Spark ships it by value."""

    class Stock(HeadraceDataSource):
        @classmethod
        def name(cls) -> str:
            return "headrace-stock"

        def streamReader(self, schema: StructType) -> ShareReader:
            return ShareReader(QueueOptions.parse(self._given), schema, KafkaDriver)

    return Stock


class Shared:
    """A topic with two partitions and a group of its own at a broker that serves several tests."""

    def __init__(self, servers: str) -> None:
        number = next(_names)
        self.servers = servers
        self.topic, self.group = f"t{number}", f"g{number}"
        self.cluster = Cluster(servers)
        create_topic(self.cluster, self.topic, 2)
        self.set_group(share_record_lock_duration_ms="15000")

    def set_group(self, **configs: str) -> None:
        names = {name.replace("_", "."): value for name, value in configs.items()}
        set_group_configs(self.cluster, self.group, names)

    def produce(self, count: int, value: str = "value {}") -> None:
        """`count` records, by turns to both partitions."""
        producer = Producer({"bootstrap.servers": self.servers, "linger.ms": 20})
        for number in range(count):
            producer.produce(self.topic, value.format(number), partition=number % 2)
        assert producer.flush(30) == 0

    @property
    def given(self) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self.servers,
            "subscribe": self.topic,
            "share.group.id": self.group,
            "startingOffsets": "earliest",
        }

    def options(self, **more: str) -> QueueOptions:
        return QueueOptions.parse({**self.given, **more})

    def finished(self) -> bool:
        """Whether every record of the topic is finished."""
        places = [(self.topic, 0), (self.topic, 1)]
        found = list_share_group_offsets(self.cluster, self.group, places)
        return len(found) == 2 and all(one is not None and one.lag == 0 for one in found.values())

    @staticmethod
    def until(condition: Callable[[], object], seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.1)


class Stock(Shared):
    """A query on them."""

    def __init__(self, spark: SparkSession, servers: str, source: str, folder: Path) -> None:
        super().__init__(servers)
        self.spark = spark
        self.source = source
        self.folder = folder
        self.seen: Batches = {}

    def rows(self, **options: str) -> DataFrame:
        reader = self.spark.readStream.format(self.source)
        return reader.options(**{**self.given, **options}).load()

    def start(
        self, rows: DataFrame, sink: Callable[[DataFrame, int], None], **trigger: Any
    ) -> StreamingQuery:
        writer = rows.writeStream.option("checkpointLocation", str(self.folder / "checkpoint"))
        return writer.foreachBatch(sink).trigger(**trigger).start()

    def run(self, rows: DataFrame, sink: Callable[[DataFrame, int], None]) -> None:
        """Run until nothing is left."""
        query = self.start(rows, sink, availableNow=True)
        assert query.awaitTermination(300)

    def note(self, rows: DataFrame, batch_id: int) -> None:
        """A sink that remembers which records a batch had; a batch seen again replaces itself."""
        found = rows.select("partition", "offset").collect()
        self.seen[batch_id] = sorted((row.partition, row.offset) for row in found)

    @property
    def noted(self) -> list[tuple[int, int]]:
        # At once: a batch may be added meanwhile.
        return sorted(one for batch in tuple(self.seen.values()) for one in batch)


def judge(record: IncomingRecord) -> dict[str, Any]:
    number = int((record.value or b"").split()[1])
    if number % 10 == 1 and record.delivery_count == 1:
        raise Release("again, please")
    if number % 10 == 2:
        raise Reject("never")
    return {"number": number, "deliveries": record.delivery_count}
