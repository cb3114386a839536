"""Locks that end between reading and writing fail the batch before `acknowledge` calls the sink."""

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql.streaming.datasource import ReadMaxRows

from headrace.spark import IncomingRecord, Reject, acknowledge, each_record
from headrace.spark.columns import schema_of
from headrace.spark.queue.options import QueueOptions
from headrace.spark.queue.reader import ShareReader, Task
from headrace.spark.queue.remaining import LocksLost

from .conftest import GROUP, Flow

pytestmark = pytest.mark.spark
RECORDS = 20


Reader = Callable[[], ShareReader]


@pytest.fixture
def reader(flow: Flow) -> Iterator[Reader]:
    """Make the driver's side of queries over records whose locks last a second."""
    flow.set_group(share_record_lock_duration_ms="1000")
    flow.produce(RECORDS)
    given = {"includeDelivery": "true", "minPartitions": "1", "newCheckpoint": "continue"}
    options = QueueOptions.parse({**flow.options, **given})
    made: list[ShareReader] = []

    def make() -> ShareReader:
        made.append(ShareReader(options, schema_of(options, delivery=True)))
        return made[-1]

    yield make
    for one in made:
        one.stop()


def judged(flow: Flow, reader: ShareReader) -> DataFrame:
    """Read a batch as the tasks of a query do, and judge each record."""
    begin = reader.initialOffset()
    end = reader.latestOffset(begin, ReadMaxRows(RECORDS))
    batches: list[pa.RecordBatch] = []
    for task in reader.partitions(begin, end):
        assert isinstance(task, Task)
        batches += reader.read(task)
    read: Any = pa.Table.from_batches(batches)
    assert read.num_rows == RECORDS

    def judge(record: IncomingRecord) -> dict[str, Any]:
        if record.offset == 0:
            raise Reject("never")
        return {"number": record.offset}

    return each_record(flow.spark.createDataFrame(read), judge, "number bigint")


def take(flow: Flow, other: ShareReader) -> None:
    """Acquire the records with another query, once their locks have ended."""
    start = other.initialOffset()
    flow.until(lambda: other.latestOffset(start, ReadMaxRows(RECORDS)) != start, 60)


@pytest.mark.parametrize("by", ["persist", "cache"])
def test_the_sink_gets_nothing_of_a_batch_whose_locks_ended_after_it_was_read(
    flow: Flow, reader: Reader, by: str
) -> None:
    """As after SIGSTOP: nobody renews the locks, and the rows are in memory already."""
    stopped = reader()
    rows = judged(flow, stopped)
    if by == "cache":
        rows = rows.cache()
        assert rows.count() == RECORDS - 2  # offset 0 of each partition is rejected
    stopped.stop()
    take(flow, reader())

    found: list[int] = []
    sink = acknowledge(
        lambda good, _: found.extend(row.number for row in good.collect()),
        bootstrap_servers=flow.servers,
        group=GROUP,
        persist=by == "persist",
    )
    try:
        with pytest.raises(LocksLost, match="ended while the batch ran, and other members may"):
            sink(rows, 0)
        assert found == []
        assert rows.is_cached == (by == "cache")
    finally:
        rows.unpersist()


def test_the_sink_gets_the_rows_of_a_batch_whose_locks_hold(flow: Flow, reader: Reader) -> None:
    rows = judged(flow, reader())
    found: list[int] = []
    sink = acknowledge(
        lambda good, _: found.extend(row.number for row in good.collect()),
        bootstrap_servers=flow.servers,
        group=GROUP,
        persist=True,
    )
    sink(rows, 0)
    assert sorted(found) == sorted(2 * list(range(1, RECORDS // 2)))
