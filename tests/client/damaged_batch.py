"""Store a batch whose checksum is right and whose records cannot be decoded.

Releases without validation of batches stored one; the broker of this process does while it is off.
"""

from typing import Any
from unittest import mock

from crc32c import crc32c

from headrace.broker.log_validator import LogValidator
from headrace.client.connection import Cluster
from headrace.wire import batches, produced

_PRODUCE, _VERSION = 0, 8


def produce_damaged(cluster: Cluster, topic: str, count: int) -> None:
    """Produce such a batch of so many records to partition 0."""
    records = [batches.Record(0, 5, None, b"x" * 40) for _ in range(count)]
    batch = bytearray(batches.build(records))
    batch[batches.HEADER_BYTES :] = b"\xff" * (len(batch) - batches.HEADER_BYTES)
    checksum = crc32c(bytes(batch[batches.CRC_FROM :]))
    batch[batches.CRC_AT : batches.CRC_FROM] = checksum.to_bytes(4, "big")
    part = {"index": 0, "records": bytes(batch)}
    topics = [{"name": topic, "partition_data": [part]}]
    asked = {"transactional_id": None, "acks": -1, "timeout": 1000, "topic_data": topics}
    with mock.patch.object(LogValidator, "validate_inline", _unvalidated):
        (answered,) = cluster.ask(_PRODUCE, _VERSION, asked).responses
    assert answered.partition_responses[0].error_code == 0


def _unvalidated(_: LogValidator, records: memoryview, *_terms: Any) -> Any:
    return records, produced.check(records), 0
