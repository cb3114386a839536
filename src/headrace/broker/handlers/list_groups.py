"""ListGroups (16): groups of every kind, by state and type if asked (KIP-518, 848)."""

from collections.abc import Iterator
from typing import Any

from headrace.broker.errors import Code, error_code
from headrace.broker.request import Answer, Request
from headrace.broker.runtime import ShardRuntime
from headrace.broker.services import Services
from headrace.broker.shards import all_durable
from headrace.core.consumer_group import ConsumerGroup

_PORTION = 500  # groups that are looked at without a pause


async def handle(request: Request, services: Services) -> Answer:
    message = request.message()
    states = {state.strip().lower() for state in getattr(message, "states_filter", ())}
    types = {kind.strip().lower() for kind in getattr(message, "types_filter", ())}
    shards: list[ShardRuntime[Any, Any]] = [*services.groups.shards, *services.shares.shards]
    machines = [shard.machine for shard in shards]
    groups: dict[str, dict[str, Any]] = {}  # by name: a walk with pauses may show a group twice
    async for name, protocol, state, kind in services.budgets.portions(_all(services), _PORTION):
        if (not states or state.lower() in states) and (not types or kind in types):
            shown = {"group_id": name, "protocol_type": protocol}
            groups[name] = shown | {"group_state": state, "group_type": kind}
    refused = await all_durable(shards, machines)
    if refused is not None:
        return {"error_code": error_code(refused), "groups": ()}
    return {"error_code": Code.NONE, "groups": list(groups.values())}


def _all(services: Services) -> Iterator[tuple[str, str, str, str]]:
    """Yield name, protocol type, state and type of every group."""
    for group, _ in services.groups.walk():
        if isinstance(group, ConsumerGroup):
            yield group.name, group.protocol_type, group.state.value, "consumer"
        else:
            yield group.name, group.protocol_type or "", group.phase.value, "classic"
    for name, state in services.shares.walk():
        yield name, "share", state, "share"
