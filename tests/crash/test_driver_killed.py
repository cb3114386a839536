"""SIGKILL of a query's driver, Python and JVM, at random moments; once the broker dies with it.

The driver is this file run as a program. Started again on the same checkpoint it goes on until
nothing is left, and then the account must close: every record once in the sink or once among the
dead letters, no verdict undone in the journal, SPSO = SPEO = log end.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from headrace.client.admin import create_topic, set_group_configs
from headrace.client.connection import Cluster
from headrace.client.leases import describe
from headrace.demo.account import settle
from headrace.demo.evidence import collect, dead_letters
from headrace.demo.pipeline import into_folders
from headrace.demo.run import finished, settled
from headrace.demo.server import Server
from headrace.spark import (
    IncomingRecord,
    Reject,
    Release,
    acknowledge,
    each_record,
    local_session,
    register,
)
from headrace.wire.leases import SharePartition

pytestmark = pytest.mark.spark
TOPIC, DEAD_LETTERS, GROUP = "t", "t.dlq", "g"
PARTITIONS, RECORDS_A_LIFE, RECORDS_A_BATCH = 2, 300, 150
KILLS = 3
LOCK_MS = 3_000
WAIT_S = 60


def judge(record: IncomingRecord) -> dict[str, Any]:
    number = json.loads(record.value or b"")["number"]
    if number % 10 == 1 and record.delivery_count == 1:
        raise Release("not yet")
    if number % 10 == 2:
        raise Reject("never")
    return {"number": number}


def drive(bootstrap: str, folder: Path) -> None:
    """The driver: a query from the share group to one folder a batch, until it is killed."""
    spark = local_session("to be killed")
    register(spark)
    records = (
        spark.readStream.format("headrace")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", TOPIC)
        .option("share.group.id", GROUP)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", RECORDS_A_BATCH)
        .option("includeDelivery", "true")
        .load()
    )
    sink = acknowledge(
        into_folders(folder / "parquet"),
        bootstrap_servers=bootstrap,
        group=GROUP,
        keep_bookkeeping=True,
    )
    judged = each_record(records, judge, "number int")
    writer = judged.writeStream.option("checkpointLocation", str(folder / "checkpoint"))
    writer.foreachBatch(sink).start().awaitTermination()


@contextmanager
def driver(bootstrap: str, folder: Path) -> Iterator[Callable[[], None]]:
    """A driver in a session of its own, killed at the end; yields a check that it still runs."""
    log = folder / "driver.log"
    with (
        log.open("ab") as out,
        subprocess.Popen(
            [sys.executable, __file__, bootstrap, str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):

        def check() -> None:
            assert process.poll() is None, log.read_text(errors="replace")[-4_000:]

        try:
            yield check
        finally:
            # Python's workers have a group of their own and outlive this for a moment, as they
            # do in production: the next driver must cope.
            os.killpg(process.pid, signal.SIGKILL)


def produce(bootstrap: str, first: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    for number in range(first, first + count):
        value = json.dumps({"number": number})
        producer.produce(TOPIC, value, partition=number % PARTITIONS)
    assert producer.flush(20) == 0


def until(condition: Callable[[], object], check: Callable[[], None]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        check()
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def prepare(cluster: Cluster) -> None:
    create_topic(cluster, TOPIC, PARTITIONS)
    allowed = {"errors.deadletterqueue.group.enable": "true"}
    create_topic(cluster, DEAD_LETTERS, 1, configs=allowed)
    settings = {
        "errors.deadletterqueue.topic.name": DEAD_LETTERS,
        "share.record.lock.duration.ms": str(LOCK_MS),
    }
    set_group_configs(cluster, GROUP, settings)


@pytest.mark.parametrize("seed", [1])
def test_driver_killed_at_random_moments(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    broker_dies_in = rng.randrange(KILLS)
    with Server(tmp_path) as server, Cluster(server.bootstrap) as cluster:
        prepare(cluster)
        for life in range(KILLS):
            produce(server.bootstrap, life * RECORDS_A_LIFE, RECORDS_A_LIFE)
            with driver(server.bootstrap, tmp_path) as check:
                wait_for_a_sign_of_life(cluster, check)
                time.sleep(rng.uniform(0, 2))
                if life == broker_dies_in:
                    server.kill()
            if life == broker_dies_in:
                time.sleep(rng.uniform(0, 1))
                server.start()

        records = KILLS * RECORDS_A_LIFE
        with driver(server.bootstrap, tmp_path) as check:
            until(lambda: is_over(describe(cluster, GROUP), records), check)
        dead = dead_letters(cluster, DEAD_LETTERS)
        evidence = collect(
            cluster,
            group=GROUP,
            topic=TOPIC,
            parquet=tmp_path / "parquet",
            produced=dict.fromkeys(range(PARTITIONS), records // PARTITIONS),
            dead=dead,
        )
    assert settle(evidence, unprocessable=records // 10).complaints == ()
    assert {letter.reason for letter in dead} == {"never"}


def wait_for_a_sign_of_life(cluster: Cluster, check: Callable[[], None]) -> None:
    """Until the driver changed something: what follows are the steps of its first triggers."""
    before = describe(cluster, GROUP)
    until(lambda: describe(cluster, GROUP) != before, check)


def is_over(state: Sequence[SharePartition], records: int) -> bool:
    return sum(map(finished, state)) == records and all(map(settled, state))


if __name__ == "__main__":
    drive(sys.argv[1], Path(sys.argv[2]))
