"""`headrace consumer-groups --list` and `--describe`, and their tables against Apache Kafka's."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest

import headrace
from headrace.client.connection import Cluster
from headrace.client.groups import alter_group_offsets
from headrace.client.share_groups import alter_share_group_offsets
from headrace.client.topics import create_topic

Command = Callable[..., Any]
Golden = Callable[[str], str]
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_COORDINATOR = re.compile(r"127\.0\.0\.1:\d+  \(\d+\) *")


def same(text: str) -> str:
    """A table without the ids of members and the port of the coordinator."""
    return _COORDINATOR.sub("(coordinator) ", _UUID.sub("(uuid)", text))


@pytest.fixture(scope="module")
def running(
    make_groups: Callable[[headrace.Broker], None], join: Callable[..., Any]
) -> Iterator[headrace.Broker]:
    """A broker with the groups of the golden files."""
    with headrace.Broker() as broker:
        make_groups(broker)
        team = join(broker, "team")
        static = join(broker, "static", **{"group.instance.id": "inst0"})
        offsets = [
            confluent_kafka.TopicPartition("orders", 0, 5),
            confluent_kafka.TopicPartition("plain", 0, 0),
        ]
        team.commit(offsets=offsets, asynchronous=False)
        yield broker
        team.close()
        static.close()


@pytest.fixture
def groups(running: headrace.Broker, offline: Command) -> Command:
    """`headrace consumer-groups` on that broker."""
    servers = ("--bootstrap-server", running.bootstrap_servers)
    return lambda *arguments: offline("consumer-groups", *servers, *arguments)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("offsets_idle", ("--describe", "--group", "idle")),
        ("offsets_team", ("--describe", "--group", "team", "--offsets")),
        ("offsets_verbose", ("--describe", "--group", "team", "--verbose")),
        ("offsets_two", ("--describe", "--group", "idle", "--group", "reports-of-a-long-name")),
        ("members_idle", ("--describe", "--group", "idle", "--members", "--verbose")),
        ("members_team", ("--describe", "--group", "team", "--members", "--verbose")),
        ("members_plain", ("--describe", "--group", "team", "--members")),
        ("members_static", ("--describe", "--group", "static", "--members")),
        ("state_idle", ("--describe", "--group", "idle", "--state", "--verbose")),
        ("state_team", ("--describe", "--group", "team", "--verbose", "--state")),
        ("state_all", ("--describe", "--state", "--all-groups")),
    ],
)
def test_descriptions_are_those_of_kafkas_tool(
    groups: Command, golden: Golden, name: str, arguments: tuple[str, ...]
) -> None:
    ended = groups(*arguments)
    assert same(ended.text) == same(golden(f"groups_{name}"))
    assert ended.code == 0


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("list", ("--list",)),
        ("list_type_state", ("--list", "--state", "--type")),
        ("list_filtered", ("--list", "--state", "empty, Stable", "--type", "classic")),
        ("list_none", ("--list", "--state", "Assigning")),
    ],
)
def test_lists_are_those_of_kafkas_tool_but_sorted(
    groups: Command, golden: Golden, name: str, arguments: tuple[str, ...]
) -> None:
    ended = groups(*arguments)
    lines = ended.text.splitlines()
    assert sorted(lines) == sorted(golden(f"groups_{name}").splitlines())
    rows = lines if name == "list" else lines[1:]
    assert rows == sorted(rows)
    assert (ended.code, ended.err) == (0, "")


def test_that_nobody_is_there_is_told_beside_the_table(groups: Command) -> None:
    ended = groups("--describe", "--group", "idle")
    told = "headrace consumer-groups: Consumer group 'idle' has no active members.\n"
    assert (ended.code, ended.err) == (0, told)
    assert groups("--describe", "--group", "team").err == ""


def test_one_group_that_is_not_there_does_not_hide_the_others(
    groups: Command, golden: Golden
) -> None:
    ended = groups("--describe", "--group", "absent", "--group", "team")
    assert same(ended.text) == same(golden("groups_offsets_team"))
    assert ended.code == 1
    assert ended.err == "headrace consumer-groups: Group absent not found; see --list\n"


def test_a_share_group_is_named_with_the_command_that_serves_it(
    running: headrace.Broker, groups: Command
) -> None:
    with Cluster(running.bootstrap_servers) as cluster:
        alter_share_group_offsets(cluster, "queue", {("orders", 0): 0})
    ended = groups("--describe", "--group", "queue")
    assert ended.code == 1
    assert ended.err == (
        "headrace consumer-groups: Group 'queue' is a share group; headrace share-groups serves "
        "it\n"
    )


def test_list_as_json(groups: Command) -> None:
    lines = groups("--list", "--json").text.splitlines()
    assert [json.loads(line)["group"] for line in lines] == [
        "idle",
        "reports-of-a-long-name",
        "static",
        "team",
    ]
    one = {"group": "idle", "type": "classic", "protocol_type": "", "state": "Empty"}
    assert json.loads(lines[0]) == one


def test_offsets_as_json_have_totals(groups: Command) -> None:
    (line,) = groups("--describe", "--group", "team", "--json").text.splitlines()
    told = json.loads(line)
    rows = told.pop("partitions")
    assert told == {
        "group": "team",
        "type": "classic",
        "state": "Stable",
        "total_lag": 5,
        "unknown_lags": 2,
    }
    assert [(row["topic"], row["partition"], row["lag"]) for row in rows] == [
        ("orders", 0, 5),
        ("orders", 1, None),
        ("orders", 2, None),
        ("plain", 0, 0),
    ]
    consumer = rows[0].pop("consumer_id")
    assert re.fullmatch(f"client-{_UUID.pattern}", consumer)
    assert rows[0] == {
        "topic": "orders",
        "partition": 0,
        "current_offset": 5,
        "leader_epoch": None,
        "metadata": "",
        "log_start_offset": 0,
        "log_end_offset": 10,
        "lag": 5,
        "host": "/127.0.0.1",
        "client_id": "client",
    }
    assert (rows[3]["consumer_id"], rows[3]["host"]) == (None, None)


def test_members_and_states_as_json(groups: Command, running: headrace.Broker) -> None:
    members = json.loads(groups("--describe", "--group", "static", "--members", "--json").text)
    (one,) = members.pop("members")
    assert members["target_assignment_epoch"] is None
    assert one.pop("consumer_id").startswith("inst0-")
    assert one == {
        "group_instance_id": "inst0",
        "host": "/127.0.0.1",
        "client_id": "client",
        "epoch": None,
        "assignment": {"orders": [0, 1, 2]},
        "target_assignment": None,
        "upgraded": None,
    }
    state = json.loads(groups("--describe", "--group", "team", "--state", "--json").text)
    host, port = running.bootstrap_servers.split(":")
    node = state.pop("coordinator")
    assert (node["host"], node["port"]) == (host, int(port))
    assert state == {
        "group": "team",
        "type": "classic",
        "state": "Stable",
        "assignment_strategy": "range",
        "group_epoch": None,
        "target_assignment_epoch": None,
        "member_count": 1,
    }


@pytest.fixture
def fresh(cli: Command) -> Command:
    """`headrace consumer-groups` on a broker without groups."""
    return lambda *arguments: cli("consumer-groups", *arguments)


@pytest.mark.parametrize("action", [("--list",), ("--describe", "--all-groups")])
def test_a_cluster_without_groups_prints_nothing(fresh: Command, action: tuple[str, ...]) -> None:
    ended = fresh(*action)
    assert (ended.code, ended.text, ended.err) == (0, "", "")


def test_groups_of_other_programs_are_not_listed_and_told_apart(
    fresh: Command, broker: headrace.Broker
) -> None:
    with Cluster(broker.bootstrap_servers) as cluster:
        join = {
            "group_id": "connectors",
            "session_timeout": 30_000,
            "rebalance_timeout": 30_000,
            "member_id": "",
            "protocol_type": "connect",
            "protocols": [{"name": "v1", "metadata": b""}],
        }
        cluster.ask(11, 3, join)
        assert fresh("--list").text == ""
        ended = fresh("--describe", "--group", "connectors")
    assert (ended.code, ended.text) == (1, "")
    assert ended.err == (
        "headrace consumer-groups: Group connectors is not a consumer group (connect); see --list\n"
    )


def test_an_offset_behind_the_end_has_a_negative_lag_as_with_kafka(
    fresh: Command, broker: headrace.Broker
) -> None:
    with Cluster(broker.bootstrap_servers) as cluster:
        create_topic(cluster, "short", 1)
        alter_group_offsets(cluster, "g", {("short", 0): 7}).check()
    (row,) = json.loads(fresh("--describe", "--group", "g", "--json").text)["partitions"]
    assert (row["current_offset"], row["log_end_offset"], row["lag"]) == (7, 0, -7)
