"""ConsumerGroupHeartbeat (68): join, stay in and leave a consumer group; assignments. KIP-848."""

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from headrace.broker.errors import Code, error_code
from headrace.broker.group_memory import SMALL_BYTES
from headrace.broker.partitions import uuid_text
from headrace.broker.request import Answer, Request
from headrace.broker.services import Services
from headrace.core.consumer_words import (
    JOINING,
    LEAVING_FOR_NOW,
    Beaten,
    ConsumerBeat,
    Partitions,
)
from headrace.core.errors import Refused
from headrace.core.group_words import NOBODY
from headrace.core.types import MemberId, TopicPartition, by_topic

_CLIENT_MAKES_ID_SINCE = 1
_UNCHANGED = -1
_NO_ID = UUID(int=0)


async def handle(request: Request, services: Services) -> Answer:
    command = _command(request, services)
    answer: Any = await services.groups.prepare(command)
    if answer is None and (command.epoch == JOINING or len(request.body) > SMALL_BYTES):
        answer = services.group_memory.admit_member(
            command.group, command.member, len(request.body)
        )
    if answer is None:
        answer = await services.groups.ask(command.group, command)
    if isinstance(answer, Refused):
        services.refusals.log_member(command.group, request.asked_by(command.member), answer)
        return {
            "error_code": error_code(answer),
            "error_message": answer.message,
            "member_id": None,
            "member_epoch": 0,
            "heartbeat_interval": 0,
            "assignment": None,
        }
    assert isinstance(answer, Beaten)
    return {
        "error_code": Code.NONE,
        "member_id": answer.member,
        "member_epoch": answer.epoch,
        "heartbeat_interval": answer.heartbeat_ms,
        "assignment": None if answer.assignment is None else _assignment(answer.assignment),
    }


def _command(request: Request, services: Services) -> ConsumerBeat:
    message = request.message()
    # As in Kafka, a static member that leaves for now may leave its id out, too.
    has_none = message.member_epoch in {JOINING, LEAVING_FOR_NOW} and not message.member_id
    needs_id = has_none and request.version < _CLIENT_MAKES_ID_SINCE
    topics, owned = message.subscribed_topic_names, message.topic_partitions
    return ConsumerBeat(
        message.group_id,
        MemberId(message.member_id),
        message.member_epoch,
        MemberId(uuid_text(services.topics.new_id())) if needs_id else NOBODY,
        message.instance_id,
        message.rack_id,
        request.client_id or "",
        f"/{request.host}",
        None if message.rebalance_timeout == _UNCHANGED else message.rebalance_timeout,
        None if topics is None else frozenset(topics),
        getattr(message, "subscribed_topic_regex", None),
        message.server_assignor,
        None if owned is None else _owned(owned),
    )


def _owned(topics: Iterable[Any]) -> Partitions:
    return frozenset(
        TopicPartition(topic.topic_id or _NO_ID, index)
        for topic in topics
        for index in topic.partitions
    )


def _assignment(partitions: Partitions) -> dict[str, Any]:
    return {
        "topic_partitions": [
            {"topic_id": topic_id, "partitions": found}
            for topic_id, found in by_topic(partitions).items()
        ]
    }
