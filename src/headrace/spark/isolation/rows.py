"""The rows that come out: the user's columns, and those that go with every record."""

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from headrace.spark.dispositions import BOOKKEEPING
from headrace.spark.isolation.care import Care
from headrace.spark.isolation.children import Attempt, Children, Span
from headrace.spark.isolation.fitting import Field, fields_of
from headrace.spark.isolation.outcomes import columns, told
from headrace.spark.isolation.staging import staging
from headrace.spark.options import twin

CARRIED = ("topic", "partition", "offset", "delivery_count", "lease")
_INPUT = ("key", "value", *CARRIED[:3], "timestamp", *CARRIED[3:])
_ALONG_DDL = (
    "topic string, partition int, offset bigint, delivery_count int, lease string, "
    "disposition string, reason string, delay_ms bigint"
)
_used = False
LOG = logging.getLogger(__name__)


class Judge(Protocol):
    """How a function is called with the records of a batch, here or in a child process."""

    def opened(self, batch: pa.RecordBatch) -> Attempt:
        """In the child: what does some of the records of `batch`."""

    def here(self, batch: pa.RecordBatch) -> Any:
        """The rows for `batch`, made in this process."""

    def spans(self, batch: pa.RecordBatch) -> Sequence[Span]:
        """How a child begins."""

    def made(self, batch: pa.RecordBatch, results: Iterable[tuple[Span, Any]]) -> Any:
        """The rows for `batch`, from what a child made of its parts."""


@dataclass(frozen=True)
class Target:
    """The columns that come out."""

    user: tuple[Field, ...]
    whole: pa.Schema
    spark: StructType

    @classmethod
    def of(cls, rows: DataFrame, schema: StructType | str) -> "Target":
        """Raises: ValueError when `rows` lack columns or `schema` claims names that are taken."""
        user = StructType(fields(schema)) if isinstance(schema, str) else schema
        if not isinstance(user, StructType):
            raise _no_columns(user)
        taken = sorted(name for name in user.names if name.lower() in BOOKKEEPING)
        if taken:
            raise ValueError(
                f"the schema names {', '.join(taken)}, which the records bring along; rename there"
            )
        if (name := twin(user)) is not None:
            raise ValueError(f"the schema has {name!r} twice: rename or leave out one of them")
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
        whole = StructType(nullable.fields + fields(_ALONG_DDL))
        return cls(fields_of(user), to_arrow_schema(whole, timezone="UTC"), whole)

    def rows(self, batch: pa.RecordBatch, outcomes: Sequence[Any]) -> pa.RecordBatch:
        """One row for each record of `batch`, from what became of it."""
        made, judged = columns(outcomes, self.user)
        return self._with(batch, made, told(judged))

    def accepted(self, batch: pa.RecordBatch, made: pa.RecordBatch) -> pa.RecordBatch:
        """`made` beside what goes with every record of `batch`; none is set aside."""
        nothing = pa.nulls(batch.num_rows, pa.string())
        return self._with(batch, made.columns, [nothing, nothing, nothing.cast(pa.int64())])

    def _with(
        self, batch: pa.RecordBatch, made: list[pa.Array], verdicts: list[pa.Array]
    ) -> pa.RecordBatch:
        carried = [batch.column(name) for name in CARRIED]
        return pa.RecordBatch.from_arrays([*made, *carried, *verdicts], schema=self.whole)


def fields(ddl: str) -> list[StructField]:
    """The fields of a schema such as "a int, b string". Raises: ValueError for another type."""
    parsed = StructType.fromDDL(ddl)
    if not isinstance(parsed, StructType):
        raise _no_columns(ddl)
    return parsed.fields


def _no_columns(schema: object) -> ValueError:
    return ValueError(f"the schema {schema!r} has no columns: give e.g. 'id bigint, name string'")


def mapped(rows: DataFrame, judge: Judge, care: Care, target: Target) -> DataFrame:
    """The rows that `judge` makes of the source's rows; those set aside are staged at once."""
    if care.possible and not care.always and _runs_tasks_once(rows):
        LOG.warning(
            "Spark runs tasks once only here: a record that ends its Python worker stops the "
            "query, which gets past it when started again; for a query that goes on, use master "
            "local[2,4] or spark.task.maxFailures=4, or careful=True"
        )

    staged = staging()

    def judged(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return staged(judged_batches(judge, care, batches))

    return rows.select(*_INPUT).mapInArrow(judged, target.spark)


def judged_batches(judge: Judge, care: Care, batches: Iterable[pa.RecordBatch]) -> Iterator[Any]:
    """What `judge` makes of each batch, in this process or, where `care` asks for it, in a child.

    A function that asks Python to end, or finds no memory, gets its batch once more in a child.
    """
    global _used
    with Children(judge.opened, care) as children:
        for batch in batches:
            if not batch.num_rows:
                continue
            if not care.needed(batch, used=_used):
                _used = True
                try:
                    yield judge.here(batch)
                    continue
                except (MemoryError, SystemExit):
                    if not care.possible:
                        raise
            yield judge.made(batch, children.work(batch, judge.spans(batch)))


def _runs_tasks_once(rows: DataFrame) -> bool:
    context = getattr(rows.sparkSession, "sparkContext", None)
    if context is None:  # Spark Connect does not tell
        return False
    failures = context.getConf().get("spark.task.maxFailures", "")
    local = re.fullmatch(r"local(\[[^,\]]*\])?", context.master or "")
    return local is not None or failures == "1"
