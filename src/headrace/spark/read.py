"""What a Spark task does: read the ranges of a task and give them the columns of the source."""

import atexit
import gc
import itertools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby

import pyarrow as pa
from pyspark.sql.types import StructType

from headrace.client.arrow import read_ranges
from headrace.client.connection import Cluster
from headrace.client.errors import DataLost, TopicLost
from headrace.spark.columns import Columns
from headrace.spark.log_lines import show
from headrace.spark.options import ConnectOptions, ReadOptions, connect
from headrace.wire.leases import Disposition, Range

LOG = logging.getLogger(__name__)

_TASKS = itertools.count()  # of this process
_TASKS_THAT_LOAD = 2
Stage = Callable[[Cluster, Sequence[Disposition]], None]
_IDLE_S_MAX, _KEPT_MAX = 60.0, 4
_kept: dict[tuple[str, str, int, int], tuple[Cluster, float]] = {}


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
    with _connected(options) as cluster:
        for (topic, partition), group in groupby(ranges, lambda held: (held.topic, held.partition)):
            held = list(group)
            for batch in read_ranges(
                cluster,
                topic,
                partition,
                [(one.first, one.last) for one in held],
                columns.wanted,
                read_committed=options.read_committed,
                lost=partial(_skip, options),
            ):
                before = len(columns.rejected)
                rows = columns.rows(batch, held)
                if stage is not None and len(columns.rejected) > before:
                    stage(cluster, columns.rejected)
                if rows.num_rows:
                    yield rows


@contextmanager
def _connected(options: ConnectOptions) -> Iterator[Cluster]:
    """Connections and known leaders that a task leaves to the next one of its worker.

    A task that fails leaves none, as an answer may be under way; nor do those that were idle for
    long, as what lies between may have forgotten them.
    """
    kind = (options.bootstrap_servers, options.who, options.retry_timeout_ms,
            options.request_timeout_ms)  # fmt: skip
    cluster, since = _kept.pop(kind, (None, 0.0))
    if cluster is not None and time.monotonic() - since > _IDLE_S_MAX:
        cluster.close()
    cluster = cluster or connect(options)
    try:
        yield cluster
    except BaseException:
        cluster.close()
        raise
    _kept[kind] = cluster, time.monotonic()
    while len(_kept) > _KEPT_MAX:
        _kept.pop(next(iter(_kept)))[0].close()


@atexit.register
def _close() -> None:
    while _kept:
        _kept.popitem()[1][0].close()


def _freeze() -> None:
    """In a worker's first two tasks: leave what is loaded out of the collection that ends a task.

    Walking it takes 40 ms. The first task itself loads much; what it left behind is collected when
    the second one begins. Source: `pyspark.daemon`.
    """
    if next(_TASKS) < _TASKS_THAT_LOAD:
        gc.freeze()


def _skip(options: ReadOptions, lost: DataLost) -> None:
    of_topic = isinstance(lost, TopicLost)
    if options.fail_on_data_loss if of_topic else not options.passes_removed:
        remedy = "failOnDataLoss to false" if of_topic else options.loss_remedy
        raise type(lost)(
            f"{options.log_prefix}{lost}. Nothing was skipped: the batch fails each time it runs; "
            f"set {remedy} to go on without these records"
        )
    LOG.warning(
        "%srecords were lost, and the batch goes on, as options say: %s", options.log_prefix, lost
    )
