"""`headrace share browse`: the seed's example, what is shown of records and runs, and remedies."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import AcknowledgeType, ShareConsumer
from tests.client.damaged_batch import produce_damaged

import headrace
from headrace.client.connection import Cluster
from headrace.client.groups import alter_group_offsets
from headrace.client.leases import Lease
from headrace.client.share_groups import alter_share_group_offsets
from headrace.client.topics import create_topic

from .conftest import TIME_MS

Command = Callable[..., Any]
_WAIT_S = 30
_POLLS_MAX = 30
_SUMMARY = re.compile(r"(?<=, of )\S+(?=\.$)", re.MULTILINE)
MANY = 20_000


class Worker:
    """A share consumer of topic "jobs" that says of each record what it is told to."""

    def __init__(self, broker: headrace.Broker, group: str, name: str, *, at_once: int) -> None:
        self._consumer = ShareConsumer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "group.id": group,
                "client.id": name,
                "share.acknowledgement.mode": "explicit",
                "max.poll.records": at_once,
            }
        )
        self._consumer.subscribe(["jobs"])
        self.held: dict[int, Any] = {}

    def take(self, count: int) -> list[int]:
        """The offsets of what it is given, once there are `count` of them."""
        given: list[int] = []
        for _ in range(_POLLS_MAX):
            for message in self._consumer.poll(1.0):
                offset = message.offset()
                assert offset is not None
                self.held[offset] = message
                given.append(offset)
            if len(given) >= count:
                return given
        raise AssertionError(f"{given} came, not {count}")

    def say(self, kind: AcknowledgeType, *offsets: int) -> None:
        for offset in offsets:
            self._consumer.acknowledge(self.held.pop(offset), kind)
        for error in self._consumer.commit_sync().values():
            assert error is None

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture
def work(broker: headrace.Broker) -> Iterator[Callable[..., Worker]]:
    """Ten records in "jobs", each a batch of its own, of which groups begin at the first."""
    made: list[Worker] = []

    def make(group: str, name: str, *, at_once: int) -> Worker:
        made.append(Worker(broker, group, name, at_once=at_once))
        return made[-1]

    with Cluster(broker.bootstrap_servers) as cluster:
        create_topic(cluster, "jobs", 1)
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
        for number in range(10):
            moment = TIME_MS + number * 1000
            producer.produce("jobs", b"do %d" % number, b"k", timestamp=moment)
            assert producer.flush(10) == 0
        for group in ("work", "other"):
            alter_share_group_offsets(cluster, group, {("jobs", 0): 0}).check()
    yield make
    for worker in made:
        worker.close()


@pytest.fixture
def browse(broker: headrace.Broker, offline: Command) -> Command:
    """`headrace share browse ...` on that broker."""
    servers = ("--bootstrap-server", broker.bootstrap_servers)
    return lambda *arguments: offline("share", "browse", *arguments, *servers)


@pytest.fixture
def seeds(work: Callable[..., Worker]) -> Worker:
    """The in-flight example of the seed; its 7 and 8 were released once."""
    worker = work("work", "worker-1", at_once=9)
    other = work("work", "worker-2", at_once=1)
    assert worker.take(9) == list(range(9))
    worker.say(AcknowledgeType.REJECT, 0, 1, 6)
    worker.say(AcknowledgeType.ACCEPT, 5)
    worker.say(AcknowledgeType.RELEASE, 3, 7, 8)
    assert other.take(1) == [3]
    other.say(AcknowledgeType.RELEASE, 3)
    return worker


def rows(text: str) -> list[list[str]]:
    """The cells of a table, up to the blank line before the summary."""
    return [line.split() for line in text.partition("\n\n")[0].splitlines()]


def test_the_in_flight_example_of_the_seed(seeds: Worker, browse: Command) -> None:
    ended = browse("work")
    assert (ended.code, ended.err) == (0, "")
    head, *found = rows(ended.text)
    assert head == [
        "TOPIC", "PARTITION", "OFFSET", "STATE", "DELIVERIES", "LOCK-LEFT", "HOLDER", "VALUE"
    ]  # fmt: skip
    assert [row[2:5] for row in found] == [
        ["2", "Acquired", "1"],
        ["3", "Available", "2"],
        ["4", "Acquired", "1"],
        ["5", "Acknowledged", "1"],
        ["6", "Archived", "1"],
        ["7", "Available", "1"],
        ["8", "Available", "1"],
        ["9", "Waiting", "0"],
    ]
    assert [row[-3:] for row in found if row[2] in "39"] == [["-", "do", "3"], ["-", "do", "9"]]
    assert found[0][-3:] == ["worker-1", "do", "2"]
    assert re.fullmatch(r"\d+", found[0][5]), "so many seconds are left of the lock"
    assert _SUMMARY.sub("(time)", ended.text.partition("\n\n")[2]) == (
        "Group work: 3 available, 2 acquired, 1 acknowledged, 1 archived, 1 waiting; the oldest "
        "unfinished is jobs-0 offset 2, of (time).\n"
    )
    assert [row[2:6] for row in rows(browse("work", "--runs").text)] == [
        ["FIRST", "LAST", "RECORDS", "STATE"],
        ["2", "2", "1", "Acquired"],
        ["3", "3", "1", "Available"],
        ["4", "4", "1", "Acquired"],
        ["5", "5", "1", "Acknowledged"],
        ["6", "6", "1", "Archived"],
        ["7", "8", "2", "Available"],
        ["9", "9", "1", "Waiting"],
    ]
    seeds.say(AcknowledgeType.ACCEPT, 2, 4)  # its locks were not touched


def test_other_groups_have_queues_of_their_own(seeds: Worker, browse: Command) -> None:
    other = [row[2:4] for row in rows(browse("other").text)[1:]]
    assert other == [[str(offset), "Waiting"] for offset in range(10)]
    assert seeds.held


def test_a_record_that_cannot_be_decoded_is_a_row(browse: Command, broker: headrace.Broker) -> None:
    with Cluster(broker.bootstrap_servers) as cluster:
        create_topic(cluster, "odd", 1)
        alter_share_group_offsets(cluster, "odd", {("odd", 0): 0}).check()
        produce_damaged(cluster, "odd", 1)
    ended = browse("odd")
    assert (ended.code, ended.err) == (0, "")
    assert "(cannot be read: a varint of more than 5 bytes at 0 of the records)\n" in ended.text
    row, _ = map(json.loads, browse("odd", "--json").text.splitlines())
    assert (row["offset"], row["key"], row["value"]) == (0, None, None)
    assert "varint" in row["damage"]


def test_as_json(seeds: Worker, browse: Command) -> None:
    asked = ("--json", "--state", "acquired,archived", "--topic", "jobs:0", "--from-offset", "4")
    acquired, archived, summary = map(json.loads, browse("work", *asked).text.splitlines())
    holder = acquired.pop("holder")
    assert (holder["client_id"], holder["host"], holder["session"]) == (
        "worker-1", "/127.0.0.1", None
    )  # fmt: skip
    assert 0 < acquired.pop("lock_left_ms") <= 30_000
    assert acquired.pop("lock_until") > acquired.pop("acquired_at") > TIME_MS
    assert acquired == {
        "type": "record", "topic": "jobs", "partition": 0, "offset": 4,
        "timestamp": TIME_MS + 4000, "state": "Acquired", "delivery_count": 1, "reason": None,
        "headers": [], "key": "k", "value": "do 4", "damage": None,
    }  # fmt: skip
    assert (archived["offset"], archived["holder"]["client_id"]) == (6, "worker-1"), "the last one"
    assert archived["reason"] == "rejected by the consumer"
    assert summary == {
        "type": "summary",
        "group": "work",
        "records": {
            "available": 3, "acquired": 2, "acknowledged": 1, "archiving": 0, "archived": 1,
            "waiting": 1,
        },
        "oldest_unfinished": {
            "topic": "jobs", "partition": 0, "offset": 2, "timestamp": TIME_MS + 2000
        },
    }  # fmt: skip
    first = ("--json", "--runs", "--max-messages", "1", "--state", "available")
    run, _ = map(json.loads, browse("work", *first).text.splitlines())
    assert (run["type"], run["first"], run["last"], run["records"]) == ("run", 3, 3, 1)
    assert seeds.held


def test_what_is_printed_of_records(work: Command, browse: Command) -> None:
    properties = ("print.key=true", "print.timestamp=true", "key.separator=|")
    options = [part for one in properties for part in ("--formatter-property", one)]
    lines = browse("work", "--max-messages", "2", *options).text.splitlines()
    assert [line.split()[-1] for line in lines[:1]] == ["TIMESTAMP|KEY|VALUE"]
    assert [line.partition("CreateTime")[2] for line in lines[1:3]] == [
        f":{TIME_MS}|k|do 0", f":{TIME_MS + 1000}|k|do 1"
    ]  # fmt: skip
    assert lines[3] == "", "no more than asked for"
    ended = browse("work", "--formatter-property", "print.value=false", "--max-messages", "1")
    assert ended.text.splitlines()[1].split() == ["jobs", "0", "0", "Waiting", "0", "-", "-"]


def test_a_queue_with_nothing_in_it(broker: headrace.Broker, browse: Command) -> None:
    with Cluster(broker.bootstrap_servers) as cluster:
        create_topic(cluster, "jobs", 1)
        alter_share_group_offsets(cluster, "work", {("jobs", 0): 0}).check()
    ended = browse("work")
    assert (ended.code, ended.text) == (0, "\nGroup work: nothing is left.\n")
    (summary,) = map(json.loads, browse("work", "--json").text.splitlines())
    assert summary["oldest_unfinished"] is None


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("nobody",), "Group nobody not found; see share-groups --list"),
        (("billing",), "Group billing is not a share group; see consumer-groups --describe"),
        (("work", "--topic", "nosuch"), "create the topic, or correct its name"),
        (("work", "--topic", "unread"), "group work does not read unread; it reads jobs"),
        (("work", "--topic", "jobs:x"), "Invalid partition 'x' specified in topic arg 'jobs:x'"),
        (("work", "--state", "gone"), "Invalid state list 'gone'. Valid states are: Available"),
        (
            ("work", "--formatter-property", "value.deserializer=Long"),
            "jobs-0 offset 0: 4 bytes, not 8",
        ),
        (("work", "--formatter-property", "print.all=true"), "print.all is not known; one of"),
        (
            ("work", "--runs", "--formatter-property", "print.key=true"),
            "--runs shows no record; leave it or --formatter-property out",
        ),
    ],
)
@pytest.mark.usefixtures("work")
def test_what_cannot_be_browsed(
    broker: headrace.Broker, browse: Command, arguments: tuple[str, ...], told: str
) -> None:
    with Cluster(broker.bootstrap_servers) as cluster:
        create_topic(cluster, "unread", 1)
        alter_group_offsets(cluster, "billing", {("jobs", 0): 1}).check()
    ended = browse(*arguments)
    assert ended.code == 1
    assert ended.err.startswith("headrace share browse: ")
    assert told in ended.err
    assert ended.err.count("\n") == 1


def test_a_group_that_reads_nothing_yet(broker: headrace.Broker, browse: Command) -> None:
    with Cluster(broker.bootstrap_servers) as cluster:
        fields = {"group_id": "new", "member_id": "m", "member_epoch": 0, "rack_id": None}
        assert cluster.ask(76, 1, fields | {"subscribed_topic_names": ["later"]}).error_code == 0
    ended = browse("new")
    assert ended.code == 1
    assert ended.err.startswith(
        "headrace share browse: group new has not begun to read any topic; "
    )


@pytest.fixture
def many(broker: headrace.Broker) -> headrace.Broker:
    """A broker with many records, each of which waits for group "work"."""
    with Cluster(broker.bootstrap_servers) as cluster:
        create_topic(cluster, "jobs", 1)
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
        for number in range(MANY):
            producer.produce("jobs", b"%d" % number)
        assert producer.flush(30) == 0
        lease = Lease(cluster, "work", "s")
        lease.open(("jobs",), "earliest")
    return broker


def _started(broker: headrace.Broker) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    words = ("share", "browse", "work", "--bootstrap-server", broker.bootstrap_servers)
    line = (sys.executable, "-m", "headrace", *words)
    return subprocess.Popen(line, stdout=pipe, stderr=pipe)


def test_nobody_reads_the_output_any_more(many: headrace.Broker) -> None:
    with _started(many) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b"TOPIC ")
        process.stdout.close()
        assert process.wait(_WAIT_S) == 141
        assert process.stderr.read() == b""


def test_it_is_interrupted(many: headrace.Broker) -> None:
    with _started(many) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b"TOPIC ")
        process.send_signal(signal.SIGINT)  # it cannot be done: the pipe is full
        process.stdout.read()
        assert process.wait(_WAIT_S) == 130
        assert process.stderr.read() == b""


@pytest.mark.usefixtures("work")
def test_what_members_choose_does_nothing_to_a_terminal(
    browse: Command, broker: headrace.Broker, offline: Command
) -> None:
    about: dict[str, Any] = {"group": "work", "topics": ["jobs"], "client_id": "a\nb\x1b[2J"}
    servers = broker.bootstrap_servers
    with headrace.SyncShareConsumer(servers, **about) as consumer:
        first, second = consumer.poll(2, timeout_s=_WAIT_S)
        second.reject("no\x1b[2Jt JSON").result(_WAIT_S)
        assert first.is_held
        shown = browse("work", "--runs").text + browse("work", "--max-messages", "1").text
    shown += offline("share", "archived", "work", "--bootstrap-server", servers).text
    assert "\x1b" not in shown
    assert shown.count(r"a\nb\x1b[2J") == 3
    assert shown.count(r"no\x1b[2Jt JSON") == 2


def test_what_producers_write_does_nothing_to_a_terminal_and_is_cut(
    broker: headrace.Broker, browse: Command
) -> None:
    with Cluster(broker.bootstrap_servers) as cluster:
        create_topic(cluster, "jobs", 1)
        alter_share_group_offsets(cluster, "work", {("jobs", 0): 0}).check()
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
    hidden, long = b"\x1b[2J\x07one\ntwo\ttabs\xff", "\N{EURO SIGN}".encode() * 50_000
    producer.produce("jobs", hidden, b"k\r", headers={"h": b"\x1b[1m"})
    producer.produce("jobs", long, long)
    assert producer.flush(_WAIT_S) == 0
    options = ("--formatter-property=print.key=true", "--formatter-property=print.headers=true")
    lines = browse("work", *options).text.partition("\n\n")[0].splitlines()
    assert len(lines) == 3, "the head and a line for each record"
    shown = ("h:\\x1b[1m", "k\\r", "\\x1b[2J\\x07one\\ntwo\\ttabs\\xff")
    assert lines[1].endswith("\t".join(shown))
    cut = f"{chr(0x20AC) * 80}..."
    assert lines[2].endswith(f"NO_HEADERS\t{cut}\t{cut}")
    found = json.loads(browse("work", "--json", "--from-offset", "1").text.splitlines()[0])
    assert found["value"].encode() == long
