"""A share group as a Structured Streaming source.

The driver-side reader acquires offset ranges, which become the streaming offset; executors read
those ranges by ordinary Fetch; the ranges are accepted when their batch is done, but for what
`spark/acknowledge.py` staged meanwhile. The holder of the locks is the session named in the
checkpoint, so a restarted query gets the same ranges under the same numbers.

Spark calls `latestOffset(start)` only after the commit log of the batch that ended at `start` was
written, but `commit(end)` only when yet another batch is planned. An idle stream would so never
settle its last batch; therefore `latestOffset` itself commits `start` first.
Source: PySpark 4.3 `python_streaming_source_runner`; `wire/leases.py`.
"""

import logging
import math
import platform
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from headrace.client.connection import Cluster
from headrace.spark.options import connect
from headrace.spark.queue.driver import ends_now
from headrace.spark.queue.handle import stage
from headrace.spark.queue.holder import Holder, holder
from headrace.spark.queue.options import QueueOptions
from headrace.spark.queue.plan import Batch, split
from headrace.spark.queue.remaining import check_locks
from headrace.spark.read import Stage, read_task
from headrace.wire.leases import Disposition, Range

LOG = logging.getLogger(__name__)

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Instant:
    """A time on the clock of one machine: `at_s` seconds since it was booted, asleep or not.

    Clocks of different machines are never compared: a clock that is ahead or behind would stretch
    or hide the time between.
    """

    boot: str
    at_s: float

    @classmethod
    def now(cls) -> Self | None:
        """None where the system has no such clock: it is Linux that has."""
        try:
            boot = f"{platform.node()} {_BOOT_ID.read_text()}"  # copies of a machine share the id
            return cls(boot, time.clock_gettime(time.CLOCK_BOOTTIME))
        except (OSError, AttributeError):
            return None

    def is_within(self, seconds: float) -> bool:
        """Whether less than `seconds` have passed since then, for certain."""
        now = self.now()
        return now is not None and now.boot == self.boot and 0 <= now.at_s - self.at_s < seconds


@dataclass
class Task(InputPartition):
    """The ranges that one Spark task reads, and the handle of the lease they belong to.

    No lock can have ended from `planned_at` until `sure_s` seconds later.
    """

    ranges: tuple[Range, ...]
    lease: str
    planned_at: Instant | None
    sure_s: float


class ShareReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans on the driver, reads on executors; what is pickled to those is options and schema.

    `open_holder` says who holds the records, given where the checkpoint stands.
    """

    def __init__(
        self,
        options: QueueOptions,
        schema: StructType,
        open_holder: Callable[[QueueOptions, Batch], Holder] = holder,
    ) -> None:
        self._options = options
        self._schema = schema
        self._session = uuid.uuid4().hex
        self._open_holder = open_holder
        self._driver: Holder | None = None
        self._until: dict[tuple[str, int], int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_driver": None}

    def initialOffset(self) -> dict[str, Any]:
        return Batch(self._session, 0).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_offsets_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        self._until = ends_now(self._options)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        before = Batch.from_json(start)
        driver = self._opened(before)
        driver.follows(before.seq)
        driver.knows(before.seq)
        driver.commit(before.seq)
        if self._until is not None and driver.has_reached(self._until):
            return start
        asked = self._options.max_offsets_per_trigger
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else asked
        seq = before.seq + 1
        while not (ranges := driver.acquire(seq, most)) and driver.is_spent(seq):
            seq += 1
        if not ranges:
            return start
        return Batch(before.session, seq, ranges, driver.topic_ids(ranges)).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._driver is None else self._driver.standing().to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        if start == end:
            return []
        batch = Batch.from_json(end)
        driver = self._opened(batch)
        driver.knows(batch.seq)
        ranges = driver.reading(batch).ranges
        lease = driver.handle(batch.seq)
        now, sure_s = Instant.now(), driver.sure_s
        return [Task(one, lease, now, sure_s) for one in split(ranges, self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Task)
        self._check_locks(partition)
        yield from read_task(
            self._options, self._schema, partition.ranges, partition.lease, self._stage(partition)
        )
        self._check_locks(partition)

    def _check_locks(self, task: Task) -> None:
        """Check the locks of a task, unless it was planned so lately that none can have ended.

        That is known on the machine of the driver only; executors elsewhere check always.
        Raises: `LocksLost`, which fails the batch before its sink commits; as `Lease.renew`.
        """
        if math.isinf(task.sure_s):
            return
        if task.planned_at is not None and task.planned_at.is_within(task.sure_s):
            return
        with connect(self._options) as cluster:
            check_locks(cluster, self._options.group, task.lease, task.ranges)

    def _stage(self, task: Task) -> Stage:
        """What tells the broker of values that this task rejects, under a name of its own."""
        first = task.ranges[0]
        part = f"values of {first.topic}-{first.partition} from {first.first}"

        def tell(cluster: Cluster, rejected: Sequence[Disposition]) -> None:
            stage(cluster, self._options.group, task.lease, rejected, part=part)
            LOG.info("%s: %d rejected, the last as %s", part, len(rejected), rejected[-1].reason)

        return tell

    def commit(self, end: dict[str, Any]) -> None:
        batch = Batch.from_json(end)
        self._opened(batch).commit(batch.seq)

    def stop(self) -> None:
        if self._driver is not None:
            self._driver.close()

    def _opened(self, batch: Batch) -> Holder:
        """Who holds records for the session of `batch`; a restarted query finds it there."""
        if self._driver is None or self._driver.session != batch.session:
            self.stop()
            self._session = batch.session
            self._driver = self._open_holder(self._options, batch)
        return self._driver
