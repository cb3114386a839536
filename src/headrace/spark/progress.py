"""How far streaming queries are, read from the progress that Spark reports of them anyway.

A source tells in each trigger where it is (`endOffset`) and what there is to read (`latestOffset`
of its progress). A log tells where logs end; a queue tells `Standing`: what its group has left
beside what the query holds, and what became of records. Nothing is asked of a broker here.
Source: StreamingQueryProgress; DataSourceStreamReader.reportLatestOffset (PySpark 4.2).
"""

import atexit
import contextlib
import json
import logging
import weakref
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)
from pyspark.sql.streaming.query import StreamingQuery

from headrace.client.offsets import TopicPartition

LOG = logging.getLogger(__name__)

_VERSION = 1
_LAST_EVENT_MS = 2_000  # after which a program ends all the same
Nested = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class Counts:
    """What became of a query's records since its driver started.

    Of a queue, `acquired` are those of batches that were begun, `refused` those whose lock had
    ended when they were settled: others may have them. They settle one trigger after their batch.
    Of a log, `resets` are the positions outside the log that went on at an end of it.
    """

    acquired: int = 0
    accepted: int = 0
    released: int = 0
    rejected: int = 0
    refused: int = 0
    resets: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        """The sums."""
        mine, its = asdict(self), asdict(other)
        return Counts(**{name: mine[name] + its[name] for name in mine})


@dataclass(frozen=True, slots=True)
class Standing:
    """What a queue tells in each trigger: records left by partition, and what became of records."""

    lag: Mapping[TopicPartition, int]
    counts: Counts

    def to_json(self) -> dict[str, Any]:
        """Plain data, for `reportLatestOffset`."""
        lag: dict[str, dict[str, int]] = {}
        for (topic, partition), left in sorted(self.lag.items()):
            lag.setdefault(topic, {})[str(partition)] = left
        return {"v": _VERSION, "lag": lag, "counts": asdict(self.counts)}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """The way back."""
        return cls(_flat(found["lag"]), Counts(**found["counts"]))


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a query is, all its headrace sources together.

    `lag` counts the records behind the end of the batch, by partition: what the next ones have to
    read. `counts` of a log has `resets` alone, as it settles no records.
    """

    query: str
    batch: int
    rows: int
    lag: Mapping[TopicPartition, int] = field(default_factory=dict)
    counts: Counts = Counts()

    @property
    def total_lag(self) -> int:
        """Records left in all partitions."""
        return sum(self.lag.values())

    @property
    def max_lag(self) -> int:
        """Records left in the partition that has most of them."""
        return max(self.lag.values(), default=0)

    @property
    def mean_lag(self) -> float:
        """Records left in a partition, on average."""
        return self.total_lag / len(self.lag) if self.lag else 0.0

    def __str__(self) -> str:
        """One line for a log."""
        told = f"{self.query} batch {self.batch}: {self.rows} rows, lag {self.total_lag}"
        if self.lag:
            told += f" in {len(self.lag)} partitions, {self.max_lag} in the worst"
        counted = [f"{count} {name}" for name, count in asdict(self.counts).items() if count]
        return f"{told}; {', '.join(counted)}" if counted else told


def progress(of: StreamingQuery | StreamingQueryProgress) -> Progress | None:
    """How far a query was in its last trigger, or in the one that the progress is of.

    None where no source of the query is headrace's, and before the first trigger has ended.
    """
    found = of if isinstance(of, StreamingQueryProgress) else of.lastProgress
    if found is None:
        return None
    told = [one for one in map(_of_source, found.sources) if one is not None]
    if not told:
        return None
    lag: dict[TopicPartition, int] = {}
    for one in told:
        for place, left in one.lag.items():
            lag[place] = lag.get(place, 0) + left
    return Progress(
        found.name or str(found.id),
        found.batchId,
        found.numInputRows,
        lag,
        sum((one.counts for one in told), Counts()),
    )


class ProgressLog(StreamingQueryListener):
    """A line in the driver's log with each batch of a query that reads from headrace.

    spark.streams.addListener(ProgressLog())

    It removes itself when the program ends, as Spark would report each later event with a trace.
    """

    def __init__(self) -> None:
        """Register the removal."""
        super().__init__()
        atexit.register(_remove, weakref.ref(self))

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing: the first batch tells."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Tell it."""
        found = progress(event.progress)
        if found is not None:
            LOG.info("%s", found)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing: no batch was run."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Nothing: Spark tells why."""


def _remove(listener: "weakref.ref[ProgressLog]") -> None:
    """Remove a listener from its session, if both are still there."""
    known, context = listener(), SparkContext._active_spark_context
    # PySpark notes the session of a listener in Spark Connect alone.
    session = getattr(known, "spark", None) or SparkSession._instantiatedSession
    if known is not None and context is not None and session is not None:
        with contextlib.suppress(Exception):  # whatever is broken at the end is of no interest
            session.streams.removeListener(known)
            # An event may be on its way to the listener, which takes many calls into this process.
            jvm: Any = context._jsc
            jvm.sc().listenerBus().waitUntilEmpty(_LAST_EVENT_MS)


def _of_source(source: Any) -> Standing | None:
    """What one source told; None when it is not ours, or has told nothing."""
    latest, end = _plain(source.latestOffset), _plain(source.endOffset)
    if latest is None or latest.get("v") != _VERSION:
        return None
    if "lag" in latest:
        return Standing.from_json(latest)
    if end is None or "offsets" not in latest or "offsets" not in end:
        return None
    ends, reached = _flat(latest["offsets"]), _flat(end["offsets"])
    return Standing(
        {place: max(0, last - reached.get(place, last)) for place, last in ends.items()},
        Counts(resets=latest.get("resets", 0)),
    )


def _plain(told: Any) -> dict[str, Any] | None:
    """An offset of a progress; None when it is no JSON object."""
    if isinstance(told, str):
        try:
            told = json.loads(told)
        except ValueError:
            return None
    return told if isinstance(told, dict) else None


def _flat(found: Nested) -> dict[TopicPartition, int]:
    return {
        (topic, int(partition)): number
        for topic, partitions in found.items()
        for partition, number in partitions.items()
    }
