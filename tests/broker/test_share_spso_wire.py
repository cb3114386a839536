"""The seed's section on managing SPSO and SPEO, and the order of records, sentence by sentence."""

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.wire import batches

from .share_wire_rig import (
    ACCEPT,
    RELEASE,
    Sharer,
    add_partitions,
    configure,
    cut,
    journaled,
    live,
    partition_of,
    produce,
    reset,
    started,
)

BROKER_SETTINGS: dict[str, str] = {}
Connecting = Callable[[headrace.Broker], AbstractContextManager[Callable[[], Any]]]


@pytest.fixture
def one(connect: Callable[[], Any]) -> Sharer:
    """A member to be, of a topic with ten records."""
    wire = connect()
    topic_id = wire.create("orders", num_partitions=1).topic_id
    produce(wire, 10)
    return Sharer(wire, topic_id)


def test_spso_is_the_latest_offset_when_the_subscription_is_added(one: Sharer) -> None:
    """Not when a record is first asked for, as Kafka has it: what comes in between is not lost."""
    one.beat()
    assert started(one.wire) == {0: (10, 0)}
    produce(one.wire, 3)
    assert started(one.wire) == {0: (10, 3)}
    assert one.take() == [(10, 12, 1)]


def test_spso_is_initialized_when_the_subscription_is_added_for_the_first_time(
    one: Sharer,
) -> None:
    one.beat()
    epoch = one.beat().member_epoch
    one.beat(epoch, ())
    produce(one.wire, 3)
    assert one.beat(-1, None).member_epoch == -1
    assert Sharer(one.wire, one.topic_id, "later").assigned() == [0]
    assert started(one.wire) == {0: (10, 3)}


def test_spso_of_partitions_that_are_added_is_0(one: Sharer) -> None:
    epoch = one.beat().member_epoch
    add_partitions(one.wire, 2)
    produce(one.wire, 4, partition=1)
    told = one.beat(epoch, None).assignment.topic_partitions[0].partitions
    assert sorted(told) == [0, 1]
    assert started(one.wire) == {0: (10, 0), 1: (0, 4)}
    assert Sharer(one.wire, one.topic_id, partition=1).take() == [(0, 3, 1)]


def test_spso_of_a_group_without_members_can_be_set(one: Sharer) -> None:
    """Also of one that nobody joined yet: so it begins at the start of the topic."""
    assert reset(one.wire, 0) == 0
    one.beat()
    assert started(one.wire) == {0: (0, 10)}
    assert one.take() == [(0, 9, 1)]


def test_spso_of_a_group_with_members_cannot_be_set(one: Sharer) -> None:
    one.beat()
    assert reset(one.wire, 0) == 68
    assert started(one.wire) == {0: (10, 0)}


def test_a_reset_discards_all_state_and_delivery_counts(
    broker: headrace.Broker, one: Sharer
) -> None:
    reset(one.wire, 0)
    one.beat()
    assert one.take(share_acquire_mode=1, max_records=6) == [(0, 5, 1)]
    one.say(RELEASE, 1, 2)
    one.say(ACCEPT, 4, 4)
    one.beat(-1, None)
    assert live(broker) == (
        "SPSO=0, SPEO=6, 0 acquired 1, 1-2 available 1, 3 acquired 1, 4 acknowledged, 5 acquired 1"
    )
    assert reset(one.wire, 0) == 0
    assert live(broker) == journaled(broker.data_dir, one.topic_id) == "SPSO=0, SPEO=0"
    assert one.code((0, 0, ACCEPT)) == 121
    assert one.take() == [(0, 9, 1)]


def test_records_of_a_batch_are_in_order_and_batches_need_not_be(one: Sharer) -> None:
    reset(one.wire, 0)
    produce(one.wire, 5, 5)
    assert one.take() == [(0, 19, 1)]
    for first, last in ((12, 13), (3, 4), (17, 17), (0, 0)):
        one.say(RELEASE, first, last)
    answer = partition_of(one.fetch())
    ranges = [(got.first_offset, got.last_offset) for got in answer.acquired_records]
    assert ranges == [(0, 0), (3, 4), (12, 13), (17, 17)]
    offsets = [record.offset for record in batches.records(answer.records)]
    assert offsets == sorted(offsets)
    one.say(RELEASE, 0, 0)
    assert one.take() == [(0, 0, 3)]  # behind those that came after it


def test_the_records_in_flight_are_limited(broker: headrace.Broker, one: Sharer) -> None:
    """Those that are not finished: here a stuck record does not stop the others, as in Kafka."""
    configure(one.wire, share_partition_max_record_locks="100")
    reset(one.wire, 0)
    produce(one.wire, 290)
    exact = {"share_acquire_mode": 1}
    assert one.take(**exact) == [(0, 99, 1)]
    assert one.take(**exact) == []
    one.say(RELEASE, 50, 59)
    assert one.take(**exact) == [(50, 59, 2)]  # they are in flight already
    one.say(ACCEPT, 1, 99)
    assert one.take(**exact) == [(100, 198, 1)]
    assert live(broker).startswith("SPSO=0, SPEO=199, 0 acquired 1, 1-99 acknowledged")
    assert one.take(**exact) == []


def test_the_window_slides(broker: headrace.Broker, one: Sharer) -> None:
    reset(one.wire, 0)
    assert one.take() == [(0, 9, 1)]
    one.say(ACCEPT, 2, 4)
    assert live(broker).startswith("SPSO=0, SPEO=10")
    one.say(ACCEPT, 0, 1)
    assert live(broker) == "SPSO=5, SPEO=10, 5-9 acquired 1"


def test_retention_overtakes_spso(
    broker: headrace.Broker, one: Sharer, connect: Callable[[], Any]
) -> None:
    """Acknowledging what is gone is no error, and what is left is delivered as ever."""
    reset(one.wire, 0)
    assert one.take(share_acquire_mode=1, max_records=8) == [(0, 7, 1)]
    cut(connect(), 5)
    assert live(broker) == "SPSO=5, SPEO=8, 5-7 acquired 1"
    assert one.code((0, 2, ACCEPT)) == 0
    assert one.code((3, 5, ACCEPT)) == 0
    assert live(broker) == "SPSO=6, SPEO=8, 6-7 acquired 1"
    cut(connect(), 9)
    assert live(broker) == journaled(broker.data_dir, one.topic_id) == "SPSO=9, SPEO=9"
    assert one.take() == [(9, 9, 1)]


def test_what_is_durable(
    broker: headrace.Broker, one: Sharer, connecting: Connecting, tmp_path: Path
) -> None:
    """SPSO, what is finished behind it, and counts that are not zero; not who holds what."""
    reset(one.wire, 0)
    one.take()
    one.say(ACCEPT, 0, 1)
    one.say(RELEASE, 3, 4)
    one.say(ACCEPT, 6, 6)
    assert one.take() == [(3, 4, 2)]
    kept = "SPSO=2, SPEO=7, 2 available, 3-4 available 1, 5 available, 6 acknowledged"
    first, second = tmp_path / "killed", tmp_path / "killed-again"
    shutil.copytree(broker.data_dir, first, ignore=shutil.ignore_patterns(".lock"))
    for folder in (first, second):
        with headrace.Broker(folder) as again, connecting(again) as connect:
            assert live(again) == kept
            stranger = Sharer(connect(), one.topic_id, "after the restart")
            assert stranger.take() == [(2, 2, 1), (3, 4, 2), (5, 5, 1), (7, 9, 1)]
            if folder is first:
                shutil.copytree(first, second, ignore=shutil.ignore_patterns(".lock"))
