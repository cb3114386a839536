"""What `headrace consumer-groups` refuses before it asks a broker: one line, and exit code 1."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.ending import Trouble
from headrace.cli.reset_plans import read_plans
from headrace.cli.topic_partitions import named_partitions

Command = Callable[..., Any]

RESET = ("--reset-offsets", "--dry-run", "--group", "g")
TO = ("--to-earliest",)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "Command must include exactly one action: --list, --describe, --delete, --reset-"),
        (("--list", "--describe"), "Command must include exactly one action"),
        (("--list", "--group", "g"), "--group can't be used with --list"),
        (("--list", "--topic", "t"), "--topic can't be used with --list"),
        (("--list", "--verbose"), "--verbose cannot be used with --list; leave it out"),
        (("--list", "--execute"), "--execute cannot be used with --list"),
        (("--list", "--state", "bogus"), "Invalid state list 'bogus'. Valid states are: Assigning"),
        (("--list", "--state", "empty,"), "Invalid state list 'empty,'"),
        (("--list", "--type", "x"), "Invalid types list 'x'. Valid types are: Classic, Consumer"),
        (("--describe",), "--describe takes one of these options: --group, --all-groups"),
        (
            ("--describe", "--group", "g", "--all-groups"),
            "--group can't be used with --all-groups; give one of the two",
        ),
        (
            ("--describe", "--group", "g", "--members", "--state"),
            "--describe takes at most one of these options: --members, --offsets, --state",
        ),
        (
            ("--describe", "--group", "g", "--offsets", "--members"),
            "--describe takes at most one of these options",
        ),
        (
            ("--describe", "--group", "g", "--state", "v"),
            "--describe does not take a value for --state: 'v'",
        ),
        (("--describe", "--group", "g", "--type"), "--type cannot be used with --describe"),
        (("--describe", "--group", "g", "--to-offset", "0"), "--to-offset cannot be used with"),
        (("--delete",), "--delete takes one of these options: --group, --all-groups"),
        (("--delete", "--group", "g", "--topic", "t"), "use --delete-offsets"),
        (("--delete-offsets", "--group", "g"), "--delete-offsets needs --topic and --group"),
        (("--delete-offsets", "--topic", "t"), "--delete-offsets needs --topic and --group"),
        (
            ("--delete-offsets", "--all-groups", "--topic", "t"),
            "--all-groups cannot be used with --delete-offsets",
        ),
        (
            ("--delete-offsets", "--group", "g", "--group", "h", "--topic", "t"),
            "Found multiple arguments for option group; --delete-offsets takes one",
        ),
        (("--reset-offsets", *TO), "--reset-offsets takes one of these options: --group, --all"),
        ((*RESET, *TO), "One of the reset scopes should be defined: --all-topics, --topic."),
        (
            (*RESET, "--all-topics"),
            "--reset-offsets requires one of the following scenarios: --to-earliest, --to-latest",
        ),
        (
            (*RESET, "--all-topics", *TO, "--to-latest"),
            "--to-earliest can't be used with --to-latest",
        ),
        (
            (*RESET, "--all-topics", "--to-offset", "0", "--shift-by", "0"),
            "--to-offset can't be used with --shift-by",
        ),
        ((*RESET, "--execute"), "--reset-offsets only accepts one of --execute and --dry-run"),
        (
            (*RESET, "--all-topics", *TO, "--export", "--json"),
            "--export can't be used with --json; give one of the two",
        ),
        (
            (*RESET, "--all-topics", "--topic", "t", *TO),
            "--all-topics can't be used with --topic; give one of the two",
        ),
        (
            (*RESET, "--all-topics", "--from-file", "f"),
            "--from-file says which partitions; leave --all-topics and --topic out",
        ),
    ],
)
def test_what_makes_no_sense_is_one_line_and_1(
    offline: Command, arguments: tuple[str, ...], told: str
) -> None:
    ended = offline("consumer-groups", "--bootstrap-server", "127.0.0.1:1", *arguments)
    assert (ended.code, ended.text) == (1, "")
    assert ended.err.startswith("headrace consumer-groups: ")
    assert told in ended.err
    assert ended.err.count("\n") == 1


@pytest.mark.parametrize("timeout", ["0", "soon"])
def test_a_timeout_is_a_number_of_milliseconds(offline: Command, timeout: str) -> None:
    ended = offline("consumer-groups", "--list", "--timeout", timeout)
    assert ended.code == 2, "of the parser; the process ends with 1"
    assert "--timeout" in ended.err


def test_a_broker_that_is_not_there_is_told_within_the_timeout(offline: Command) -> None:
    ended = offline(
        "consumer-groups", "--list", "--bootstrap-server", "127.0.0.1:1", "--timeout", "200"
    )
    assert ended.code == 1
    assert "gave up after 0.2 s at 127.0.0.1:1" in ended.err
    assert ended.err.count("\n") == 1


@pytest.mark.parametrize(
    ("argument", "told"),
    [
        ("t:x", "Invalid partition 'x' specified in topic arg 't:x'; write numbers"),
        ("t:0,,1", "Invalid partition '' specified"),
        ("t: 0", "Invalid partition ' 0' specified"),
        ("t:--1", "Invalid partition '--1' specified"),
        ("t:٣", "Invalid partition '٣' specified"),
        ("t:2147483648", "Invalid partition '2147483648' specified"),
        ("t:", "Invalid topic arg 't:', expected topic name and partitions, e.g. orders:0,1"),
        ("t:0:1", "Invalid topic arg 't:0:1', expected topic name and partitions"),
    ],
)
def test_partitions_that_are_none(argument: str, told: str) -> None:
    with pytest.raises(Trouble) as trouble:
        named_partitions([argument])
    assert str(trouble.value).startswith(told)


def test_partitions_are_named_once() -> None:
    assert named_partitions(["a:2,0,2", "b", "a:1,0", "b:7", ":0", "c:-1", "c"]) == {
        "a": [2, 0, 1],
        "b": None,
        "": [0],
        "c": None,
    }


@pytest.mark.parametrize(
    ("regex", "reason"),
    [
        ("a.*b|[c-d]", None),
        ("[a", "missing ]: [a"),
        ("(?=a)", "invalid perl operator: (?="),
        ("a{2,1}", "invalid repetition size: {2,1}"),
        ("a" * 8193, "it has more than 8192 characters"),
    ],
)
def test_regular_expressions_are_res(offline: Command, regex: str, reason: str | None) -> None:
    ended = offline("consumer-groups", "--validate-regex", regex)
    verdict = "valid" if reason is None else f"invalid: {reason}"
    assert ended.text == f"The regular expression `{regex}` is {verdict}.\n"
    assert (ended.code, ended.err) == (int(reason is not None), "")
    told = json.loads(offline("consumer-groups", "--validate-regex", regex, "--json").text)
    assert told == {"regex": regex, "valid": reason is None, "reason": reason}


def test_plans_of_one_group_and_of_several(tmp_path: Path) -> None:
    file = tmp_path / "plan.csv"
    file.write_text("orders,0,3\n\n orders , 1 , 99 \nh,plain,0,-1\n")
    plans = {"g": {("orders", 0): 3, ("orders", 1): 99}, "h": {("plain", 0): -1}}
    assert read_plans(file, ["g"]) == plans


@pytest.mark.parametrize(
    ("line", "groups", "told"),
    [
        ("orders,x,3", ["g"], "line 1 of FILE is 'orders,x,3'; write topic,partition,offset or"),
        ("orders,0,3", ["g", "h"], "line 1 of FILE is 'orders,0,3'; write group,topic,partition"),
        ("orders", ["g"], "line 1 of FILE is 'orders'"),
        ("orders,0,1_0", ["g"], "line 1 of FILE is 'orders,0,1_0'"),
        ("a,b,0,1,2", ["g"], "line 1 of FILE is 'a,b,0,1,2'"),
    ],
)
def test_plans_that_are_none(tmp_path: Path, line: str, groups: list[str], told: str) -> None:
    file = tmp_path / "plan.csv"
    file.write_text(f"{line}\n")
    with pytest.raises(Trouble) as trouble:
        read_plans(file, groups)
    assert str(trouble.value).replace(str(file), "FILE").startswith(told)


def test_a_plan_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(Trouble, match=r"--from-file .*absent\.csv cannot be read"):
        read_plans(tmp_path / "absent.csv", ["g"])


def test_names_of_groups_in_a_plan_keep_their_blanks(tmp_path: Path) -> None:
    """As --export writes them."""
    file = tmp_path / "plan.csv"
    file.write_text('" a, b ",orders,0,3\n lead,orders,0,4\n')
    plans = {" a, b ": {("orders", 0): 3}, " lead": {("orders", 0): 4}}
    assert read_plans(file, [" a, b ", " lead"]) == plans


def test_a_plan_may_begin_with_the_mark_of_a_spreadsheet(tmp_path: Path) -> None:
    file = tmp_path / "plan.csv"
    file.write_bytes(b"\xef\xbb\xbforders,0,3\r\n")
    assert read_plans(file, ["g"]) == {"g": {("orders", 0): 3}}


def test_a_name_that_is_no_text_is_one_line_and_1(cli: Command) -> None:
    ended = cli("consumer-groups", "--describe", "--group", "\udcff")
    assert (ended.code, ended.out) == (1, b"")
    assert ended.err.startswith("headrace consumer-groups: a request cannot hold what was given: ")


def test_a_refusal_is_told_with_one_stop(cli: Command) -> None:
    ended = cli("consumer-groups", "--describe", "--group", "")
    assert "The group id is empty; the name belongs" in ended.err
