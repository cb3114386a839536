"""Flights with the names of their airlines, and what is known of their planes.

The join stands in the sink, which has accepted rows only: nothing there can touch what was set
aside.
"""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from flights_source import FLIGHT, arguments, flight_of, queue, session, through
from headrace.demo.flights import airlines_csv, planes_csv
from headrace.spark import Batch, acknowledge, each_record

GROUP = "cookbook-join"


def run(spark: SparkSession, bootstrap: str, out: str) -> None:
    """Until nothing is left."""
    airlines = spark.read.csv(str(airlines_csv()), "carrier string, airline string", header=True)
    planes = spark.read.csv(str(planes_csv()), header=True, nullValue="NA")
    models = planes.select("tailnum", "manufacturer", "model")

    def write(rows: DataFrame, batch: Batch) -> None:
        known = rows.join(f.broadcast(airlines), "carrier")
        whole = known.join(f.broadcast(models), "tailnum", "left")
        whole.write.mode("overwrite").parquet(f"{out}/flights/{batch.path}")

    flights = each_record(queue(spark, bootstrap, GROUP), flight_of, FLIGHT)
    through(flights, acknowledge(write, bootstrap_servers=bootstrap, group=GROUP), out)


if __name__ == "__main__":
    given = arguments(__doc__)
    run(session(GROUP), given.bootstrap, given.out)
