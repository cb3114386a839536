"""Which group `headrace consume` reads in, and what it leaves behind there (KIP-211)."""

import json
import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from tests.sim.planted_console import CONSOLE, Plant

import headrace

Command = Callable[..., Any]
TIMEOUT_S = 60
IDLE_MS = "30000"
FIRST = ("consume", "--topic", "t", "--from-beginning", "--timeout-ms", IDLE_MS)
MADE_UP = re.compile(r"console-consumer-\d{1,5}")


@pytest.fixture
def broker() -> Iterator[headrace.Broker]:
    """A broker that counts requests, with three records in `t`."""
    with headrace.Broker(settings={"headrace.metrics.port": "0"}) as running:
        producer = confluent_kafka.Producer({"bootstrap.servers": running.bootstrap_servers})
        for value in (b"a", b"b", b"c"):
            producer.produce("t", value)
        assert producer.flush(10) == 0
        yield running


@pytest.fixture
def requests(broker: headrace.Broker) -> Callable[[str], int]:
    """How many requests of an API the broker took."""

    def count(api: str) -> int:
        url = f"http://127.0.0.1:{broker.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            text = answer.read().decode()
        found = re.search(rf'^headrace_request_seconds_count{{api="{api}"}} (\d+)', text, re.M)
        return int(found[1]) if found else 0

    return count


@pytest.mark.parametrize(
    ("strategy", "read"),
    [("earliest", "a\nb\nc\n"), ("earliest_on_start", "a\nb\nc\n")],
)
@pytest.mark.parametrize("group", [(), ("--group", "g")])
def test_a_strategy_says_where_it_begins(
    cli: Command, group: tuple[str, ...], strategy: str, read: str
) -> None:
    begin = ("consume", "--topic", "t", "--timeout-ms", IDLE_MS, "--max-messages", "3")
    ended = cli(*begin, *group, "--auto-offset-reset", strategy)
    assert (ended.code, ended.text) == (0, read)


def test_safe_latest_begins_at_the_end_and_loses_no_new_partition(
    cli: Command, broker: headrace.Broker
) -> None:
    begin = ("consume", "--topic", "t", "--group", "g", "--auto-offset-reset", "safe_latest")
    assert cli(*begin, "--timeout-ms", "1000").text == ""
    with headrace.SyncAdmin(broker.bootstrap_servers) as admin:
        admin.create_partitions("t", 2)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce("t", b"new", partition=1)
    assert producer.flush(10) == 0
    ended = cli(*begin, "--timeout-ms", IDLE_MS, "--max-messages", "1")
    assert (ended.code, ended.text) == (0, "new\n")


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_partition_that_is_added_meanwhile_is_read_without_a_traceback(
    cli: Command, broker: headrace.Broker, protocol: str
) -> None:
    def grow() -> None:
        with headrace.SyncAdmin(broker.bootstrap_servers) as admin:
            deadline = time.monotonic() + TIMEOUT_S
            while not any(one.group == "g" for one in admin.list_groups()):
                assert time.monotonic() < deadline, "nobody joined"
                time.sleep(0.05)
            admin.create_partitions("t", 2)
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
        producer.produce("t", b"new", partition=1)
        assert producer.flush(TIMEOUT_S) == 0

    with ThreadPoolExecutor(1) as pool:
        growing = pool.submit(grow)
        ended = cli(
            "consume", "--topic", "t", "--group", "g", "--auto-offset-reset", "earliest_on_start",
            "--timeout-ms", IDLE_MS, "--max-messages", "4",
            "--command-property", f"group.protocol={protocol}",
            "--command-property", "topic.metadata.refresh.interval.ms=300",
        )  # fmt: skip
        growing.result()
    assert (ended.code, sorted(ended.text.split())) == (0, ["a", "b", "c", "new"]), ended.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--auto-offset-reset", "nearest"), "auto.offset.reset is 'nearest'; it is one of none,"),
        (
            ("--auto-offset-reset", "latest", "--from-beginning"),
            "--from-beginning and --auto-offset-reset cannot be specified together",
        ),
        (("--auto-offset-reset", "none", "--group", "g"), "no previously committed offset"),
    ],
)
def test_where_it_cannot_begin(cli: Command, arguments: tuple[str, ...], told: str) -> None:
    ended = cli("consume", "--topic", "t", "--timeout-ms", IDLE_MS, *arguments)
    assert ended.code == 1
    assert told in ended.err


def groups(cli: Command) -> list[dict[str, Any]]:
    """The groups of the broker with their offsets."""
    lines = cli("consumer-groups", "--describe", "--all-groups", "--json").text.splitlines()
    return [json.loads(line) for line in lines]


def test_a_made_up_group_joins_leaves_and_commits_nothing(
    cli: Command, requests: Callable[[str], int]
) -> None:
    ended = cli(*FIRST, "--max-messages", "3")
    assert (ended.code, ended.text) == (0, "a\nb\nc\n")
    counts = {
        api: requests(api) for api in ("JoinGroup", "Heartbeat", "LeaveGroup", "OffsetCommit")
    }
    assert counts["JoinGroup"] >= 1
    assert counts["LeaveGroup"] == 1
    assert counts["OffsetCommit"] == 0
    (left,) = groups(cli)
    assert MADE_UP.fullmatch(left["group"])
    assert (left["state"], left["partitions"]) == ("Empty", [])


@pytest.mark.parametrize("plant", CONSOLE, ids=lambda plant: plant.__name__)
def test_a_planted_bug_of_the_console_is_found(
    plant: Plant,
    cli: Command,
    requests: Callable[[str], int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        test_a_made_up_group_joins_leaves_and_commits_nothing(cli, requests)
    assert requests("OffsetCommit") > 0


@pytest.mark.parametrize("value", ["true", "True", "1", "t"])
def test_a_made_up_group_commits_when_it_is_told_to(
    cli: Command, requests: Callable[[str], int], value: str
) -> None:
    setting = f"enable.auto.commit={value}"
    ended = cli(*FIRST, "--max-messages", "2", "--command-property", setting)
    assert (ended.code, ended.text) == (0, "a\nb\n")
    assert requests("OffsetCommit") >= 1
    (left,) = groups(cli)
    assert MADE_UP.fullmatch(left["group"])
    assert [one["current_offset"] for one in left["partitions"]] == [2]


def test_a_named_group_commits_unless_it_is_told_not_to(
    cli: Command, requests: Callable[[str], int]
) -> None:
    without = ("--group", "g", "--command-property", "enable.auto.commit=false")
    assert cli(*FIRST, "--max-messages", "1", *without).text == "a\n"
    assert requests("OffsetCommit") == 0
    assert cli(*FIRST, "--max-messages", "2", "--group", "g").text == "a\nb\n"
    assert requests("OffsetCommit") >= 1
    by_setting = ("--command-property", "group.id=g")
    assert cli(*FIRST, "--max-messages", "1", *by_setting).text == "c\n"
    assert [one["group"] for one in groups(cli)] == ["g"]


def test_one_partition_is_read_without_a_group(
    cli: Command, requests: Callable[[str], int]
) -> None:
    one = ("--partition", "0", "--offset", "1", "--max-messages", "2")
    assert cli("consume", "--topic", "t", "--timeout-ms", IDLE_MS, *one).text == "b\nc\n"
    named = ("--group", "g", "--command-property", "enable.auto.commit=false")
    assert cli("consume", "--topic", "t", "--timeout-ms", IDLE_MS, *one, *named).text == "b\nc\n"
    assert (requests("JoinGroup"), requests("OffsetCommit")) == (0, 0)
    assert groups(cli) == []


def test_the_idle_time_begins_when_the_group_has_its_partitions(offline: Command) -> None:
    with headrace.Broker(settings={"group.initial.rebalance.delay.ms": "3000"}) as slow:
        servers = ("--bootstrap-server", slow.bootstrap_servers)
        assert offline("produce", "--topic", "t", *servers, stdin=b"a\n").code == 0
        ended = offline(*FIRST[:-1], "2500", "--max-messages", "1", *servers)
    assert (ended.code, ended.text) == (0, "a\n")


def test_what_was_read_is_not_read_again_when_partitions_are_added(
    cli: Command, start: Callable[..., Any], broker: headrace.Broker
) -> None:
    consumer = start(*FIRST, "--max-messages", "4")
    assert [consumer.stdout.readline() for _ in range(3)] == [b"a\n", b"b\n", b"c\n"]
    assert cli("topics", "--alter", "--topic", "t", "--partitions", "2").code == 0
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce("t", b"d", partition=1)
    assert producer.flush(10) == 0
    assert consumer.stdout.readline() == b"d\n", "though nothing was committed"
    assert consumer.wait(TIMEOUT_S) == 0


@pytest.mark.parametrize(
    "setting",
    ["partition.assignment.strategy=cooperative-sticky", "group.protocol=consumer"],
)
def test_partitions_are_taken_one_by_one_too(cli: Command, setting: str) -> None:
    ended = cli(*FIRST, "--max-messages", "3", "--command-property", setting)
    assert (ended.code, ended.text) == (0, "a\nb\nc\n")


@pytest.mark.parametrize("more", [(), ("--group", "g")])
def test_a_topic_that_is_not_there_is_waited_for_in_a_group(
    cli: Command, more: tuple[str, ...]
) -> None:
    ended = cli("consume", "--topic", "absent", "--timeout-ms", "1500", *more)
    assert (ended.code, ended.text) == (0, "")
    assert ended.err.splitlines() == [
        "headrace consume: there is no topic absent; waiting for one",
        "Processed a total of 0 messages",
    ]


def test_internal_topics_are_no_part_of_a_pattern(cli: Command) -> None:
    assert cli(*FIRST, "--max-messages", "1", "--group", "g").code == 0
    pattern = ("consume", "--include", ".*", "--from-beginning", "--timeout-ms", "2000")
    assert cli(*pattern).text == "a\nb\nc\n"


def test_a_topic_that_is_made_anew_is_read_from_its_beginning(
    cli: Command, start: Callable[..., Any]
) -> None:
    consumer = start("consume", "--topic", "t", "--from-beginning", "--max-messages", "7")
    assert [consumer.stdout.readline() for _ in range(3)] == [b"a\n", b"b\n", b"c\n"]
    assert cli("topics", "--delete", "--topic", "t").code == 0
    told = consumer.stderr.readline()
    assert told == b"headrace consume: there is no topic t any more; waiting for one\n"
    assert cli("produce", "--topic", "t", stdin=b"d\ne\nf\ng\n").code == 0
    assert [consumer.stdout.readline() for _ in range(4)] == [b"d\n", b"e\n", b"f\n", b"g\n"]
    assert consumer.wait(TIMEOUT_S) == 0


@pytest.mark.parametrize("named", [("--group", ""), ("--command-property", "group.id=")])
def test_a_group_without_a_name_is_refused(cli: Command, named: tuple[str, str]) -> None:
    """A script whose variable is not set would read everything again, and commit nothing."""
    ended = cli("consume", "--topic", "orders", *named)
    told = "headrace consume: the name of the group is empty; give one, or leave the option out\n"
    assert (ended.code, ended.out, ended.err) == (1, b"", told)


@pytest.mark.parametrize("skip", [(), ("--skip-message-on-error",)])
@pytest.mark.parametrize(
    ("protocol", "told"),
    [("classic", "group g is of another type"), ("consumer", "The group id does not exist")],
)
def test_a_share_group_is_no_group_to_read_in(
    cli: Command, broker: headrace.Broker, skip: tuple[str, ...], protocol: str, told: str
) -> None:
    """Nothing of a record went wrong, so there is nothing to pass over."""
    more = ("--command-property", f"group.protocol={protocol}", *skip)
    with headrace.SyncShareConsumer(broker.bootstrap_servers, group="g", topics=["t"]):
        ended = cli(*FIRST, "--group", "g", *more)
    assert (ended.code, ended.text) == (1, "")
    assert "reading the cluster: " in ended.err
    assert told in ended.err
    assert ("read with --share-group" in ended.err) == (protocol == "classic")
    assert "goes on" not in ended.err
    assert "skipped" not in ended.err


@pytest.mark.parametrize("damage", ["log", "batch"])
def test_records_that_the_broker_cannot_read_are_not_passed_over_in_silence(
    cli: Command, tmp_path: Path, damage: str
) -> None:
    with headrace.Broker(tmp_path, settings={"num.partitions": "2"}) as running:
        producer = confluent_kafka.Producer({"bootstrap.servers": running.bootstrap_servers})
        for value in (b"a", b"b"):
            producer.produce("t", value, partition=1)
            assert producer.flush(10) == 0
    point, segment = tmp_path / "t-1/recovery-point", tmp_path / f"t-1/{0:020d}.log"
    if damage == "log":
        point.unlink()
    else:
        data = bytearray(segment.read_bytes())
        data[-1] ^= 1
        segment.write_bytes(data)
    with headrace.Broker(tmp_path) as running:
        ended = cli(
            "consume", "--topic", "t", "--from-beginning", "--timeout-ms", "1000",
            "--bootstrap-server", running.bootstrap_servers,
        )  # fmt: skip
    assert ended.code == 1
    assert "headrace consume: the broker cannot read t-1 (KAFKA_STORAGE_ERROR)" in ended.err
