"""DeleteGroups (42): remove consumer groups without members, with all that they committed.

A share group without members keeps its state: it goes with the topics that it reads.
"""

from headrace.broker.errors import Code, error_code
from headrace.broker.request import Answer, Request
from headrace.broker.services import Services
from headrace.core.group_words import DeleteGroup


async def handle(request: Request, services: Services) -> Answer:
    names = dict.fromkeys(request.message().groups_names)
    return {
        "results": [
            {"group_id": name, "error_code": await _delete(name, request.asked_by(), services)}
            for name in names
        ]
    }


async def _delete(name: str, by: str, services: Services) -> Code:
    if services.shares.has_members(name):
        return Code.NON_EMPTY_GROUP
    return error_code(await services.groups.ask(name, DeleteGroup(name, by)))
