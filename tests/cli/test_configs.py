"""`headrace configs` against a broker, and its text against Apache Kafka's."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]
Text = Callable[[str], str]


@pytest.fixture
def configs(cli: Command) -> Command:
    """`headrace configs` on a broker with the topic of the golden files."""
    assert cli("topics", "--create", "--topic", "orders", "--config", "retention.ms=1000").code == 0
    return lambda *arguments: cli("configs", *arguments)


def test_text_is_that_of_kafkas_tool(configs: Command, golden: Text, same: Text) -> None:
    def check(name: str, *arguments: str) -> None:
        assert same(configs(*arguments).text) == golden(name), name

    check("configs_describe", "--describe", "--topic", "orders")
    check("configs_describe", "--describe", "--entity-type", "topics", "--entity-name", "orders")
    added = "cleanup.policy=[compact,delete],segment.bytes=5000000"
    changes = ("--add-config", added, "--delete-config", "retention.ms")
    check("configs_alter", "--alter", "--topic", "orders", *changes)
    check("configs_altered", "--describe", "--topic", "orders")
    group = ("--add-config", "share.auto.offset.reset=earliest")
    check("configs_alter_group", "--alter", "--group", "work", *group)
    check("configs_broker", "--describe", "--broker", "1")


def test_all_settings_and_those_of_all_topics(configs: Command) -> None:
    every = configs("--describe", "--topic", "orders", "--all").text.splitlines()
    assert every[0] == "All configs for topic orders are:"
    dynamic, default = "DYNAMIC_TOPIC_CONFIG:retention.ms=1000", "DEFAULT_CONFIG:log.cleanup.policy"
    assert f"  retention.ms=1000 sensitive=false synonyms={{{dynamic}}}" in every
    assert f"  cleanup.policy=delete sensitive=false synonyms={{{default}=delete}}" in every
    assert every[1:] == sorted(every[1:])
    heads = configs("--describe", "--entity-type", "topics").text
    assert "Dynamic configs for topic orders are:\n  retention.ms=1000 " in heads
    brokers = configs("--describe", "--entity-type", "brokers").text.splitlines()
    assert brokers == [
        "Dynamic configs for broker 1 are:",
        "Default configs for brokers in the cluster are:",
    ]


def test_settings_from_a_file_and_of_a_group(configs: Command, tmp_path: Path) -> None:
    file = tmp_path / "settings"
    file.write_text(
        "! of a group\nshare.delivery.count.limit : 7\nshare.session.timeout.ms 45000\n"
    )
    assert configs("--alter", "--group", "work", "--add-config-file", str(file)).code == 0
    shown = json.loads(configs("--describe", "--group", "work", "--json").text)
    assert shown["group"] == "work"
    assert {one["name"]: one["value"] for one in shown["configs"]} == {
        "share.delivery.count.limit": "7",
        "share.session.timeout.ms": "45000",
    }
    assert {one["source"] for one in shown["configs"]} == {"DYNAMIC_GROUP_CONFIG"}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--describe",), "At least one entity type must be specified"),
        (("--topic", "orders"), "give exactly one of --describe and --alter"),
        (("--describe", "--entity-type", "users"), "Invalid entity type users"),
        (("--describe", "--topic", "a", "--group", "b"), "give one entity"),
        (("--describe", "--topic", "a", "--add-config", "a=b"), "go with --alter"),
        (("--alter", "--topic", "orders"), "At least one of --add-config"),
        (("--alter", "--entity-type", "topics", "--add-config", "a=b"), "name must be specified"),
        (("--alter", "--topic", "orders", "--add-config", "retention.ms"), "write key=value"),
        (("--alter", "--topic", "orders", "--add-config", "a=b"), "there is no setting 'a'"),
        (("--alter", "--topic", "absent", "--add-config", "a=b"), "UNKNOWN_TOPIC_OR_PARTITION"),
        (("--alter", "--broker", "1", "--add-config", "num.partitions=2"), "serve --set"),
        (("--describe", "--topic", "absent"), "The topic 'absent' doesn't exist"),
        (("--describe", "--broker", "7"), "The broker '7' doesn't exist"),
        (("--describe", "--entity-type", "topics", "--entity-default"), "brokers alone"),
    ],
)
def test_what_is_refused_is_one_line_and_1(
    configs: Command, arguments: tuple[str, ...], told: str
) -> None:
    ended = configs(*arguments)
    assert ended.code == 1
    assert told in ended.err
    assert ended.err.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "setting", "value", "outside", "bound"),
    [
        ("record.lock.duration.ms", "share.record.lock.duration.ms", "2000", "999", "1000"),
        ("share.delivery.attempt.limit", "share.delivery.count.limit", "7", "11", "2 to 10"),
        (
            "share.assignment.interval.ms",
            "share.assignment.interval.ms",
            "9",
            "15001",
            "0 to 15000",
        ),
    ],
)
def test_settings_of_a_group_by_the_names_of_the_proposal_too(
    configs: Command, name: str, setting: str, value: str, outside: str, bound: str
) -> None:
    work = ("--entity-type", "groups", "--entity-name", "work")
    assert configs("--alter", *work, "--add-config", f"{name}={value}").code == 0
    assert f"  {setting}={value} " in configs("--describe", *work).text
    refused = configs("--alter", *work, "--add-config", f"{name}={outside}")
    assert refused.code == 1
    assert setting in refused.err
    assert bound in refused.err
    assert configs("--alter", *work, "--delete-config", name).code == 0
    assert setting not in configs("--describe", *work).text


def test_a_start_by_duration_is_iso_8601(configs: Command) -> None:
    def alter(value: str) -> Any:
        added = f"share.auto.offset.reset={value}"
        return configs("--alter", "--group", "work", "--add-config", added)

    assert alter("by_duration:P1DT12H").code == 0
    refused = alter("by_duration:1h")
    assert refused.code == 1
    assert "write the duration as ISO 8601 does, e.g. by_duration:P7D" in refused.err


def test_a_reset_policy_is_turned_on_and_off_by_one_command(configs: Command) -> None:
    """As docs/reset.md has it; a wrong value is refused with those that are allowed."""
    work = ("--entity-type", "groups", "--entity-name", "work")
    other = "offset.reset.strategy.offset-out-of-range"
    added = f"auto.offset.reset=safe_latest,{other}=nearest"
    assert configs("--alter", *work, "--add-config", added).code == 0
    shown = json.loads(configs("--describe", *work, "--json").text)["configs"]
    found = {one["name"]: one["value"] for one in shown}
    assert found == {"auto.offset.reset": "safe_latest", other: "nearest"}
    for wrong, allowed in (
        ("auto.offset.reset=nearest", "latest_on_start, safe_latest"),
        (f"{other}=safe", "none, nearest"),
    ):
        refused = configs("--alter", *work, "--add-config", wrong)
        assert (refused.code, refused.err.count("\n")) == (1, 1)
        assert allowed in refused.err
    assert configs("--alter", *work, "--delete-config", f"auto.offset.reset,{other}").code == 0
    assert json.loads(configs("--describe", *work, "--json").text)["configs"] == []
