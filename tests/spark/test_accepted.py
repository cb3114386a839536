"""`accepted` around sinks of any kind: what the tasks set aside is never accepted."""

import time

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from headrace.spark import IncomingRecord, Reject, Release, accepted, each_record

from .conftest import GROUP, Flow

pytestmark = pytest.mark.spark
DELAY_S = 3


def judged(flow: Flow) -> DataFrame:
    """In SQL alone: every tenth record is rejected, with the reason in a column."""
    return flow.rows(includeDelivery="true").selectExpr(
        "cast(value as string) as text",
        "topic",
        "partition",
        "offset",
        "lease",
        "case when offset % 10 = 0 then 'reject' end as disposition",
        "case when offset % 10 = 0 then 'tenth' end as reason",
    )


def taken(flow: Flow, rows: DataFrame, **settings: bool) -> DataFrame:
    return accepted(rows, bootstrap_servers=flow.servers, group=GROUP, **settings)


def run(flow: Flow, rows: DataFrame, folder: str) -> DataFrame:
    """Into Parquet files, without `foreachBatch`; what is in them."""
    target = str(flow.checkpoint.parent / folder)
    writer = rows.writeStream.format("parquet").option("checkpointLocation", str(flow.checkpoint))
    writer.trigger(availableNow=True).start(target).awaitTermination()
    return flow.spark.read.parquet(target)


def test_columns_made_in_sql_and_a_sink_of_sparks_own(flow: Flow) -> None:
    flow.set_group(errors_deadletterqueue_topic_name="dlq.t")
    flow.produce(200)
    written = run(flow, taken(flow, judged(flow)), "accepted")
    assert written.columns == ["text", "topic", "partition", "offset"]
    assert written.count() == written.distinct().count() == 180
    flow.until(lambda: len(flow.dead_letters()) == 20 and flow.finished())
    reasons = {dict(one.headers)["__dlq.errors.message"] for one in flow.dead_letters()}
    assert reasons == {b"tenth"}


def test_each_record_alone_gives_a_sink_no_row_for_what_it_sets_aside(flow: Flow) -> None:
    """Forgotten `acknowledge` and `accepted` must not mean null rows in the sink."""
    flow.set_group(errors_deadletterqueue_topic_name="dlq.t")
    flow.produce(60)

    def number(record: IncomingRecord) -> dict[str, int]:
        assert record.value is not None
        found = int(record.value.split()[1])
        if found % 3 == 0:
            raise Reject("a third")
        return {"number": found}

    rows = each_record(flow.rows(includeDelivery="true"), number, "number bigint")
    written = run(flow, rows, "alone")
    assert sorted(row.number for row in written.collect()) == [n for n in range(60) if n % 3]
    flow.until(lambda: len(flow.dead_letters()) == 20 and flow.finished())


def test_a_join_behind_it_drops_what_it_likes(flow: Flow) -> None:
    flow.set_group(errors_deadletterqueue_topic_name="dlq.t")
    flow.produce(60)

    def number(record: IncomingRecord) -> dict[str, int]:
        assert record.value is not None
        found = int(record.value.split()[1])
        if found % 3 == 0:
            raise Reject("a third")
        return {"number": found}

    rows = flow.rows(includeDelivery="true")
    known = flow.spark.range(0, 60, 2).withColumnRenamed("id", "number")
    joined = taken(flow, each_record(rows, number, "number bigint")).join(known, "number")
    written = run(flow, joined, "joined")
    assert sorted(row.number for row in written.collect()) == [
        one for one in range(0, 60, 2) if one % 3
    ]
    flow.until(lambda: len(flow.dead_letters()) == 20 and flow.finished())


def test_a_released_record_comes_back_after_its_delay(flow: Flow) -> None:
    flow.produce(10)
    seen: dict[int, tuple[float, int]] = {}

    def late(record: IncomingRecord) -> dict[str, int]:
        if record.delivery_count == 1 and record.offset == 3:
            raise Release("not yet", delay_s=DELAY_S)
        return {"deliveries": record.delivery_count}

    def note(rows: DataFrame, _: int) -> None:
        for row in rows.collect():
            seen[row.partition * 100 + row.offset] = (time.monotonic(), row.deliveries)

    rows = each_record(flow.rows(includeDelivery="true"), late, "deliveries int")
    query = flow.start(taken(flow, rows, keep_bookkeeping=True), note)
    flow.until(lambda: len(seen) == 10, 120)
    query.stop()
    first = min(when for when, _ in seen.values())
    again = [when - first for when, deliveries in seen.values() if deliveries == 2]
    assert len(again) == 2
    assert min(again) >= DELAY_S


def test_a_disposition_that_is_none_fails_the_batch(flow: Flow) -> None:
    flow.produce(4)
    rows = judged(flow).withColumn("disposition", f.lit("drop"))
    with pytest.raises(StreamingQueryException, match=r"'drop' of t-. offset . is not 'accept'"):
        run(flow, taken(flow, rows), "none")
    assert all(one.start == 0 for one in flow.state())


def test_columns_that_are_missing_are_named(flow: Flow) -> None:
    flow.produce(1)
    with pytest.raises(ValueError, match="accepted needs the columns lease, disposition, reason"):
        taken(flow, flow.rows())
