"""What a program asks a cluster about itself: topics, settings, ends of logs.

Topics and settings have modules of their own; what programs need most of them is found here too.
Source: ListOffsets.
"""

from collections.abc import Collection
from enum import IntEnum

from headrace.client.configs import set_group_configs
from headrace.client.connection import Cluster
from headrace.client.errors import check_log
from headrace.client.topics import create_topic

__all__ = ["LogEnd", "create_topic", "log_end", "log_ends", "set_group_configs"]

_LIST_OFFSETS, _LIST_OFFSETS_VERSION = 2, 1


class LogEnd(IntEnum):
    """Which end of a log, in the numbers of ListOffsets."""

    LATEST = -1
    EARLIEST = -2


def log_ends(cluster: Cluster, topic: str, which: LogEnd = LogEnd.LATEST) -> dict[int, int]:
    """Of each partition the first kept offset, or the one after the last. Raises: as `Cluster`."""
    return {
        partition: log_end(cluster, topic, partition, which)
        for partition in cluster.partitions(topic)
    }


def log_end(
    cluster: Cluster,
    topic: str,
    partition: int,
    which: LogEnd = LogEnd.LATEST,
    *,
    final: Collection[int] = (),
) -> int:
    """As `log_ends`, of one partition. `final` as in `Cluster.retrying`."""
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
        check_log(found.error_code, what)
        return int(found.offset)

    return cluster.retrying(what, attempt, final=final)
