"""Plain records of a topic partition, one by one: for journals, dead letters and small looks.

For data in bulk see `client/arrow.py`.
"""

from collections.abc import Iterator

from headrace.client.admin import LogEnd, log_end
from headrace.client.connection import Cluster
from headrace.client.fetch import fetch
from headrace.wire.batches import Record, headers
from headrace.wire.batches import records as records_in

_BYTES_MAX = 1024 * 1024


def read_records(
    cluster: Cluster, topic: str, partition: int, start: int | None = None
) -> Iterator[Record]:
    """Records from offset `start` (None: the first kept) to the end as it is now.

    Raises: `BrokerError` 1 when `start` is outside the log; `CorruptBatch`; as `Cluster`.
    """
    position = log_end(cluster, topic, partition, LogEnd.EARLIEST) if start is None else start
    end = log_end(cluster, topic, partition)
    while position < end:
        data = fetch(cluster, topic, partition, position, bytes_max=_BYTES_MAX).records
        found = headers(data)
        if not found:
            return  # retention or compaction took the rest meanwhile
        for record in records_in(data):
            if position <= record.offset < end:
                yield record
        position = found[-1].last_offset + 1
