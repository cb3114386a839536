"""Metadata (3): brokers and topics, by name or id; may create a topic that is asked for.

A topic that is created on the way is in the same answer; Kafka answers UNKNOWN_TOPIC first and has
the client come again. Topics that the broker makes for itself are not created on the way.
"""

from typing import Any
from uuid import UUID

from headrace.broker.authorized_operations import (
    CLUSTER_OPERATIONS,
    NOT_ASKED,
    TOPIC_OPERATIONS,
)
from headrace.broker.errors import Code, error_code
from headrace.broker.partitions import LEADER_EPOCH
from headrace.broker.request import Answer, Request
from headrace.broker.services import Services
from headrace.broker.storage_faults import STORAGE_ERRORS
from headrace.core.catalog import INTERNAL_TOPICS, CreateTopic, Topic, is_topic_name
from headrace.core.errors import Refused


async def handle(request: Request, services: Services) -> Answer:
    message = request.message()
    node_id = services.config.node_id
    wants_all = message.topics is None or (request.version == 0 and not message.topics)
    if wants_all:
        topics = [_found(topic, node_id) for topic in services.catalog.topics.values()]
    else:
        may_create = services.config.auto_create_topics and (
            request.version < 4 or message.allow_auto_topic_creation
        )
        topics = [await _topic(asked, services, may_create) for asked in message.topics]
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


async def _topic(asked: Any, services: Services, may_create: bool) -> dict[str, Any]:
    topic_id = getattr(asked, "topic_id", None)
    if topic_id is not None:
        topic = services.catalog.topics_by_id.get(topic_id)
        if topic is None:
            return _missing(None, topic_id, Code.UNKNOWN_TOPIC_ID)
        return _found(topic, services.config.node_id)
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
    return _found(topic, services.config.node_id)


def _found(topic: Topic, node_id: int) -> dict[str, Any]:
    return {
        "error_code": Code.NONE,
        "name": topic.name,
        "topic_id": topic.id,
        "is_internal": topic.internal,
        "partitions": [partition_shown(index, node_id) for index in range(topic.partitions)],
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
