"""OffsetFetch (9): what consumer groups have committed.

A member that asks for partitions by name is about to read them: what its group's reset policy says
of them is committed first. Who asks for everything, or asks a group without members, looks only.
In the new protocol a member says that it is one; librdkafka's does not, and is known from tools by
`require_stable`, which consumers ask for. There are no transactions, so that has no other meaning.
"""

from collections import defaultdict
from typing import Any
from uuid import UUID

from headrace.broker.errors import Code, error_code
from headrace.broker.request import Answer, Request
from headrace.broker.services import Services
from headrace.core.catalog import Topic
from headrace.core.consumer_group import ConsumerGroup
from headrace.core.errors import Refused
from headrace.core.group_words import Committed
from headrace.core.offsets import Offsets
from headrace.core.types import MemberId

_GROUP_ERROR_SINCE = 2
_STABLE_SINCE = 7
_GROUPS_SINCE = 8
_MEMBERS_SINCE = 9
_IDS_SINCE = 10


async def handle(request: Request, services: Services) -> Answer:
    message, version = request.message(), request.version
    asked = message.groups if version >= _GROUPS_SINCE else (message,)
    asked = {one.group_id: one for one in asked}.values()
    reads = version >= _STABLE_SINCE and message.require_stable
    refused = None
    async for one in services.budgets.portions(asked):
        if services.groups.reset_policy(one.group_id) is not None:
            refused = await _seed(one, request, services, reads=reads) or refused
    machines = [shard.machine for shard in services.groups.shards]
    groups = [
        await _group(one, _may_read(one, version, services), version, services)
        async for one in services.budgets.portions(asked)
    ]
    refused = await services.groups.durable(machines) or refused
    if refused is not None:
        # Clients of old versions try again at once on NOT_COORDINATOR, and on no other code.
        code = Code.NOT_COORDINATOR
        groups = [
            await _group(one, code, version, services)
            async for one in services.budgets.portions(asked)
        ]
    return {"groups": groups} if version >= _GROUPS_SINCE else groups[0]


async def _seed(asked: Any, request: Request, services: Services, *, reads: bool) -> Refused | None:
    """Let the policy of a group see to the partitions that a member asks for.

    `reads`: it is asked as consumers ask, whoever it is. Refused where a disk fails.
    """
    version, group = request.version, services.groups.find(asked.group_id)
    if asked.topics is None or group is None or group.is_empty:
        return None
    member = asked.member_id if version >= _MEMBERS_SINCE else None
    if isinstance(group, ConsumerGroup) and member is None and not reads:
        return None
    if _may_read(asked, version, services):
        return None
    wanted: dict[tuple[UUID, int], tuple[Topic, int]] = {}
    async for topic in services.budgets.portions(asked.topics):
        found = _topic(topic, version, services)
        if found is not None:
            async for index in services.budgets.portions(topic.partition_indexes):
                if 0 <= index < found.partitions:
                    wanted[found.id, index] = found, index
    by = request.asked_by(member or "")
    return await services.offset_seeding.asked(asked.group_id, list(wanted.values()), by)


def _topic(asked: Any, version: int, services: Services) -> Topic | None:
    catalog = services.catalog
    if version >= _IDS_SINCE:
        return catalog.topics_by_id.get(asked.topic_id)
    return catalog.topics.get(asked.name)


def _may_read(asked: Any, version: int, services: Services) -> Code:
    """Members of groups of the new protocol tell who they are; others may ask all the same."""
    if version < _MEMBERS_SINCE:
        return Code.NONE
    group = services.groups.find(asked.group_id)
    if not isinstance(group, ConsumerGroup):
        return Code.NONE
    member = None if asked.member_id is None else MemberId(asked.member_id)
    return error_code(group.check_reader(member, asked.member_epoch))


async def _group(asked: Any, code: Code, version: int, services: Services) -> dict[str, Any]:
    name = asked.group_id
    told_of_group = code and version >= _GROUP_ERROR_SINCE
    return {
        "group_id": name,
        "error_code": code,
        "topics": ()
        if told_of_group
        else await _topics(services.groups.offsets(name), asked.topics, code, version, services),
    }


async def _topics(
    offsets: Offsets, asked: Any, code: Code, version: int, services: Services
) -> list[dict[str, Any]]:
    if asked is None:
        return await _all(offsets, version, services)
    by_id = version >= _IDS_SINCE
    told = []
    seen: defaultdict[Any, set[int]] = defaultdict(set)
    async for topic in services.budgets.portions(asked):
        found = _topic(topic, version, services)
        missing = Code.UNKNOWN_TOPIC_ID if by_id and found is None else Code.NONE
        name, topic_id = (found.name, found.id) if found else ("", None)
        key = topic.topic_id if by_id else topic.name
        # Each once, as groups: what a short request can ask for has a bound.
        partitions = []
        async for index in services.budgets.portions(topic.partition_indexes):
            if index in seen[key]:
                continue
            seen[key].add(index)
            partitions.append(_told(index, offsets.find(name, index, topic_id), code or missing))
        told.append(
            {
                "name": None if by_id else topic.name,
                "topic_id": topic.topic_id if by_id else None,
                "partitions": partitions,
            }
        )
    return told


async def _all(offsets: Offsets, version: int, services: Services) -> list[dict[str, Any]]:
    told = []
    portions = services.budgets.portions
    # Copies: offsets may come and go between two portions.
    async for name in portions(list(offsets.by_topic)):
        partitions = list(offsets.by_topic.get(name, ()))
        topic = services.catalog.topics.get(name)
        topic_id = topic.id if topic else None
        if topic is None and version >= _IDS_SINCE:
            continue  # there is no id to tell of a topic that is gone
        found = [
            _told(index, one, Code.NONE)
            async for index in portions(partitions)
            if (one := offsets.find(name, index, topic_id)) is not None
        ]
        told.append({"name": name, "topic_id": topic_id, "partitions": found})
    return told


def _told(index: int, committed: Committed | None, code: Code) -> dict[str, Any]:
    if committed is None or code:
        return {
            "partition_index": index, "committed_offset": -1, "committed_leader_epoch": -1,
            "metadata": "", "error_code": code,
        }  # fmt: skip
    return {
        "partition_index": index,
        "committed_offset": committed.offset,
        "committed_leader_epoch": committed.leader_epoch,
        "metadata": committed.metadata,
        "error_code": code,
    }
