"""Locks that ended while a driver was away: what others took is read again, and said to be."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import LongType, StructType

import headrace
from headrace.client.admin import create_topic, set_group_configs
from headrace.client.connection import Cluster
from headrace.client.leases import describe
from headrace.spark.queue.options import QueueOptions
from headrace.spark.queue.reader import ShareReader

RECORDS = 100
ALL = ReadMaxRows(RECORDS)


@pytest.fixture
def servers() -> Iterator[str]:
    """A broker with a topic and a group whose locks last a second."""
    with headrace.Broker() as broker, Cluster(broker.bootstrap_servers) as cluster:
        create_topic(cluster, "t", 1)
        set_group_configs(cluster, "g", {"share.record.lock.duration.ms": "1000"})
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        for number in range(RECORDS):
            producer.produce("t", f"value {number}")
        assert producer.flush(20) == 0
        yield broker.bootstrap_servers


def reader(servers: str) -> ShareReader:
    """What Spark has on the driver of a query."""
    options = QueueOptions(bootstrap_servers=servers, topics=("t",), group="g", start="earliest")
    return ShareReader(options, StructType().add("offset", LongType()))


def rows(of: ShareReader, begin: dict[str, Any], end: dict[str, Any]) -> int:
    """How many rows the tasks of a batch read."""
    return sum(batch.num_rows for task in of.partitions(begin, end) for batch in of.read(task))


def test_what_others_took_is_read_twice_and_the_late_commit_is_refused_and_told(
    servers: str, caplog: pytest.LogCaptureFixture
) -> None:
    away, other = reader(servers), reader(servers)
    begin = away.initialOffset()
    end = away.latestOffset(begin, ALL)
    away.stop()
    start = other.initialOffset()
    deadline = time.monotonic() + 60
    while (taken := other.latestOffset(start, ALL)) == start:
        assert time.monotonic() < deadline, "the locks did not end"
    assert rows(other, start, taken) == RECORDS
    other.commit(taken)

    back = reader(servers)
    assert rows(back, begin, end) == RECORDS
    back.commit(end)
    assert f"0 accepted, 0 released, 0 rejected, {RECORDS} refused (their locks" in caplog.text
    with Cluster(servers) as cluster:
        (state,) = describe(cluster, "g")
    assert (state.start, state.log_end, state.in_flight) == (RECORDS, RECORDS, ())
    for one in (other, back):
        one.stop()
