"""`headrace consumer-groups --delete` and `--delete-offsets`, whose text is that of KIP-496."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import headrace
from headrace.client.connection import Cluster
from headrace.client.groups import list_group_offsets
from headrace.client.offsets import TopicPartition
from headrace.client.share_groups import alter_share_group_offsets, list_share_group_offsets

Command = Callable[..., Any]
Golden = Callable[[str], str]
HEAD = "TOPIC                          PARTITION       STATUS"
UNKNOWN = "Error: This server does not host this topic-partition."
SUBSCRIBED = "Error: The consumer group is actively subscribed to the topic"  # KIP-496


@pytest.fixture
def groups(
    broker: headrace.Broker, make_groups: Callable[[headrace.Broker], None], cli: Command
) -> Command:
    """`headrace consumer-groups` on a broker with the groups of the golden files."""
    make_groups(broker)
    return lambda *arguments: cli("consumer-groups", *arguments)


@pytest.fixture
def team(groups: Command, broker: headrace.Broker, join: Callable[..., Any]) -> Iterator[None]:
    """A group with a member that reads `orders`; it committed `plain` before."""
    plan = ("--reset-offsets", "--group", "team", "--to-offset", "0", "--execute")
    assert groups(*plan, "--topic", "orders:0", "--topic", "plain").code == 0
    consumer = join(broker, "team")
    yield
    consumer.close()


def committed(broker: headrace.Broker, group: str) -> list[TopicPartition]:
    with Cluster(broker.bootstrap_servers) as cluster:
        return list(list_group_offsets(cluster, group))


def row(topic: str, partition: int | str, status: str) -> str:
    return f"{topic:<30} {partition:<15} {status}"


def test_a_group_is_deleted_with_kafkas_words(groups: Command, golden: Golden) -> None:
    ended = groups("--delete", "--group", "reports-of-a-long-name")
    assert ended.text == golden("groups_delete")
    assert (ended.code, ended.err) == (0, "")
    assert groups("--list").text == "idle\n"


def test_all_groups_are_deleted(groups: Command) -> None:
    ended = groups("--delete", "--all-groups")
    deleted = "Deletion of requested consumer groups ('idle', 'reports-of-a-long-name')"
    assert ended.text == f"{deleted} was successful.\n"
    assert groups("--list").text == ""


@pytest.mark.usefixtures("team")
def test_groups_that_are_not_deleted_are_told_and_the_others_are_deleted(groups: Command) -> None:
    ended = groups("--delete", "--group", "nope", "--group", "team", "--group", "idle")
    assert ended.code == 1
    assert ended.text == "\nThese consumer groups were deleted successfully: 'idle'\n"
    assert ended.err.splitlines() == [
        "headrace consumer-groups: Group 'nope' could not be deleted due to: "
        "The group id does not exist; name one of --list",
        "headrace consumer-groups: Group 'team' could not be deleted due to: "
        "The group is not empty; stop its members",
    ]
    assert groups("--list").text == "reports-of-a-long-name\nteam\n"


def test_deletions_as_json(groups: Command) -> None:
    ended = groups("--delete", "--group", "nope", "--group", "idle", "--json")
    assert ended.code == 1
    error = {"name": "GROUP_ID_NOT_FOUND", "message": "The group id does not exist."}
    assert [json.loads(line) for line in ended.text.splitlines()] == [
        {"group": "nope", "deleted": False, "error": error},
        {"group": "idle", "deleted": True, "error": None},
    ]


def test_a_share_group_is_left_alone(groups: Command, broker: headrace.Broker) -> None:
    with Cluster(broker.bootstrap_servers) as cluster:
        alter_share_group_offsets(cluster, "queue", {("orders", 0): 0}).check()
        ended = groups("--delete", "--group", "queue", "--group", "idle")
        assert ended.code == 1
        assert ended.text == "\nThese consumer groups were deleted successfully: 'idle'\n"
        assert ended.err == (
            "headrace consumer-groups: Group 'queue' could not be deleted due to: "
            "Group queue is a share group; name one of --list\n"
        )
        assert ("orders", 0) in list_share_group_offsets(cluster, "queue")


def test_offsets_of_topics_and_partitions_are_deleted(
    groups: Command, broker: headrace.Broker
) -> None:
    ended = groups(
        "--delete-offsets", "--group", "idle", "--topic", "orders:1,1", "--topic", "plain"
    )
    rows = (row("orders", 1, "Successful"), row("plain", 0, "Successful"))
    assert ended.text == "\n".join(("", HEAD, *rows, ""))
    assert (ended.code, ended.err) == (0, "")
    assert committed(broker, "idle") == [("orders", 0)]


def test_a_topic_without_partitions_is_not_provided(
    groups: Command, broker: headrace.Broker
) -> None:
    wanted = ("--topic", "orders:9,0", "--topic", "foo", "--topic", "bad topic", "--topic", ":0")
    ended = groups("--delete-offsets", "--group", "idle", *wanted)
    invalid = "Error: The request attempted to perform an operation on an invalid topic."
    assert ended.text.splitlines() == [
        "",
        HEAD,
        row("", 0, UNKNOWN),
        row("bad topic", "Not Provided", invalid),
        row("foo", "Not Provided", UNKNOWN),
        row("orders", 0, "Successful"),
        row("orders", 9, UNKNOWN),
    ]
    assert ended.code == 1
    told = "headrace consumer-groups: 4 of 5 were not deleted from group 'idle'; see STATUS\n"
    assert ended.err == told
    assert committed(broker, "idle") == [("orders", 1), ("plain", 0)]


@pytest.mark.parametrize(
    ("group", "message"),
    [("unknown", "The group id does not exist."), ("", "The group id is invalid.")],
)
def test_an_error_of_the_group_stands_alone(groups: Command, group: str, message: str) -> None:
    ended = groups("--delete-offsets", "--group", group, "--topic", "test:0,1", "--topic", "foo")
    assert ended.text == f"\nError: Deletion of offsets failed due to: {message}\n"
    assert ended.code == 1
    said = f"no offset of group '{group}' was deleted: {message.rstrip('.')}; name one of --list"
    assert ended.err == f"headrace consumer-groups: {said}\n"


def test_offsets_of_a_share_group_are_another_commands(
    groups: Command, broker: headrace.Broker
) -> None:
    with Cluster(broker.bootstrap_servers) as cluster:
        alter_share_group_offsets(cluster, "queue", {("orders", 0): 0}).check()
    asked = ("--delete-offsets", "--group", "queue", "--topic", "orders")
    told = "Group 'queue' is a share group; headrace share-groups serves it"
    ended = groups(*asked)
    assert ended.text == f"\nError: Deletion of offsets failed due to: {told}\n"
    assert ended.code == 1
    said = f"no offset of group 'queue' was deleted: {told}"
    assert ended.err == f"headrace consumer-groups: {said}\n"
    error = {"name": "GROUP_ID_NOT_FOUND", "message": told}
    assert json.loads(groups(*asked, "--json").text)["error"] == error


@pytest.mark.usefixtures("team")
def test_a_group_that_lives_keeps_what_it_subscribes_to(
    groups: Command, broker: headrace.Broker
) -> None:
    ended = groups("--delete-offsets", "--group", "team", "--topic", "orders:0", "--topic", "plain")
    rows = (row("orders", 0, SUBSCRIBED), row("plain", 0, "Successful"))
    assert ended.text.splitlines()[2:] == list(rows)
    assert ended.code == 1
    assert committed(broker, "team") == [("orders", 0)]


def test_deleted_offsets_as_json(groups: Command) -> None:
    wanted = ("--topic", "orders:0,9", "--topic", "foo", "--json")
    ended = groups("--delete-offsets", "--group", "idle", *wanted)
    told = [json.loads(line) for line in ended.text.splitlines()]
    assert [(one["topic"], one["partition"], one["deleted"]) for one in told] == [
        ("foo", None, False),
        ("orders", 0, True),
        ("orders", 9, False),
    ]
    assert told[0]["error"]["name"] == "UNKNOWN_TOPIC_OR_PARTITION"
    assert told[1] == {
        "group": "idle",
        "topic": "orders",
        "partition": 0,
        "deleted": True,
        "error": None,
    }
    refused = groups("--delete-offsets", "--group", "unknown", *wanted)
    error = {"name": "GROUP_ID_NOT_FOUND", "message": "The group id does not exist."}
    assert json.loads(refused.text) == {"group": "unknown", "deleted": False, "error": error}
    assert refused.code == 1
