"""OffsetForLeaderEpoch (23): where the records of a leader's epoch end. There is one epoch.

Source: KIP-320, Partition.lastOffsetForLeaderEpoch (4.3).
"""

import asyncio
from typing import Any

from headrace.broker.budgets import PORTION
from headrace.broker.errors import Code
from headrace.broker.partitions import LEADER_EPOCH, Partition
from headrace.broker.request import Answer, Request
from headrace.broker.services import Services


async def handle(request: Request, services: Services) -> Answer:
    topics: list[dict[str, Any]] = []
    portion = 0
    message = request.message()
    named = await services.budgets.by_topic(
        (
            (topic.topic, requested.partition, requested)
            for topic in message.topics
            for requested in topic.partitions
        ),
        topics=(topic.topic for topic in message.topics),
    )
    async for name, epochs in services.budgets.portions(named.items()):
        partitions = []
        for index, requested in epochs.items():
            portion = (portion + 1) % PORTION
            if not portion:
                await asyncio.sleep(0)
            partition = await services.opened(name, index)
            partitions.append({"partition": index} | _end(partition, requested))
        topics.append({"topic": name, "partitions": partitions})
    return {"topics": topics}


def _end(partition: Partition | None, requested: Any) -> dict[str, Any]:
    if partition is None:
        return {"error_code": Code.UNKNOWN_TOPIC_OR_PARTITION}
    code = wrong_epoch(requested.current_leader_epoch)
    if code is not Code.NONE or requested.leader_epoch != LEADER_EPOCH:
        return {"error_code": code}
    try:
        end = partition.high_watermark
    except OSError:  # the log is damaged; the partition has logged it
        return {"error_code": Code.STORAGE_ERROR}
    return {"error_code": Code.NONE, "leader_epoch": LEADER_EPOCH, "end_offset": end}


def wrong_epoch(current: int) -> Code:
    """Whether a client that believes in the leader epoch `current` (-1: in none) is wrong."""
    if current > LEADER_EPOCH:
        return Code.UNKNOWN_LEADER_EPOCH
    return Code.FENCED_LEADER_EPOCH if 0 <= current < LEADER_EPOCH else Code.NONE
