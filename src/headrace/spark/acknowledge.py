"""Record-by-record acknowledgement from `foreachBatch`: what shall not be accepted is staged.

The sink sees accepted rows only. The others travel beside it: they are collected as a metric of
the very execution that feeds the sink (`observe`), so the functions that judged the records run
once. When the sink is done, they are staged at the broker under the number of the batch, and take
effect when Spark has committed the batch. Records that come out of the query with no disposition,
and those that the query filtered away, are accepted, but for those that `each_record` or `isolate`
set aside: their tasks staged them already, and do not pass them on.

The tasks that read the records check the locks before and after. Rows that are in memory before the
sink gets them, as they are persisted, are not read again: their locks are checked right before.

An execution that looks at a part only (`isEmpty`, `head`, `limit`) is not one of all rows; if the
sink ran no other, the rows are judged once more without it. What any execution set aside stays set
aside: its sink did not see the row, whatever a later one says of it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.utils import is_remote

from headrace.spark.batch import Batch
from headrace.spark.dispositions import (
    BOOKKEEPING,
    RETRY_TIMEOUT_MS,
    SetAside,
    Stager,
    check_columns,
    is_accepted,
    set_aside,
    stripped,
)
from headrace.spark.executions import Executions
from headrace.spark.queue.remaining import check_locks


class Sink(Protocol):
    """A function of accepted rows and their batch."""

    def __call__(self, rows: DataFrame, batch: Batch, /) -> object: ...


def acknowledge(
    write: Sink,
    *,
    bootstrap_servers: str,
    group: str,
    keep_bookkeeping: bool = False,
    persist: bool = False,
    retry_timeout_ms: int = RETRY_TIMEOUT_MS,
) -> Callable[[DataFrame, int], None]:
    """A function for `foreachBatch` that gives accepted rows to `write` and stages the others.

    The rows need the columns topic, partition, offset and lease (option `includeDelivery`), and
    `disposition` (null or "accept", "release", "reject") and `reason`, and may have `delay_ms`: how
    long a released record is withheld. `each_record` and `isolate` make them. `write(rows,
    batch)` gets the accepted rows, without these columns unless `keep_bookkeeping`, and a `Batch`:
    the batch id, with Spark's query id. When it raises, the batch fails, and no disposition takes
    effect.

    `persist` reads and judges all rows, checks their locks and keeps them while the sink works: for
    a sink with several actions, or one that leaves SQL (`rows.rdd`, `foreachPartition`), whose rows
    would otherwise be judged again, and for one that collects rows to write them elsewhere. Rows
    that the caller has cached are treated in the same way.

    The rows set aside are collected in the driver's memory, about 300 bytes each;
    `maxOffsetsPerTrigger` bounds them. The broker is asked for `retry_timeout_ms` to stage them.

    Raises: RuntimeError on Spark Connect. In the query: ValueError for missing columns or an
    unknown disposition; `LocksLost` when locks ended while the batch ran, before the sink where
    rows are persisted, unless the option `failOnLostLocks` of the source is false; as `Lease`.
    """
    if is_remote():
        raise RuntimeError(
            "acknowledge needs a classic Spark session, and this one is of Spark Connect: use "
            "accepted, which works in both"
        )
    stager = Stager(bootstrap_servers, group, retry_timeout_ms)

    def on_batch(rows: DataFrame, batch_id: int) -> None:
        check_columns(rows, "acknowledge")
        batch = Batch.of(rows, batch_id)

        def give(good: DataFrame) -> None:
            write(stripped(good, keep_bookkeeping, BOOKKEEPING), batch)

        def check(leases: list[str]) -> None:
            with stager.cluster() as cluster:
                for lease in leases:
                    check_locks(cluster, group, lease)

        if persist or rows.is_cached:
            found = _by_persisting(rows, check, give)
        else:
            found = _by_observing(rows, give)
        with stager.cluster() as cluster:
            stager.stage(cluster, found.leases, found.set_aside)
            for lease in found.leases:
                check_locks(cluster, group, lease)

    return on_batch


@dataclass(frozen=True, slots=True)
class Judged:
    """The leases that a batch holds, and its rows that are not to be accepted."""

    leases: list[str]
    set_aside: list[SetAside]


def _by_persisting(
    rows: DataFrame,
    check: Callable[[list[str]], None],
    write: Callable[[DataFrame], object],
) -> Judged:
    was_cached = rows.is_cached
    kept = rows if was_cached else rows.persist()
    try:
        held = kept.select("lease").where("lease is not null").distinct()
        leases = [row.lease for row in held.collect()]
        check(leases)
        write(kept.filter(is_accepted()))
        aside = kept.filter(~is_accepted()).select(set_aside(kept).alias("aside"))
        return Judged(leases, [SetAside(*row.aside) for row in aside.collect()])
    finally:
        if not was_cached:
            kept.unpersist()


def _by_observing(rows: DataFrame, write: Callable[[DataFrame], object]) -> Judged:
    with Executions(rows.sparkSession) as executions:
        observed = rows.observe(
            executions.name,
            f.count(f.lit(1)).alias("rows"),
            f.collect_set("lease").alias("leases"),
            f.collect_list(set_aside(rows)).alias("set_aside"),
        )
        write(observed.filter(is_accepted()))
        found = executions.fullest()
        if found is None:
            observed.write.format("noop").mode("overwrite").save()
            found = executions.fullest()
        if found is None:
            raise RuntimeError(
                "Spark reported no metrics of the batch: the batch fails and runs again"
            )
        said = [SetAside(*one) for row in executions.all() for one in row["set_aside"]]
    return Judged(found["leases"], list(dict.fromkeys(said)))  # of two reasons the first counts
