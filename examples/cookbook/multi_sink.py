"""One pass over the queue, two tables: every flight, and the late ones in a file for each airport.

`persist=True` keeps the judged rows while the sink works, so that two writes do not judge twice.
Each write replaces the folder of its batch: a batch that is run again leaves nothing twice.
"""

from pyspark.sql import DataFrame, SparkSession

from flights_source import FLIGHT, arguments, flight_of, queue, session, through
from headrace.spark import Batch, acknowledge, each_record

GROUP = "cookbook-multi-sink"
LATE_MINUTES = 60


def run(spark: SparkSession, bootstrap: str, out: str) -> None:
    """Until nothing is left."""

    def write(rows: DataFrame, batch: Batch) -> None:
        rows.write.mode("overwrite").parquet(f"{out}/flights/{batch.path}")
        late = rows.where(rows.dep_delay >= LATE_MINUTES)
        late.write.mode("overwrite").partitionBy("origin").json(f"{out}/late/{batch.path}")

    flights = each_record(queue(spark, bootstrap, GROUP), flight_of, FLIGHT)
    sink = acknowledge(write, bootstrap_servers=bootstrap, group=GROUP, persist=True)
    through(flights, sink, out)


if __name__ == "__main__":
    given = arguments(__doc__)
    run(session(GROUP), given.bootstrap, given.out)
