"""ShareGroupHeartbeat (76): join, stay in, and leave a share group; the assignment. KIP-932."""

from collections.abc import Iterable
from typing import Any

from headrace.broker.errors import Code, error_code
from headrace.broker.group_memory import SMALL_BYTES
from headrace.broker.request import Answer, Request
from headrace.broker.runtime import StorageFault
from headrace.broker.services import Services
from headrace.broker.share_group_names import of_consumers
from headrace.broker.share_resets import new_starts
from headrace.broker.share_starts import start_for_heartbeat
from headrace.core.errors import Refused, Why
from headrace.core.share_group import JOIN, LEAVE, Heartbeat, Seen
from headrace.core.share_words import NAME_BYTES_MAX
from headrace.core.types import MemberId, TopicPartition, by_topic

MEMBER_ID_CHARS_MAX = 36


async def handle(request: Request, services: Services) -> Answer:
    message = request.message()
    refused = _malformed(message, services)
    if refused is not None:
        return _refused(message, refused, request, services)
    if message.member_epoch == JOIN or len(request.body) > SMALL_BYTES:
        refused = services.group_memory.admit_share(message.group_id, len(request.body))
        if refused is not None:
            return _refused(message, refused, request, services)
    topics = message.subscribed_topic_names
    try:
        command = Heartbeat(
            message.group_id,
            MemberId(message.member_id),
            message.member_epoch,
            None if topics is None else frozenset(topics),
            request.client_id or "",
            request.host,
            message.rack_id,
            await new_starts(services, message.group_id, topics or ()),
        )
        refused = await start_for_heartbeat(services, command)
        if refused is not None:
            return _refused(message, refused, request, services)
        refused = of_consumers(command.group, services)  # it may have become theirs meanwhile
        if refused is not None:
            return _refused(message, refused, request, services)
        answer = await services.shares.ask(command.group, command)
    except (StorageFault, OSError) as fault:
        return _refusal(Code.COORDINATOR_NOT_AVAILABLE, str(fault))
    if isinstance(answer, Refused):
        return _refused(message, answer, request, services)
    assert isinstance(answer, Seen)
    return {
        "error_code": Code.NONE,
        "member_id": command.member,
        "member_epoch": answer.epoch,
        "heartbeat_interval": answer.interval_ms,
        "assignment": None if answer.assignment is None else _assignment(answer.assignment),
    }


def _malformed(message: Any, services: Services) -> Refused | None:
    if not message.group_id:
        return Refused(Why.INVALID_REQUEST, "GroupId can't be empty.")
    if len(message.group_id.encode()) > NAME_BYTES_MAX:
        return Refused(Why.INVALID_REQUEST, f"GroupId has more than {NAME_BYTES_MAX} bytes.")
    if not 1 <= len(message.member_id) <= MEMBER_ID_CHARS_MAX:
        return Refused(
            Why.INVALID_REQUEST, f"MemberId must have 1 to {MEMBER_ID_CHARS_MAX} characters."
        )
    if message.rack_id == "":
        return Refused(Why.INVALID_REQUEST, "RackId can't be empty.")
    if message.member_epoch < LEAVE:
        return Refused(Why.INVALID_REQUEST, f"MemberEpoch is {message.member_epoch}.")
    return of_consumers(message.group_id, services)


def _refused(
    message: Any, refused: Refused, request: Request, services: Services
) -> dict[str, Any]:
    client = request.asked_by(message.member_id)
    services.refusals.log_member(message.group_id, client, refused)
    return _refusal(error_code(refused), refused.message)


def _refusal(code: Code, message: str) -> dict[str, Any]:
    return {
        "error_code": code,
        "error_message": message,
        "member_id": None,
        "member_epoch": 0,
        "heartbeat_interval": 0,
        "assignment": None,
    }


def _assignment(partitions: Iterable[TopicPartition]) -> dict[str, Any]:
    return {
        "topic_partitions": [
            {"topic_id": topic_id, "partitions": found}
            for topic_id, found in by_topic(partitions).items()
        ]
    }
