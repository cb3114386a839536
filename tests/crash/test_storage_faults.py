"""A served broker on storage that fails: nothing acknowledged is lost, and no restart is needed."""

import contextlib
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import pytest

from headrace.client.admin import create_topic
from headrace.client.connection import Cluster
from headrace.demo.server import Server

LIMIT_BYTES = 3_000_000
VALUE_BYTES = 20_000
RECORDS = 400
TIMEOUT = 60.0


class LimitedServer(Server):
    """A broker whose files can be kept from growing."""

    def limit_files(self, size: int) -> None:
        assert self._process is not None
        resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def errors(self) -> list[str]:
        """What it told of storage, a line each."""
        lines = self.log_file.read_text().splitlines()
        return [one for one in lines if "cannot write" in one or "written again" in one]


class Sender:
    """An idempotent producer that goes on in a thread, and what was acknowledged to it."""

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged: list[tuple[int, bytes]] = []
        self._failed: list[str] = []
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 2,
                "retry.backoff.ms": 50, "delivery.timeout.ms": int(TIMEOUT * 1000),
                "batch.size": 5 * VALUE_BYTES,
            }
        )  # fmt: skip
        self._thread = threading.Thread(target=self._send)

    def __enter__(self) -> "Sender":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()

    def finish(self) -> None:
        """Wait for everything to be acknowledged."""
        self._thread.join(TIMEOUT)
        assert self._producer.flush(TIMEOUT) == 0
        assert self._failed == []
        assert len(self.acknowledged) == RECORDS

    def _send(self) -> None:
        for number in range(RECORDS):
            value = (b"%06d" % number).ljust(VALUE_BYTES, b".")
            self._producer.produce("jobs", value, partition=0, on_delivery=self._told)
            self._producer.poll(0.002)

    def _told(
        self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message
    ) -> None:
        offset, value = message.offset(), message.value()
        if error is not None:
            self._failed.append(str(error))
        else:
            assert offset is not None
            assert value is not None
            self.acknowledged.append((offset, value))


def read_back(bootstrap: str) -> list[tuple[int, bytes]]:
    """Every record of the topic, in the order of the log."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "x", "log_level": 2}
    )
    consumer.assign([confluent_kafka.TopicPartition("jobs", 0, 0)])
    found: list[tuple[int, bytes]] = []
    _, end = consumer.get_watermark_offsets(confluent_kafka.TopicPartition("jobs", 0), TIMEOUT)
    until = time.monotonic() + TIMEOUT
    while len(found) < end and time.monotonic() < until:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            offset, value = message.offset(), message.value()
            assert offset is not None
            assert value is not None
            found.append((offset, value))
    consumer.close()
    return found


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def require_exactly_once(server: Server, sender: Sender) -> None:
    """What was acknowledged is there, once and in order; also after the process was killed."""
    for killed in (False, True):
        if killed:
            server.kill()
            server.start()
        found = read_back(server.bootstrap)
        assert found == sorted(sender.acknowledged)
        assert [int(value[:6]) for _, value in found] == list(range(RECORDS))


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_files_that_may_not_grow_and_then_may_again(durability: str, tmp_path: Path) -> None:
    server = LimitedServer(tmp_path, settings={"headrace.durability": durability})
    with server, Cluster(server.bootstrap) as cluster:
        create_topic(cluster, "jobs", 1)
        server.limit_files(LIMIT_BYTES)
        with Sender(server.bootstrap) as sender:
            wait_for(lambda: len(server.errors()) == 1)
            time.sleep(1)  # many refused appends, none of which is to be told
            assert len(server.errors()) == 1
            server.limit_files(resource.RLIM_INFINITY)
            sender.finish()
        begun, over = server.errors()
        assert "cannot write to jobs-0: File too large; clients are told so" in begun
        assert "jobs-0 is written again, after " in over
        require_exactly_once(server, sender)


@contextlib.contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    """A file system in memory at `folder`; the test is skipped where that is not allowed."""
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("mounting needs root")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_full_disk_on_which_space_is_made(durability: str, tmp_path: Path) -> None:
    """Nothing can be written, new segments and journals included; then a ballast is removed."""
    folder = tmp_path / "full" / "broker"
    folder.parent.mkdir()
    with mounted(folder, "size=16m"):
        ballast = folder / "ballast"
        ballast.write_bytes(bytes(12_000_000))
        server = LimitedServer(
            folder.parent,
            settings={"headrace.durability": durability, "log.segment.bytes": "1000000"},
        )
        with server, Cluster(server.bootstrap) as cluster:
            create_topic(cluster, "jobs", 1)
            with Sender(server.bootstrap) as sender:
                wait_for(lambda: bool(server.errors()))
                time.sleep(1)  # as above
                assert len(server.errors()) == 1
                ballast.unlink()
                sender.finish()
            begun, over = server.errors()
            assert "cannot write to jobs-0: No space left on device" in begun
            assert "jobs-0 is written again, after " in over
            require_exactly_once(server, sender)


def served(folder: Path) -> tuple[int, str]:
    """The exit code of `headrace serve` and all that it printed."""
    command = [sys.executable, "-m", "headrace", "serve", "--port", "0", "--data-dir", str(folder)]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=TIMEOUT
    )  # our own command
    return done.returncode, done.stdout + done.stderr


def test_a_folder_that_is_a_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    code, told = served(tmp_path / "taken")
    assert (code, told.count("\n")) == (1, 1)
    assert told.startswith(f"headrace: cannot use the data folder {tmp_path / 'taken'}: ")
    assert told.endswith("choose another --data-dir\n")


def test_a_read_only_folder_is_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "sealed"
    with mounted(folder, "ro"):
        code, told = served(folder)
    assert (code, told.count("\n")) == (1, 1)
    assert "Read-only file system; choose another --data-dir" in told
