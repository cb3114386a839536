"""What ConsumerGroupDescribe (KIP-848) and ShareGroupDescribe (KIP-932) tell in the same fields."""

from collections.abc import Iterable
from typing import Any

from headrace.broker.authorized_operations import NOT_ASKED
from headrace.core.catalog import Catalog
from headrace.core.types import TopicPartition, by_topic

# Of a group that cannot be described, beside the error.
NOTHING_KNOWN: dict[str, Any] = {
    "group_state": "",
    "group_epoch": 0,
    "assignment_epoch": 0,
    "assignor_name": "",
    "members": (),
    "authorized_operations": NOT_ASKED,
}


def assignment(partitions: Iterable[TopicPartition], catalog: Catalog) -> dict[str, Any]:
    """The partitions by topic, without those of topics that are gone: they have no name to tell."""
    topics = catalog.topics_by_id
    return {
        "topic_partitions": [
            {"topic_id": topic_id, "topic_name": topics[topic_id].name, "partitions": found}
            for topic_id, found in by_topic(partitions).items()
            if topic_id in topics
        ]
    }
