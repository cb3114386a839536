"""DeleteRecords (21): the start of partitions moves up, and what is below it is gone.

Source: KIP-107, ReplicaManager.deleteRecordsOnLocalLog (4.3).
"""

import logging
from collections.abc import Mapping
from itertools import islice
from typing import Any, NamedTuple

from headrace.broker.errors import Code, Faulty
from headrace.broker.partitions import Partition
from headrace.broker.request import Answer, Request
from headrace.broker.services import Services

log = logging.getLogger("headrace.broker")
_HIGH_WATERMARK = -1
_NO_LOW_WATERMARK = -1
_PORTION = 50  # partitions that are looked at without a pause
_GROUP = 500  # partitions whose starts are kept with one write


class _Asked(NamedTuple):
    """One partition of the request."""

    topic: str
    number: int
    offset: int


async def handle(request: Request, services: Services) -> Answer:
    topics = request.message().topics
    asked = (
        _Asked(topic.name, one.partition_index, one.offset)
        for topic in topics
        for one in topic.partitions
    )
    answers: list[dict[str, Any]] = []
    while some := list(islice(asked, _GROUP)):
        answers += await _moved(some, services)
    left = iter(answers)
    return {
        "topics": [
            {"name": topic.name, "partitions": list(islice(left, len(topic.partitions)))}
            async for topic in services.budgets.portions(topics)
        ]
    }


async def _moved(asked: list[_Asked], services: Services) -> list[dict[str, Any]]:
    wanted: dict[Partition, int] = {}
    found: list[Partition | Code] = []
    async for one in services.budgets.portions(asked, _PORTION):
        try:
            partition, offset = _resolved(one, services)
        except Faulty as fault:
            found.append(fault.code)
        except OSError as error:
            found.append(_failed(one, error))
        else:
            found.append(partition)
            wanted[partition] = max(offset, wanted.get(partition, 0))
    starts = await services.topics.partitions.delete_records(wanted)
    return [_answer(one, outcome, starts) for one, outcome in zip(asked, found, strict=True)]


def _answer(
    asked: _Asked, found: Partition | Code, starts: Mapping[Partition, int | OSError]
) -> dict[str, Any]:
    start, code = _NO_LOW_WATERMARK, Code.NONE
    if isinstance(found, Code):
        code = found
    elif isinstance(outcome := starts[found], OSError):
        code = _failed(asked, outcome)
    else:
        start = outcome
    return {"partition_index": asked.number, "low_watermark": start, "error_code": code}


def _failed(asked: _Asked, error: OSError) -> Code:
    log.error("deleting records of %s-%d failed: %s", asked.topic, asked.number, error)
    return Code.STORAGE_ERROR


def _resolved(asked: _Asked, services: Services) -> tuple[Partition, int]:
    """Return the partition, and the first offset that is kept. Raises: Faulty; OSError."""
    topic, index, offset = asked
    partition = services.partition(topic, index)
    if partition is None:
        raise Faulty(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {topic}-{index}")
    if partition.topic.internal:
        raise Faulty(Code.INVALID_TOPIC, f"{topic} is internal")
    if partition.settings.cleanup_policy == ("compact",):
        raise Faulty(Code.POLICY_VIOLATION, f"{topic} is compacted, and not deleted from")
    end = partition.high_watermark
    wanted = end if offset == _HIGH_WATERMARK else offset
    if not 0 <= wanted <= end:
        raise Faulty(Code.OFFSET_OUT_OF_RANGE, f"{topic}-{index} ends at {end}, not {offset}")
    return partition, wanted
