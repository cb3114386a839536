"""SIGKILL of a query's driver, Python and JVM, at fixed points of a batch.

The driver is this file run as a program. Started again on the same checkpoint it goes on, and then
every record is in the sink once: a batch that runs again has the records that it had, under its
number, so that a sink which goes by the number keeps one of them.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame

import headrace
from headrace.client.connection import Cluster
from headrace.client.group_offsets import list_group_offsets
from headrace.client.topics import add_partitions, create_topic
from headrace.spark import local_session, register

pytestmark = pytest.mark.spark
TOPIC, GROUP = "t", "g"
SECONDS_MAX = 300


def drive(servers: str, folder: Path, dies_in: str, dies_at: str) -> None:
    """Run until nothing is left, or until the sink of batch `dies_in` kills everything."""

    def sink(rows: DataFrame, batch_id: int) -> None:
        if (dies_in, dies_at) == (str(batch_id), "before"):
            os.killpg(0, signal.SIGKILL)
        found = rows.select("partition", "offset").collect()
        (folder / f"{batch_id}.json").write_text(json.dumps(sorted(map(list, found))))
        if (dies_in, dies_at) == (str(batch_id), "after"):
            os.killpg(0, signal.SIGKILL)

    spark = local_session("to be killed")
    register(spark)
    given = {
        "kafka.bootstrap.servers": servers,
        "subscribe": TOPIC,
        "kafka.group.id": GROUP,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "20",
    }
    rows = spark.readStream.format("headrace").options(**given).load()
    writer = rows.writeStream.option("checkpointLocation", str(folder / "checkpoint"))
    writer.foreachBatch(sink).trigger(availableNow=True).start().awaitTermination()


def run(servers: str, folder: Path, dies_in: str = "", dies_at: str = "") -> int:
    with (folder / "driver.log").open("ab") as log:
        return subprocess.run(
            [sys.executable, __file__, servers, str(folder), dies_in, dies_at],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            timeout=SECONDS_MAX,
            check=False,
        ).returncode


def produce(servers: str, count: int, partitions: int) -> None:
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 20})
    for number in range(count):
        producer.produce(TOPIC, b"v", partition=number % partitions)
    assert producer.flush(SECONDS_MAX) == 0


def written(folder: Path) -> dict[str, list[list[int]]]:
    return {one.stem: json.loads(one.read_text()) for one in folder.glob("*.json")}


def test_every_record_is_in_the_sink_once(tmp_path: Path) -> None:
    """Killed before the first batch is written, and again after the second one is."""
    with headrace.Broker(data_dir=tmp_path / "broker") as broker:
        servers = broker.bootstrap_servers
        with Cluster(servers) as cluster:
            create_topic(cluster, TOPIC, 2)
            produce(servers, 50, 2)
            assert run(servers, tmp_path, "0", "before") == -signal.SIGKILL
            assert written(tmp_path) == {}
            add_partitions(cluster, TOPIC, 3)
            assert run(servers, tmp_path, "1", "after") == -signal.SIGKILL
            before = written(tmp_path)
            assert sorted(before) == ["0", "1"]
            produce(servers, 9, 3)
            told = tmp_path / "driver.log"
            assert run(servers, tmp_path) == 0, told.read_text(errors="replace")[-4000:]
            after = written(tmp_path)
            committed = {
                partition: one.offset
                for (_, partition), one in list_group_offsets(cluster, GROUP).items()
            }
    assert {number: after[number] for number in before} == before
    assert len(after["0"]) == 20, "the new partition is no part of it"
    records = sorted(tuple(one) for batch in after.values() for one in batch)
    assert records == [(p, o) for p, end in enumerate((28, 28, 3)) for o in range(end)]
    assert committed == {0: 28, 1: 28, 2: 3}


if __name__ == "__main__":
    drive(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4])
