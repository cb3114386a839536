"""Partitions and topics that come under running queries, and while these are away, in Spark itself.

Records of a new partition are there before a query can see it: the queries stand still in their
sinks meanwhile. `latest` is Spark's own, which reads what is new from its start.
"""

import threading
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from headrace.client.topics import add_partitions, create_topic, delete_records
from headrace.spark import progress

from .asking import committed

pytestmark = pytest.mark.spark
SECONDS_MAX = 120.0
Record = tuple[str, int, int]


class Reading:
    """A query and what its sink was given; a record that came twice is there twice."""

    def __init__(self, log: Any, value: str, folder: Path) -> None:
        self.value, self.found = value, list[Record]()
        self.holds, self.may_go_on = threading.Event(), threading.Event()
        self._log, self._checkpoint = log, folder / value

    def start(self) -> StreamingQuery:
        given = {
            "kafka.bootstrap.servers": self._log.servers,
            "subscribePattern": "t|u.*",
            "kafka.group.id": self.value,
            "startingOffsets": self.value,
            "offset.reset.strategy.offset-out-of-range": "nearest",
        }
        rows = self._log.spark.readStream.format("headrace").options(**given).load()
        writer = rows.writeStream.option("checkpointLocation", str(self._checkpoint))
        query: StreamingQuery = writer.foreachBatch(self._take).start()
        return query

    def _take(self, rows: DataFrame, _: int) -> None:
        found = [tuple(one) for one in rows.select("topic", "partition", "offset").collect()]
        if found:
            self.holds.set()
            assert self.may_go_on.wait(SECONDS_MAX)
            self.found += found


def put(log: Any, *records: Record) -> None:
    """The records, which are to have these offsets."""
    producer = Producer({"bootstrap.servers": log.servers})
    for topic, partition, _ in records:
        producer.produce(topic, b"v", partition=partition)
    assert producer.flush(SECONDS_MAX) == 0


def until_committed(log: Any, readings: list[Reading], partition: int) -> None:
    """Until each query has seen a partition, and has read all that was there before."""
    log.until(
        lambda: all(partition in committed(log.cluster, one.value) for one in readings), SECONDS_MAX
    )


def test_what_comes_is_read_by_the_start_that_was_given(log: Any, tmp_path: Path) -> None:
    put(log, ("t", 0, 0))
    skips, safe, spark_s = (
        Reading(log, value, tmp_path) for value in ("latest_on_start", "safe_latest", "latest")
    )
    readings = [skips, safe, spark_s]
    queries = [one.start() for one in readings]
    until_committed(log, readings, 0)
    put(log, first := ("t", 0, 1))
    for one in readings:
        assert one.holds.wait(SECONDS_MAX)
    add_partitions(log.cluster, "t", 3)
    create_topic(log.cluster, "u", 1)
    put(log, *(unseen := [("t", 2, 0), ("u", 0, 0)]))
    for one in readings:
        one.may_go_on.set()
    until_committed(log, readings, 2)
    put(log, *(seen := [("t", 2, 1), ("u", 0, 1)]))
    log.until(lambda: all(set(seen) <= {*one.found} for one in readings), SECONDS_MAX)
    assert sorted(skips.found) == sorted([first, *seen])
    assert sorted(safe.found) == sorted(spark_s.found) == sorted([first, *unseen, *seen])
    for query in queries:
        query.processAllAvailable()  # or the batch that was stopped behind its sink runs again
        query.stop()

    add_partitions(log.cluster, "t", 4)
    put(log, *(away := [("t", 3, 0), ("t", 0, 2), ("t", 0, 3)]))
    delete_records(log.cluster, {("t", 0): 3})
    readings = [skips, safe]
    queries = [one.start() for one in readings]
    until_committed(log, readings, 3)
    put(log, last := ("t", 3, 1))
    log.until(lambda: all(last in one.found for one in readings), SECONDS_MAX)
    assert sorted(skips.found) == sorted([first, *seen, away[2], last])
    assert sorted(safe.found) == sorted([first, *unseen, *seen, away[0], away[2], last])
    for query in queries:
        found = progress(query)
        assert found is not None
        assert found.counts.resets == 1, "t-0, of which a record was removed"
