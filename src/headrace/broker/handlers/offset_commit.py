"""OffsetCommit (8): how far a consumer group has come, partition by partition.

What is wrong with one partition is told of that one; what is wrong with the group, or with who
commits, is told of every partition that was right.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from headrace.broker.errors import Code, error_code
from headrace.broker.request import Answer, Request
from headrace.broker.services import Services
from headrace.core.catalog import Topic
from headrace.core.errors import Refused, Why
from headrace.core.group_words import Commit, Offset
from headrace.core.types import MemberId

_IDS_SINCE = 10
_EPOCHS_SINCE = 9
_UNKNOWN_GROUP_SINCE = 9
_NO_RETENTION = -1


@dataclass(frozen=True, slots=True)
class _Asked:
    """One partition of a request: what to commit, or why nothing can be."""

    topic: str | UUID | None
    partition: int
    answer: Offset | Code


async def handle(request: Request, services: Services) -> Answer:
    message = request.message()
    asked = list(_partitions(message, request.version, services))
    offsets = tuple(one.answer for one in asked if isinstance(one.answer, Offset))
    codes = iter(await _commit(request, message, offsets, services) if offsets else ())
    told: dict[Any, list[dict[str, int]]] = {}
    good: list[tuple[_Asked, Code]] = []
    for one in asked:
        if isinstance(one.answer, Offset):
            good.append((one, next(codes)))
        else:
            told.setdefault(one.topic, []).append(_told(one, one.answer))
    for one, code in good:
        told.setdefault(one.topic, []).append(_told(one, code))
    field = "topic_id" if request.version >= _IDS_SINCE else "name"
    return {
        "topics": [{field: topic, "partitions": partitions} for topic, partitions in told.items()]
    }


def _partitions(message: Any, version: int, services: Services) -> Iterator[_Asked]:
    catalog = services.catalog
    for topic in message.topics:
        if version >= _IDS_SINCE:
            name, unknown = topic.topic_id, Code.UNKNOWN_TOPIC_ID
            found = catalog.topics_by_id.get(topic.topic_id)
        else:
            name, unknown = topic.name, Code.UNKNOWN_TOPIC_OR_PARTITION
            found = catalog.topics.get(topic.name)
        for partition in topic.partitions:
            index = partition.partition_index
            if found is None:
                yield _Asked(name, index, unknown)
            elif not 0 <= index < found.partitions:
                yield _Asked(name, index, Code.UNKNOWN_TOPIC_OR_PARTITION)
            else:
                yield _Asked(name, index, _offset(found, partition))


def _offset(topic: Topic, partition: Any) -> Offset:
    return Offset(
        topic.name,
        partition.partition_index,
        partition.committed_offset,
        getattr(partition, "committed_leader_epoch", -1),
        partition.committed_metadata or "",
        topic.id,
    )


async def _commit(
    request: Request, message: Any, offsets: tuple[Offset, ...], services: Services
) -> list[Code]:
    retention_ms = getattr(message, "retention_time", _NO_RETENTION)
    command = Commit(
        message.group_id,
        MemberId(message.member_id),
        getattr(message, "group_instance_id", None),
        message.generation_id_or_member_epoch,
        offsets,
        None if retention_ms == _NO_RETENTION else retention_ms,
        request.asked_by(message.member_id),
        tells_epoch=request.version >= _EPOCHS_SINCE,
    )
    answer = await services.groups.ask(command.group, command)
    if not isinstance(answer, Refused):
        return [error_code(one) for one in answer]
    code = error_code(answer)
    if answer.why is Why.UNKNOWN_GROUP and request.version < _UNKNOWN_GROUP_SINCE:
        code = Code.ILLEGAL_GENERATION  # what clients of those versions expect
    return [code] * len(offsets)


def _told(asked: _Asked, code: Code) -> dict[str, int]:
    return {"partition_index": asked.partition, "error_code": code}
