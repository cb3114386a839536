"""`isolated_udf`: a function for `select` and `withColumn`."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType

from headrace.spark.isolation.arguments import as_udf_gets
from headrace.spark.isolation.care import Care
from headrace.spark.isolation.fitting import Field
from headrace.spark.isolation.outcomes import Errors, columns, told
from headrace.spark.isolation.records import EachJudge
from headrace.spark.isolation.rows import judged_batches

_ALONG = ("delivery_count", "lease")


def isolated_udf(
    function: Callable[..., Any],
    return_type: DataType | str,
    *,
    release_on: Errors = (),
    careful: bool | None = None,
    timeout_s: float | None = None,
    memory_limit: str | int | None = None,
) -> Callable[..., Column]:
    """A function of columns like `pyspark.sql.functions.udf`, for rows of the source `headrace`.

    Its column is a struct: `value` of `return_type`, null for a record set aside, `disposition`,
    `reason` and `delay_ms`; select the last three, and what `acknowledge` needs, beside what you
    make of the value. The rows must have `delivery_count` and `lease` (option `includeDelivery`).
    Exceptions and the other arguments count as in `each_record`.

    Raises: ValueError for a limit that is none.
    """
    care = Care.of(release_on, careful, timeout_s, memory_limit)
    value = DataType.fromDDL(return_type) if isinstance(return_type, str) else return_type
    struct = StructType().add("value", value).add("disposition", StringType())
    struct = struct.add("reason", StringType()).add("delay_ms", LongType())
    made_of = (Field.of(StructField("value", value)),)

    def called(values: tuple[Any, ...]) -> dict[str, Any]:
        return {"value": function(*values)}

    def finished(_batch: pa.RecordBatch, outcomes: Sequence[Any]) -> pa.Array:
        made, judged = columns(outcomes, made_of)
        return pa.StructArray.from_arrays([*made, *told(judged)], names=struct.names)

    judge = EachJudge(called, _arguments, finished, frozenset({"value"}), release_on)

    def judged(arrays: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        return judged_batches(judge, care, map(_batch, arrays))

    made_by: Any = arrow_udf  # PySpark's own hints do not know of structs
    # Where a query names the column twice, Spark would call a deterministic function twice.
    isolated = made_by(judged, struct).asNondeterministic()

    def of(*arguments: Column | str) -> Column:
        made: Column = isolated(*_ALONG, *arguments)
        return made

    return of


def _batch(arrays: tuple[pa.Array, ...]) -> pa.RecordBatch:
    names = [*_ALONG, *(str(number) for number in range(len(arrays) - len(_ALONG)))]
    return pa.RecordBatch.from_arrays(list(arrays), names=names)


def _arguments(batch: pa.RecordBatch) -> Iterable[tuple[Any, ...]]:
    arguments = batch.columns[len(_ALONG) :]
    if not arguments:
        return [()] * batch.num_rows
    return zip(*map(as_udf_gets, arguments), strict=True)
