"""The flow as a log, and readers of it without Spark around them."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql.types import StructType

from headrace.spark.log.options import LogOptions
from headrace.spark.log.stream import LogStream


@pytest.fixture
def log(flow: Any) -> Any:
    """The flow, without its share group."""
    flow.log_options = {
        "kafka.bootstrap.servers": flow.servers,
        "subscribe": "t",
        "startingOffsets": "earliest",
    }
    return flow


@pytest.fixture
def reading(log: Any) -> Iterator[Callable[..., LogStream]]:
    """Readers without Spark around them, as Spark would call them."""
    made: list[LogStream] = []

    def make(**options: str) -> LogStream:
        given = {name.replace("_", "."): text for name, text in options.items()}
        parsed = LogOptions.parse({**log.log_options, "logLevel": "INFO", **given})
        made.append(LogStream(parsed.for_stream(), StructType()))
        return made[-1]

    yield make
    for one in made:
        one.stop()
