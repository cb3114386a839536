"""OffsetCommit (8): how far a consumer group has come, partition by partition.

What is wrong with one partition is told of that one; what is wrong with the group, or with who
commits, is told of every partition that was right.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from headrace.broker.budgets import DECODE_BYTES_MAX
from headrace.broker.errors import Code, error_code
from headrace.broker.request import Answering, Later, Raw, Request
from headrace.broker.services import Services
from headrace.core.catalog import Topic
from headrace.core.errors import Refused, Why
from headrace.core.group_words import Commit, Offset
from headrace.core.offset_life import NAMES_BYTES_MAX
from headrace.core.types import MemberId
from headrace.wire import offset_commits
from headrace.wire.offset_commits import CommitRequest, Place, TopicKey

_EPOCHS_SINCE = 9
_UNKNOWN_GROUP_SINCE = 9
_NO_RETENTION = -1

_PORTION = 500  # offsets in one command of a large request: some milliseconds
_TOLD = 2000  # codes that are noted without a pause

Told = dict[TopicKey, list[tuple[int, int]]]  # partitions with their codes
Good = list[tuple[TopicKey, int]]


def handle(request: Request, services: Services) -> Answering:
    if len(request.body) > DECODE_BYTES_MAX:
        return _large(request, services)
    message = _read(request)
    told: Told = {}  # of what cannot be committed; it comes first in the answer
    good: Good = []
    offsets: list[Offset] = []
    for key, places in message.topics:
        _sort(key, places, request.version, services, told, good, offsets)
    if not good:
        return _answer(told, request.version)
    later = Later()

    def tell(reply: Any) -> None:
        codes = _codes(reply, len(good), message, request, services)
        for (key, partition), code in zip(good, codes, strict=True):
            told.setdefault(key, []).append((partition, code))
        # The meter is marked for each committed offset, also one that was overtaken (KIP-496).
        services.groups.meters.offset_commits += request.overtakes * codes.count(Code.NONE)
        later.set(partial(_answer, told, request.version))

    size = len(request.body)
    refused = services.group_memory.admit_commit(
        message.group, size, offsets, by_member=message.generation >= 0
    )
    if refused is not None:
        tell(refused)
        return later
    services.groups.submit(message.group, _command(message, offsets, request), tell)
    return later


async def _large(request: Request, services: Services) -> Raw:
    """Commit many offsets: decoded in a thread, decided and journaled in portions."""
    budgets, version = services.budgets, request.version
    told: Told = {}
    waiting: list[tuple[Good, asyncio.Future[Any]]] = []
    async with budgets.one_large():
        message = await budgets.in_thread(partial(_read, request))
        refused = services.group_memory.admit_commit(
            message.group, len(request.body), (), by_member=message.generation >= 0
        )
        good: Good = []
        offsets: list[Offset] = []
        count = await budgets.in_thread(partial(_count, message))
        # Else the shard refuses the commit, and must see all of it for that.
        is_cut = len(message.group.encode()) * count <= NAMES_BYTES_MAX
        async for key, places in budgets.portions(message.topics):
            for first in range(0, len(places), _PORTION):
                part = places[first : first + _PORTION]
                _sort(key, part, version, services, told, good, offsets)
                if is_cut and len(offsets) >= _PORTION and refused is None:
                    waiting.append((good, _submitted(message, offsets, request, services)))
                    good, offsets = [], []
                    await asyncio.sleep(0)
                elif len(part) == _PORTION:
                    await asyncio.sleep(0)  # none of them is of a partition that exists
        if good and refused is None:
            waiting.append((good, _submitted(message, offsets, request, services)))
    if refused is not None:
        codes = _codes(refused, len(good), message, request, services)
        async for (key, partition), code in budgets.portions(zip(good, codes, strict=True), _TOLD):
            told.setdefault(key, []).append((partition, code))
    for good, reply in waiting:
        codes = _codes(await reply, len(good), message, request, services)
        for (key, partition), code in zip(good, codes, strict=True):
            told.setdefault(key, []).append((partition, code))
        await asyncio.sleep(0)
    async with budgets.one_large():
        return await budgets.in_thread(partial(_answer, told, version))


def _read(request: Request) -> CommitRequest:
    """Decode a request, each partition once: as in Kafka, the last offset counts.

    Raises: Malformed.
    """
    message = offset_commits.read(request.body, request.version)
    topics = message.topics
    if len(topics) == 1 and len(topics[0][1]) == 1:
        return message
    last: dict[TopicKey, dict[int, Place]] = {}
    for key, places in topics:
        last.setdefault(key, {}).update({place.partition: place for place in places})
    if sum(map(len, last.values())) == _count(message):
        return message
    once = [
        (key, [place for place in places if last[key][place.partition] is place])
        for key, places in topics
    ]
    return message._replace(topics=once)


def _count(message: CommitRequest) -> int:
    return sum(len(places) for _, places in message.topics)


def _submitted(
    message: CommitRequest, offsets: list[Offset], request: Request, services: Services
) -> "asyncio.Future[Any]":
    """Submit a portion; returns its reply, which comes once it is durable."""
    reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def tell(outcome: Any) -> None:
        if not reply.done():
            reply.set_result(outcome)

    services.groups.submit(message.group, _command(message, offsets, request), tell)
    return reply


def _sort(
    key: TopicKey, places: Sequence[Place], version: int, services: Services,
    told: Told, good: Good, offsets: list[Offset],
) -> None:  # fmt: skip
    """Sort the offsets of a topic into those that can be committed and the errors of others."""
    topic = _topic(key, version, services)
    for place in places:
        if isinstance(topic, Topic) and 0 <= place.partition < topic.partitions:
            good.append((key, place.partition))
            offsets.append(_offset(topic, place))
        else:
            code = topic if isinstance(topic, Code) else Code.UNKNOWN_TOPIC_OR_PARTITION
            told.setdefault(key, []).append((place.partition, code))


def _topic(key: TopicKey, version: int, services: Services) -> Topic | Code:
    if version < offset_commits.TOPIC_IDS_SINCE:
        assert isinstance(key, str), key
        return services.catalog.topics.get(key) or Code.UNKNOWN_TOPIC_OR_PARTITION
    found = None if key is None or isinstance(key, str) else services.catalog.topics_by_id.get(key)
    return found or Code.UNKNOWN_TOPIC_ID


def _offset(topic: Topic, place: Place) -> Offset:
    return Offset(
        topic.name, place.partition, place.offset, place.leader_epoch, place.metadata or "",
        topic.id,
    )  # fmt: skip


def _command(message: CommitRequest, offsets: list[Offset], request: Request) -> Commit:
    return Commit(
        message.group,
        MemberId(message.member),
        message.instance,
        message.generation,
        tuple(offsets),
        None if message.retention_ms == _NO_RETENTION else message.retention_ms,
        request.asked_by(message.member),
        tells_epoch=request.version >= _EPOCHS_SINCE,
    )


def _codes(
    reply: Any, count: int, message: CommitRequest, request: Request, services: Services
) -> list[Code]:
    if not isinstance(reply, Refused):
        return [error_code(one) for one in reply]
    services.refusals.log_member(message.group, request.asked_by(message.member), reply)
    code = error_code(reply)
    if reply.why is Why.UNKNOWN_GROUP and request.version < _UNKNOWN_GROUP_SINCE:
        code = Code.ILLEGAL_GENERATION  # what clients of those versions expect
    return [code] * count


def _answer(told: Told, version: int) -> Raw:
    return Raw([offset_commits.written(list(told.items()), version)])
