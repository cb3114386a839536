"""The options of the data source, parsed once into plain data.

Names are those of Spark's Kafka source where it has one. Spark folds the names of options to lower
case before a Python data source sees them, so they are compared without regard to case, and a name
that is not known is refused: a misspelt limit must not silently take its default.
Source: Spark "Structured Streaming + Kafka Integration Guide".
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from headrace.client.connection import Cluster, Patience, addresses


class OptionError(ValueError):
    """An option that is unknown, missing or has a value that cannot be used."""


@dataclass(frozen=True, slots=True)
class Options:
    """What `readStream.format("headrace")` was given; see `docs/spark.md` for the table."""

    bootstrap_servers: str
    topics: tuple[str, ...]
    group: str
    start: str = "latest"
    max_offsets_per_trigger: int = 100_000
    min_partitions: int | None = None
    max_records_per_partition: int = 50_000
    include_headers: bool = False
    include_delivery: bool = False
    retry_timeout_ms: int = 120_000
    request_timeout_ms: int = 30_000
    acquire_wait_ms: int = 200
    log_level: str = "WARNING"

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """The options in `given`, in any case. Raises: `OptionError`, one line with the remedy."""
        values: dict[str, Any] = {}
        for name, text in given.items():
            if name.lower() == "path":
                raise OptionError("load() takes no path here; name topics with option 'subscribe'")
            known = _KNOWN.get(name.lower())
            if known is None:
                raise OptionError(_unknown(name))
            field, spelling, read = known
            try:
                value = read(text.strip())
            except ValueError as error:
                raise OptionError(f"option {spelling!r} is {text!r}: {error}") from None
            if values.setdefault(field, value) != value:
                raise OptionError(f"option {spelling!r} is given twice, with different values")
        for field, spelling in _REQUIRED.items():
            if not values.get(field):
                raise OptionError(f"option {spelling!r} is required, e.g. {_EXAMPLES[field]!r}")
        return cls(**values)


def connect(options: Options) -> Cluster:
    """A cluster with the timeouts of the options; one for each thread."""
    return Cluster(
        options.bootstrap_servers,
        client_id=f"headrace-spark-{options.group}",
        patience=Patience(total_s=options.retry_timeout_ms / 1000),
        request_timeout_s=options.request_timeout_ms / 1000,
    )


def _servers(text: str) -> str:
    addresses(text)
    return text


def _topics(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, (part.strip() for part in text.split(",")))))


def _start(text: str) -> str:
    if text.lower() not in {"earliest", "latest"}:
        raise ValueError("give 'earliest' or 'latest'; a share group keeps its own positions")
    return text.lower()


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError("give a whole number of at least 1")
    return int(text)


def _flag(text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise ValueError("give 'true' or 'false'")
    return text.lower() == "true"


def _level(text: str) -> str:
    if text.upper() not in {"DEBUG", "INFO", "WARNING", "ERROR"}:
        raise ValueError("give 'DEBUG', 'INFO', 'WARNING' or 'ERROR'")
    return text.upper()


_Read = Callable[[str], Any]
_SPELLINGS: tuple[tuple[str, str, _Read], ...] = (
    ("bootstrap_servers", "kafka.bootstrap.servers", _servers),
    ("topics", "subscribe", _topics),
    ("group", "share.group.id", str),
    ("group", "kafka.share.group.id", str),
    ("start", "startingOffsets", _start),
    ("max_offsets_per_trigger", "maxOffsetsPerTrigger", _count),
    ("min_partitions", "minPartitions", _count),
    ("max_records_per_partition", "maxRecordsPerPartition", _count),
    ("include_headers", "includeHeaders", _flag),
    ("include_delivery", "includeDelivery", _flag),
    ("retry_timeout_ms", "retryTimeoutMs", _count),
    ("request_timeout_ms", "requestTimeoutMs", _count),
    ("acquire_wait_ms", "acquireWaitMs", _count),
    ("log_level", "logLevel", _level),
)
_KNOWN = {spelling.lower(): (field, spelling, read) for field, spelling, read in _SPELLINGS}
_EXAMPLES = {
    "bootstrap_servers": "127.0.0.1:9092",
    "topics": "orders,payments",
    "group": "billing",
}
_REQUIRED = {
    "bootstrap_servers": "kafka.bootstrap.servers",
    "topics": "subscribe",
    "group": "share.group.id",
}
_OF_KAFKA_SOURCE = {
    "subscribepattern": "name the topics with 'subscribe'",
    "assign": "a share group assigns ranges itself; name the topics with 'subscribe'",
    "kafka.group.id": "a share group is named by 'share.group.id'",
    "endingoffsets": "it is for batch queries; this source streams",
    "failondataloss": "removed records always fail the batch, with their offsets",
}
assert {field for field, _, _ in _SPELLINGS} == {field.name for field in fields(Options)}


def _unknown(name: str) -> str:
    if (remedy := _OF_KAFKA_SOURCE.get(name.lower())) is not None:
        return f"option {name!r} is not for format 'headrace': {remedy}"
    near = difflib.get_close_matches(name.lower(), _KNOWN, n=1)
    if near:
        return f"unknown option {name!r}; did you mean {_KNOWN[near[0]][1]!r}?"
    if name.lower().startswith("kafka."):
        return f"option {name!r} is not for format 'headrace': its client is not librdkafka's"
    spellings = ", ".join(spelling for _, spelling, _ in _SPELLINGS)
    return f"unknown option {name!r}; there are {spellings}"
