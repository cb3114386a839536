"""Dispositions of records: the columns that carry them, and their way to the broker.

A row has `disposition` (null or "accept", "release", "reject"), `reason` and, where the pipeline
makes it, `delay_ms`, beside the columns that tell which record it is.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from headrace.client.connection import Cluster, Patience, addresses
from headrace.spark.queue.handle import Handle, stage
from headrace.wire.leases import Disposition, Verdict

REASON_LENGTH_MAX = 500
DELAY = "delay_ms"
OF_DELIVERY = ("delivery_count", "lease", "disposition", "reason", DELAY)
BOOKKEEPING = ("topic", "partition", "offset", *OF_DELIVERY)
RETRY_TIMEOUT_MS = 120_000
_NEEDED = ("topic", "partition", "offset", "lease", "disposition", "reason")
_VERDICTS = {
    "accept": Verdict.ACCEPT,
    "release": Verdict.RELEASE,
    "reject": Verdict.REJECT,
}


class SetAside(NamedTuple):
    """A row that is not accepted. A delay counts where it releases, from the commit on."""

    topic: str
    partition: int
    offset: int
    lease: str | None
    disposition: str
    reason: str | None
    delay_ms: int | None = None


def check_columns(rows: DataFrame, who: str) -> None:
    """Raises: ValueError when `rows` lack what tells of a record and its disposition."""
    missing = [name for name in _NEEDED if name not in rows.columns]
    if missing:
        raise ValueError(
            f"{who} needs the columns {', '.join(missing)}: set option includeDelivery "
            "to true and keep them, e.g. with each_record"
        )


def set_aside(rows: DataFrame) -> Column:
    """The fields of a `SetAside`; null for a row that is accepted."""
    delay = f.col(DELAY) if DELAY in rows.columns else f.lit(None)
    return f.when(~is_accepted(), f.struct(*_NEEDED, delay.cast("bigint").alias(DELAY)))


def is_accepted() -> Column:
    """Whether a row is: it says so, or nothing."""
    return f.col("disposition").isNull() | (f.col("disposition") == "accept")


def stripped(rows: DataFrame, keep_bookkeeping: bool, names: Sequence[str]) -> DataFrame:
    """The rows without the columns `names`, unless they are to be kept."""
    return rows if keep_bookkeeping else rows.drop(*names)


@dataclass(frozen=True)
class Stager:
    """Sends dispositions to where those of a lease are kept. Raises: as `Lease`."""

    bootstrap_servers: str
    group: str
    retry_timeout_ms: int = RETRY_TIMEOUT_MS

    def __post_init__(self) -> None:
        addresses(self.bootstrap_servers)
        if self.retry_timeout_ms < 1:
            raise ValueError("retry_timeout_ms is a number of milliseconds of at least 1")

    def cluster(self) -> Cluster:
        """The connection to stage over."""
        return Cluster(
            self.bootstrap_servers,
            client_id=f"headrace-spark-{self.group}",
            patience=Patience(total_s=self.retry_timeout_ms / 1000),
        )

    def stage(
        self, cluster: Cluster, leases: Iterable[str], rows: list[SetAside], part: str = ""
    ) -> None:
        """Replace what `part` staged of each of the leases by what `rows` say.

        Raises: ValueError for rows of no lease or of another group, or with a disposition or delay
        that is none.
        """
        held = list(leases)
        for whose in (Handle.parse(lease).group for lease in held):
            if whose not in {"", self.group}:
                raise ValueError(
                    f"the rows are of share group {whose!r}, and verdicts were to go to "
                    f"{self.group!r}: give the group that the source reads through (judge the rows "
                    "of several groups with `accepted`, each before their union)"
                )
        by_lease: dict[str | None, list[SetAside]] = {lease: [] for lease in held}
        for row in rows:
            if row.lease not in by_lease:
                raise ValueError(
                    "rows set aside have no lease: keep the column as the source gave it (an outer "
                    "join after each_record loses it; join in the sink, or behind `accepted`)"
                )
            by_lease[row.lease].append(row)
        for lease, mine in by_lease.items():
            stage(cluster, self.group, lease or "", coalesced(mine), part)


def coalesced(rows: Iterable[SetAside]) -> list[Disposition]:
    """Neighbouring offsets of which the same is said become one disposition; each offset counts
    once, the strictest verdict first (reject, then release, the longest delay first).

    Raises: ValueError for a disposition or delay that is none.
    """
    judged: dict[tuple[str, int, int], tuple[Verdict, int, str | None]] = {}
    for row in rows:
        place = (row.topic, row.partition, row.offset)
        said = _said(row)
        if place not in judged or judged[place][:2] < said[:2]:
            judged[place] = said
    return list(_joined(judged))


def _said(row: SetAside) -> tuple[Verdict, int, str | None]:
    verdict = _VERDICTS.get(row.disposition)
    where = f"of {row.topic}-{row.partition} offset {row.offset}"
    if verdict is None:
        raise ValueError(
            f"disposition {row.disposition!r} {where} is not 'accept', 'release' or 'reject'"
        )
    delay_ms = row.delay_ms or 0 if verdict is Verdict.RELEASE else 0
    if delay_ms < 0:
        raise ValueError(f"delay_ms {delay_ms} {where} is negative; give milliseconds to wait")
    return verdict, delay_ms, row.reason[:REASON_LENGTH_MAX] if row.reason else None


def _joined(
    judged: dict[tuple[str, int, int], tuple[Verdict, int, str | None]],
) -> Iterator[Disposition]:
    run: Disposition | None = None
    for place in sorted(judged):
        topic, partition, offset = place
        verdict, delay_ms, reason = judged[place]
        one = Disposition(topic, partition, offset, offset, verdict, reason, delay_ms)
        if run is not None and run == Disposition(
            topic, partition, run.first, offset - 1, verdict, reason, delay_ms
        ):
            run = Disposition(topic, partition, run.first, offset, verdict, reason, delay_ms)
            continue
        if run is not None:
            yield run
        run = one
    if run is not None:
        yield run
