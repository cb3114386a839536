"""Stock clients in consumer groups: they subscribe, commit, rebalance, and survive a restart."""

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer

import headrace
from headrace.demo.server import Server

TIMEOUT_S = 60
PARTITIONS, RECORDS = 4, 200
ASSIGNORS = ["range", "cooperative-sticky"]


def produce(bootstrap: str, first: int, count: int) -> None:
    """Values `first` to `first` + `count` - 1 over all partitions of "orders"."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    if "orders" not in admin.list_topics(timeout=TIMEOUT_S).topics:
        admin.create_topics([NewTopic("orders", PARTITIONS, 1)])["orders"].result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 2})
    for number in range(first, first + count):
        producer.produce("orders", b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(TIMEOUT_S) == 0


@contextmanager
def consumer(bootstrap: str, group: str = "team", **settings: Any) -> Iterator[Consumer]:
    given = {name.replace("_", "."): value for name, value in settings.items()}
    opened = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 6_000,
            "heartbeat.interval.ms": 200,
            "log_level": 2,
            **given,
        }
    )
    opened.subscribe(["orders"])
    try:
        yield opened
    finally:
        opened.close()


def until(condition: Callable[[], object], *polled: Consumer) -> list[bytes]:
    """Poll consumers until something is so; the values that came on the way."""
    found: list[bytes] = []
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain, with {len(found)} records"
        for one in polled:
            message = one.poll(0.05)
            if message is not None and message.error() is None:
                found.append(message.value() or b"")
    return found


def read(one: Consumer, count: int) -> list[bytes]:
    """Exactly `count` values."""
    found: list[bytes] = []
    deadline = time.monotonic() + TIMEOUT_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} records"
        message = one.poll(0.2)
        if message is not None and message.error() is None:
            found.append(message.value() or b"")
    return found


def owned(*members: Consumer) -> list[int]:
    """How many partitions each member has."""
    return [len(member.assignment()) for member in members]


def committed(bootstrap: str, group: str = "team") -> int:
    """The sum of a group's committed offsets."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    asked = [ConsumerGroupTopicPartitions(group)]
    found = admin.list_consumer_group_offsets(asked)[group].result(TIMEOUT_S)
    return sum(one.offset for one in found.topic_partitions)


def described(bootstrap: str, group: str = "team") -> Any:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    return admin.describe_consumer_groups([group])[group].result(TIMEOUT_S)


def values(first: int, count: int) -> list[bytes]:
    return sorted(b"%d" % number for number in range(first, first + count))


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_members_share_partitions_and_take_over(broker: headrace.Broker, assignor: str) -> None:
    bootstrap = broker.bootstrap_servers
    strategy = {"partition_assignment_strategy": assignor}
    produce(bootstrap, 0, RECORDS)
    with consumer(bootstrap, **strategy) as first:
        assert sorted(read(first, RECORDS)) == values(0, RECORDS)
        first.commit(asynchronous=False)
        with consumer(bootstrap, **strategy) as second:
            until(lambda: owned(first, second) == [2, 2], first, second)
            state = described(bootstrap)
            assert state.state.name == "STABLE"
            assert state.partition_assignor == assignor
            assert [len(one.assignment.topic_partitions) for one in state.members] == [2, 2]
            produce(bootstrap, RECORDS, 40)
            found: list[bytes] = []
            deadline = time.monotonic() + TIMEOUT_S
            while len(found) < 40 and time.monotonic() < deadline:
                for one in (first, second):
                    message = one.poll(0.05)
                    if message is not None and message.error() is None:
                        found.append(message.value() or b"")
                        one.commit(message=message, asynchronous=False)
            assert sorted(found) == values(RECORDS, 40)
        assert until(lambda: owned(first) == [4], first) == []  # nothing that was committed
    assert committed(bootstrap) == RECORDS + 40


def test_static_member_that_restarts_keeps_its_partitions(broker: headrace.Broker) -> None:
    bootstrap = broker.bootstrap_servers
    produce(bootstrap, 0, 8)
    with consumer(bootstrap, group_instance_id="a") as first:
        with consumer(bootstrap, group_instance_id="b") as second:
            until(lambda: owned(first, second) == [2, 2], first, second)
            mine, others = second.assignment(), first.assignment()
        with consumer(bootstrap, group_instance_id="b") as second:
            until(lambda: second.assignment(), second)
            assert second.assignment() == mine
        assert first.assignment() == others
        members = described(bootstrap).members
        assert sorted(one.group_instance_id for one in members) == ["a", "b"]


def test_offsets_are_altered_and_groups_deleted(broker: headrace.Broker) -> None:
    bootstrap = broker.bootstrap_servers
    produce(bootstrap, 0, RECORDS)
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    wanted = [TopicPartition("orders", number, 10) for number in range(PARTITIONS)]
    altered = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions("team", wanted)])
    altered["team"].result(TIMEOUT_S)
    with consumer(bootstrap) as member:
        assert len(read(member, RECORDS - 10 * PARTITIONS)) == RECORDS - 10 * PARTITIONS
        (listed,) = admin.list_consumer_groups().result(TIMEOUT_S).valid
        assert (listed.group_id, listed.is_simple_consumer_group) == ("team", False)
        with pytest.raises(KafkaException, match="NON_EMPTY_GROUP"):
            admin.delete_consumer_groups(["team"])["team"].result(TIMEOUT_S)
    admin.delete_consumer_groups(["team"])["team"].result(TIMEOUT_S)
    assert admin.list_consumer_groups().result(TIMEOUT_S).valid == []
    assert committed(bootstrap) == 0


def test_aiokafka_members_share_partitions_and_take_over(broker: headrace.Broker) -> None:
    bootstrap = broker.bootstrap_servers
    produce(bootstrap, 0, RECORDS)

    def member() -> AIOKafkaConsumer:
        return AIOKafkaConsumer(
            "orders",
            bootstrap_servers=bootstrap,
            group_id="team",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=200,
        )

    async def owning(one: AIOKafkaConsumer, count: int) -> None:
        while len(one.assignment()) != count:
            await one.getmany(timeout_ms=50)

    async def go() -> None:
        first, second = member(), member()
        await first.start()
        found = [(await first.getone()).value for _ in range(RECORDS)]
        assert sorted(found) == values(0, RECORDS)
        await first.commit()
        await second.start()
        await asyncio.gather(owning(first, 2), owning(second, 2))
        await second.stop()
        await owning(first, 4)
        await asyncio.to_thread(produce, bootstrap, RECORDS, 4)
        again = [(await first.getone()).value for _ in range(4)]
        assert sorted(again) == values(RECORDS, 4)
        await first.commit()
        await first.stop()

    asyncio.run(asyncio.wait_for(go(), 2 * TIMEOUT_S))
    assert committed(bootstrap) == RECORDS + 4


@pytest.mark.usefixtures("unclosed_sockets_allowed")
def test_kafka_python_members_share_partitions_and_take_over(broker: headrace.Broker) -> None:
    bootstrap = broker.bootstrap_servers
    produce(bootstrap, 0, RECORDS)

    @contextmanager
    def member() -> Iterator[KafkaConsumer]:
        opened = KafkaConsumer(
            "orders",
            bootstrap_servers=bootstrap,
            group_id="team",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=200,
            session_timeout_ms=6_000,
        )
        try:
            yield opened
        finally:  # one left open dials a stopped broker for ever, and leaves a socket each time
            opened.close()

    def poll(one: KafkaConsumer, timeout_ms: int = 50) -> list[bytes]:
        answer = one.poll(timeout_ms=timeout_ms)
        return [record.value for records in answer.values() for record in records]

    counts: list[int] = []
    done = threading.Event()

    def second_member() -> None:
        with member() as second:
            while len(second.assignment()) != 2 and not done.is_set():
                poll(second)
            counts.append(len(second.assignment()))

    thread = threading.Thread(target=second_member)
    with member() as first:
        found: list[bytes] = []
        deadline = time.monotonic() + TIMEOUT_S
        while len(found) < RECORDS and time.monotonic() < deadline:
            # A leader that joins anew for what it has learned of its topics must do so within one
            # poll: kafka-python 3.0.12 forgets it otherwise, and reads nothing ever after.
            found += poll(first, 30_000)
        assert sorted(found) == values(0, RECORDS)
        first.commit()
        thread.start()
        seen = set()
        try:
            deadline = time.monotonic() + TIMEOUT_S
            while not (2 in seen and len(first.assignment()) == 4) and time.monotonic() < deadline:
                poll(first)
                seen.add(len(first.assignment()))
        finally:
            done.set()
            thread.join()
        assert counts == [2]
        assert len(first.assignment()) == 4
    assert committed(bootstrap) == RECORDS
    gc.collect()


def test_group_goes_on_after_a_restart(tmp_path: Path) -> None:
    """A clean restart is no rebalance: the member goes on in its generation."""
    broker = headrace.Broker(tmp_path).start()
    port = int(broker.bootstrap_servers.rsplit(":", 1)[1])
    lost: list[Any] = []
    try:
        produce(broker.bootstrap_servers, 0, RECORDS)
        with consumer(broker.bootstrap_servers, session_timeout_ms=30_000) as member:
            member.subscribe(["orders"], on_revoke=lambda _, gone: lost.append(gone))
            assert len(read(member, RECORDS)) == RECORDS
            member.commit(asynchronous=False)
            broker.stop()
            broker = headrace.Broker(tmp_path, port=port).start()
            produce(broker.bootstrap_servers, RECORDS, 20)
            assert sorted(read(member, 20)) == values(RECORDS, 20)
            member.commit(asynchronous=False)
            assert lost == []
        assert committed(broker.bootstrap_servers) == RECORDS + 20
    finally:
        broker.stop()


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_nothing_committed_is_lost_by_a_killed_broker(tmp_path: Path, assignor: str) -> None:
    """Two members commit value by value; what a commit confirmed does not come again.

    A commit that failed is in doubt: the broker may have died after it wrote it down.
    """
    total, kills = 240, [60, 140]
    settled: set[bytes] = set()
    doubtful: set[bytes] = set()
    with Server(tmp_path) as server:
        produce(server.bootstrap, 0, total)
        # However long the broker is away, no member is expelled for it: that is not the question.
        settings: dict[str, Any] = {
            "partition_assignment_strategy": assignor,
            "session_timeout_ms": 45_000,
            "reconnect_backoff_max_ms": 500,
        }
        with (
            consumer(server.bootstrap, **settings) as first,
            consumer(server.bootstrap, **settings) as second,
        ):
            deadline = time.monotonic() + 3 * TIMEOUT_S
            while len(settled | doubtful) < total:
                assert time.monotonic() < deadline, f"{len(settled)} of {total}"
                for one in (first, second):
                    settle(one, settled, doubtful)
                if kills and len(settled) >= kills[0]:
                    kills.pop(0)
                    server.kill()
                    server.start()
        assert not kills
        assert len(doubtful) <= 4  # at most one a member and kill
        assert committed(server.bootstrap) >= total - len(doubtful)


def settle(one: Consumer, settled: set[bytes], doubtful: set[bytes]) -> None:
    """Take one record and commit it; it is settled once the broker has confirmed that."""
    message = one.poll(0.05)
    if message is None or message.error() is not None:
        return
    value = message.value() or b""
    assert value not in settled, f"{value!r} was committed, and came again"
    try:
        one.commit(message=message, asynchronous=False)
    except KafkaException:
        doubtful.add(value)
    else:
        settled.add(value)
