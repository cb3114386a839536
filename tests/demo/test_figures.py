"""The figures that Spark computes are those of a few flights counted by hand."""

import json
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from headrace.demo.figures import Delay, figures
from headrace.demo.flights import Kind, payloads
from headrace.demo.pipeline import FLIGHT, into_folders, with_lookups
from headrace.spark import Batch

pytestmark = pytest.mark.spark


def parsed(rows: DataFrame) -> DataFrame:
    return rows.select(f.from_json("json", FLIGHT).alias("one")).select("one.*")


def test_flights_get_planes_and_airlines_and_become_figures(
    spark: SparkSession, tmp_path: Path
) -> None:
    wanted = [
        ("UA", "N14228", 5, 2, 11),
        ("UA", None, 5, 4, None),
        ("UA", "N24211", 6, 12, 1),
        ("??", "N-none", 6, -3, -7),
    ]
    columns = ("carrier", "tailnum", "hour", "dep_delay", "arr_delay")
    texts = [(json.dumps(dict(zip(columns, row, strict=True))),) for row in wanted]
    flown = with_lookups(spark, parsed(spark.createDataFrame(texts, "json string")))
    write = into_folders(tmp_path)
    write(flown.where("hour = 5").withColumn("delivery_count", f.lit(1)), Batch(0, "s"))
    write(flown.where("hour = 99").withColumn("delivery_count", f.lit(1)), Batch(1, "s"))
    write(flown.where("hour = 6").withColumn("delivery_count", f.lit(2)), Batch(1, "s"))
    found = figures(spark, tmp_path)
    assert found.carriers == [
        Delay("United Air Lines Inc.", 3, 6.0, 4.0, 6.0, 6.0),
        Delay("??", 1, -3.0, -3.0, -7.0, -7.0),
    ]
    assert found.hours == [
        Delay("05", 2, 3.0, 3.0, 11.0, 11.0),
        Delay("06", 2, 4.5, 4.5, -3.0, -3.0),
    ]
    assert (found.flights, found.redelivered) == (4, 2)
    known = spark.read.parquet(str(tmp_path)).where("manufacturer IS NOT NULL")
    assert sorted(row.tailnum for row in known.collect()) == ["N14228", "N24211"]


def test_lookups_neither_drop_nor_double_a_flight(spark: SparkSession) -> None:
    flights = [p.value.decode() for p in payloads(1, 3_000, broken=0) if p.kind is Kind.FLIGHT]
    rows = spark.createDataFrame([(text,) for text in flights], "json string")
    joined = with_lookups(spark, parsed(rows))
    assert joined.count() == len(flights)
    assert joined.where("airline IS NULL").count() == 0
