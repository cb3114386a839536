"""Queries over a broker, with records that end the Python worker: the task, or the query, dies."""

import ctypes
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame

from headrace.spark import IncomingRecord, acknowledge, each_record, isolated_udf

pytestmark = pytest.mark.spark
GROUP = "g"
BAD = (7, 8, 41)

ONE_TRY = """
import os, signal, sys, time
from pyspark.errors import StreamingQueryException
from headrace.spark import ProgressLog, acknowledge, each_record, local_session, register

servers, checkpoint, sunk = sys.argv[1:]
spark = local_session("tries tasks once", "local[2]")
spark.streams.addListener(ProgressLog())
register(spark)
rows = (
    spark.readStream.format("headrace")
    .option("kafka.bootstrap.servers", servers)
    .option("subscribe", "t")
    .option("share.group.id", "g")
    .option("startingOffsets", "earliest")
    .option("includeDelivery", "true")
    .load()
)

def kill(record):
    if record.value == b"bad":
        os.kill(os.getpid(), signal.SIGKILL)
    return {"text": record.value.decode(), "deliveries": record.delivery_count}

def write(good, batch_id):
    good.write.mode("overwrite").json(f"{sunk}/batch_id={batch_id}")

writer = each_record(rows, kill, "text string, deliveries int").writeStream
writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
sink = acknowledge(write, bootstrap_servers=servers, group="g")
writer = writer.foreachBatch(sink)
try:
    writer.start().awaitTermination()
except StreamingQueryException:
    pass
else:
    sys.exit("the worker died, and the query did not")
writer.start().awaitTermination()
# The program ends while a query runs: whoever still listens then has Spark print traces.
running = spark.readStream.format("rate").load().writeStream.format("noop").start()
while running.lastProgress is None:
    time.sleep(0.01)
print("the program ends", file=sys.stderr)
"""


@pytest.fixture
def produced(flow: Any) -> Any:
    """Sixty records, three of which are bad, in both partitions."""
    flow.set_group(errors_deadletterqueue_topic_name="dlq.t")
    # A query that is started again is to find its locks, however long Spark takes to start.
    flow.set_group(share_record_lock_duration_ms="600000")
    producer = Producer({"bootstrap.servers": flow.servers})
    for number in range(60):
        value = "bad" if number in BAD else f"value {number}"
        producer.produce("t", value, partition=number % 2)
    assert producer.flush(60) == 0
    return flow


def reasons(flow: Any) -> list[str]:
    return [
        value.decode()
        for letter in flow.dead_letters()
        for name, value in letter.headers
        if name == "__dlq.errors.message"
    ]


def deadly(value: bytes) -> str:
    if value == b"bad":
        ctypes.string_at(0)
    return value.decode()


def by_record(rows: DataFrame) -> DataFrame:
    def kill(record: IncomingRecord) -> dict[str, Any]:
        return {"text": deadly(record.value or b""), "deliveries": record.delivery_count}

    return each_record(rows, kill, "text string, deliveries int")


def by_udf(rows: DataFrame) -> DataFrame:
    judged = rows.withColumn("judged", isolated_udf(deadly, "string")("value"))
    kept = ("topic", "partition", "offset", "delivery_count", "lease")
    aside = ("judged.disposition", "judged.reason")
    return judged.selectExpr("judged.value as text", "delivery_count as deliveries", *kept, *aside)


@pytest.mark.parametrize("judged", [by_record, by_udf])
def test_a_worker_that_dies_neither_stops_the_query_nor_charges_the_neighbours(
    produced: Any, judged: Callable[[DataFrame], DataFrame]
) -> None:
    found: dict[int, list[Any]] = {}

    def write(good: DataFrame, batch_id: int) -> None:
        found[batch_id] = good.collect()

    sink = acknowledge(write, bootstrap_servers=produced.servers, group=GROUP)
    query = produced.start(judged(produced.rows(includeDelivery="true")), sink, availableNow=True)
    query.awaitTermination()
    assert query.exception() is None
    good = [row for rows in found.values() for row in rows]
    assert sorted(row.text for row in good) == sorted(
        f"value {number}" for number in range(60) if number not in BAD
    )
    assert {row.deliveries for row in good} == {1}
    produced.until(produced.finished)
    assert reasons(produced) == ["WorkerDied: the Python worker died: SIGSEGV"] * len(BAD)


def test_a_query_that_died_of_a_record_gets_past_it_when_started_again(
    produced: Any, tmp_path: Path
) -> None:
    program = tmp_path / "one_try.py"
    program.write_text(ONE_TRY, encoding="utf-8")
    sunk = tmp_path / "sunk"
    command = [sys.executable, program, produced.servers, produced.checkpoint, sunk]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    assert "a record that ends its Python worker stops the query" in run.stderr
    at_exit = run.stderr.partition("the program ends")[2]
    assert "py4j" not in at_exit.lower(), at_exit
    good = produced.spark.read.json(str(sunk)).collect()
    assert sorted(row.text for row in good) == sorted(
        f"value {number}" for number in range(60) if number not in BAD
    )
    assert {row.deliveries for row in good} == {1}
    produced.until(produced.finished)
    assert len(reasons(produced)) == len(BAD)
