"""The command line in this process, and as a process of its own where pipes and signals count."""

import re
import struct
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
_JOIN_S_MAX = 60
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


def make_topics(cluster: Cluster, servers: str) -> None:
    """Of the golden files of groups: `orders`, a record a second in each partition; and `plain`."""
    create_topic(cluster, "orders", 3)
    create_topic(cluster, "plain", 1)
    producer = Producer({"bootstrap.servers": servers})
    for partition in range(3):
        for second in range(10):
            moment = TIME_MS + second * 1000
            producer.produce("orders", b"%d" % second, partition=partition, timestamp=moment)
    assert producer.flush(10) == 0


@pytest.fixture(scope="session")
def make_groups() -> MakeGroups:
    """Makes the topics and the groups without members of the golden files on a broker."""

    def make(broker: headrace.Broker) -> None:
        with Cluster(broker.bootstrap_servers) as cluster:
            make_topics(cluster, broker.bootstrap_servers)
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


class GroupMember:
    """A client "tester" that does to group "g" what it is told, step by step."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.id = ""
        self.generation = -1

    def join(self, *topics: str, kind: str = "consumer") -> None:
        """Become the only member of the next generation, subscribed to these topics."""
        names = (struct.pack(">h", len(one)) + one.encode() for one in topics)
        told = struct.pack(">hi", 0, len(topics)) + b"".join(names) + b"\xff\xff\xff\xff"
        fields = {
            "group_id": "g",
            "session_timeout": 30_000,
            "rebalance_timeout": 30_000,
            "group_instance_id": None,
            "protocol_type": kind,
            "protocols": ({"name": "range", "metadata": told},),
            "reason": None,
        }
        for _ in range(2):  # first it is told its id
            answer = self.cluster.ask(11, 9, fields | {"member_id": self.id})
            self.id, self.generation = str(answer.member_id), int(answer.generation_id)
        assert answer.error_code == 0
        fields = {
            "group_id": "g",
            "generation_id": self.generation,
            "member_id": self.id,
            "protocol_type": kind,
            "protocol_name": "range",
            "assignments": ({"member_id": self.id, "assignment": b""},),
        }
        assert self.cluster.ask(14, 5, fields).error_code == 0

    def leave(self) -> None:
        member = {"member_id": self.id, "group_instance_id": None, "reason": None}
        assert self.cluster.ask(13, 5, {"group_id": "g", "members": (member,)}).error_code == 0
        self.id, self.generation = "", -1

    def commit(
        self,
        topic: str,
        offset: int,
        *,
        group: str = "g",
        metadata: str = "",
        retention_ms: int | None = None,
    ) -> None:
        """Commit for partition 0; with a retention as clients of Kafka 2.0 do."""
        one = {
            "partition_index": 0,
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": metadata,
        }
        fields: dict[str, Any] = {
            "group_id": group,
            "generation_id_or_member_epoch": self.generation,
            "member_id": self.id,
            "topics": ({"name": topic, "partitions": (one,)},),
        }
        if retention_ms is not None:
            one.pop("committed_leader_epoch")
            fields["retention_time"] = retention_ms
        answer = self.cluster.ask(8, 9 if retention_ms is None else 2, fields)
        assert answer.topics[0].partitions[0].error_code == 0

    def beat(self, epoch: int, *topics: str) -> None:
        """A heartbeat of the new protocol: 0 joins, -1 leaves."""
        fields = {
            "group_id": "g",
            "member_id": "member-848",
            "member_epoch": epoch,
            "rebalance_timeout": 30_000 if epoch == 0 else -1,
            "subscribed_topic_names": topics if epoch == 0 else None,
            "topic_partitions": () if epoch == 0 else None,
        }
        assert self.cluster.ask(68, 1, fields).error_code == 0


@pytest.fixture
def acting() -> Iterator[Callable[[headrace.Broker], GroupMember]]:
    """Makes clients of any broker that act on group "g"."""
    opened: list[Cluster] = []

    def act(broker: headrace.Broker) -> GroupMember:
        opened.append(Cluster(broker.bootstrap_servers, client_id="tester"))
        return GroupMember(opened[-1])

    yield act
    for cluster in opened:
        cluster.close()


@pytest.fixture
def member(broker: headrace.Broker, acting: Callable[[headrace.Broker], Any]) -> Any:
    """Who commits to "orders" and "bills"."""
    found = acting(broker)
    for topic in ("orders", "bills"):
        create_topic(found.cluster, topic, 1)
    return found
