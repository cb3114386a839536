"""AlterShareGroupOffsets (91): set where a share group without members begins. KIP-932.

- What is in flight there, and how often it was delivered, is gone with it.
- A partition whose log is refused until the next start gets KAFKA_STORAGE_ERROR with the file and
  the remedy; the other partitions are altered. So does each partition of a topic that the group has
  not begun while all of its first partitions are refused, by which the broker knows whether a group
  has begun a topic (`core/share_starts.py`).
- Where a log of the topics cannot be opened for another reason, the whole request gets
  COORDINATOR_NOT_AVAILABLE, which clients retry.
"""

from collections.abc import Sequence
from typing import Any

from headrace.broker.budgets import PORTION
from headrace.broker.errors import Code, error_code
from headrace.broker.request import Answer, Request
from headrace.broker.services import Services
from headrace.broker.share_group_names import misnamed
from headrace.broker.share_resets import starts_by_duration
from headrace.core.errors import Refused, Why
from headrace.core.shard_words import AlterShareOffsets

_PORTION = 200  # partitions in one command: some milliseconds


async def handle(request: Request, services: Services) -> Answer:
    message = request.message()
    named = await services.budgets.by_topic(
        (topic.topic_name, partition.partition_index, partition.start_offset)
        for topic in message.topics
        for partition in topic.partitions
    )
    starts = tuple(
        (name, index, start) for name, offsets in named.items() for index, start in offsets.items()
    )
    answers: Sequence[Refused | None] | Refused | None = misnamed(message.group_id, services)
    if answers is None:
        answers = services.group_memory.admit_share(message.group_id, len(request.body))
    if answers is None:
        answers = await _altered(message.group_id, starts, request.asked_by(), services)
    if isinstance(answers, Refused):
        told = {"error_code": error_code(answers), "error_message": answers.message}
        return told | {"responses": ()}
    assert answers is not None
    told_of: dict[str, list[dict[str, Any]]] = {}
    answered = zip(starts, answers, strict=True)
    async for (name, index, _), refused in services.budgets.portions(answered, 10 * PORTION):
        code, text = error_code(refused), refused and refused.message
        one = {"partition_index": index, "error_code": code, "error_message": text}
        told_of.setdefault(name, []).append(one)
    topics = services.catalog.topics
    return {
        "error_code": Code.NONE,
        "error_message": None,
        "responses": [
            {
                "topic_name": name,
                "topic_id": topics[name].id if name in topics else None,
                "partitions": partitions,
            }
            for name, partitions in told_of.items()
        ],
    }


async def _altered(
    group: str, starts: tuple[tuple[str, int, int], ...], by: str, services: Services
) -> Sequence[Refused | None] | Refused:
    names = dict.fromkeys(name for name, _, _ in starts)
    await services.shares.open_topics(names)
    try:
        services.shares.require_open(names, or_refused=True)
        policy = await starts_by_duration(services, group, names)
    except OSError as error:
        return Refused(Why.COORDINATOR_GONE, f"The logs cannot be read: {error}")
    refused = misnamed(group, services)  # it may have become another kind's meanwhile
    if refused is not None:
        return refused
    answers: list[Refused | None] = []
    for first in range(0, len(starts), _PORTION) or (0,):
        command = AlterShareOffsets(group, starts[first : first + _PORTION], policy)
        reply: Sequence[Refused | None] | Refused = await services.shares.administer(command, by)
        if isinstance(reply, Refused):
            return reply
        answers += reply
    return answers
