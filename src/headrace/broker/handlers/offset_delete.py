"""OffsetDelete (47): forget what a consumer group committed for partitions it does not read.

An error of the group is the only one in the answer, without partitions; otherwise partitions that
do not exist come first, as in Kafka. A topic of which the request names no partition
is in the answer, with an empty list, only where it does not exist. Source: KIP-496, KafkaApis.
"""

from typing import Any

from headrace.broker.errors import Code, error_code
from headrace.broker.request import Answer, Request
from headrace.broker.services import Services
from headrace.core.errors import Refused
from headrace.core.group_words import DeleteOffsets


async def handle(request: Request, services: Services) -> Answer:
    message = request.message()
    known: list[tuple[str, int]] = []
    answered: dict[str, list[dict[str, Any]]] = {}
    named = await services.budgets.by_topic(
        (
            (topic.name, partition.partition_index, None)
            for topic in message.topics
            for partition in topic.partitions
        ),
        topics=(topic.name for topic in message.topics),
    )
    for name, indexes in named.items():
        if not indexes and name not in services.catalog.topics:
            answered[name] = []
        for index in indexes:
            if services.partition(name, index) is None:
                _add(answered, name, index, Code.UNKNOWN_TOPIC_OR_PARTITION)
            else:
                known.append((name, index))
    command = DeleteOffsets(message.group_id, tuple(known), request.asked_by())
    # Also with no partition at all: what is wrong with the group is told all the same.
    answers = await services.groups.ask(command.group, command)
    if isinstance(answers, Refused):
        return {"error_code": error_code(answers), "topics": []}
    for (name, index), refused in zip(known, answers, strict=True):
        _add(answered, name, index, error_code(refused))
    return {
        "error_code": Code.NONE,
        "topics": [
            {"name": name, "partitions": partitions} for name, partitions in answered.items()
        ],
    }


def _add(answered: dict[str, list[dict[str, Any]]], name: str, index: int, code: Code) -> None:
    answered.setdefault(name, []).append({"partition_index": index, "error_code": code})
