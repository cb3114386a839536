"""What progress tells of a query: its lag, and what became of its records."""

import logging
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from headrace.client.share_groups import list_share_group_offsets
from headrace.spark import (
    Counts,
    Progress,
    ProgressLog,
    Reject,
    Release,
    acknowledge,
    each_record,
    progress,
)
from headrace.spark.progress import _remove


def noop(rows: DataFrame, batch_id: int) -> None:
    rows.count()


def batches(query: Any) -> list[Progress]:
    """The progress of the batches that had records."""
    found = [progress(one) for one in query.recentProgress]
    return [one for one in found if one is not None and one.rows]


def test_a_queue_tells_lag_and_counts(flow: Any) -> None:
    flow.produce(10)
    query = flow.start(flow.rows(maxOffsetsPerTrigger="4"), noop, availableNow=True)
    query.awaitTermination()
    told = batches(query)
    assert [one.rows for one in told] == [4, 4, 2]
    assert [one.total_lag for one in told] == [6, 2, 0], "beside the records of the batch"
    assert [one.counts.acquired for one in told] == [4, 8, 10]
    assert [one.counts.accepted for one in told] == [0, 4, 8], "settled one trigger later"
    assert set(told[0].lag) == {("t", 0), ("t", 1)}
    assert told[0].max_lag >= told[0].mean_lag == 3
    last = progress(query)
    assert last is not None
    assert last == told[-1], "what the last batch settled has no batch to be told with"


def test_rejected_and_released_records_are_counted(flow: Any) -> None:
    def judge(record: Any) -> dict[str, Any]:
        number = int(record.value)
        if number == 3:
            raise Reject("three")
        if number == 4 and record.delivery_count == 1:
            raise Release("four")
        return {"number": number}

    flow.produce(10, "{}")
    judged = each_record(flow.rows(includeDelivery="true"), judge, "number bigint")
    sink = acknowledge(noop, bootstrap_servers=flow.servers, group="g")
    query = flow.start(judged, sink, availableNow=True)
    query.awaitTermination()
    found = progress(query)
    assert found is not None
    assert found.counts == Counts(acquired=11, accepted=8, released=1, rejected=1)
    assert found.total_lag == 0


def test_a_restarted_query_tells_again(flow: Any) -> None:
    for _ in range(2):
        flow.produce(6)
        query = flow.start(flow.rows(maxOffsetsPerTrigger="4"), noop, availableNow=True)
        query.awaitTermination()
        assert [one.rows for one in batches(query)] == [4, 2]
        found = progress(query)
        assert found is not None
        assert (found.counts.acquired, found.total_lag) == (6, 0), "since the driver's start"


def test_lag_is_the_groups_own(flow: Any) -> None:
    flow.produce(10)
    seen: list[int] = []

    def look(rows: DataFrame, batch_id: int) -> None:
        rows.count()
        found = list_share_group_offsets(flow.cluster, "g").values()
        seen.append(sum(one.lag or 0 for one in found if one is not None))

    query = flow.start(flow.rows(maxOffsetsPerTrigger="4"), look, availableNow=True)
    query.awaitTermination()
    held = [one.rows for one in batches(query)]
    assert [lag - rows for lag, rows in zip(seen, held, strict=True)] == [
        one.total_lag for one in batches(query)
    ]


def test_a_log_tells_its_lag(flow: Any) -> None:
    flow.produce(10)
    rows = flow.spark.readStream.format("headrace").options(
        **{
            "kafka.bootstrap.servers": flow.servers,
            "subscribe": "t",
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": "4",
        }
    )
    query = flow.start(rows.load(), noop, availableNow=True)
    query.awaitTermination()
    told = batches(query)
    assert [one.total_lag for one in told] == [6, 2, 0]
    assert told[0].lag == {("t", 0): 3, ("t", 1): 3}
    assert told[0].counts == Counts()


def test_a_query_that_reads_elsewhere_has_none(spark: SparkSession, flow: Any) -> None:
    rows = spark.readStream.format("rate").option("rowsPerSecond", "10").load()
    query = flow.start(rows, noop)
    flow.until(lambda: query.lastProgress is not None, 60)
    assert progress(query) is None
    query.stop()


@pytest.fixture
def listening(spark: SparkSession) -> Iterator[None]:
    listener = ProgressLog()
    spark.streams.addListener(listener)
    yield
    spark.streams.removeListener(listener)


@pytest.mark.usefixtures("listening")
def test_the_listener_tells_a_line_a_batch(flow: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headrace.spark.progress")
    flow.produce(10)
    rows = flow.rows(maxOffsetsPerTrigger="4")
    writer = rows.writeStream.queryName("orders").foreachBatch(noop)
    writer = writer.option("checkpointLocation", str(flow.checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()
    first = "orders batch 0: 4 rows, lag 6 in 2 partitions, 3 in the worst; 4 acquired"
    second = "orders batch 1: 4 rows, lag 2 in 2 partitions, 1 in the worst; 8 acquired, 4 accepted"
    flow.until(lambda: {first, second} <= set(caplog.messages), 60)


@pytest.mark.parametrize("context", [None, object()], ids=["stopped", "running"])
def test_the_log_removes_itself_when_the_program_ends(
    context: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listener that outlives its program makes Spark print a trace for each event."""
    removed: list[Any] = []
    log = ProgressLog()
    streams = SimpleNamespace(removeListener=removed.append)
    monkeypatch.setattr(SparkSession, "_instantiatedSession", SimpleNamespace(streams=streams))
    monkeypatch.setattr(SparkContext, "_active_spark_context", context)
    _remove(weakref.ref(log))
    assert removed == ([] if context is None else [log])
