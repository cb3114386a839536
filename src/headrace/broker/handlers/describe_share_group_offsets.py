"""DescribeShareGroupOffsets (90): how far share groups are, and how far behind. KIP-932, KIP-1226.

What is not there is no error: it has neither a start offset nor a lag.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any
from uuid import UUID

from headrace.broker.budgets import PORTION
from headrace.broker.errors import Code, error_code
from headrace.broker.request import Answer, Request
from headrace.broker.services import Services
from headrace.core.catalog import Topic
from headrace.core.share_admin import Queue
from headrace.core.share_words import ShareKey

_KEYS_PORTION = 1_000  # share-partitions that are grouped by topic without a pause
_UNKNOWN = -1
_LEADER_EPOCH = 0  # one broker, one leader


async def handle(request: Request, services: Services) -> Answer:
    asked: dict[Any, Any] = {}
    for one in request.message().groups:
        # Once each: a short request could ask for all of a large group very often.
        asked.setdefault(one.group_id if one.topics is None else one, one)
    return {
        "groups": [
            await _described(one, services)
            async for one in services.budgets.portions(asked.values())
        ]
    }


async def _described(request: Any, services: Services) -> dict[str, Any]:
    name = request.group_id
    machine = services.shares.machine(name)
    found = await _topics(request, services.shares.find(name), services)
    faulty = await services.shares.durable_of(name, machine)
    if faulty is not None:
        code, told = error_code(faulty), faulty.message
        return {"group_id": name, "topics": (), "error_code": code, "error_message": told}
    return {"group_id": name, "topics": found, "error_code": Code.NONE, "error_message": None}


async def _topics(request: Any, queue: Queue, services: Services) -> list[dict[str, Any]]:
    if request.topics is None:
        return [
            await _topic(topic, indexes, queue, services)
            for topic, indexes in await _all(queue, services)
        ]
    topics = services.catalog.topics
    named = await services.budgets.by_topic(
        (topic.topic_name, index, None) for topic in request.topics for index in topic.partitions
    )
    return [
        await _topic(topics[name], indexes, queue, services)
        if name in topics
        else _unknown(name, indexes)
        async for name, indexes in services.budgets.portions(named.items())
    ]


async def _all(queue: Queue, services: Services) -> list[tuple[Topic, list[int]]]:
    """Return the topics of a group and their partitions, in order, with pauses."""
    found: dict[UUID, list[int]] = {}
    async for key in services.budgets.portions(list(queue.partitions), _KEYS_PORTION):
        found.setdefault(key.topic_id, []).append(key.partition)
    ids = sorted(found) if len(found) <= PORTION else await _sorted_in_thread(found, services)
    topics = services.catalog.topics_by_id
    return [(topics[id_], sorted(found[id_])) for id_ in ids if id_ in topics]


async def _sorted_in_thread(ids: Iterable[UUID], services: Services) -> list[UUID]:
    """Sort the ids of many topics: 60,000 would hold the event loop for 200 ms."""
    async with services.budgets.one_large():
        return await services.budgets.in_thread(partial(sorted, list(ids)))


async def _topic(
    topic: Topic, indexes: Iterable[int], queue: Queue, services: Services
) -> dict[str, Any]:
    return {
        "topic_name": topic.name,
        "topic_id": topic.id,
        "partitions": [
            await _partition(topic, index, queue, services)
            async for index in services.budgets.portions(indexes)
        ],
    }


async def _partition(topic: Topic, index: int, queue: Queue, services: Services) -> dict[str, Any]:
    partition = await services.partitions.opened(topic.id, index)
    share = queue.partitions.get(ShareKey(queue.name, topic.id, index))
    if share is None or partition is None:
        return _nothing(index)
    try:
        lag = partition.high_watermark - share.start - share.finished
    except OSError as error:  # it cannot be opened, which must not keep the others from being told
        fault = {"error_code": Code.STORAGE_ERROR, "error_message": str(error)}
        return _nothing(index) | fault
    return _nothing(index) | {"start_offset": share.start, "lag": lag}


def _unknown(name: str, indexes: Iterable[int]) -> dict[str, Any]:
    return {
        "topic_name": name,
        "topic_id": None,
        "partitions": [_nothing(index) for index in indexes],
    }


def _nothing(index: int) -> dict[str, Any]:
    return {
        "partition_index": index,
        "start_offset": _UNKNOWN,
        "leader_epoch": _LEADER_EPOCH,
        "lag": _UNKNOWN,
        "error_code": Code.NONE,
        "error_message": None,
    }
