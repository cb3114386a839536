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
    message = request.message()
    named = await services.budgets.by_topic(
        (
            (topic.name, index, None)
            for topic in message.topics
            for index in topic.partition_indexes
        ),
        topics=(topic.name for topic in message.topics),
    )
    builder = _Builder(services)
    topics = []
    async with services.budgets.one_large():
        for name, indexes in named.items():
            partitions = [await builder.partition(name, index) for index in indexes]
            topics.append({"name": name, "partitions": partitions})
            await builder.pause()
        return await services.budgets.encoded(request, {"topics": topics})


class _Builder:
    """Builds a response; others have their turn after each `PORTION` of its elements."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._room = PRODUCERS_MAX
        self._built = 0  # topics, partitions and producers

    async def partition(self, name: str, index: int) -> dict[str, Any]:
        shown = await self._shown(await self._services.opened(name, index))
        await self.pause()
        return {"partition_index": index} | shown

    async def pause(self) -> None:
        """Pause behind the last element of a portion."""
        self._built += 1
        if self._built % PORTION == 0:
            await asyncio.sleep(0)

    async def _shown(self, partition: Partition | None) -> dict[str, Any]:
        if partition is None:
            return _failed(Code.UNKNOWN_TOPIC_OR_PARTITION, "there is no such partition")
        try:
            known = partition.log.producers
        except OSError as error:
            return _failed(Code.STORAGE_ERROR, str(error))
        if len(known) > self._room:
            return _failed(
                Code.INVALID_REQUEST,
                f"a response has at most {PRODUCERS_MAX} producers; request fewer partitions at a "
                "time",
            )
        self._room -= len(known)
        producers = []
        for last in known.remembered().last_entries():
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
            await self.pause()
        return {"error_code": Code.NONE, "active_producers": producers}


def _failed(code: Code, message: str) -> dict[str, Any]:
    return {"error_code": code, "error_message": message, "active_producers": []}
