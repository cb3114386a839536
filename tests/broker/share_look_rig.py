"""A member of a share group, and who looks at the group, each on a bare connection."""

import struct
from collections.abc import Callable
from typing import Any

from headrace.wire.primitives import Reader, Writer
from headrace.wire.share_records import (
    KEY,
    DescribeShareRecordsRequest,
    DescribeShareRecordsResponse,
    Partition,
    PartitionCursor,
    TopicCursor,
)

from .share_wire_rig import GROUP, TOPIC, Range, Sharer, produce, reset

MEMBER = "member"
AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVED = 0, 1, 2, 4


def request(group: str = GROUP, *topics: TopicCursor, **other: Any) -> bytes:
    out = Writer()
    DescribeShareRecordsRequest(group, topics or None, **other).write(out)
    return bytes(out.data)


def look(wire: Any, body: bytes) -> DescribeShareRecordsResponse:
    """The response to a body behind a flexible header."""
    head = struct.pack(">hhih", KEY, 0, 1, -1) + b"\0"
    wire.send_frame(head + body)
    _, answer = wire.receive()
    source = Reader(answer)
    source.tags()
    found = DescribeShareRecordsResponse.read(source)
    assert source.remaining == 0
    return found


def only(answer: DescribeShareRecordsResponse) -> Partition:
    assert answer.error_code == 0, answer.error_message
    (partition,) = answer.partitions
    return partition


class Member(Sharer):
    """A member of group "g" on one bare connection, who reads partition 0 of "orders"."""

    def hold(self, count: int, wait_ms: int = 0) -> list[Range]:
        """What is acquired, `count` records at most."""
        return self.take(
            max_records=count, batch_size=count, max_wait=wait_ms, share_acquire_mode=1
        )


def cursor(offset: int = 0, partition: int = 0, topic: str = TOPIC) -> TopicCursor:
    return TopicCursor(topic, (PartitionCursor(partition, offset),))


def joined(connect: Callable[[], Any]) -> Member:
    """A member of a group that begins at 0 of two partitions, the first of 20 records."""
    wire = connect()
    found = Member(wire, wire.create(TOPIC, num_partitions=2).topic_id, MEMBER)
    produce(wire, 20)
    for partition in range(2):
        assert reset(wire, 0, partition=partition) == 0
    assert found.beat().error_code == 0
    return found
