"""New checkpoints and several queries over one group: no row is overwritten, dropped or doubled."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from headrace.spark import Batch, OptionError, acknowledge, each_record
from headrace.spark.sink.options import SinkOptions
from headrace.spark.sink.writer import check_topic
from headrace.spark.source import HeadraceDataSource

from .conftest import GROUP, Flow

pytestmark = pytest.mark.spark
ACQUIRED = 1


def into(table: Path, rows: DataFrame, number: int) -> None:
    """The first query of docs/spark.md."""
    batch = Batch.of(rows, number)
    rows.select("partition", "offset").write.mode("overwrite").parquet(str(table / batch.path))


def places(flow: Flow, table: Path) -> list[tuple[int, int]]:
    found = flow.spark.read.parquet(str(table)).collect()
    return sorted((row.partition, row.offset) for row in found)


def test_a_file_sink_cannot_drop_what_a_new_checkpoint_reads(flow: Flow, tmp_path: Path) -> None:
    table = tmp_path / "table"

    def run(checkpoint: str) -> None:
        rows = flow.rows().select("partition", "offset").writeStream.format("parquet")
        rows = rows.option("checkpointLocation", str(tmp_path / checkpoint))
        rows.trigger(availableNow=True).start(str(table)).awaitTermination()

    flow.produce(100)
    run("first")
    flow.produce(70)
    with pytest.raises(StreamingQueryException, match="or set option newCheckpoint=continue"):
        run("second")
    assert not flow.finished()
    run("first")
    assert len(places(flow, table)) == len(set(places(flow, table))) == 170
    assert flow.finished()


def test_a_file_sink_cannot_drop_a_batch_that_was_written_and_not_settled(
    flow: Flow, tmp_path: Path
) -> None:
    """The query stops before it looks for another batch, and its checkpoint is left."""
    table = tmp_path / "table"

    def start(checkpoint: str, **trigger: Any) -> StreamingQuery:
        rows = flow.rows().select("partition", "offset").writeStream.format("parquet")
        rows = rows.option("checkpointLocation", str(tmp_path / checkpoint))
        return rows.trigger(**trigger).start(str(table))

    flow.set_group(share_record_lock_duration_ms="1000")
    flow.produce(100)
    first = start("first", processingTime="1 hour")
    flow.until(lambda: first.lastProgress or first.exception())
    first.stop()
    assert len(places(flow, table)) == 100
    assert not flow.finished()
    flow.until(lambda: all(run.state != ACQUIRED for one in flow.state() for run in one.in_flight))
    with pytest.raises(StreamingQueryException, match="planned a batch and did not settle it"):
        start("second", availableNow=True).awaitTermination()
    assert not flow.finished()
    start("first", availableNow=True).awaitTermination()
    assert len(places(flow, table)) == len(set(places(flow, table))) == 100
    assert flow.finished()


def test_a_batch_has_a_folder_of_its_own_across_checkpoints(flow: Flow, tmp_path: Path) -> None:
    table = tmp_path / "table"
    numbers: list[int] = []

    def write(rows: DataFrame, batch: Batch) -> None:
        numbers.append(batch)
        into(table, rows, batch)

    judged = each_record(
        flow.rows(includeDelivery="true", newCheckpoint="continue"), lambda _: {"x": 1}, "x int"
    )
    sink = acknowledge(write, bootstrap_servers=flow.servers, group=GROUP, keep_bookkeeping=True)
    for checkpoint in ("first", "second"):
        flow.checkpoint = tmp_path / checkpoint
        flow.produce(50)
        flow.run(judged, sink)
    assert numbers == [0, 0]
    assert f"batch={numbers[0]}" == "batch=0"
    assert len(list(table.glob("session=*/batch=0"))) == 2
    assert len(places(flow, table)) == len(set(places(flow, table))) == 100


def test_two_queries_of_a_group_may_write_one_folder(flow: Flow, tmp_path: Path) -> None:
    table = tmp_path / "table"
    for checkpoint in ("one", "two"):
        flow.checkpoint = tmp_path / checkpoint
        rows = flow.rows(newCheckpoint="continue", maxOffsetsPerTrigger="20")
        flow.start(rows, lambda rows, number: into(table, rows, number))
    flow.produce(200)
    flow.until(flow.finished)
    assert len(places(flow, table)) == len(set(places(flow, table))) == 200


def test_outside_of_a_stream_a_batch_has_no_path(flow: Flow) -> None:
    batch = Batch.of(flow.spark.range(1), 3)
    assert (batch, batch.id, batch.session) == (3, 3, "")
    remedy = r"in foreachBatch of a classic Spark session only; .* split\(lease, '/'\)\[0\], with"
    with pytest.raises(RuntimeError, match=remedy):
        _ = batch.path


def test_acknowledge_is_refused_on_spark_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    with pytest.raises(RuntimeError, match="needs a classic Spark session"):
        acknowledge(lambda _rows, _batch: None, bootstrap_servers="h:1", group="g")


def test_a_topic_that_is_not_there_is_found_before_a_task_writes(flow: Flow) -> None:
    options = SinkOptions(bootstrap_servers=flow.servers, topic="nowhere")
    with pytest.raises(OptionError, match=r"'nowhere' does not exist .*create it"):
        check_topic(options)
    check_topic(SinkOptions(bootstrap_servers=flow.servers, topic="t"))
    rows = flow.spark.range(1).selectExpr("string(id) as value").write.format("headrace")
    rows = rows.mode("append").option("kafka.bootstrap.servers", flow.servers)
    with pytest.raises(Exception, match="'nowhere' does not exist"):
        rows.option("topic", "nowhere").save()


@pytest.mark.parametrize("given", [{}, {"provider": "headrace", "subscribe": "t"}])
def test_a_table_of_the_catalog_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(OptionError, match=r"CREATE TABLE ... USING headrace is not supported"):
        HeadraceDataSource(given).schema()
    with pytest.raises(OptionError, match=r"CREATE TABLE ... USING headrace is not supported"):
        HeadraceDataSource(given).streamReader(StructType())


def test_spark_passes_the_refusal_of_a_table_on(flow: Flow, tmp_path: Path) -> None:
    refused = "CREATE TABLE ... USING headrace is not supported"
    with pytest.raises(AnalysisException, match=refused):
        flow.spark.sql("CREATE TABLE refused USING headrace OPTIONS (subscribe 't')")
    flow.spark.sql("CREATE TABLE made (value binary) USING headrace OPTIONS (subscribe 't')")
    flow.produce(1)
    try:
        with pytest.raises(AnalysisException, match=refused):
            flow.spark.sql("SELECT * FROM made").collect()
        with pytest.raises(AnalysisException, match=refused):
            flow.spark.sql("INSERT INTO made VALUES (X'41')")
        writing = flow.rows().select("value").writeStream.trigger(availableNow=True)
        writing = writing.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writing.toTable("made")
        with pytest.raises(StreamingQueryException, match=refused):
            query.awaitTermination()
    finally:
        flow.spark.sql("DROP TABLE made")
