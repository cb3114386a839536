"""Stock clients with `group.protocol=consumer` (KIP-848): librdkafka, Java, the console consumer.

`JavaConsumerGroups.java` makes every check in one JVM; each is a test here.
"""

import logging
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupType, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import headrace
from headrace.client.admin import log_end
from headrace.client.connection import Cluster

from .conftest import RunJava

TIMEOUT_S = 60
PARTITIONS = 4
QUICK = {
    "group.consumer.min.session.timeout.ms": 500,
    "group.consumer.min.heartbeat.interval.ms": 50,
    "group.consumer.heartbeat.interval.ms": 200,
}
_PROGRAM = Path(__file__).with_name("JavaConsumerGroups.java")
_CHECKS = re.findall(r"static void check(\w+)\(\)", _PROGRAM.read_text())


@pytest.fixture
def broker() -> Iterator[headrace.Broker]:
    """A broker whose members beat often, so that a rebalance is soon done."""
    with headrace.Broker(settings=QUICK) as running:
        yield running


@pytest.fixture(scope="module")
def outcomes(run_java: RunJava) -> dict[str, str]:
    """Outcome of each check: `ok`, or what went wrong."""
    with headrace.Broker(settings=QUICK) as broker:
        done = run_java(_PROGRAM.stem, broker.bootstrap_servers)
    told = re.findall(r"^(ok|failed) (\w+)(.*)$", done.stdout, re.MULTILINE)
    assert len(told) == len(_CHECKS), done.stdout + done.stderr[-4000:]
    return {name: outcome + rest for outcome, name, rest in told}


@pytest.mark.parametrize("check", _CHECKS)
def test_java(check: str, outcomes: dict[str, str]) -> None:
    assert outcomes[check] == "ok"


def test_the_console_consumer_reads_and_goes_on(broker: headrace.Broker, run_java: RunJava) -> None:
    produce(broker.bootstrap_servers, "lines", 3, partitions=1)

    def consume(count: int) -> list[str]:
        # It gives up when its first records take long, as they may in a new JVM.
        done = run_java(
            "org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server",
            broker.bootstrap_servers, "--topic", "lines", "--group", "console",
            "--command-property", "group.protocol=consumer", "--from-beginning",
            "--timeout-ms", "60000", "--max-messages", str(count),
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.split()

    assert consume(3) == ["0", "1", "2"]
    produce(broker.bootstrap_servers, "lines", 2, first=3, partitions=1)
    assert consume(2) == ["3", "4"]


def test_kafkas_tools_read_the_journal_of_such_a_group(run_java: RunJava, tmp_path: Path) -> None:
    with headrace.Broker(tmp_path, settings=QUICK) as broker:
        bootstrap = broker.bootstrap_servers
        produce(bootstrap, "orders", 40)
        with member(bootstrap) as first, member(bootstrap, "^ord.*") as second:
            until(lambda: len(first.owned) == len(second.owned) == 2, first, second)
            until(lambda: len({*first.values, *second.values}) == 40, first, second)
            first.consumer.commit(asynchronous=False)
        with Cluster(bootstrap) as cluster:
            written = log_end(cluster, "__consumer_offsets", 0)
        consumed = run_java(
            "org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", bootstrap,
            "--topic", "__consumer_offsets", "--from-beginning", "--timeout-ms", "60000",
            "--max-messages", str(written),
            "--formatter", "org.apache.kafka.tools.consumer.OffsetsMessageFormatter",
        )  # fmt: skip
    assert consumed.stdout.count('"group":"team","topic":"orders"') >= 2, consumed.stderr
    journal = str(tmp_path / "__consumer_offsets-0" / f"{0:020}.log")
    kafkas = run_java(
        "org.apache.kafka.tools.DumpLogSegments", "--files", journal, "--offsets-decoder"
    )
    ours = subprocess.run(
        [sys.executable, "-m", "headrace", "log", "dump", "--files", journal,
         "--offsets-decoder"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    lines = [one for one in kafkas.stdout.splitlines() if one.startswith("|")]
    assert [one for one in ours.stdout.splitlines() if one.startswith("|")] == lines
    of_group = [line for line in lines if '"team"' in line]
    types = {int(one) for line in of_group for one in re.findall(r'key: {"type":"(\d+)"', line)}
    assert types == {1, 3, 5, 6, 7, 8, 16}, kafkas.stderr


# ---- librdkafka


class Member:
    """A consumer and what its callbacks were told."""

    def __init__(self, bootstrap: str, **settings: Any) -> None:
        given = {name.replace("_", "."): value for name, value in settings.items()}
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "team",
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 2,
                **given,
            }
        )
        self.values: list[bytes] = []
        self.assigned: set[int] = set()
        self.revoked: set[int] = set()
        self.lost: set[int] = set()

    def subscribe(self, *topics: str) -> None:
        def note(told: set[int]) -> Callable[[Any, list[TopicPartition]], None]:
            return lambda _, partitions: told.update(one.partition for one in partitions)

        self.consumer.subscribe(
            list(topics), on_assign=note(self.assigned), on_revoke=note(self.revoked),
            on_lost=note(self.lost),
        )  # fmt: skip

    @property
    def owned(self) -> list[tuple[str, int]]:
        return sorted((one.topic, one.partition) for one in self.consumer.assignment())

    def poll(self) -> None:
        message = self.consumer.poll(0.05)
        if message is not None:
            error = message.error()
            if error is not None:
                raise KafkaException(error)
            self.values.append(message.value() or b"")


@contextmanager
def member(bootstrap: str, *topics: str, **settings: Any) -> Iterator[Member]:
    opened = Member(bootstrap, **settings)
    opened.subscribe(*(topics or ("orders",)))
    try:
        yield opened
    finally:
        opened.consumer.close()


def until(condition: Callable[[], object], *polled: Member) -> None:
    """Poll members until something is so."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, [(one.owned, len(one.values)) for one in polled]
        for one in polled:
            one.poll()


def produce(
    bootstrap: str, topic: str, count: int, *, first: int = 0, partitions: int = PARTITIONS
) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    if topic not in admin.list_topics(timeout=TIMEOUT_S).topics:
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 2})
    for number in range(first, first + count):
        producer.produce(topic, b"%d" % number, partition=number % partitions)
    assert producer.flush(TIMEOUT_S) == 0


def described(bootstrap: str, group: str = "team") -> Any:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    return admin.describe_consumer_groups([group])[group].result(TIMEOUT_S)


def test_members_share_partitions_and_take_over(broker: headrace.Broker) -> None:
    bootstrap = broker.bootstrap_servers
    produce(bootstrap, "orders", 40)
    with member(bootstrap) as first:
        until(lambda: len(first.values) == 40, first)
        first.consumer.commit(asynchronous=False)
        with member(bootstrap) as second, member(bootstrap) as third:
            everybody = (first, second, third)
            until(lambda: sorted(len(one.owned) for one in everybody) == [1, 1, 2], *everybody)
            assert first.revoked == second.assigned | third.assigned
            # Of the others' changes a member hears with its next heartbeat, and is in step then.
            until(lambda: described(bootstrap).state.name == "STABLE", *everybody)
            told = described(bootstrap)
            assert told.type == ConsumerGroupType.CONSUMER
            assert told.partition_assignor == "uniform"
            produce(bootstrap, "orders", 12, first=40)
            until(lambda: sum(len(one.values) for one in everybody) == 52, *everybody)
            for one in everybody:
                one.consumer.commit(asynchronous=False)
        until(lambda: len(first.owned) == 4, first)
        produce(bootstrap, "orders", 4, first=52)
        # Nothing comes again but what was produced since.
        until(lambda: b"55" in first.values and b"54" in first.values, first)
        assert not first.lost
    found = sorted(int(value) for one in everybody for value in one.values)
    assert len(found) == len(set(found))
    with member(bootstrap) as last:
        until(lambda: len(last.owned) == 4, last)
        assert {int(value) for value in last.values} <= set(range(52, 56))


@pytest.mark.parametrize(("before", "after"), [("classic", "consumer"), ("consumer", "classic")])
def test_members_change_their_protocol_one_by_one(
    broker: headrace.Broker, before: str, after: str, caplog: pytest.LogCaptureFixture
) -> None:
    """`Member.poll` raises each error that librdkafka returns, also of the member that waits."""
    caplog.set_level(logging.INFO, "headrace.broker")
    bootstrap = broker.bootstrap_servers
    produce(bootstrap, "orders", 8)
    with ExitStack() as closing:
        first = closing.enter_context(member(bootstrap, group_protocol=before))
        until(lambda: len(first.values) == 8, first)
        first.consumer.commit(asynchronous=False)
        with member(bootstrap, group_protocol=after) as second:
            waits = "this member joins when they have left"
            until(lambda: waits in caplog.text, first, second)
            produce(bootstrap, "orders", 4, first=8)
            until(lambda: len(first.values) == 12, first, second)
            first.consumer.commit(asynchronous=False)
            assert second.owned == []
            closing.close()
            until(lambda: len(second.owned) == PARTITIONS, second)
            produce(bootstrap, "orders", 4, first=12)
            until(lambda: len(second.values) >= 4, second)
            assert sorted(map(int, second.values)) == list(range(12, 16))
            assert not first.lost | second.lost


def test_a_pattern_follows_topics_that_come_and_go(broker: headrace.Broker) -> None:
    bootstrap = broker.bootstrap_servers
    for topic in ("pay-1", "repay"):
        produce(bootstrap, topic, 1, partitions=1)
    with member(bootstrap, "^pay-.*", topic_metadata_refresh_interval_ms=500) as one:
        until(lambda: one.owned == [("pay-1", 0)], one)
        produce(bootstrap, "pay-2", 2, partitions=1)
        until(lambda: len(one.values) == 3, one)
        assert one.owned == [("pay-1", 0), ("pay-2", 0)]


def test_a_pattern_that_is_none_is_told_to_the_client(broker: headrace.Broker) -> None:
    backreference = r"^(a)\1"  # which librdkafka lets pass
    with (
        member(broker.bootstrap_servers, backreference) as one,
        pytest.raises(KafkaException, match="regular expression"),
    ):
        until(lambda: False, one)


def test_static_member_that_restarts_keeps_its_partitions(broker: headrace.Broker) -> None:
    bootstrap = broker.bootstrap_servers
    produce(bootstrap, "orders", 40)
    with member(bootstrap) as other:
        with member(bootstrap, group_instance_id="one") as static:
            until(lambda: len(other.owned) == len(static.owned) == 2, other, static)
            had = static.owned
        revoked, assigned = set(other.revoked), set(other.assigned)
        with member(bootstrap, group_instance_id="one") as back:
            until(lambda: back.owned == had, other, back)
            assert (other.revoked, other.assigned) == (revoked, assigned)


def test_a_restart_of_the_broker_disturbs_no_member(tmp_path: Path) -> None:
    with headrace.Broker(tmp_path, settings=QUICK) as broker:
        bootstrap = broker.bootstrap_servers
        port = int(bootstrap.rsplit(":", 1)[1])
        produce(bootstrap, "orders", 40)
        first, second = Member(bootstrap), Member(bootstrap)
        first.subscribe("orders")
        second.subscribe("orders")
        until(lambda: len(first.owned) == len(second.owned) == 2, first, second)
        until(lambda: len({*first.values, *second.values}) == 40, first, second)
        for one in (first, second):
            one.consumer.commit(asynchronous=False)
        before = (first.owned, second.owned)
        epochs = described(bootstrap)
    with headrace.Broker(tmp_path, port=port, settings=QUICK):
        produce(bootstrap, "orders", 4, first=40)
        until(lambda: len({*first.values, *second.values}) == 44, first, second)
        for one in (first, second):
            one.consumer.commit(asynchronous=False)
            assert not one.lost
        assert (first.owned, second.owned) == before
        after = described(bootstrap)
        assert [one.member_id for one in after.members] == [one.member_id for one in epochs.members]
        first.consumer.close()
        second.consumer.close()
