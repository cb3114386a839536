"""`headrace topics` against a broker, and its text against Apache Kafka's."""

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.log.os_disk import OsFile

Command = Callable[..., Any]
Golden = Callable[[str], str]
Same = Callable[[str], str]


@pytest.fixture
def topics(cli: Command) -> Command:
    """`headrace topics` on a broker with the topics of the golden files."""
    created = cli(
        "topics", "--create", "--topic", "orders", "--partitions", "3",
        "--config", "retention.ms=1000",
    )  # fmt: skip
    assert (created.code, created.text) == (0, "Created topic orders.\n")
    for name in ("plain", "text"):
        assert cli("topics", "--create", "--topic", name, "--partitions", "1").code == 0
    return lambda *arguments: cli("topics", *arguments)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("topics_list", ("--list", "--exclude-internal")),
        ("topics_describe", ("--describe", "--topic", "orders|plain")),
        ("topics_overrides", ("--describe", "--topics-with-overrides", "--exclude-internal")),
        ("topics_at_min_isr", ("--describe", "--topic", "ord.*", "--at-min-isr-partitions")),
    ],
)
def test_text_is_that_of_kafkas_tool(
    topics: Command, golden: Golden, same: Same, name: str, arguments: tuple[str, ...]
) -> None:
    assert same(topics(*arguments).text) == golden(name)


@pytest.mark.parametrize(
    "only",
    ["under-replicated-partitions", "unavailable-partitions", "under-min-isr-partitions"],
)
def test_nothing_is_wrong_with_partitions(topics: Command, only: str) -> None:
    ended = topics("--describe", f"--{only}")
    assert (ended.code, ended.text) == (0, "")


def test_a_name_with_dot_and_underscore_is_warned_of(cli: Command) -> None:
    text = cli("topics", "--create", "--topic", "a.b_c").text
    assert text.startswith("WARNING: Due to limitations in metric names")
    assert text.endswith("Created topic a.b_c.\n")


def test_an_existing_topic_is_an_error_unless_it_may_exist(topics: Command) -> None:
    ended = topics("--create", "--topic", "orders")
    assert ended.code == 1
    assert ended.err.startswith("headrace topics: creating topic 'orders': TOPIC_ALREADY_EXISTS")
    again = topics("--create", "--topic", "orders", "--if-not-exists")
    assert (again.code, again.text, again.err) == (0, "", "")


def test_partitions_are_added(topics: Command) -> None:
    assert topics("--alter", "--topic", "orders", "--partitions", "5").code == 0
    assert topics("--describe", "--topic", "orders").text.count("Partition: ") == 5
    fewer = topics("--alter", "--topic", "orders", "--partitions", "2")
    assert fewer.code == 1
    assert "INVALID_PARTITIONS" in fewer.err


def test_partitions_by_assignment(topics: Command) -> None:
    assert topics("--create", "--topic", "placed", "--replica-assignment", "1,1").code == 0
    more = ("--alter", "--topic", "placed", "--partitions", "3", "--replica-assignment", "1,1,1")
    assert topics(*more).code == 0
    assert topics("--describe", "--topic", "placed").text.count("Partition: ") == 3
    nowhere = topics("--create", "--topic", "lost", "--replica-assignment", "1,7")
    assert (nowhere.code, "INVALID_REPLICA_ASSIGNMENT" in nowhere.err) == (1, True)
    odd = topics("--create", "--topic", "odd", "--replica-assignment", "x")
    assert (odd.code, "1:2,2:1" in odd.err) == (1, True)


def test_deleting_by_pattern_wants_a_yes(topics: Command) -> None:
    refused = topics("--delete", "--topic", "or.*|plain")
    assert refused.code == 1
    assert "would delete orders, plain; add --yes" in refused.err
    assert topics("--delete", "--topic", "or.*|plain", "--yes").code == 0
    assert topics("--list", "--exclude-internal").text == "text\n"


def test_a_topic_named_as_it_is_is_deleted_without_a_question(topics: Command) -> None:
    ended = topics("--delete", "--topic", "orders,plain")
    assert (ended.code, ended.text, ended.err) == (0, "", "")
    assert topics("--list", "--exclude-internal").text == "text\n"


def test_a_deletion_that_is_refused_in_part_exits_1(topics: Command) -> None:
    ended = topics("--delete", "--topic", "orders,__share_group_state")
    assert ended.code == 1
    assert "1 of 2 topics were not deleted" in ended.err
    assert "orders" not in topics("--list").text


@pytest.mark.parametrize("action", ["--delete", "--describe", "--alter"])
def test_a_missing_topic_is_told_unless_it_may_be_missing(topics: Command, action: str) -> None:
    asked = (action, "--topic", "absent", *(("--partitions", "2") if action == "--alter" else ()))
    ended = topics(*asked)
    assert ended.code == 1
    assert ended.err == ("headrace topics: Topic 'absent' does not exist as expected; see --list\n")
    missing = topics(*asked, "--if-exists")
    assert (missing.code, missing.text, missing.err) == (0, "", "")


def test_a_topic_by_its_id(topics: Command) -> None:
    shown = json.loads(topics("--describe", "--topic", "plain", "--json").text)
    found = topics("--describe", "--topic-id", shown["topic_id"])
    assert found.text.startswith("Topic: plain\t")
    assert topics("--describe", "--topic-id", "absent").code == 1


def test_json_is_one_object_a_line(topics: Command) -> None:
    lines = topics("--describe", "--topic", "orders|plain", "--json").text.splitlines()
    orders, plain = (json.loads(line) for line in lines)
    assert (orders["topic"], orders["configs"]) == ("orders", {"retention.ms": "1000"})
    assert orders["partitions"][2] == {"partition": 2, "leader": 1, "replicas": [1], "isr": [1]}
    assert (plain["partition_count"], plain["replication_factor"]) == (1, 1)
    created = json.loads(topics("--create", "--topic", "new", "--json").text)
    assert created == {"topic": "new", "created": True}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "give exactly one of --list"),
        (("--list", "--create"), "give exactly one of --list"),
        (("--create",), "--create needs --topic"),
        (("--list", "--partitions", "3"), "--partitions cannot be used with --list"),
        (("--alter", "--topic", "t"), "--alter needs --partitions"),
        (("--describe", "--topic", "("), "'(' is no regular expression"),
        (("--create", "--topic", "t", "--partitions", "-1"), "--partitions -1: expected a number"),
        (("--create", "--topic", "t", "--partitions", "0"), "--partitions 0: expected a number"),
        (
            ("--alter", "--topic", "t", "--partitions", "3000000000"),
            "--partitions 3000000000: expected a number from 1 to 2147483647",
        ),
        (
            ("--create", "--topic", "t", "--replication-factor", "32768"),
            "--replication-factor 32768: expected a number from 1 to 32767",
        ),
        (("--create", "--topic", "t", "--config", "x"), "--config x: write it as name=value"),
        (
            ("--describe", "--unavailable-partitions", "--topics-with-overrides"),
            "exclude each other",
        ),
    ],
)
def test_what_makes_no_sense_is_one_line_and_1(
    cli: Command, arguments: tuple[str, ...], told: str
) -> None:
    ended = cli("topics", *arguments)
    assert ended.code == 1
    assert told in ended.err
    assert ended.err.count("\n") == 1


def test_a_full_disk_is_one_line_at_once(
    broker: headrace.Broker, cli: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: OsFile, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(OsFile, "append", fail)
        ended = cli("topics", "--create", "--topic", "new")
    assert (ended.code, ended.out) == (1, b"")
    assert ended.err.startswith(
        "headrace topics: creating topic 'new': KAFKA_STORAGE_ERROR: the broker cannot write to its"
    )
    assert ended.err.endswith("then repeat the request; no restart is needed\n")
    assert ended.err.count("\n") == 1


def test_a_broker_that_is_not_there_is_told_in_seconds(offline: Command) -> None:
    ended = offline("topics", "--list", "--bootstrap-server", "127.0.0.1:1")
    assert ended.code == 1
    assert "gave up after 3 s at 127.0.0.1:1" in ended.err
    assert ended.err.endswith("is a broker running there?\n")
    assert ended.err.count("\n") == 1


def test_encryption_is_refused_by_name(cli: Command, tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    config.write_text("# a client\nsecurity.protocol = SASL_SSL\n")
    ended = cli("topics", "--list", "--command-config", str(config))
    assert ended.code == 1
    assert "security.protocol=SASL_SSL is not supported" in ended.err
