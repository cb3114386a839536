"""OffsetDelete (47): forget what a consumer group committed for partitions it does not read.

What is wrong with the group is told of it alone, and nothing of any partition; otherwise partitions
that do not exist are told of first, as Kafka does. Source: KIP-496.
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
    codes: list[tuple[tuple[str, int], Code]] = []
    named = await services.budgets.by_topic(
        (topic.name, partition.partition_index, None)
        for topic in message.topics
        for partition in topic.partitions
    )
    for name, indexes in named.items():
        for index in indexes:
            place = name, index
            if services.partition(*place) is None:
                codes.append((place, Code.UNKNOWN_TOPIC_OR_PARTITION))
            else:
                known.append(place)
    command = DeleteOffsets(message.group_id, tuple(known), request.asked_by())
    # Also with no partition at all: what is wrong with the group is told all the same.
    answers = await services.groups.ask(command.group, command)
    if isinstance(answers, Refused):
        return {"error_code": error_code(answers), "topics": []}
    codes += zip(known, map(error_code, answers), strict=True)
    told: dict[str, list[dict[str, Any]]] = {}
    for (name, index), code in codes:
        told.setdefault(name, []).append({"partition_index": index, "error_code": code})
    return {
        "error_code": Code.NONE,
        "topics": [{"name": name, "partitions": partitions} for name, partitions in told.items()],
    }
