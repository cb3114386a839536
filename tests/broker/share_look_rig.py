"""A member of a share group, and who looks at the group, each on a bare connection."""

import struct
from collections.abc import Callable
from typing import Any
from uuid import UUID

from headrace.wire import batches
from headrace.wire.primitives import Reader, Writer
from headrace.wire.share_records import (
    KEY,
    DescribeShareRecordsRequest,
    DescribeShareRecordsResponse,
    Partition,
    PartitionCursor,
    TopicCursor,
)

HEARTBEAT, FETCH, ACKNOWLEDGE, PRODUCE, ALTER_OFFSETS = 76, 78, 79, 0, 91
GROUP, MEMBER, TOPIC = "g", "member", "orders"
ACCEPT, RELEASE, REJECT = 1, 2, 3
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


class Member:
    """A member of group "g" on one bare connection, who reads partition 0 of "orders"."""

    def __init__(self, wire: Any, topic_id: UUID) -> None:
        self.wire = wire
        self.epoch = 0
        self.topic_id = topic_id

    def join(self) -> None:
        answer = self.wire.call(
            HEARTBEAT, 1, group_id=GROUP, member_id=MEMBER, member_epoch=0, rack_id=None,
            subscribed_topic_names=(TOPIC,),
        )  # fmt: skip
        assert answer.error_code == 0, answer.error_message

    def fetch(self, count: int = 100, wait_ms: int = 0) -> list[tuple[int, int, int]]:
        """First, last and delivery count of what is acquired, `count` records at most."""
        answer = self.wire.call(
            FETCH, 2, group_id=GROUP, member_id=MEMBER, share_session_epoch=self.epoch,
            max_wait=wait_ms, min_bytes=1, max_bytes=1 << 20, max_records=count, batch_size=count,
            share_acquire_mode=1, is_renew_ack=False, topics=self._partition(()),
            forgotten_topics_data=(),
        )  # fmt: skip
        assert answer.error_code == 0
        self.epoch += 1
        return [
            (one.first_offset, one.last_offset, one.delivery_count)
            for topic in answer.responses
            for partition in topic.partitions
            for one in partition.acquired_records
        ]

    def say(self, kind: int, first: int, last: int) -> None:
        ack = {"first_offset": first, "last_offset": last, "acknowledge_types": (kind,)}
        answer = self.wire.call(
            ACKNOWLEDGE, 2, group_id=GROUP, member_id=MEMBER, share_session_epoch=self.epoch,
            is_renew_ack=False, topics=self._partition((ack,)),
        )  # fmt: skip
        assert answer.responses[0].partitions[0].error_code == 0
        self.epoch += 1

    def _partition(self, acks: tuple[Any, ...]) -> Any:
        one = {"partition_index": 0, "acknowledgement_batches": acks}
        return ({"topic_id": self.topic_id, "partitions": (one,)},)


def produce(wire: Any, count: int, *, times: int = 1) -> None:
    """Append a batch of `count` records, so many `times`."""
    data = batches.build([batches.Record(0, 5, b"k", b"v") for _ in range(count)])
    one = {"name": TOPIC, "partition_data": ({"index": 0, "records": data},)}
    fields = {"transactional_id": None, "acks": 1, "timeout": 1000, "topic_data": (one,)}
    for _ in range(times):
        wire.call(PRODUCE, 9, **fields)


def cursor(offset: int = 0, partition: int = 0, topic: str = TOPIC) -> TopicCursor:
    return TopicCursor(topic, (PartitionCursor(partition, offset),))


def joined(connect: Callable[[], Any]) -> Member:
    """A member of a group that begins at 0 of two partitions, the first of 20 records."""
    wire = connect()
    topic_id = wire.create(TOPIC, num_partitions=2).topic_id
    produce(wire, 20)
    starts = tuple({"partition_index": index, "start_offset": 0} for index in range(2))
    topics = ({"topic_name": TOPIC, "partitions": starts},)
    assert wire.call(ALTER_OFFSETS, 0, group_id=GROUP, topics=topics).error_code == 0
    found = Member(wire, topic_id)
    found.join()
    return found
