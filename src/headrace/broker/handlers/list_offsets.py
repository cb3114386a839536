"""ListOffsets (2): the offset of a time, or of one of the special times below zero."""

from typing import Any

from headrace.broker.errors import Code
from headrace.broker.partitions import LEADER_EPOCH, Partition
from headrace.broker.request import Answer, Api, Request
from headrace.broker.services import Services
from headrace.core.types import WallMs
from headrace.wire.batches import CorruptBatch

APIS = (Api(2, "ListOffsets", range(1, 12)),)
_LATEST, _EARLIEST, _MAX_TIMESTAMP, _EARLIEST_LOCAL = -1, -2, -3, -4
# The first version in which each special time may be asked for; -5 and -6 concern tiered storage.
_SINCE = {_LATEST: 1, _EARLIEST: 1, _MAX_TIMESTAMP: 7, _EARLIEST_LOCAL: 8, -5: 9, -6: 11}


async def handle(request: Request, services: Services) -> Answer:
    message = request.message()
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    _partition(
                        services.partition(topic.name, asked.partition_index), asked, request
                    )
                    for asked in topic.partitions
                ],
            }
            for topic in message.topics
        ]
    }


def _partition(partition: Partition | None, asked: Any, request: Request) -> dict[str, Any]:
    code, offset, timestamp = Code.NONE, -1, -1
    if partition is None:
        code = Code.UNKNOWN_TOPIC_OR_PARTITION
    elif getattr(asked, "current_leader_epoch", -1) > LEADER_EPOCH:
        code = Code.UNKNOWN_LEADER_EPOCH
    elif asked.timestamp < 0 and request.version < _SINCE.get(asked.timestamp, 1 << 15):
        code = Code.UNSUPPORTED_VERSION
    else:
        try:
            offset, timestamp = _find(partition, asked.timestamp)
        except CorruptBatch:  # its checksum is right; a producer made it so
            code = Code.CORRUPT_MESSAGE
    return {
        "partition_index": asked.partition_index,
        "error_code": code,
        "timestamp": timestamp,
        "offset": offset,
        "leader_epoch": LEADER_EPOCH if offset >= 0 else -1,
    }


def _find(partition: Partition, timestamp: int) -> tuple[int, int]:
    """Offset and timestamp, -1 for none."""
    if timestamp == _LATEST:
        return partition.high_watermark, -1
    if timestamp in {_EARLIEST, _EARLIEST_LOCAL}:
        return partition.start_offset, -1
    if timestamp == _MAX_TIMESTAMP:
        found = partition.log.offset_of_max_time()
    elif timestamp < 0:
        found = None
    else:
        found = partition.log.offset_for_time(WallMs(timestamp))
    if found is None or found[0] >= partition.high_watermark:
        return -1, -1
    return found
