"""A broker as a whole: embedded, from the command line, twice on one folder, and after a crash."""

import contextlib
import errno
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

import headrace
from headrace.broker.config import ConfigError
from headrace.broker.services import StartError
from headrace.client.connection import Cluster
from headrace.client.topics import create_topic
from headrace.log.os_disk import OsFile

TIMEOUT = 60


def serve(*arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "headrace", "serve", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def served(tmp_path: Path) -> "Iterator[tuple[subprocess.Popen[str], str]]":
    """A broker in a process of its own, and the line it printed when it was ready."""
    process = serve("--port", "0", "--data-dir", str(tmp_path))
    assert process.stdout is not None
    with process:
        yield process, process.stdout.readline()
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_says_where_it_listens_and_stops_cleanly(
    served: "tuple[subprocess.Popen[str], str]", tmp_path: Path, number: signal.Signals
) -> None:
    process, line = served
    told = re.fullmatch(
        r"headrace 0\.1\.0 listening on 127\.0\.0\.1:(\d+), data in (.+),"
        r" 0 topics, durability os\n",
        line,
    )
    assert told
    assert told[2] == str(tmp_path)
    with socket.create_connection(("127.0.0.1", int(told[1])), timeout=TIMEOUT):
        process.send_signal(number)
        out, logged = process.communicate(timeout=TIMEOUT)
    assert out == ""
    assert re.fullmatch(
        r"\S+ INFO headrace\.broker: started in \d+ ms: .+\n"
        rf"\S+ INFO headrace\.broker: stopping on {number.name} with [01] connections\n"
        r"\S+ INFO headrace\.broker: stopped in \d+ ms\n",
        logged,
    )
    assert process.returncode == 0


def test_a_second_signal_ends_it_at_once(served: "tuple[subprocess.Popen[str], str]") -> None:
    process, _ = served
    # Both signals are delivered together when the process may run again.
    process.send_signal(signal.SIGSTOP)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGCONT)
    assert process.wait(TIMEOUT) in {0, 128 + signal.SIGTERM, 128 + signal.SIGINT}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--set", "num.partition=3"], "did you mean num.partitions?"),
        (["--set", "num.partitions=0"], "0 is below the minimum of 1"),
        (["--set", "num.partitions"], "write it as NAME=VALUE"),
        (["--log-level", "loud"], "'loud' is none of debug"),
        (["--data-dir", "/dev/null/x"], "choose another --data-dir"),
        (["--host", "203.0.113.1"], "check --host and --port"),
        (
            ["--metrics-port", "0", "--set", "headrace.metrics.host=203.0.113.1"],
            "check headrace.metrics.host and --metrics-port",
        ),
    ],
)
def test_serve_tells_in_one_line_what_is_wrong(
    tmp_path: Path, arguments: list[str], told: str
) -> None:
    process = serve("--port", "0", "--data-dir", str(tmp_path), *arguments)
    out, error = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, out) == (1, "")
    assert told in error
    assert re.fullmatch(r"headrace: .+\n", error)


def test_connections_that_would_use_up_all_files_are_refused_with_a_line(tmp_path: Path) -> None:
    process = subprocess.Popen(
        ["sh", "-c", 'ulimit -n 256; exec "$@"', "sh", sys.executable, "-m", "headrace", "serve",
         "--port", "0", "--data-dir", str(tmp_path)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    with process, contextlib.ExitStack() as opened:
        listening = re.search(r"listening on (\S+):(\d+),", process.stdout.readline())
        assert listening
        address = (listening[1], int(listening[2]))
        for _ in range(400):
            opened.enter_context(socket.create_connection(address, TIMEOUT))
        last = opened.enter_context(socket.create_connection(address, TIMEOUT))
        assert last.recv(1) == b"", "it is closed"
        opened.close()
        with Cluster(f"{listening[1]}:{listening[2]}") as cluster:
            create_topic(cluster, "orders", 20)  # there are files left for logs
        process.terminate()
        _, logged = process.communicate(timeout=TIMEOUT)
    assert re.search(r"refusing \S+: \d+ files are open, .*\(ulimit -n\)", logged)
    assert "Traceback" not in logged


def test_a_folder_in_use_and_a_port_in_use(tmp_path: Path) -> None:
    with headrace.Broker(tmp_path / "a") as running:
        with pytest.raises(StartError, match="in use by another broker"):
            headrace.Broker(tmp_path / "a").start()
        port = int(running.bootstrap_servers.rsplit(":", 1)[1])
        with pytest.raises(StartError, match=rf"port {port} on 127\.0\.0\.1 is in use"):
            headrace.Broker(tmp_path / "b", port=port).start()
    with headrace.Broker(tmp_path / "a"):
        assert (tmp_path / "a" / "meta.properties").exists()


def test_the_folder_of_another_node_is_refused(tmp_path: Path) -> None:
    with headrace.Broker(tmp_path):
        pass
    with pytest.raises(StartError, match="belongs to node 1, not 2"):
        headrace.Broker(tmp_path, settings={"node.id": 2}).start()


def test_a_temporary_folder_is_removed_and_a_given_one_is_kept(tmp_path: Path) -> None:
    with headrace.Broker() as running:
        folder = running.data_dir
        assert folder.is_dir()
    assert not folder.exists()
    with headrace.Broker(tmp_path / "kept") as running:
        assert running.data_dir == tmp_path / "kept"
    assert (tmp_path / "kept").is_dir()


def test_settings_that_make_no_sense_are_told_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="'x' is not a whole number"):
        headrace.Broker(settings={"num.partitions": "x"})


def test_strays_are_set_aside_and_half_deleted_partitions_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stray, deleted, other = tmp_path / "gone-0", tmp_path / "x-0.1-delete", tmp_path / "notes"
    for folder in (stray, deleted, other):
        folder.mkdir(parents=True)
    topic_id = UUID(int=5)
    (stray / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}\n")
    with headrace.Broker(tmp_path):
        assert "gone-0: the folder belongs to no topic" in caplog.text
    assert (tmp_path / f"gone.{topic_id}-0-stray" / "partition.metadata").exists()
    assert not stray.exists()
    assert not deleted.exists()
    assert other.exists()


def test_the_package_says_the_version_that_it_is_built_as() -> None:
    project = Path(__file__).parents[2] / "pyproject.toml"
    assert f'version = "{headrace.__version__}"' in project.read_text()
    answer = subprocess.run(
        [sys.executable, "-m", "headrace", "--version"],
        capture_output=True, text=True, check=True, timeout=TIMEOUT, env=os.environ,
    )  # fmt: skip
    assert answer.stdout == f"headrace {headrace.__version__}\n"


def test_damage_that_no_crash_leaves_stops_the_start_with_one_line(tmp_path: Path) -> None:
    with headrace.Broker(tmp_path):
        pass
    journal = tmp_path / "__cluster_metadata-0" / "00000000000000000000.log"
    later = journal.with_name("00000000000000001000.log")
    later.write_bytes(b"")
    with journal.open("r+b") as file:
        file.truncate(journal.stat().st_size - 1)
    process = serve("--port", "0", "--data-dir", str(tmp_path))
    _, error = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 1
    assert re.fullmatch(r"headrace: cannot open .+\.log at byte \d+: .+ repair` or .+\n", error)


def test_a_catalogue_that_cannot_be_written_stops_the_start_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk, when a new version brings an internal topic."""

    def full(self: OsFile, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(OsFile, "append", full)
    with pytest.raises(StartError, match=r"^cannot write to the data folder .*No space left"):
        headrace.Broker(tmp_path).start()
    monkeypatch.undo()
    with headrace.Broker(tmp_path) as broker:
        assert broker.bootstrap_servers
