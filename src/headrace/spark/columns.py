"""The columns of the source: those of Spark's Kafka source, chosen and decoded as asked for."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headrace.spark.ddl import nullable
from headrace.spark.options import OptionError, ReadOptions
from headrace.spark.values import Values
from headrace.wire.columns import Wanted
from headrace.wire.leases import Disposition, Range, Verdict

VALUE_ERROR = "value_error"
_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_KAFKA = (
    StructField("key", BinaryType()),
    StructField("value", BinaryType()),
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("offset", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("timestampType", IntegerType()),
)
_HEADERS = (StructField("headers", ArrayType(_HEADER)),)
_DELIVERY = (StructField("delivery_count", IntegerType()), StructField("lease", StringType()))
_HIDDEN = {  # by their names, the options that show them
    **{one.name: "includeHeaders" for one in _HEADERS},
    **{one.name: "includeDelivery" for one in _DELIVERY},
}


def schema_of(options: ReadOptions, *, delivery: bool) -> StructType:
    """The columns that the options ask for. Raises: `OptionError` when they contradict each other.

    Without any it is the schema of Spark's Kafka source; `delivery` adds the delivery columns.
    """
    options.check_values()
    there = {
        one.name: one
        for one in (
            *_KAFKA,
            *(_HEADERS if options.include_headers else ()),
            *(_DELIVERY if delivery else ()),
        )
    }
    fields: list[StructField] = []
    for name in options.columns or there:
        if name not in there:
            raise OptionError(_no_column(name, list(there)))
        if name == "value" and options.value_schema is not None:
            fields += nullable(options.value_schema).fields
            fields += () if options.rejects else (StructField(VALUE_ERROR, StringType()),)
        else:
            fields.append(there[name])
    if options.value_schema is not None and "value" not in (options.columns or there):
        raise OptionError(
            "option 'columns' leaves out 'value', so nothing would be decoded: add it, or leave "
            "out 'value.format'"
        )
    _refuse_twins(fields)
    return StructType(fields)


def check_schema(options: ReadOptions, given: StructType, *, delivery: bool) -> None:
    """Raises: `OptionError` when a user's schema is not the one that the options ask for."""
    wanted = schema_of(options, delivery=delivery)
    if given.simpleString() != wanted.simpleString():
        raise OptionError(
            f"the schema given is not that of the source, {wanted.simpleString()}: leave out "
            "schema(), choose columns with option 'columns', and types with 'value.schema'"
        )


def _no_column(name: str, there: list[str]) -> str:
    if name in _HIDDEN:
        return f"option 'columns' names {name!r}: set {_HIDDEN[name]!r} to true as well"
    return f"option 'columns' names {name!r}; there are {', '.join(there)}"


def _refuse_twins(fields: list[StructField]) -> None:
    seen: set[str] = set()
    for one in fields:
        if one.name.lower() in seen:
            raise OptionError(
                f"two columns would be named {one.name!r}, as the source has them beside those of "
                "'value.schema': choose the others with option 'columns', e.g. 'value,offset'"
            )
        seen.add(one.name.lower())


class Columns:
    """Makes rows of the source from fetched records, and notes what values it rejects."""

    def __init__(self, options: ReadOptions, schema: StructType, lease: str) -> None:
        self.rejected: list[Disposition] = []
        self._target = to_arrow_schema(schema, timezone="UTC")
        self._lease = lease
        self._values = None if options.value_schema is None else Values(options)
        self._rejects = options.rejects
        shown = {one.name for one in schema.fields if one in (*_KAFKA, *_HEADERS)}
        self.wanted = Wanted(
            headers="headers" in shown,
            keys="key" in shown,
            values="value" in shown or self._values is not None,
        )

    def rows(self, batch: pa.RecordBatch, held: Sequence[Range]) -> pa.RecordBatch:
        """The rows of a batch of records, all from the topic partition of `held`."""
        columns: dict[str, pa.Array] = {}
        reasons: dict[int, str] = {}
        if self._values is not None:
            columns, reasons = self._values.decoded(batch.column("value"))
            if not self._rejects:  # with it a column of this name is the schema's own
                columns[VALUE_ERROR] = _told(reasons, batch.num_rows)
        for name in self._target.names:
            if name not in columns:
                columns[name] = self._column(name, batch, held)
        found = pa.RecordBatch.from_arrays(
            [columns[name] for name in self._target.names], schema=self._target
        )
        if not self._rejects or not reasons:
            return found
        self._note(reasons, batch.column("offset").to_numpy(), held[0])
        fine = np.ones(batch.num_rows, dtype=bool)
        fine[list(reasons)] = False
        return found.filter(pa.array(fine))

    def _column(self, name: str, batch: pa.RecordBatch, held: Sequence[Range]) -> pa.Array:
        if name == "topic":
            return pa.repeat(held[0].topic, batch.num_rows)
        if name == "partition":
            return pa.repeat(pa.scalar(held[0].partition, pa.int32()), batch.num_rows)
        if name == "lease":
            return pa.repeat(self._lease, batch.num_rows)
        if name == "delivery_count":
            firsts = np.array([one.first for one in held], dtype=np.int64)
            counts = np.array([one.delivery_count for one in held], dtype=np.int32)
            nearest = np.searchsorted(firsts, batch.column("offset").to_numpy(), side="right") - 1
            return pa.array(counts[nearest])
        return batch.column("timestamp_type" if name == "timestampType" else name)

    def _note(self, reasons: dict[int, str], offsets: np.ndarray, held: Range) -> None:
        self.rejected += [
            Disposition(
                held.topic, held.partition, offset, offset, Verdict.REJECT, f"value: {reason}"
            )
            for reason, offset in zip(
                reasons.values(), offsets[list(reasons)].tolist(), strict=True
            )
        ]


def _told(reasons: dict[int, str], rows: int) -> pa.Array:
    if not reasons:
        return pa.nulls(rows, pa.string())
    return pa.array(map(reasons.get, range(rows)), pa.string(), size=rows)
