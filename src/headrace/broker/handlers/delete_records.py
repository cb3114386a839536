"""DeleteRecords (21): the start of partitions moves up, and what is below it is gone.

Source: KIP-107, ReplicaManager.deleteRecordsOnLocalLog (4.3).
"""

import logging
from collections.abc import Mapping
from itertools import islice
from typing import Any, NamedTuple

from headrace.broker.errors import Code, Faulty
from headrace.broker.partitions import Partition, StartOutcome
from headrace.broker.request import Answer, Request
from headrace.broker.services import Services

log = logging.getLogger("headrace.broker")
_HIGH_WATERMARK = -1
_NO_LOW_WATERMARK = -1
_PORTION = 50  # partitions that are resolved without a pause


class _Deletion(NamedTuple):
    """One partition of the request."""

    topic: str
    partition_index: int
    offset: int


async def handle(request: Request, services: Services) -> Answer:
    named = await services.budgets.by_topic(
        (topic.name, partition.partition_index, partition.offset)
        for topic in request.message().topics
        for partition in topic.partitions
    )
    deletions = [
        _Deletion(name, index, offset)
        for name, offsets in named.items()
        for index, offset in offsets.items()
    ]
    remaining = iter(await _deleted(deletions, services))
    return {
        "topics": [
            {"name": name, "partitions": list(islice(remaining, len(offsets)))}
            async for name, offsets in services.budgets.portions(named.items())
        ]
    }


async def _deleted(deletions: list[_Deletion], services: Services) -> list[dict[str, Any]]:
    """Carry out the deletions; return the partition results in their order."""
    offsets: dict[Partition, int] = {}
    targets: list[Partition | Code] = []
    async for deletion in services.budgets.portions(deletions, _PORTION):
        try:
            partition, offset = await _resolved(deletion, services)
        except Faulty as fault:
            targets.append(fault.code)
        except OSError as error:
            targets.append(_failed(deletion, error))
        else:
            targets.append(partition)
            offsets[partition] = offset
    starts = await services.topics.partitions.delete_records(offsets)
    return [
        _result(deletion, target, starts)
        for deletion, target in zip(deletions, targets, strict=True)
    ]


def _result(
    deletion: _Deletion, target: Partition | Code, starts: Mapping[Partition, StartOutcome]
) -> dict[str, Any]:
    start, code = _NO_LOW_WATERMARK, Code.NONE
    if isinstance(target, Code):
        code = target
    elif isinstance(outcome := starts[target], int):
        start = outcome
    elif isinstance(outcome, OSError):
        code = _failed(deletion, outcome)
    else:  # a failed sync has moved the end since
        code = Code.OFFSET_OUT_OF_RANGE
    index = deletion.partition_index
    return {"partition_index": index, "low_watermark": start, "error_code": code}


def _failed(deletion: _Deletion, error: OSError) -> Code:
    topic, index, _ = deletion
    log.error("deleting records of %s-%d failed: %s", topic, index, error)
    return Code.STORAGE_ERROR


async def _resolved(deletion: _Deletion, services: Services) -> tuple[Partition, int]:
    """Return the partition, and its new start offset. Raises: Faulty; OSError."""
    topic, index, offset = deletion
    partition = await services.opened(topic, index)
    if partition is None:
        raise Faulty(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {topic}-{index}")
    if partition.topic.internal:
        raise Faulty(Code.INVALID_TOPIC, f"{topic} is internal")
    if partition.settings.cleanup_policy == ("compact",):
        raise Faulty(Code.POLICY_VIOLATION, f"{topic} is compacted, and not deleted from")
    end = partition.high_watermark
    start = end if offset == _HIGH_WATERMARK else offset
    if not 0 <= start <= end:
        raise Faulty(Code.OFFSET_OUT_OF_RANGE, f"{topic}-{index} ends at {end}, not {offset}")
    return partition, start
