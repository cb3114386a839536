"""share.auto.offset.reset by duration: SPSO is decided in the heartbeat that adds the topic."""

import time
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.wire import batches

from .test_share_settings import Connecting, alter, beat

HOUR_MS = 3_600_000
POLICY = "share.auto.offset.reset"


def produce(wire: Any, partition: int, *ages_ms: int) -> None:
    """One batch a record, so old."""
    now = int(time.time() * 1000)
    for age_ms in ages_ms:
        data = batches.build([batches.Record(0, now - age_ms, b"k", b"v")])
        one = {"name": "orders", "partition_data": ({"index": partition, "records": data},)}
        fields = {"transactional_id": None, "acks": 1, "timeout": 1000, "topic_data": (one,)}
        wire.call(0, 9, **fields)


def starts(wire: Any, group: str) -> list[int]:
    asked = ({"group_id": group, "topics": None},)
    (found,) = wire.call(90, 1, groups=asked).groups
    return [one.start_offset for topic in found.topics for one in topic.partitions]


@pytest.fixture
def orders(wire: Any) -> Any:
    wire.create("orders", num_partitions=3)
    produce(wire, 0, 3 * HOUR_MS, 2 * HOUR_MS, HOUR_MS // 2, 0)
    produce(wire, 1, 3 * HOUR_MS, 2 * HOUR_MS)
    assert alter(wire, "g", POLICY, "by_duration:PT1H").error_code == 0
    return wire


def test_a_group_begins_at_the_first_record_that_is_young_enough(orders: Any) -> None:
    """Where there is none, at the end: what is produced then is delivered, however old it says."""
    assert beat(orders, "g") == 0
    assert starts(orders, "g") == [2, 2, 0]
    produce(orders, 1, 5 * HOUR_MS)
    assert beat(orders, "g") == 0
    assert starts(orders, "g") == [2, 2, 0]


def test_the_start_outlives_the_process(connecting: Connecting, tmp_path: Path) -> None:
    with headrace.Broker(tmp_path) as broker, connecting(broker) as open_:
        wire = open_()
        wire.create("orders")
        produce(wire, 0, 2 * HOUR_MS, 0)
        assert alter(wire, "g", POLICY, "by_duration:PT1H").error_code == 0
        assert beat(wire, "g") == 0
        assert alter(wire, "g", POLICY, "by_duration:PT3H").error_code == 0
    with headrace.Broker(tmp_path) as broker, connecting(broker) as open_:
        assert starts(open_(), "g") == [1]


def test_minus_one_leads_to_where_the_policy_does(orders: Any) -> None:
    topics = [{"topic_name": "orders", "partitions": [{"partition_index": 0, "start_offset": -1}]}]
    answer = orders.call(91, 0, group_id="g", topics=topics)
    assert answer.responses[0].partitions[0].error_code == 0
    assert starts(orders, "g") == [2, 2, 0], "those that were not named begin by the policy too"
    assert alter(orders, "g", POLICY, "by_duration:PT150M").error_code == 0
    assert orders.call(91, 0, group_id="g", topics=topics).error_code == 0
    assert starts(orders, "g") == [1, 2, 0]


def test_a_topic_that_comes_later_is_read_from_its_first_record(wire: Any) -> None:
    assert alter(wire, "g", POLICY, "by_duration:PT1S").error_code == 0
    assert beat(wire, "g") == 0
    wire.create("orders")
    produce(wire, 0, HOUR_MS)
    assert beat(wire, "g") == 0
    assert starts(wire, "g") == [0]


def test_partitions_that_come_later_begin_at_0(orders: Any) -> None:
    assert beat(orders, "g") == 0
    topic = {"name": "orders", "count": 4, "assignments": None}
    answer = orders.call(37, 3, topics=(topic,), timeout=1000, validate_only=False)
    assert answer.results[0].error_code == 0
    produce(orders, 3, 2 * HOUR_MS)
    assert beat(orders, "g") == 0
    assert starts(orders, "g") == [2, 2, 0, 0]
