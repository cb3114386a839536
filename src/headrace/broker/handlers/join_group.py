"""JoinGroup (11): become a member of a consumer group, or take part in its next generation."""

from typing import Any

from headrace.broker.errors import Code, error_code
from headrace.broker.request import Answer, Request
from headrace.broker.services import Services
from headrace.core.errors import Refused, Why
from headrace.core.group_words import Candidate, IdRequired, Join, Joined
from headrace.core.types import MemberId

_ID_REQUIRED_SINCE = 4
_NULLABLE_PROTOCOL_SINCE = 7
_SKIP_SINCE = 9
_PROTOCOLS_MAX = 100


async def handle(request: Request, services: Services) -> Answer:
    command = _command(request, services)
    answer: Any = _too_many_protocols(command) or services.group_memory.admit_member(
        command.group, command.member, len(request.body)
    )
    if answer is None:
        answer = await services.groups.ask_and_wait(command)
    if isinstance(answer, IdRequired):
        return _refusal(Code.MEMBER_ID_REQUIRED, answer.member, request.version)
    if isinstance(answer, Refused):
        services.refusals.log_member(command.group, request.asked_by(command.member), answer)
        code = error_code(answer)
        member = MemberId("") if code is Code.GROUP_MAX_SIZE_REACHED else command.member
        return _refusal(code, member, request.version)
    assert isinstance(answer, Joined)
    return {
        "error_code": Code.NONE,
        "generation_id": answer.generation,
        "protocol_type": answer.protocol_type,
        "protocol_name": answer.protocol,
        "leader": answer.leader,
        "skip_assignment": answer.skip_assignment,
        "member_id": answer.member,
        "members": [
            {
                "member_id": peer.id,
                "group_instance_id": peer.instance,
                "metadata": peer.metadata,
            }
            async for peer in services.budgets.portions(answer.members)
        ],
    }


def _too_many_protocols(command: Join) -> Refused | None:
    """A choice among protocols looks at those of all members."""
    if len(command.candidates) <= _PROTOCOLS_MAX:
        return None
    return Refused(
        Why.INCONSISTENT_PROTOCOL,
        f"A member has {len(command.candidates)} protocols; {_PROTOCOLS_MAX} are allowed.",
    )


def _command(request: Request, services: Services) -> Join:
    message = request.message()
    instance = getattr(message, "group_instance_id", None)
    prefix = (request.client_id or "") if instance is None else instance
    rebalance_ms = getattr(message, "rebalance_timeout", -1)
    return Join(
        message.group_id,
        MemberId(message.member_id),
        instance,
        services.groups.new_member(prefix),
        request.client_id or "",
        f"/{request.host}",
        message.session_timeout,
        message.session_timeout if rebalance_ms < 0 else rebalance_ms,
        message.protocol_type,
        tuple(Candidate(one.name, one.metadata) for one in message.protocols),
        services.groups.ticket(),
        id_required=request.version >= _ID_REQUIRED_SINCE,
        may_skip=request.version >= _SKIP_SINCE,
    )


def _refusal(code: Code, member: MemberId, version: int) -> dict[str, Any]:
    return {
        "error_code": code,
        "protocol_name": None if version >= _NULLABLE_PROTOCOL_SINCE else "",
        "leader": "",
        "member_id": member,
        "members": (),
    }
