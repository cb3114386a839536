"""Questions about positions that confluent-kafka's consumer answers, in bulk.

Raises: KafkaException, from every function that asks a broker.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from headrace.core.types import WallMs

EARLIEST, LATEST = -2, -1  # timestamps of ListOffsets
_PERMANENT = frozenset({
    KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED, KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.INVALID_GROUP_ID, KafkaError.TOPIC_EXCEPTION, KafkaError.UNSUPPORTED_VERSION,
    KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT, KafkaError._AUTHENTICATION,
    KafkaError._UNSUPPORTED_FEATURE, KafkaError._INVALID_ARG, KafkaError._FATAL,
})  # fmt: skip
_OF_TOPICS = frozenset({
    KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.TOPIC_EXCEPTION,
    KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
})  # fmt: skip
_OF_MEMBERS = frozenset({
    "error_cb", "group.instance.id", "logger", "on_commit", "statistics.interval.ms", "stats_cb",
    "throttle_cb",
})  # fmt: skip


def inquirer(config: Mapping[str, Any]) -> Consumer:
    """A consumer for questions about a member's group, which never joins.

    Called back by librdkafka, a member must not ask by itself: confluent-kafka keeps one call for
    each consumer, and ends the process when the next callback of the outer one finds none.
    """
    return Consumer({name: one for name, one in config.items() if name not in _OF_MEMBERS})


def is_permanent(error: KafkaException) -> bool:
    """Whether the request fails again until somebody changes rights, names or versions."""
    told: KafkaError = error.args[0]
    return told.code() in _PERMANENT or told.fatal()


def is_of_topic(error: KafkaException) -> bool:
    """Return whether a permanent error is one topic's, not the group's or the cluster's."""
    return error.args[0].code() in _OF_TOPICS


def refresh_metadata(
    consumer: Consumer, partitions: Iterable[TopicPartition], timeout_s: float
) -> None:
    """Request the metadata of the partitions' topics: librdkafka uses what it has for minutes.

    A lookup right after a partition was added fails with `_UNKNOWN_PARTITION` until then.
    """
    for topic in sorted({one.topic for one in partitions}):
        consumer.list_topics(topic, timeout=timeout_s)


def offsets_at(
    consumer: Consumer,
    partitions: Sequence[TopicPartition],
    stamps: Sequence[int],
    timeout_s: float,
) -> list[TopicPartition]:
    """The first offset at or after each timestamp (ms); -1 where no record is so late."""
    asked = [
        TopicPartition(one.topic, one.partition, stamp)
        for one, stamp in zip(partitions, stamps, strict=True)
    ]
    answer = checked(consumer.offsets_for_times(asked, timeout_s))
    found = {(one.topic, one.partition): one for one in answer}
    return [found[one.topic, one.partition] for one in partitions]


def watermark_offsets(
    consumer: Consumer, partition: TopicPartition, timeout_s: float
) -> tuple[int, int]:
    """Return the first offset of a partition's log and the offset after its last record.

    librdkafka's `get_watermark_offsets` sends both lookups at once. If both responses arrive before
    it handles the first, an error in the first is lost, and it returns the end of the log as the
    start too (librdkafka 2.16, `rd_kafka_query_wmark_offsets_resp_cb`).

    Args:
        timeout_s: limit of each of the two lookups, in seconds.

    Raises: KafkaException if either lookup fails.
    """
    [start] = offsets_at(consumer, [partition], [EARLIEST], timeout_s)
    [end] = offsets_at(consumer, [partition], [LATEST], timeout_s)
    return start.offset, end.offset


def were_added(
    consumer: Consumer, partitions: Sequence[TopicPartition], since: WallMs, timeout_s: float
) -> list[bool]:
    """As `core.reset.was_added`, without the first record's timestamp, which librdkafka hides.

    The first record is not older than `since` if it is also the first at or after `since`. That is
    asked last: a record that comes meanwhile must not make an empty partition look old.
    """
    first, later = (
        offsets_at(consumer, partitions, [WallMs(stamp)] * len(partitions), timeout_s)
        for stamp in (0, since)
    )
    return [
        one.offset < 0 or one.offset == found.offset
        for one, found in zip(first, later, strict=True)
    ]


def all_partitions(consumer: Consumer, timeout_s: float) -> list[TopicPartition]:
    """Every partition that the broker tells of."""
    return [
        TopicPartition(name, partition)
        for name, topic in consumer.list_topics(timeout=timeout_s).topics.items()
        for partition in topic.partitions
    ]


def behind(message: Message) -> TopicPartition:
    """What is to be committed of a message."""
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    found = TopicPartition(topic, partition, offset + 1)
    return with_metadata(found, None, message.leader_epoch())


def with_metadata(
    one: TopicPartition, metadata: str | None, leader_epoch: int | None = None
) -> TopicPartition:
    """The same offset with other metadata; it cannot be changed in place."""
    epoch = one.leader_epoch if leader_epoch is None else leader_epoch
    return TopicPartition(
        one.topic, one.partition, one.offset, metadata or "", -1 if epoch is None else epoch
    )


def known_partitions(partitions: list[TopicPartition]) -> list[TopicPartition]:
    """Those that still exist. Raises: KafkaException for the first partition with an error."""
    gone = KafkaError.UNKNOWN_TOPIC_OR_PART
    return checked([one for one in partitions if one.error is None or one.error.code() != gone])


def checked(partitions: list[TopicPartition]) -> list[TopicPartition]:
    """Raises: KafkaException for the first partition with an error."""
    for one in partitions:
        if one.error is not None:
            raise KafkaException(one.error)
    return partitions
