"""DescribeProducers (61): the idempotent producers that a partition remembers.

Source: KIP-664, UnifiedLog.activeProducers (4.3).
"""

from typing import Any

from headrace.broker.errors import Code
from headrace.broker.partitions import Partition
from headrace.broker.request import Answer, Request
from headrace.broker.services import Services

_NO_TRANSACTION = -1


async def handle(request: Request, services: Services) -> Answer:
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": index} | _known(services.partition(topic.name, index))
                    for index in topic.partition_indexes
                ],
            }
            for topic in request.message().topics
        ]
    }


def _known(partition: Partition | None) -> dict[str, Any]:
    if partition is None:
        return {
            "error_code": Code.UNKNOWN_TOPIC_OR_PARTITION,
            "error_message": "there is no such partition",
            "active_producers": [],
        }
    try:
        lasts = {entry.producer_id: entry for entry in partition.log.producers.entries()}
    except OSError as error:
        return {
            "error_code": Code.STORAGE_ERROR,
            "error_message": str(error),
            "active_producers": [],
        }
    return {
        "error_code": Code.NONE,
        "active_producers": [
            {
                "producer_id": last.producer_id,
                "producer_epoch": last.epoch,
                "last_sequence": last.last_sequence,
                "last_timestamp": last.timestamp,
                "coordinator_epoch": _NO_TRANSACTION,
                "current_txn_start_offset": _NO_TRANSACTION,
            }
            for last in lasts.values()
        ],
    }
