"""ShareGroupHeartbeat by raw requests: every row of Kafka's error table, epochs, assignments.

The rows are those of Kafka 4.3.1. Where Headrace parts from it on purpose the test says so
(docs/share-groups.md, "Where Headrace differs from Kafka 4.3"). Rows about permissions are missing:
there is no authorizer.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

import headrace

from .share_wire_rig import ACCEPT, WAIT_S, Sharer, add_partitions, live, produce

MAX_SIZE = 3
BROKER_SETTINGS = {"group.share.max.size": str(MAX_SIZE)}
DESCRIBE_GROUPS, CONSUMER_HEARTBEAT = 15, 68


@pytest.fixture
def topic(connect: Callable[[], Any]) -> Any:
    return connect().create("orders", num_partitions=3).topic_id


@pytest.fixture
def one(connect: Callable[[], Any], topic: Any) -> Sharer:
    return Sharer(connect(), topic)


def refused(answer: Any, code: int) -> None:
    """An error is told with a reason, and with nothing else."""
    assert answer.error_code == code, answer.error_message
    assert answer.error_message
    assert (answer.member_epoch, answer.assignment) == (0, None)


@pytest.mark.parametrize(
    "fields",
    [
        {"group_id": ""},
        {"member_id": ""},
        {"member_id": "x" * 37},
        {"rack_id": ""},
        {"member_epoch": -2},
        {"member_epoch": -(1 << 31)},
        {"subscribed_topic_names": None},
        {"subscribed_topic_names": ()},
    ],
)
def test_malformed_requests(one: Sharer, fields: dict[str, Any]) -> None:
    refused(one.beat(**fields), 42)


def test_ids_of_1_and_of_36_characters_of_any_kind(one: Sharer) -> None:
    for member in ("x", "+/" * 18, "é" * 36):
        assert one.beat(member_id=member).member_id == member


def test_the_first_heartbeat_makes_the_group_and_is_given_everything(one: Sharer) -> None:
    answer = one.beat()
    assert (answer.error_code, answer.member_id, answer.heartbeat_interval) == (0, "m", 5000)
    assert answer.member_epoch > 0
    (told,) = answer.assignment.topic_partitions
    assert (told.topic_id, told.partitions) == (one.topic_id, (0, 1, 2))


def test_a_member_that_is_known_rejoins(one: Sharer) -> None:
    first = one.beat().member_epoch
    again = one.beat()
    assert again.member_epoch >= first
    assert again.assignment.topic_partitions[0].partitions == (0, 1, 2)


def test_a_full_group_takes_nobody_in_and_lets_members_rejoin(one: Sharer) -> None:
    for number in range(MAX_SIZE):
        assert one.beat(member_id=f"m{number}").error_code == 0
    refused(one.beat(member_id="one too many"), 81)
    assert one.beat(member_id="m0").error_code == 0
    one.beat(-1, None, member_id="m0")
    assert one.beat(member_id="one too many").error_code == 0


@pytest.mark.parametrize("epoch", [1, -1])
def test_a_group_that_is_not_known(one: Sharer, epoch: int) -> None:
    """Kafka: 69, which is fatal to a client; here 25, on which it rejoins. On purpose."""
    refused(one.beat(epoch, None, group_id="unknown"), 25)


@pytest.mark.parametrize("epoch", [1, -1])
def test_a_member_that_is_not_known(one: Sharer, epoch: int) -> None:
    one.beat()
    refused(one.beat(epoch, None, member_id="stranger"), 25)


def test_epochs_of_the_future_and_of_long_ago_are_fenced(one: Sharer) -> None:
    epochs = [one.beat().member_epoch]
    for other in ("o1", "o2"):  # with each of them the group comes to its next epoch
        one.beat(member_id=other)
        epochs.append(one.beat(epochs[-1], None).member_epoch)
    first, second, third = epochs
    assert first < second < third
    refused(one.beat(third + 1, None), 110)
    refused(one.beat(first, None), 110)
    assert one.beat(third, None).member_epoch == third
    # Its last answer may have been lost: the epoch before is as good.
    repeated = one.beat(second, None)
    assert (repeated.error_code, repeated.member_epoch, repeated.assignment) == (0, third, None)
    assert one.beat(second, ("orders",)).assignment is not None


@pytest.mark.parametrize("epoch", [0, 1, -1])
def test_a_group_of_another_type(one: Sharer, client: Any, epoch: int) -> None:
    client.wire = one.wire
    client.commit(("orders", 0, 1), group_id="consumers")
    refused(one.beat(epoch, ("orders",), group_id="consumers"), 69)


def test_leaving(one: Sharer) -> None:
    epoch = one.beat().member_epoch
    answer = one.beat(-1, ())  # as the Java client does; librdkafka's topics are null
    assert (answer.error_code, answer.member_epoch) == (0, -1)
    assert (answer.heartbeat_interval, answer.assignment) == (0, None)
    refused(one.beat(epoch, None), 25)


def test_unsubscribing_is_legal_for_a_member(one: Sharer) -> None:
    epoch = one.beat().member_epoch
    answer = one.beat(epoch, ())
    assert (answer.error_code, answer.assignment.topic_partitions) == (0, ())
    assert one.assigned(answer.member_epoch, ("orders",)) == [0, 1, 2]


def test_topics_that_do_not_exist_are_kept_until_they_do(one: Sharer) -> None:
    answer = one.beat(0, ("orders", "later"))
    assert len(answer.assignment.topic_partitions) == 1
    later = one.wire.create("later", num_partitions=1).topic_id
    answer = one.beat(answer.member_epoch, None)
    assert {told.topic_id for told in answer.assignment.topic_partitions} == {one.topic_id, later}


def test_an_assignment_is_never_null_in_the_answer_that_joins(one: Sharer) -> None:
    """Clients would heartbeat in a loop without a pause."""
    answer = one.beat(0, ("absent",))
    assert answer.assignment.topic_partitions == ()
    assert answer.heartbeat_interval < 5000  # who waits for a topic asks often


def test_an_assignment_is_told_when_it_is_asked_for_or_new(one: Sharer) -> None:
    epoch = one.beat().member_epoch
    assert one.beat(epoch, None).assignment is None
    assert one.beat(epoch, ("orders",)).assignment is not None
    add_partitions(one.wire, 4)
    answer = one.beat(epoch, None)
    assert answer.assignment.topic_partitions[0].partitions == (0, 1, 2, 3)
    assert answer.member_epoch > epoch
    assert one.beat(answer.member_epoch, None).assignment is None


def test_other_protocols_on_a_share_group(one: Sharer, client: Any) -> None:
    client.wire = one.wire
    one.beat()
    assert client.join().error_code == 23
    assert client.commit(("orders", 0, 1)) == [("orders", 0, 69)]
    assert client.fetch(everything=True) == []
    fields = {
        "member_id": "c", "member_epoch": 0, "instance_id": None, "rack_id": None,
        "rebalance_timeout": 1000, "subscribed_topic_names": ("orders",),
        "subscribed_topic_regex": None, "server_assignor": None, "topic_partitions": (),
    }  # fmt: skip
    assert one.wire.call(CONSUMER_HEARTBEAT, 1, group_id="g", **fields).error_code == 69
    asked = {"groups": ("g",), "include_authorized_operations": False}
    (told,) = one.wire.call(DESCRIBE_GROUPS, 6, **asked).groups
    assert (told.error_code, told.group_state) == (69, "Dead")


def test_a_member_that_falls_silent_is_gone_and_what_it_holds_is_not_touched(
    connecting: Callable[[headrace.Broker], AbstractContextManager[Callable[[], Any]]],
) -> None:
    settings = {
        "group.share.session.timeout.ms": "300",
        "group.share.min.session.timeout.ms": "300",
        "group.share.heartbeat.interval.ms": "100",
        "group.share.min.heartbeat.interval.ms": "100",
    }
    with headrace.Broker(settings=settings) as broker, connecting(broker) as connect:
        topic = connect().create("orders", num_partitions=1).topic_id
        one = Sharer(connect(), topic)
        epoch = one.beat().member_epoch
        produce(one.wire, 3)
        assert one.take() == [(0, 2, 1)]
        deadline = time.monotonic() + WAIT_S
        # An epoch of no time is no sign of life, and tells whether the member is known.
        while (code := one.beat(epoch + 1_000_000, None).error_code) == 110:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert code == 25
        assert live(broker) == "SPSO=0, SPEO=3, 0-2 acquired 1"
        one.say(ACCEPT, 0, 2)
        assert live(broker) == "SPSO=3, SPEO=3"


# ---- who gets what, as members come and go


def spread(members: dict[str, Sharer], epochs: dict[str, int]) -> dict[str, list[int]]:
    """What each member reads after a heartbeat of its own."""
    found = {}
    for name, member in members.items():
        answer = member.beat(epochs[name], ("orders",))
        assert answer.error_code == 0
        epochs[name] = answer.member_epoch
        told = answer.assignment.topic_partitions
        found[name] = [index for topic in told for index in topic.partitions]
    return found


def test_partitions_are_balanced_as_members_come_and_go(connect: Callable[[], Any]) -> None:
    topic = connect().create("orders", num_partitions=6).topic_id
    members: dict[str, Sharer] = {}
    epochs: dict[str, int] = {}
    for count, each in ((1, 6), (2, 3), (3, 2)):
        name = f"m{count}"
        members[name] = Sharer(connect(), topic, name)
        epochs[name] = members[name].beat().member_epoch
        told = spread(members, epochs)
        assert [len(one) for one in told.values()] == [each] * count
        assert sorted(index for one in told.values() for index in one) == list(range(6))
    members.pop("m1").beat(-1, None)
    told = spread(members, epochs)
    assert sorted(index for one in told.values() for index in one) == list(range(6))
    assert {len(one) for one in told.values()} == {3}


def test_more_members_than_partitions_share_them(connect: Callable[[], Any]) -> None:
    topic = connect().create("orders", num_partitions=1).topic_id
    members = {f"m{number}": Sharer(connect(), topic, f"m{number}") for number in range(MAX_SIZE)}
    epochs = {name: member.beat().member_epoch for name, member in members.items()}
    assert set(map(tuple, spread(members, epochs).values())) == {(0,)}
    produce(members["m0"].wire, *[1] * 30)
    taken = [got for one in members.values() for got in one.take(max_records=10)]
    assert taken == [(0, 9, 1), (10, 19, 1), (20, 29, 1)]


def test_subscriptions_that_differ(connect: Callable[[], Any]) -> None:
    wire = connect()
    topics = {wire.create(name, num_partitions=4).topic_id: name for name in ("orders", "bills")}
    wants = {"a": ("orders",), "b": ("orders", "bills"), "c": ("bills",)}
    one = Sharer(wire, next(iter(topics)))
    for name, wanted in wants.items():
        assert one.beat(0, wanted, member_id=name).error_code == 0
    read: dict[str, list[tuple[str, int]]] = {}
    for name, wanted in wants.items():
        told = one.beat(0, wanted, member_id=name).assignment.topic_partitions
        read[name] = [(topics[got.topic_id], index) for got in told for index in got.partitions]
        assert {topic for topic, _ in read[name]} <= set(wanted)
    everything = {(name, index) for name in topics.values() for index in range(4)}
    assert set().union(*read.values()) == everything
    assert all(2 <= len(one) <= 4 for one in read.values())
