"""Record-by-record acknowledgement from `foreachBatch`: what shall not be accepted is staged.

The sink sees accepted rows only. The others travel beside it: they are collected as a metric of
the very execution that feeds the sink (`observe`), so the functions that judged the records run
once. When the sink is done, they are staged at the broker under the number of the batch, and take
effect when Spark has committed the batch. Records that come out of the query with no disposition,
and those that the query filtered away, are accepted.

An execution that looks at a part only (`isEmpty`, `head`, `limit`) does not count; if the sink ran
no other, the rows are judged once more without it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as f

from headrace.client.connection import Cluster, addresses
from headrace.spark.executions import Executions
from headrace.spark.queue.handle import stage
from headrace.wire.leases import Disposition, Verdict

REASON_LENGTH_MAX = 500
BOOKKEEPING = ("topic", "partition", "offset", "delivery_count", "lease", "disposition", "reason")
_NEEDED = ("topic", "partition", "offset", "lease", "disposition", "reason")
_VERDICTS = {
    "accept": Verdict.ACCEPT,
    "release": Verdict.RELEASE,
    "reject": Verdict.REJECT,
}


class Sink(Protocol):
    """A function for `foreachBatch`."""

    def __call__(self, rows: DataFrame, batch_id: int, /) -> object: ...


def acknowledge(
    write: Sink,
    *,
    bootstrap_servers: str,
    group: str,
    keep_bookkeeping: bool = False,
    persist: bool = False,
) -> Callable[[DataFrame, int], None]:
    """A function for `foreachBatch` that gives accepted rows to `write` and stages the others.

    The rows need the columns topic, partition, offset and lease (option `includeDelivery`), and
    `disposition` (null or "accept", "release", "reject") and `reason`; `each_record` and `isolate`
    make them. `write(rows, batch_id)` gets the accepted rows, without these columns unless
    `keep_bookkeeping`. When it raises, nothing is staged and the batch fails.

    `persist` keeps the judged rows while the sink works: for a sink with several actions, or one
    that leaves SQL (`rows.rdd`, `foreachPartition`), whose rows would otherwise be judged again.

    The rows set aside are collected in the driver's memory, about 300 bytes each;
    `maxOffsetsPerTrigger` bounds them.

    Raises, in the query: ValueError for missing columns or an unknown disposition; as `Lease`.
    """

    addresses(bootstrap_servers)

    def on_batch(rows: DataFrame, batch_id: int) -> None:
        missing = [name for name in _NEEDED if name not in rows.columns]
        if missing:
            raise ValueError(
                f"acknowledge needs the columns {', '.join(missing)}: set option includeDelivery "
                "to true and keep them, e.g. with each_record"
            )
        judge = _by_persisting if persist else _by_observing
        found = judge(rows, lambda good: write(_stripped(good, keep_bookkeeping), batch_id))
        if any(one.lease not in found.leases for one in found.set_aside):
            raise ValueError(
                "rows set aside have no lease: keep the column as the source gave it (an outer "
                "join after each_record loses it; join in the sink)"
            )
        with Cluster(bootstrap_servers, client_id=f"headrace-spark-{group}") as cluster:
            for lease in found.leases:
                mine = [one for one in found.set_aside if one.lease == lease]
                stage(cluster, group, lease, coalesced(mine))

    return on_batch


@dataclass(frozen=True, slots=True)
class Judged:
    """The leases that a batch holds, and its rows that are not to be accepted."""

    leases: list[str]
    set_aside: list[Row]


def coalesced(rows: Iterable[Row]) -> list[Disposition]:
    """Neighbouring offsets with equal verdict and reason become one disposition; each offset counts
    once, the strictest verdict first (reject, then release).

    Raises: ValueError for a disposition that is none.
    """
    judged: dict[tuple[str, int, int], tuple[Verdict, str | None]] = {}
    for row in rows:
        verdict = _VERDICTS.get(row.disposition)
        if verdict is None:
            raise ValueError(
                f"disposition {row.disposition!r} of {row.topic}-{row.partition} offset "
                f"{row.offset} is not 'accept', 'release' or 'reject'"
            )
        place = (row.topic, row.partition, row.offset)
        reason = row.reason[:REASON_LENGTH_MAX] if row.reason else None
        if place not in judged or judged[place][0] < verdict:
            judged[place] = (verdict, reason)
    found: list[Disposition] = []
    for (topic, partition, offset), (verdict, reason) in sorted(judged.items(), key=_place):
        previous = found[-1] if found else None
        first = offset
        if previous and previous == Disposition(
            topic, partition, previous.first, offset - 1, verdict, reason
        ):
            first = found.pop().first
        found.append(Disposition(topic, partition, first, offset, verdict, reason))
    return found


def _place(judged: tuple[tuple[str, int, int], object]) -> tuple[str, int, int]:
    return judged[0]


def _accepted() -> Column:
    return f.col("disposition").isNull() | (f.col("disposition") == "accept")


def _stripped(good: DataFrame, keep_bookkeeping: bool) -> DataFrame:
    return good if keep_bookkeeping else good.drop(*BOOKKEEPING)


def _by_persisting(rows: DataFrame, write: Callable[[DataFrame], object]) -> Judged:
    kept = rows.persist()
    try:
        write(kept.filter(_accepted()))
        held = kept.select("lease").where("lease is not null").distinct()
        leases = [row.lease for row in held.collect()]
        return Judged(leases, kept.filter(~_accepted()).select(*_NEEDED).collect())
    finally:
        kept.unpersist()


def _by_observing(rows: DataFrame, write: Callable[[DataFrame], object]) -> Judged:
    with Executions(rows.sparkSession) as executions:
        aside = f.when(~_accepted(), f.struct(*_NEEDED))
        observed = rows.observe(
            executions.name,
            f.count(f.lit(1)).alias("rows"),
            f.collect_set("lease").alias("leases"),
            f.collect_list(aside).alias("set_aside"),
        )
        write(observed.filter(_accepted()))
        found = executions.fullest()
        if found is None:
            observed.write.format("noop").mode("overwrite").save()
            found = executions.fullest()
    if found is None:
        raise RuntimeError("Spark reported no metrics of the batch: the batch fails and runs again")
    return Judged(found["leases"], found["set_aside"])
