"""A log as a Structured Streaming source.

The driver-side reader looks where logs end and says how far a batch reads; executors read by
ordinary Fetch. Spark's offset log has the positions, and with them where batches begin that a
replay could not tell otherwise (`log/position.py`).

Spark calls `latestOffset(start)` only after the batch that ended at `start` was committed, but
`commit(end)` only when yet another batch is planned. So `latestOffset` commits `start` to the
group: an idle query, and one with Trigger.AvailableNow, is seen at its very end.
Source: PySpark 4.3 `python_streaming_source_runner`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from headrace.spark.log.driver import Driver
from headrace.spark.log.options import LogOptions
from headrace.spark.log.position import Position
from headrace.spark.read import read_task
from headrace.wire.leases import Range


@dataclass
class Part(InputPartition):
    """The offsets that one Spark task reads."""

    offsets: tuple[Range, ...]


class LogStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans on the driver, reads on executors; what is pickled to those is options and schema.

    Args:
        slots: as `Driver`.
    """

    def __init__(self, options: LogOptions, schema: StructType, slots: int | None = None) -> None:
        self._options = options
        self._schema = schema
        self._slots = slots
        self._driver: Driver | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_driver": None}

    def initialOffset(self) -> dict[str, Any]:
        return self._opened().initial().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._opened().until_now()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        fewest = self._options.min_offsets_per_trigger
        found = self._opened().next_position(
            Position.from_json(start),
            fewest=None if isinstance(limit, ReadAllAvailable) else fewest,
            most=limit.max_rows if isinstance(limit, ReadMaxRows) else None,
        )
        return start if found is None else found.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._opened().latest()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        before, after = Position.from_json(start), Position.from_json(end)
        return [Part(one) for one in self._opened().ranges(before, after)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)
        return read_task(self._options, self._schema, partition.offsets, "")

    def commit(self, end: dict[str, Any]) -> None:
        """`latestOffset` did it."""

    def stop(self) -> None:
        if self._driver is not None:
            self._driver.close()
            self._driver = None

    def _opened(self) -> Driver:
        if self._driver is None:
            self._driver = Driver(self._options, self._slots)
        return self._driver
