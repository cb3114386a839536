"""The command line in this process, and as a process of its own where pipes and signals count."""

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from typer.testing import CliRunner

import headrace
from headrace.cli.main import app
from headrace.client.connection import Cluster
from headrace.client.groups import alter_group_offsets
from headrace.client.topics import create_topic

GOLDEN = Path(__file__).parent / "golden"
_ID = re.compile(r"TopicId: \S+")
_SYNONYMS = re.compile(r"synonyms=\{.*\}")


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that ended."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()


Command = Callable[..., Ended]
MakeGroups = Callable[[headrace.Broker], None]
Join = Callable[..., Consumer]
_JOIN_S_MAX = 30
TIME_MS = 1_795_267_252_206
Start = Callable[..., subprocess.Popen[bytes]]


def _same(text: str) -> str:
    return _SYNONYMS.sub("synonyms={}", _ID.sub("TopicId: (id)", text))


@pytest.fixture
def golden() -> Callable[[str], str]:
    """What Apache Kafka's tool printed, by the name of the file."""
    return lambda name: _same((GOLDEN / f"{name}.txt").read_bytes().decode(errors="replace"))


@pytest.fixture
def same() -> Callable[[str], str]:
    """What a tool printed without what is different in every run."""
    return _same


@pytest.fixture
def broker() -> Iterator[headrace.Broker]:
    with headrace.Broker() as running:
        yield running


@pytest.fixture(scope="session")
def make_groups() -> MakeGroups:
    """Makes the topics and the groups without members of the golden files on a broker."""

    def make(broker: headrace.Broker) -> None:
        with Cluster(broker.bootstrap_servers) as cluster:
            create_topic(cluster, "orders", 3)
            create_topic(cluster, "plain", 1)
            producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
            for partition in range(3):
                for second in range(10):
                    moment = TIME_MS + second * 1000
                    producer.produce(
                        "orders", b"%d" % second, partition=partition, timestamp=moment
                    )
            assert producer.flush(10) == 0
            idle = {("orders", 0): 4, ("orders", 1): 10, ("plain", 0): 0}
            alter_group_offsets(cluster, "idle", idle).check()
            alter_group_offsets(cluster, "reports-of-a-long-name", {("orders", 2): 1}).check()

    return make


@pytest.fixture(scope="session")
def join() -> Join:
    """Makes a consumer of `orders` that has partitions, to be closed by who asked for it."""

    def make(broker: headrace.Broker, group: str, **settings: Any) -> Consumer:
        consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "group.id": group,
                "client.id": "client",
                "enable.auto.commit": False,
                **settings,
            }
        )
        consumer.subscribe(["orders"])
        deadline = time.monotonic() + _JOIN_S_MAX
        while not consumer.assignment():
            assert time.monotonic() < deadline, f"{group} got no partitions"
            consumer.poll(0.1)
        return consumer

    return make


@pytest.fixture
def offline() -> Command:
    """Runs `headrace ...` in this process."""

    def run(*arguments: str, stdin: bytes = b"") -> Ended:
        result = CliRunner().invoke(app, list(arguments), input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Ended(result.exit_code, result.stdout_bytes, result.stderr)

    return run


@pytest.fixture
def cli(broker: headrace.Broker, offline: Command) -> Command:
    """Runs `headrace COMMAND --bootstrap-server (the broker) ...` in this process."""

    def run(command: str, *arguments: str, stdin: bytes = b"") -> Ended:
        servers = ("--bootstrap-server", broker.bootstrap_servers)
        return offline(command, *servers, *arguments, stdin=stdin)

    return run


@pytest.fixture
def start(broker: headrace.Broker) -> Iterator[Start]:
    """Starts `headrace COMMAND --bootstrap-server (the broker) ...` as a process with pipes."""
    started: list[subprocess.Popen[bytes]] = []

    def run(command: str, *arguments: str) -> subprocess.Popen[bytes]:
        servers = ("--bootstrap-server", broker.bootstrap_servers)
        line = (sys.executable, "-m", "headrace", command, *servers, *arguments)
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(line, stdin=pipe, stdout=pipe, stderr=pipe))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None and not pipe.closed:
                pipe.close()
