"""What a Spark task does: read the ranges of a task and give them the columns of the source."""

from collections.abc import Iterator, Sequence
from itertools import groupby

import pyarrow as pa
from pyspark.sql.types import StructType

from headrace.client.arrow import read_ranges
from headrace.spark.columns import Columns
from headrace.spark.options import ReadOptions, connect
from headrace.wire.leases import Range


def read_task(
    options: ReadOptions, schema: StructType, ranges: Sequence[Range], lease: str
) -> Iterator[pa.RecordBatch]:
    """The records of `ranges`, in their order. Raises: as `client.arrow.read_ranges`."""
    columns = Columns(options, schema, lease)
    with connect(options) as cluster:
        for (topic, partition), group in groupby(ranges, lambda held: (held.topic, held.partition)):
            held = list(group)
            bounds = [(one.first, one.last) for one in held]
            for batch in read_ranges(
                cluster, topic, partition, bounds, headers="headers" in schema.names
            ):
                yield columns.rows(batch, held)
