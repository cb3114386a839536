"""Each flight once, though its producer sent it twice, with a verdict on every record.

The sink takes away what an earlier batch wrote. It leaves out its own folder, so that a batch that
is run again comes to the same result.
"""

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from flights_source import FLIGHT, KEY, arguments, flight_of, queue, session, through
from headrace.spark import Batch, acknowledge, each_record

GROUP = "cookbook-dedupe"


def run(spark: SparkSession, bootstrap: str, out: str) -> None:
    """Until nothing is left."""
    table = Path(out) / "flights"

    def write(rows: DataFrame, batch: Batch) -> None:
        fresh = rows.dropDuplicates(KEY)
        mine = table / batch.path
        earlier = [str(one) for one in table.glob("session=*/batch=*") if one != mine]
        if earlier:
            known = spark.read.schema(FLIGHT).parquet(*earlier).select(KEY)
            fresh = fresh.join(known, KEY, "left_anti")
        fresh.write.mode("overwrite").parquet(str(mine))

    flights = each_record(queue(spark, bootstrap, GROUP), flight_of, FLIGHT)
    through(flights, acknowledge(write, bootstrap_servers=bootstrap, group=GROUP), out)


if __name__ == "__main__":
    given = arguments(__doc__)
    run(session(GROUP), given.bootstrap, given.out)
