"""ListOffsets (2): the offset of a time, or of one of the special times below zero.

A time is looked up in the indexes of a log, and then in the few batches that they lead to, which
are decoded in a thread one after the other; between two partitions, others have their turn.
"""

import asyncio
import logging
from functools import partial
from typing import Any

from headrace.broker.budgets import PORTION
from headrace.broker.decoding_threads import DecodingThreads
from headrace.broker.errors import Code
from headrace.broker.handlers.offset_for_leader_epoch import wrong_epoch
from headrace.broker.partitions import LEADER_EPOCH, Partition
from headrace.broker.request import Answer, Request
from headrace.broker.services import Services
from headrace.core.types import WallMs
from headrace.wire.batches import CorruptBatch

log = logging.getLogger("headrace.broker")
_LATEST, _EARLIEST, _MAX_TIMESTAMP, _EARLIEST_LOCAL = -1, -2, -3, -4
# The first version in which each special time may be asked for; -5 and -6 concern tiered storage.
_SINCE = {_LATEST: 1, _EARLIEST: 1, _MAX_TIMESTAMP: 7, _EARLIEST_LOCAL: 8, -5: 9, -6: 11}
_IN_MEMORY = {_LATEST, _EARLIEST, _EARLIEST_LOCAL}


async def handle(request: Request, services: Services) -> Answer:
    message = request.message()
    times = await services.budgets.counted(
        (topic.name, asked.partition_index)
        for topic in message.topics
        for asked in topic.partitions
    )
    topics = []
    number = 0
    for topic in message.topics:
        found = []
        for asked in topic.partitions:
            number += 1
            if asked.timestamp not in _IN_MEMORY or number % PORTION == 0:
                await asyncio.sleep(0)
            partition = await services.opened(topic.name, asked.partition_index)
            if times[topic.name, asked.partition_index] > 1:
                found.append(_shown(asked, Code.INVALID_REQUEST))
            else:
                found.append(await _partition(partition, asked, request.version, services))
        topics.append({"name": topic.name, "partitions": found})
    return {"topics": topics}


async def _partition(
    partition: Partition | None, asked: Any, version: int, services: Services
) -> dict[str, Any]:
    if partition is None:
        return _shown(asked, Code.UNKNOWN_TOPIC_OR_PARTITION)
    code = wrong_epoch(getattr(asked, "current_leader_epoch", -1))
    if code is Code.NONE and asked.timestamp < 0 and version < _SINCE.get(asked.timestamp, 1 << 15):
        code = Code.UNSUPPORTED_VERSION
    if code is not Code.NONE:
        return _shown(asked, code)
    try:
        found = await _find(partition, asked.timestamp, services.decoding_threads)
        return _shown(asked, Code.NONE, *found)
    except CorruptBatch:  # its checksum is right; a producer made it so
        return _shown(asked, Code.CORRUPT_MESSAGE)
    except OSError as error:
        partition.read_failed(error)
        return _shown(asked, Code.STORAGE_ERROR)


def _shown(asked: Any, code: Code, offset: int = -1, timestamp: int = -1) -> dict[str, Any]:
    return {
        "partition_index": asked.partition_index,
        "error_code": code,
        "timestamp": timestamp,
        "offset": offset,
        "leader_epoch": LEADER_EPOCH if offset >= 0 else -1,
    }


async def _find(partition: Partition, timestamp: int, threads: DecodingThreads) -> tuple[int, int]:
    """Offset and timestamp, -1 for none."""
    if timestamp == _LATEST:
        return partition.high_watermark, -1
    if timestamp in {_EARLIEST, _EARLIEST_LOCAL}:
        return partition.start_offset, -1
    found = None
    if timestamp == _MAX_TIMESTAMP:
        found = await threads.search(partition, partition.log.search_max_time)
    elif timestamp >= 0:
        begin = partial(partition.log.search_time, WallMs(timestamp))
        found = await threads.search(partition, begin)
    return (-1, -1) if found is None else found
