"""`each_record`: a function of one record at a time."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from headrace.spark.isolation.care import Care
from headrace.spark.isolation.children import Attempt, Span
from headrace.spark.isolation.fitting import NO_FAULT_OF_A_RECORD
from headrace.spark.isolation.outcomes import Errors, set_aside
from headrace.spark.isolation.rows import CARRIED, Target, mapped


class IncomingRecord(NamedTuple):
    """A record as `each_record` hands it to a function."""

    key: bytes | None
    value: bytes | None
    topic: str
    partition: int
    offset: int
    timestamp_ms: int | None
    delivery_count: int


def each_record(
    rows: DataFrame,
    function: Callable[[IncomingRecord], Mapping[str, Any]],
    schema: StructType | str,
    *,
    release_on: Errors = (),
    careful: bool | None = None,
    timeout_s: float | None = None,
    memory_limit: str | int | None = None,
) -> DataFrame:
    """`function` of every record of the source `headrace`, as the columns of `schema`.

    What comes out are these and the columns that `acknowledge` needs: topic, partition, offset,
    delivery_count, lease, disposition and reason. A record set aside is staged at its share group
    by its task and makes no row; in rows made by hand, which no group holds, it has null in the
    columns of `schema`. Headers stay behind: through Python they cost twenty times what everything
    else costs.

    A record for which it raises, or whose values do not fit `schema`, is rejected with
    "ExceptionType: message" as the reason; `raise Release(reason)` and `raise Reject(reason)`
    choose. `release_on` names exceptions that release too, such as ConnectionError. Values that
    the function leaves out are null, those that `schema` does not name are dropped.

    A record that ends the Python worker counts as one that raised `WorkerDied`. The task that
    runs again does so in a child process, which shows the record; `careful` does from the start
    (False: never). `timeout_s` for a record and `memory_limit` ("512m"; what the function may take
    on top of what the worker has, on Linux) do so too; a record beyond them counts as `WorkerDied`.

    Raises: ValueError when `rows` lack the delivery columns, `schema` claims their names, or a
    limit is none.
    """
    care = Care.of(release_on, careful, timeout_s, memory_limit)
    target = Target.of(rows, schema)
    names = frozenset(field.name for field in target.user)
    judge = EachJudge(function, _records, target.rows, names, release_on)
    return mapped(rows, judge, care, target)


@dataclass(frozen=True)
class EachJudge:
    """Calls a function with one thing of a batch after the other; `finish` makes rows of it all."""

    function: Callable[[Any], Any]
    items: Callable[[pa.RecordBatch], Iterable[Any]]
    finish: Callable[[pa.RecordBatch, Sequence[Any]], Any]
    names: frozenset[str]
    release_on: Errors

    def here(self, batch: pa.RecordBatch) -> Any:
        outcomes: list[Any] = []
        function = self.function
        for item in self.items(batch):
            try:
                made = function(item)
                outcomes.append(made if type(made) is dict else _plain(made))
            except NO_FAULT_OF_A_RECORD:
                raise
            except BaseException as error:  # what a record causes, whatever it is, is its own
                outcomes.append(set_aside(error, self.release_on))
        return self.finish(batch, outcomes)

    def opened(self, batch: pa.RecordBatch) -> Attempt:
        items = list(self.items(batch))

        def attempt(start: int, _stop: int) -> Any:
            try:
                made = _plain(self.function(items[start]))
            except NO_FAULT_OF_A_RECORD:
                raise
            except BaseException as error:  # as in `here`
                return set_aside(error, self.release_on)
            if isinstance(made, dict):
                return {name: made[name] for name in self.names if name in made}
            return set_aside(TypeError(f"{type(made).__name__} returned"))

        return attempt

    def spans(self, batch: pa.RecordBatch) -> Sequence[Span]:
        return [(at, at + 1) for at in range(batch.num_rows)]

    def made(self, batch: pa.RecordBatch, results: Iterable[tuple[Span, Any]]) -> Any:
        outcomes = [
            set_aside(one, self.release_on) if isinstance(one, Exception) else one
            for _, one in results
        ]
        return self.finish(batch, outcomes)


def _plain(made: Any) -> Any:
    """A mapping as a dictionary: one that looks up its values only now may raise."""
    return dict(made) if isinstance(made, Mapping) else made


def _records(batch: pa.RecordBatch) -> Iterator[IncomingRecord]:
    micros = batch.column("timestamp").cast(pa.int64())
    columns = {name: batch.column(name) for name in ("key", "value", *CARRIED[:3])}
    columns["timestamp_ms"] = pc.divide(micros, 1000)
    columns["delivery_count"] = batch.column("delivery_count")
    return map(
        IncomingRecord._make, zip(*(one.to_pylist() for one in columns.values()), strict=True)
    )
