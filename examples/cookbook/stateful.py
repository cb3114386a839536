"""Which planes are due for an inspection: each time they have been in the air for 25 hours.

`transformWithState` keeps the minutes of each plane. A total does not care for the order in which
flights come, which a queue does not promise.
"""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from flights_source import arguments, departed, into, records, session

GROUP = "cookbook-stateful"
MINUTES = 25 * 60
INSPECTION = "tailnum string, inspection int"
STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Inspections(StatefulProcessor):
    """One row for each inspection that a plane is due for."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._minutes = handle.getValueState("minutes", "minutes int")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        (before,) = self._minutes.get() or (0,)
        after = before + sum(row.air_time or 0 for row in rows)
        self._minutes.update((after,))
        for number in range(before // MINUTES + 1, after // MINUTES + 1):
            yield Row(tailnum=key[0], inspection=number)

    def close(self) -> None:
        """Nothing is held but the state, which Spark keeps."""


def run(spark: SparkSession, bootstrap: str, out: str) -> None:
    """Until nothing is left."""
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", STORE)
    flights = departed(records(spark, bootstrap, GROUP)).where("tailnum IS NOT NULL")
    due = flights.groupBy("tailnum").transformWithState(
        Inspections(), INSPECTION, outputMode="append", timeMode="none"
    )
    into(due, "inspections", out)


if __name__ == "__main__":
    given = arguments(__doc__)
    run(session(GROUP), given.bootstrap, given.out)
