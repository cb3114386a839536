"""KIP-842 for a log in Spark: each start beside partitions that come later."""

import json
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMinRows

import headrace
from headrace.client.errors import DataLost
from headrace.client.group_offsets import alter_group_offsets, list_group_offsets
from headrace.client.group_start import started
from headrace.client.spark_queries import list_spark_queries
from headrace.client.topics import add_partitions, create_topic, delete_topic
from headrace.spark.log.plan import Seen
from headrace.spark.log.stream import LogStream
from headrace.spark.log.topics import Topics

from .asking import GROUP, planned

pytestmark = pytest.mark.spark
ALL = ReadAllAvailable()
SECONDS_MAX = 60.0
Reading = Callable[..., LogStream]
Offset = dict[str, Any]


def put(log: Any, topic: str, partition: int, count: int, **settings: Any) -> None:
    producer = Producer({"bootstrap.servers": log.servers})
    for _ in range(count):
        producer.produce(topic, b"v", partition=partition, **settings)
    assert producer.flush(SECONDS_MAX) == 0


def begun(reader: LogStream) -> Offset:
    """Where a query is after its first trigger."""
    return logged(reader, reader.initialOffset())


def logged(reader: LogStream, start: Offset, limit: ReadLimit = ALL) -> Offset:
    """The next offset, as Spark keeps it."""
    found: Offset = json.loads(json.dumps(reader.latestOffset(start, limit)))
    return found


def marks(log: Any) -> int | None:
    return started(one.metadata for one in list_group_offsets(log.cluster, GROUP).values())


@pytest.mark.parametrize(
    ("value", "old", "new"),
    [
        ("earliest", 0, 0),
        ("latest", 5, 0),  # as in Spark's own source
        ("earliest_on_start", 0, 0),
        ("latest_on_start", 5, 3),
        ("safe_latest", 5, 0),
    ],
)
@pytest.mark.parametrize("group", [{}, {"kafka_group_id": GROUP}], ids=["alone", "group"])
def test_the_first_table(
    value: str, old: int, new: int, group: dict[str, str], log: Any, reading: Reading
) -> None:
    """A new query, a partition and a topic that it finds with records, more after a restart."""
    given = {"subscribePattern": "t|u.*", "subscribe": " ", "startingOffsets": value, **group}
    log.produce(10)
    reader = reading(**given)
    start = reader.initialOffset()
    assert start["offsets"] == {"t": {"0": old, "1": old}}
    first = logged(reader, start)
    add_partitions(log.cluster, "t", 3)
    create_topic(log.cluster, "u1", 1)
    put(log, "t", 2, 3)
    put(log, "u1", 0, 3)
    second = logged(reader, first)
    assert planned(reader, first, second) == ([(2, new, 2), (0, new, 2)] if new < 3 else [])
    put(log, "t", 2, 1)
    create_topic(log.cluster, "u2", 1)
    put(log, "u2", 0, 3)
    again = reading(**given)
    third = logged(again, second)
    assert planned(again, second, third) == [(2, 3, 3), *([(0, new, 2)] if new < 3 else [])]


def test_a_start_by_strategy_is_in_the_checkpoint_before_a_record_comes(
    log: Any, reading: Reading
) -> None:
    """With Spark's `latest` a query that stops without a batch starts at a later end again."""
    for value, kept in (("latest", False), ("latest_on_start", True), ("safe_latest", True)):
        reader = reading(startingOffsets=value)
        start = reader.initialOffset()
        first = logged(reader, start)
        assert (first != start) is kept
        assert planned(reader, start, first) == []
        assert logged(reader, first) == first, "once"


def test_also_where_no_topic_is_there_yet(log: Any, reading: Reading) -> None:
    given = {"subscribePattern": "u.*", "subscribe": " ", "startingOffsets": "safe_latest"}
    first = begun(reading(**given))
    assert first["offsets"] == {}
    create_topic(log.cluster, "u1", 1)
    put(log, "u1", 0, 3)
    after = reading(**given)
    end = logged(after, first)
    assert planned(after, first, end) == [(0, 0, 2)]
    assert end["started"] == first["started"]


def test_a_partition_made_while_a_query_looks_is_no_older_one(
    log: Any, reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = Topics.look

    def growing(self: Topics, *known: Any) -> Seen:
        found = look(self, *known)
        if ("t", 2) not in found.logs:
            add_partitions(log.cluster, "t", 3)
            put(log, "t", 2, 3)
        return found

    monkeypatch.setattr(Topics, "look", growing)
    reader = reading(startingOffsets="safe_latest")
    start = reader.initialOffset()
    assert start["offsets"] == {"t": {"0": 0, "1": 0}}
    assert planned(reader, start, logged(reader, start)) == [(2, 0, 2)]


@pytest.mark.parametrize(("value", "begin"), [("latest_on_start", 3), ("safe_latest", 0)])
def test_where_a_new_partition_begins_is_decided_once_also_while_a_batch_waits_for_more(
    value: str, begin: int, log: Any, reading: Reading
) -> None:
    """It stands in the checkpoint before another look could find other records there."""
    few = ReadMinRows(100)
    reader = reading(startingOffsets=value, minOffsetsPerTrigger="100")
    first = logged(reader, reader.initialOffset(), few)
    put(log, "t", 0, 2)
    assert logged(reader, first, few) == first
    add_partitions(log.cluster, "t", 3)
    put(log, "t", 2, 3)
    second = logged(reader, first, few)
    assert second["offsets"]["t"]["2"] == 3
    put(log, "t", 2, 2)
    assert logged(reader, second, few) == second
    third = logged(reader, second)
    assert planned(reader, first, second) == [(0, 0, 1), *([(2, begin, 2)] if begin < 3 else [])]
    assert planned(reader, second, third) == [(2, 3, 4)]


def test_a_first_batch_that_runs_again_after_a_crash_keeps_when_the_query_started(
    log: Any, reading: Reading
) -> None:
    """Spark asks again for the start, which is another by then; the checkpoint has the first."""
    log.produce(4)
    before = reading(startingOffsets="safe_latest")
    start = before.initialOffset()
    log.produce(2)
    first = logged(before, start)
    put(log, "t", 0, 5)
    after = reading(startingOffsets="safe_latest")
    other = after.initialOffset()
    assert other["offsets"] == {"t": {"0": 8, "1": 3}}
    assert planned(after, other, first) == [(0, 2, 2), (1, 2, 2)]
    second = logged(after, first)
    assert planned(after, first, second) == [(0, 3, 7)]
    assert second["started"] == first["started"]


def test_a_topic_made_again_is_read_from_its_start_whatever_partitions_it_has(
    log: Any, reading: Reading, caplog: pytest.LogCaptureFixture
) -> None:
    given = {"startingOffsets": "latest_on_start", "failOnDataLoss": "false"}
    first = begun(reading(**given))
    delete_topic(log.cluster, "t")
    create_topic(log.cluster, "t", 3)
    log.produce(4)
    put(log, "t", 2, 2)
    reader = reading(**given)
    end = logged(reader, first)
    assert planned(reader, first, end) == [(0, 0, 1), (1, 0, 1), (2, 0, 1)]
    warnings = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert len(warnings) == 3
    assert all("t-" in one and "created again after offset 0" in one for one in warnings)


def test_a_new_checkpoint_for_a_topic_made_again_begins_where_nobody_has_been(
    log: Any, reading: Reading
) -> None:
    """The failed query leaves no position in the old topic as the group's in the new one."""
    log.produce(10)
    given = {"startingOffsets": "earliest_on_start", "kafka_group_id": GROUP}
    first = begun(reading(**given))
    delete_topic(log.cluster, "t")
    create_topic(log.cluster, "t", 2)
    log.produce(20)
    for _ in range(2):
        with pytest.raises(DataLost, match="or take a new checkpoint and a new output folder"):
            logged(reading(**given), first)
    assert reading(**given).initialOffset()["offsets"] == {"t": {"0": 0, "1": 0}}


def test_an_older_topic_that_a_query_is_given_later_starts_at_its_end_and_it_is_told(
    log: Any, reading: Reading, caplog: pytest.LogCaptureFixture
) -> None:
    create_topic(log.cluster, "old", 1)
    put(log, "old", 0, 3, timestamp=time.time_ns() // 1_000_000 - 60_000)
    first = begun(reading(startingOffsets="safe_latest"))
    wider = reading(startingOffsets="safe_latest", subscribe="t,old")
    end = logged(wider, first)
    assert planned(wider, first, end) == []
    assert end["offsets"]["old"] == {"0": 3}
    (told,) = [one.message for one in caplog.records if one.levelno == logging.WARNING]
    assert told.startswith("old-0 is new to the query, which starts it at offset 3, as startingOff")
    assert told.endswith("is safe_latest: 3 earlier ones are not read")


def test_a_checkpoint_that_does_not_tell_its_start_reads_new_partitions_whole(
    log: Any, reading: Reading
) -> None:
    log.produce(4)
    before = begun(reading(startingOffsets="earliest"))
    assert "started" not in before
    add_partitions(log.cluster, "t", 3)
    put(log, "t", 2, 3, timestamp=1_000)
    reader = reading(startingOffsets="safe_latest")
    assert planned(reader, before, logged(reader, before)) == [(2, 0, 2)]


@pytest.mark.parametrize("value", ["earliest_on_start", "latest_on_start", "safe_latest"])
def test_a_new_query_goes_on_where_its_group_stopped(
    value: str, log: Any, reading: Reading
) -> None:
    log.produce(10)
    alter_group_offsets(log.cluster, GROUP, {("t", 0): 3}).check()
    reader = reading(startingOffsets=value, kafka_group_id=GROUP)
    other = 0 if value == "earliest_on_start" else 5
    assert reader.initialOffset()["offsets"] == {"t": {"0": 3, "1": other}}
    assert reading(startingOffsets="latest").initialOffset()["offsets"] == {"t": {"0": 5, "1": 5}}


def test_the_start_of_a_group_is_kept_with_its_offsets(log: Any, reading: Reading) -> None:
    given = {"startingOffsets": "safe_latest", "kafka_group_id": GROUP}
    log.produce(10)
    first = begun(reading(**given))
    assert marks(log) == first["started"]
    assert [one.group for one in list_spark_queries(log.cluster)] == [GROUP]
    add_partitions(log.cluster, "t", 3)
    put(log, "t", 2, 3)
    other = reading(**given)  # a query of its own in the same group, without that checkpoint
    assert other.initialOffset()["offsets"] == {"t": {"0": 5, "1": 5, "2": 0}}
    assert begun(other)["started"] == first["started"]
    begun(reading(startingOffsets="latest_on_start", kafka_group_id="another"))
    found = list_group_offsets(log.cluster, "another").values()
    assert started(one.metadata for one in found) is None, "it is asked for by safe_latest alone"


@pytest.mark.parametrize("value", ["latest", "safe_latest"])
def test_what_a_query_commits_is_read_by_librdkafka_as_it_was_written(
    value: str, log: Any, reading: Reading
) -> None:
    """It reads metadata on to a NUL, and else what lies in memory behind it: in one of twenty."""
    create_topic(log.cluster, "wide", 20)
    begun(reading(startingOffsets=value, kafka_group_id=GROUP, subscribe="wide"))
    (written,) = {one.metadata for one in list_group_offsets(log.cluster, GROUP).values()}
    with Consumer({"bootstrap.servers": log.servers, "group.id": GROUP}) as consumer:
        places = [TopicPartition("wide", number) for number in range(20)]
        read = [one for _ in range(100) for one in consumer.committed(places, SECONDS_MAX)]
    assert {one.metadata for one in read} == {written.removesuffix("\0")}


def test_consumers_and_queries_of_a_group_know_one_start(log: Any, reading: Reading) -> None:
    """What the one left while it was away, the other reads."""
    log.produce(10)
    settings = {
        "bootstrap.servers": log.servers,
        "group.id": GROUP,
        "auto.offset.reset": "safe_latest",
    }
    with headrace.Consumer(settings) as consumer:
        consumer.subscribe(["t"])
        log.until(lambda: consumer.poll(0.1) or consumer.assignment(), SECONDS_MAX)
    began = marks(log)
    assert began is not None
    add_partitions(log.cluster, "t", 3)
    put(log, "t", 2, 3)
    given = {"startingOffsets": "safe_latest", "kafka_group_id": GROUP}
    reader = reading(**given)
    start = reader.initialOffset()
    assert start["offsets"] == {"t": {"0": 5, "1": 5, "2": 0}}
    assert logged(reader, logged(reader, start))["started"] == began == marks(log)
    add_partitions(log.cluster, "t", 4)
    put(log, "t", 3, 3)
    with headrace.Consumer(settings) as consumer:
        consumer.subscribe(["t"])
        found: list[int] = []

        def is_read() -> bool:
            found.extend(of(consumer))
            return len(found) >= 3

        log.until(is_read, SECONDS_MAX)
    assert found == [3, 3, 3]


def of(consumer: headrace.Consumer) -> list[int]:
    """The partitions of what comes next."""
    return [one.partition() or 0 for one in consumer.consume(10, 0.1) if one.error() is None]
