"""The result of the pipeline: delays by carrier and by hour, computed by Spark from its Parquet."""

from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f


@dataclass(frozen=True, slots=True)
class Delay:
    """Delays of a group of flights in minutes; arrival figures are None when none arrived."""

    label: str
    flights: int
    mean_departure: float
    median_departure: float
    mean_arrival: float | None
    median_arrival: float | None


@dataclass(frozen=True, slots=True)
class Figures:
    """Delays by carrier, most flights first, and by scheduled hour of departure.

    `redelivered` flights are in the output on a later delivery than their first.
    """

    carriers: list[Delay]
    hours: list[Delay]
    redelivered: int

    @property
    def flights(self) -> int:
        return sum(carrier.flights for carrier in self.carriers)


def figures(spark: SparkSession, parquet: Path) -> Figures:
    """Compute the figures from all rows of the Parquet output."""
    flown = spark.read.parquet(str(parquet))
    carriers = _delays(flown, f.coalesce("airline", "carrier").alias("label"))
    hours = _delays(flown, f.format_string("%02d", "hour").alias("label"))
    return Figures(
        sorted(carriers, key=lambda one: (-one.flights, one.label)),
        sorted(hours, key=lambda one: one.label),
        flown.where("delivery_count > 1").count(),
    )


def _delays(flown: DataFrame, label: Column) -> list[Delay]:
    rows = flown.groupBy(label).agg(
        f.count("*").alias("flights"),
        f.mean("dep_delay").alias("mean_departure"),
        f.median("dep_delay").alias("median_departure"),
        f.mean("arr_delay").alias("mean_arrival"),
        f.median("arr_delay").alias("median_arrival"),
    )
    return [Delay(**row.asDict()) for row in rows.collect()]
