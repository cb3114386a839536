"""Consumer groups of the new protocol by raw requests: codes, versions, and who is told what."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import headrace

DESCRIBE_CLASSIC, DELETE, CONFIGS = 15, 42, 44
BEAT, DESCRIBE, FETCH = 68, 69, 9
Connecting = Callable[[headrace.Broker], AbstractContextManager[Callable[[], Any]]]
Clients = Callable[[Any], Any]
JOIN: dict[str, Any] = {
    "group_id": "g",
    "member_id": "m",
    "member_epoch": 0,
    "instance_id": None,
    "rack_id": None,
    "rebalance_timeout": 60_000,
    "subscribed_topic_names": ("orders",),
    "subscribed_topic_regex": None,
    "server_assignor": None,
    "topic_partitions": (),
}
NEXT: dict[str, Any] = {
    "member_epoch": 2,
    "rebalance_timeout": -1,
    "subscribed_topic_names": None,
    "topic_partitions": None,
}


class Member:
    """A member over a bare connection; every field of its heartbeats can be chosen."""

    def __init__(self, wire: Any) -> None:
        self.wire = wire

    def join(self, version: int = 1, **other: Any) -> Any:
        fields = JOIN | other
        if version < 1:
            del fields["subscribed_topic_regex"]
        return self.wire.call(BEAT, version, **fields)

    def beat(self, epoch: int, **other: Any) -> Any:
        return self.join(**(NEXT | {"member_epoch": epoch} | other))

    def describe(self, *groups: str, version: int = 1) -> dict[str, Any]:
        answer = self.wire.call(
            DESCRIBE, version, group_ids=groups, include_authorized_operations=True
        )
        return {one.group_id: one for one in answer.groups}


def held(assignment: Any) -> list[tuple[UUID, int]] | None:
    """The partitions of an assignment of a heartbeat or a description."""
    if assignment is None:
        return None
    return [(one.topic_id, n) for one in assignment.topic_partitions for n in one.partitions]


@pytest.fixture
def orders(client: Any) -> UUID:
    topic_id = client.create_topic("orders", 4)
    assert isinstance(topic_id, UUID)
    return topic_id


@pytest.fixture
def member(client: Any) -> Member:
    return Member(client.wire)


def test_the_first_answer_has_the_whole_assignment(member: Member, orders: UUID) -> None:
    answer = member.join()
    assert (answer.error_code, answer.error_message) == (0, None)
    assert (answer.member_id, answer.member_epoch) == ("m", 2)
    assert answer.heartbeat_interval == 5000
    assert held(answer.assignment) == [(orders, n) for n in range(4)]
    again = member.beat(2)
    assert (again.error_code, again.member_epoch, again.assignment) == (0, 2, None)


def test_partitions_go_over_once_they_are_let_go_of(member: Member, orders: UUID) -> None:
    owned = {"topic_id": orders, "partitions": (0, 1, 2, 3)}
    member.join()
    newcomer = member.join(member_id="n")
    assert (newcomer.member_epoch, held(newcomer.assignment)) == (3, [])
    asked = member.beat(2, topic_partitions=(owned,))
    assert asked.member_epoch == 2
    kept = held(asked.assignment)
    assert kept is not None
    assert len(kept) == 2
    assert held(member.beat(3, member_id="n").assignment) is None
    owned["partitions"] = tuple(n for _, n in kept)
    assert member.beat(2, topic_partitions=(owned,)).member_epoch == 3
    given = held(member.beat(3, member_id="n").assignment)
    assert given is not None
    assert sorted(kept + given) == [(orders, n) for n in range(4)]
    left = member.beat(-1, member_id="n")
    assert (left.error_code, left.member_epoch, left.heartbeat_interval) == (0, -1, 0)
    back = held(member.beat(3).assignment)
    assert back == [(orders, n) for n in range(4)]


def test_version_zero_is_given_an_id(member: Member, orders: UUID) -> None:
    first, second = member.join(version=0, member_id=""), member.join(version=0, member_id="")
    assert (first.error_code, second.error_code) == (0, 0)
    assert len({first.member_id, second.member_id, ""}) == 3
    assert member.join(version=0, **(NEXT | {"member_id": ""})).error_code == 42
    away = NEXT | {"member_id": "", "member_epoch": -2, "instance_id": "nobodys"}
    assert member.join(version=0, **away).error_code == 25
    assert member.join(**away).error_code == 42
    assert len(member.describe("g")["g"].members) == 2
    assert orders


REFUSED: list[tuple[dict[str, Any], int, str]] = [
    ({"group_id": ""}, 42, "GroupId"),
    ({"member_id": ""}, 42, "MemberId"),
    ({"instance_id": ""}, 42, "InstanceId"),
    ({"rack_id": ""}, 42, "RackId"),
    ({"rebalance_timeout": -1}, 42, "RebalanceTimeoutMs"),
    ({"topic_partitions": None}, 42, "TopicPartitions"),
    ({"topic_partitions": ({"topic_id": UUID(int=1), "partitions": (0,)},)}, 42, "TopicPartitions"),
    ({"subscribed_topic_names": None}, 42, "SubscribedTopic"),
    ({"member_epoch": -3}, 42, "MemberEpoch"),
    ({"member_epoch": -2}, 42, "InstanceId"),
    ({"server_assignor": "sticky"}, 112, "uniform, range"),
    ({"subscribed_topic_regex": "(?=x)y"}, 128, "regular expression"),
    ({"subscribed_topic_regex": "a" * 9000}, 128, "regular expression"),
    ({"group_id": "absent", "member_epoch": 1}, 69, "absent"),
    ({"group_id": "absent", "member_epoch": -1}, 69, "absent"),
    ({"member_id": "stranger", "member_epoch": 1}, 25, "stranger"),
    ({"member_id": "stranger", "member_epoch": -1}, 25, "stranger"),
    ({"member_epoch": 7}, 110, "epoch"),
    ({"member_epoch": 1}, 110, "epoch"),
    ({"instance_id": "taken"}, 111, "taken"),
    ({"instance_id": "taken", "member_epoch": 2}, 82, "taken"),
    ({"instance_id": "nobodys", "member_epoch": 2}, 25, "nobodys"),
    ({"instance_id": "taken", "member_epoch": -2}, 82, "taken"),
    ({"group_id": "classic"}, 14, "1 members of the classic protocol"),
    ({"group_id": "shared"}, 69, "shared"),
    ({"group_id": "g" * 40_000}, 42, "bytes"),
]


@pytest.mark.parametrize(("asked", "code", "said"), REFUSED)
def test_refused_heartbeats_say_why(
    client: Any, member: Member, orders: UUID, asked: dict[str, Any], code: int, said: str
) -> None:
    assert orders
    assert member.join().member_epoch == 2
    assert member.join(member_id="static", instance_id="taken").error_code == 0
    joined = client.join(group_id="classic").member_id
    assert client.join(group_id="classic", member=joined).error_code == 0
    assert client.share("shared") == 0
    answer = member.join(**asked)
    assert (answer.error_code, answer.member_id) == (code, None)
    assert (answer.member_epoch, answer.heartbeat_interval, answer.assignment) == (0, 0, None)
    assert said in answer.error_message


def test_a_change_of_the_subscription_is_no_join_of_its_own(member: Member, orders: UUID) -> None:
    """librdkafka 2.16 may send one in epoch 0 after unsubscribe(); Kafka refuses that, too."""
    assert orders
    changes: list[dict[str, Any]] = [
        {"subscribed_topic_names": ("orders", "other")},
        {"subscribed_topic_names": (), "subscribed_topic_regex": "ord.*"},
        {"subscribed_topic_names": ("orders",), "subscribed_topic_regex": ""},
    ]
    epoch = member.join().member_epoch
    for change in changes:
        answer = member.beat(epoch, **change)
        assert (answer.error_code, answer.member_epoch) == (0, epoch + 1)
        assert member.beat(epoch, **change | {"topic_partitions": ()}).error_code == 0  # repeated
        epoch += 1
    assert member.join().member_epoch == epoch  # it joins again under its id
    assert member.beat(-1).error_code == 0
    for change in changes:
        answer = member.beat(0, **change)
        assert (answer.error_code, answer.error_message) == (
            42, "RebalanceTimeoutMs must be provided in first request."
        )  # fmt: skip
    assert member.join(rebalance_timeout=0).error_code == 0


def test_group_is_full(connecting: Connecting, group_client: Clients) -> None:
    settings = {"group.consumer.max.size": 1, "group.consumer.assignors": "range"}
    with headrace.Broker(settings=settings) as broker, connecting(broker) as connect:
        member = Member(connect())
        assert member.join().error_code == 0
        assert member.join(member_id="n").error_code == 81
        assert member.join().error_code == 0
        assert member.join(server_assignor="uniform").error_code == 112
        assert member.describe("g")["g"].assignor_name == "range"


def test_regular_expressions_match_whole_names_of_topics(client: Any, member: Member) -> None:
    ids = {name: client.create_topic(name, 1) for name in ("pay", "payments", "repay")}
    answer = member.join(subscribed_topic_names=None, subscribed_topic_regex="pay.*")
    assert {one for one, _ in held(answer.assignment) or ()} == {ids["pay"], ids["payments"]}
    epoch = answer.member_epoch
    ids["payouts"] = client.create_topic("payouts", 1)
    told = member.beat(epoch)
    assert told.member_epoch == epoch + 1
    assert ids["payouts"] in {one for one, _ in held(told.assignment) or ()}
    client.delete_topic("payouts")
    told = member.beat(epoch + 1)
    assert {one for one, _ in held(told.assignment) or ()} == {ids["pay"], ids["payments"]}


def test_internal_topics_can_be_matched_and_an_empty_expression_is_none(
    client: Any, member: Member
) -> None:
    answer = member.join(subscribed_topic_names=(), subscribed_topic_regex="__consumer.*")
    assert len(held(answer.assignment) or ()) == 1
    orders = client.create_topic("orders", 1)
    answer = member.join(group_id="h", subscribed_topic_regex="")
    assert held(answer.assignment) == [(orders, 0)]
    assert member.describe("h")["h"].members[0].subscribed_topic_regex == ""


def test_a_static_member_comes_back_to_what_it_had(member: Member, orders: UUID) -> None:
    member.join(instance_id="i")
    away = member.beat(-2, instance_id="i")
    assert (away.error_code, away.member_epoch) == (0, -2)
    back = member.join(member_id="again", instance_id="i")
    assert (back.error_code, back.member_epoch) == (0, 2)
    assert held(back.assignment) == [(orders, n) for n in range(4)]


def test_describing_groups(client: Any, member: Member, orders: UUID) -> None:
    member.join(rack_id="r")
    member.join(member_id="n")
    client.commit(("orders", 0, 1), group_id="simple")
    assert client.share("shared") == 0
    names = ("g", "simple", "shared", "absent", "", "g")
    for version in (0, 1):
        told = member.describe(*names, version=version)
        assert len(told) == len(names) - 1
        group = told["g"]
        assert (group.error_code, group.group_state) == (0, "Reconciling")
        assert (group.group_epoch, group.assignment_epoch) == (3, 3)
        assert (group.assignor_name, group.authorized_operations) == ("uniform", 3400)
        first, second = sorted(group.members, key=lambda one: str(one.member_id))
        assert (first.member_id, first.rack_id, first.member_epoch) == ("m", "r", 2)
        assert (first.client_host, first.subscribed_topic_names) == ("/127.0.0.1", ("orders",))
        assert held(first.assignment) == [(orders, n) for n in range(4)]
        assert first.assignment.topic_partitions[0].topic_name == "orders"
        assert len(held(first.target_assignment) or ()) == 2
        assert (held(second.assignment), len(held(second.target_assignment) or ())) == ([], 2)
        if version == 1:
            assert (first.member_type, second.member_type) == (1, 1)
        assert {name: told[name].error_code for name in names[1:5]} == {
            "simple": 69, "shared": 69, "absent": 69, "": 24,
        }  # fmt: skip
        assert told["simple"].error_message == "Group simple is not a consumer group."
        assert told["absent"].error_message == "Group absent not found."
        assert told["absent"].authorized_operations == -(2**31)


def test_what_is_told_of_the_group_elsewhere(client: Any, member: Member, orders: UUID) -> None:
    member.join()
    stable = ("g", "consumer", "Stable", "consumer")
    assert client.listed() == [stable]
    assert client.listed(types=("Consumer",)) == client.listed("stable") == [stable]
    assert client.listed(types=("classic",)) == []
    for version, code in ((5, 0), (6, 69)):
        answer = client.wire.call(
            DESCRIBE_CLASSIC, version, groups=("g",), include_authorized_operations=False
        )
        (told,) = answer.groups
        assert (told.error_code, told.group_state) == (code, "Dead")
    assert told.error_message == "Group g is not a classic group."

    def deleted() -> int:
        (result,) = client.wire.call(DELETE, 2, groups_names=("g",)).results
        return int(result.error_code)

    assert deleted() == 68
    assert member.beat(-1).error_code == 0
    assert client.listed() == [("g", "consumer", "Empty", "consumer")]
    assert member.describe("g")["g"].assignor_name == "uniform"
    assert deleted() == 0
    assert client.listed() == []
    assert member.describe("g")["g"].error_code == 69
    assert orders


def test_commits_of_members_and_of_others(client: Any, member: Member, orders: UUID) -> None:
    def commit(epoch: int, who: str = "m", version: int = 9) -> int:
        topic = orders if version >= 10 else "orders"
        ((_, _, code),) = client.commit(
            (topic, 0, 5), version=version, generation=epoch, member=who
        )
        return int(code)

    member.join()
    assert [commit(2), commit(2, version=10)] == [0, 0]
    assert [commit(-1, ""), commit(2, "stranger"), commit(3)] == [25, 25, 113]
    assert commit(2, version=8) == 35
    member.join(member_id="n", subscribed_topic_names=("others",))
    assert member.beat(2).member_epoch == 3
    assert commit(2) == 0, "its partition is its own since epoch 2"
    assert commit(1) == 113
    member.beat(-1)
    member.beat(-1, member_id="n")
    assert commit(-1, "") == 0
    assert commit(2) == 25


def test_who_reads_offsets_is_in_the_epoch_it_tells(
    client: Any, member: Member, orders: UUID
) -> None:
    def fetch(who: str | None, epoch: int, group: str = "g", version: int = 9) -> tuple[int, int]:
        topic = {"topic_id": orders} if version >= 10 else {"name": "orders"}
        asked = {
            "group_id": group,
            "member_id": who,
            "member_epoch": epoch,
            "topics": ({**topic, "partition_indexes": (0,)},),
        }
        answer = client.wire.call(FETCH, version, groups=(asked,), require_stable=True)
        (told,) = answer.groups
        return told.error_code, len(told.topics)

    member.join()
    for version in (9, 10):
        assert fetch("m", 2, version=version) == (0, 1)
        assert fetch(None, -1, version=version) == (0, 1)
        assert fetch("m", 1, version=version) == (113, 0)
        assert fetch("stranger", 2, version=version) == (25, 0)
    assert fetch("whoever", 99, group="absent") == (0, 1)
    assert client.commit(("orders", 0, 1), group_id="simple") == [("orders", 0, 0)]
    assert fetch("whoever", 99, group="simple") == (0, 1), "franz-go tells it for classic groups"


@pytest.fixture
def paced(connecting: Connecting, group_client: Clients) -> Iterator[Any]:
    """A client of a broker whose members may be removed soon."""
    settings = {"group.consumer.min.session.timeout.ms": 100}
    settings |= {"group.consumer.min.heartbeat.interval.ms": 10}
    with headrace.Broker(settings=settings) as broker, connecting(broker) as connect:
        yield group_client(connect())


def set_group(client: Any, group: str, name: str, value: str) -> int:
    config = {"name": name, "config_operation": 0, "value": value}
    resource = {"resource_type": 32, "resource_name": group, "configs": (config,)}
    answer = client.wire.call(CONFIGS, 1, resources=(resource,), validate_only=False)
    return int(answer.responses[0].error_code)


def test_a_group_has_a_pace_of_its_own(paced: Any) -> None:
    assert set_group(paced, "g", "consumer.heartbeat.interval.ms", "20") == 0
    assert set_group(paced, "g", "consumer.session.timeout.ms", "200") == 0
    assert set_group(paced, "g", "consumer.session.timeout.ms", "99") == 40
    member = Member(paced.wire)
    assert member.join().heartbeat_interval == 20
    assert member.join(group_id="h").heartbeat_interval == 5000
    until_empty(paced, "g")
    assert member.beat(2).error_code == 25
    assert member.beat(2, group_id="h").error_code == 0


def test_the_assignment_interval_of_a_group_delays_its_next_assignment(
    client: Any, member: Member, orders: UUID
) -> None:
    """`consumer.assignment.interval.ms`; that of the broker is 0."""
    assert orders
    assert set_group(client, "g", "consumer.assignment.interval.ms", "15000") == 0
    for group, epoch in (("g", 2), ("h", 3)):
        assert member.join(group_id=group).member_epoch == 2
        assert member.join(group_id=group, member_id="n").member_epoch == epoch


def until_empty(client: Any, group: str) -> None:
    for _ in range(10_000):  # each is a request to the broker
        if (group, "consumer", "Empty", "consumer") in client.listed():
            return
    pytest.fail(f"group {group} never became empty")


def test_group_type_is_fixed_before_the_first_member(client: Any, member: Member) -> None:
    assert set_group(client, "shares", "group.type", "share") == 0
    assert set_group(client, "consumers", "group.type", "consumer") == 0
    assert member.join(group_id="shares").error_code == 69
    assert member.join(group_id="consumers").error_code == 0
    assert client.share("consumers") == 69


def test_an_empty_group_of_one_protocol_becomes_one_of_the_other(
    client: Any, member: Member, orders: UUID
) -> None:
    assert client.commit(("orders", 0, 5)) == [("orders", 0, 0)]
    assert client.listed() == [("g", "", "Empty", "classic")]
    assert member.join().error_code == 0
    assert client.listed() == [("g", "consumer", "Stable", "consumer")]
    assert client.fetch(("orders", 0)) == [("orders", 0, 5, 0)]
    assert client.join().error_code == 14, "it waits"
    member.beat(-1)
    assert client.stable()
    assert client.listed() == [("g", "consumer", "Stable", "classic")]
    assert client.fetch(("orders", 0)) == [("orders", 0, 5, 0)]
    assert member.join().error_code == 14, "it waits"
    assert orders


def test_members_go_on_after_a_restart(
    connecting: Connecting, tmp_path: Path, group_client: Clients
) -> None:
    with headrace.Broker(tmp_path) as broker, connecting(broker) as connect:
        client, member = group_client(connect()), Member(connect())
        orders = client.create_topic("orders", 4)
        assert held(member.join().assignment) == [(orders, n) for n in range(4)]
        member.join(member_id="n", subscribed_topic_names=None, subscribed_topic_regex="ord.*")
        before = member.describe("g")
    with headrace.Broker(tmp_path) as broker, connecting(broker) as connect:
        client, member = group_client(connect()), Member(connect())
        assert member.describe("g") == before
        kept = held(member.beat(2, topic_partitions=()).assignment)
        assert kept is not None
        assert len(kept) == 2
        given = held(member.beat(3, member_id="n").assignment)
        assert given is not None
        assert sorted(kept + given) == [(orders, n) for n in range(4)]
        assert client.commit(("orders", 0, 5), generation=3, member="m") == [("orders", 0, 0)]
