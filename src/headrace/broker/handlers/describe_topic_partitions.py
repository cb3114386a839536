"""DescribeTopicPartitions (75): topics page by page, so that no answer grows without bound.

Topics are shown in the order of their names; where a page ends, the cursor says what comes next.
Source: KIP-966, DescribeTopicPartitionsRequestHandler (4.3).
"""

from typing import Any

from headrace.broker.authorized_operations import TOPIC_OPERATIONS
from headrace.broker.errors import Code
from headrace.broker.handlers.metadata import partition_shown
from headrace.broker.request import Answer, Request
from headrace.broker.services import Services
from headrace.core.catalog import is_topic_name

_PARTITIONS_MAX = 2000  # max.request.partition.size.limit


async def handle(request: Request, services: Services) -> Answer:
    message = request.message()
    names = {topic.name for topic in message.topics} or set(services.catalog.topics)
    first, start = "", 0
    if message.cursor is not None:
        first, start = message.cursor.topic_name, max(message.cursor.partition_index, 0)
    room = max(1, min(message.response_partition_limit, _PARTITIONS_MAX))
    shown: list[dict[str, Any]] = []
    names_left = sorted(name for name in names if name >= first)
    async for name in services.budgets.portions(names_left):
        if room == 0:
            return _page(shown, name, 0)
        topic = _topic(name, start if name == first else 0, room, services)
        shown.append(topic)
        room -= len(topic["partitions"])
        known = services.catalog.topics.get(name)
        if known is not None and topic["partitions"]:
            following = topic["partitions"][-1]["partition_index"] + 1
            if following < known.partitions:
                return _page(shown, name, following)
    return {"topics": shown, "next_cursor": None}


def _page(shown: list[dict[str, Any]], name: str, index: int) -> Answer:
    return {"topics": shown, "next_cursor": {"topic_name": name, "partition_index": index}}


def _topic(name: str, start: int, room: int, services: Services) -> dict[str, Any]:
    topic = services.catalog.topics.get(name)
    if topic is None:
        is_name = is_topic_name(name)
        code = Code.UNKNOWN_TOPIC_OR_PARTITION if is_name else Code.INVALID_TOPIC
        return {"error_code": code, "name": name, "topic_id": None, "partitions": []}
    node_id = services.config.node_id
    replicas = {"eligible_leader_replicas": (), "last_known_elr": ()}
    return {
        "error_code": Code.NONE,
        "name": name,
        "topic_id": topic.id,
        "is_internal": topic.internal,
        "partitions": [
            partition_shown(index, node_id) | replicas
            for index in range(start, min(topic.partitions, start + room))
        ],
        "topic_authorized_operations": TOPIC_OPERATIONS,
    }
