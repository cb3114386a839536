"""`isolate`: a function of whole batches, which are halved until what raised is alone."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from headrace.spark.isolation.care import Care
from headrace.spark.isolation.children import Attempt, Halve, Span, dumped, loaded
from headrace.spark.isolation.fitting import NO_FAULT_OF_A_RECORD, Field
from headrace.spark.isolation.outcomes import (
    Errors,
    SetAside,
    set_aside,
)
from headrace.spark.isolation.rows import Target, mapped


def isolate(
    rows: DataFrame,
    function: Callable[[Any], Any],
    schema: StructType | str,
    *,
    pandas: bool = False,
    release_on: Errors = (),
    careful: bool | None = None,
    timeout_s: float | None = None,
    memory_limit: str | int | None = None,
) -> DataFrame:
    """`function` of whole batches of the source `headrace`, as the columns of `schema`.

    `function` gets a `pyarrow.RecordBatch` (with `pandas`: a DataFrame) with the columns key,
    value, topic, partition, offset, timestamp, delivery_count and lease, and returns one of the
    same kind with one row for each, in order. A generator function, as `mapInArrow` and
    `mapInPandas` take, gets an iterator of batches, and yields one for each before it asks for the
    next; it begins anew after it raised. When the function raises, it is called with each half, so
    it may see a record several times. Exceptions, and what ends the process, count as in
    `each_record`; `timeout_s` is for one batch or part of one.

    Raises: ValueError as `each_record`; in the query, `Misuse` when the function breaks this
    contract.
    """
    care = Care.of(release_on, careful, timeout_s, memory_limit)
    target = Target.of(rows, schema)
    if inspect.isgeneratorfunction(function):
        function = _InStep(function)
    return mapped(rows, _BatchJudge(function, pandas, target, release_on), care, target)


class Misuse(Exception):
    """A function given to `isolate` breaks its contract; that is no record's fault."""


@dataclass(frozen=True)
class _BatchJudge:
    function: Callable[[Any], Any]
    pandas: bool
    target: Target
    release_on: Errors

    def here(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        attempt = self._attempt(batch)
        waiting = self.spans(batch)
        results = []
        while waiting:
            start, stop = waiting.pop()
            made = attempt(start, stop)
            if made is Halve:
                middle = (start + stop) // 2
                waiting += [(middle, stop), (start, middle)]
            else:
                results.append(((start, stop), made))
        return self.made(batch, results)

    def opened(self, batch: pa.RecordBatch) -> Attempt:
        attempt = self._attempt(batch)

        def sent(start: int, stop: int) -> Any:
            try:
                made = attempt(start, stop)
            except Misuse as error:
                return error
            return dumped(made) if isinstance(made, pa.RecordBatch) else made

        return sent

    def spans(self, batch: pa.RecordBatch) -> list[Span]:
        return [(0, batch.num_rows)]

    def made(self, batch: pa.RecordBatch, results: Iterable[tuple[Span, Any]]) -> pa.RecordBatch:
        return pa.concat_batches([self._rows(batch, span, result) for span, result in results])

    def _attempt(self, batch: pa.RecordBatch) -> Attempt:
        """What does a part of `batch`: its rows, why its one record is set aside, or `Halve`."""

        def attempt(start: int, stop: int) -> Any:
            part = batch.slice(start, stop - start)
            try:
                return _called(self.function, part, self.target.user, self.pandas)
            except (Misuse, *NO_FAULT_OF_A_RECORD):
                raise
            except BaseException as error:  # what a record causes, whatever it is, is its own
                return set_aside(error, self.release_on) if part.num_rows == 1 else Halve

        return attempt

    def _rows(self, batch: pa.RecordBatch, span: Span, result: Any) -> pa.RecordBatch:
        part = batch.slice(span[0], span[1] - span[0])
        if isinstance(result, Misuse):
            raise result
        if isinstance(result, Exception):
            result = set_aside(result, self.release_on)
        if isinstance(result, SetAside):
            return self.target.rows(part, [result])
        return self.target.accepted(
            part, loaded(result) if isinstance(result, pa.Buffer) else result
        )


class _InStep:
    """A generator function as a function of one batch: each call is one step of the generator."""

    def __init__(self, function: Callable[[Iterator[Any]], Iterator[Any]]) -> None:
        self._function = function
        self._running: Iterator[Any] | None = None
        self._next: Any = None

    def __call__(self, batch: Any) -> Any:
        self._next = batch
        try:
            if self._running is None:
                self._running = self._function(self._batches())
            return next(self._running)
        except StopIteration:
            self._running = None
            raise Misuse("the generator ended while there were batches: yield for each") from None
        except BaseException:
            self._running = None
            raise

    def _batches(self) -> Iterator[Any]:
        while True:
            batch, self._next = self._next, None
            if batch is None:
                raise Misuse("the generator asked for a batch before it yielded for the last one")
            yield batch


def _called(
    function: Callable[[Any], Any], batch: pa.RecordBatch, fields: Sequence[Field], pandas: bool
) -> pa.RecordBatch:
    made = function(batch.to_pandas() if pandas else batch)
    if pandas and not hasattr(made, "columns"):
        raise Misuse(f"the function returned {type(made).__name__}, not a pandas.DataFrame")
    if pandas:
        made = pa.Table.from_pandas(made, preserve_index=False)
    if not isinstance(made, pa.RecordBatch | pa.Table):
        raise Misuse(f"the function returned {type(made).__name__}, not a pyarrow.RecordBatch")
    if made.num_rows != batch.num_rows:
        raise Misuse(
            f"the function made {made.num_rows} rows of {batch.num_rows}: return one for each, in "
            "order, and filter or explode afterwards"
        )
    missing = [field.name for field in fields if field.name not in made.column_names]
    if missing:
        raise Misuse(f"the function returned no column {', '.join(missing)}")
    if isinstance(made, pa.RecordBatch):
        made = pa.Table.from_batches([made])
    fitting = pa.table({field.name: field.cast(made.column(field.name)) for field in fields})
    return fitting.combine_chunks().to_batches()[0]
