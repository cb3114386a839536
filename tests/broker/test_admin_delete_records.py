"""DeleteRecords: where a partition may be made to start, and that it stays so."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.wire import batches

Connecting = Callable[[headrace.Broker], AbstractContextManager[Callable[[], Any]]]


def produce(wire: Any, topic: str, count: int) -> None:
    data = batches.build([batches.Record(0, 5, None, b"v")] * count)
    data_of = {"name": topic, "partition_data": ({"index": 0, "records": data},)}
    answer = wire.call(0, 9, transactional_id=None, acks=1, timeout=1000, topic_data=(data_of,))
    assert answer.responses[0].partition_responses[0].error_code == 0


def delete(wire: Any, version: int, topic: str, *offsets: int, partition: int = 0) -> Any:
    """Code and low watermark for each offset, in one request."""
    partitions = [{"partition_index": partition, "offset": offset} for offset in offsets]
    topics = [{"name": topic, "partitions": partitions}]
    answer = wire.call(21, version, topics=topics, timeout=1000)
    return [(one.error_code, one.low_watermark) for one in answer.topics[0].partitions]


def earliest(wire: Any) -> int:
    topics = [{"name": "orders", "partitions": [{"partition_index": 0, "timestamp": -2}]}]
    answer = wire.call(2, 1, replica_id=-1, topics=topics)
    return int(answer.topics[0].partitions[0].offset)


@pytest.mark.parametrize("version", range(3))
def test_the_start_moves_up_and_never_down(wire: Any, version: int) -> None:
    wire.create("orders")
    for _ in range(3):
        produce(wire, "orders", 4)
    assert delete(wire, version, "orders", 6) == [(0, 6)]
    assert earliest(wire) == 6
    assert delete(wire, version, "orders", 2) == [(0, 6)]
    assert delete(wire, version, "orders", 13) == [(1, -1)]
    assert delete(wire, version, "orders", -2) == [(1, -1)]
    assert earliest(wire) == 6
    assert delete(wire, version, "orders", -1) == [(0, 12)]
    assert earliest(wire) == 12


def test_what_records_are_not_deleted_from(wire: Any) -> None:
    for name, policy in (("compacted", "compact"), ("both", "compact,delete")):
        wire.create(name, configs=[{"name": "cleanup.policy", "value": policy}])
    assert delete(wire, 2, "compacted", 0) == [(44, -1)]
    assert delete(wire, 2, "both", 0) == [(0, 0)]
    assert delete(wire, 2, "gone", 0) == [(3, -1)]
    assert delete(wire, 2, "both", 0, partition=7) == [(3, -1)]
    assert delete(wire, 2, "__share_group_state", 0) == [(17, -1)]


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_start_outlives_a_restart(
    tmp_path: Path, connecting: Connecting, durability: str
) -> None:
    settings = {"headrace.durability": durability}
    with headrace.Broker(tmp_path, settings=settings) as broker, connecting(broker) as connect:
        wire = connect()
        wire.create("orders")
        produce(wire, "orders", 9)
        assert delete(wire, 2, "orders", 5) == [(0, 5)]
    with headrace.Broker(tmp_path, settings=settings) as broker, connecting(broker) as connect:
        assert earliest(connect()) == 5


def test_a_topic_of_the_same_name_starts_at_the_beginning(wire: Any) -> None:
    wire.create("orders")
    produce(wire, "orders", 9)
    assert delete(wire, 2, "orders", -1) == [(0, 9)]
    wire.call(20, 1, topic_names=["orders"], timeout=0)
    wire.create("orders")
    produce(wire, "orders", 2)
    assert earliest(wire) == 0
