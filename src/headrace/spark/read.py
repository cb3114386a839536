"""What a Spark task does: read the ranges of a task and give them the columns of the source."""

import gc
import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

import pyarrow as pa
from pyspark.sql.types import StructType

from headrace.client.arrow import read_ranges
from headrace.client.connection import Cluster
from headrace.client.errors import DataLost
from headrace.spark.columns import Columns
from headrace.spark.log_lines import show
from headrace.spark.options import ReadOptions, connect
from headrace.wire.leases import Disposition, Range

LOG = logging.getLogger(__name__)

_TASKS = itertools.count()  # of this process
_TASKS_THAT_LOAD = 2
Stage = Callable[[Cluster, Sequence[Disposition]], None]


def read_task(
    options: ReadOptions,
    schema: StructType,
    ranges: Sequence[Range],
    lease: str,
    stage: Stage | None = None,
) -> Iterator[pa.RecordBatch]:
    """The records of `ranges`, in their order. Raises: as `client.arrow.read_ranges`.

    Rejected values are no rows: `stage` is told of all so far before the rows behind them come.
    """
    show(options.log_level)
    _freeze()
    columns = Columns(options, schema, lease)
    with connect(options) as cluster:
        for (topic, partition), group in groupby(ranges, lambda held: (held.topic, held.partition)):
            held = list(group)
            for batch in read_ranges(
                cluster,
                topic,
                partition,
                [(one.first, one.last) for one in held],
                columns.wanted,
                read_committed=options.read_committed,
                lost=None if options.fail_on_data_loss else _skip,
            ):
                before = len(columns.rejected)
                rows = columns.rows(batch, held)
                if stage is not None and len(columns.rejected) > before:
                    stage(cluster, columns.rejected)
                if rows.num_rows:
                    yield rows


def _freeze() -> None:
    """In a worker's first two tasks: leave what is loaded out of the collection that ends a task.

    Walking it takes 40 ms. The first task itself loads much; what it left behind is collected when
    the second one begins. Source: `pyspark.daemon`.
    """
    if next(_TASKS) < _TASKS_THAT_LOAD:
        gc.freeze()


def _skip(lost: DataLost) -> None:
    LOG.warning("records were lost, and failOnDataLoss is false: the batch goes on: %s", lost)
