"""What a batch reads that runs again: records whose locks ended, or that left the log, stay out."""

import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import LongType, StructType

import headrace
from headrace.client.admin import create_topic, set_group_configs
from headrace.client.connection import Cluster
from headrace.client.errors import DataLost
from headrace.client.leases import Lease, describe
from headrace.client.share_archived import ArchivedRecords, list_archived_share_records
from headrace.client.share_groups import alter_share_group_offsets
from headrace.client.spark_queries import list_spark_queries
from headrace.client.topics import delete_records, delete_topic
from headrace.spark.ddl import schema_from
from headrace.spark.queue import remaining
from headrace.spark.queue.options import QueueOptions
from headrace.spark.queue.reader import Instant, ShareReader, Task
from headrace.spark.queue.remaining import LocksLost, check_locks
from headrace.wire.leases import RenewResponse

RECORDS = 100
ACQUIRED = 1
ALL = ReadMaxRows(RECORDS)
Reader = Callable[..., ShareReader]


@pytest.fixture
def servers() -> Iterator[str]:
    with headrace.Broker() as broker:
        yield broker.bootstrap_servers


def fill(cluster: Cluster) -> None:
    """A topic with records, and a group whose locks last a second."""
    create_topic(cluster, "t", 1)
    set_group_configs(cluster, "g", {"share.record.lock.duration.ms": "1000"})
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for number in range(RECORDS):
        producer.produce("t", f"value {number}")
    assert producer.flush(20) == 0


@pytest.fixture
def cluster(servers: str) -> Iterator[Cluster]:
    with Cluster(servers) as found:
        fill(found)
        yield found


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def reader(servers: str, cluster: Cluster) -> Iterator[Reader]:
    """Make what Spark has on the driver of a query."""
    made: list[ShareReader] = []

    def make(**options: Any) -> ShareReader:
        given: dict[str, Any] = {"bootstrap_servers": servers, "topics": ("t",), "group": "g"}
        given |= {"start": "earliest", "new_checkpoint": "continue"}
        parsed = QueueOptions(**{**given, **options})
        made.append(ShareReader(parsed, StructType().add("offset", LongType())))
        return made[-1]

    yield make
    for one in made:
        one.stop()


def offsets(of: ShareReader, begin: dict[str, Any], end: dict[str, Any]) -> list[int]:
    """The offsets that the tasks of a batch read."""
    batches = [batch for task in of.partitions(begin, end) for batch in of.read(task)]
    return [one for batch in batches for one in batch.column("offset").to_pylist()]


def taken_by(other: ShareReader, most: int) -> dict[str, Any]:
    """The batch that another query acquires once the locks of the first one have ended."""
    start = other.initialOffset()
    deadline = time.monotonic() + 60
    while (end := other.latestOffset(start, ReadMaxRows(most))) == start:
        assert time.monotonic() < deadline, "the locks did not end"
    return end


def test_a_batch_that_runs_again_reads_what_its_session_still_holds(
    reader: Reader, caplog: pytest.LogCaptureFixture
) -> None:
    away, other = reader(), reader()
    begin = away.initialOffset()
    end = away.latestOffset(begin, ALL)
    away.stop()
    taken = taken_by(other, 30)
    assert offsets(other, other.initialOffset(), taken) == list(range(30))

    back = reader()
    assert offsets(back, begin, end) == list(range(30, RECORDS))
    assert "the locks of 30 records of batch number 1 ended" in caplog.text
    assert "t-0 offsets 0 to 29; the batch runs without them" in caplog.text
    other.commit(taken)
    back.commit(end)
    assert "70 accepted, 0 released, 0 rejected, 30 refused" in caplog.text


def test_locks_that_are_made_shorter_while_a_query_runs_are_renewed_in_time(
    cluster: Cluster, reader: Reader, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    set_group_configs(cluster, "g", {"share.record.lock.duration.ms": "30000"})
    running, renewals = reader(), threading.Semaphore(0)
    renew = Lease.renew

    def counted(lease: Lease) -> RenewResponse:
        response = renew(lease)
        renewals.release()
        return response

    first = running.latestOffset(running.initialOffset(), ReadMaxRows(50))
    monkeypatch.setattr(Lease, "renew", counted)
    set_group_configs(cluster, "g", {"share.record.lock.duration.ms": "1000"})
    second = running.latestOffset(first, ALL)
    assert all(renewals.acquire(timeout=8) for _ in range(5))  # more than a second long
    running.commit(second)
    assert "ended" not in caplog.text  # neither by a renewal nor by the commit

    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    producer.produce("t", "one more")
    assert producer.flush(20) == 0
    running.latestOffset(second, ALL)
    set_group_configs(cluster, "g", {"share.record.lock.duration.ms": "1500"})
    driver = running._driver
    assert driver is not None
    assert any(renewals.acquire(timeout=8) and driver.sure_s == 0.5 for _ in range(20))


def test_with_the_option_off_such_a_batch_is_read_whole(
    reader: Reader, caplog: pytest.LogCaptureFixture
) -> None:
    away, other = reader(), reader()
    begin = away.initialOffset()
    end = away.latestOffset(begin, ALL)
    away.stop()
    taken_by(other, 30)
    back = reader(fail_on_lost_locks=False)
    assert offsets(back, begin, end) == list(range(RECORDS))
    assert "writes them all the same, as failOnLostLocks is false" in caplog.text


def planned(reader: Any) -> tuple[Any, Any, Task]:
    """The first batch of a reader, with its only task."""
    begin = reader.initialOffset()
    end = reader.latestOffset(begin, ALL)
    (task,) = reader.partitions(begin, end)
    assert isinstance(task, Task)
    return begin, end, task


def earlier(seconds: float) -> Instant | None:
    now = Instant.now()
    return None if now is None else replace(now, at_s=now.at_s - seconds)


def test_locks_that_end_while_a_batch_runs_fail_it_before_its_sink(
    cluster: Cluster, reader: Reader
) -> None:
    """As after SIGSTOP: the tasks are planned, and go on when others have the records."""
    stopped, other = reader(), reader()
    begin, end, task = planned(stopped)
    check_locks(cluster, "g", task.lease)
    stopped.stop()  # no renewals
    taken_by(other, 30)

    rows = stopped.read(replace(task, planned_at=earlier(60)))
    message = "the locks of 30 records of batch number 1 .* ended while the batch ran"
    with pytest.raises(LocksLost, match=message):
        next(rows)
    with pytest.raises(LocksLost, match="failOnLostLocks=false"):
        check_locks(cluster, "g", task.lease)

    back = reader()  # the batch that runs again is not failed for what it left out
    (again,) = back.partitions(begin, end)
    assert isinstance(again, Task)
    check_locks(cluster, "g", again.lease)


_DRIVER = """
import sys
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import LongType, StructType
from headrace.spark.queue.options import QueueOptions
from headrace.spark.queue.reader import ShareReader
from headrace.spark.queue.remaining import LocksLost

options = QueueOptions(
    bootstrap_servers=sys.argv[1], topics=("t",), group="g", start="earliest",
    new_checkpoint="continue",
)
reader = ShareReader(options, StructType().add("offset", LongType()))
begin = reader.initialOffset()
end = reader.latestOffset(begin, ReadMaxRows(100))
(task,) = reader.partitions(begin, end)
print("planned", flush=True)
sys.stdin.readline()
try:
    for batch in reader.read(task):
        print("to the sink:", batch.num_rows)
except LocksLost as error:
    print(error)
reader.stop()
"""


def test_a_driver_that_is_suspended_past_its_locks_fails_the_batch_before_its_sink(
    servers: str, cluster: Cluster, reader: Reader
) -> None:
    """By a real SIGSTOP, amid a batch: its thread for renewals stands still, too."""
    other = reader()
    with subprocess.Popen(
        [sys.executable, "-c", _DRIVER, servers],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as driver:  # fmt: skip
        try:
            assert driver.stdout is not None
            assert driver.stdout.readline() == "planned\n"
            driver.send_signal(signal.SIGSTOP)
            taken_by(other, 30)
            driver.send_signal(signal.SIGCONT)
            output, _ = driver.communicate("go\n", timeout=60)
        finally:
            driver.kill()
    message = "the locks of 30 records of batch number 1 .* ended while the batch ran"
    assert re.search(message, output)
    assert "to the sink" not in output


def test_lost_records_do_not_hide_locks_that_end_later(cluster: Cluster, reader: Reader) -> None:
    away = reader()
    begin = away.initialOffset()
    end = away.latestOffset(begin, ALL)
    away.stop()
    removed_below(cluster, 40)
    back, other = reader(fail_on_data_loss=False), reader()
    (task,) = back.partitions(begin, end)
    assert isinstance(task, Task)
    check_locks(cluster, "g", task.lease)
    back.stop()
    taken_by(other, 30)
    with pytest.raises(LocksLost, match="the locks of 30 records"):
        check_locks(cluster, "g", task.lease)


def test_an_executor_on_another_machine_checks_whatever_its_clock_says(
    cluster: Cluster, reader: Reader
) -> None:
    """Its clock may be behind the driver's by as much as locks last, or be no clock at all."""
    stopped, other = reader(), reader()
    _, _, task = planned(stopped)
    stopped.stop()
    taken_by(other, 30)
    at_once = Instant("another machine", 0 if task.planned_at is None else task.planned_at.at_s)
    for elsewhere in (at_once, None):
        with pytest.raises(LocksLost, match="the locks of 30 records"):
            next(stopped.read(replace(task, planned_at=elsewhere, sure_s=60)))


@pytest.mark.parametrize("by_ranges", [True, False], ids=["task", "acknowledge"])
def test_records_left_out_that_are_removed_do_not_hide_locks_that_end_later(
    by_ranges: bool, cluster: Cluster, reader: Reader
) -> None:
    away, other = reader(), reader()
    begin = away.initialOffset()
    end = away.latestOffset(begin, ALL)
    away.stop()
    taken_by(other, 30)
    back = reader()
    (task,) = back.partitions(begin, end)
    assert isinstance(task, Task)
    ranges = task.ranges if by_ranges else None
    check_locks(cluster, "g", task.lease, ranges)
    removed_below(cluster, 30)
    back.stop()
    taken_by(reader(), 30)
    with pytest.raises(LocksLost, match="the locks of 30 records"):
        check_locks(cluster, "g", task.lease, ranges)


def test_a_batch_does_not_accept_what_it_left_out_when_the_broker_forgets_who_had_it(
    tmp_path: Path, free_port: int
) -> None:
    """A restart of the broker ends the locks of other members, and the session takes them back."""
    with headrace.Broker(data_dir=tmp_path, port=free_port) as broker:
        servers = broker.bootstrap_servers
        with Cluster(servers) as cluster:
            fill(cluster)
        parsed = QueueOptions(bootstrap_servers=servers, topics=("t",), group="g", start="earliest")
        schema = StructType().add("offset", LongType())
        away, back = ShareReader(parsed, schema), ShareReader(parsed, schema)
        begin = away.initialOffset()
        end = away.latestOffset(begin, ALL)
        away.stop()
        with headrace.SyncShareConsumer(servers, group="g", topics=["t"]) as member:
            deadline = time.monotonic() + 60
            while not (taken := member.poll(30, 0.5)):
                assert time.monotonic() < deadline, "the locks did not end"
            assert len(taken) == 30
            assert offsets(back, begin, end) == list(range(30, RECORDS))
            broker.stop()
    with (
        headrace.Broker(data_dir=tmp_path, port=free_port) as broker,
        Cluster(broker.bootstrap_servers) as cluster,
    ):
        following = back.latestOffset(end, ALL)
        assert [(one[2], one[3]) for one in following["ranges"]] == [(0, 29)]
        back.stop()


def test_a_lost_lock_that_the_option_allows_fails_nothing(cluster: Cluster, reader: Reader) -> None:
    stopped, other = reader(fail_on_lost_locks=False), reader()
    begin = stopped.initialOffset()
    end = stopped.latestOffset(begin, ALL)
    (task,) = stopped.partitions(begin, end)
    assert isinstance(task, Task)
    stopped.stop()
    taken_by(other, 30)
    check_locks(cluster, "g", task.lease)


def test_a_batch_that_runs_again_with_other_options_keeps_no_rejections(
    cluster: Cluster, reader: Reader
) -> None:
    """What the sink gets must not be set aside as well, whoever judged it before."""
    strict = reader(value_format="json", value_schema=schema_from("x bigint"), value_mode="REJECT")
    begin = strict.initialOffset()
    end = strict.latestOffset(begin, ALL)
    assert offsets(strict, begin, end) == []
    strict.stop()
    back = reader()
    assert offsets(back, begin, end) == list(range(RECORDS))
    back.commit(end)
    assert list_archived_share_records(cluster, "g").runs == ()
    (state,) = describe(cluster, "g")
    assert (state.start, state.in_flight) == (RECORDS, ())


def test_a_batch_that_the_group_has_settled_is_read_whole(reader: Reader) -> None:
    """Spark lost its commit log: a sink that replaces what it wrote must get the same records."""
    first = reader()
    begin = first.initialOffset()
    end = first.latestOffset(begin, ALL)
    first.commit(end)
    first.stop()
    assert offsets(reader(), begin, end) == list(range(RECORDS))


def removed_below(cluster: Cluster, offset: int) -> None:
    delete_records(cluster, {("t", 0): offset})


def test_records_removed_while_the_query_was_down(
    cluster: Cluster, reader: Reader, caplog: pytest.LogCaptureFixture
) -> None:
    away = reader()
    begin = away.initialOffset()
    end = away.latestOffset(begin, ALL)
    away.stop()
    removed_below(cluster, 40)

    message = (
        "40 records of batch number 1 left the log .* t-0 offsets 0 to 39; .*share archived g.*"
        "set option failOnDataLoss to false"
    )
    with pytest.raises(DataLost, match=message):
        reader().partitions(begin, end)
    back = reader(fail_on_data_loss=False)
    assert offsets(back, begin, end) == list(range(40, RECORDS))
    assert "goes on without them, as failOnDataLoss is false" in caplog.text
    assert back.latestOffset(end, ALL) == end
    listed = list_archived_share_records(cluster, "g").runs
    assert [(one.first, one.last, one.reason[:20]) for one in listed] == [
        (0, 39, "removed from the log")
    ]
    (state,) = describe(cluster, "g")
    assert (state.start, state.in_flight) == (RECORDS, ())


def test_records_of_a_topic_that_was_created_again_are_lost(
    cluster: Cluster, reader: Reader
) -> None:
    """Also where the new topic has as many records as the old one."""
    away = reader()
    begin = away.initialOffset()
    end = away.latestOffset(begin, ALL)
    away.stop()
    delete_topic(cluster, "t")
    fill(cluster)
    with pytest.raises(DataLost, match="100 records of batch number 1 left the log"):
        reader().partitions(begin, end)
    back = reader(fail_on_data_loss=False)
    assert offsets(back, begin, end) == []
    following = back.latestOffset(end, ALL)
    assert offsets(back, end, following) == list(range(RECORDS))


def test_records_that_the_list_of_archived_ones_had_no_room_for_are_lost(
    cluster: Cluster, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = reader()
    begin = away.initialOffset()
    end = away.latestOffset(begin, ALL)
    away.stop()
    removed_below(cluster, 40)
    dropped = ArchivedRecords((), {("t", 0): 40}, {})
    monkeypatch.setattr(remaining, "list_archived_share_records", lambda *_: dropped)
    with pytest.raises(DataLost, match="40 records of batch number 1 left the log"):
        reader().partitions(begin, end)


def test_records_removed_between_plan_and_task(cluster: Cluster, reader: Reader) -> None:
    strict = reader()
    begin = strict.initialOffset()
    end = strict.latestOffset(begin, ALL)
    (task,) = strict.partitions(begin, end)
    removed_below(cluster, 40)
    with pytest.raises(DataLost, match=r"0 to 39 were removed .*set failOnDataLoss to false"):
        list(strict.read(task))
    lenient = reader(fail_on_data_loss=False)
    found = [row for batch in lenient.read(task) for row in batch.column("offset").to_pylist()]
    assert found == list(range(40, RECORDS))


def test_records_removed_from_a_running_batch_are_no_lost_locks(
    cluster: Cluster, reader: Reader
) -> None:
    running = reader()
    begin = running.initialOffset()
    end = running.latestOffset(begin, ALL)
    (task,) = running.partitions(begin, end)
    assert isinstance(task, Task)
    removed_below(cluster, 40)
    check_locks(cluster, "g", task.lease)


@pytest.mark.parametrize("logged", [True, False], ids=["logged", "acquired"])
def test_a_query_goes_on_after_its_group_was_reset(
    logged: bool, cluster: Cluster, reader: Reader
) -> None:
    """Its batch has nothing any more, and the records come with another number."""
    away = reader()
    begin = away.initialOffset()
    end = away.latestOffset(begin, ALL)
    away.stop()
    deadline = time.monotonic() + 60
    while alter_share_group_offsets(cluster, "g", {("t", 0): 20}).all() is not None:
        assert time.monotonic() < deadline, "the group did not become empty"
        time.sleep(0.05)

    back = reader()
    if logged:
        assert offsets(back, begin, end) == []
        begin = end
    following = back.latestOffset(begin, ALL)
    assert following["seq"] == 2
    assert offsets(back, begin, following) == list(range(20, RECORDS))
    assert back.latestOffset(following, ALL) == following
    (state,) = describe(cluster, "g")
    assert (state.start, state.in_flight) == (RECORDS, ())


def test_the_status_of_a_query_counts_no_records_whose_locks_ended(
    cluster: Cluster, reader: Reader
) -> None:
    away = reader()
    away.latestOffset(away.initialOffset(), ALL)
    (query,) = list_spark_queries(cluster, ["g"])
    assert (query.held, query.batch) == (RECORDS, 1)
    away.stop()
    deadline = time.monotonic() + 60
    while any(run.state == ACQUIRED for one in describe(cluster, "g") for run in one.in_flight):
        assert time.monotonic() < deadline, "the locks did not end"
        time.sleep(0.05)
    (query,) = list_spark_queries(cluster, ["g"])
    assert (query.held, query.batch, query.lag) == (0, 1, RECORDS)
