"""`headrace serve`: its two ways to read options, its log lines, and what it loads."""

import inspect
import json
import logging
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

import headrace
from headrace.cli import logs, serve
from headrace.cli.serving import _READ, Options, plain

TIMEOUT = 60


def test_plain_options_are_read_without_the_parser() -> None:
    words = "--host ::1 --port=9093 --data-dir d --set a=b --set=c=d --log-level debug"
    assert plain(words.split()) == Options("::1", 9093, Path("d"), ["a=b", "c=d"], "debug")
    assert plain(["--log-format", "json", "--metrics-port", "0"]) == Options(
        settings=[], log_format="json", metrics_port=0
    )
    assert plain([]) == Options(settings=[])


@pytest.mark.parametrize(
    "words",
    ["--help", "--port", "--port x", "--port 65536", "--port -1", "--pot 1", "extra",
     "--host --port", "--metrics-port 70000"],
)  # fmt: skip
def test_everything_else_is_left_to_the_parser(words: str) -> None:
    assert plain(words.split()) is None


def test_both_ways_know_the_same_options_and_defaults() -> None:
    declared = inspect.signature(serve.serve).parameters
    defaults = {name: one.default for name, one in declared.items() if name != "settings"}
    assert defaults == {
        name: value for name, value in Options()._asdict().items() if name != "settings"
    }
    assert {field for field, _ in _READ.values()} | {"settings"} == set(declared)
    assert {name.strip("-").replace("-", "_") for name in _READ} | {"settings"} == set(declared)


def run(*arguments: str, environment: dict[str, str] | None = None) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", "headrace", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | (environment or {}),
    )


def served(*arguments: str, **environment: str) -> tuple[str, str, set[str]]:
    """Start a broker, stop it; its line, what it logged, and the modules that it imported."""
    with run("serve", "--port", "0", *arguments, environment=environment) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, told
    lines = told.splitlines(keepends=True)
    imported = {one.rsplit("|", 1)[1].strip() for one in lines if one.startswith("import time:")}
    logged = "".join(one for one in lines if not one.startswith("import time:"))
    return line, logged, imported


def test_a_start_loads_neither_what_others_need_nor_what_tests_use(tmp_path: Path) -> None:
    _, _, imported = served("--data-dir", str(tmp_path))
    assert "headrace.broker.node" in imported
    unwanted = {
        "typer", "rich", "hypothesis", "prometheus_client", "numpy", "pyarrow", "json", "difflib",
        "shutil", "importlib.metadata",
        "headrace.cli.demo", "headrace.cli.doctor", "headrace.broker.metrics_http",
    }  # fmt: skip
    assert imported & unwanted <= _of_the_environment(), "the start of every broker got slower"


def _of_the_environment() -> set[str]:
    """What Python imports here before any program runs, as coverage tools and editors do."""
    told = subprocess.run(
        [sys.executable, "-c", "import sys; print(*sys.modules)"],
        capture_output=True, text=True, check=True, timeout=TIMEOUT,
    )  # fmt: skip
    return set(told.stdout.split())


@pytest.mark.parametrize("given", ["option", "environment"])
def test_json_lines(tmp_path: Path, given: str) -> None:
    if given == "option":
        _, logged, _ = served("--data-dir", str(tmp_path), "--log-format", "json")
    else:
        _, logged, _ = served("--data-dir", str(tmp_path), HEADRACE_LOG_FORMAT="json")
    started, stopping, stopped = (json.loads(line) for line in logged.splitlines())
    assert set(started) == {"time", "level", "logger", "message", "port"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", started["time"])
    assert (started["level"], started["logger"]) == ("info", "headrace.broker")
    assert stopping["message"].startswith("stopping on SIGTERM")
    assert stopped["message"].startswith("stopped in ")


def test_warnings_only_when_asked_for(tmp_path: Path) -> None:
    assert served("--data-dir", str(tmp_path), "--log-level", "WARNING")[1] == ""


def test_a_metrics_port_is_told_and_served(tmp_path: Path) -> None:
    with run("serve", "--port", "0", "--metrics-port", "0", "--data-dir", str(tmp_path)) as process:
        assert process.stdout is not None
        told = re.search(r", metrics on port (\d+)\n", process.stdout.readline())
        assert told
        with urllib.request.urlopen(f"http://127.0.0.1:{told[1]}/-/ready", timeout=TIMEOUT) as page:
            assert page.read() == b"ready\n"
        process.terminate()
        process.communicate(timeout=TIMEOUT)


@pytest.mark.parametrize(
    ("option", "environment", "origin"),
    [
        ((), {"HEADRACE_LOG_FORMAT": "xml"}, "the variable HEADRACE_LOG_FORMAT"),
        (("--log-format", "xml"), {}, "--log-format"),
    ],
)
def test_a_format_that_is_none_is_told_in_one_line(
    tmp_path: Path, option: tuple[str, ...], environment: dict[str, str], origin: str
) -> None:
    process = run("serve", "--data-dir", str(tmp_path), *option, environment=environment)
    _, told = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 1
    assert told.endswith(f"headrace: {origin}: 'xml' is none of text, json\n")


@pytest.mark.parametrize("closed", ["<&- >&-", "<&- >&- 2>&-"])
def test_a_broker_serves_where_the_shell_closed_its_streams(tmp_path: Path, closed: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    line = f'exec "$0" -m headrace serve --port {port} --data-dir "$1" {closed}'
    process = subprocess.Popen(["sh", "-c", line, sys.executable, str(tmp_path / "data")])
    try:
        with headrace.SyncAdmin(f"127.0.0.1:{port}") as admin:
            admin.create_topic("t", 1)
        process.terminate()
        assert process.wait(TIMEOUT) == 0
    finally:
        process.kill()


# ---- lines


def record(message: str, *args: object, at: float = 1_700_000_000.25, **fields: object) -> (
    logging.LogRecord
):  # fmt: skip
    made = logging.makeLogRecord({"name": "x", "msg": message, "args": args, "levelno": 30})
    made.levelname, made.created, made.msecs = "WARNING", at, (at % 1) * 1000
    vars(made).update(fields)
    return made


def test_text_and_json_of_a_line_with_fields_and_a_traceback() -> None:
    try:
        raise ValueError("odd")
    except ValueError:
        made = record("closing %s", "1.2.3.4:5", topic="orders", exc_info=sys.exc_info())
    text = logs.Text().format(made)
    assert text.startswith("2023-11-14T22:13:20.250Z WARNING x: closing 1.2.3.4:5\nTraceback ")
    line = json.loads(logs.Json().format(made))
    assert line.pop("exception").endswith("ValueError: odd")
    assert line == {
        "time": "2023-11-14T22:13:20.250Z", "level": "warning", "logger": "x",
        "message": "closing 1.2.3.4:5", "topic": "orders",
    }  # fmt: skip


def test_repeated_lines_are_counted_when_the_window_ends() -> None:
    emitted: queue.Queue[logging.LogRecord] = queue.Queue()
    repeats = logs.Repeats(emitted.put, seconds=0.3)
    passed = [repeats.filter(record("append to %s failed", n)) for n in range(12)]
    assert passed == [True] * logs.REPEATS_MAX + [False] * 2
    # No further line is needed: the window reports by itself.
    text = logs.Text().format(emitted.get(timeout=30))
    assert text.endswith("append to 11 failed (1 more lines like this were left out before it)")
    assert repeats.filter(record("append to %s failed", 12))
    assert emitted.empty()


def test_lines_that_are_always_logged_pass() -> None:
    repeats = logs.Repeats(lambda _: None)
    made = [record("topic %s was deleted", n, always=True) for n in range(100)]
    assert all(repeats.filter(one) for one in made)
    assert "always" not in json.loads(logs.Json().format(made[0]))


def test_debug_lines_all_pass_and_kinds_have_a_bound() -> None:
    repeats = logs.Repeats(lambda _: None)
    assert all(repeats.filter(record("x", levelno=logging.DEBUG)) for _ in range(100))
    for number in range(3000):
        assert repeats.filter(record(f"kind {number}"))
    assert len(repeats._seen) <= 1000
