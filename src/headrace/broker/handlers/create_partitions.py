"""CreatePartitions (37): more partitions for a topic."""

from collections import Counter
from typing import Any

from headrace.broker.errors import Code, error_code
from headrace.broker.request import Answer, Request
from headrace.broker.services import Services
from headrace.broker.storage_faults import STORAGE_ERRORS, storage_text
from headrace.core.catalog import AddPartitions
from headrace.core.errors import Refused


async def handle(request: Request, services: Services) -> Answer:
    message = request.message()
    names = Counter(topic.name for topic in message.topics)
    unique = {topic.name: topic for topic in message.topics}
    results = []
    for name, topic in unique.items():
        if names[name] > 1:
            results.append(_result(name, Code.INVALID_REQUEST, "named twice in the request"))
            continue
        results.append(await _add(topic, services, message.validate_only))
    return {"results": results}


async def _add(asked: Any, services: Services, validate_only: bool) -> dict[str, Any]:
    here = (services.config.node_id,)
    if asked.assignments is not None:
        topic = services.catalog.topics.get(asked.name)
        added = asked.count - topic.partitions if topic is not None else 0
        if any(tuple(one.broker_ids) != here for one in asked.assignments) or (
            added > 0 and len(asked.assignments) != added
        ):
            message = f"assign each of {added} further partitions to broker {here[0]} alone"
            return _result(asked.name, Code.INVALID_REPLICA_ASSIGNMENT, message)
    command = AddPartitions(asked.name, asked.count, validate_only)
    try:
        answer = await services.topics.add_partitions(command)
    except STORAGE_ERRORS as error:
        return _result(asked.name, Code.STORAGE_ERROR, storage_text(error))
    if isinstance(answer, Refused):
        return _result(asked.name, error_code(answer), answer.message)
    return _result(asked.name, Code.NONE, None)


def _result(name: str, code: Code, message: str | None) -> dict[str, Any]:
    return {"name": name, "error_code": code, "error_message": message}
