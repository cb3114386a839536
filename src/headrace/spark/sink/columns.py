"""Columns of a DataFrame as columns of records: what must be there, of which types.

Texts are like those of Spark's Kafka sink, with a remedy.
Source: KafkaWriter.validateQuery and KafkaRowWriter (Spark 4).
"""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)

from headrace.spark.options import OptionError
from headrace.spark.sink.options import SinkOptions

_BYTES = "STRING or BINARY; cast it, or encode it, e.g. with to_json"
_HEADERS = "array<struct<key: string, value: binary>>"


def check(schema: StructType, options: SinkOptions) -> None:
    """Raises: `OptionError` for a column that is missing, there twice, or of a wrong type."""
    for name in (*_of_records(options), *(["topic"] if options.topic is None else [])):
        if schema.names.count(name) > 1:
            raise OptionError(
                f"the rows have several columns {name!r}: drop or rename all but one of them"
            )
    if options.topic is None:
        if "topic" not in schema.names:
            raise OptionError(
                "topic option required when no 'topic' attribute is present. Use the topic option "
                "for setting a topic."
            )
        _typed(schema, "topic", StringType, "a STRING")
    if "value" not in schema.names:
        raise OptionError(
            f"Required attribute 'value' not found. The rows have {', '.join(schema.names)}; name "
            "one of them, or to_json of several, 'value'"
        )
    _typed(schema, "key", (StringType, BinaryType), _BYTES)
    _typed(schema, "value", (StringType, BinaryType), _BYTES)
    _typed(schema, "partition", IntegerType, "an INT")
    if options.include_headers and "headers" in schema.names:
        _check_headers(schema["headers"].dataType)
    if options.include_timestamp:
        if "timestamp" not in schema.names:
            raise OptionError(
                "option 'includeTimestamp' is true, but there is no column 'timestamp': add it, "
                "or leave the option out, for the time of writing"
            )
        _typed(schema, "timestamp", TimestampType, "a TIMESTAMP")


def by_topic(rows: pa.RecordBatch, options: SinkOptions) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each topic, in their order, with the columns that records have.

    Raises: ValueError for a row without a topic.
    """
    records = rows.select([name for name in _of_records(options) if name in rows.schema.names])
    if options.topic is not None:
        yield options.topic, records
        return
    topics = rows.column("topic")
    if topics.null_count:
        raise ValueError(
            "null topic present in the data. Use the topic option for setting a topic, or fill "
            "the column, e.g. with coalesce"
        )
    found = pc.unique(topics).to_pylist()
    for topic in found:
        yield topic, records if len(found) == 1 else records.filter(pc.equal(topics, topic))


def _of_records(options: SinkOptions) -> list[str]:
    """The columns that records are made of."""
    names = ["key", "value", "partition"]
    names += ["headers"] if options.include_headers else []
    names += ["timestamp"] if options.include_timestamp else []
    return names


def _typed(
    schema: StructType, name: str, wanted: type[DataType] | tuple[type[DataType], ...], told: str
) -> None:
    if name in schema.names and not isinstance(schema[name].dataType, wanted):
        raise _unsupported(name, schema[name].dataType, told)


def _check_headers(found: DataType) -> None:
    element = found.elementType if isinstance(found, ArrayType) else None
    fields = element.fields if isinstance(element, StructType) else []
    types = {field.name: type(field.dataType) for field in fields}
    if types != {"key": StringType, "value": BinaryType}:
        raise _unsupported("headers", found, f"{_HEADERS}; cast values to binary")


def _unsupported(name: str, found: DataType, wanted: str) -> OptionError:
    return OptionError(
        f"{name} attribute unsupported type {found.simpleString()}. {name} must be {wanted}"
    )
