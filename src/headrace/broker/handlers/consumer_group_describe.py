"""ConsumerGroupDescribe (69): groups of the new protocol, and how far each member is (KIP-848)."""

from typing import Any

from headrace.broker.authorized_operations import GROUP_OPERATIONS, NOT_ASKED
from headrace.broker.errors import Code, error_code
from headrace.broker.group_descriptions import NOTHING_KNOWN, assignment
from headrace.broker.request import Answer, Request
from headrace.broker.services import Services
from headrace.core.consumer_group import ConsumerGroup
from headrace.core.consumer_words import ConsumerMember

_CLASSIC, _CONSUMER = 0, 1
_PORTION = 50  # groups, or members, that are described without a pause


async def handle(request: Request, services: Services) -> Answer:
    message = request.message()
    operations = GROUP_OPERATIONS if message.include_authorized_operations else NOT_ASKED
    # Once each: a short request could ask for a large group very often.
    portions = services.budgets.portions
    machines = [shard.machine for shard in services.groups.shards]
    told = {
        name: await _described(name, services)
        async for name in portions(dict.fromkeys(message.group_ids), _PORTION)
    }
    refused = await services.groups.durable(machines)
    if refused is not None:
        told = dict.fromkeys(told, _missing(error_code(refused), refused.message))
    return {
        "groups": [
            {"group_id": name, "authorized_operations": operations} | one
            async for name, one in portions(told.items())
        ]
    }


async def _described(name: str, services: Services) -> dict[str, Any]:
    if not name:
        return _missing(Code.INVALID_GROUP_ID, "The group id is empty.")
    group = services.groups.find(name)
    if isinstance(group, ConsumerGroup):
        return await _found(group, services)
    if group is not None or services.groups.is_share_group(name):
        return _missing(Code.GROUP_ID_NOT_FOUND, f"Group {name} is not a consumer group.")
    return _missing(Code.GROUP_ID_NOT_FOUND, f"Group {name} not found.")


def _missing(code: Code, message: str) -> dict[str, Any]:
    return {"error_code": code, "error_message": message} | NOTHING_KNOWN


async def _found(group: ConsumerGroup, services: Services) -> dict[str, Any]:
    return {
        "error_code": Code.NONE,
        "error_message": None,
        "group_state": group.state.value,
        "group_epoch": group.epoch,
        "assignment_epoch": group.target_epoch,
        "assignor_name": group.assignor(next(iter(services.groups.consumer_limits.assignors))),
        "members": [
            _member(member, group, services)
            async for member in services.budgets.portions(list(group.members.values()), _PORTION)
        ],
    }


def _member(member: ConsumerMember, group: ConsumerGroup, services: Services) -> dict[str, Any]:
    held = group.holdings.get(member.id)
    return {
        "member_id": member.id,
        "instance_id": member.instance,
        "rack_id": member.rack,
        "member_epoch": 0 if held is None else held.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": sorted(member.topics),
        "subscribed_topic_regex": member.regex,
        "assignment": assignment(group.holding(member.id), services.catalog),
        "target_assignment": assignment(group.target(member.id), services.catalog),
        "member_type": _CONSUMER if member.classic is None else _CLASSIC,
    }
