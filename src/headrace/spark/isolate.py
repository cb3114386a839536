"""User functions in which one record that raises does not stop its neighbours.

`each_record` calls a function with one record at a time, `isolate` with whole Arrow batches, which
are halved until the record that raised is alone. What comes out are the user's columns, null for
records set aside, and the columns that `acknowledge` needs: topic, partition, offset,
delivery_count, lease, disposition and reason. Headers stay behind: through Python they cost twenty
times what everything else costs.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from headrace.spark.acknowledge import BOOKKEEPING, REASON_LENGTH_MAX

_CARRIED = ("topic", "partition", "offset", "delivery_count", "lease")
_INPUT = ("key", "value", *_CARRIED[:3], "timestamp", *_CARRIED[3:])
_ALONG_DDL = (
    "topic string, partition int, offset bigint, delivery_count int, lease string, "
    "disposition string, reason string"
)
_MISFIT = (pa.ArrowException, TypeError, ValueError, OverflowError)

Outcome = Mapping[str, Any] | Exception
Judge = Callable[[pa.RecordBatch], pa.RecordBatch]


class Release(Exception):
    """Raised for a record that shall be delivered again, e.g. as a service it needs is away."""


class Reject(Exception):
    """Raised for a record that can never be processed; it goes to the dead letters, if set up."""


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
    release_on: tuple[type[Exception], ...] = (),
) -> DataFrame:
    """`function` of every record of the source `headrace`, as the columns of `schema`.

    A record for which it raises, or whose values do not fit `schema`, is rejected with
    "ExceptionType: message" as the reason; `raise Release(reason)` and `raise Reject(reason)`
    choose. `release_on` names exceptions that release too, such as ConnectionError. Values that
    the function leaves out are null, those that `schema` does not name are dropped.

    Raises: ValueError when `rows` lack the delivery columns or `schema` claims their names.
    """
    target = _target(rows, schema)

    def judge(batch: pa.RecordBatch) -> pa.RecordBatch:
        outcomes: list[Outcome] = []
        for record in _records(batch):
            try:
                outcomes.append(function(record))
            except MemoryError:
                raise
            except Exception as error:  # what a record causes, whatever it is, is the record's own
                outcomes.append(error)
        return target.rows(batch, outcomes, release_on)

    return _mapped(rows, judge, target)


def isolate(
    rows: DataFrame,
    function: Callable[[Any], Any],
    schema: StructType | str,
    *,
    pandas: bool = False,
    release_on: tuple[type[Exception], ...] = (),
) -> DataFrame:
    """`function` of whole batches of the source `headrace`, as the columns of `schema`.

    `function` gets a `pyarrow.RecordBatch` (with `pandas`: a DataFrame) with the columns key,
    value, topic, partition, offset, timestamp, delivery_count and lease, and returns one of the
    same kind with one row for each, in order. When it raises, it is called with each half, so it
    may see a record several times. Exceptions count as in `each_record`.

    Raises: ValueError as `each_record`; in the query, when it returns another number of rows.
    """
    target = _target(rows, schema)

    def judge(batch: pa.RecordBatch) -> pa.RecordBatch:
        parts = _halved(function, batch, target.user, pandas)
        return pa.concat_batches(
            [
                target.accepted(part, outcome)
                if isinstance(outcome, pa.RecordBatch)
                else target.rows(part, [outcome], release_on)
                for part, outcome in parts
            ]
        )

    return _mapped(rows, judge, target)


@dataclass(frozen=True)
class _Target:
    """The columns that come out: the user's, and those that go with every record."""

    user: pa.Schema
    whole: pa.Schema
    spark: StructType

    def rows(
        self,
        batch: pa.RecordBatch,
        outcomes: list[Outcome],
        release_on: tuple[type[Exception], ...],
    ) -> pa.RecordBatch:
        """One row for each record of `batch`, from what became of it."""
        columns, judged = _columns(outcomes, self.user)
        verdicts = [_verdict(one, release_on) for one in judged]
        told = [pa.array(column, pa.string()) for column in zip(*verdicts, strict=True)]
        return self._with(batch, columns, told)

    def accepted(self, batch: pa.RecordBatch, made: pa.RecordBatch) -> pa.RecordBatch:
        """`made` beside what goes with every record of `batch`; none is set aside."""
        nothing = pa.nulls(batch.num_rows, pa.string())
        return self._with(batch, made.columns, [nothing, nothing])

    def _with(
        self, batch: pa.RecordBatch, columns: list[pa.Array], told: list[pa.Array]
    ) -> pa.RecordBatch:
        carried = [batch.column(name) for name in _CARRIED]
        return pa.RecordBatch.from_arrays([*columns, *carried, *told], schema=self.whole)


def _target(rows: DataFrame, schema: StructType | str) -> _Target:
    user = StructType(_fields(schema)) if isinstance(schema, str) else schema
    taken = sorted(name for name in user.names if name.lower() in BOOKKEEPING)
    if taken:
        raise ValueError(
            f"the schema names {', '.join(taken)}, which the records bring along; rename there"
        )
    missing = [name for name in _INPUT if name not in rows.columns]
    if missing:
        raise ValueError(
            f"the rows lack {', '.join(missing)}: read them with format 'headrace' and option "
            "includeDelivery set to true"
        )
    # A record set aside has null everywhere, whatever the schema promises.
    nullable = StructType(
        [StructField(one.name, one.dataType, True, one.metadata) for one in user.fields]
    )
    whole = StructType(nullable.fields + _fields(_ALONG_DDL))
    return _Target(
        to_arrow_schema(nullable, timezone="UTC"), to_arrow_schema(whole, timezone="UTC"), whole
    )


def _fields(ddl: str) -> list[StructField]:
    parsed = StructType.fromDDL(ddl)
    assert isinstance(parsed, StructType)
    return parsed.fields


def _mapped(rows: DataFrame, judge: Judge, target: _Target) -> DataFrame:
    def judged(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return (judge(batch) for batch in batches if batch.num_rows)

    return rows.select(*_INPUT).mapInArrow(judged, target.spark)


def _records(batch: pa.RecordBatch) -> Iterator[IncomingRecord]:
    micros = batch.column("timestamp").cast(pa.int64())
    columns = {name: batch.column(name) for name in ("key", "value", *_CARRIED[:3])}
    columns["timestamp_ms"] = pc.divide(micros, 1000)
    columns["delivery_count"] = batch.column("delivery_count")
    return map(
        IncomingRecord._make, zip(*(one.to_pylist() for one in columns.values()), strict=True)
    )


def _columns(outcomes: list[Outcome], schema: pa.Schema) -> tuple[list[pa.Array], list[Outcome]]:
    """The values of `schema`, null where there are none; what does not fit becomes an exception."""
    judged = [
        one if isinstance(one, Mapping | Exception) else TypeError(f"{type(one).__name__} returned")
        for one in outcomes
    ]
    while True:
        columns: list[pa.Array] = []
        for field in schema:
            values = [None if isinstance(one, Exception) else one.get(field.name) for one in judged]
            try:
                columns.append(pa.array(values, field.type))
            except _MISFIT:
                for index in _misfits(values, field.type):
                    judged[index] = ValueError(
                        f"{field.name}: {_short(repr(values[index]))} is no {field.type}"
                    )
                break
        else:
            return columns, judged


def _misfits(values: list[Any], kind: pa.DataType) -> Iterator[int]:
    """Indexes of the values that are not of `kind`."""
    waiting = [(0, len(values))]
    while waiting:
        start, end = waiting.pop()
        try:
            pa.array(values[start:end], kind)
        except _MISFIT:
            if end - start == 1:
                yield start
            else:
                middle = (start + end) // 2
                waiting += [(start, middle), (middle, end)]


def _verdict(
    outcome: Outcome, release_on: tuple[type[Exception], ...]
) -> tuple[str | None, str | None]:
    """Disposition and reason."""
    if not isinstance(outcome, Exception):
        return None, None
    if isinstance(outcome, Release | Reject):
        verdict = "release" if isinstance(outcome, Release) else "reject"
        return verdict, _short(_told(outcome)) or None
    reason = _short(f"{type(outcome).__name__}: {_told(outcome)}")
    return ("release" if isinstance(outcome, release_on) else "reject"), reason


def _told(error: Exception) -> str:
    try:
        return str(error)
    except Exception:  # an exception that cannot say what it is concerns its record alone
        return ""


def _short(text: str) -> str:
    text = text.encode(errors="backslashreplace").decode()  # quoted input may be no text at all
    return text if len(text) <= REASON_LENGTH_MAX else text[: REASON_LENGTH_MAX - 3] + "..."


class Misuse(Exception):
    """A function given to `isolate` breaks its contract; that is no record's fault."""


def _halved(
    function: Callable[[Any], Any], batch: pa.RecordBatch, schema: pa.Schema, pandas: bool
) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch | Exception]]:
    """The batch in parts: what `function` made of one, or what one record raised."""
    try:
        yield batch, _called(function, batch, schema, pandas)
    except (Misuse, MemoryError):
        raise
    except Exception as error:  # what a record causes, whatever it is, is the record's own
        if batch.num_rows == 1:
            yield batch, error
            return
        half = batch.num_rows // 2
        yield from _halved(function, batch.slice(0, half), schema, pandas)
        yield from _halved(function, batch.slice(half), schema, pandas)


def _called(
    function: Callable[[Any], Any], batch: pa.RecordBatch, schema: pa.Schema, pandas: bool
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
    missing = [name for name in schema.names if name not in made.column_names]
    if missing:
        raise Misuse(f"the function returned no column {', '.join(missing)}")
    fitting = pa.table(
        [made.column(field.name).cast(field.type) for field in schema], schema=schema
    )
    return fitting.combine_chunks().to_batches()[0]
