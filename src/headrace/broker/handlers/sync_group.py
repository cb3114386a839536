"""SyncGroup (14): the leader hands in the assignment, every member gets its own."""

from headrace.broker.errors import Code, error_code
from headrace.broker.group_memory import SMALL_BYTES
from headrace.broker.request import Answer, Request
from headrace.broker.services import Services
from headrace.core.errors import Refused, Why
from headrace.core.group_words import Sync, Synced
from headrace.core.types import MemberId

_PROTOCOL_SINCE = 5


async def handle(request: Request, services: Services) -> Answer:
    answer = await _answer(request, services)
    if isinstance(answer, Refused):
        message = request.message()
        services.refusals.log_member(message.group_id, request.asked_by(message.member_id), answer)
        return {"error_code": error_code(answer), "assignment": b""}
    return {
        "error_code": Code.NONE,
        "protocol_type": answer.protocol_type,
        "protocol_name": answer.protocol,
        "assignment": answer.assignment,
    }


async def _answer(request: Request, services: Services) -> Synced | Refused:
    message = request.message()
    protocol_type = getattr(message, "protocol_type", None)
    protocol = getattr(message, "protocol_name", None)
    if request.version >= _PROTOCOL_SINCE and None in (protocol_type, protocol):
        return Refused(Why.INCONSISTENT_PROTOCOL, "ProtocolType and ProtocolName can't be null.")
    command = Sync(
        message.group_id,
        MemberId(message.member_id),
        getattr(message, "group_instance_id", None),
        message.generation_id,
        services.groups.ticket(),
        {MemberId(one.member_id): one.assignment for one in message.assignments},
        protocol_type,
        protocol,
    )
    size = len(request.body)
    if size > SMALL_BYTES:  # small ones are part of what the join was admitted with
        refused = services.group_memory.admit_member(command.group, command.member, size)
        if refused is not None:
            return refused
    answer = await services.groups.ask_and_wait(command)
    assert isinstance(answer, Synced | Refused)
    return answer
