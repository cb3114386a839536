"""Records of groups of the new protocol as kafka-dump-log prints them with --offsets-decoder.

They are JSON of Kafka's ConsumerGroup*Value.json; what has its default stands in no tagged field.
"""

from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from headrace.cli.log_records import as_uuid
from headrace.core.consumer_events import (
    ConsumerEvent,
    ConsumerGroupStored,
    ConsumerMemberStored,
    HoldingStored,
    RegexResolved,
    TargetSet,
    TargetStored,
)
from headrace.core.consumer_words import Classic, ConsumerMember, Partitions
from headrace.core.group_words import TIME_UNKNOWN
from headrace.core.types import TopicPartition, by_topic
from headrace.log.consumer_group_records import REGEX, names
from headrace.wire.primitives import Reader


def about(kind: int, key: Reader) -> dict[str, Any]:
    """What a key names; it is behind the kind. Raises: Malformed."""
    group, other = names(kind, key)
    if not other:
        return {"groupId": group}
    return {"groupId": group, "regularExpression" if kind == REGEX else "memberId": other}


def data(event: ConsumerEvent) -> dict[str, Any]:
    """The fields of a value."""
    match event:
        case ConsumerGroupStored(_, epoch, metadata_hash):
            return {"epoch": epoch} | ({"metadataHash": metadata_hash} if metadata_hash else {})
        case ConsumerMemberStored(_, member):
            return _member(member)
        case TargetStored(_, epoch, at):
            told = {"assignmentTimestamp": at} if at != TIME_UNKNOWN else {}
            return {"assignmentEpoch": epoch, **told}
        case TargetSet(_, _, partitions):
            return {"topicPartitions": _by_topic(partitions)}
        case HoldingStored(_, _, holding):
            return {
                "memberEpoch": holding.epoch,
                "previousMemberEpoch": holding.previous_epoch,
                "state": holding.progress.value,
                "assignedPartitions": _by_topic(holding.assigned, holding.epochs),
                "partitionsPendingRevocation": _by_topic(holding.revoking, holding.epochs),
            }
        case RegexResolved(_, _, resolved):
            return {
                "topics": sorted(resolved.topics),
                "version": resolved.version,
                "timestamp": resolved.at,
            }
        case _:
            raise AssertionError(f"{event} has no value")


def partition_metadata(source: Reader) -> dict[str, Any]:
    """A value of type 4, behind the version: Kafka before 4.1 wrote it. Raises: Malformed."""

    def partition(source: Reader) -> dict[str, Any]:
        index = source.int32()
        racks = source.compact_array(Reader.compact_string)
        source.tags()
        return {"partition": index, "racks": racks}

    def topic(source: Reader) -> dict[str, Any]:
        told = {
            "topicId": as_uuid(source.uuid()),
            "topicName": source.compact_string(),
            "numPartitions": source.int32(),
            "partitionMetadata": source.compact_array(partition),
        }
        source.tags()
        return told

    return {"topics": source.compact_array(topic)}


def _member(member: ConsumerMember) -> dict[str, Any]:
    return {
        "instanceId": member.instance,
        "rackId": member.rack,
        "clientId": member.client_id,
        "clientHost": member.client_host,
        "subscribedTopicNames": sorted(member.topics),
        "subscribedTopicRegex": member.regex,
        "rebalanceTimeoutMs": member.rebalance_ms,
        "serverAssignor": member.assignor,
        "classicMemberMetadata": _classic(member.classic),
    }


def _classic(classic: Classic | None) -> dict[str, Any] | None:
    if classic is None:
        return None
    return {
        "sessionTimeoutMs": classic.session_ms,
        "supportedProtocols": [
            {"name": one.name, "metadata": b64encode(one.metadata).decode()}
            for one in classic.candidates
        ],
    }


def _by_topic(
    partitions: Partitions, epochs: Mapping[TopicPartition, int] | None = None
) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = []
    for topic_id, indexes in by_topic(partitions).items():
        told.append({"topicId": as_uuid(topic_id), "partitions": indexes})
        found = [TopicPartition(topic_id, index) for index in indexes]
        if epochs is not None and all(one in epochs for one in found):
            told[-1]["assignmentEpochs"] = [epochs[one] for one in found]
    return told
