"""The sink while its broker is killed: each row of a task is in the log once."""

import threading

import pytest
from pyspark.sql import SparkSession

from brokers import Headrace, running
from headrace.client.admin import create_topic, log_ends
from headrace.client.connection import Cluster, Patience
from headrace.client.records import read_records

pytestmark = pytest.mark.spark

COUNT, KILLS = 200_000, 3


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_broker_killed_in_the_middle_of_a_job_has_every_row_once(
    spark: SparkSession, codec: str
) -> None:
    rows = spark.range(0, COUNT, 1, 2).selectExpr(
        "CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value"
    )
    failures: list[str] = []

    def write(servers: str) -> None:
        writer = rows.write.format("headrace").mode("append").option("topic", "t")
        writer = writer.option("kafka.bootstrap.servers", servers)
        writer = writer.option("kafka.compression.type", codec)
        try:
            writer.option("kafka.batch.size", "2000").save()
        except BaseException as error:
            failures.append(str(error))

    patience = Patience(total_s=120, first_s=0.01)
    with running(Headrace) as broker, Cluster(broker.servers, patience=patience) as cluster:
        create_topic(cluster, "t", 3)
        job = threading.Thread(target=write, args=(broker.servers,), daemon=True)
        job.start()
        for _ in range(KILLS):
            before = sum(log_ends(cluster, "t").values())
            while sum(log_ends(cluster, "t").values()) <= before:
                assert job.is_alive(), failures
            broker.kill()
            assert job.is_alive(), failures
            broker.launch()
        job.join()
        assert not failures
        found = [
            [int(one.value or b"") for one in read_records(cluster, "t", at)] for at in range(3)
        ]
    assert sorted(number for part in found for number in part) == list(range(COUNT))
    for part in found:
        halves = [[n for n in part if (n < COUNT // 2) == first] for first in (True, False)]
        assert all(half == sorted(half) for half in halves), "a task's rows keep their order"
