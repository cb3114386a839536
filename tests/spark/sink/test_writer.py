"""The sink in real queries against a real broker."""

from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from headrace.client.admin import create_topic
from headrace.client.produce.partitioning import by_key
from headrace.client.records import read_records
from headrace.wire.batches import Record

pytestmark = pytest.mark.spark


def write(flow: Any, rows: DataFrame, mode: str = "append", **options: str) -> None:
    """Write to the topic `out` unless options say otherwise."""
    writer = rows.write.format("headrace").mode(mode)
    writer.options(**{"kafka.bootstrap.servers": flow.servers, "topic": "out", **options}).save()


def records(flow: Any, topic: str) -> dict[int, list[Record]]:
    return {
        at: list(read_records(flow.cluster, topic, at)) for at in flow.cluster.partitions(topic)
    }


def values(flow: Any, topic: str) -> list[bytes]:
    return sorted(one.value or b"" for part in records(flow, topic).values() for one in part)


@pytest.fixture
def out(flow: Any) -> Any:
    """A broker with the topic `out` of three partitions, beside those of `flow`."""
    create_topic(flow.cluster, "out", 3)
    return flow


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_batch_is_written_as_it_is(out: Any, codec: str) -> None:
    rows = out.spark.sql(
        "SELECT * FROM VALUES "
        "('k', 'v', array(struct('h' AS key, binary('1') AS value)), 2), "
        "(NULL, 'w', NULL, 2), "
        "('', NULL, array(), 2) AS rows(key, value, headers, partition)"
    ).coalesce(1)
    write(out, rows, **{"kafka.compression.type": codec})
    assert [(one.key, one.value, one.headers) for one in records(out, "out")[2]] == [
        (b"k", b"v", (("h", b"1"),)),
        (None, b"w", ()),
        (b"", None, ()),
    ]


def test_a_hundred_thousand_rows_land_where_java_s_producer_would_put_them(out: Any) -> None:
    rows = out.spark.range(0, 100_000, 1, 4)
    write(out, rows.selectExpr("CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value"))
    found = records(out, "out")
    assert values(out, "out") == sorted(b"%d" % number for number in range(100_000))
    for partition, part in found.items():
        keys = [one.key.decode() for one in part if one.key is not None]
        assert set(by_key(pa.array(keys), 3).tolist()) == {partition}


def test_rows_go_to_the_topics_they_name_unless_the_option_names_one(out: Any) -> None:
    rows = out.spark.sql(
        "SELECT IF(id < 3, 'out', 't') AS topic, string(id) AS value FROM range(5)"
    )
    writer = rows.write.format("headrace").option("kafka.bootstrap.servers", out.servers)
    writer.mode("append").save()
    assert (values(out, "out"), values(out, "t")) == ([b"0", b"1", b"2"], [b"3", b"4"])
    write(out, rows, topic="t")
    assert len(values(out, "t")) == 7


def test_what_was_read_can_be_written_and_a_timestamp_kept(out: Any) -> None:
    rows = out.spark.sql("SELECT 'x' AS value, timestamp_millis(1700000000123) AS timestamp")
    write(out, rows, includeTimestamp="true")
    write(out, rows, topic="t")
    (dated,), (new,) = (
        [one for part in records(out, topic).values() for one in part] for topic in ("out", "t")
    )
    assert dated.timestamp == 1700000000123
    assert new.timestamp > dated.timestamp


@pytest.mark.parametrize(
    ("mode", "told"),
    [
        ("overwrite", r"a log is only appended to: write with mode\('append'\)"),
        ("ignore", "UNSUPPORTED_DATA_SOURCE_SAVE_MODE"),
        ("errorifexists", 'UNSUPPORTED_DATA_SOURCE_SAVE_MODE.*"Append"'),
    ],
)
def test_other_save_modes_are_refused(out: Any, mode: str, told: str) -> None:
    with pytest.raises(AnalysisException, match=told):
        write(out, out.spark.range(1).selectExpr("string(id) AS value"), mode)
    assert values(out, "out") == []


def test_columns_are_refused_before_anything_runs(out: Any) -> None:
    with pytest.raises(AnalysisException, match="Required attribute 'value' not found"):
        write(out, out.spark.range(1))


@pytest.mark.parametrize(
    ("query", "options", "told"),
    [
        ("SELECT 'x' AS value, 7 AS partition", {}, "partition 7 .* 'out', which has 3"),
        (
            "SELECT repeat('x', 5000) AS value",
            {"kafka.max.request.size": "4000"},
            r"a record for out-\d takes 5\d\d\d bytes, and a request at most 4000",
        ),
    ],
)
def test_what_a_task_cannot_write_is_named(
    out: Any, query: str, options: dict[str, str], told: str
) -> None:
    with pytest.raises(PythonException, match=told):
        write(out, out.spark.sql(query), **options)


def test_a_missing_topic_that_a_row_names_ends_the_write_in_the_first_try(out: Any) -> None:
    """Rows of Arrow batches before it are written once, those beside and behind it never."""
    rows = out.spark.range(0, 20_000, 1, 1).selectExpr(
        "CASE id WHEN 15 THEN 'absent' ELSE 'out' END AS topic", "string(id) AS value"
    )
    writer = rows.write.format("headrace").option("kafka.bootstrap.servers", out.servers)
    at_once = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = out.spark.conf.get(at_once)
    out.spark.conf.set(at_once, "10")
    try:
        told = r"topic 'absent' does not exist at .*: create it .*, or correct the column 'topic'"
        with pytest.raises(AnalysisException, match=told):
            writer.mode("append").save()
    finally:
        out.spark.conf.set(at_once, before)
    assert values(out, "out") == sorted(b"%d" % number for number in range(10))


def test_a_stream_stops_at_a_missing_topic_and_goes_on_when_it_is_there(out: Any) -> None:
    out.produce(4)
    rows = out.rows().selectExpr("IF(offset = 1, 'later', 'out') AS topic", "value")

    def run() -> None:
        writer = rows.writeStream.format("headrace").trigger(availableNow=True)
        writer = writer.option("kafka.bootstrap.servers", out.servers)
        writer.option("checkpointLocation", str(out.checkpoint)).start().awaitTermination()

    with pytest.raises(StreamingQueryException, match="topic 'later' does not exist"):
        run()
    assert not out.finished()
    create_topic(out.cluster, "later", 1)
    run()
    assert values(out, "later") == [b"value 2", b"value 3"]
    assert set(values(out, "out")) == {b"value 0", b"value 1"}
    assert out.finished()


def test_a_missing_topic_of_all_rows_is_refused_before_a_task_runs(out: Any) -> None:
    with pytest.raises(AnalysisException, match=r"topic 'absent' does not exist at .*: create it"):
        write(out, out.spark.sql("SELECT 'x' AS value"), topic="absent")


def test_a_null_topic_names_the_remedy(out: Any) -> None:
    rows = out.spark.sql("SELECT string(NULL) AS topic, 'x' AS value")
    writer = rows.write.format("headrace").option("kafka.bootstrap.servers", out.servers)
    with pytest.raises(PythonException, match=r"null topic present in the data. Use the topic opt"):
        writer.mode("append").save()


def test_a_stream_from_topic_to_topic_loses_nothing_and_repeats_nothing(out: Any) -> None:
    out.produce(500)
    query = start(out, out.rows(maxOffsetsPerTrigger="200"), availableNow=True)
    query.awaitTermination()
    assert values(out, "out") == sorted(b"value %d" % number for number in range(500))
    assert out.finished()


def test_a_stream_s_columns_are_refused_in_its_first_batch(out: Any) -> None:
    out.produce(1)
    query = start(out, out.rows().selectExpr("offset AS value"), availableNow=True)
    with pytest.raises(StreamingQueryException, match="value attribute unsupported type bigint"):
        query.awaitTermination()


def test_output_mode_complete_is_refused(out: Any) -> None:
    out.produce(2)
    counted = out.rows().groupBy("topic").count().selectExpr("string(count) AS value")
    query = start(out, counted, mode="complete", availableNow=True)
    with pytest.raises(StreamingQueryException, match="a log is only appended to: use 'append'"):
        query.awaitTermination()


def start(flow: Any, rows: DataFrame, *, mode: str = "append", **trigger: Any) -> StreamingQuery:
    writer = rows.writeStream.format("headrace").outputMode(mode).queryName("to out")
    writer = writer.option("kafka.bootstrap.servers", flow.servers).option("topic", "out")
    return writer.option("checkpointLocation", str(flow.checkpoint)).trigger(**trigger).start()
