"""Generator functions, as `mapInArrow` and `mapInPandas` take them, one step at a time."""

from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame

from headrace.spark import isolate

pytestmark = pytest.mark.spark
Records = Callable[..., DataFrame]
Batches = Iterator[pa.RecordBatch]


def counted(batches: Batches) -> Batches:
    """How many batches came before, in this generator."""
    for number, batch in enumerate(batches):
        if b"x" in batch.column("value").to_pylist():
            raise ValueError("x")
        yield pa.record_batch({"a": pa.array([number] * batch.num_rows, pa.int32())})


def in_tens(records: Records, values: list[bytes]) -> DataFrame:
    rows = records(*values)
    rows.sparkSession.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
    return rows


@pytest.fixture(autouse=True)
def usual_batches(spark: Any) -> Iterator[None]:
    yield
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def by_offset(found: DataFrame) -> list[Any]:
    return sorted(found.collect(), key=lambda row: row.offset)


@pytest.mark.parametrize("careful", [None, True])
def test_a_generator_goes_from_batch_to_batch(records: Records, careful: bool | None) -> None:
    rows = in_tens(records, [b"1"] * 30)
    found = by_offset(isolate(rows, counted, "a int", careful=careful))
    assert [row.a for row in found] == [0] * 10 + [1] * 10 + [2] * 10


def test_a_generator_that_raised_begins_anew(records: Records) -> None:
    rows = in_tens(records, [b"x" if at == 13 else b"1" for at in range(30)])
    found = by_offset(isolate(rows, counted, "a int"))
    assert [row.offset for row in found if row.disposition] == [13]
    again = [0, 0, 0, None, 0] + [1] * 5  # 10 to 11, 12, not 13, 14 after a new start, 15 to 19
    assert [row.a for row in found] == [0] * 10 + again + [2] * 10


def test_pandas_generators_are_taken_too(records: Records) -> None:
    def tripled(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            yield pd.DataFrame({"a": frame["value"].map(int) * 3})

    found = by_offset(isolate(records(b"1", b"x", b"3"), tripled, "a int", pandas=True))
    assert [(row.a, row.disposition) for row in found] == [(3, None), (None, "reject"), (9, None)]


def late(batches: Batches) -> Batches:
    list(batches)
    yield pa.record_batch({"a": [1]})


def short(batches: Batches) -> Batches:
    yield counted(batches).__next__()


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (late, "asked for a batch before it yielded for the last one"),
        (short, "the generator ended while there were batches: yield for each"),
    ],
)
def test_a_generator_out_of_step_fails_the_query(
    records: Records, function: Any, told: str
) -> None:
    with pytest.raises(PythonException, match=told):
        isolate(in_tens(records, [b"1"] * 30), function, "a int").collect()
