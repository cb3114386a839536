"""Departures a day from each airport, written when the watermark says that a day is over.

A watermark trusts that records come about in the order of their times. A queue promises no order:
a released record comes after its neighbours, and other members of the group take some in between.
So this program reads the topic as a log, all partitions at the same pace.
"""

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from flights_source import arguments, departed, into, session, topic

GROUP = "cookbook-window"
LATE = "1 day"


def run(spark: SparkSession, bootstrap: str, out: str) -> None:
    """Until nothing is left; days that may still grow stay in the state for the next run."""
    log = topic(spark, bootstrap).option("kafka.group.id", GROUP).load()
    days = (
        departed(log)
        .withWatermark("time_hour", LATE)
        .groupBy(f.window("time_hour", "1 day").alias("day"), "origin")
        .agg(f.count("*").alias("departures"), f.avg("dep_delay").alias("late"))
        .select("day.start", "origin", "departures", "late")
    )
    into(days, "days", out)


if __name__ == "__main__":
    given = arguments(__doc__)
    run(session(GROUP), given.bootstrap, given.out)
