"""What a task does beside its columns, in a process of its own as Spark has it."""

import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer

import headrace
from headrace.client.connection import Cluster, Connection
from headrace.client.errors import DataLost, TopicLost
from headrace.client.topics import create_topic
from headrace.spark import read
from headrace.spark.columns import schema_of
from headrace.spark.log.options import LogOptions
from headrace.spark.queue.options import QueueOptions
from headrace.wire.leases import Range


def test_what_a_worker_has_loaded_is_frozen_in_its_first_two_tasks() -> None:
    """Without brokers: a task of no ranges asks for nothing."""
    program = """
import gc
from headrace.spark.columns import schema_of
from headrace.spark.options import ReadOptions
from headrace.spark.read import read_task
options = ReadOptions(bootstrap_servers="127.0.0.1:1")
schema = schema_of(options, delivery=False)
class Log(ReadOptions):
    who = "test"
before = gc.get_freeze_count()
counts = []
for _ in range(4):
    assert list(read_task(Log(bootstrap_servers="127.0.0.1:1"), schema, [], "")) == []
    counts.append(gc.get_freeze_count())
    keep = [[] for _ in range(10_000)]
print(before == 0, counts[0] > 10_000, counts[0] < counts[1] >= counts[3])"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("True True True\n", "")


def test_a_worker_keeps_its_connections_but_not_those_of_a_task_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Connection] = []
    open_one = Connection.__init__

    def noted(self: Connection, *given: object, **named: object) -> None:
        opened.append(self)
        open_one(self, *given, **named)  # type: ignore[arg-type]  # as it was called

    with headrace.Broker(tmp_path) as broker:
        with Cluster(broker.bootstrap_servers) as cluster:
            create_topic(cluster, "t", 1)
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        producer.produce("t", b"value")
        assert producer.flush(30) == 0
        options = LogOptions(bootstrap_servers=broker.bootstrap_servers, topics=("t",))
        schema = schema_of(options, delivery=False)

        def task(topic: str) -> int:
            held = Range(topic, 0, 0, 0, 0)
            found = read.read_task(options, schema, [held], "")
            return sum(batch.num_rows for batch in found)

        monkeypatch.setattr(Connection, "__init__", noted)
        assert [task("t") for _ in range(3)] == [1, 1, 1]
        at_first = len(opened)
        assert {one.address for one in opened} != set()
        assert at_first == len({one.address for one in opened})
        with pytest.raises(TopicLost, match="none-0: offsets 0 to 0 are gone"):
            task("none")
        assert len(opened) == at_first
        assert task("t") == 1
        assert len(opened) > at_first
        monkeypatch.setattr(read, "_IDLE_S_MAX", 0.0)
        before = len(opened)
        assert task("t") == 1
        assert len(opened) > before


def test_a_queue_names_its_group_where_records_of_a_batch_were_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    given = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "share.group.id": "g"}
    lost = DataLost("t-0: of offsets 0 to 9, 0 to 4 were removed")
    with pytest.raises(DataLost, match=r"^share group g: t-0: of offsets 0 to 9, 0 to 4 were"):
        read._skip(QueueOptions.parse(given), lost)
    read._skip(QueueOptions.parse({**given, "failOnDataLoss": "false"}), lost)
    assert caplog.messages == [
        "share group g: records were lost, and the batch goes on, as options say: "
        "t-0: of offsets 0 to 9, 0 to 4 were removed"
    ]
