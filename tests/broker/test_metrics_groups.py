"""Meters and gauges of consumer groups: when each is marked, and what a scrape costs the others."""

import struct
from typing import Any
from uuid import UUID

import pytest

import headrace
from headrace.broker.group_meters import GroupMeters
from headrace.broker.metrics_shapes import PIECE_SAMPLES, Sample, pieces
from headrace.core.group_events import OffsetDropped
from headrace.core.group_words import Cause

from .metrics_rig import METRICS, series

BROKER_SETTINGS = METRICS
OFFSET_DELETE, HEARTBEAT = 47, 68
SUBSCRIBED = struct.pack(">hih", 0, 1, 6) + b"orders"
METERS = (
    "offset_commits", "offset_expirations", "offset_deletions", "group_completed_rebalances",
)  # fmt: skip


def meters(broker: headrace.Broker) -> tuple[float, ...]:
    told = series(broker)
    return tuple(told[f"headrace_{name}_total"][()] for name in METERS)


def delete(client: Any, *indexes: int, topic: str = "bills") -> None:
    partitions = [{"partition_index": index} for index in indexes]
    topics = [{"name": topic, "partitions": partitions}]
    assert client.wire.call(OFFSET_DELETE, 0, group_id="g", topics=topics).error_code == 0


def test_each_meter_is_marked_when_the_proposal_says(broker: headrace.Broker, client: Any) -> None:
    client.create_topic("orders")
    client.create_topic("bills")
    assert meters(broker) == (0, 0, 0, 0)
    member = client.stable(protocols=({"name": "range", "metadata": SUBSCRIBED},))
    assert meters(broker) == (0, 0, 0, 1)
    commits = ("orders", 0, 1), ("bills", 0, 1), ("bills", 1, 1), ("none", 0, 1)
    client.commit(*commits, generation=1, member=member)
    client.commit(*commits, generation=7, member=member)
    assert meters(broker) == (3, 0, 0, 1), "every accepted offset, and nothing that is refused"
    delete(client, 0, topic="orders")
    delete(client, 0, 0, 1, 7)
    delete(client, 0)
    assert meters(broker) == (3, 0, 2, 1), "what is subscribed to, or never was, is not deleted"
    client.commit(("bills", 0, 1), generation=1, member=member)
    client.delete_topic("bills")
    assert series(broker)["headrace_committed_offsets"][()] == 1
    assert meters(broker) == (4, 0, 2, 1), "a topic's end is no deletion"
    left = {"member_id": member, "group_instance_id": None, "reason": None}
    assert client.wire.call(13, 5, group_id="g", members=(left,)).error_code == 0
    assert meters(broker) == (4, 0, 2, 1), "nor is becoming empty a rebalance that completes"


def test_only_what_expired_is_an_expiration() -> None:
    counted = GroupMeters()
    counted.count([OffsetDropped("g", "t", 0, cause) for cause in (*Cause, None)])
    assert (counted.offset_expirations, counted.offset_deletions) == (1, 1)


def test_groups_are_told_by_type_and_state(broker: headrace.Broker, client: Any) -> None:
    orders = client.create_topic("orders")
    assert isinstance(orders, UUID)
    assert set(series(broker)["headrace_consumer_groups"].values()) == {0}
    client.stable()
    client.commit(("orders", 0, 1), group_id="simple")
    fields = {
        "member_id": "m", "member_epoch": 0, "instance_id": None, "rack_id": None,
        "rebalance_timeout": 1000, "subscribed_topic_names": ("orders",),
        "subscribed_topic_regex": None, "server_assignor": None, "topic_partitions": (),
    }  # fmt: skip
    assert client.wire.call(HEARTBEAT, 1, group_id="c", **fields).error_code == 0
    told = series(broker)
    states = {key: count for key, count in told["headrace_consumer_groups"].items() if count}
    # Labels stand in the order of their names: state, type.
    assert states == {
        ("Stable", "classic"): 1,
        ("Empty", "classic"): 1,
        ("Stable", "consumer"): 1,
    }
    members = told["kafka_consumergroup_members"]
    assert members == {("g",): 1, ("simple",): 0, ("c",): 1}
    assert told["headrace_committed_offsets"][()] == 1


@pytest.mark.parametrize("count", [0, 1, PIECE_SAMPLES, PIECE_SAMPLES + 1])
@pytest.mark.parametrize("steps", [0, 1, PIECE_SAMPLES, 3 * PIECE_SAMPLES])
def test_no_piece_takes_more_than_so_many_steps(count: int, steps: int) -> None:
    """However many of them tell nothing: between two pieces others have their turn."""
    taken: list[int] = [0]

    def working() -> Any:
        for number in range(steps + count):
            taken[-1] += 1
            yield None if number < steps else Sample((), number)

    samples = []
    for piece in pieces(working()):
        samples += piece
        taken.append(0)
    assert [one.value for one in samples] == list(range(steps, steps + count))
    assert max(taken) <= PIECE_SAMPLES + 1


def test_offsets_of_many_partitions_are_told_and_summed_up(
    broker: headrace.Broker, client: Any
) -> None:
    count = 2 * PIECE_SAMPLES + 3
    client.create_topic("wide", count)
    client.commit(*(("wide", index, index) for index in range(count)))
    told = series(broker)
    sums = told["kafka_consumergroup_current_offset_sum"]
    assert sums == {("g", "wide"): sum(range(count))}
    assert len(told["kafka_consumergroup_lag"]) == count
    assert told["headrace_committed_offsets"][()] == count
