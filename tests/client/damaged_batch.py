"""A batch that a broker takes, because its checksum is right, and that nobody can decode."""

from crc32c import crc32c

from headrace.client.connection import Cluster
from headrace.wire import batches

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
    (answered,) = cluster.ask(_PRODUCE, _VERSION, asked).responses
    assert answered.partition_responses[0].error_code == 0
