"""DescribeLogDirs (35): how much the partitions hold, and how much the disk has left.

Source: KIP-113, KIP-827 (sizes of the volume).
"""

import contextlib
import os
from collections import defaultdict
from typing import Any

from headrace.broker.errors import Code
from headrace.broker.partitions import Partition
from headrace.broker.request import Answer, Request
from headrace.broker.services import Services

_PORTION = 50  # partitions whose size is found without a pause


async def handle(request: Request, services: Services) -> Answer:
    message = request.message()
    wanted = None
    if message.topics is not None:
        named = ((one.topic, index) for one in message.topics for index in one.partitions)
        wanted = await services.budgets.counted(named)
    topics: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    async for partition in services.budgets.portions(list(services.partitions), _PORTION):
        name = partition.topic.name
        if wanted is None or (name, partition.index) in wanted:
            topics[name].append(
                {
                    "partition_index": partition.index,
                    "partition_size": _size(partition, services),
                    "offset_lag": 0,
                    "is_future_key": False,
                }
            )
    volume = os.statvfs(services.folder)
    folder = {
        "error_code": Code.NONE,
        "log_dir": str(services.folder.absolute()),
        "topics": [{"name": name, "partitions": held} for name, held in topics.items()],
        "total_bytes": volume.f_blocks * volume.f_frsize,
        "usable_bytes": volume.f_bavail * volume.f_frsize,
    }
    return {"error_code": Code.NONE, "results": [folder]}


def _size(partition: Partition, services: Services) -> int:
    """Bytes of the segments; a log that nobody has used yet is not opened for that."""
    if partition.is_open:
        return partition.log.size_bytes
    size = 0
    for file in (services.folder / partition.name).glob("*.log"):
        with contextlib.suppress(FileNotFoundError):  # a thread opens the log, or removes it
            size += file.stat().st_size
    return size
