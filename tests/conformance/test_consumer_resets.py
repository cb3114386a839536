"""`headrace.Consumer` on Headrace and on a live Apache Kafka: where it starts. KIP-842."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count

import pytest
from confluent_kafka import Consumer as StockConsumer
from confluent_kafka import KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

import headrace
from brokers import BROKERS, prepared

SECONDS_MAX = 60.0
TELLS_ENDS = {"enable.partition.eof": "true"}
_NUMBERS = count()
_OF_ONE = {
    "offsets.topic.replication.factor": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.check.interval.ms": "1000",
}


class Rig:
    """A topic with two partitions, and a group that nobody has heard of."""

    def __init__(self, servers: str) -> None:
        number = next(_NUMBERS)
        self.servers = servers
        self.topic, self.group = f"readings-{number}", f"meters-{number}"
        self.admin = AdminClient({"bootstrap.servers": servers})
        self.admin.create_topics([NewTopic(self.topic, 2)])[self.topic].result()

    def produce(self, *values: str, partition: int = 0) -> None:
        producer, told = Producer({"bootstrap.servers": self.servers}), list[KafkaError | None]()

        def note(error: KafkaError | None, _: Message) -> None:
            told.append(error)

        for value in values:
            producer.produce(self.topic, value, partition=partition, on_delivery=note)
        assert producer.flush(SECONDS_MAX) == 0
        assert told == [None] * len(values)

    def grow(self, partitions: int) -> None:
        """Add partitions, and return when producers can know of them: Kafka answers earlier."""
        self.admin.create_partitions([NewPartitions(self.topic, partitions)])[self.topic].result()
        deadline = time.monotonic() + SECONDS_MAX
        while self._count() < partitions:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def _count(self) -> int:
        return len(self.admin.list_topics(self.topic, SECONDS_MAX).topics[self.topic].partitions)

    def drop_below(self, offset: int, partition: int = 0) -> None:
        wanted = TopicPartition(self.topic, partition, offset)
        for done in self.admin.delete_records([wanted]).values():
            done.result()

    def commit(self, offset: int, partition: int = 0) -> None:
        stock = StockConsumer({"bootstrap.servers": self.servers, "group.id": self.group})
        where = TopicPartition(self.topic, partition, offset)
        stock.commit(offsets=[where], asynchronous=False)
        stock.close()

    def consumer(self, **settings: str) -> headrace.Consumer:
        return headrace.Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": self.group,
                "topic.metadata.refresh.interval.ms": 200,
                "fetch.wait.max.ms": 20,  # an empty partition holds up no other one
                "fetch.error.backoff.ms": 20,
                **{name.replace("_", "."): value for name, value in settings.items()},
            }
        )

    def subscribed(self, **settings: str) -> headrace.Consumer:
        """A consumer that has its first assignment, and nothing read."""
        consumer, assigned = self.consumer(**settings), threading.Event()
        consumer.subscribe([self.topic], on_assign=lambda _, __: assigned.set())
        read = [one for one in iter_until(consumer, assigned.is_set) if one is not None]
        assert not read, "it reads before it is told"
        return consumer


def iter_until(
    consumer: headrace.Consumer, condition: Callable[[], object]
) -> Iterator[Message | None]:
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        yield consumer.poll(0.05)


def value_of(message: Message) -> str:
    value = message.value()
    assert value is not None
    return value.decode()


def is_end(message: Message) -> bool:
    """Whether it tells of an end that was reached, which `TELLS_ENDS` asks for."""
    error = message.error()
    return error is not None and error.code() == KafkaError._PARTITION_EOF


def until_at_the_end(consumer: headrace.Consumer, *partitions: int) -> None:
    """Until it reads these partitions from their ends on, with no record before."""
    left = set(partitions)
    for message in iter_until(consumer, lambda: not left):
        if message is not None:
            assert is_end(message), message.value()
            left.discard(message.partition() or 0)


def read(consumer: headrace.Consumer, wanted: int) -> list[str]:
    """The values of so many records."""
    found: list[str] = []
    for message in iter_until(consumer, lambda: len(found) >= wanted):
        if message is not None and not is_end(message):
            assert message.error() is None, message.error()
            found.append(value_of(message))
    return sorted(found)


def refused(consumer: headrace.Consumer) -> KafkaError:
    """The error that the application is told."""
    told: list[KafkaError] = []
    for message in iter_until(consumer, lambda: told):
        if message is not None:
            error = message.error()
            assert error is not None, message.value()
            told.append(error)
    return told[0]


@pytest.fixture(scope="module", params=["headrace", "kafka"])
def servers(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "kafka":
        request.getfixturevalue("has_java")
    with prepared(BROKERS[request.param]) as broker:
        broker.launch(_OF_ONE if request.param == "kafka" else None)
        yield broker.servers
        broker.stop()


@pytest.fixture
def rig(servers: str) -> Rig:
    return Rig(servers)


@pytest.mark.parametrize(
    ("strategy", "first"),
    [
        ("earliest", ["new", "old"]),
        ("earliest_on_start", ["new", "old"]),
        ("latest", ["new"]),
        ("latest_on_start", ["new"]),
        ("safe_latest", ["new"]),
    ],
)
def test_a_new_group_starts_where_its_strategy_says(
    rig: Rig, strategy: str, first: list[str]
) -> None:
    rig.produce("old")
    more = TELLS_ENDS if strategy == "latest" else {}
    with rig.consumer(auto_offset_reset=strategy, **more) as consumer:
        consumer.subscribe([rig.topic])
        if strategy == "latest":  # librdkafka looks for the end by itself, after the assignment
            until_at_the_end(consumer, 0, 1)
        elif "latest" in strategy:
            list(iter_until(consumer, consumer.assignment))
        rig.produce("new")
        assert read(consumer, len(first)) == first


def test_without_a_strategy_a_new_group_is_refused(rig: Rig) -> None:
    with rig.consumer(auto_offset_reset="none") as consumer:
        consumer.subscribe([rig.topic])
        assert refused(consumer).code() == KafkaError._AUTO_OFFSET_RESET


def test_a_partition_added_while_the_group_consumes_is_read_from_its_start(rig: Rig) -> None:
    rig.produce("old")
    with rig.subscribed(auto_offset_reset="safe_latest") as consumer:
        rig.grow(3)
        rig.produce("first of the new partition", "second", partition=2)
        assert read(consumer, 2) == ["first of the new partition", "second"]


def test_latest_loses_what_safe_latest_keeps(rig: Rig) -> None:
    """So that the test above can fail: the same with the stock strategy."""
    with rig.subscribed(auto_offset_reset="latest") as consumer:
        rig.grow(3)
        rig.produce("first of the new partition", partition=2)
        deadline = time.monotonic() + SECONDS_MAX
        while len(consumer.assignment()) < 3:
            assert time.monotonic() < deadline
            assert consumer.poll(0.05) is None
        found: list[str] = []
        while not found:
            rig.produce("later", partition=2)
            message = consumer.poll(0.5)
            found += [value_of(message)] if message is not None else []
        assert found == ["later"]


def test_a_partition_added_while_nobody_consumes_is_read_from_its_start(rig: Rig) -> None:
    """When the group started outlives its members."""
    rig.produce("old")
    rig.subscribed(auto_offset_reset="safe_latest").close()
    rig.grow(3)
    rig.produce("meanwhile", partition=2)
    with rig.consumer(auto_offset_reset="safe_latest") as consumer:
        consumer.subscribe([rig.topic])
        assert read(consumer, 1) == ["meanwhile"]
        told = consumer.committed([TopicPartition(rig.topic, 0)], SECONDS_MAX)[0]
        assert told.offset == 1
        assert not told.metadata, "the mark is not the application's"


def test_a_group_of_a_stock_consumer_goes_on_from_its_offsets(rig: Rig) -> None:
    rig.produce("seen", "not seen")
    rig.commit(1)
    with rig.consumer(auto_offset_reset="safe_latest") as consumer:
        consumer.subscribe([rig.topic])
        assert read(consumer, 1) == ["not seen"]
        rig.grow(3)
        rig.produce("new", partition=2)
        assert read(consumer, 1) == ["new"]


@pytest.mark.parametrize("auxiliary", ["none", "nearest"])
@pytest.mark.parametrize(
    ("strategy", "under", "over"),
    [
        ("none", None, None),
        ("earliest", "earliest", "earliest"),
        ("latest", "latest", "latest"),
        ("earliest_on_start", None, None),
        ("latest_on_start", None, None),
        ("safe_latest", "latest", "latest"),
    ],
)
@pytest.mark.parametrize("position", [1, 50])
def test_a_position_outside_the_log(
    rig: Rig, position: int, strategy: str, under: str | None, over: str | None, auxiliary: str
) -> None:
    rig.produce("a", "b", "c", "d")
    rig.drop_below(2)
    rig.commit(position)
    wanted = under if position < 2 else over
    if auxiliary == "nearest":
        wanted = "earliest" if position < 2 else "latest"
    settings = {
        "auto.offset.reset": strategy,
        "offset.reset.strategy.offset-out-of-range": auxiliary,
    }
    with rig.consumer(**settings) as consumer:
        consumer.assign([TopicPartition(rig.topic, 0)])
        if wanted is None:
            assert refused(consumer).code() == KafkaError._AUTO_OFFSET_RESET
        elif wanted == "earliest":
            assert read(consumer, 2) == ["c", "d"]
        else:
            found: list[str] = []
            while not found:
                rig.produce("e")
                message = consumer.poll(0.5)
                found += [value_of(message)] if message is not None else []
            assert found == ["e"]


def test_other_partitions_go_on_and_paused_ones_stay_paused(rig: Rig) -> None:
    rig.produce("a", "b", partition=0)
    rig.produce("c", "d", partition=1)
    settings = {
        "auto.offset.reset": "earliest",
        "offset.reset.strategy.offset-out-of-range": "nearest",
        **TELLS_ENDS,
    }
    with rig.consumer(**settings) as consumer:
        consumer.assign([TopicPartition(rig.topic, 0, 99), TopicPartition(rig.topic, 1, 1)])
        consumer.pause([TopicPartition(rig.topic, 1)])
        until_at_the_end(consumer, 0)
        for value in "efg":  # each of these fetches would have brought partition 1
            rig.produce(value, partition=0)
            assert read(consumer, 1) == [value]
        consumer.resume([TopicPartition(rig.topic, 1)])
        assert read(consumer, 1) == ["d"]


class Crew:
    """Members of one group that come and go, and what they have read together."""

    def __init__(self, rig: Rig, dice: random.Random, **settings: str) -> None:
        self.got: set[str] = set()
        self._rig, self._dice, self._settings = rig, dice, settings
        self._members = [rig.subscribed(**settings)]

    def work(self) -> None:
        for member in self._members:
            read = [one for one in member.consume(100, 0.02) if one.error() is None]
            self.got |= {value_of(one) for one in read}

    def change(self) -> None:
        """Sometimes somebody comes or goes; never the last."""
        if self._dice.random() < 0.02 and len(self._members) < 3:
            self._members.append(self._rig.consumer(**self._settings))
            self._members[-1].subscribe([self._rig.topic])
        elif self._dice.random() < 0.02 and len(self._members) > 1:
            self._members.pop(self._dice.randrange(len(self._members))).close()

    def close(self) -> None:
        for member in self._members:
            member.close()


class Load(threading.Thread):
    """Records to a topic that grows to eight partitions."""

    def __init__(self, rig: Rig, dice: random.Random) -> None:
        super().__init__()
        self.sent: set[str] = set()
        self._rig, self._dice = rig, dice
        self._stopped = threading.Event()
        self.start()

    def run(self) -> None:
        partitions, numbers = 2, count()
        while not self._stopped.wait(0.02):
            if partitions < 8 and self._dice.random() < 0.1:
                partitions += 1
                self._rig.grow(partitions)
            values = [f"{next(numbers)}" for _ in range(5)]
            self._rig.produce(*values, partition=self._dice.randrange(partitions))
            self.sent.update(values)

    def stop(self) -> None:
        self._stopped.set()
        self.join()


@pytest.mark.parametrize("protocol", ["range", "cooperative-sticky"])
def test_growth_under_load_loses_nothing(rig: Rig, protocol: str) -> None:
    """Partitions are added, members come and go, records come all the time."""
    dice = random.Random(protocol)
    settings = {"auto.offset.reset": "safe_latest", "partition.assignment.strategy": protocol}
    crew, load = Crew(rig, dice, **settings), Load(rig, dice)
    try:
        stop = time.monotonic() + 10
        while time.monotonic() < stop:
            crew.work()
            crew.change()
        load.stop()
        deadline = time.monotonic() + SECONDS_MAX
        while load.sent - crew.got and time.monotonic() < deadline:
            crew.work()
    finally:
        load.stop()
        crew.close()
    assert load.sent
    assert not load.sent - crew.got


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("auto.offset.reset", "nearest"),
        ("auto.offset.reset", "safe-latest"),
        ("offset.reset.strategy.offset-out-of-range", "earliest"),
    ],
)
def test_what_is_no_value_is_refused_with_those_there_are(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is '{value}'; it is one of none, "):
        headrace.Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", name: value})
