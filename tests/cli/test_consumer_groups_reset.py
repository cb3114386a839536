"""`headrace consumer-groups --reset-offsets`: plans against Apache Kafka's, and what is set."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

import headrace
from headrace.cli.consumer_groups_reset import within
from headrace.client.connection import Cluster
from headrace.client.errors import Unreachable
from headrace.client.groups import alter_group_offsets, list_group_offsets
from headrace.client.offsets import TopicPartition
from headrace.client.share_groups import alter_share_group_offsets
from headrace.client.topics import create_topic

Command = Callable[..., Any]
Golden = Callable[[str], str]
MakeGroups = Callable[[headrace.Broker], None]

IDLE = ("--group", "idle")
TWO = (*IDLE, "--group", "reports-of-a-long-name")
PLAN_OF_ONE = "orders,0,3\norders,1,99\n"
PLAN_OF_TWO = "idle,orders,0,3\nreports-of-a-long-name,orders,1,99\n"


@pytest.fixture(scope="module")
def running(make_groups: MakeGroups) -> Iterator[headrace.Broker]:
    """A broker with groups that no test of this module changes."""
    with headrace.Broker() as broker:
        make_groups(broker)
        yield broker


@pytest.fixture
def plan(running: headrace.Broker, offline: Command) -> Command:
    """`headrace consumer-groups --reset-offsets --dry-run` on that broker."""
    asked = ("--bootstrap-server", running.bootstrap_servers, "--reset-offsets", "--dry-run")
    return lambda *arguments: offline("consumer-groups", *asked, *arguments)


@pytest.fixture
def groups(broker: headrace.Broker, make_groups: MakeGroups, cli: Command) -> Command:
    """`headrace consumer-groups` on a broker with these groups that may be changed."""
    make_groups(broker)
    return lambda *arguments: cli("consumer-groups", *arguments)


def committed(broker: headrace.Broker, group: str) -> dict[TopicPartition, int]:
    with Cluster(broker.bootstrap_servers) as cluster:
        return {place: one.offset for place, one in list_group_offsets(cluster, group).items()}


def rows(text: str) -> list[str]:
    return sorted(text.splitlines())


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("reset_earliest", (*IDLE, "--to-earliest", "--all-topics")),
        ("reset_latest", (*IDLE, "--to-latest", "--topic", "orders")),
        (
            "reset_offset",
            (*IDLE, "--to-offset", "30", "--topic", "orders:0,2", "--topic", "plain"),
        ),
        ("reset_shift", (*IDLE, "--shift-by", "-5", "--topic", "orders:0,1")),
        ("reset_current", (*IDLE, "--to-current", "--topic", "orders")),
        (
            "reset_datetime",
            (*IDLE, "--to-datetime", "2026-11-21T13:20:54.206+00:00", "--topic", "orders"),
        ),
        ("reset_duration", (*IDLE, "--by-duration", "P3650DT1H", "--topic", "orders")),
        ("reset_two", (*TWO, "--to-earliest", "--all-topics")),
        ("export_one", (*IDLE, "--to-earliest", "--all-topics", "--export")),
        ("export_two", (*TWO, "--to-earliest", "--all-topics", "--export")),
    ],
)
def test_plans_are_those_of_kafkas_tool_but_sorted(
    plan: Command, golden: Golden, name: str, arguments: tuple[str, ...]
) -> None:
    ended = plan(*arguments)
    assert rows(ended.text) == rows(golden(f"groups_{name}"))
    assert ended.code == 0
    lines = ended.text.strip("\n").splitlines()
    body = lines if "--export" in arguments else lines[1:]
    assert body == sorted(body)


@pytest.mark.parametrize(
    ("name", "of", "text"),
    [("reset_file", IDLE, PLAN_OF_ONE), ("reset_file_two", TWO, PLAN_OF_TWO)],
)
def test_plans_from_files_are_those_of_kafkas_tool(
    plan: Command, golden: Golden, tmp_path: Path, name: str, of: tuple[str, ...], text: str
) -> None:
    file = tmp_path / "plan.csv"
    file.write_text(text)
    ended = plan(*of, "--from-file", str(file))
    assert rows(ended.text) == rows(golden(f"groups_{name}"))
    assert ended.code == 0
    assert "New offset (99) is higher than latest offset for topic partition orders-1" in ended.err


def test_a_time_without_records_is_told(plan: Command) -> None:
    ended = plan(*IDLE, "--by-duration", "-P9999D", "--topic", "orders:2", "--topic", "plain")
    assert [line.split()[1:] for line in ended.text.splitlines()[2:]] == [
        ["orders", "2", "10"],
        ["plain", "0", "0"],
    ]
    assert ended.code == 0
    assert ended.err.count("Falling back to latest known offset.\n") == 2


def test_a_time_that_no_clock_reaches_is_the_end(plan: Command) -> None:
    never = "-P999999999999999D"
    ended = plan(*IDLE, "--by-duration", never, "--topic", "orders:2", "--json")
    assert json.loads(ended.text)["partitions"][0]["new_offset"] == 10
    assert ended.err.count("Falling back to latest known offset.\n") == 1


def test_a_time_before_1970_is_the_beginning(plan: Command) -> None:
    ended = plan(*IDLE, "--to-datetime", "1901-01-01T00:00:00", "--topic", "orders:2", "--json")
    assert json.loads(ended.text)["partitions"][0]["new_offset"] == 0


def test_a_plan_as_json(plan: Command) -> None:
    ended = plan(*TWO, "--to-current", "--topic", "orders:1,2", "--json")
    assert [json.loads(line) for line in ended.text.splitlines()] == [
        {
            "group": "idle",
            "executed": False,
            "partitions": [
                {"topic": "orders", "partition": 1, "current_offset": 10, "new_offset": 10},
                {"topic": "orders", "partition": 2, "current_offset": None, "new_offset": 10},
            ],
        },
        {
            "group": "reports-of-a-long-name",
            "executed": False,
            "partitions": [
                {"topic": "orders", "partition": 1, "current_offset": None, "new_offset": 10},
                {"topic": "orders", "partition": 2, "current_offset": 1, "new_offset": 1},
            ],
        },
    ]


def test_only_offsets_outside_the_log_move_to_its_nearest_end(
    broker: headrace.Broker, groups: Command
) -> None:
    with Cluster(broker.bootstrap_servers) as cluster:
        alter_group_offsets(
            cluster, "idle", {("orders", 0): 1, ("orders", 1): 99, ("orders", 2): 7}
        )
    with headrace.SyncAdmin(broker.bootstrap_servers) as admin:
        admin.delete_records({("orders", 0): 4})
    ended = groups(
        "--reset-offsets", *IDLE, "--to-nearest", "--topic", "orders", "--execute", "--json"
    )
    moved = json.loads(ended.text)["partitions"]
    assert [(one["current_offset"], one["new_offset"]) for one in moved] == [
        (1, 4),
        (99, 10),
        (7, 7),
    ]
    assert committed(broker, "idle")["orders", 1] == 10
    assert (ended.code, ended.err) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ("--to-nearest", "--topic", "orders"),
            "Cannot move offset for partition orders-2 since there is no current committed offset",
        ),
        (
            ("--shift-by", "-2", "--topic", "orders"),
            "Cannot shift offset for partition orders-2 since there is no current committed offset",
        ),
        (("--to-earliest", "--topic", "nope"), "there is no topic 'nope'; see headrace topics"),
        (
            ("--to-earliest", "--topic", "orders:7,0,8"),
            'The partitions "orders-7,orders-8" do not exist, or have no leader',
        ),
        (("--to-earliest", "--topic", "orders:x"), "Invalid partition 'x'"),
        (
            ("--to-datetime", "2026-11-21", "--all-topics"),
            "'2026-11-21' is a date without a time",
        ),
        (("--to-datetime", "yesterday", "--all-topics"), "'yesterday' is no time"),
        (("--by-duration", "1h", "--all-topics"), "'1h' is no length of time"),
        (("--from-file", "/nonexistent"), "--from-file /nonexistent cannot be read"),
    ],
)
def test_what_cannot_be_planned_is_one_line_and_1(
    plan: Command, arguments: tuple[str, ...], told: str
) -> None:
    ended = plan(*IDLE, *arguments)
    assert (ended.code, ended.text) == (1, "")
    assert ended.err.startswith(f"headrace consumer-groups: {told}")
    assert ended.err.count("\n") == 1


def test_the_form_of_an_export_does_not_hang_on_how_many_groups_there_are(
    cli: Command, broker: headrace.Broker
) -> None:
    """As with Kafka's tool, --all-groups names the group, even if it is the only one."""
    with Cluster(broker.bootstrap_servers) as cluster:
        create_topic(cluster, "t", 1)
        alter_group_offsets(cluster, "only", {("t", 0): 0}).check()
    asked = ("consumer-groups", "--reset-offsets", "--topic", "t", "--to-latest", "--export")
    assert cli(*asked, "--dry-run", "--all-groups").text == "only,t,0,0\n\n"
    assert cli(*asked, "--dry-run", "--group", "only").text == "t,0,0\n\n"


def test_a_file_without_a_group_that_is_asked_for(plan: Command, tmp_path: Path) -> None:
    file = tmp_path / "plan.csv"
    file.write_text("idle,orders,0,3\n")
    ended = plan(*TWO, "--from-file", str(file))
    assert ended.code == 1
    assert ended.text.splitlines()[2:] == ["idle            orders          0          3"]
    told = f"No reset plan for group reports-of-a-long-name found in {file}\n"
    assert ended.err == f"headrace consumer-groups: {told}"


def test_nothing_is_set_without_execute(groups: Command, broker: headrace.Broker) -> None:
    before = committed(broker, "idle")
    ended = groups("--reset-offsets", *IDLE, "--to-latest", "--all-topics")
    assert ended.code == 0
    assert "WARN: No action will be performed as the --execute option is missing" in ended.err
    assert groups("--reset-offsets", *IDLE, "--to-latest", "--all-topics", "--dry-run").err == ""
    assert committed(broker, "idle") == before


def test_a_usage_error_is_one_line(groups: Command, tmp_path: Path) -> None:
    reset = ("--reset-offsets", *IDLE)
    for wrong in (
        ("--all-topics", "--to-datetime", "tomorrow"),
        ("--from-file", str(tmp_path / "absent")),
        ("--to-latest", "--topic", "orders:x"),
    ):
        ended = groups(*reset, *wrong)
        assert ended.code == 1
        assert len(ended.err.splitlines()) == 1, ended.err


def test_offsets_are_set_and_what_was_exported_can_be_taken_back(
    groups: Command, broker: headrace.Broker, tmp_path: Path
) -> None:
    before = committed(broker, "idle")
    reset = ("--reset-offsets", *IDLE)
    file = tmp_path / "before.csv"
    file.write_text(groups(*reset, "--to-current", "--all-topics", "--export", "--dry-run").text)
    ended = groups(*reset, "--to-latest", "--topic", "orders", "--execute")
    assert (ended.code, ended.err) == (0, "")
    assert committed(broker, "idle") == {**before, **{("orders", part): 10 for part in range(3)}}
    done = groups(*reset, "--from-file", str(file), "--execute", "--json")
    assert json.loads(done.text)["executed"] is True
    assert committed(broker, "idle") == {**before, ("orders", 2): 10}


def test_a_group_that_does_not_exist_comes_to_be(groups: Command, broker: headrace.Broker) -> None:
    asked = ("--reset-offsets", "--group", "new", "--to-offset", "0", "--topic", "orders:1")
    assert groups(*asked, "--dry-run").code == 0
    assert committed(broker, "new") == {}
    assert groups(*asked, "--execute").code == 0
    assert committed(broker, "new") == {("orders", 1): 0}
    assert "new" in groups("--list").text.splitlines()


def test_a_group_with_members_is_left_alone_and_others_are_not(
    groups: Command, broker: headrace.Broker, join: Callable[..., Any]
) -> None:
    consumer = join(broker, "team")
    asked = ("--reset-offsets", "--group", "team", *IDLE, "--to-earliest", "--all-topics")
    ended = groups(*asked, "--execute")
    consumer.close()
    assert ended.code == 1
    assert ended.err == (
        "headrace consumer-groups: Assignments can only be reset if the group 'team' is inactive, "
        "but the current state is Stable; stop its members first\n"
    )
    assert set(committed(broker, "idle").values()) == {0}


@pytest.mark.parametrize("how", ["--dry-run", "--execute"])
def test_a_share_group_is_another_commands(
    groups: Command, broker: headrace.Broker, how: str
) -> None:
    with Cluster(broker.bootstrap_servers) as cluster:
        alter_share_group_offsets(cluster, "queue", {("orders", 0): 5}).check()
    asked = ("--reset-offsets", "--group", "queue", *IDLE, "--topic", "orders:0", "--to-earliest")
    ended = groups(*asked, how, "--json")
    assert ended.code == 1
    assert [json.loads(line)["group"] for line in ended.text.splitlines()] == ["idle"]
    told = "Group 'queue' is a share group; headrace share-groups serves it"
    assert ended.err == f"headrace consumer-groups: {told}\n"


def test_a_plan_that_fails_keeps_its_group_from_being_set_and_no_other(
    groups: Command, broker: headrace.Broker
) -> None:
    ended = groups(
        "--reset-offsets", "--all-groups", "--shift-by", "1", "--topic", "orders:0", "--execute"
    )
    assert ended.code == 1
    assert "Cannot shift offset for partition orders-0" in ended.err
    assert committed(broker, "idle")["orders", 0] == 5
    assert committed(broker, "reports-of-a-long-name") == {("orders", 2): 1}


@pytest.mark.parametrize(("end", "code"), [(Unreachable("gone"), 1), (KeyboardInterrupt(), 130)])
def test_what_was_set_is_told_when_it_ends_amid_groups(
    groups: Command,
    broker: headrace.Broker,
    monkeypatch: pytest.MonkeyPatch,
    end: BaseException,
    code: int,
) -> None:
    def alter(cluster: Cluster, group: str, offsets: dict[TopicPartition, int]) -> Any:
        if group != "idle":
            raise end
        return alter_group_offsets(cluster, group, offsets)

    monkeypatch.setattr("headrace.cli.consumer_groups_reset.alter_group_offsets", alter)
    ended = groups("--reset-offsets", *TWO, "--topic", "plain", "--to-offset", "0", "--execute")
    assert ended.code == code
    assert [line.split() for line in ended.text.splitlines()[2:]] == [["idle", "plain", "0", "0"]]
    assert ended.err == ("headrace consumer-groups: gone\n" if code == 1 else "")
    assert committed(broker, "reports-of-a-long-name") == {("orders", 2): 1}


@pytest.mark.parametrize(
    ("offset", "expected"), [(-1, 3), (3, 3), (7, 7), (9, 9), (2**63, 9), (-(2**63), 3)]
)
def test_an_offset_is_kept_within_the_log(
    capsys: pytest.CaptureFixture[str], offset: int, expected: int
) -> None:
    assert within(("t", 0), offset, 3, 9) == expected
    assert ("Value will be set to" in capsys.readouterr().err) == (offset != expected)


def test_offsets_go_to_the_start_of_the_log_and_not_below(
    groups: Command, broker: headrace.Broker
) -> None:
    with Cluster(broker.bootstrap_servers) as cluster:
        create_topic(cluster, "trimmed", 1)
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
        for _ in range(5):
            producer.produce("trimmed", b"v")
        assert producer.flush(10) == 0
        part = {"partition_index": 0, "offset": 2}
        topics = [{"name": "trimmed", "partitions": [part]}]
        cluster.ask(21, 2, {"topics": topics, "timeout": 10_000})
    asked = ("--reset-offsets", "--group", "g", "--topic", "trimmed", "--execute")
    for scenario, offset in ((("--to-offset", "0"), 2), (("--to-earliest",), 2)):
        assert groups(*asked, *scenario).code == 0
        assert committed(broker, "g") == {("trimmed", 0): offset}
