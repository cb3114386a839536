"""Each flight once, though its producer sent it twice, with a verdict on every record.

The sink takes away what an earlier batch wrote. It leaves out its own folder, so that a batch that
is run again comes to the same result.
"""

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from flights_source import FLIGHT, KEY, arguments, flight_of, records, session, through
from headrace.spark import acknowledge, each_record

GROUP = "cookbook-dedupe"


def run(spark: SparkSession, bootstrap: str, out: str) -> None:
    """Until nothing is left."""
    table = Path(out) / "flights"

    def write(rows: DataFrame, batch_id: int) -> None:
        fresh = rows.dropDuplicates(KEY)
        earlier = [
            str(one) for one in table.glob("batch_id=*") if one.name != f"batch_id={batch_id}"
        ]
        if earlier:
            known = spark.read.schema(FLIGHT).parquet(*earlier).select(KEY)
            fresh = fresh.join(known, KEY, "left_anti")
        fresh.write.mode("overwrite").parquet(str(table / f"batch_id={batch_id}"))

    flights = each_record(records(spark, bootstrap, GROUP), flight_of, FLIGHT)
    through(flights, acknowledge(write, bootstrap_servers=bootstrap, group=GROUP), out)


if __name__ == "__main__":
    given = arguments(__doc__)
    run(session(GROUP), given.bootstrap, given.out)
