"""`headrace.Consumer` beside both tables of KIP-842 when lookups fail and partitions are added.

Each row runs with a real librdkafka over every rebalance protocol, against a broker that refuses or
drops requests. Partition 1 has a commit at 7 in every row: nothing that befalls partition 0 may
skip or repeat a record there.

CI runs each row at least once and each fault with each protocol, with short waits. With
HEADRACE_CONSUMER_FAULTS=1 each row runs with every fault over every protocol, and all waits have
their defaults; partitions are added once more with the default refresh of metadata.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from functools import partial
from itertools import count, product
from math import gcd
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewPartitions

import headrace
from headrace.client import consumer as module
from headrace.client import marking
from headrace.client.positions import watermark_offsets
from headrace.testing import BrokerUnderTest

SECONDS_MAX = 60.0
REFRESH_SECONDS = 300.0  # topic.metadata.refresh.interval.ms by default
EVERYTHING = bool(os.environ.get("HEADRACE_CONSUMER_FAULTS"))  # every row with every fault
# A fetch that waits at the end of one partition holds up the others for half a second by default.
WAITS: dict[str, str] = {} if EVERYTHING else {
    "fetch.wait.max.ms": "10",
    "fetch.error.backoff.ms": "10",
    "retry.backoff.ms": "10",
    "retry.backoff.max.ms": "50",
    "reconnect.backoff.ms": "10",
    "reconnect.backoff.max.ms": "50",
}  # fmt: skip
LOOKUPS = 1_000 if EVERYTHING else 100  # of a log whose broker answers half of them with an error
RECORDS, COMMITTED, LOG_START = 10, 7, 4
BELOW, ABOVE = 1, 99
START, END, REFUSED = LOG_START, RECORDS, None
PROTOCOLS: dict[str, dict[str, str]] = {
    "range": {"partition.assignment.strategy": "range"},
    "cooperative": {"partition.assignment.strategy": "cooperative-sticky"},
    "consumer": {"group.protocol": "consumer"},
}
FAULTS: dict[str, list[dict[str, Any]]] = {
    "none": [],
    "not coordinator": [{"api": "OffsetFetch", "error": "NOT_COORDINATOR", "times": 1}],
    "loading": [{"api": "OffsetFetch", "error": "COORDINATOR_LOAD_IN_PROGRESS", "times": 3}],
    "unknown partition": [
        {"api": "ListOffsets", "error": "UNKNOWN_TOPIC_OR_PARTITION", "times": 3}
    ],
    "not leader": [{"api": "ListOffsets", "error": "NOT_LEADER_OR_FOLLOWER", "times": 1}],
    "both for a while": [
        {"api": "OffsetFetch", "error": "COORDINATOR_NOT_AVAILABLE", "times": 3},
        {"api": "ListOffsets", "error": "LEADER_NOT_AVAILABLE", "times": 3},
    ],
    "hung up": [{"api": "OffsetFetch", "times": 2}, {"api": "ListOffsets", "times": 2}],
}
NEAREST = {"offset.reset.strategy.offset-out-of-range": "nearest"}
# Position of partition 0 (None: nothing committed), strategy, whether nearest, where it begins.
ROWS: list[tuple[int | None, str, bool, int | None]] = [
    (None, "none", True, REFUSED),
    (None, "earliest", True, START),
    (None, "latest", True, END),
    (None, "earliest_on_start", False, START),
    (None, "latest_on_start", False, END),
    (None, "safe_latest", False, END),
    (COMMITTED, "none", True, COMMITTED),
    (COMMITTED, "earliest_on_start", False, COMMITTED),
    (COMMITTED, "latest_on_start", True, COMMITTED),
    (COMMITTED, "safe_latest", False, COMMITTED),
    (BELOW, "earliest_on_start", False, REFUSED),
    (BELOW, "latest_on_start", False, REFUSED),
    (BELOW, "safe_latest", False, END),
    (BELOW, "none", True, START),
    (BELOW, "safe_latest", True, START),
    (ABOVE, "earliest_on_start", False, REFUSED),
    (ABOVE, "latest_on_start", False, REFUSED),
    (ABOVE, "safe_latest", False, END),
    (ABOVE, "earliest", True, END),
    (ABOVE, "safe_latest", True, END),
    (None, "earliest_on_start", True, START),
    (None, "latest_on_start", True, END),
    (None, "safe_latest", True, END),
]
ENDS = {0: RECORDS, 1: 3}  # the last offsets of a topic that grew
_NUMBERS = count()


def selected(
    rows: Sequence[tuple[Any, ...]], faults: Sequence[str]
) -> Iterator[tuple[tuple[Any, ...], str, str]]:
    """Select each fault with each protocol and each row at least once, or everything.

    As the numbers of faults and protocols have no common divisor, so many turns have all pairs.
    """
    if EVERYTHING:
        yield from product(rows, PROTOCOLS, faults)
        return
    assert gcd(len(faults), len(PROTOCOLS)) == 1
    for turn in range(max(len(faults) * len(PROTOCOLS), len(rows))):
        protocol = list(PROTOCOLS)[turn % len(PROTOCOLS)]
        yield rows[turn % len(rows)], protocol, faults[turn % len(faults)]


def cases() -> list[Any]:
    """Build the parameters of both tables."""
    found = list[Any]()
    for row, protocol, fault in selected(ROWS, list(FAULTS)):
        position, strategy, nearest, _ = row
        name = f"{strategy} {nearest} {position} {protocol} {fault}".replace(" ", "-")
        found.append(pytest.param(row, protocol, fault, id=name))
    return found


GROWTHS = [
    ("earliest_on_start", False, True),
    ("latest_on_start", False, False),
    ("safe_latest", False, True),
    ("earliest", True, True),
    ("latest", True, False),
]


def growth_cases() -> list[Any]:
    """Build the parameters of partitions that are added."""
    found = list[Any]()
    faults = ["none", "not leader", "loading", "not coordinator"]
    for (strategy, nearest, is_read), protocol, fault in selected(GROWTHS, faults):
        name = f"{strategy}-{nearest}-{protocol}-{fault}".replace(" ", "-")
        found.append(pytest.param(strategy, nearest, is_read, protocol, fault, id=name))
    return found


class Rig:
    """A topic with two partitions of ten records each, and a group with a commit in one."""

    def __init__(self, broker: BrokerUnderTest, *, partitions: int = 2) -> None:
        self.broker, number = broker, next(_NUMBERS)
        self.topic = broker.create_topic(f"readings-{number}", partitions=partitions)
        self.group = f"meters-{number}"
        self.servers = broker.bootstrap_servers
        self.admin = AdminClient({"bootstrap.servers": self.servers})
        for partition in range(partitions):
            self.produce(partition, RECORDS)

    def produce(self, partition: int, records: int = 1) -> None:
        producer = Producer({"bootstrap.servers": self.servers})
        for number in range(records):
            producer.produce(self.topic, str(number), partition=partition)
        assert producer.flush(SECONDS_MAX) == 0

    def drop_below(self, offset: int) -> None:
        for done in self.admin.delete_records([TopicPartition(self.topic, 0, offset)]).values():
            done.result()

    def commit(self, offsets: Mapping[int, int]) -> None:
        stock = Consumer({"bootstrap.servers": self.servers, "group.id": self.group})
        try:
            stock.commit(
                offsets=[TopicPartition(self.topic, *one) for one in offsets.items()],
                asynchronous=False,
            )
        finally:
            stock.close()

    def consumer(self, *settings: Mapping[str, str]) -> headrace.Consumer:
        own = {"bootstrap.servers": self.servers, "group.id": self.group}
        merged = {name: value for one in settings for name, value in one.items()}
        return headrace.Consumer({**own, **WAITS, "enable.partition.eof": "true", **merged})

    def grow(self, partitions: int) -> None:
        wanted = [NewPartitions(self.topic, partitions)]
        self.admin.create_partitions(wanted)[self.topic].result()

    def add_fault(self, one: dict[str, Any]) -> Any:
        if "error" in one:
            return self.broker.faults.add(**(one | self._whose(one)))
        return self.broker.faults.drop(**(one | self._whose(one)))

    def _whose(self, one: dict[str, Any]) -> dict[str, str]:
        return {"group": self.group} if one["api"] == "OffsetFetch" else {"topic": self.topic}


class Seen:
    """Everything that a consumer returned: offsets, ends and errors for each partition."""

    def __init__(self, consumer: headrace.Consumer) -> None:
        self.offsets: dict[int, list[int]] = {}
        self.ends: set[int] = set()
        self.errors: list[tuple[int | None, int]] = []
        self._consumer = consumer

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        while not condition():
            assert time.monotonic() < deadline, vars(self)
            self.poll(0.1)

    def poll(self, timeout: float) -> None:
        message = self._consumer.poll(timeout)
        if message is not None:
            self._note(message)

    def _note(self, message: Message) -> None:
        error, partition = message.error(), message.partition()
        if error is None:
            assert partition is not None
            offset = message.offset()
            assert offset is not None
            self.offsets.setdefault(partition, []).append(offset)
        elif error.code() == KafkaError._PARTITION_EOF:
            assert partition is not None
            self.ends.add(partition)
        else:
            self.errors.append((partition, error.code()))


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerUnderTest]:
    settings = {
        "group.initial.rebalance.delay.ms": 0,
        "group.consumer.min.heartbeat.interval.ms": 200,
        "group.consumer.heartbeat.interval.ms": 200,
    }
    with BrokerUnderTest(settings=settings) as running:
        yield running


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the waits of `headrace.Consumer` in CI."""
    if not EVERYTHING:
        monkeypatch.setattr(module, "_BACKOFF_S", 0.02)
        monkeypatch.setattr(module, "_LOOKUP_S", 0.25)
        monkeypatch.setattr(marking, "_KEEP_AGAIN_S", 0.02)


@pytest.fixture
def clean(broker: BrokerUnderTest, waits: None) -> Iterator[BrokerUnderTest]:
    yield broker
    broker.faults.clear()


@pytest.mark.parametrize(("row", "protocol", "fault"), cases())
def test_every_row_of_both_tables_with_lookups_that_fail(
    clean: BrokerUnderTest,
    row: tuple[int | None, str, bool, int | None],
    protocol: str,
    fault: str,
) -> None:
    position, strategy, nearest, start = row
    rig = Rig(clean)
    if position is BELOW or position is None:
        rig.drop_below(LOG_START)
    rig.commit({1: COMMITTED} | ({} if position is None else {0: position}))
    faults = [rig.add_fault(one) for one in FAULTS[fault]]
    reset = {"auto.offset.reset": strategy}
    with rig.consumer(reset, NEAREST if nearest else {}, PROTOCOLS[protocol]) as consumer:
        consumer.subscribe([rig.topic])
        seen = Seen(consumer)
        if start is REFUSED:
            seen.until(lambda: seen.errors and 1 in seen.ends)
            assert seen.errors == [(0, KafkaError._AUTO_OFFSET_RESET)]
            assert seen.offsets == {1: list(range(COMMITTED, RECORDS))}
        else:
            seen.until(lambda: seen.ends == {0, 1})
            rig.produce(0)
            rig.produce(1)
            seen.until(lambda: all(seen.offsets.get(one, [-1])[-1] == RECORDS for one in (0, 1)))
            assert seen.errors == []
            assert seen.offsets == {
                0: list(range(start, RECORDS + 1)), 1: list(range(COMMITTED, RECORDS + 1)),
            }  # fmt: skip
    # With everything, some rows need no lookup of the kind that fails.
    assert EVERYTHING or not faults or any(one.hits for one in faults)


@pytest.mark.parametrize(
    ("strategy", "nearest", "is_read_from_start", "protocol", "fault"), growth_cases()
)
def test_a_partition_added_while_the_group_consumes(
    clean: BrokerUnderTest,
    strategy: str,
    nearest: bool,
    is_read_from_start: bool,
    protocol: str,
    fault: str,
) -> None:
    """Lookups do not know the new partition at first: librdkafka keeps metadata for minutes.

    In the classic protocol the member itself has to notice the growth.
    """
    rig = Rig(clean, partitions=1)
    rig.commit({0: COMMITTED})
    reset = {"auto.offset.reset": strategy}
    notice = {} if protocol == "consumer" else {"topic.metadata.refresh.interval.ms": "400"}
    with rig.consumer(reset, NEAREST if nearest else {}, PROTOCOLS[protocol], notice) as consumer:
        consumer.subscribe([rig.topic])
        seen = Seen(consumer)
        seen.until(lambda: 0 in seen.ends)
        consumer.commit(asynchronous=False)
        for one in FAULTS[fault]:
            rig.add_fault(one)
        rig.grow(2)
        rig.produce(1, 3)
        seen.until(lambda: 1 in seen.ends)
        check_last_records(rig, seen, is_read_from_start)


@pytest.mark.skipif(not EVERYTHING, reason="waits for the refresh of metadata, five minutes")
def test_partitions_are_added_while_settings_have_their_defaults(clean: BrokerUnderTest) -> None:
    """Every row over every protocol side by side; members of the classic ones notice it late."""
    grown = list[tuple[Rig, Seen, bool]]()
    with ExitStack() as stack:
        for (strategy, nearest, is_read_from_start), protocol in product(GROWTHS, PROTOCOLS):
            rig = Rig(clean, partitions=1)
            rig.commit({0: COMMITTED})
            reset = {"auto.offset.reset": strategy}
            member = rig.consumer(reset, NEAREST if nearest else {}, PROTOCOLS[protocol])
            consumer = stack.enter_context(member)
            consumer.subscribe([rig.topic])
            ends = (seen := Seen(consumer)).ends
            seen.until(partial(ends.__contains__, 0))
            consumer.commit(asynchronous=False)
            rig.grow(2)
            rig.produce(1, 3)
            grown.append((rig, seen, is_read_from_start))
        began = time.monotonic()
        while not all(1 in seen.ends for _, seen, _ in grown):
            late = [vars(seen) for _, seen, _ in grown if 1 not in seen.ends]
            assert time.monotonic() < began + REFRESH_SECONDS + SECONDS_MAX, late
            for _, seen, _ in grown:
                seen.poll(0.01)
        for one in grown:
            check_last_records(*one)


def check_last_records(rig: Rig, seen: Seen, is_read_from_start: bool) -> None:
    """Produce a last record to each partition, and require the offsets that the row has."""
    rig.produce(0)
    rig.produce(1)
    seen.until(partial(_has_ends, seen))
    assert seen.errors == []
    assert seen.offsets == {
        0: list(range(COMMITTED, RECORDS + 1)),
        1: list(range(0 if is_read_from_start else 3, 4)),
    }


def _has_ends(seen: Seen) -> bool:
    return all(seen.offsets.get(one, [-1])[-1] == end for one, end in ENDS.items())


def test_the_ends_of_a_log_are_those_of_sound_responses(clean: BrokerUnderTest) -> None:
    """librdkafka's own lookup returned (10, 10) in 3 of 100 calls of which one response failed."""
    rig = Rig(clean, partitions=1)
    rig.drop_below(LOG_START)
    place = TopicPartition(rig.topic, 0)
    clean.faults.add(
        api="ListOffsets", topic=rig.topic, error="NOT_LEADER_OR_FOLLOWER", probability=0.5
    )
    failures, found = set[int](), set[tuple[int, int]]()
    with rig.consumer() as consumer:
        for _ in range(LOOKUPS):
            try:
                found.add(watermark_offsets(consumer, place, SECONDS_MAX))
            except KafkaException as error:
                failures.add(error.args[0].code())
    assert found == {(LOG_START, RECORDS)}
    assert failures == {KafkaError.NOT_LEADER_FOR_PARTITION}


def test_an_error_that_does_not_pass_is_returned_once_and_retried(clean: BrokerUnderTest) -> None:
    rig = Rig(clean)
    refused = clean.faults.add(
        api="OffsetFetch", group=rig.group, error="GROUP_AUTHORIZATION_FAILED"
    )
    with rig.consumer({"auto.offset.reset": "earliest_on_start"}) as consumer:
        consumer.subscribe([rig.topic])
        seen = Seen(consumer)
        seen.until(lambda: len(seen.errors) >= 2 and refused.hits > 3)
        failed = KafkaError.GROUP_AUTHORIZATION_FAILED
        assert sorted(seen.errors) == [(0, failed), (1, failed)]
        assert seen.offsets == {}
        refused.remove()
        seen.until(lambda: seen.ends == {0, 1})
        assert seen.offsets == {0: list(range(RECORDS)), 1: list(range(RECORDS))}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_seek_and_pause_of_a_partition_whose_start_is_not_known(
    clean: BrokerUnderTest, protocol: str
) -> None:
    rig = Rig(clean)
    refused = clean.faults.add(api="OffsetFetch", group=rig.group, error="NOT_COORDINATOR")
    with rig.consumer({"auto.offset.reset": "earliest_on_start"}, PROTOCOLS[protocol]) as consumer:
        consumer.subscribe([rig.topic])
        seen = Seen(consumer)
        seen.until(consumer.assignment)
        consumer.seek(TopicPartition(rig.topic, 0, 8))
        consumer.pause([TopicPartition(rig.topic, 1)])
        hits = refused.hits
        seen.until(lambda: refused.hits > hits + 2)
        assert (seen.errors, seen.offsets.get(1)) == ([], None)
        refused.remove()
        seen.until(lambda: 0 in seen.ends)
        assert seen.offsets == {0: [8, 9]}, "partition 1 stays paused"
        consumer.resume([TopicPartition(rig.topic, 1)])
        seen.until(lambda: 1 in seen.ends)
        assert seen.offsets == {0: [8, 9], 1: list(range(RECORDS))}


def test_a_refused_position_is_read_after_a_seek(clean: BrokerUnderTest) -> None:
    rig = Rig(clean)
    with rig.consumer({"auto.offset.reset": "none"}, NEAREST) as consumer:
        consumer.subscribe([rig.topic])
        seen = Seen(consumer)
        seen.until(lambda: len(seen.errors) == 2)
        consumer.seek(TopicPartition(rig.topic, 1, 9))
        seen.until(lambda: 1 in seen.ends)
        assert seen.offsets == {1: [9]}


def test_the_commit_of_a_new_groups_start_is_repeated(clean: BrokerUnderTest) -> None:
    """Otherwise a member that joins after a crash would take itself for the first of the group."""
    rig = Rig(clean)
    failing = clean.faults.add(
        api="OffsetCommit", group=rig.group, error="INVALID_COMMIT_OFFSET_SIZE", times=2
    )
    settings = {"auto.offset.reset": "safe_latest", "enable.auto.commit": "false"}
    with rig.consumer(settings) as consumer:
        consumer.subscribe([rig.topic])
        seen = Seen(consumer)
        asked = [TopicPartition(rig.topic, number) for number in (0, 1)]
        seen.until(
            lambda: (
                failing.hits == 2
                and [one.offset for one in consumer.committed(asked, SECONDS_MAX)] == [RECORDS] * 2
            )
        )
        assert seen.errors == []


@pytest.mark.usefixtures("waits")
def test_a_broker_that_restarts_during_the_lookup(tmp_path: Path) -> None:
    with headrace.Broker(tmp_path) as first:
        servers = first.bootstrap_servers
        settings = {"bootstrap.servers": servers, "group.id": "g", **WAITS}
        producer = Producer({"bootstrap.servers": servers})
        for number in range(RECORDS):
            producer.produce("readings", str(number))
        assert producer.flush(SECONDS_MAX) == 0
        stock = Consumer(settings)
        stock.commit(offsets=[TopicPartition("readings", 0, COMMITTED)], asynchronous=False)
        stock.close()
    consumer = headrace.Consumer({**settings, "auto.offset.reset": "earliest_on_start"})
    with ExitStack() as closing:
        closing.callback(consumer.close)
        consumer.assign([TopicPartition("readings", 0)])  # nobody answers: the partition is held
        assert consumer.poll(0.1) is None
        with headrace.Broker(tmp_path, port=int(servers.rpartition(":")[2])):
            seen = Seen(consumer)
            seen.until(lambda: len(seen.offsets.get(0, [])) >= RECORDS - COMMITTED)
            assert seen.offsets == {0: list(range(COMMITTED, RECORDS))}
            closing.close()  # while its last commit can be answered


def test_one_long_poll_retries_a_lookup_that_failed_during_it(clean: BrokerUnderTest) -> None:
    """librdkafka calls `on_assign` inside the wait, and waits on."""
    rig = Rig(clean)
    rig.commit({0: COMMITTED})
    rig.add_fault({"api": "OffsetFetch", "error": "NOT_COORDINATOR", "times": 2})
    with rig.consumer({"auto.offset.reset": "latest_on_start"}, NEAREST) as consumer:
        consumer.subscribe([rig.topic])
        message = consumer.poll(SECONDS_MAX / 4)
        assert message is not None
        assert message.error() is None


def test_a_refusal_does_not_commit_a_record_that_was_not_returned(clean: BrokerUnderTest) -> None:
    """The application closes at the error, as many do; librdkafka commits what it stored."""
    rig = Rig(clean)
    rig.commit({1: COMMITTED})
    seen = list[int]()
    with rig.consumer({"auto.offset.reset": "none"}, NEAREST) as consumer:
        consumer.subscribe([rig.topic])
        while True:
            message = consumer.poll(SECONDS_MAX)
            assert message is not None
            if message.error() is not None:
                break
            seen.append(message.offset() or 0)
    asked = [TopicPartition(rig.topic, 1)]
    with rig.consumer() as consumer:
        [committed] = consumer.committed(asked, SECONDS_MAX)
    assert committed.offset == COMMITTED + len(seen)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("api", "error", "is_returned"),
    [
        ("ListOffsets", "LEADER_NOT_AVAILABLE", False),
        ("OffsetFetch", "TOPIC_AUTHORIZATION_FAILED", True),
    ],
)
def test_partitions_of_other_topics_are_read_while_a_lookup_fails(
    clean: BrokerUnderTest, protocol: str, api: str, error: str, is_returned: bool
) -> None:
    failing, sound = Rig(clean), Rig(clean)
    fault = clean.faults.add(api=api, topic=failing.topic, error=error)
    offsets: dict[str, dict[int, list[int]]] = {failing.topic: {}, sound.topic: {}}
    errors = set[tuple[str | None, int | None, int]]()

    def read_until(consumer: headrace.Consumer, topic: str) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        while offsets[topic] != {0: list(range(RECORDS)), 1: list(range(RECORDS))}:
            assert time.monotonic() < deadline, (offsets, errors)
            message = consumer.poll(0.1)
            if message is None:
                continue
            failure, name, partition = message.error(), message.topic(), message.partition()
            if failure is None:
                assert name is not None
                assert partition is not None
                offsets[name].setdefault(partition, []).append(message.offset() or 0)
            elif failure.code() != KafkaError._PARTITION_EOF:
                errors.add((name, partition, failure.code()))

    with sound.consumer({"auto.offset.reset": "earliest_on_start"}, PROTOCOLS[protocol]) as both:
        both.subscribe([failing.topic, sound.topic])
        read_until(both, sound.topic)
        assert offsets[failing.topic] == {}
        fault.remove()
        read_until(both, failing.topic)
    refused = KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert errors <= {(failing.topic, partition, refused) for partition in (0, 1)}
    assert is_returned or not errors


def test_a_position_outside_the_log_is_decided_while_the_end_of_another_is_unknown(
    clean: BrokerUnderTest,
) -> None:
    failing, sound = Rig(clean, partitions=1), Rig(clean, partitions=1)
    with sound.consumer({"auto.offset.reset": "none"}, NEAREST) as consumer:
        fault = clean.faults.add(
            api="ListOffsets", topic=failing.topic, error="LEADER_NOT_AVAILABLE"
        )
        consumer.assign([TopicPartition(failing.topic, 0, ABOVE)])
        deadline = time.monotonic() + SECONDS_MAX
        while not fault.hits:
            assert time.monotonic() < deadline
            assert consumer.poll(0.1) is None
        consumer.incremental_assign([TopicPartition(sound.topic, 0, ABOVE)])
        while (message := consumer.poll(0.1)) is None:
            assert time.monotonic() < deadline
        error = message.error()
        assert error is not None
        assert (error.code(), message.topic()) == (KafkaError._PARTITION_EOF, sound.topic)


def test_a_partition_stays_held_if_librdkafka_does_not_assign_it(
    clean: BrokerUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(clean, partitions=1)
    rig.add_fault({"api": "OffsetFetch", "error": "NOT_COORDINATOR", "times": 2})
    with rig.consumer({"auto.offset.reset": "earliest_on_start"}) as consumer:
        consumer.assign([TopicPartition(rig.topic, 0)])
        with monkeypatch.context() as patch:

            def failing(*_: object) -> None:
                raise KafkaException(KafkaError(KafkaError._STATE))

            patch.setattr(marking.MarkingConsumer, "assign", failing, raising=False)
            with pytest.raises(KafkaException):
                consumer.poll(SECONDS_MAX)
        seen = Seen(consumer)
        seen.until(lambda: 0 in seen.ends)
        assert seen.offsets == {0: list(range(RECORDS))}


class Waits:
    """Lookups that fail until `lets_wait` is called, and then wait until `answered` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.answered, self.is_waiting, self._waits = Event(), Event(), Event()
        stock = getattr(module, name)

        def lookup(*arguments: Any) -> Any:
            if self._waits.is_set():
                self.is_waiting.set()
                if self.answered.wait(SECONDS_MAX):
                    return stock(*arguments)
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

        monkeypatch.setattr(module, name, lookup)

    def lets_wait(self, seen: Seen) -> None:
        self._waits.set()
        seen.until(self.is_waiting.is_set)


@pytest.mark.parametrize(
    ("lookup", "position"), [("offsets_at", None), ("watermark_offsets", BELOW)]
)
def test_other_partitions_are_read_while_a_lookup_waits(
    clean: BrokerUnderTest, monkeypatch: pytest.MonkeyPatch, lookup: str, position: int | None
) -> None:
    waits = Waits(monkeypatch, lookup)
    rig = Rig(clean)
    rig.drop_below(LOG_START)
    rig.commit({1: COMMITTED} | ({} if position is None else {0: position}))
    with rig.consumer({"auto.offset.reset": "earliest_on_start"}, NEAREST) as consumer:
        consumer.subscribe([rig.topic])
        seen = Seen(consumer)
        seen.until(lambda: 1 in seen.ends)
        waits.lets_wait(seen)
        rig.produce(1)
        seen.until(lambda: seen.offsets[1][-1] == RECORDS)
        assert not waits.answered.is_set()
        assert 0 not in seen.offsets
        waits.answered.set()
        seen.until(lambda: 0 in seen.ends)
        assert seen.errors == []
        assert seen.offsets == {
            0: list(range(LOG_START, RECORDS)), 1: list(range(COMMITTED, RECORDS + 1)),
        }  # fmt: skip


def test_a_lookup_has_no_effect_after_the_application_has_sought(
    clean: BrokerUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = Waits(monkeypatch, "offsets_at")
    rig = Rig(clean, partitions=1)
    with rig.consumer({"auto.offset.reset": "earliest_on_start"}) as consumer:
        consumer.assign([TopicPartition(rig.topic, 0)])
        seen = Seen(consumer)
        waits.lets_wait(seen)
        consumer.seek(TopicPartition(rig.topic, 0, COMMITTED))
        waits.answered.set()
        seen.until(lambda: 0 in seen.ends)
    assert seen.offsets == {0: list(range(COMMITTED, RECORDS))}


def test_a_consumer_that_looks_up_may_be_closed_twice(
    clean: BrokerUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = Waits(monkeypatch, "offsets_at")
    rig = Rig(clean, partitions=1)
    with rig.consumer({"auto.offset.reset": "earliest_on_start"}) as consumer:
        consumer.assign([TopicPartition(rig.topic, 0)])
        waits.lets_wait(Seen(consumer))
        consumer.close()
    waits.answered.set()
    consumer.close()


def test_a_failed_assignment_keeps_the_records_of_the_same_poll(
    clean: BrokerUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = Waits(monkeypatch, "offsets_at")
    rig = Rig(clean)
    rig.commit({1: COMMITTED})
    failures = list[object]()

    def at_once(work: Callable[[], Any]) -> "Future[Any]":
        result = Future[Any]()
        result.set_result(work())
        return result

    def failing(*_: object) -> None:
        failures.append(None)
        raise KafkaException(KafkaError(KafkaError._STATE))

    with rig.consumer({"auto.offset.reset": "earliest_on_start"}) as consumer:
        consumer.assign([TopicPartition(rig.topic, one) for one in (0, 1)])
        seen = Seen(consumer)
        seen.until(lambda: 1 in seen.ends)
        waits.lets_wait(seen)
        with monkeypatch.context() as patch:
            patch.setattr(consumer, "_in_thread", at_once)  # so that each poll has a result
            patch.setattr(marking.MarkingConsumer, "assign", failing, raising=False)
            waits.answered.set()
            rig.produce(1)
            while not failures or seen.offsets[1][-1] != RECORDS:
                with suppress(KafkaException):
                    seen.until(lambda: failures and seen.offsets[1][-1] == RECORDS)
        seen.until(lambda: 0 in seen.ends)
    assert seen.offsets == {0: list(range(RECORDS)), 1: list(range(COMMITTED, RECORDS + 1))}


def test_a_start_position_is_not_committed_over_the_commit_of_another_member(
    clean: BrokerUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partition was revoked meanwhile and is assigned again before the commit is repeated."""
    monkeypatch.setattr(marking, "_KEEP_AGAIN_S", SECONDS_MAX)
    rig = Rig(clean, partitions=1)
    failing = clean.faults.add(
        api="OffsetCommit", group=rig.group, error="INVALID_COMMIT_OFFSET_SIZE", times=1
    )
    settings = {"auto.offset.reset": "safe_latest", "enable.auto.commit": "false"}
    with rig.consumer(settings) as consumer:
        consumer.subscribe([rig.topic])
        seen = Seen(consumer)
        seen.until(lambda: failing.hits and 0 in seen.ends)
        consumer.unsubscribe()
        rig.produce(0, 3)
        seen.until(lambda: not consumer.assignment() and is_committed(rig, {0: RECORDS + 3}))
        seen.ends.clear()
        consumer.subscribe(
            [rig.topic], on_assign=lambda *_: monkeypatch.setattr(consumer, "_keep_at", 0.0)
        )
        seen.until(lambda: 0 in seen.ends)
        assert seen.offsets == {}
    with rig.consumer() as consumer:
        [one] = consumer.committed([TopicPartition(rig.topic, 0)], SECONDS_MAX)
    assert one.offset == RECORDS + 3


def is_committed(rig: Rig, offsets: Mapping[int, int]) -> bool:
    """Commit from outside the group. Returns: whether the group has no members any more."""
    try:
        rig.commit(offsets)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.UNKNOWN_MEMBER_ID:
            raise
        return False
    return True
