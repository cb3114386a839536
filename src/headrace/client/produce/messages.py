"""Produce and InitProducerId by hand: record bytes go from the encoder to the socket as they are.

Version 8 of Produce is the oldest that tells why records were refused, and every broker from Kafka
2.4 to 4.x offers it.
Source: ProduceRequest.json, ProduceResponse.json, InitProducerIdRequest.json; KIP-98, KIP-467.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.client.connection import Cluster
from headrace.client.errors import check
from headrace.client.offsets import TopicPartition, by_topic
from headrace.wire.primitives import Malformed, Reader, Writer

PRODUCE, VERSION = 0, 8
_INIT_PRODUCER_ID, _INIT_VERSION = 22, 1
_ALL_IN_SYNC = -1
_NO_TRANSACTION_MS = 60_000  # of no use without a transaction, but it must be positive

# What a request takes beside record batches, and beside the name of a topic.
REQUEST_BYTES, PARTITION_BYTES = 128, 16


@dataclass(frozen=True, slots=True)
class Identity:
    """An idempotent producer, as a broker named it."""

    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one batch. `code` is Kafka's."""

    code: int
    message: str | None


def new_identity(cluster: Cluster) -> Identity:
    """A producer that nobody has been before. Raises: as `Cluster`."""
    what = "asking for a producer id"

    def attempt() -> Identity:
        request = {"transactional_id": None, "transaction_timeout": _NO_TRANSACTION_MS}
        answer = cluster.ask(_INIT_PRODUCER_ID, _INIT_VERSION, request)
        check(answer.error_code, what)
        return Identity(int(answer.producer_id), int(answer.producer_epoch))

    return cluster.retrying(what, attempt)


def request(batches: Mapping[TopicPartition, bytes], timeout_ms: int) -> bytearray:
    """The body of a Produce request that waits for all replicas in sync."""
    out = Writer()
    out.nullable_string(None)
    out.int16(_ALL_IN_SYNC)
    out.int32(timeout_ms)
    topics = by_topic(batches)
    out.int32(len(topics))
    for topic, partitions in topics.items():
        out.nullable_string(topic)
        out.int32(len(partitions))
        for partition in partitions:
            out.int32(partition)
            out.int32(len(batches[topic, partition]))
            out.raw(batches[topic, partition])
    return out.data


def answer(source: Reader, asked: Iterable[TopicPartition]) -> dict[TopicPartition, Outcome]:
    """What became of each batch. Raises: `Malformed` when one is not told of."""
    found: dict[TopicPartition, Outcome] = {}
    for _ in range(source.int32()):
        topic = source.nullable_string() or ""
        for _ in range(source.int32()):
            partition, code = source.int32(), source.int16()
            source.take(3 * 8)  # base offset, time of the append, start of the log
            reasons = [_reason(source) for _ in range(source.int32())]
            told = source.nullable_string()
            found[topic, partition] = Outcome(code, "; ".join(filter(None, [told, *reasons])))
    if missing := [one for one in asked if one not in found]:
        topic, partition = missing[0]
        raise Malformed(f"an answer to Produce without {topic}-{partition}")
    return found


def _reason(source: Reader) -> str | None:
    source.int32()  # which record of the batch
    return source.nullable_string()
