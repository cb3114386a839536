"""The options of the sink; docs/spark.md has the table."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from headrace.client.produce.producer import REQUEST_BYTES_MAX, Limits
from headrace.spark.options import (
    CONNECT_SPELLINGS,
    ConnectOptions,
    Spelling,
    count,
    count32,
    flag,
    parsed,
)
from headrace.wire.compression import Codec


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions(ConnectOptions):
    """What `write.format("headrace")` or `writeStream` was given."""

    topic: str | None = None
    codec: Codec = Codec.NONE
    request_bytes_max: int = REQUEST_BYTES_MAX
    batch_bytes_max: int = REQUEST_BYTES_MAX
    include_headers: bool = True
    include_timestamp: bool = False
    acks: int = -1
    idempotent: bool = True

    @property
    def who(self) -> str:
        return "sink"

    @property
    def limits(self) -> Limits:
        return Limits(self.request_bytes_max, self.batch_bytes_max)

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """The options in `given`, in any case. Raises: `OptionError`, one line with the remedy."""
        own = {name: text for name, text in given.items() if name.lower() not in OF_SPARK}
        return cls(**parsed(own, _SPELLINGS, _ELSEWHERE))


def _topic(text: str) -> str:
    if not text or "," in text:
        raise ValueError("name one topic; rows for several name theirs in a column 'topic'")
    return text


def _codec(text: str) -> Codec:
    try:
        return Codec[text.upper()]
    except KeyError:
        raise ValueError(f"give one of {', '.join(one.name.lower() for one in Codec)}") from None


def _acks(text: str) -> int:
    if text.lower() not in {"all", "-1"}:
        raise ValueError("the sink is idempotent, which takes 'all'; leave the option out")
    return -1


def _idempotence(text: str) -> bool:
    if not flag(text):
        raise ValueError("the sink is always idempotent: leave the option out, it costs nothing")
    return True


# What Spark puts among the options of a sink, and reads itself.
OF_SPARK = frozenset({"checkpointlocation", "queryname"})
_SPELLINGS = (
    *CONNECT_SPELLINGS,
    Spelling("topic", "topic", _topic),
    Spelling("includeHeaders", "include_headers", flag),
    Spelling("includeTimestamp", "include_timestamp", flag),
    Spelling("kafka.compression.type", "codec", _codec),
    Spelling("kafka.max.request.size", "request_bytes_max", count32),
    Spelling("kafka.batch.size", "batch_bytes_max", count32),
    Spelling("kafka.delivery.timeout.ms", "retry_timeout_ms", count),
    Spelling("kafka.request.timeout.ms", "request_timeout_ms", count32),
    Spelling("kafka.acks", "acks", _acks),
    Spelling("kafka.enable.idempotence", "idempotent", _idempotence),
)
_AT_ONCE = "a task writes what it has at once; leave it out"
_ELSEWHERE = {
    "path": "save() and start() take no path; name the topic with option 'topic'",
    "subscribe": "it is for reading; name the topic with option 'topic'",
    "subscribepattern": "it is for reading; name the topic with option 'topic'",
    "share.group.id": "it is for reading; a sink is in no group",
    "kafka.group.id": "it is for reading; a sink is in no group",
    "kafka.linger.ms": _AT_ONCE,
    "kafka.buffer.memory": _AT_ONCE,
    "kafka.max.in.flight.requests.per.connection": "there is always one; leave it out",
    "kafka.retries": "retries end with 'kafka.delivery.timeout.ms'; set that",
    "kafka.transactional.id": "the sink has no transactions: it writes at least once",
    "kafka.partitioner.class": "name partitions in a column 'partition'; otherwise keys decide",
    "kafka.key.serializer": "keys are written as they are; encode them in the column 'key'",
    "kafka.value.serializer": "values are written as they are; encode them in the column 'value'",
}
