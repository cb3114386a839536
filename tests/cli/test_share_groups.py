"""`headrace share-groups`: its tables against Apache Kafka's, what it changes, what it refuses."""

import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import ShareConsumer

import headrace
from headrace.client.connection import Cluster
from headrace.client.groups import alter_group_offsets
from headrace.client.share_groups import (
    ShareGroupDescription,
    alter_share_group_offsets,
    describe_share_groups,
    list_share_group_offsets,
    list_share_groups,
)

from .conftest import make_topics

Command = Callable[..., Any]
Golden = Callable[[str], str]
_JOIN_S_MAX = 60
_MEMBER = re.compile(r"(?<=team            )[\w+/-]{22}")
_COORDINATOR = re.compile(r"127\.0\.0\.1:\d+  \(\d+\) *")
_EPOCHS = re.compile(r"(?<=3            )\d+(?= )|(?<=Stable          )\d+ +\d+(?= )")
IDLE = {("orders", 0): 4, ("orders", 1): 10, ("orders", 2): 0, ("plain", 0): 0}


def same(text: str) -> str:
    """A table without ids, ports and epochs, of which Headrace needs one less to begin."""
    return _EPOCHS.sub("(epoch)", _COORDINATOR.sub("(coordinator) ", _MEMBER.sub("(id)", text)))


def fill(broker: headrace.Broker) -> None:
    """The topics and share groups of the golden files; `team` gets its member later."""
    with Cluster(broker.bootstrap_servers) as cluster:
        make_topics(cluster, broker.bootstrap_servers)
        alter_share_group_offsets(cluster, "idle", IDLE).check()
        alter_share_group_offsets(cluster, "reports-of-a-long-name", {("plain", 0): 0}).check()
        begin = {("orders", partition): 0 for partition in range(3)}
        alter_share_group_offsets(cluster, "team", begin).check()


def has_member(broker: headrace.Broker) -> bool:
    """Whether somebody in `team` was given partitions."""
    with Cluster(broker.bootstrap_servers) as cluster:
        found = describe_share_groups(cluster, ["team"])["team"]
    return isinstance(found, ShareGroupDescription) and any(one.assignment for one in found.members)


@pytest.fixture(scope="module")
def running() -> Iterator[headrace.Broker]:
    """A broker with the groups of the golden files; nobody changes them."""
    with headrace.Broker() as broker:
        fill(broker)
        member = ShareConsumer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "group.id": "team",
                "client.id": "client",
                "share.acknowledgement.mode": "explicit",
            }
        )
        member.subscribe(["orders"])
        until = time.monotonic() + _JOIN_S_MAX
        while not has_member(broker):
            assert time.monotonic() < until, "it did not join"
            member.poll(0.1)
        yield broker
        member.close()


@pytest.fixture
def groups(running: headrace.Broker, offline: Command) -> Command:
    """`headrace share-groups` on that broker."""
    servers = ("--bootstrap-server", running.bootstrap_servers)
    return lambda *arguments: offline("share-groups", *servers, *arguments)


@pytest.fixture
def filled(broker: headrace.Broker) -> Iterator[Cluster]:
    """A broker whose groups may be changed."""
    fill(broker)
    with Cluster(broker.bootstrap_servers) as cluster:
        yield cluster


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("offsets_idle", ("--describe", "--group", "idle")),
        ("offsets_verbose", ("--describe", "--group", "idle", "--verbose")),
        ("offsets_team", ("--describe", "--group", "team", "--offsets")),
        ("offsets_long", ("--describe", "--group", "reports-of-a-long-name")),
        ("members_team", ("--describe", "--group", "team", "--members")),
        ("members_verbose", ("--describe", "--group", "team", "--members", "--verbose")),
        ("state_team", ("--describe", "--group", "team", "--state")),
        ("state_verbose", ("--describe", "--group", "team", "--state", "--verbose")),
        ("state_all", ("--describe", "--all-groups", "--state")),
    ],
)
def test_descriptions_are_those_of_kafkas_tool(
    groups: Command, golden: Golden, name: str, arguments: tuple[str, ...]
) -> None:
    ended = groups(*arguments)
    assert same(ended.text) == same(golden(f"share_groups_{name}"))
    assert ended.code == 0


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("list", ("--list",)),
        ("list_state", ("--list", "--state")),
        ("list_filtered", ("--list", "--state", "empty, Dead")),
    ],
)
def test_lists_are_those_of_kafkas_tool_but_sorted(
    groups: Command, golden: Golden, name: str, arguments: tuple[str, ...]
) -> None:
    ended = groups(*arguments)
    lines = ended.text.splitlines()
    assert sorted(lines) == sorted(golden(f"share_groups_{name}").splitlines())
    rows = lines if name == "list" else lines[1:]
    assert rows == sorted(rows)
    assert (ended.code, ended.err) == (0, "")


def test_that_nobody_is_there_is_told_beside_the_tables(groups: Command) -> None:
    ended = groups("--describe", "--group", "idle", "--members")
    told = "headrace share-groups: Share group 'idle' has no active members.\n"
    assert (ended.code, ended.text, ended.err) == (0, "", told)


def test_one_group_that_is_not_there_does_not_hide_the_others(
    groups: Command, golden: Golden
) -> None:
    ended = groups("--describe", "--group", "absent", "--group", "team")
    assert ended.text == golden("share_groups_offsets_team")
    assert ended.code == 1
    assert ended.err == "headrace share-groups: Group absent not found; see --list\n"


def test_descriptions_as_json(groups: Command) -> None:
    (offsets,) = map(
        json.loads, groups("--describe", "--group", "idle", "--json").text.splitlines()
    )
    assert offsets["partitions"][0] == {
        "topic": "orders",
        "partition": 0,
        "leader_epoch": 0,
        "start_offset": 4,
        "lag": 6,
    }
    assert (offsets["state"], offsets["total_lag"], offsets["unknown_lags"]) == ("Empty", 16, 0)
    (team,) = map(
        json.loads, groups("--describe", "--group", "team", "--members", "--json").text.splitlines()
    )
    (member,) = team["members"]
    assert (member["client_id"], member["host"]) == ("client", "/127.0.0.1")
    assert member["assignment"] == {"orders": [0, 1, 2]}
    state = json.loads(groups("--describe", "--group", "team", "--state", "--json").text)
    assert (state["assignor"], state["member_count"]) == ("simple", 1)
    listed = [json.loads(line) for line in groups("--list", "--json").text.splitlines()]
    assert listed[0] == {"group": "idle", "state": "Empty"}


def test_a_reset_is_planned_and_made(filled: Cluster, cli: Command, golden: Golden) -> None:
    before = list_share_group_offsets(filled, "idle")
    planned = cli(
        "share-groups", "--reset-offsets", "--group", "idle", "--all-topics", "--to-latest",
        "--dry-run",
    )  # fmt: skip
    lines = golden("share_groups_reset_dry").splitlines()
    assert planned.text.splitlines() == [*lines[:2], *sorted(lines[2:])]
    assert list_share_group_offsets(filled, "idle") == before
    done = cli(
        "share-groups", "--reset-offsets", "--group", "idle", "--topic", "orders:0,1",
        "--to-datetime", "2026-11-21T13:20:54.206", "--execute",
    )  # fmt: skip
    assert (done.text, done.code) == (golden("share_groups_reset_datetime"), 0)
    starts = list_share_group_offsets(filled, "idle").values()
    assert [one and one.start for one in starts] == [2, 2, 0, 0]
    told = cli(
        "share-groups", "--reset-offsets", "--group", "new", "--topic", "orders:2", "--to-earliest",
        "--execute", "--json",
    )  # fmt: skip
    assert json.loads(told.text) == {
        "group": "new",
        "executed": True,
        "partitions": [
            {"topic": "orders", "partition": 2, "current_offset": None, "new_offset": 0}
        ],
    }
    assert [one.group for one in list_share_groups(filled)][1] == "new"


@pytest.mark.parametrize("how", ["--dry-run", "--execute"])
def test_a_consumer_group_is_not_reset(filled: Cluster, cli: Command, how: str) -> None:
    alter_group_offsets(filled, "readers", {("orders", 0): 1}).check()
    reset = ("--reset-offsets", "--group", "readers", "--topic", "orders", "--to-earliest")
    ended = cli("share-groups", *reset, how)
    assert (ended.code, ended.text) == (1, "")
    told = "Group 'readers' is a consumer group; headrace consumer-groups serves it"
    assert ended.err == f"headrace share-groups: {told}\n"


def test_topics_are_forgotten(filled: Cluster, cli: Command, golden: Golden) -> None:
    asked = ("share-groups", "--delete-offsets", "--group", "idle", "--topic")
    ended = cli(*asked, "orders", "--topic", "nosuch")
    assert ended.text == golden("share_groups_delete_offsets")
    assert ended.code == 1
    assert ended.err.endswith("1 of 2 were not deleted from group 'idle'; see STATUS\n")
    assert set(list_share_group_offsets(filled, "idle")) == {("plain", 0)}
    ended = cli("share-groups", "--delete-offsets", "--group", "absent", "--topic", "orders")
    assert (ended.code, ended.text) == (1, "")
    assert ended.err == (
        "headrace share-groups: no offset of group 'absent' was deleted: Group absent not found; "
        "name one of --list\n"
    )
    told = cli(*asked, "orders", "--json")
    assert json.loads(told.text)["error"]["name"] == "UNKNOWN_TOPIC_OR_PARTITION"


def test_groups_are_deleted(filled: Cluster, cli: Command, golden: Golden) -> None:
    ended = cli("share-groups", "--delete", "--group", "idle")
    assert (ended.text, ended.code) == (golden("share_groups_delete"), 0)
    alter_group_offsets(filled, "consumers", {("orders", 0): 1}).check()
    ended = cli("share-groups", "--delete", "--group", "team", "--group", "consumers")
    assert ended.text == "\nThese share groups were deleted successfully: 'team'\n"
    assert ended.code == 1
    assert ended.err == (
        "headrace share-groups: Group 'consumers' could not be deleted due to: Group consumers is "
        "not a share group; name one of --list\n"
    )
    assert cli("share-groups", "--delete", "--all-groups", "--json").text == (
        '{"group": "reports-of-a-long-name", "deleted": true, "error": null}\n'
    )
    assert list_share_groups(filled) == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--to-latest",), "Share group 'team' is not empty; stop its members first"),
        (("--to-earliest", "--dry-run"), "Share group 'team' is not empty"),
    ],
)
def test_an_active_group_is_not_reset(
    groups: Command, arguments: tuple[str, ...], told: str
) -> None:
    how = arguments if "--dry-run" in arguments else (*arguments, "--execute")
    ended = groups("--reset-offsets", "--group", "team", "--topic", "orders", *how)
    assert (ended.code, ended.text) == (1, "")
    assert told in ended.err
    ended = groups("--delete", "--group", "team")
    assert ended.code == 1
    assert "The group is not empty; stop its members" in ended.err


RESET = ("--reset-offsets", "--group", "g")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "Command must include exactly one action: --list, --describe, --delete, --reset-"),
        (("--list", "--describe"), "Command must include exactly one action"),
        (("--list", "--group", "g"), "--group can't be used with --list; leave it out"),
        (("--list", "--verbose"), "--verbose cannot be used with --list; leave it out"),
        (("--list", "--state", "x"), "Invalid state list 'x'. Valid states are: Dead, Empty, Stab"),
        (("--describe",), "--describe takes one of these options: --group, --all-groups"),
        (("--describe", "--group", "g", "--all-groups"), "--group can't be used with --all-groups"),
        (("--describe", "--group", "g", "--members", "--state"), "--describe takes at most one of"),
        (("--describe", "--group", "g", "--state", "x"), "--describe does not take a value for -"),
        (("--describe", "--group", "g", "--topic", "t"), "--topic can't be used with --describe"),
        (("--delete",), "--delete takes one of these options: --group, --all-groups"),
        (("--delete-offsets", "--topic", "t"), "--delete-offsets takes one --group, not 0"),
        (("--delete-offsets", "--group", "g"), "--delete-offsets needs --topic"),
        (
            ("--delete-offsets", "--group", "g", "--topic", "t", "--topic", "jobs:0"),
            "--delete-offsets forgets whole topics: write --topic jobs, not jobs:0",
        ),
        (("--describe", "--group", ""), "the name of the group is empty; name one of --list"),
        (("--delete", "--group", "g", "--group", ""), "the name of the group is empty"),
        ((*RESET, "--group", "h", "--to-latest"), "--reset-offsets takes one --group, not 2"),
        ((*RESET, "--all-topics", "--execute"), "--reset-offsets requires one of the following"),
        ((*RESET, "--to-latest", "--to-earliest"), "--to-earliest can't be used with --to-latest"),
        ((*RESET, "--to-latest", "--execute"), "--reset-offsets takes one of these options: --all"),
        ((*RESET, "--to-latest", "--all-topics"), "--reset-offsets takes --dry-run to print the"),
        ((*RESET, "--dry-run", "--execute"), "--reset-offsets only accepts one of --execute and"),
    ],
)
def test_what_is_refused_before_a_broker_is_asked(
    offline: Command, arguments: tuple[str, ...], told: str
) -> None:
    ended = offline("share-groups", *arguments)
    assert (ended.code, ended.text) == (1, "")
    assert ended.err.startswith(f"headrace share-groups: {told}")
    assert len(ended.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("place", "told"),
    [
        (("--topic", "absent"), "there is no topic 'absent'; see headrace topics --list"),
        (("--topic", "orders:9"), 'The partitions "orders-9" do not exist, or have no leader'),
        (("--all-topics",), "Share group 'unknown' reads nothing yet; name topics with --topic"),
    ],
)
def test_a_reset_of_what_is_not_there(groups: Command, place: tuple[str, ...], told: str) -> None:
    ended = groups("--reset-offsets", "--group", "unknown", *place, "--to-latest", "--execute")
    assert (ended.code, ended.text) == (1, "")
    assert told in ended.err
