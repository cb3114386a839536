"""Metadata (3): brokers and topics, by name or id; may create a topic that is asked for.

A topic that is created on the way is in the same answer; Kafka answers UNKNOWN_TOPIC first and has
the client come again. Topics that the broker makes for itself are not created on the way.
"""

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from headrace.broker.authorized_operations import (
    CLUSTER_OPERATIONS,
    NOT_ASKED,
    TOPIC_OPERATIONS,
)
from headrace.broker.budgets import PORTION
from headrace.broker.errors import Code, error_code
from headrace.broker.partitions import LEADER_EPOCH
from headrace.broker.request import Answer, Answering, Request
from headrace.broker.services import Services
from headrace.broker.storage_faults import STORAGE_ERRORS
from headrace.core.catalog import INTERNAL_TOPICS, CreateTopic, Topic, is_topic_name
from headrace.core.errors import Refused

_FEW_TOPICS = 20


def handle(request: Request, services: Services) -> Answering:
    message = request.message()
    topics = _few(message.topics, services)
    if topics is None:
        return _in_portions(message, request, services)
    return _answer(message, [_shown(one, services.config.node_id) for one in topics], services)


def _few(requested: Sequence[Any] | None, services: Services) -> list[Topic] | None:
    """Return the topics that a request names, once each, if all exist and they are few."""
    if not requested or len(requested) > _FEW_TOPICS:
        return None
    catalog, size = services.catalog, 0
    topics: dict[str, Topic] = {}
    for item in requested:
        topic_id = getattr(item, "topic_id", None)
        topic = (
            catalog.topics.get(item.name)
            if topic_id is None
            else catalog.topics_by_id.get(topic_id)
        )
        if topic is None:
            return None
        topics[topic.name] = topic
        size += topic.partitions
    return list(topics.values()) if size <= PORTION else None


async def _in_portions(message: Any, request: Request, services: Services) -> Answer:
    node_id = services.config.node_id
    wants_all = message.topics is None or (request.version == 0 and not message.topics)
    if wants_all:
        asked: list[Any] = list(services.catalog.topics.values())
    else:
        # Once each: a short request could ask for a large topic very often.
        named = {(getattr(one, "topic_id", None), one.name): one for one in message.topics}
        may_create = services.config.auto_create_topics and (
            request.version < 4 or message.allow_auto_topic_creation
        )
        asked = [
            await _topic(one, services, may_create)
            async for one in services.budgets.portions(named.values())
        ]
    size = sum(one.partitions for one in asked if isinstance(one, Topic))
    if len(asked) + size <= PORTION:
        topics = [_shown(one, node_id) for one in asked]
        return _answer(message, topics, services)
    # Built in portions, and encoded before the next large answer begins, so that only one is kept
    # in its costly form.
    async with services.budgets.one_large():
        topics = []
        for one in asked:
            shown = _shown(one, node_id, 0)
            topics.append(shown)
            if isinstance(one, Topic):
                indexes = services.budgets.portions(range(one.partitions))
                shown["partitions"] = [partition_shown(n, node_id) async for n in indexes]
            if len(topics) % PORTION == 0:
                await asyncio.sleep(0)
        return await services.budgets.encoded(request, _answer(message, topics, services))


def _answer(message: Any, topics: list[dict[str, Any]], services: Services) -> dict[str, Any]:
    node_id = services.config.node_id
    if getattr(message, "include_topic_authorized_operations", False):
        for topic in topics:
            topic["topic_authorized_operations"] = TOPIC_OPERATIONS
    asks_cluster = getattr(message, "include_cluster_authorized_operations", False)
    return {
        "brokers": [{"node_id": node_id, "host": services.host, "port": services.port}],
        "cluster_id": services.cluster_id,
        "controller_id": node_id,
        "topics": topics,
        "cluster_authorized_operations": CLUSTER_OPERATIONS if asks_cluster else NOT_ASKED,
        "error_code": Code.NONE,
    }


async def _topic(asked: Any, services: Services, may_create: bool) -> Topic | dict[str, Any]:
    """The topic that is asked for, created if it may be, or the answer that it is missing."""
    topic_id = getattr(asked, "topic_id", None)
    if topic_id is not None:
        topic = services.catalog.topics_by_id.get(topic_id)
        if topic is None:
            return _missing(None, topic_id, Code.UNKNOWN_TOPIC_ID)
        return topic
    if asked.name is None:
        return _missing(None, None, Code.UNKNOWN_TOPIC_ID)
    topic = services.catalog.topics.get(asked.name)
    if topic is None and may_create and asked.name not in INTERNAL_TOPICS:
        number = services.config.num_partitions
        command = CreateTopic(asked.name, services.topics.new_id(), number, {})
        try:
            answer = await services.topics.create(command)
        except STORAGE_ERRORS:  # logged by the journal or the partition
            return _missing(asked.name, None, Code.STORAGE_ERROR)
        topic = services.catalog.topics.get(asked.name)
        if topic is None and isinstance(answer, Refused):
            return _missing(asked.name, None, error_code(answer))
    if topic is None:
        is_name = is_topic_name(asked.name)
        code = Code.UNKNOWN_TOPIC_OR_PARTITION if is_name else Code.INVALID_TOPIC
        return _missing(asked.name, None, code)
    return topic


def _shown(
    topic: Topic | dict[str, Any], node_id: int, partitions: int | None = None
) -> dict[str, Any]:
    """A topic as Metadata shows it, with all partitions or the first `partitions`."""
    if not isinstance(topic, Topic):
        return topic
    count = topic.partitions if partitions is None else partitions
    return {
        "error_code": Code.NONE,
        "name": topic.name,
        "topic_id": topic.id,
        "is_internal": topic.internal,
        "partitions": [partition_shown(index, node_id) for index in range(count)],
    }


def partition_shown(index: int, node_id: int) -> dict[str, Any]:
    """A partition in the words of Metadata and DescribeTopicPartitions."""
    return {
        "error_code": Code.NONE,
        "partition_index": index,
        "leader_id": node_id,
        "leader_epoch": LEADER_EPOCH,
        "replica_nodes": (node_id,),
        "isr_nodes": (node_id,),
    }


def _missing(name: str | None, topic_id: UUID | None, code: Code) -> dict[str, Any]:
    return {"error_code": code, "name": name, "topic_id": topic_id, "partitions": []}
