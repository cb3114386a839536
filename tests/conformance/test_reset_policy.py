"""The reset policy of a group, under unmodified clients with `auto.offset.reset=latest`. KIP-842.

Their metadata age for minutes, so they learn of new partitions from a member that comes later; by
then those have records. Each story is told with the policy, and without, where it has to lose.
"""

import itertools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from tests.java_archives import quick_java

import headrace
from brokers import java

from .policy_readers import Aio, Confluent, Opener, Reader, Readers, java_readers

SECONDS_MAX = 60.0
FEW = 5  # records that a new partition has before anybody can know of it
_STRATEGY, _OUT_OF_RANGE = "auto.offset.reset", "offset.reset.strategy.offset-out-of-range"
_QUICK = {
    "group.consumer.min.session.timeout.ms": 500,
    "group.consumer.min.heartbeat.interval.ms": 50,
    "group.consumer.heartbeat.interval.ms": 200,
}
_CLIENTS = [
    ("confluent", "classic"),
    ("confluent", "consumer"),
    ("aiokafka", "classic"),
    ("java", "classic"),
    ("java", "consumer"),
]
_CLASSIC = [one for one in _CLIENTS if one[1] == "classic"]
_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with headrace.Broker(settings=_QUICK) as broker:
        yield broker.bootstrap_servers


@pytest.fixture(scope="module")
def readers_of(servers: str, request: pytest.FixtureRequest) -> Iterator[Callable[[str], Readers]]:
    """Readers by the name of their client; Java's process starts with its first test."""
    known: dict[str, Readers] = {"confluent": Opener(Confluent), "aiokafka": Opener(Aio)}
    with ExitStack() as stack:

        def find(name: str) -> Readers:
            if name not in known:
                folder: Path = request.getfixturevalue("classes")
                command = java("PolicyReader", servers, options=quick_java(), folder=folder)
                known[name] = stack.enter_context(java_readers(command))
            return known[name]

        yield find


class Story:
    """A topic, its readers, and what was sent and read."""

    def __init__(self, servers: str, readers: Readers, protocol: str) -> None:
        number = next(_NUMBERS)
        self.servers, self.protocol = servers, protocol
        self.topic, self.group = f"orders-{number}-a", f"team-{number}"
        self.pattern = f"^orders-{number}-.*"
        self.admin = AdminClient({"bootstrap.servers": servers})
        self.sent: dict[str, str] = {}  # where each value went
        self.got: set[str] = set()
        self._readers = readers
        self._values = itertools.count()
        self.create(self.topic, 2)

    # ---- administration

    def create(self, topic: str, partitions: int) -> None:
        self.admin.create_topics([NewTopic(topic, partitions)])[topic].result(SECONDS_MAX)

    def grow(self, partitions: int) -> None:
        wanted = [NewPartitions(self.topic, partitions)]
        self.admin.create_partitions(wanted)[self.topic].result(SECONDS_MAX)

    def set_policy(self, **values: str) -> None:
        names = {"strategy": _STRATEGY, "out_of_range": _OUT_OF_RANGE}
        entries = [
            ConfigEntry(names[name], value, incremental_operation=AlterConfigOpType.SET)
            for name, value in values.items()
        ]
        resource = ConfigResource(ResourceType.GROUP, self.group, incremental_configs=entries)
        self.admin.incremental_alter_configs([resource])[resource].result(SECONDS_MAX)

    def places(self, *topics: str) -> set[str]:
        """All partitions of the topics, as readers name them."""
        known = self.admin.list_topics(timeout=SECONDS_MAX).topics
        return {f"{one}-{n}" for one in topics or (self.topic,) for n in known[one].partitions}

    # ---- records

    def produce(self, *places: str, count: int = 1, is_counted: bool = True) -> set[str]:
        """So many records to each place; those that are not `is_counted` may be lost."""
        producer = Producer({"bootstrap.servers": self.servers, "linger.ms": 0})
        values = set()
        for place in places * count:
            topic, _, partition = place.rpartition("-")
            value = f"{place}@{next(self._values)}"
            producer.produce(topic, value, partition=int(partition))
            values.add(value)
            if is_counted:
                self.sent[value] = place
        assert producer.flush(SECONDS_MAX) == 0
        return values

    # ---- readers

    def reader(self, topic: str | None = None) -> Reader:
        return self._readers.open(self.servers, self.group, self.protocol, topic or self.topic)

    def poll(self, *readers: Reader) -> None:
        for reader in readers:
            found = {value for _, value in reader.poll()}
            self.got |= found
            if found:
                reader.commit()

    def until(self, condition: Callable[[], object], *readers: Reader) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        while not condition():
            assert time.monotonic() < deadline, f"waited in vain; {[one.owned for one in readers]}"
            self.poll(*readers)

    def until_owned(self, places: set[str], reader: Reader, *others: Reader) -> None:
        self.until(lambda: places <= reader.owned, reader, *others)

    def until_at_the_end(self, places: set[str], *readers: Reader) -> None:
        """Until a record of every place was read that came after all that counts."""
        waiting = {place: set[str]() for place in places}
        while waiting:
            for place, sent in waiting.items():
                sent |= self.produce(place, is_counted=False)
            deadline = time.monotonic() + 1.0
            while time.monotonic() < deadline and any(
                not one & self.got for one in waiting.values()
            ):
                self.poll(*readers)
            waiting = {place: sent for place, sent in waiting.items() if not sent & self.got}

    def lost(self) -> dict[str, int]:
        """How many records of each place nobody read."""
        missing = [place for value, place in self.sent.items() if value not in self.got]
        return {place: missing.count(place) for place in missing}


class Load(threading.Thread):
    """Records to all places of a story, all the time."""

    def __init__(self, story: Story) -> None:
        super().__init__()
        self.places = story.places()
        self._story = story
        self._is_over = threading.Event()
        self._sent: dict[str, int] = {}
        self.start()

    def run(self) -> None:
        while not self._is_over.wait(0.02):
            for place in sorted(self.places):
                self._story.produce(place)
                self._sent[place] = self._sent.get(place, 0) + 1

    def grow_to(self, partitions: int) -> None:
        """Add partitions, and return when each has a few records."""
        self._story.grow(partitions)
        self.places = self._story.places()
        deadline = time.monotonic() + SECONDS_MAX
        while any(self._sent.get(place, 0) < FEW for place in self.places):
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def __enter__(self) -> "Load":
        return self

    def __exit__(self, *_: Any) -> None:
        self._is_over.set()
        self.join()


@pytest.fixture(params=_CLIENTS, ids="-".join)
def story(
    request: pytest.FixtureRequest, servers: str, readers_of: Callable[[str], Readers]
) -> Story:
    client, protocol = request.param
    return Story(servers, readers_of(client), protocol)


def grows_under_load(story: Story) -> None:
    """A partition is added while the group reads, another while it is away; all that is sent."""
    first = story.reader()
    story.until_owned(story.places(), first)
    story.until_at_the_end(story.places(), first)
    with Load(story) as load:
        load.grow_to(3)
        second = story.reader()
        story.until(lambda: first.owned and second.owned, first, second)
        first.commit()
        first.close()
        story.until_owned(load.places, second)
        second.commit()
        second.close()
        load.grow_to(4)
        third = story.reader()
        story.until_owned(load.places, third)
    story.until_at_the_end(load.places, third)
    third.close()


def history(story: Story) -> list[dict[str, Any]]:
    """What `headrace offsets history` tells of the topic."""
    line = (
        sys.executable, "-m", "headrace", "offsets", "history", story.group, "--json",
        "--bootstrap-server", story.servers, "--topic", story.topic,
    )  # fmt: skip
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    return [json.loads(one) for one in done.stdout.splitlines()]


def test_of_partitions_that_are_added_nothing_is_lost(story: Story) -> None:
    story.set_policy(strategy="safe_latest")
    grows_under_load(story)
    assert len(story.sent) > 4 * FEW
    assert story.lost() == {}
    seeded = {one["partition"]: one for one in history(story) if one.get("cause") == "seeded"}
    assert {2, 3} <= set(seeded)
    assert (seeded[2]["to"], seeded[3]["to"]) == (0, 0)


def test_without_the_policy_they_lose_what_came_before_they_knew(story: Story) -> None:
    """So that the test above can fail."""
    grows_under_load(story)
    lost = story.lost()
    assert lost[f"{story.topic}-3"] >= FEW
    assert set(lost) <= {f"{story.topic}-2", f"{story.topic}-3"}


def matches_a_topic_that_comes_later(story: Story) -> str:
    """A topic is created under readers of a pattern, and has records before one can know of it."""
    first = story.reader(story.pattern)
    story.until_owned(story.places(), first)
    story.until_at_the_end(story.places(), first)
    later = story.topic.removesuffix("-a") + "-b"
    story.create(later, 1)
    story.produce(f"{later}-0", count=FEW)
    second = story.reader(story.pattern)
    story.until(lambda: first.owned and second.owned, first, second)
    first.commit()
    first.close()
    places = story.places(story.topic, later)
    story.until_owned(places, second)
    story.until_at_the_end(places, second)
    second.close()
    return f"{later}-0"


def test_of_a_topic_that_a_pattern_matches_later_nothing_is_lost(story: Story) -> None:
    story.set_policy(strategy="safe_latest")
    matches_a_topic_that_comes_later(story)
    assert story.lost() == {}


@pytest.mark.parametrize("story", _CLASSIC, ids="-".join, indirect=True)
def test_without_the_policy_its_first_records_are_lost(story: Story) -> None:
    """In the new protocol the coordinator assigns it at once, perhaps before its first record."""
    later = matches_a_topic_that_comes_later(story)
    assert story.lost() == {later: FEW}


def commit(story: Story, offset: int) -> None:
    """Commit for partition 0, as a group without members."""
    stock = Consumer({"bootstrap.servers": story.servers, "group.id": story.group})
    stock.commit(offsets=[TopicPartition(story.topic, 0, offset)], asynchronous=False)
    stock.close()


@pytest.mark.parametrize(
    ("position", "policy", "kept"),
    [(1, "nearest", 3), (1, "none", 0), (50, "nearest", 0)],
    ids=["under", "under-without", "over"],
)
def test_a_position_outside_the_log_when_a_member_starts(
    story: Story, position: int, policy: str, kept: int
) -> None:
    """Of six records three were removed; `latest` alone skips those that are left."""
    place = f"{story.topic}-0"
    story.produce(place, count=6)
    wanted = TopicPartition(story.topic, 0, 3)
    story.admin.delete_records([wanted])[wanted].result(SECONDS_MAX)
    commit(story, position)
    story.set_policy(out_of_range=policy)
    reader = story.reader()
    story.until_owned(story.places(), reader)
    story.until_at_the_end({place}, reader)
    reader.close()
    assert len(story.got & set(story.sent)) == kept
