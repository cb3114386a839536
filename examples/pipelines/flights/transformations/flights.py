"""Flights from a share group as tables: what came, what is good, what is not, and delays.

One table reads the group, and everything else reads that table: two readers of one group would
share its records among them. Each run takes what is there, and the group knows how far it came.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

FLIGHT = "carrier string, flight int, origin string, dest string, dep_time int, dep_delay int"

spark = SparkSession.active()


@dp.table
def incoming() -> DataFrame:
    """Every record, as it came, with the flight in it; null where there is none."""
    records = (
        spark.readStream.format("headrace")
        .option("kafka.bootstrap.servers", spark.conf.get("flights.bootstrap"))
        .option("subscribe", spark.conf.get("flights.topic"))
        .option("share.group.id", "flights-pipeline")
        .option("startingOffsets", "earliest")
        .load()
    )
    text = f.col("value").cast("string")
    return records.select("partition", "offset", "value", f.from_json(text, FLIGHT).alias("flight"))


@dp.table
def flights() -> DataFrame:
    """Flights that left."""
    return (
        spark.readStream.table("incoming").where("flight.dep_time IS NOT NULL").select("flight.*")
    )


@dp.table
def quarantine() -> DataFrame:
    """What cannot be used, where it stands in the topic, and why."""
    why = f.when(f.col("flight.carrier").isNull(), "no flight").otherwise("never left")
    incoming = spark.readStream.table("incoming")
    useless = incoming.where("flight.dep_time IS NULL")
    return useless.select("partition", "offset", "value", why.alias("reason"))


@dp.materialized_view
def delays() -> DataFrame:
    """How late each airline leaves, in minutes."""
    late = f.avg("dep_delay").alias("late")
    return spark.read.table("flights").groupBy("carrier").agg(f.count("*").alias("flights"), late)
