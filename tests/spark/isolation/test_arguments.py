"""`isolated_udf` takes functions as they were written for `udf`."""

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from headrace.spark import isolated_udf

pytestmark = pytest.mark.spark
Records = Callable[..., DataFrame]


def test_structs_are_rows_and_maps_are_dictionaries_as_in_udf(records: Records) -> None:
    headers = f.array(f.struct(f.lit("trace").alias("key"), f.col("value")))
    rows = records(b"7", b"8").select(
        "*",
        headers.alias("headers"),
        f.create_map(f.lit("a"), f.struct(f.col("offset").alias("at"))).alias("places"),
        f.expr("named_struct('none', CAST(NULL AS STRUCT<x: INT>))").alias("nothing"),
    )

    def told(headers: Any, places: Any, nothing: Any) -> str:
        traces = [(one.key, one["value"]) for one in headers]
        return f"{traces} {places['a'].at} {nothing.none}"

    plain = f.udf(told, "string", useArrow=False)("headers", "places", "nothing")
    isolated = isolated_udf(told, "string")("headers", "places", "nothing")
    found = rows.select(plain.alias("plain"), isolated.alias("ours")).collect()
    assert [row.ours.reason for row in found] == [None, None]
    assert [row.ours.value for row in found] == [row.plain for row in found]
    assert found[1].plain == "[('trace', b'8')] 1 None"


def test_a_function_without_arguments_is_called_for_each_record(records: Records) -> None:
    found = records(b"1", b"2").select(isolated_udf(lambda: 5, "int")().alias("five")).collect()
    assert [(row.five.value, row.five.reason) for row in found] == [(5, None), (5, None)]
