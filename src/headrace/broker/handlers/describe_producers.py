"""DescribeProducers (61): the idempotent producers that a partition remembers.

Source: KIP-664, UnifiedLog.activeProducers (4.3).
"""

import asyncio
from typing import Any

from headrace.broker.budgets import PORTION
from headrace.broker.errors import Code
from headrace.broker.partitions import Partition
from headrace.broker.request import Answer, Request
from headrace.broker.services import Services

_NO_TRANSACTION = -1
PRODUCERS_MAX = 100_000  # in one response


async def handle(request: Request, services: Services) -> Answer:
    # Once each: a short request could ask for a partition with many producers very often.
    named: dict[str, dict[int, None]] = {}
    for topic in request.message().topics:
        named.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    room = PRODUCERS_MAX
    topics = []
    async with services.budgets.one_large():
        for name, indexes in named.items():
            partitions = []
            for index in indexes:
                shown = await _known(await services.opened(name, index), room)
                room -= len(shown["active_producers"])
                partitions.append({"partition_index": index} | shown)
                if len(partitions) % PORTION == 0:
                    await asyncio.sleep(0)
            topics.append({"name": name, "partitions": partitions})
            if len(topics) % PORTION == 0:
                await asyncio.sleep(0)
        return await services.budgets.encoded(request, {"topics": topics})


async def _known(partition: Partition | None, room: int) -> dict[str, Any]:
    if partition is None:
        return {
            "error_code": Code.UNKNOWN_TOPIC_OR_PARTITION,
            "error_message": "there is no such partition",
            "active_producers": [],
        }
    try:
        remembered = partition.log.producers.remembered()
    except OSError as error:
        return {
            "error_code": Code.STORAGE_ERROR,
            "error_message": str(error),
            "active_producers": [],
        }
    if len(remembered) > room:
        return {
            "error_code": Code.INVALID_REQUEST,
            "error_message": f"a response has at most {PRODUCERS_MAX} producers; request fewer "
            "partitions at a time",
            "active_producers": [],
        }
    producers = []
    for number, last in enumerate(remembered.last_entries(), 1):
        producers.append(
            {
                "producer_id": last.producer_id,
                "producer_epoch": last.epoch,
                "last_sequence": last.last_sequence,
                "last_timestamp": last.timestamp,
                "coordinator_epoch": _NO_TRANSACTION,
                "current_txn_start_offset": _NO_TRANSACTION,
            }
        )
        if number % PORTION == 0:
            await asyncio.sleep(0)
    return {"error_code": Code.NONE, "active_producers": producers}
