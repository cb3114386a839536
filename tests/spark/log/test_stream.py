"""A log in a real streaming query against a real broker."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType
from tests.spark.failed_batch import run_again, run_until_a_batch_fails

from headrace.client.group_offsets import alter_group_offsets
from headrace.client.topics import add_partitions, create_topic
from headrace.spark.options import OptionError

from .asking import GROUP, committed, planned, rows

pytestmark = pytest.mark.spark
ALL = ReadAllAvailable()


def test_rows_have_the_schema_of_spark_s_kafka_source(log: Any) -> None:
    log.produce(10)
    found: list[Row] = []
    log.run(rows(log, includeHeaders="true"), lambda batch, _: found.extend(batch.collect()))
    kafka = StructType.fromDDL(
        "key binary, value binary, topic string, partition int, offset bigint, "
        "timestamp timestamp, timestampType int"
    )
    assert rows(log).schema == kafka
    row = next(one for one in found if (one.partition, one.offset) == (1, 3))
    assert (row.key, row.value, row.topic, row.timestampType) == (b"key 7", b"value 7", "t", 0)
    assert row.headers == [Row(key="number", value=b"7")]
    assert len(found) == 10


def test_available_now_reads_all_in_batches_and_the_group_has_no_lag(log: Any, all_of: Any) -> None:
    log.produce(1000)
    batches = rows(log, maxOffsetsPerTrigger="300", kafka_group_id=GROUP, minPartitions="5")
    log.run(batches, log.note)
    assert log.noted == all_of(1000)
    assert [len(batch) for batch in log.seen.values()] == [300, 300, 300, 100]
    assert committed(log.cluster) == {0: 500, 1: 500}
    log.produce(10)
    log.run(batches, log.note)
    assert log.noted == sorted(all_of(1000) + [(p, o) for p in (0, 1) for o in range(500, 505)])
    assert committed(log.cluster) == {0: 505, 1: 505}


def test_small_ranges_share_the_tasks_that_run_at_once_unless_told_otherwise(log: Any) -> None:
    add_partitions(log.cluster, "t", 4)
    tasks: list[int] = []

    def note(batch: DataFrame, number: int) -> None:
        tasks.append(batch.rdd.getNumPartitions())
        log.note(batch, number)

    for options in ({}, {"minPartitions": "3"}):
        producer = Producer({"bootstrap.servers": log.servers})
        for number in range(100):
            producer.produce("t", b"value", partition=number % 4)
        assert producer.flush(60) == 0
        log.run(rows(log, **options), note)
    assert log.spark.sparkContext.defaultParallelism == 2
    assert tasks == [2, 4]
    assert log.noted == [(partition, at) for partition in range(4) for at in range(50)]


def test_a_checkpoint_goes_on_in_a_session_of_spark_s_own_and_back(log: Any, all_of: Any) -> None:
    name = "spark.sql.streaming.checkpointFileManagerClass"
    ours = log.spark.conf.get(name)
    assert ours
    log.produce(30)
    batches = rows(log, maxOffsetsPerTrigger="10")
    log.run(batches, log.note)
    log.spark.conf.unset(name)
    try:
        log.produce(20)
        log.run(batches, log.note)
    finally:
        log.spark.conf.set(name, ours)
    (log.checkpoint / "commits" / "4").unlink()
    log.run(batches, log.note)
    assert list(log.seen) == [0, 1, 2, 3, 4]
    assert log.noted == sorted(all_of(30) + [(p, o) for p in (0, 1) for o in range(15, 25)])
    names = {one.name for one in (log.checkpoint / "offsets").iterdir()}
    assert {f".{number}.crc" for number in range(5)} < names


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_once_reads_all_in_one_batch_whatever_the_limits(log: Any, all_of: Any) -> None:
    log.produce(100)
    limits = {"maxOffsetsPerTrigger": "30", "minOffsetsPerTrigger": "20"}
    log.start(rows(log, **limits), log.note, once=True).awaitTermination()
    assert log.seen == {0: all_of(100)}


def test_a_running_query_sees_what_comes_and_commits_it_while_idle(log: Any, all_of: Any) -> None:
    query = log.start(rows(log, kafka_group_id=GROUP), log.note)
    log.until(lambda: committed(log.cluster) == {0: 0, 1: 0})
    log.produce(100)
    log.until(lambda: committed(log.cluster) == {0: 50, 1: 50})
    assert log.noted == all_of(100)
    assert query.isActive


def test_progress_tells_where_the_query_is_and_where_logs_end(log: Any) -> None:
    log.produce(100)
    query = log.start(rows(log, maxOffsetsPerTrigger="60"), log.note, processingTime="1 hour")
    log.until(lambda: query.lastProgress and query.lastProgress["numInputRows"])
    source = query.lastProgress["sources"][0]
    assert json.loads(source["endOffset"])["offsets"] == {"t": {"0": 30, "1": 30}}
    assert json.loads(source["latestOffset"])["offsets"] == {"t": {"0": 50, "1": 50}}


def test_a_stream_starts_at_latest_unless_told_otherwise(log: Any) -> None:
    log.produce(10)
    del log.log_options["startingOffsets"]
    log.start(rows(log, kafka_group_id=GROUP), log.note)
    log.until(lambda: committed(log.cluster) == {0: 5, 1: 5})
    log.produce(4)
    log.until(lambda: committed(log.cluster) == {0: 7, 1: 7})
    assert log.noted == [(0, 5), (0, 6), (1, 5), (1, 6)]


def test_a_query_starts_where_its_group_stopped(log: Any) -> None:
    log.produce(10)
    alter_group_offsets(log.cluster, GROUP, {("t", 0): 3}).check()
    start = {"kafka_group_id": GROUP, "startingOffsets": "committed"}
    log.run(rows(log, **start), log.note)
    assert log.noted == [(0, 3), (0, 4), *((1, offset) for offset in range(5))]


def test_a_new_checkpoint_on_the_group_of_another_query_is_a_warning(
    log: Any, reading: Any, caplog: pytest.LogCaptureFixture
) -> None:
    log.produce(10)
    options = {"kafka_group_id": GROUP, "startingOffsets": "earliest"}
    first = reading(**options)
    begin = first.initialOffset()
    assert first.latestOffset(begin, ALL) != begin
    reading(**options).initialOffset()  # the first batch is not in the checkpoint
    assert "starts without a checkpoint" not in caplog.text

    first.latestOffset(first.latestOffset(begin, ALL), ALL)
    reading(**options).initialOffset()
    (line,) = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert line.startswith(f"group {GROUP}: a Spark query has committed offsets to it, and this")
    assert "drops rows (Spark's file sinks)" in line
    assert "use that checkpoint, or a new output folder" in line


def test_without_a_commit_a_group_starts_at_the_end_that_is_named(reading: Any, log: Any) -> None:
    log.produce(10)
    alter_group_offsets(log.cluster, GROUP, {("t", 0): 3}).check()
    reader = reading(kafka_group_id=GROUP, startingOffsets="committed,latest")
    assert reader.initialOffset()["offsets"] == {"t": {"0": 3, "1": 5}}


def test_a_batch_that_failed_runs_again_with_the_same_records(log: Any) -> None:
    read = rows(log, maxOffsetsPerTrigger="200", kafka_group_id=GROUP)
    had = run_until_a_batch_fails(log, read)
    assert committed(log.cluster) == {0: 100, 1: 100}
    run_again(log, read, had)
    assert committed(log.cluster) == {0: 255, 1: 255}


def test_the_first_batch_runs_again_with_the_same_records_though_latest_has_moved(
    log: Any, reading: Any
) -> None:
    """Spark logs ends of batches only, and asks for the very start again after a crash."""
    log.produce(10)
    before = reading(startingOffsets="latest")
    start = before.initialOffset()
    assert before.initialOffset() == start
    log.produce(4)
    end = json.loads(json.dumps(before.latestOffset(start, ReadAllAvailable())))
    assert planned(before, start, end) == [(0, 5, 6), (1, 5, 6)]
    log.produce(6)
    after = reading(startingOffsets="latest")
    assert after.initialOffset() != start
    assert planned(after, after.initialOffset(), end) == [(0, 5, 6), (1, 5, 6)]
    following = after.latestOffset(end, ReadAllAvailable())
    assert planned(after, end, following) == [(0, 7, 9), (1, 7, 9)]


def test_partitions_and_topics_that_are_new_are_read_from_their_start(
    log: Any, reading: Any
) -> None:
    reader = reading(subscribePattern="t|u.*", subscribe=" ", startingOffsets="latest")
    log.produce(4)
    start = reader.initialOffset()
    assert start["offsets"] == {"t": {"0": 2, "1": 2}}
    add_partitions(log.cluster, "t", 3)
    create_topic(log.cluster, "u1", 1)
    create_topic(log.cluster, "other", 1)
    log.produce(2)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end["offsets"] == {"t": {"0": 3, "1": 3, "2": 0}, "u1": {"0": 0}}
    assert planned(reader, start, end) == [(0, 2, 2), (1, 2, 2)]
    assert reader.latestOffset(end, ReadAllAvailable()) == end


def test_where_to_start_is_not_looked_at_when_there_is_a_checkpoint(log: Any) -> None:
    log.produce(10)
    start = {"startingOffsets": '{"t":{"0":3,"1":4}}'}
    log.run(rows(log, **start), log.note)
    add_partitions(log.cluster, "t", 3)
    log.produce(4)
    log.run(rows(log, **start), log.note)
    assert log.noted == [(0, 3), (0, 4), (0, 5), (0, 6), (1, 4), (1, 5), (1, 6)]


def test_only_assigned_partitions_are_read(log: Any) -> None:
    log.produce(10)
    del log.log_options["subscribe"]
    log.run(rows(log, assign='{"t":[1]}'), log.note)
    assert log.noted == [(1, offset) for offset in range(5)]


def test_available_now_ends_though_records_keep_coming(log: Any, all_of: Any) -> None:
    log.produce(100)

    def producing(batch: DataFrame, batch_id: int) -> None:
        log.note(batch, batch_id)
        log.produce(20)

    read = rows(log, maxOffsetsPerTrigger="50", minOffsetsPerTrigger="40")
    log.run(read, producing)
    assert log.noted == all_of(100)


def test_a_partition_made_between_the_end_and_the_start_is_not_called_lost(
    log: Any, reading: Any
) -> None:
    """Spark fixes the end of Trigger.AvailableNow before it asks where a new query starts."""
    log.produce(4)
    reader = reading()
    reader.prepareForTriggerAvailableNow()
    add_partitions(log.cluster, "t", 3)
    log.produce(3)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert planned(reader, start, end) == [(0, 0, 1), (1, 0, 1)]
    assert reader.latestOffset(end, ReadAllAvailable()) == end


def test_small_batches_wait_until_enough_is_there(log: Any, reading: Any) -> None:
    reader = reading(minOffsetsPerTrigger="10", maxOffsetsPerTrigger="50", maxTriggerDelay="1d")
    log.produce(4)
    start = reader.initialOffset()
    first = reader.latestOffset(start, ReadMaxRows(50))
    assert first["offsets"] == {"t": {"0": 2, "1": 2}}, "the first batch does not wait"
    log.produce(8)
    assert reader.latestOffset(first, ReadMaxRows(50)) == first
    log.produce(2)
    assert reader.latestOffset(first, ReadMaxRows(50))["offsets"] == {"t": {"0": 7, "1": 7}}


def test_a_least_size_alone_is_a_limit_that_spark_passes_back(log: Any, all_of: Any) -> None:
    log.produce(20)
    log.start(rows(log, minOffsetsPerTrigger="10"), log.note)
    log.until(lambda: log.noted == all_of(20))


def test_a_commit_that_fails_is_a_warning_and_no_more(
    log: Any, reading: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody else's consumers are at work in the group."""
    log.produce(4)
    member = Consumer({"bootstrap.servers": log.servers, "group.id": GROUP})
    member.subscribe(["t"])
    log.until(lambda: member.poll(0.1) is not None or member.assignment())
    reader = reading(kafka_group_id=GROUP)
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadAllAvailable()) != start
    member.close()
    assert f"offsets were not committed to group {GROUP}" in caplog.text
    assert "goes on from its checkpoint" in caplog.text
    assert "UNKNOWN_MEMBER_ID" in caplog.text


def test_a_prefix_for_groups_is_told_to_have_no_effect(
    reading: Any, caplog: pytest.LogCaptureFixture
) -> None:
    reading(groupIdPrefix="team").initialOffset()
    assert "groupIdPrefix 'team' has no effect" in caplog.text


def test_a_topic_that_is_not_there_is_told_with_a_remedy(log: Any, reading: Any) -> None:
    with pytest.raises(OptionError, match="has no u, v; create it, or correct the name"):
        reading(subscribe="t,u,v").initialOffset()
    del log.log_options["subscribe"]
    with pytest.raises(OptionError, match="has no t-7;"):
        reading(assign='{"t":[0,7]}').initialOffset()


def test_offsets_must_name_all_partitions(reading: Any) -> None:
    with pytest.raises(OptionError, match="t-1 is missing; use -2 for earliest"):
        reading(startingOffsets='{"t":{"0":5}}').initialOffset()
    with pytest.raises(OptionError, match="t-2 is not there"):
        reading(startingOffsets='{"t":{"0":-2,"1":-1,"2":0}}').initialOffset()


def test_the_checkpoint_of_a_queue_is_refused(reading: Any, tmp_path: Path) -> None:
    queue = {"v": 1, "session": "s", "seq": 3, "ranges": []}
    with pytest.raises(ValueError, match="start with a new checkpoint and a new output folder"):
        reading().latestOffset(queue, ReadAllAvailable())
