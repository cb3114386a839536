"""ShareGroupDescribe (77): a share group's state, its members and what they are assigned. KIP-932.

A lease whose driver is at work is listed among the members: nobody else tells an administrator
why the group is not empty. It may take every partition of its topics.
"""

from typing import Any

from headrace.broker.authorized_operations import GROUP_OPERATIONS, NOT_ASKED
from headrace.broker.errors import Code, error_code
from headrace.broker.group_descriptions import NOTHING_KNOWN, assignment
from headrace.broker.request import Answer, Request
from headrace.broker.services import Services
from headrace.core.errors import Refused, Why
from headrace.core.leases import Lease
from headrace.core.share_admin import Queue
from headrace.core.share_group import Member
from headrace.core.types import TopicPartition

_ASSIGNOR = "simple"
_LEASE_CLIENT = "lease"
_PORTION = 50  # groups, or members, that are described without a pause


async def handle(request: Request, services: Services) -> Answer:
    message = request.message()
    operations = GROUP_OPERATIONS if message.include_authorized_operations else NOT_ASKED
    return {
        "groups": [
            {"group_id": name, "authorized_operations": operations}
            | await _described(name, services)
            # Once each: a short request could ask for a large group very often.
            async for name in services.budgets.portions(dict.fromkeys(message.group_ids), _PORTION)
        ]
    }


async def _described(name: str, services: Services) -> dict[str, Any]:
    if not name:
        return _missing(Refused(Why.INVALID_GROUP, "The group id is empty."))
    machine = services.shares.machine(name)
    told = await _told(name, services)
    faulty = await services.shares.durable_of(name, machine)
    return told if faulty is None else _missing(faulty)


async def _told(name: str, services: Services) -> dict[str, Any]:
    queue = services.shares.find(name)
    if queue.exists:
        return await _found(queue, services)
    if services.groups.find(name) is not None:
        told = f"Group {name} is not a share group."
        return _missing(Refused(Why.WRONG_GROUP_TYPE, told))
    return _missing(Refused(Why.UNKNOWN_GROUP, f"Group {name} not found."))


def _missing(refused: Refused) -> dict[str, Any]:
    told = {"error_code": error_code(refused), "error_message": refused.message}
    return told | NOTHING_KNOWN


async def _found(queue: Queue, services: Services) -> dict[str, Any]:
    group = queue.group
    epoch = 0 if group is None else group.epoch
    present = [] if group is None else list(group.members.values())
    members = [_member(one, services) async for one in services.budgets.portions(present, _PORTION)]
    leases = queue.working_leases(services.clock.now())
    # A lease may take every partition of its topics.
    members += [_lease(one, services) async for one in services.budgets.portions(leases, 1)]
    return {
        "error_code": Code.NONE,
        "error_message": None,
        "group_state": services.shares.state(queue),
        "group_epoch": epoch,
        "assignment_epoch": epoch,
        "assignor_name": _ASSIGNOR,
        "members": members,
    }


def _member(member: Member, services: Services) -> dict[str, Any]:
    return {
        "member_id": member.id,
        "rack_id": member.rack,
        "member_epoch": member.epoch,
        "client_id": member.client_id,
        "client_host": f"/{member.client_host}",
        "subscribed_topic_names": sorted(member.topics),
        "assignment": assignment(member.told, services.catalog),
    }


def _lease(lease: Lease, services: Services) -> dict[str, Any]:
    known = [services.catalog.topics.get(name) for name in lease.topics]
    places = (
        TopicPartition(topic.id, index)
        for topic in known
        if topic is not None
        for index in range(topic.partitions)
    )
    return {
        "member_id": lease.key[1],
        "rack_id": None,
        "member_epoch": lease.epoch,
        "client_id": _LEASE_CLIENT,
        "client_host": "",
        "subscribed_topic_names": sorted(lease.topics),
        "assignment": assignment(places, services.catalog),
    }
