"""The pipeline of the demo: flights in, delays out, and no flight stops the others.

A Structured Streaming query over a share group. Each record is judged by `flight_of`: what cannot
be a flight is rejected and lands in the dead-letter topic with the reason, what meets the simulated
outage is released and comes again, the rest is joined with planes and airlines and written to
Parquet, one folder a batch, so that a batch that is run again replaces what it wrote.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from headrace.demo.flights import airlines_csv, planes_csv
from headrace.spark import (
    Batch,
    IncomingRecord,
    Reject,
    Release,
    acknowledge,
    each_record,
    register,
)

OUTAGE_PERCENT = 5
FLIGHT = """
    year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int,
    sched_arr_time int, arr_delay int, carrier string, flight int, tailnum string, origin string,
    dest string, air_time int, distance int, hour int, minute int, time_hour string
"""
PLANE = """
    tailnum string, built int, type string, manufacturer string, model string, engines int,
    seats int, speed int, engine string
"""
AIRLINE = "carrier string, airline string"


def flight_of(record: IncomingRecord) -> dict[str, Any]:
    """The flight in a record.

    Raises: ValueError for what is not JSON, Reject for what is no flight or never left, Release in
    the simulated outage. Each says what becomes of the record.
    """
    flight = json.loads(record.value or b"")
    if not isinstance(flight, dict):
        raise Reject("not a JSON object")
    if flight["dep_time"] is None:
        raise Reject("cancelled: no departure time")
    if record.delivery_count == 1 and meets_outage(record.topic, record.partition, record.offset):
        raise Release("lookup outage (simulated)")
    return flight


def meets_outage(topic: str, partition: int, offset: int) -> bool:
    """Whether a record meets the outage on its first delivery: the same ones in every run."""
    return crc32(f"{topic}-{partition}-{offset}".encode()) % 100 < OUTAGE_PERCENT


def start_query(
    spark: SparkSession,
    *,
    bootstrap: str,
    topic: str,
    group: str,
    output: Path,
    checkpoint: Path,
    records_per_batch: int,
) -> StreamingQuery:
    """Start the query; it runs until it is stopped."""
    register(spark)
    records = (
        spark.readStream.format("headrace")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("share.group.id", group)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", records_per_batch)
        .option("includeDelivery", "true")
        .load()
    )
    flights = with_lookups(spark, each_record(records, flight_of, FLIGHT))
    sink = acknowledge(
        into_folders(output), bootstrap_servers=bootstrap, group=group, keep_bookkeeping=True
    )
    return (
        flights.writeStream.queryName(group)
        .option("checkpointLocation", str(checkpoint))
        .foreachBatch(sink)
        .start()
    )


def with_lookups(spark: SparkSession, flights: DataFrame) -> DataFrame:
    """Flights with the name of their airline and what is known of their plane."""
    planes = _table(spark, planes_csv(), PLANE).select(
        "tailnum", "built", "manufacturer", "model", "seats"
    )
    airlines = _table(spark, airlines_csv(), AIRLINE)
    return flights.join(f.broadcast(planes), "tailnum", "left").join(
        f.broadcast(airlines), "carrier", "left"
    )


def into_folders(output: Path) -> Callable[[DataFrame, int], None]:
    """A sink that writes each batch to a folder of its own, whole or not at all.

    The folder is named for the checkpoint, too, so that a query with another one replaces nothing.
    """

    def write(rows: DataFrame, batch_id: int) -> None:
        folder = output / Batch.of(rows, batch_id).path
        rows.drop("lease", "disposition", "reason").write.mode("overwrite").parquet(str(folder))

    return write


def _table(spark: SparkSession, file: Path, schema: str) -> DataFrame:
    return spark.read.csv(str(file), schema, header=True, enforceSchema=True, nullValue="NA")
