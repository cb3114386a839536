"""Apache Kafka and Headrace side by side: the same orders to both, and what their tools told.

`GroupTools.java` runs Kafka's own programs, many in one JVM, and keeps members of consumer groups
alive for them to look at. What no stock client sends goes over a bare connection.
"""

import contextlib
import itertools
import json
import queue
import re
import shlex
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, ClassVar, TypeVar

from tests.java_archives import quick_java

from brokers import Broker, Headrace, Kafka, java, prepared
from headrace.client.connection import Cluster
from headrace.client.errors import BrokerError, check
from headrace.client.groups import describe_groups

T = TypeVar("T")

_SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "log.retention.ms": "-1",  # the records are as old as the stories want them
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.migration.policy": "disabled",  # in Headrace members wait otherwise
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "100",
    "group.share.min.heartbeat.interval.ms": "100",
    "group.share.heartbeat.interval.ms": "100",
    "share.coordinator.state.topic.num.partitions": "1",
}
_ANSWER_SECONDS_MAX = 120
_JOIN, _JOIN_VERSION = 11, 3  # the newest that a member enters without a second request
_SYNC, _SYNC_VERSION = 14, 2
_BEAT, _BEAT_VERSION = 68, 0
_SESSION_MS = 300_000


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a program told, normalised."""

    code: int
    out: tuple[str, ...]
    error: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Intended:
    """Why Headrace answers a command otherwise than Apache Kafka, and what the tool prints then."""

    why: str
    out: tuple[str, ...]


class Side:
    """One broker with the JVM that looks at it."""

    def __init__(self, broker: Broker, classes: Path) -> None:
        self.port = broker.port
        options = (*quick_java(), "-Xmx256m")
        command = java("GroupTools", broker.servers, options=options, folder=classes)
        self._log = (broker.folder / "tools.txt").open("w+")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        self._answers: queue.Queue[str] = queue.Queue()
        assert self._process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,))
        self._reader.start()
        self.servers = broker.servers
        self.cluster = Cluster(broker.servers)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_ANSWER_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()
        self.cluster.close()

    def order(self, order: str, name: str = "", **more: Any) -> Any:
        """Have the JVM do something; its answer."""
        assert self._process.stdin is not None
        print(json.dumps({"order": order, "name": name, **more}), file=self._process.stdin)
        self._process.stdin.flush()
        line = self._answers.get(timeout=_ANSWER_SECONDS_MAX)
        answer = json.loads(line) if line else {"failed": f"the JVM ended: {self._told()}"}
        assert "failed" not in answer, (answer["failed"], order, name, more)
        return answer

    def run(self, program: str, *arguments: str) -> Outcome:
        """Run one of Kafka's programs with the broker's address before its arguments."""
        given = ["--bootstrap-server", self.servers, *arguments]
        told = self.order("run", program, arguments=given)
        error = self._lines(told["error"])
        return Outcome(told["code"], self.normal(told["out"]), tuple(_complaints(error)))

    def normal(self, text: str) -> tuple[str, ...]:
        """The lines of a standard output, without what chance decides."""
        return tuple(_in_order(self._lines(text)))

    def join(self, group: str, kind: str, metadata: bytes) -> tuple[str, int]:
        """Enter a group as no stock client does: any type, any metadata. Member and generation.

        Raises: BrokerError for a refusal, as all that goes over the bare connection.
        """
        joining = {
            "group_id": group,
            "session_timeout": _SESSION_MS,
            "rebalance_timeout": _SESSION_MS,
            "member_id": "",
            "protocol_type": kind,
            "protocols": [{"name": "range", "metadata": metadata}],
        }
        joined = self.cluster.ask(_JOIN, _JOIN_VERSION, joining)
        check(joined.error_code, f"joining {group}")
        return str(joined.member_id), int(joined.generation_id)

    def beat(self, group: str, *topics: str) -> None:
        """Join a group of the new protocol."""
        beating = {
            "group_id": group,
            "member_id": "bare",
            "member_epoch": 0,
            "rebalance_timeout": _SESSION_MS,
            "subscribed_topic_names": topics,
            "topic_partitions": [],
        }
        check(self.cluster.ask(_BEAT, _BEAT_VERSION, beating).error_code, f"joining {group}")

    def state(self, group: str) -> str:
        """The state of a group now."""
        described = describe_groups(self.cluster, [group])[group]
        assert not isinstance(described, BrokerError), described
        return described.state

    def sync(self, group: str, member: str, generation: int) -> None:
        """As the leader, end a rebalance with an empty assignment for everybody."""
        syncing = {
            "group_id": group,
            "generation_id": generation,
            "member_id": member,
            "assignments": [],
        }
        synced = self.cluster.ask(_SYNC, _SYNC_VERSION, syncing)
        check(synced.error_code, f"synchronizing {group}")

    def _told(self) -> str:
        """The end of what the JVM said of its troubles."""
        self._log.seek(0)
        return self._log.read()[-2000:]

    def _read(self, lines: IO[str]) -> None:
        for line in lines:
            self._answers.put(line)
        self._answers.put("")

    def _lines(self, text: str) -> list[str]:
        """Without what differs between two runs of one broker: ids, the port."""
        text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "<uuid>", text)
        text = re.sub(r"(?<= )[\w-]{22}(?= )", "<member>", text)
        return [line.rstrip() for line in text.replace(f":{self.port}", ":<port>").splitlines()]


class ToolStory:
    """Tells one side what happens, and keeps what the tool printed after each command.

    What stands in parentheses after a command tells it from the same one at another time.
    """

    program: ClassVar[str]

    def __init__(self, side: Side) -> None:
        self.side = side
        self.told: dict[str, Outcome] = {}

    def tool(self, *commands: str) -> None:
        for command in commands:
            while command in self.told:
                command += " (again)"
            given, _, _ = command.partition(" (")
            self.told[command] = self.side.run(self.program, *shlex.split(given))


@dataclass(frozen=True, slots=True)
class Sides:
    """Both brokers, each with its tools."""

    kafka: Side
    headrace: Side

    def both(self, story: Callable[[Side], T]) -> tuple[T, T]:
        """What a story tells of Kafka and of Headrace; they are told at the same time."""
        with ThreadPoolExecutor(2) as pool:
            kafka, headrace = pool.map(story, (self.kafka, self.headrace))
        return kafka, headrace


def printed_the_same(
    sides: Sides, tell: Callable[[Side], dict[str, Outcome]], intended: Mapping[str, Intended]
) -> None:
    """Of both sides, after every command but those that are meant to differ."""
    kafka, headrace = sides.both(tell)
    differing = {
        command: {"kafka": kafka[command], "headrace": headrace[command]}
        for command in kafka
        if kafka[command] != headrace[command]
    }
    assert {command: headrace[command].out for command in differing} == {
        command: one.out for command, one in intended.items()
    }, differing


@contextlib.contextmanager
def side_by_side(classes: Path) -> Iterator[Sides]:
    """Both brokers on folders of their own, launched together; removed at the end.

    `classes` is where the compiled programs of this folder are.
    """
    with contextlib.ExitStack() as stack:
        brokers = [stack.enter_context(prepared(kind)) for kind in (Kafka, Headrace)]
        kafka, headrace = (
            stack.enter_context(contextlib.closing(Side(broker, classes))) for broker in brokers
        )

        def launch(broker: Broker) -> None:
            broker.launch(_SETTINGS)
            stack.callback(broker.kill)

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(launch, brokers))
        yield Sides(kafka, headrace)


def _in_order(lines: list[str]) -> list[str]:
    """Rows between blank lines sorted, but not their heading: Kafka leaves the order to chance."""
    out: list[str] = []
    for blank, block in itertools.groupby(lines, key=lambda line: not line):
        rows = list(block)
        heading = 1 if re.match(r"GROUP |TOPIC ", rows[0]) else 0
        out += rows if blank else rows[:heading] + sorted(rows[heading:])
    return out


def _complaints(lines: list[str]) -> Iterator[str]:
    """Without the frames of a stack and the usage; sets that Java prints in any order sorted."""
    for line in lines:
        if re.match(r"Option +Description", line):
            return
        if not re.match(r"\s+at |\s+\.\.\. \d+ more", line):
            head, colon, listed = line.rpartition(": ")
            yield head + colon + ", ".join(sorted(re.sub(r"[\[\]]", "", listed).split(", ")))
