"""`headrace.Consumer` beside the tables of KIP-842: marks, refusals, and what is around a move."""

import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_INVALID,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

import headrace
from headrace.client import consumer as module
from headrace.client.admin import create_topic
from headrace.client.connection import Cluster
from headrace.client.group_offsets import list_group_offsets
from headrace.client.group_start import started
from headrace.client.positions import watermark_offsets, were_added
from headrace.client.topics import delete_records
from headrace.core.types import WallMs

SECONDS_MAX = 60.0
REFUSING = {"auto.offset.reset": "earliest_on_start"}
NEAREST = {
    "auto.offset.reset": "earliest",
    "offset.reset.strategy.offset-out-of-range": "nearest",
}
SAFE = {"auto.offset.reset": "safe_latest"}
_NUMBERS = count()


class Rig:
    """A topic with two partitions of two records each, and a group of its own."""

    def __init__(self, real: Cluster, running: headrace.Broker) -> None:
        number = next(_NUMBERS)
        self.topic, self.group = f"readings-{number}", f"meters-{number}"
        self.servers, self.cluster = running.bootstrap_servers, real
        create_topic(real, self.topic, 2)
        self.produce(self.topic, "a", "b")
        self.produce(self.topic, "c", "d", partition=1)

    def produce(self, topic: str, *values: str, partition: int = 0) -> None:
        producer = Producer({"bootstrap.servers": self.servers})
        for value in values:
            producer.produce(topic, value, partition=partition)
        assert producer.flush(SECONDS_MAX) == 0

    def consumer(self, settings: dict[str, str], **more: str) -> headrace.Consumer:
        own = {"bootstrap.servers": self.servers, "group.id": self.group}
        return headrace.Consumer({**own, **settings}, **more)

    def place(self, partition: int, offset: int = OFFSET_INVALID) -> TopicPartition:
        return TopicPartition(self.topic, partition, offset)

    def marks(self) -> list[str]:
        """The metadata of the group's offsets, without the C end of it."""
        found = list_group_offsets(self.cluster, self.group)
        return [(one.metadata or "").rstrip("\0") for one in found.values()]


@pytest.fixture
def rig(real: Cluster, running: headrace.Broker) -> Rig:
    return Rig(real, running)


def told(ask: Callable[[], list[Message]], wanted: int) -> list[Message]:
    found: list[Message] = []
    deadline = time.monotonic() + SECONDS_MAX
    while len(found) < wanted:
        assert time.monotonic() < deadline, f"waited in vain: {found}"
        found += ask()
    return found


def polling(consumer: headrace.Consumer) -> Callable[[], list[Message]]:
    return lambda: [one for one in [consumer.poll(0.1)] if one is not None]


def until_moved(consumer: headrace.Consumer, caplog: pytest.LogCaptureFixture) -> list[Message]:
    """What is read until a position outside the log was moved."""
    found: list[Message] = []
    deadline = time.monotonic() + SECONDS_MAX
    while "is outside the log" not in caplog.text:
        assert time.monotonic() < deadline, "it was not moved"
        found += polling(consumer)()
    return found


def seek_when_started(consumer: headrace.Consumer, place: TopicPartition) -> None:
    """Seek once librdkafka has started the partition, without reading records meanwhile."""
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        try:
            consumer.seek(place)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._STATE or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def values(messages: list[Message]) -> list[str]:
    assert not [one.error() for one in messages if one.error() is not None]
    return [(one.value() or b"").decode() for one in messages]


def errors(messages: list[Message]) -> list[int]:
    """The partitions of the positions that are refused."""
    told = [one.error() for one in messages]
    assert {one and one.code() for one in told} == {KafkaError._AUTO_OFFSET_RESET}
    return sorted(one.partition() or 0 for one in messages)


@pytest.fixture
def no_ends(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """So many looks for the ends of a log fail as those to a broker that is away; none at first."""
    left = [0]

    def failing(*args: Any) -> tuple[int, int]:
        if left[0]:
            left[0] -= 1
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        return watermark_offsets(*args)

    monkeypatch.setattr(module, "watermark_offsets", failing)
    monkeypatch.setattr(module, "_BACKOFF_S_MAX", 0.5)
    return left


@pytest.mark.parametrize("way", ["poll", "consume"])
def test_each_position_that_is_refused_is_told(rig: Rig, no_ends: list[int], way: str) -> None:
    """Also when several are decided on at once, because the log's ends could not be asked for."""
    no_ends[0] = 4
    with rig.consumer(REFUSING) as consumer:
        consumer.assign([rig.place(0, 99), rig.place(1, 99)])
        ask = polling(consumer) if way == "poll" else lambda: consumer.consume(1, 0.1)
        assert errors(told(ask, 2)) == [0, 1]


def test_consume_without_an_end_goes_on_when_the_broker_is_back(
    rig: Rig, no_ends: list[int]
) -> None:
    no_ends[0] = 1
    with rig.consumer(REFUSING) as consumer:
        consumer.assign([rig.place(0, 99)])
        assert errors(consumer.consume(1)) == [0]


def test_a_partition_that_was_given_up_meanwhile_is_left_alone(
    rig: Rig, no_ends: list[int]
) -> None:
    no_ends[0] = 1
    with rig.consumer(NEAREST) as consumer:
        consumer.assign([rig.place(0, 99)])
        deadline = time.monotonic() + SECONDS_MAX
        while no_ends[0]:
            assert time.monotonic() < deadline
            assert consumer.poll(0.1) is None
        consumer.unassign()
        assert consumer.poll(1.5) is None
        assert consumer.assignment() == []


def test_a_partition_assigned_anew_is_not_paused(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    with rig.consumer(NEAREST) as consumer:
        consumer.assign([rig.place(1, 0)])
        consumer.pause([rig.place(1)])
        consumer.assign([rig.place(0, 99), rig.place(1, 0)])
        found = until_moved(consumer, caplog)
        rig.produce(rig.topic, "e")
        rig.produce(rig.topic, "f", partition=1)
        found += told(polling(consumer), 4 - len(found))
        assert sorted(values(found)) == ["c", "d", "e", "f"]


def test_a_place_that_was_sought_is_kept_when_another_partition_is_moved(
    rig: Rig, no_ends: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    no_ends[0] = 1_000
    with rig.consumer(NEAREST) as consumer:
        consumer.assign([rig.place(0, 99), rig.place(1, 0)])
        assert values(told(polling(consumer), 2)) == ["c", "d"]
        consumer.pause([rig.place(1)])
        consumer.seek(rig.place(1, 1))
        no_ends[0] = 0
        assert until_moved(consumer, caplog) == []
        consumer.resume([rig.place(1)])
        assert values(told(polling(consumer), 1)) == ["d"]


def test_nothing_is_skipped_when_librdkafka_loses_the_error_of_a_lookup(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka then returns the end of the log as its start; see `watermark_offsets`."""
    delete_records(rig.cluster, {(rig.topic, 0): 1})

    def lossy(*_: Any, **__: Any) -> tuple[int, int]:
        return 2, 2

    monkeypatch.setattr(headrace.Consumer, "get_watermark_offsets", lossy)
    with rig.consumer(NEAREST) as consumer:
        consumer.assign([rig.place(0, 0)])
        assert values(told(polling(consumer), 1)) == ["b"]


@pytest.mark.parametrize("how", ["positional message", "message", "offsets", "stored", "nothing"])
def test_each_commit_carries_when_the_group_started(rig: Rig, how: str) -> None:
    with rig.consumer(SAFE, **{"enable.auto.commit": "false"}) as consumer:
        consumer.assign([rig.place(0)])
        assert consumer.poll(0) is None
        rig.produce(rig.topic, "e")
        [message] = told(polling(consumer), 1)
        match how:
            case "positional message":
                consumer.commit(message, asynchronous=False)
            case "message":
                consumer.commit(message=message, asynchronous=False)
            case "offsets":
                consumer.commit(offsets=[rig.place(0, 3)], asynchronous=False)
            case "nothing":
                consumer.commit(asynchronous=False)
        assert [one.offset for one in consumer.committed([rig.place(0)], SECONDS_MAX)] == [
            2 if how == "stored" else 3
        ]
    assert started(rig.marks()) is not None


def test_positions_that_the_application_gives_carry_it_too(rig: Rig) -> None:
    """Else the first that it does not give would be taken for the group's first."""
    with rig.consumer(SAFE) as consumer:
        consumer.assign([rig.place(0)])
    before = started(rig.marks())
    with rig.consumer(SAFE, **{"enable.auto.commit": "false"}) as consumer:
        consumer.assign([rig.place(0, 0)])
        [message] = told(polling(consumer), 1)
        consumer.commit(message, asynchronous=False)
    assert before is not None
    assert started(rig.marks()) == before


def test_a_topic_newer_than_the_group_is_read_from_its_start_by_whoever_gets_it(rig: Rig) -> None:
    """Also by a member that has nothing of the topics before it."""
    with rig.consumer(SAFE) as first:
        first.assign([rig.place(0), rig.place(1)])
    later = f"{rig.topic}-later"
    create_topic(rig.cluster, later, 1)
    rig.produce(later, "of the new topic")
    with rig.consumer(SAFE) as second:
        second.assign([TopicPartition(later, 0)])
        assert values(told(polling(second), 1)) == ["of the new topic"]


@pytest.mark.parametrize("value", ["LATEST", "Largest", "Safe_Latest"])
def test_values_are_taken_in_any_case_as_librdkafka_does(rig: Rig, value: str) -> None:
    rig.consumer({"auto.offset.reset": value}).close()


def test_what_cannot_be_meant_is_told_as_confluent_kafka_tells_it(rig: Rig) -> None:
    with rig.consumer(SAFE) as consumer:
        consumer.assign([rig.place(0)])
        with pytest.raises(ValueError, match="expected either message or offsets"):
            consumer.store_offsets()
        assert consumer.consume(0) == []


class Log:
    """The one partition of a topic, which a record comes to after each question about it."""

    def __init__(self, *timestamps: int, coming: int) -> None:
        self._timestamps, self._coming = list(timestamps), coming

    def offsets_for_times(
        self, asked: list[TopicPartition], _: float
    ) -> Iterator[TopicPartition] | list[TopicPartition]:
        [one] = asked
        size = len(self._timestamps)
        match one.offset:
            case -1:
                found = size
            case -2:
                found = 0
            case stamp:
                late = (at for at, told in enumerate(self._timestamps) if told >= stamp)
                found = next(late, -1)
        self._timestamps.append(self._coming)
        return [TopicPartition(one.topic, one.partition, found)]


@pytest.mark.parametrize(
    ("before", "added"), [((), True), ((10,), True), ((9,), False), ((9, 11), False)]
)
def test_a_record_that_comes_while_it_is_asked_makes_no_partition_old(
    before: tuple[int, ...], added: bool
) -> None:
    log: Any = Log(*before, coming=12)
    assert were_added(log, [TopicPartition("t", 0)], WallMs(10), 1.0) == [added]


def test_two_moves_repeat_no_record_of_another_partition(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    """librdkafka assigns all partitions again, and has no position before the next record."""
    with rig.consumer(NEAREST) as consumer:
        consumer.assign([rig.place(0, 0), rig.place(1, 99)])
        found = until_moved(consumer, caplog)
        found += told(polling(consumer), 2 - len(found))
        for _ in range(2):
            caplog.clear()
            seek_when_started(consumer, rig.place(1, 99))
            found += until_moved(consumer, caplog)
        rig.produce(rig.topic, "e")
        found += told(polling(consumer), 1)
        assert values(found) == ["a", "b", "e"]


@pytest.mark.parametrize("is_stored_by_application", [False, True])
@pytest.mark.parametrize("settings", [NEAREST, NEAREST | SAFE])
def test_what_was_read_before_a_move_of_another_partition_is_committed(
    rig: Rig,
    no_ends: list[int],
    caplog: pytest.LogCaptureFixture,
    settings: dict[str, str],
    is_stored_by_application: bool,
) -> None:
    """librdkafka clears the stored offsets of partitions that it assigns again."""
    no_ends[0] = 1_000
    store = {"enable.auto.offset.store": "false"} if is_stored_by_application else {}
    with rig.consumer(settings, **{"enable.auto.commit": "false"}, **store) as consumer:
        consumer.assign([rig.place(0, 99), rig.place(1, 0)])
        messages = told(polling(consumer), 2)
        if is_stored_by_application:
            consumer.store_offsets(messages[-1])
        no_ends[0] = 0
        assert until_moved(consumer, caplog) == []
        [done] = consumer.commit(asynchronous=False) or []
        assert (done.partition, done.offset, done.error) == (1, 2, None)
        [one] = consumer.committed([rig.place(1)], SECONDS_MAX)
        assert one.offset == 2
        with pytest.raises(KafkaException, match="_NO_OFFSET"):
            consumer.commit(asynchronous=False)  # as before: nothing is stored


def test_an_offset_that_the_application_commits_after_a_move_is_the_last(
    rig: Rig, no_ends: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    no_ends[0] = 1_000
    with rig.consumer(NEAREST, **{"enable.auto.commit": "false"}) as consumer:
        consumer.assign([rig.place(0, 99), rig.place(1, 0)])
        assert len(told(polling(consumer), 2)) == 2
        no_ends[0] = 0
        assert until_moved(consumer, caplog) == []
        consumer.commit(offsets=[rig.place(1, 1)], asynchronous=False)
        with pytest.raises(KafkaException, match="_NO_OFFSET"):
            consumer.commit(asynchronous=False)
        [one] = consumer.committed([rig.place(1)], SECONDS_MAX)
        assert one.offset == 1


def test_a_message_with_an_error_is_not_committed(rig: Rig) -> None:
    with rig.consumer(SAFE, **{"enable.partition.eof": "true"}) as consumer:
        consumer.assign([rig.place(0)])
        [end] = told(polling(consumer), 1)
        for store in (lambda: consumer.commit(end), lambda: consumer.store_offsets(end)):
            with pytest.raises(KafkaException, match="message with error"):
                store()
        assert [one.offset for one in consumer.committed([rig.place(0)], SECONDS_MAX)] == [2]
