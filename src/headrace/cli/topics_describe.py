"""What `headrace topics --describe` prints: Kafka's lines with tabs, or a JSON object a topic."""

import json
from base64 import urlsafe_b64encode
from enum import Enum
from typing import Any
from uuid import UUID

from headrace.client.configs import ConfigSource, ResourceType, describe_configs
from headrace.client.connection import Cluster
from headrace.client.topics import PartitionDescription, TopicDescription, broker_ids

_MIN_ISR = "min.insync.replicas"


class Shown(Enum):
    """A filter of --describe, by the name of its option."""

    OVERRIDES = "topics_with_overrides"
    UNAVAILABLE = "unavailable_partitions"
    UNDER_REPLICATED = "under_replicated_partitions"
    UNDER_MIN_ISR = "under_min_isr_partitions"
    AT_MIN_ISR = "at_min_isr_partitions"


def describe(
    cluster: Cluster, found: dict[str, TopicDescription], *, only: Shown | None, as_json: bool
) -> None:
    """Print topics, or with `only` those topics or partitions."""
    alive = set(broker_ids(cluster)) if only is Shown.UNAVAILABLE else set()
    for topic in found.values():
        configs, min_isr = _configs(cluster, topic.name)
        if only is Shown.OVERRIDES and not configs:
            continue
        shown = [one for one in topic.partitions if _is_shown(one, only, min_isr, alive)]
        if as_json:
            if shown:
                print(json.dumps(as_object(topic, configs, shown)))
            continue
        if only in {None, Shown.OVERRIDES}:
            print(_head(topic, configs))
        for one in shown if only is not Shown.OVERRIDES else ():
            print(_line(topic.name, one))


def as_object(
    topic: TopicDescription,
    configs: dict[str, str] | None = None,
    partitions: list[PartitionDescription] | None = None,
) -> dict[str, Any]:
    """A topic as a JSON object; settings and partitions when they are given."""
    about: dict[str, Any] = {
        "topic": topic.name,
        "topic_id": spelled_id(topic.id),
        "internal": topic.internal,
        "partition_count": len(topic.partitions),
        "replication_factor": _replication(topic),
    }
    if configs is not None:
        about["configs"] = configs
    if partitions is not None:
        about["partitions"] = [
            {
                "partition": one.partition,
                "leader": one.leader,
                "replicas": list(one.replicas),
                "isr": list(one.in_sync),
            }
            for one in partitions
        ]
    return about


def spelled_id(topic_id: UUID | None) -> str:
    """A topic id as Kafka spells it: base64 without padding."""
    found = topic_id.bytes if topic_id is not None else bytes(16)
    return urlsafe_b64encode(found).decode().rstrip("=")


def _configs(cluster: Cluster, topic: str) -> tuple[dict[str, str], int]:
    """The settings that are no defaults, and min.insync.replicas."""
    entries = describe_configs(cluster, ResourceType.TOPIC, topic)
    own = {
        one.name: one.value or "" for one in entries if one.source != ConfigSource.DEFAULT_CONFIG
    }
    min_isr = next((one.value for one in entries if one.name == _MIN_ISR), None)
    return own, int(min_isr or 1)


def _is_shown(one: PartitionDescription, only: Shown | None, min_isr: int, alive: set[int]) -> bool:
    match only:
        case Shown.UNAVAILABLE:
            return one.leader is None or one.leader not in alive
        case Shown.UNDER_REPLICATED:
            return len(one.in_sync) < len(one.replicas)
        case Shown.UNDER_MIN_ISR:
            return len(one.in_sync) < min_isr
        case Shown.AT_MIN_ISR:
            return len(one.in_sync) == min_isr
        case _:
            return True


def _head(topic: TopicDescription, configs: dict[str, str]) -> str:
    spelled = ",".join(f"{name}={value}" for name, value in configs.items())
    return (
        f"Topic: {topic.name}\tTopicId: {spelled_id(topic.id)}"
        f"\tPartitionCount: {len(topic.partitions)}"
        f"\tReplicationFactor: {_replication(topic)}\tConfigs: {spelled}"
    )


def _line(topic: str, one: PartitionDescription) -> str:
    leader = "none" if one.leader is None else one.leader
    return (
        f"\tTopic: {topic}\tPartition: {one.partition}\tLeader: {leader}"
        f"\tReplicas: {_ids(one.replicas)}\tIsr: {_ids(one.in_sync)}\tElr: N/A\tLastKnownElr: N/A"
    )


def _ids(brokers: tuple[int, ...]) -> str:
    return ",".join(map(str, brokers))


def _replication(topic: TopicDescription) -> int:
    return len(topic.partitions[0].replicas) if topic.partitions else 0
