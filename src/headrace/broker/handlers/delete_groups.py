"""DeleteGroups (42): remove groups without members, of consumers or share groups, with all state.

A group is of one kind, so the kind need not be told.
"""

from headrace.broker.errors import Code, error_code
from headrace.broker.request import Answer, Request
from headrace.broker.services import Services
from headrace.core.group_words import DeleteGroup
from headrace.core.shard_words import DeleteShareGroup


async def handle(request: Request, services: Services) -> Answer:
    names = dict.fromkeys(request.message().groups_names)
    return {
        "results": [
            {"group_id": name, "error_code": await _delete(name, request.asked_by(), services)}
            async for name in services.budgets.portions(names)
        ]
    }


async def _delete(name: str, by: str, services: Services) -> Code:
    if services.shares.find(name).exists:
        return error_code(await services.shares.administer(DeleteShareGroup(name), by))
    faulty = await services.shares.durable_of(name)  # a fault must not take back that there is none
    if faulty is not None:
        return error_code(faulty)
    return error_code(await services.groups.ask(name, DeleteGroup(name, by)))
