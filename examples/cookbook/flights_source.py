"""What the five programs share: their arguments, a session, and flights out of a share group."""

import json
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.readwriter import DataStreamReader

from headrace.spark import Batch, IncomingRecord, Reject, local_session

FLIGHT = """
    carrier string, flight int, tailnum string, origin string, dest string, time_hour timestamp,
    dep_time int, dep_delay int, air_time int
"""
KEY = ["carrier", "flight", "origin", "time_hour"]
Sink = Callable[[DataFrame, int], None]


def arguments(about: str | None) -> Namespace:
    """The arguments of a program: `bootstrap` and `out`."""
    parser = ArgumentParser(description=about, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", default="127.0.0.1:9092", help="host:port of a broker")
    parser.add_argument("--out", required=True, help="folder for tables and checkpoint")
    return parser.parse_args()


def session(name: str) -> SparkSession:
    """A session on this machine, whose workers can import this file."""
    spark = local_session(name)
    spark.sparkContext.addPyFile(__file__)
    return spark


def topic(spark: SparkSession, bootstrap: str) -> DataStreamReader:
    """The topic `flights` from its beginning, to be read as a queue or as a log."""
    return (
        spark.readStream.format("headrace")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", "flights")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 2000)
    )


def queue(spark: SparkSession, bootstrap: str, group: str) -> DataFrame:
    """The records that the share group has not finished, ready for a verdict on each."""
    reader = topic(spark, bootstrap).option("share.group.id", group)
    return reader.option("includeDelivery", "true").load()


def flight_of(record: IncomingRecord) -> dict[str, Any]:
    """The flight in a record; what raises here is rejected, with the reason."""
    flight: dict[str, Any] = json.loads(record.value or b"")
    if flight["dep_time"] is None:
        raise Reject("cancelled: no departure time")
    return flight | {"time_hour": datetime.fromisoformat(flight["time_hour"])}


def departed(records: DataFrame) -> DataFrame:
    """The flights that left, by Spark's own functions: for queries that keep state.

    What is no flight is filtered away; a share group takes it for accepted.
    """
    flight = f.from_json(f.col("value").cast("string"), FLIGHT)
    return records.select(flight.alias("flight")).select("flight.*").where("dep_time IS NOT NULL")


def through(rows: DataFrame, sink: Sink, out: str) -> None:
    """Give `rows` to `sink`, batch by batch, until nothing is left."""
    query = rows.writeStream.option("checkpointLocation", f"{out}/checkpoint").foreachBatch(sink)
    query.trigger(availableNow=True).start().awaitTermination()


def into(rows: DataFrame, table: str, out: str) -> None:
    """Append `rows` to the folder `table`, each batch once, until nothing is left.

    A folder for each checkpoint and batch: with a new checkpoint Spark numbers batches from 0
    again, and its own file sink would take the first ones as written.
    """

    def write(batch_rows: DataFrame, number: int) -> None:
        path = Batch.of(batch_rows, number).path
        batch_rows.write.mode("overwrite").parquet(f"{out}/{table}/{path}")

    through(rows, write, out)
