"""Metadata (3): brokers and topics, by name or id; may create a topic that is asked for.

A topic that is created on the way is in the same answer; Kafka answers UNKNOWN_TOPIC first and has
the client come again.
"""

from typing import Any
from uuid import UUID

from headrace.broker.errors import Code, error_code
from headrace.broker.partitions import LEADER_EPOCH
from headrace.broker.request import Answer, Api, Request
from headrace.broker.services import Services
from headrace.core.catalog import CreateTopic, Topic
from headrace.core.errors import Refused

APIS = (Api(3, "Metadata", range(14)),)


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
    return {
        "brokers": [{"node_id": node_id, "host": services.host, "port": services.port}],
        "cluster_id": services.cluster_id,
        "controller_id": node_id,
        "topics": topics,
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
    if topic is None and may_create:
        answer = await services.topics.create(
            CreateTopic(asked.name, services.topics.new_id(), services.config.num_partitions, {})
        )
        topic = services.catalog.topics.get(asked.name)
        if topic is None and isinstance(answer, Refused):
            return _missing(asked.name, None, error_code(answer))
    if topic is None:
        return _missing(asked.name, None, Code.UNKNOWN_TOPIC_OR_PARTITION)
    return _found(topic, services.config.node_id)


def _found(topic: Topic, node_id: int) -> dict[str, Any]:
    partitions = [
        {
            "error_code": Code.NONE,
            "partition_index": index,
            "leader_id": node_id,
            "leader_epoch": LEADER_EPOCH,
            "replica_nodes": [node_id],
            "isr_nodes": [node_id],
        }
        for index in range(topic.partitions)
    ]
    return {
        "error_code": Code.NONE,
        "name": topic.name,
        "topic_id": topic.id,
        "is_internal": topic.internal,
        "partitions": partitions,
    }


def _missing(name: str | None, topic_id: UUID | None, code: Code) -> dict[str, Any]:
    return {"error_code": code, "name": name, "topic_id": topic_id, "partitions": []}
