"""DeleteRecords (21): the start of partitions moves up, and what is below it is gone.

Source: KIP-107, ReplicaManager.deleteRecordsOnLocalLog (4.3).
"""

import logging
from typing import Any

from headrace.broker.errors import Code, Faulty
from headrace.broker.request import Answer, Request
from headrace.broker.services import Services

log = logging.getLogger("headrace.broker")
_HIGH_WATERMARK = -1
_NO_LOW_WATERMARK = -1
_PORTION = 1  # partitions without a pause: each start offset is written and synced


async def handle(request: Request, services: Services) -> Answer:
    portions = services.budgets.portions
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": asked.partition_index} | _moved(topic.name, asked, services)
                    async for asked in portions(topic.partitions, _PORTION)
                ],
            }
            async for topic in portions(request.message().topics)
        ]
    }


def _moved(topic: str, asked: Any, services: Services) -> dict[str, Any]:
    try:
        start = _move(topic, asked.partition_index, asked.offset, services)
    except Faulty as fault:
        return {"low_watermark": _NO_LOW_WATERMARK, "error_code": fault.code}
    except OSError as error:
        log.error("deleting records of %s-%d failed: %s", topic, asked.partition_index, error)
        return {"low_watermark": _NO_LOW_WATERMARK, "error_code": Code.STORAGE_ERROR}
    return {"low_watermark": start, "error_code": Code.NONE}


def _move(topic: str, index: int, offset: int, services: Services) -> int:
    """The first offset that is kept. Raises: Faulty; OSError."""
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
    return partition.delete_records(wanted)
