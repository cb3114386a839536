"""What tests of the log ask."""

from typing import Any

from pyspark.sql import DataFrame

from headrace.client.connection import Cluster
from headrace.client.group_offsets import list_group_offsets
from headrace.spark.log.stream import LogStream

GROUP = "billing"


def rows(log: Any, **options: str) -> DataFrame:
    given = {**log.log_options, **{name.replace("_", "."): text for name, text in options.items()}}
    found: DataFrame = log.spark.readStream.format("headrace").options(**given).load()
    return found


def planned(reader: LogStream, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[int, ...]]:
    """What tasks read: partition, first, last."""
    parts: list[Any] = list(reader.partitions(start, end))
    return [(held.partition, held.first, held.last) for one in parts for held in one.offsets]


def committed(cluster: Cluster, group: str = GROUP) -> dict[int, int]:
    found = list_group_offsets(cluster, group)
    return {partition: one.offset for (_, partition), one in found.items()}
