"""Where `share.auto.offset.reset=by_duration` leads: to the first records that are young enough.

The logs are searched before the command that needs to know, so that decisions wait for no disk.
Where there is no such record it is the end of the log as it was then: whatever is produced after is
delivered. Kafka holds the partition back until there is one (reference, section 5.4).
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from functools import partial

from headrace.broker.decoding_threads import DecodingThreads
from headrace.broker.partitions import Partition
from headrace.broker.services import Services
from headrace.core.share_group import CLOSED
from headrace.core.types import WallMs, earlier
from headrace.wire.batches import CorruptBatch

log = logging.getLogger("headrace.broker")


async def new_starts(
    services: Services, group: str, topics: Iterable[str]
) -> Mapping[str, tuple[int, ...]]:
    """As `starts_by_duration`, of the topics that are new to the group. Raises: OSError."""
    if services.shares.settings(group).reset_age_ms is None:
        return {}
    known = {key.topic_id for key in services.shares.machine(group).partitions_of(group)}
    there = services.catalog.topics
    new = [name for name in topics if name in there and there[name].id not in known]
    return await starts_by_duration(services, group, new)


async def starts_by_duration(
    services: Services, group: str, topics: Iterable[str]
) -> Mapping[str, tuple[int, ...]]:
    """By topic where the group's policy leads in its partitions; none unless it is by duration.

    Where a log is refused until the next start, that is `CLOSED`.

    Raises: OSError, also where a log cannot be opened now: another request may open it before the
        start is decided, and the group would begin in a log that was not searched.
    """
    age_ms = services.shares.settings(group).reset_age_ms
    if age_ms is None:
        return {}
    since = earlier(services.clock.proven(), age_ms)
    found: dict[str, tuple[int, ...]] = {}
    for name in dict.fromkeys(topics):
        topic, starts = services.catalog.topics.get(name), list[int]()
        for index in range(0 if topic is None or topic.internal else topic.partitions):
            await asyncio.sleep(0)
            partition = await services.opened(name, index)
            if partition is None:  # it was added, or deleted, a moment ago
                break
            if partition.refused is not None:  # the group cannot begin it before the next start
                starts.append(CLOSED)
                continue
            starts.append(await _start(partition, since, services.decoding_threads))
        found[name] = tuple(starts)
    return found


async def _start(partition: Partition, since: WallMs, threads: DecodingThreads) -> int:
    """The first record of that time or later. Raises: OSError."""
    end = partition.high_watermark
    try:
        found = await threads.search(partition, partial(partition.log.search_time, since))
    except CorruptBatch:
        log.warning(
            "%s: a batch that a producer damaged keeps its records from being found by time; "
            "share groups begin at the start of the log instead",
            partition.name,
        )
        return partition.start_offset
    return end if found is None else min(found[0], end)
