"""The source in a real query against a real broker: what Spark asks, what becomes of records."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import StructType
from tests.spark.failed_batch import run_again, run_until_a_batch_fails

from headrace.client.errors import BrokerError, ClientError
from headrace.client.leases import Lease
from headrace.spark.queue.options import QueueOptions
from headrace.spark.queue.reader import ShareReader

pytestmark = pytest.mark.spark
READ_ON = "start with a new checkpoint, option newCheckpoint=continue and a new output folder"


def test_rows_have_the_schema_of_spark_s_kafka_source(flow: Any) -> None:
    flow.produce(10)
    found: list[Row] = []
    flow.run(flow.rows(includeHeaders="true"), lambda rows, _: found.extend(rows.collect()))
    kafka = StructType.fromDDL(
        "key binary, value binary, topic string, partition int, offset bigint, "
        "timestamp timestamp, timestampType int"
    )
    assert flow.rows().schema == kafka
    assert flow.rows(includeDelivery="true").schema.names[-2:] == ["delivery_count", "lease"]
    row = next(one for one in found if (one.partition, one.offset) == (1, 3))
    assert (row.key, row.value, row.topic) == (b"key 7", b"value 7", "t")
    assert row.timestampType == 0
    assert row.timestamp.year >= 2026
    assert row.headers == [Row(key="number", value=b"7")]


def test_everything_is_read_once_in_batches_of_the_size_asked_for(flow: Any, all_of: Any) -> None:
    flow.produce(1000)
    flow.run(flow.rows(maxOffsetsPerTrigger="300", minPartitions="3"), flow.note)
    assert flow.noted == all_of(1000)
    assert [len(batch) for batch in flow.seen.values()] == [300, 300, 300, 100]
    assert flow.finished()


def test_an_idle_stream_settles_its_last_batch(flow: Any, all_of: Any) -> None:
    query = flow.start(flow.rows(), flow.note)
    flow.until(flow.state)
    flow.produce(100)
    flow.until(flow.finished)
    assert flow.noted == all_of(100)
    assert query.isActive


def test_latest_begins_where_the_topic_ends(flow: Any) -> None:
    flow.produce(10)
    flow.start(flow.rows(startingOffsets="latest"), flow.note)
    flow.until(flow.state)
    flow.produce(4)
    flow.until(flow.finished)
    assert flow.noted == [(0, 5), (0, 6), (1, 5), (1, 6)]


def test_a_batch_that_failed_runs_again_with_the_same_records(flow: Any) -> None:
    rows = flow.rows(maxOffsetsPerTrigger="200")
    had = run_until_a_batch_fails(flow, rows)
    assert not flow.finished()
    held = sum(run.last - run.first + 1 for one in flow.state() for run in one.in_flight)
    assert held == 200
    run_again(flow, rows, had)
    assert flow.finished()


def test_a_query_stopped_after_a_batch_commits_it_at_its_next_start(flow: Any) -> None:
    flow.produce(100)
    done = threading.Event()

    def once(rows: DataFrame, batch_id: int) -> None:
        flow.note(rows, batch_id)
        done.set()

    query = flow.start(flow.rows(), once, processingTime="1 hour")
    assert done.wait(120)
    flow.until(lambda: (flow.checkpoint / "commits" / "0").exists())
    query.stop()
    assert not flow.finished()
    flow.run(flow.rows(), flow.note)
    assert list(flow.seen) == [0]
    assert flow.finished()


def test_a_lost_commit_log_entry_means_twice_and_never_lost(flow: Any, all_of: Any) -> None:
    flow.produce(300)
    rows = flow.rows(maxOffsetsPerTrigger="100")
    flow.run(rows, flow.note)
    assert flow.finished()
    before = dict(flow.seen)
    for name in ("2", ".2.crc"):
        (flow.checkpoint / "commits" / name).unlink()
    flow.produce(10)
    flow.run(rows, flow.note)
    assert {number: flow.seen[number] for number in before} == before
    assert flow.noted == all_of(310)
    assert flow.finished()


def test_a_broker_that_restarts_costs_time_only(flow: Any, all_of: Any) -> None:
    flow.produce(600)
    port = int(flow.servers.rpartition(":")[2])

    def restarting(rows: DataFrame, batch_id: int) -> None:
        if batch_id == 1:
            flow.broker.stop()
            threading.Timer(0.5, flow.broker.start).start()
        flow.note(rows, batch_id)

    flow.run(flow.rows(maxOffsetsPerTrigger="200"), restarting)
    assert int(flow.broker.bootstrap_servers.rpartition(":")[2]) == port
    assert flow.noted == all_of(600)
    flow.until(flow.finished)


def options(servers: str) -> QueueOptions:
    return QueueOptions(bootstrap_servers=servers, topics=("t",), group="g", start="earliest")


@pytest.fixture
def reader(flow: Any) -> Iterator[ShareReader]:
    """The reader as Spark's driver-side process has it, without the process."""
    found = ShareReader(
        QueueOptions(bootstrap_servers=flow.servers, topics=("t",), group="g", start="earliest"),
        StructType(),
    )
    yield found
    found.stop()


def test_the_driver_that_was_fenced_stops_and_says_why(flow: Any, reader: ShareReader) -> None:
    flow.produce(100)
    end = reader.latestOffset(reader.initialOffset(), ReadMaxRows(100))
    Lease(flow.cluster, "g", end["session"]).open(("t",), "latest")
    with pytest.raises(BrokerError, match="another driver runs on the same") as fenced:
        reader.latestOffset(end, ReadMaxRows(100))
    assert str(fenced.value).count("another driver") == 1
    assert "stop one of the two" in str(fenced.value)


def test_a_fence_that_the_renewals_met_ends_the_next_call(
    flow: Any, reader: ShareReader, caplog: pytest.LogCaptureFixture
) -> None:
    flow.set_group(share_record_lock_duration_ms="1000")
    flow.produce(10)
    end = reader.latestOffset(reader.initialOffset(), ReadMaxRows(100))
    Lease(flow.cluster, "g", end["session"]).open(("t",), "latest")
    flow.until(lambda: "another driver runs on the same checkpoint" in caplog.text)
    with pytest.raises(BrokerError, match="renewing locks: FENCED_MEMBER_EPOCH"):
        reader.partitions(reader.initialOffset(), end)


def test_locks_are_renewed_while_a_batch_runs(flow: Any, reader: ShareReader) -> None:
    flow.set_group(share_record_lock_duration_ms="3000")
    flow.produce(50)
    end = reader.latestOffset(reader.initialOffset(), ReadMaxRows(100))
    threading.Event().wait(5)
    held = [run for one in flow.state() for run in one.in_flight]
    assert [(run.first, run.last, run.state, run.delivery_count) for run in held] == [
        (0, 24, 1, 1)
    ] * 2
    reader.commit(end)
    assert flow.finished()


def test_a_restarted_reader_finds_its_session_and_its_records(
    flow: Any, reader: ShareReader
) -> None:
    flow.produce(50)
    begin = reader.initialOffset()
    end = reader.latestOffset(begin, ReadMaxRows(30))
    again = ShareReader(
        QueueOptions(bootstrap_servers=flow.servers, topics=("t",), group="g", start="earliest"),
        StructType(),
    )
    assert again.latestOffset(begin, ReadMaxRows(30)) == end
    assert len(again.partitions(again.initialOffset(), end)) == 1
    following = again.latestOffset(end, ReadMaxRows(100))
    assert (following["seq"], following["session"]) == (2, begin["session"])
    assert sum(last - first + 1 for _, _, first, last, _ in following["ranges"]) == 20
    assert again.latestOffset(following, ReadMaxRows(100)) == following
    assert flow.finished()
    again.stop()


def test_a_checkpoint_that_is_an_old_copy_is_refused(flow: Any, reader: ShareReader) -> None:
    flow.produce(50)
    ends = [reader.initialOffset()]
    for _ in range(3):
        ends.append(reader.latestOffset(ends[-1], ReadMaxRows(20)))
    assert [end["seq"] for end in ends] == [0, 1, 2, 3]
    with pytest.raises(ClientError, match=f"it is an old copy; {READ_ON}"):
        reader.latestOffset(ends[1], ReadMaxRows(20))


def test_a_checkpoint_of_another_broker_is_refused(flow: Any, reader: ShareReader) -> None:
    """Going on would begin at `startingOffsets` of a group that knows nothing, and skip records."""
    flow.produce(50)
    strange = {**reader.initialOffset(), "seq": 4}
    with pytest.raises(ClientError, match="it is of another broker or group"):
        reader.latestOffset(strange, ReadMaxRows(20))
    with pytest.raises(ClientError, match=READ_ON):
        reader.partitions(reader.initialOffset(), strange)


def test_what_is_no_stream_is_told(flow: Any) -> None:
    reader = flow.spark.read.format("headrace").options(**flow.options)
    with pytest.raises(Exception, match=r"a share group is a stream: use spark.readStream"):
        reader.load().count()


def test_wrong_options_are_told_in_one_line(flow: Any) -> None:
    with pytest.raises(Exception, match="did you mean 'maxOffsetsPerTrigger'"):
        flow.rows(maxOffsetPerTrigger="1")


def test_what_spark_may_call_twice_changes_nothing() -> None:
    """Without a broker: neither the beginning nor an empty batch asks for one."""
    reader = ShareReader(
        QueueOptions(bootstrap_servers="127.0.0.1:1", topics=("t",), group="g"), StructType()
    )
    begin = reader.initialOffset()
    assert reader.initialOffset() == begin
    assert begin["seq"] == 0
    assert reader.partitions(begin, begin) == []
    reader.stop()


def test_available_now_leaves_what_came_later_to_the_next_run(flow: Any) -> None:
    flow.produce(30)

    def sink(rows: DataFrame, batch_id: int) -> None:
        flow.note(rows, batch_id)
        flow.produce(10)  # while the query runs

    flow.run(flow.rows(maxOffsetsPerTrigger="20"), sink)
    assert len(flow.noted) == 30
    later = 10 * len(flow.seen)
    flow.seen.clear()
    flow.run(flow.rows(maxOffsetsPerTrigger="20"), sink)
    assert len(flow.noted) == later
