"""Rows as the source makes them, without a broker."""

from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="session")
def records(spark: SparkSession) -> Callable[..., DataFrame]:
    """One partition of rows with the values given, of which all but the first come again."""

    def of(*values: bytes | None, lease: str = "s/1/1") -> DataFrame:
        rows = [(b"k", value, "t", 0, at, at + 1, lease) for at, value in enumerate(values)]
        columns = "key binary, value binary, topic string, partition int, offset bigint, "
        made = spark.createDataFrame(rows, columns + "delivery_count int, lease string")
        return made.selectExpr("*", "timestamp_micros(offset * 1000) as timestamp").coalesce(1)

    return of
