"""Heartbeat (12): a member of a consumer group is alive, and learns whether it has to rejoin."""

from headrace.broker.errors import error_code
from headrace.broker.request import Answer, Request
from headrace.broker.services import Services
from headrace.core.group_words import Beat
from headrace.core.types import MemberId


async def handle(request: Request, services: Services) -> Answer:
    message = request.message()
    command = Beat(
        message.group_id,
        MemberId(message.member_id),
        getattr(message, "group_instance_id", None),
        message.generation_id,
    )
    refused = await services.groups.ask(command.group, command)
    if refused is not None:
        services.refusals.log_member(command.group, request.asked_by(command.member), refused)
    return {"error_code": error_code(refused)}
