"""LeaveGroup (13): members go, of their own or because an administrator removes them (KIP-345)."""

from collections.abc import Sequence
from typing import Any

from headrace.broker.errors import Code, error_code
from headrace.broker.request import Answer, Request
from headrace.broker.services import Services
from headrace.core.errors import Refused, Why
from headrace.core.group_words import Leave, Leaver
from headrace.core.types import MemberId

_SEVERAL_SINCE = 3
_PORTION = 200  # members in one command: some milliseconds


async def handle(request: Request, services: Services) -> Answer:
    message = request.message()
    if not message.group_id:
        refused = Refused(Why.INVALID_GROUP, "The group id is empty.")
        services.refusals.log_member("", request.asked_by(), refused)
        return {"error_code": error_code(refused), "members": ()}
    if request.version < _SEVERAL_SINCE:
        leavers: tuple[Leaver, ...] = (Leaver(MemberId(message.member_id)),)
    else:
        named = (Leaver(MemberId(one.member_id), one.group_instance_id) for one in message.members)
        leavers = tuple(dict.fromkeys(named))
    answers: list[Any] = []
    for first in range(0, len(leavers), _PORTION) or (0,):
        command = Leave(message.group_id, leavers[first : first + _PORTION])
        reply = await services.groups.ask(message.group_id, command)
        if isinstance(reply, Refused):
            services.refusals.log_member(message.group_id, request.asked_by(), reply)
            return {"error_code": error_code(reply), "members": ()}
        answers += reply
    _log(message.group_id, leavers, answers, request, services)
    if request.version < _SEVERAL_SINCE:
        return {"error_code": error_code(answers[0])}
    return {
        "error_code": Code.NONE,
        "members": [
            {
                "member_id": leaver.member,
                "group_instance_id": leaver.instance,
                "error_code": error_code(answer),
            }
            for leaver, answer in zip(leavers, answers, strict=True)
        ],
    }


def _log(
    group: str, leavers: Sequence[Leaver], answers: Sequence[Refused | None], request: Request,
    services: Services,
) -> None:  # fmt: skip
    """Log the first member of each reason: a request may name any number of members."""
    first: dict[Why, tuple[Leaver, Refused]] = {}
    for leaver, answer in zip(leavers, answers, strict=True):
        if answer is not None:
            first.setdefault(answer.why, (leaver, answer))
    for leaver, refused in first.values():
        client = request.asked_by(leaver.member or leaver.instance or "")
        services.refusals.log_member(group, client, refused)
