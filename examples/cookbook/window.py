"""Departures a day from each airport, written when the watermark says that a day is over.

The records are accepted when their batch is committed: from then on they live in Spark's state, in
the checkpoint. A queue keeps no order among partitions, and a released record comes later than its
neighbours: the watermark has to wait for them.
"""

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from flights_source import arguments, departed, into, records, session

GROUP = "cookbook-window"
LATE = "1 day"


def run(spark: SparkSession, bootstrap: str, out: str) -> None:
    """Until nothing is left; days that may still grow stay in the state for the next run."""
    days = (
        departed(records(spark, bootstrap, GROUP))
        .withWatermark("time_hour", LATE)
        .groupBy(f.window("time_hour", "1 day").alias("day"), "origin")
        .agg(f.count("*").alias("departures"), f.avg("dep_delay").alias("late"))
        .select("day.start", "origin", "departures", "late")
    )
    into(days, "days", out)


if __name__ == "__main__":
    given = arguments(__doc__)
    run(session(GROUP), given.bootstrap, given.out)
