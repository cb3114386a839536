"""What a program asks a cluster about itself: topics, settings of groups, ends of logs.

Source: CreateTopics (KIP-4), IncrementalAlterConfigs (KIP-339, groups by KIP-848), ListOffsets.
"""

from collections.abc import Mapping
from enum import IntEnum

from headrace.client.connection import Cluster
from headrace.client.errors import BrokerError, check

_LIST_OFFSETS, _LIST_OFFSETS_VERSION = 2, 1
_CREATE_TOPICS, _CREATE_TOPICS_VERSION = 19, 5
_ALTER_CONFIGS, _ALTER_CONFIGS_VERSION = 44, 1
_TOPIC_ALREADY_EXISTS = 36
_RESOURCE_GROUP = 32
_SET = 0
_TIMEOUT_MS = 30_000


class LogEnd(IntEnum):
    """Which end of a log, in the numbers of ListOffsets."""

    LATEST = -1
    EARLIEST = -2


def create_topic(
    cluster: Cluster,
    topic: str,
    partitions: int,
    *,
    configs: Mapping[str, str] | None = None,
    exist_ok: bool = False,
) -> None:
    """Create a topic, with the broker's default replication.

    Raises: `BrokerError` 36 when it exists, unless `exist_ok`; otherwise as `Cluster`.
    """
    what = f"creating topic {topic!r}"
    wanted = {
        "name": topic,
        "num_partitions": partitions,
        "replication_factor": -1,
        "assignments": [],
        "configs": [{"name": name, "value": value} for name, value in (configs or {}).items()],
    }
    request = {"topics": [wanted], "timeout": _TIMEOUT_MS, "validate_only": False}

    def attempt() -> None:
        answer = cluster.ask(_CREATE_TOPICS, _CREATE_TOPICS_VERSION, request)
        check(answer.topics[0].error_code, what, answer.topics[0].error_message)

    try:
        cluster.retrying(what, attempt)
    except BrokerError as error:
        if not (exist_ok and error.code == _TOPIC_ALREADY_EXISTS):
            raise


def set_group_configs(cluster: Cluster, group: str, configs: Mapping[str, str]) -> None:
    """Set settings of a group by Kafka's names, e.g. `share.record.lock.duration.ms`.

    Raises: `BrokerError` 40 for a name or value that the broker refuses; otherwise as `Cluster`.
    """
    what = f"setting {', '.join(configs)} of group {group!r}"
    changes = [
        {"name": name, "config_operation": _SET, "value": value} for name, value in configs.items()
    ]
    resource = {"resource_type": _RESOURCE_GROUP, "resource_name": group, "configs": changes}

    def attempt() -> None:
        answer = cluster.ask(
            _ALTER_CONFIGS,
            _ALTER_CONFIGS_VERSION,
            {"resources": [resource], "validate_only": False},
        )
        check(answer.responses[0].error_code, what, answer.responses[0].error_message)

    cluster.retrying(what, attempt)


def log_ends(cluster: Cluster, topic: str, which: LogEnd = LogEnd.LATEST) -> dict[int, int]:
    """Of each partition the first kept offset, or the one after the last. Raises: as `Cluster`."""
    return {
        partition: log_end(cluster, topic, partition, which)
        for partition in cluster.partitions(topic)
    }


def log_end(cluster: Cluster, topic: str, partition: int, which: LogEnd = LogEnd.LATEST) -> int:
    """As `log_ends`, of one partition."""
    what = f"asking for an end of {topic}-{partition}"
    asked = {"partition_index": partition, "timestamp": int(which)}
    request = {"replica_id": -1, "topics": [{"name": topic, "partitions": [asked]}]}

    def attempt() -> int:
        answer = cluster.ask(
            _LIST_OFFSETS,
            _LIST_OFFSETS_VERSION,
            request,
            address=cluster.leader(topic, partition),
        )
        found = answer.topics[0].partitions[0]
        check(found.error_code, what)
        return int(found.offset)

    return cluster.retrying(what, attempt)
