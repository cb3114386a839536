"""Groups of KIP-848 in the tables of `headrace consumer-groups`."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest

import headrace
from headrace.cli.consumer_groups_describe import members_table
from headrace.client.groups import GroupDescription, MemberDescription, Node

Command = Callable[..., Any]
Golden = Callable[[str], str]
_ID = re.compile(r"[\w+/-]{22}(?= /127)")
_COORDINATOR = re.compile(r"127\.0\.0\.1:\d+  \(\d+\) *")


def same(text: str) -> str:
    """A table without the ids of members and the port of the coordinator."""
    return _COORDINATOR.sub("(coordinator) ", _ID.sub("(id of 22 characters) ", text))


@pytest.fixture(scope="module")
def running(
    make_groups: Callable[[headrace.Broker], None], join: Callable[..., Any]
) -> Iterator[headrace.Broker]:
    """A broker with a group of KIP-848 that has a member, and one that has none any more."""
    with headrace.Broker() as broker:
        make_groups(broker)
        consumers = [
            join(broker, name, **{"group.protocol": "consumer"}) for name in ("modern", "gone")
        ]
        for consumer in consumers:
            offsets = [confluent_kafka.TopicPartition("orders", 0, 5)]
            consumer.commit(offsets=offsets, asynchronous=False)
        consumers.pop().close()
        yield broker
        consumers.pop().close()


@pytest.fixture
def groups(running: headrace.Broker, offline: Command) -> Command:
    """`headrace consumer-groups` on that broker."""
    servers = ("--bootstrap-server", running.bootstrap_servers)
    return lambda *arguments: offline("consumer-groups", *servers, *arguments)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("offsets_modern", ()),
        ("members_modern", ("--members", "--verbose")),
        ("state_modern", ("--state", "--verbose")),
    ],
)
def test_descriptions_are_those_of_kafkas_tool(
    groups: Command, golden: Golden, name: str, arguments: tuple[str, ...]
) -> None:
    ended = groups("--describe", "--group", "modern", *arguments)
    assert same(ended.text) == same(golden(f"groups_{name}"))
    assert (ended.code, ended.err) == (0, "")


def test_types_are_listed_and_asked_for(groups: Command) -> None:
    listed = groups("--list", "--type", "CONSUMER", "--state").text.splitlines()
    assert [line.split() for line in listed[1:]] == [
        ["gone", "Consumer", "Empty"],
        ["modern", "Consumer", "Stable"],
    ]
    assert "modern" not in groups("--list", "--type", "classic").text


def test_epochs_as_json(groups: Command) -> None:
    state = json.loads(groups("--describe", "--group", "modern", "--state", "--json").text)
    assert (state["type"], state["group_epoch"], state["target_assignment_epoch"]) == (
        "consumer",
        2,
        2,
    )
    members = json.loads(groups("--describe", "--group", "modern", "--members", "--json").text)
    (one,) = members["members"]
    assert (one["epoch"], one["upgraded"]) == (2, True)
    assert one["target_assignment"] == one["assignment"] == {"orders": [0, 1, 2]}


def test_an_empty_group_is_reset_and_stays_what_it_is(groups: Command) -> None:
    asked = ("--reset-offsets", "--group", "gone", "--to-latest", "--topic", "orders", "--execute")
    assert groups(*asked).code == 0
    assert groups("--list", "--type", "consumer").text.split() == [
        "GROUP", "TYPE", "gone", "Consumer", "modern", "Consumer",
    ]  # fmt: skip
    told = json.loads(groups("--describe", "--group", "gone", "--json").text)
    assert [row["lag"] for row in told["partitions"]] == [0, 0, 0]


def test_a_group_with_members_is_not_reset(groups: Command) -> None:
    asked = ("--reset-offsets", "--group", "modern", "--to-latest", "--all-topics", "--execute")
    ended = groups(*asked)
    assert (ended.code, ended.text) == (1, "")
    assert "the current state is Stable; stop its members first" in ended.err


def test_members_of_both_protocols_are_told_apart() -> None:
    def member(name: str, *, upgraded: bool, partitions: list[int]) -> MemberDescription:
        assigned = frozenset({("orders", one) for one in partitions} | {("a", 1)})
        return MemberDescription(
            name, None, "client", "/127.0.0.1", assigned, assigned, 3, upgraded
        )

    members = (
        member("new", upgraded=True, partitions=[2, 10]),
        member("old", upgraded=False, partitions=[]),
    )
    node = Node(1, "127.0.0.1", 9092)
    group = GroupDescription("g", "consumer", "consumer", "uniform", "Stable", members, node, 4, 3)
    rows = [line.split() for line in members_table(group, verbose=True).lines()]
    assert rows[0][-5:] == [
        "CURRENT-EPOCH", "CURRENT-ASSIGNMENT", "TARGET-EPOCH", "TARGET-ASSIGNMENT", "UPGRADED",
    ]  # fmt: skip
    assert rows[1][-6:] == ["3", "3", "a:1;orders:2,10", "3", "a:1;orders:2,10", "true"]
    assert rows[2][-6:] == ["1", "3", "a:1", "3", "a:1", "false"]
    assert "UPGRADED" not in "".join(members_table(group, verbose=False).lines())
