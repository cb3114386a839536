"""The poison run: one record in a hundred is bad, in four ways, and the query does not stop.

`HEADRACE_POISON_RECORDS=1000000 pytest -s tests/spark/isolation/test_poison.py` does it at length,
and tells of every batch.
"""

import ctypes
import json
import os
import re
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from headrace.spark import IncomingRecord, acknowledge, each_record

pytestmark = pytest.mark.spark
RECORDS = int(os.environ.get("HEADRACE_POISON_RECORDS", "20000"))
REASONS = {
    0: r"JSONDecodeError: Unterminated string .*",
    100: r"ZeroDivisionError: division by zero",
    200: r"ValueError: share: 'a lot' is no double",
    300: r"WorkerDied: the Python worker died: (SIGSEGV|SIGKILL, perhaps out of memory)",
}


def value_of(number: int) -> str:
    match number % 400:
        case 0:
            return '{"id": "'
        case 100:
            return json.dumps({"id": number, "parts": 0})
        case 200:
            return json.dumps({"id": number, "parts": 2, "share": "a lot"})
        case 300:
            return json.dumps({"id": number, "parts": "lethal"})
        case _:
            return json.dumps({"id": number, "parts": 4})


def order(record: IncomingRecord) -> dict[str, Any]:
    found = json.loads(record.value or b"")
    if found["parts"] == "lethal":
        if found["id"] % 800 == 300:
            ctypes.string_at(0)
        os.kill(os.getpid(), signal.SIGKILL)
    return {"id": found["id"], "share": found.get("share", 1 / found["parts"])}


def produce(servers: str) -> None:
    producer = Producer(
        {"bootstrap.servers": servers, "linger.ms": 50, "queue.buffering.max.messages": 2_000_000}
    )
    for number in range(RECORDS):
        producer.produce("t", value_of(number), partition=number % 2)
        if number % 10_000 == 0:
            producer.poll(0)
    assert producer.flush(120) == 0


def dead_letters(flow: Any) -> Counter[tuple[int, str]]:
    """Number of the bad record (from where it stood), and the reason, of each dead letter."""
    found: Counter[tuple[int, str]] = Counter()
    for letter in flow.dead_letters():
        told = {name: value.decode() for name, value in letter.headers if value is not None}
        place = int(told["__dlq.errors.offset"]) * 2 + int(told["__dlq.errors.partition"])
        found[place, told["__dlq.errors.message"]] += 1
    return found


def test_the_query_never_stops_and_the_account_closes(flow: Any, tmp_path: Path) -> None:
    flow.set_group(errors_deadletterqueue_topic_name="dlq.t")
    produce(flow.servers)
    sunk, began = str(tmp_path / "sunk"), time.monotonic()

    def write(good: DataFrame, batch_id: int) -> None:
        good.write.mode("overwrite").parquet(f"{sunk}/batch_id={batch_id}")
        sys.stderr.write(f"batch {batch_id} after {time.monotonic() - began:.0f} s\n")

    rows = flow.rows(includeDelivery="true", maxOffsetsPerTrigger=str(max(10_000, RECORDS // 20)))
    sink = acknowledge(write, bootstrap_servers=flow.servers, group="g", keep_bookkeeping=True)
    query = flow.start(each_record(rows, order, "id bigint, share double"), sink, availableNow=True)
    query.awaitTermination()
    assert query.exception() is None

    bad = RECORDS // 100
    found = flow.spark.read.parquet(sunk).agg(
        f.count("*").alias("rows"),
        f.countDistinct("id").alias("ids"),
        f.sum(f.expr("int(id % 100 = 0)")).alias("bad"),
        f.max("delivery_count").alias("deliveries"),
    )
    assert found.first().asDict() == {
        "rows": RECORDS - bad,
        "ids": RECORDS - bad,
        "bad": 0,
        "deliveries": 1,
    }
    flow.until(flow.finished, 120)
    letters = dead_letters(flow)
    assert letters.total() == bad
    assert {number for number, _ in letters} == set(range(0, RECORDS, 100))
    assert [
        (number, reason)
        for number, reason in letters
        if not re.fullmatch(REASONS[number % 400], reason)
    ] == []
