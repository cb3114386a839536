"""CreateTopics (19) and DeleteTopics (20)."""

from collections import Counter
from typing import Any

from headrace.broker.config_entries import Entries
from headrace.broker.errors import Code, Faulty, error_code
from headrace.broker.request import Answer, Request
from headrace.broker.services import Services
from headrace.broker.settings import ConfigError, require_bounded, spelled
from headrace.broker.storage_faults import STORAGE_ERRORS, storage_text
from headrace.broker.topic_settings import TopicSettings
from headrace.core.catalog import INTERNAL_TOPICS, CreateTopic, DeleteTopic
from headrace.core.errors import Refused

CREATE, DELETE = 19, 20
_DEFAULT = -1
_CREATED_PORTION = 20  # each is answered with all its settings


async def handle(request: Request, services: Services) -> Answer:
    message, portions = request.message(), services.budgets.portions
    if request.api_key == CREATE:
        names = Counter(topic.name for topic in message.topics)
        unique = {topic.name: topic for topic in message.topics}
        results = []
        async for name, topic in portions(unique.items(), _CREATED_PORTION):
            if names[name] > 1:
                results.append(_refused(name, Code.INVALID_REQUEST, "named twice in the request"))
            else:
                results.append(await _create(topic, services, message.validate_only))
        return {"topics": results}
    if request.version >= 6:
        asked = [(topic.name, topic.topic_id) for topic in message.topics]
    else:
        asked = [(name, None) for name in message.topic_names]
    times, unique_asked = Counter(asked), dict.fromkeys(asked)
    return {
        "responses": [
            await _delete(name, topic_id, request, services)
            if times[name, topic_id] == 1
            else _deleted(name, topic_id, Code.INVALID_REQUEST, "named twice in the request")
            async for name, topic_id in portions(unique_asked)
        ]
    }


async def _create(asked: Any, services: Services, validate_only: bool) -> dict[str, Any]:
    try:
        partitions = _partitions(asked, services)
        configs = _canonical(asked.configs)
        require_bounded(configs, {})
        TopicSettings.check(services.config, configs)
    except Faulty as fault:
        return _refused(asked.name, fault.code, str(fault))
    except ConfigError as error:
        return _refused(asked.name, Code.INVALID_CONFIG, str(error))
    command = CreateTopic(asked.name, services.topics.new_id(), partitions, configs, validate_only)
    try:
        answer = await services.topics.create(command)
    except STORAGE_ERRORS as error:
        return _refused(asked.name, Code.STORAGE_ERROR, storage_text(error))
    if isinstance(answer, Refused):
        return _refused(asked.name, error_code(answer), answer.message)
    return {
        "name": answer.name,
        "topic_id": None if validate_only else answer.id,
        "error_code": Code.NONE,
        "error_message": None,
        "num_partitions": answer.partitions,
        "replication_factor": 1,
        "configs": Entries(services.topics.started_with, services.catalog).of_topic(configs),
    }


def _partitions(asked: Any, services: Services) -> int:
    """How many partitions; one replica each, on this broker. Raises: Faulty."""
    if asked.name in INTERNAL_TOPICS and asked.name not in services.catalog.topics:
        raise Faulty(Code.INVALID_TOPIC, f"{asked.name} is internal: the broker makes it itself")
    if asked.assignments:
        return _assigned(asked, services.config.node_id)
    if asked.replication_factor not in {_DEFAULT, 1}:
        message = f"replication factor {asked.replication_factor}; there is one broker"
        raise Faulty(Code.INVALID_REPLICATION_FACTOR, message)
    if asked.num_partitions == _DEFAULT:
        return services.config.num_partitions
    return int(asked.num_partitions)


def _assigned(asked: Any, node_id: int) -> int:
    """The number of partitions that were assigned one by one. Raises: Faulty."""
    if asked.num_partitions != _DEFAULT or asked.replication_factor != _DEFAULT:
        raise Faulty(Code.INVALID_REQUEST, "an assignment and a number of partitions exclude")
    indexes = sorted(one.partition_index for one in asked.assignments)
    here = all(tuple(one.broker_ids) == (node_id,) for one in asked.assignments)
    if not here or indexes != list(range(len(indexes))):
        message = f"partitions must count from 0, with broker {node_id} as only replica"
        raise Faulty(Code.INVALID_REPLICA_ASSIGNMENT, message)
    return len(indexes)


def _canonical(configs: Any) -> dict[str, str]:
    """Configuration with names and values as this broker spells them. Raises: ConfigError."""
    found = {}
    for config in configs:
        _, setting = TopicSettings.find(config.name)
        if config.value is None:
            raise ConfigError(f"{setting.name}: null is no value; leave it out for the default")
        found[setting.name] = spelled(setting.parse(config.value))
    return found


def _refused(name: str, code: Code, message: str) -> dict[str, Any]:
    failed = {"name": name, "topic_id": None, "error_code": code, "error_message": message}
    return failed | {"configs": None}


async def _delete(
    name: str | None, topic_id: Any, request: Request, services: Services
) -> dict[str, Any]:
    catalog = services.catalog
    if not services.config.delete_topic_enable:
        code = Code.TOPIC_DELETION_DISABLED if request.version >= 3 else Code.INVALID_REQUEST
        return _deleted(name, topic_id, code, "delete.topic.enable is false")
    if topic_id is None and name is None:
        return _deleted(name, topic_id, Code.INVALID_REQUEST, "named by neither name nor id")
    if topic_id is not None and name is not None:
        return _deleted(name, topic_id, Code.INVALID_REQUEST, "named by both name and id")
    if topic_id is not None:
        topic, unknown = catalog.topics_by_id.get(topic_id), Code.UNKNOWN_TOPIC_ID
    else:
        topic, unknown = catalog.topics.get(name or ""), Code.UNKNOWN_TOPIC_OR_PARTITION
    try:
        if topic is None:
            # A client takes this as the end of an earlier deletion, which has to be durable.
            await services.topics.journal.durable()
            return _deleted(name, topic_id, unknown, "the topic does not exist")
        answer = await services.topics.delete(DeleteTopic(topic.id, request.asked_by()))
    except STORAGE_ERRORS as error:
        if topic is not None:
            name, topic_id = topic.name, topic.id
        return _deleted(name, topic_id, Code.STORAGE_ERROR, storage_text(error))
    if isinstance(answer, Refused):
        return _deleted(topic.name, topic.id, error_code(answer), answer.message)
    return _deleted(topic.name, topic.id, Code.NONE, None)


def _deleted(name: str | None, topic_id: Any, code: Code, message: str | None) -> dict[str, Any]:
    return {"name": name, "topic_id": topic_id, "error_code": code, "error_message": message}
