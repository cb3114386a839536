"""Produce, Fetch and ListOffsets in every version, read and written by the codec as the client."""

import threading
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from headrace.wire import batches, codec
from headrace.wire.batches import Record

Connect = Callable[[], Any]
Ids = dict[str, UUID]


def batch(*values: bytes, **fields: Any) -> bytes:
    return batches.build([Record(0, 1000 + n, None, v) for n, v in enumerate(values)], **fields)


@pytest.fixture
def wire(connect: Connect) -> Any:
    """A connection to a broker with topic `orders` of two partitions."""
    opened = connect()
    topic = {"name": "orders", "num_partitions": 2, "replication_factor": 1}
    created = opened.call(
        19, 7, topics=[topic | {"assignments": [], "configs": []}], timeout=0, validate_only=False
    )
    assert created.topics[0].error_code == 0
    return opened


@pytest.fixture
def topic_id(wire: Any) -> UUID:
    """The id of `orders`."""
    answer = wire.call(
        3, 12,
        topics=[{"topic_id": None, "name": "orders"}],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )  # fmt: skip
    found = answer.topics[0].topic_id
    assert isinstance(found, UUID)
    return found


def produce(
    wire: Any, topic: str | UUID, records: bytes | None, *, version: int = 9, index: int = 0,
    acks: int = -1,
) -> Any:  # fmt: skip
    """Produce to one partition; its part of the response."""
    name = {"topic_id": topic} if isinstance(topic, UUID) else {"name": topic}
    partition = {"index": index, "records": records}
    topics = [name | {"partition_data": [partition]}]
    answer = wire.call(0, version, transactional_id=None, acks=acks, timeout=100, topic_data=topics)
    return answer.responses[0].partition_responses[0]


def fetch(
    wire: Any, topic: str | UUID, offset: int, *, version: int = 12, index: int = 0, **fields: Any
) -> Any:
    """Fetch from one partition; its part of the response."""
    name = {"topic_id": topic} if isinstance(topic, UUID) else {"topic": topic}
    partition = {"partition": index, "fetch_offset": offset, "partition_max_bytes": 1_000_000}
    partition |= {
        k: fields.pop(k) for k in ("current_leader_epoch", "last_fetched_epoch") if k in fields
    }
    asked = {"max_wait": 0, "min_bytes": 1, "topics": [name | {"partitions": [partition]}]}
    defaults: dict[str, Any] = {"forgotten_topics_data": []}
    answer = wire.call(1, version, **(defaults | asked | fields))
    return answer.responses[0].partitions[0] if answer.responses else answer


@pytest.mark.parametrize("version", range(3, 14))
def test_produce_in_every_version(wire: Any, topic_id: UUID, version: int) -> None:
    topic = topic_id if version >= 13 else "orders"
    for expected in (0, 2):
        part = produce(wire, topic, batch(b"a", b"b"), version=version, index=1)
        assert (part.index, part.error_code, part.base_offset) == (1, 0, expected)
    stored = fetch(wire, "orders", 0, index=1).records
    assert [record.offset for record in batches.records(stored)] == [0, 1, 2, 3]


@pytest.mark.parametrize("isolation", [0, 1])
@pytest.mark.parametrize("version", range(4, 19))
def test_fetch_in_every_version(wire: Any, topic_id: UUID, version: int, isolation: int) -> None:
    topic = topic_id if version >= 13 else "orders"
    produce(wire, "orders", batch(b"a", b"b"))
    part = fetch(wire, topic, 1, version=version, isolation_level=isolation)
    assert (part.partition_index, part.error_code, part.high_watermark) == (0, 0, 2)
    assert part.last_stable_offset == 2
    assert part.aborted_transactions == (() if isolation else None)
    # Whole batches are sent; the client drops what stands before its offset.
    assert [record.value for record in batches.records(part.records)] == [b"a", b"b"]
    empty = fetch(wire, topic, 2, version=version)
    assert (empty.error_code, empty.records) == (0, b"")


@pytest.mark.parametrize(
    ("topic", "index", "records", "acks", "code"),
    [
        ("orders", 0, batch(b"a")[:-1], -1, 87),
        ("orders", 0, batch(b"a")[:-1] + b"x", -1, 2),
        ("orders", 0, batch(b"a") + batch(b"b"), -1, 87),
        ("orders", 0, batch(b"a", base_offset=5), -1, 87),
        ("orders", 0, batch(b"a", attributes=batches.TRANSACTIONAL), -1, 87),
        ("orders", 0, b"", -1, 87),
        ("orders", 0, None, -1, 87),
        ("orders", 0, batch(b"a"), 2, 21),
        ("orders", 9, batch(b"a"), -1, 3),
        ("nothing", 0, batch(b"a"), -1, 3),
        (UUID(int=5), 0, batch(b"a"), -1, 100),
    ],
)
def test_what_produce_refuses(
    wire: Any, topic: str | UUID, index: int, records: bytes | None, acks: int, code: int
) -> None:
    version = 13 if isinstance(topic, UUID) else 9
    part = produce(wire, topic, records, version=version, index=index, acks=acks)
    assert (part.error_code, part.base_offset) == (code, -1)
    assert part.error_message
    assert fetch(wire, "orders", 0).high_watermark == 0


def test_without_acks_there_is_no_answer_and_a_failure_hangs_up(
    wire: Any, connect: Connect
) -> None:
    def send(records: bytes) -> None:
        topics = [{"name": "orders", "partition_data": [{"index": 0, "records": records}]}]
        fields = {"transactional_id": None, "acks": 0, "timeout": 100, "topic_data": topics}
        wire.send(0, 9, bytes(codec.encode_request(0, 9, fields)), correlation_id=5)

    send(batch(b"a"))
    assert fetch(wire, "orders", 0).high_watermark == 1
    send(b"no batch")
    assert wire.closed()
    assert fetch(connect(), "orders", 0).high_watermark == 1


def test_an_idempotent_producer_is_answered_the_same_twice(wire: Any) -> None:
    def send(sequence: int, count: int = 2, epoch: int = 0) -> tuple[int, int]:
        records = batch(
            *[b"v"] * count, producer_id=9, producer_epoch=epoch, base_sequence=sequence
        )
        part = produce(wire, "orders", records)
        return part.error_code, part.base_offset

    assert send(0) == (0, 0)
    assert send(2) == (0, 2)
    assert send(2) == (0, 2), "a retry is not appended again"
    assert send(0) == (0, 0), "nor an older one"
    assert send(9) == (45, -1), "a gap is told"
    assert send(0, epoch=1) == (0, 4)
    assert send(4) == (47, -1), "a fenced producer is told"
    assert fetch(wire, "orders", 0).high_watermark == 6


@pytest.mark.parametrize(
    ("topic", "offset", "fields", "code"),
    [
        ("orders", 2, {}, 1),
        ("orders", -1, {}, 1),
        ("nothing", 0, {}, 3),
        (UUID(int=5), 0, {"version": 13}, 100),
        ("orders", 0, {"index": 7}, 3),
        ("orders", 0, {"current_leader_epoch": 3}, 75),
        ("orders", 0, {"last_fetched_epoch": 3}, 1),
    ],
)
def test_what_fetch_refuses(
    wire: Any, topic: str | UUID, offset: int, fields: dict[str, Any], code: int
) -> None:
    produce(wire, "orders", batch(b"a"))
    part = fetch(wire, topic, offset, **fields)
    assert (part.error_code, part.high_watermark, part.log_start_offset) == (code, -1, -1)


def test_limits_leave_out_batches_but_never_the_first(wire: Any) -> None:
    for _ in range(3):
        produce(wire, "orders", batch(b"x" * 1000))
    one = len(batch(b"x" * 1000))
    assert len(fetch(wire, "orders", 0, max_bytes=1).records) == one
    assert len(fetch(wire, "orders", 0, max_bytes=2 * one + 5).records) == 2 * one
    produce(wire, "orders", batch(b"y" * 1000), index=1)
    partitions = [
        {"partition": index, "fetch_offset": 0, "partition_max_bytes": one} for index in (0, 1)
    ]
    answer = wire.call(
        1, 12, max_wait=0, min_bytes=1, max_bytes=one + 10, forgotten_topics_data=[],
        topics=[{"topic": "orders", "partitions": partitions}],
    )  # fmt: skip
    sizes = [len(part.records) for part in answer.responses[0].partitions]
    assert sizes == [one, 0]


def test_a_poll_waits_for_enough_bytes_or_its_time(wire: Any, connect: Connect) -> None:
    started = time.monotonic()
    assert fetch(wire, "orders", 0, max_wait=150).records == b""
    assert time.monotonic() - started >= 0.14

    other = connect()
    one = len(batch(b"a"))
    found: list[bytes] = []
    poll = threading.Thread(
        target=lambda: found.append(
            fetch(wire, "orders", 0, max_wait=60_000, min_bytes=one + 1).records
        )
    )
    poll.start()
    for _ in range(2):
        time.sleep(0.05)
        assert found == []
        produce(other, "orders", batch(b"a"))
    poll.join(30)
    assert [len(records) for records in found] == [2 * one]


@pytest.mark.parametrize("version", range(1, 12))
def test_offsets_in_every_version(wire: Any, version: int) -> None:
    produce(wire, "orders", batch(b"a", b"b", b"c"))

    def ask(timestamp: int, index: int = 0) -> tuple[int, int, int]:
        partition = {"partition_index": index, "timestamp": timestamp}
        topics = [{"name": "orders", "partitions": [partition]}]
        answer = wire.call(2, version, replica_id=-1, isolation_level=0, topics=topics, timeout=0)
        part = answer.topics[0].partitions[0]
        return part.error_code, part.offset, part.timestamp

    assert ask(-1) == (0, 3, -1)
    assert ask(-2) == (0, 0, -1)
    assert ask(1001) == (0, 1, 1001)
    assert ask(9999) == (0, -1, -1)
    assert ask(-1, index=5) == (3, -1, -1)
    assert ask(-3) == ((0, 2, 1002) if version >= 7 else (35, -1, -1))
    assert ask(-4) == ((0, 0, -1) if version >= 8 else (35, -1, -1))
    assert ask(-5)[0] == (0 if version >= 9 else 35)
    assert ask(-6)[0] == (0 if version >= 11 else 35)
    assert ask(-7) == (35, -1, -1)


def test_internal_topics_can_be_read_but_not_produced_to(wire: Any) -> None:
    part = produce(wire, "__share_group_state", batch(b"a"))
    assert part.error_code == 17
    assert fetch(wire, "__share_group_state", 0).error_code == 0
