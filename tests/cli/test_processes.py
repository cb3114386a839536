"""Commands in pipes and under signals, as processes of their own."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import confluent_kafka
import pytest

import headrace
from headrace.client.connection import Cluster
from headrace.client.groups import alter_group_offsets
from headrace.client.topics import create_topic

Command = Callable[..., Any]
Start = Callable[..., subprocess.Popen[bytes]]
_WAIT_S = 60


def _first_line(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_consumer_that_is_stopped_sums_up(cli: Command, start: Start, number: int) -> None:
    assert cli("produce", "--topic", "t", stdin=b"a\n").code == 0
    consumer = start("consume", "--topic", "t", "--from-beginning")
    assert _first_line(consumer) == b"a\n", "it writes at once, though the output is a pipe"
    consumer.send_signal(number)
    out, err = consumer.communicate(timeout=_WAIT_S)
    assert (consumer.returncode, out) == (128 + number, b"")
    assert err == b"Processed a total of 1 messages\n"


def test_nobody_reads_the_output_any_more(cli: Command, start: Start) -> None:
    lines = b"".join(b"%d\n" % number for number in range(100_000))
    assert cli("produce", "--topic", "t", stdin=lines).code == 0
    consumer = start("consume", "--topic", "t", "--from-beginning")
    assert _first_line(consumer) == b"0\n"
    assert consumer.stdout is not None
    assert consumer.stderr is not None
    consumer.stdout.close()
    assert consumer.wait(_WAIT_S) == 128 + signal.SIGPIPE
    assert consumer.stderr.read() == b""


def test_new_partitions_and_topics_are_read_from_their_beginning(
    broker: headrace.Broker, cli: Command, start: Start
) -> None:
    assert cli("topics", "--create", "--topic", "t1", "--partitions", "1").code == 0
    consumer = start("consume", "--include", "t.*", "--timeout-ms", "20000")
    deadline = time.monotonic() + _WAIT_S
    # Where its first reading begins it alone knows: what is sent until then it may pass over.
    while time.monotonic() < deadline and not _readable(consumer):
        assert cli("produce", "--topic", "t1", "--sync", stdin=b"old\n").code == 0
    assert cli("topics", "--alter", "--topic", "t1", "--partitions", "2").code == 0
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce("t1", b"grown", partition=1)
    producer.produce("t2", b"new")
    assert producer.flush(10) == 0
    seen: set[bytes] = set()
    while not seen >= {b"grown\n", b"new\n"}:
        line = _first_line(consumer)
        assert line, f"it gave up with {seen}"
        seen.add(line)
    consumer.send_signal(signal.SIGINT)
    assert consumer.wait(_WAIT_S) == 130


def _readable(process: subprocess.Popen[bytes]) -> bool:
    assert process.stdout is not None
    return bool(select.select([process.stdout], [], [], 0.2)[0])


def test_a_producer_reads_a_pipe_as_it_comes(cli: Command, start: Start) -> None:
    producer = start("produce", "--topic", "t", "--timeout", "0")
    consumer = start("consume", "--topic", "t", "--from-beginning", "--max-messages", "2")
    assert producer.stdin is not None
    producer.stdin.write(b"first\n")
    producer.stdin.flush()
    assert _first_line(consumer) == b"first\n", "before the input ends"
    producer.stdin.write(b"second\n")
    producer.stdin.close()
    assert producer.wait(_WAIT_S) == 0
    assert _first_line(consumer) == b"second\n"
    assert consumer.wait(_WAIT_S) == 0


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("topics", "--nonsense"), "headrace topics: No such option: --nonsense; see "),
        (("produce",), "headrace produce: Missing option '--topic'; see "),
        (
            ("produce", "--topic", "t", "--batch-size", "0"),
            "headrace produce: Invalid value for '--batch-size': ",
        ),
        (("share", "browse", "--from-offset", "x"), "headrace share browse: "),
        (("nonsense",), "headrace: No such command 'nonsense'; see headrace --help"),
    ],
)
def test_a_usage_error_is_one_line_and_exits_1_as_kafkas_tools_do(
    arguments: tuple[str, ...], error: str
) -> None:
    ended = _ended(*arguments)
    assert ended.returncode == 1
    [line] = ended.stderr.decode().splitlines()
    assert line.startswith(error)
    assert line.endswith(" --help")


def _ended(*arguments: str) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(
        [sys.executable, "-m", "headrace", *arguments],
        capture_output=True,
        timeout=_WAIT_S,
        check=False,
    )


@pytest.mark.parametrize("arguments", [(), ("share",)])
def test_a_command_without_arguments_shows_its_help(arguments: tuple[str, ...]) -> None:
    ended = _ended(*arguments)
    assert ended.returncode == 1
    assert b"Usage: headrace" in ended.stdout + ended.stderr


def test_the_server_starts_without_what_commands_need() -> None:
    code = "import sys, headrace.cli.main; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    loaded = set(found.stdout.decode().split())
    assert "headrace.cli.main" in loaded
    assert not loaded & {"confluent_kafka", "headrace.client.connection", "headrace.wire.batches"}


def test_a_group_reads_on_where_it_stopped(
    broker: headrace.Broker, cli: Command, start: Start
) -> None:
    assert cli("produce", "--topic", "t", stdin=b"a\nb\nc\n").code == 0
    read = ("consume", "--topic", "t", "--group", "g", "--from-beginning")
    for expected in (b"a\nb\n", b"c\n"):
        ended = start(*read, "--max-messages", str(expected.count(b"\n")))
        out, _ = ended.communicate(timeout=_WAIT_S)
        assert (ended.returncode, out) == (0, expected)


def test_a_long_list_of_groups_may_be_cut_off(broker: headrace.Broker, start: Start) -> None:
    with Cluster(broker.bootstrap_servers) as cluster:
        create_topic(cluster, "t", 1)
        for number in range(600):
            alter_group_offsets(cluster, f"{number:04}{'x' * 200}", {("t", 0): 0}).check()
    lister = start("consumer-groups", "--list")
    assert _first_line(lister).startswith(b"0000x")
    assert lister.stdout is not None
    assert lister.stderr is not None
    lister.stdout.close()
    assert lister.wait(_WAIT_S) == 128 + signal.SIGPIPE
    assert lister.stderr.read() == b""


def test_a_group_that_is_not_there_ends_with_1(start: Start) -> None:
    ended = start("consumer-groups", "--describe", "--group", "absent")
    out, err = ended.communicate(timeout=_WAIT_S)
    assert (ended.returncode, out) == (1, b"")
    assert err == b"headrace consumer-groups: Group absent not found; see --list\n"


def _in_shell(line: str) -> "subprocess.CompletedProcess[bytes]":
    """Run `headrace ...` as a shell does, with what it closes."""
    command = ["sh", "-c", f'exec "$0" -m headrace {line}', sys.executable]
    return subprocess.run(command, capture_output=True, timeout=_WAIT_S)


def test_errors_that_the_shell_closed_are_no_trouble(broker: headrace.Broker) -> None:
    with Cluster(broker.bootstrap_servers) as cluster:
        create_topic(cluster, "t", 1)
        alter_group_offsets(cluster, "g", {("t", 0): 0}).check()
    asked = "--reset-offsets --all-groups --all-topics --to-offset 9 --export --dry-run"
    servers = f"--bootstrap-server {broker.bootstrap_servers}"
    ended = _in_shell(f"consumer-groups {asked} {servers} 2>&-")
    assert (ended.returncode, ended.stdout) == (0, b"g,t,0,0\n\n")


@pytest.mark.parametrize("group", ["--group", "--share-group"])
def test_what_is_said_to_closed_errors_is_not_among_the_records(
    cli: Command, broker: headrace.Broker, group: str
) -> None:
    assert cli("produce", "--topic", "t", stdin=b"a\n").code == 0
    earliest = "share.auto.offset.reset=earliest"
    assert cli("configs", "--alter", "--group", "g", "--add-config", earliest).code == 0
    begin = "" if group == "--share-group" else "--from-beginning"
    asked = f"consume --topic t {group} g {begin} --max-messages 1"
    ended = _in_shell(f"{asked} --bootstrap-server {broker.bootstrap_servers} 2>&-")
    assert (ended.returncode, ended.stdout) == (0, b"a\n")


def test_input_that_the_shell_closed_is_empty(broker: headrace.Broker) -> None:
    servers = f"--bootstrap-server {broker.bootstrap_servers}"
    ended = _in_shell(f"produce --topic t {servers} <&-")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")


@pytest.mark.parametrize(
    "command",
    [
        "share browse g1",
        "share browse --runs --json g1",
        "share archived --clear g1",
        "consume --topic t --from-beginning --timeout-ms 100",
        "consume --topic t --share-group g1",
        "topics --create --topic new",
        "doctor",
        "--help",
    ],
)
def test_where_the_shell_closed_the_output_nothing_is_done(
    cli: Command, broker: headrace.Broker, command: str
) -> None:
    servers = f"--bootstrap-server {broker.bootstrap_servers}" if " " in command else ""
    ended = _in_shell(f"{command} {servers} >&-")
    assert ended.returncode == 1
    assert ended.stderr == b"headrace: standard output is closed; send it somewhere\n"
    assert cli("topics", "--list", "--exclude-internal").text == ""
    silent = _in_shell(f"{command} {servers} >&- 2>&-")
    assert (silent.returncode, silent.stdout, silent.stderr) == (1, b"", b"")


def test_a_name_that_the_terminal_cannot_show_is_told(broker: headrace.Broker) -> None:
    with Cluster(broker.bootstrap_servers) as cluster:
        create_topic(cluster, "t", 1)
        alter_group_offsets(cluster, "gr\xfcn", {("t", 0): 0}).check()
    asked = ("consumer-groups", "--list", "--bootstrap-server", broker.bootstrap_servers)
    ended = subprocess.run(
        [sys.executable, "-m", "headrace", *asked],
        capture_output=True,
        timeout=_WAIT_S,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
    )
    assert (ended.returncode, ended.stdout) == (1, b"")
    assert ended.stderr.endswith(b" cannot be written as ascii; set PYTHONIOENCODING=utf-8\n")
