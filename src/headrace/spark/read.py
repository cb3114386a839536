"""What a Spark task does: read the ranges of a task and give them the columns of the source."""

import logging
from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headrace.client.arrow import read_ranges
from headrace.client.errors import DataLost
from headrace.spark.log_lines import show
from headrace.spark.options import ReadOptions, connect
from headrace.wire.leases import Range

LOG = logging.getLogger(__name__)

_KAFKA = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "timestampType int"
)
_HEADERS = "headers array<struct<key: string, value: binary>>"
_DELIVERY = "delivery_count int, lease string"


def schema_of(options: ReadOptions, *, delivery: bool) -> str:
    """The schema of Spark's Kafka source, with headers and delivery columns when asked for."""
    wanted = [_KAFKA]
    if options.include_headers:
        wanted.append(_HEADERS)
    if delivery:
        wanted.append(_DELIVERY)
    return ", ".join(wanted)


def read_task(
    options: ReadOptions, schema: StructType, ranges: Sequence[Range], lease: str
) -> Iterator[pa.RecordBatch]:
    """The records of `ranges`, in their order. Raises: as `client.arrow.read_ranges`."""
    show(options.log_level)
    target = to_arrow_schema(schema, timezone="UTC")
    with connect(options) as cluster:
        for (topic, partition), group in groupby(ranges, lambda held: (held.topic, held.partition)):
            held = list(group)
            bounds = [(one.first, one.last) for one in held]
            for batch in read_ranges(
                cluster,
                topic,
                partition,
                bounds,
                headers=options.include_headers,
                read_committed=options.read_committed,
                lost=None if options.fail_on_data_loss else _skip,
            ):
                yield _as_rows(batch, target, held, lease)


def _skip(lost: DataLost) -> None:
    LOG.warning("records were lost, and failOnDataLoss is false: the batch goes on: %s", lost)


def _as_rows(
    batch: pa.RecordBatch, target: pa.Schema, held: list[Range], lease: str
) -> pa.RecordBatch:
    columns = {
        "key": batch.column("key"),
        "value": batch.column("value"),
        "offset": batch.column("offset"),
        "timestamp": batch.column("timestamp"),
        "timestampType": batch.column("timestamp_type"),
        "headers": batch.column("headers"),
        "topic": pa.repeat(held[0].topic, batch.num_rows),
        "partition": pa.repeat(pa.scalar(held[0].partition, pa.int32()), batch.num_rows),
    }
    if "lease" in target.names:
        firsts = np.array([one.first for one in held], dtype=np.int64)
        counts = np.array([one.delivery_count for one in held], dtype=np.int32)
        nearest = np.searchsorted(firsts, batch.column("offset").to_numpy(), side="right") - 1
        columns["delivery_count"] = pa.array(counts[nearest])
        columns["lease"] = pa.repeat(lease, batch.num_rows)
    return pa.RecordBatch.from_arrays([columns[name] for name in target.names], schema=target)
