"""Reading a topic of which the broker refuses a partition, and tables about it.

Queues and tables show the other partitions. Queries of a log fail, as records would be missing.
"""

import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import StructType

import headrace
from headrace.client.connection import Cluster, Patience
from headrace.client.errors import Unreachable
from headrace.client.group_offsets import alter_group_offsets
from headrace.client.share_groups import ShareOffset
from headrace.spark.columns import schema_of
from headrace.spark.log.batch import LogBatch
from headrace.spark.log.options import LogOptions
from headrace.spark.log.stream import LogStream
from headrace.spark.queue.checkpoints import check_new_on_kafka
from headrace.spark.queue.kafka_removed import RemovedRecords
from headrace.spark.queue.options import QueueOptions
from headrace.spark.queue.plan import Batch
from headrace.spark.queue.reader import ShareReader
from headrace.spark.tables.names import Row
from headrace.spark.tables.offsets import offsets
from headrace.spark.tables.share import in_flight, share_partitions
from headrace.spark.tables.wanted import Wanted

TOPIC, GROUP, RECORDS = "t", "g", 3
CONSUMERS = ("c-1", "c-2")  # consumer groups
UNREADABLE = (
    f"{TOPIC}-1: KAFKA_STORAGE_ERROR: the broker cannot read files of the partition; see its log, "
    "and if it is Headrace, run `headrace check DATA_DIR` on its machine"
)
LOGGER = "headrace.spark"
TABLE = Wanted(frozenset({GROUP}), None)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[str]:
    """A broker that refuses t-1 and has three records in t-0; the group began both at 0."""
    with headrace.Broker(tmp_path, settings={"num.partitions": "2"}) as running:
        producer = Producer({"bootstrap.servers": running.bootstrap_servers})
        for number in range(2 * RECORDS):
            producer.produce(TOPIC, f"{number}", partition=number % 2)
        assert producer.flush(20) == 0
        del producer  # it would look for this broker
        with headrace.SyncAdmin(running.bootstrap_servers) as admin:
            admin.alter_share_group_offsets(GROUP, {(TOPIC, 0): 0, (TOPIC, 1): 0})
        with Cluster(running.bootstrap_servers) as cluster:
            for name in CONSUMERS:
                alter_group_offsets(cluster, name, {(TOPIC, 0): 1, (TOPIC, 1): 2}).check()
    (tmp_path / f"{TOPIC}-1/recovery-point").unlink()
    with headrace.Broker(tmp_path) as running:
        yield running.bootstrap_servers


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [one for one in caplog.records if one.levelno >= logging.WARNING]
    return [one.getMessage() for one in found if one.name.startswith(LOGGER)]


def test_available_now_reads_the_others(servers: str, caplog: pytest.LogCaptureFixture) -> None:
    given = {"kafka.bootstrap.servers": servers, "subscribe": TOPIC, "share.group.id": GROUP,
             "newCheckpoint": "continue", "retryTimeoutMs": "2000"}  # fmt: skip
    reader = ShareReader(QueueOptions.parse(given), StructType())
    reader.prepareForTriggerAvailableNow()
    try:
        start, found = reader.initialOffset(), set[tuple[int, int, int]]()
        while (end := reader.latestOffset(start, ReadMaxRows(2))) != start:
            found |= {(one.partition, one.first, one.last) for one in Batch.from_json(end).ranges}
            reader.partitions(start, end)
            assert reader._driver is not None
            assert reader._driver.standing().lag.keys() == {(TOPIC, 0)}
            start = end
    finally:
        reader.stop()
    assert found == {(0, 0, 1), (0, 2, 2)}
    at_the_start, of_the_lag = warnings(caplog)
    assert f"the query ends without the records of {TOPIC}-1, which" in at_the_start
    assert "the log of the broker names the file and the remedy" in at_the_start
    assert f"the lag does not include {TOPIC}-1: " in of_the_lag
    assert "headrace repair" in of_the_lag


def test_share_partitions_shows_the_others(servers: str, caplog: pytest.LogCaptureFixture) -> None:
    with Cluster(servers) as cluster:
        rows = [row for rows in share_partitions(cluster, TABLE) for row in rows]
    assert [(row["partition"], row["start_offset"], row["lag"]) for row in rows] == [
        (0, 0, RECORDS),
        (1, None, None),
    ]
    assert rows[0]["log_end"] == RECORDS
    (warning,) = warnings(caplog)
    assert f"{TOPIC}-1 is refused: {TOPIC}-1/recovery-point: the file is missing" in warning
    assert "headrace repair" in warning


def test_in_flight_shows_the_others(servers: str, caplog: pytest.LogCaptureFixture) -> None:
    rows = list[Row]()
    with Cluster(servers) as cluster, headrace.SyncShareConsumer(
        servers, group=GROUP, topics=[TOPIC]
    ) as consumer:  # fmt: skip
        while not consumer.poll(1):
            pass
        for some in in_flight(cluster, TABLE):
            rows += some
    assert {(row["partition"], row["state"]) for row in rows} == {(0, "Acquired")}
    (warning,) = warnings(caplog)
    assert f"{TOPIC}-1 is refused: {TOPIC}-1/recovery-point: the file is missing" in warning


def test_offsets_shows_the_others(servers: str, caplog: pytest.LogCaptureFixture) -> None:
    wanted = Wanted(frozenset(CONSUMERS), None)
    columns = ("group", "partition", "committed_offset", "log_start", "log_end", "lag")
    with Cluster(servers, patience=Patience(total_s=1)) as cluster:
        rows = [row for rows in offsets(cluster, wanted) for row in rows]
    assert [tuple(row[name] for name in columns) for row in rows] == [
        row
        for name in CONSUMERS
        for row in ((name, 0, 1, 0, RECORDS, RECORDS - 1), (name, 1, 2, None, None, None))
    ]
    (warning,) = warnings(caplog)
    assert warning.startswith(f"table without the ends and the lag of {TOPIC}-1: ")
    assert warning.endswith(UNREADABLE)


def plan_batch(options: dict[str, str]) -> None:
    LogBatch(LogOptions.parse(options).for_batch(), StructType()).partitions()


def start_stream(options: dict[str, str]) -> None:
    LogStream(LogOptions.parse(options).for_stream(), StructType()).initialOffset()


@pytest.mark.parametrize("plan", [plan_batch, start_stream])
def test_a_query_of_a_log_fails_where_it_is_planned(
    servers: str, plan: Callable[[dict[str, str]], None]
) -> None:
    options = {"kafka.bootstrap.servers": servers, "subscribe": TOPIC, "retryTimeoutMs": "500"}
    with pytest.raises(Unreachable) as raised:
        plan(options)
    (line,) = str(raised.value).splitlines()
    assert line.startswith("listing offsets: gave up after 0.5 s at ")
    assert UNREADABLE in line


def test_a_task_fails_at_a_damaged_batch(tmp_path: Path) -> None:
    """The ends of the log are known, so that the query is planned."""
    settings = {"num.partitions": "2", "log.segment.bytes": "1024"}  # of one batch
    with headrace.Broker(tmp_path, settings=settings) as running:
        producer = Producer({"bootstrap.servers": running.bootstrap_servers})
        for _ in range(2):
            producer.produce(TOPIC, bytes(900), partition=1)
            assert producer.flush(20) == 0
        del producer
    segment = tmp_path / f"{TOPIC}-1/{0:020d}.log"
    data = bytearray(segment.read_bytes())
    data[65] ^= 1
    segment.write_bytes(data)
    with headrace.Broker(tmp_path) as running:
        given = {"kafka.bootstrap.servers": running.bootstrap_servers, "subscribe": TOPIC,
                 "retryTimeoutMs": "500"}  # fmt: skip
        options = LogOptions.parse(given).for_batch()
        batch = LogBatch(options, schema_of(options, delivery=False))
        (part,) = batch.partitions()
        with pytest.raises(Unreachable) as raised:
            list(batch.read(part))
    (line,) = str(raised.value).splitlines()
    assert line.startswith(f"fetching {TOPIC}-1 from offset 0: gave up after 0.5 s at ")
    assert UNREADABLE.removeprefix(f"{TOPIC}-1: ") in line


def test_removed_records_of_the_others_are_logged(
    servers: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As of Apache Kafka, which keeps no list of them."""
    removed = RemovedRecords(GROUP)
    with headrace.SyncAdmin(servers) as admin:
        admin.delete_records({(TOPIC, 0): 2})
    positions = {(TOPIC, 0): ShareOffset(0, 0, RECORDS), (TOPIC, 1): ShareOffset(0, 0, RECORDS)}
    with Cluster(servers) as cluster:
        for _ in range(2):
            removed.warn(cluster, positions)
    unseen, lost = warnings(caplog)
    assert f"records that leave the logs of {TOPIC}-1 unfinished are not seen for now: " in unseen
    assert unseen.endswith(UNREADABLE)
    assert f"at least 2 of {TOPIC}-0 offsets 0 to 1" in lost


def test_a_checkpoint_on_kafka_is_not_taken_for_new_without_all_ends(servers: str) -> None:
    """The partition that the broker cannot read may be the one of which records are finished."""
    options = QueueOptions.parse({
        "kafka.bootstrap.servers": servers, "subscribe": TOPIC, "share.group.id": GROUP,
        "startingOffsets": "earliest",
    })  # fmt: skip
    with (
        Cluster(servers, patience=Patience(total_s=0.5)) as cluster,
        pytest.raises(Unreachable, match=re.escape(UNREADABLE)),
    ):
        check_new_on_kafka(cluster, options, "c0ffee")
