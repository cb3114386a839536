"""DescribeGroups (15): the state and the members of classic groups."""

from typing import Any

from headrace.broker.authorized_operations import GROUP_OPERATIONS, NOT_ASKED
from headrace.broker.errors import Code, error_code
from headrace.broker.request import Answer, Request
from headrace.broker.runtime import ShardRuntime
from headrace.broker.services import Services
from headrace.broker.shards import all_durable
from headrace.core.classic_group import ClassicGroup
from headrace.core.group_words import Phase

_NOT_FOUND_SINCE = 6
_PORTION = 50  # groups that are described without a pause
_GONE = "Dead"  # Kafka's word for a group that is not there


async def handle(request: Request, services: Services) -> Answer:
    message = request.message()
    wants_operations = getattr(message, "include_authorized_operations", False)
    operations = GROUP_OPERATIONS if wants_operations else NOT_ASKED
    # Once each: a short request could ask for a large group very often.
    portions = services.budgets.portions
    shards: list[ShardRuntime[Any, Any]] = [*services.groups.shards, *services.shares.shards]
    machines = [shard.machine for shard in shards]
    told = {
        name: await _described(name, request.version, services)
        async for name in portions(dict.fromkeys(message.groups), _PORTION)
    }
    # That one is a share group is told, too.
    refused = await all_durable(shards, machines)
    if refused is not None:
        told = dict.fromkeys(told, _missing(error_code(refused), refused.message))
    return {
        "groups": [
            {"group_id": name, "authorized_operations": operations} | one
            async for name, one in portions(told.items())
        ]
    }


async def _described(name: str, version: int, services: Services) -> dict[str, Any]:
    group = services.groups.find(name)
    if isinstance(group, ClassicGroup):
        return await _found(group, services)
    if version < _NOT_FOUND_SINCE:
        return _missing(Code.NONE, None)
    if group is not None or services.groups.is_share_group(name):
        return _missing(Code.GROUP_ID_NOT_FOUND, f"Group {name} is not a classic group.")
    return _missing(Code.GROUP_ID_NOT_FOUND, f"Group {name} not found.")


def _missing(code: Code, message: str | None) -> dict[str, Any]:
    told: dict[str, Any] = {
        "error_code": code,
        "error_message": message,
        "group_state": _GONE,
        "protocol_type": "",
        "protocol_data": "",
        "members": (),
    }
    return told | {"authorized_operations": NOT_ASKED} if code else told


async def _found(group: ClassicGroup, services: Services) -> dict[str, Any]:
    stable = group.phase is Phase.STABLE
    return {
        "error_code": Code.NONE,
        "group_state": group.phase.value,
        "protocol_type": group.protocol_type or "",
        "protocol_data": (group.protocol or "") if stable else "",
        "members": [
            {
                "member_id": member.id,
                "group_instance_id": member.instance,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_metadata": member.metadata(group.protocol) if stable else b"",
                "member_assignment": member.assignment if stable else b"",
            }
            async for member in services.budgets.portions(list(group.members.values()))
        ],
    }
