"""Share-partitions that a heartbeat or a lease begins, in portions where they are many.

A topic of 1,000 partitions takes 45 ms to begin in one step. No member learns of a share-partition
before the request that began it is answered, so a group may have some of a topic's for a while;
the first partitions come last, by which a later request knows whether it has to go on
(`core/share_starts.py`).
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from headrace.broker.runtime import StorageFault
from headrace.broker.services import Services
from headrace.core import share_starts
from headrace.core.catalog import Topic
from headrace.core.errors import Refused
from headrace.core.shard_words import OpenLease, StartPartitions
from headrace.core.share_group import LEAVE, Heartbeat, ShareGroup
from headrace.core.share_starts import is_begun, may_begin


def missing_topics(services: Services, group: str, names: Iterable[str]) -> list[tuple[Topic, int]]:
    """Return the topics with partitions that a group has not begun and can begin, and how many.

    Call `Shares.open_topics` before.
    """
    machine, topics = services.shares.machine(group), services.catalog.topics
    return [
        (topic, count)
        for name in dict.fromkeys(names)
        if (topic := topics.get(name)) is not None
        and machine.missing(group, topic.id, topic.partitions) > 0
        and (view := services.shares.topic(name)) is not None
        and (count := machine.startable(group, view)) > 0
    ]


async def start_partitions(
    services: Services,
    group: str,
    missing: Sequence[tuple[Topic, int]],
    *,
    awaited: frozenset[str],
    found: Mapping[str, tuple[int, ...]],
    earliest: bool,
) -> None:
    """Begin the share-partitions of a group, a portion in each turn of the loop.

    Few of them are left to the command that follows.

    Args:
        group: Name of the group.
        missing: As `missing_topics` returned it.
        awaited: Topics that members subscribed to before they existed; begun at their first record.
        found: Where the reset policy by duration leads, by topic.
        earliest: Whether other topics begin at their start, or at their end.

    Raises: StorageFault; OSError.
    """
    portion = share_starts.STARTED_AT_ONCE
    if sum(count for _, count in missing) <= portion:
        return
    async with services.budgets.one_large():
        for topic, _ in sorted(missing, key=lambda one: one[0].name):
            begun = services.shares.machine(group).partitions  # of now: a fault replaces it
            has_begun = is_begun(group, topic.id, topic.partitions, begun)
            view = services.shares.topic(topic.name)
            if view is None or not (has_begun or may_begin(view)):
                continue
            from_start = earliest or topic.name in awaited
            since = found.get(topic.name, ()) if topic.name not in awaited else ()
            count = topic.partitions
            for first in range((count - 1) // portion * portion, -1, -portion):
                indexes = range(first, min(first + portion, count))
                starts = _starts(services, topic, indexes, since, from_start=from_start)
                if has_begun:
                    starts = [(one, index, 0) for one, index, _ in starts]
                reply = services.shares.shard(group).decide(StartPartitions(group, tuple(starts)))
                if isinstance(reply, StorageFault):
                    raise reply
                await asyncio.sleep(0)


def _starts(
    services: Services, topic: Topic, indexes: Iterable[int], found: tuple[int, ...], *,
    from_start: bool,
) -> list[tuple[UUID, int, int]]:  # fmt: skip
    """Return topic, partition and SPSO of partitions that there are. Raises: OSError."""
    starts: list[tuple[UUID, int, int]] = []
    for index in indexes:
        partition = services.partitions.get(topic.id, index)
        if partition is None or not partition.is_open:
            continue  # the topic was deleted a moment ago, or has grown; or the log is refused
        start = partition.start_offset if from_start else partition.high_watermark
        if from_start and index < len(found):
            start = max(start, found[index])
        starts.append((topic.id, index, start))
    return starts


async def start_for_lease(services: Services, command: OpenLease) -> Refused | None:
    """Begin what a lease needs; returns why there is no memory for it.

    Raises: StorageFault; OSError.
    """
    group, _ = command.lease
    await services.shares.open_topics(command.topics)
    if not services.catalog.topics.keys() >= set(command.topics):
        return None  # the lease is refused
    _require_begin(services, group, command.topics)
    missing = missing_topics(services, group, command.topics)
    if not missing:
        return None
    refused = services.group_memory.admit_share_partitions(sum(count for _, count in missing))
    if refused is None:
        await start_partitions(
            services, group, missing, awaited=frozenset(), found={}, earliest=command.earliest
        )
    return refused


def _require_begin(services: Services, group: str, names: Iterable[str]) -> None:
    """Check that a group has begun topics or can begin them. Raises: OSError."""
    machine = services.shares.machine(group)
    for name in names:
        view, topic = services.shares.topic(name), services.catalog.topics.get(name)
        if view is None or topic is None or may_begin(view):
            continue
        if not is_begun(group, view.id, view.partitions, machine.partitions):
            services.shares.require_open([name])


async def start_for_heartbeat(services: Services, command: Heartbeat) -> Refused | None:
    """Begin what a heartbeat of a share group needs; returns why there is no memory for it.

    Raises: StorageFault; OSError.
    """
    names = _names(services, command)
    await services.shares.open_topics(names)
    missing = missing_topics(services, command.group, names)
    if not missing or command.epoch == LEAVE:
        return None
    group = services.shares.machine(command.group).groups.get(command.group)
    awaited = group.topics() if group is not None else frozenset()
    timing = services.shares.timing(command.group)
    if (group or ShareGroup(command.group)).check(command, timing) is not None:
        return None  # the heartbeat is refused by itself
    refused = services.group_memory.admit_share_partitions(sum(count for _, count in missing))
    if refused is not None:
        return refused
    await start_partitions(
        services, command.group, missing, awaited=awaited, found=command.starts,
        earliest=services.shares.starts_earliest(command.group),
    )  # fmt: skip
    return None


def _names(services: Services, command: Heartbeat) -> frozenset[str]:
    """Return the topics of a group, and those of a heartbeat."""
    group = services.shares.machine(command.group).groups.get(command.group)
    topics = frozenset() if group is None else group.topics()
    return topics | (command.topics or frozenset())
