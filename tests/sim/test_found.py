"""Faults that the simulator found, each as small as it comes."""

import logging
from collections.abc import Iterator
from itertools import count
from types import SimpleNamespace
from uuid import UUID

import pytest

from headrace.broker.config import Config
from headrace.broker.errors import Code
from headrace.broker.handlers import topics
from headrace.broker.request import Request
from headrace.broker.runtime import StorageFault
from headrace.broker.services import Services
from headrace.core.catalog import AddPartitions, CreateTopic, DeleteTopic, Topic
from headrace.core.share_group import Heartbeat, Seen
from headrace.core.types import MemberId
from headrace.log.manifest import CATALOGUE
from headrace.log.memory_disk import MemoryDisk
from headrace.sim.loop import OUTSIDE, VirtualLoop
from headrace.sim.process import WorldClock


class Small:
    """One broker in virtual time, on a disk that fails by order."""

    def __init__(self) -> None:
        self.loop = VirtualLoop(lambda: 0.001)  # type: ignore[abstract]  # all that is called is there
        self.disk = MemoryDisk()
        ids = count(1)
        self.services = Services(
            Config(durability="fsync"), self.disk, WorldClock(self.loop, 1_750_000_000_000),
            lambda: UUID(int=next(ids) << 64 | 0x8000),
        )  # fmt: skip

    async def start(self) -> Topic:
        self.services.topics.load()
        await self.services.start()
        made = await self.services.topics.create(CreateTopic("orders", UUID(int=7), 1, {}))
        assert isinstance(made, Topic)
        joined = await self.services.shares.ask(
            "blue", Heartbeat("blue", MemberId("ann"), 0, frozenset({"orders"}))
        )
        assert isinstance(joined, Seen)
        return made

    def delete(self, name: str) -> int:
        """Send DeleteTopics. Returns: its error code."""
        request = Request(20, 5, 1, None, "here", 1, memoryview(b""))
        request.decoded = SimpleNamespace(topic_names=(name,))
        answering = self.loop.spawn(OUTSIDE, topics.handle(request, self.services))
        self.loop.run_until(self.loop.now_us + 50_000)
        answer = answering.result()
        assert isinstance(answer, dict)
        return int(answer["responses"][0]["error_code"])

    def queues(self) -> int:
        return len(self.services.shares.machine("blue").partitions_of("blue"))

    def is_failing(self) -> bool:
        return self.services.shares.shards[0].fault is not None

    def open_partitions(self) -> int:
        view = self.services.shares.topic("orders")
        return 0 if view is None else view.partitions


@pytest.fixture
def small() -> Iterator[Small]:
    made = Small()
    made.loop.spawn(OUTSIDE, made.start())
    made.loop.run_until(1_000_000)
    assert made.queues() == 1
    yield made
    made.loop.end(OUTSIDE)


def test_partitions_that_cannot_be_opened_do_not_take_the_others_along(
    small: Small, caplog: pytest.LogCaptureFixture
) -> None:
    """A lease found no topic any more (code 3), members were given nothing, until a restart."""
    small.disk.failing.add("write")
    adding = small.loop.spawn(
        OUTSIDE, small.services.topics.add_partitions(AddPartitions("orders", 3))
    )
    small.loop.run_until(4_000_000)
    assert isinstance(adding.exception(), OSError)
    assert small.open_partitions() == 1
    small.disk.failing.clear()
    small.loop.run_until(6_000_000)
    assert small.open_partitions() == 3
    told = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert [("cannot be opened" in one, "are open" in one) for one in told] == [
        (True, False),
        (False, True),
    ]


def test_a_deleted_topic_is_forgotten_although_the_journal_fails(small: Small) -> None:
    """The queue of a topic that was deleted in the meantime stayed until a restart."""
    small.disk.failing.add("sync")
    small.loop.spawn(OUTSIDE, _ask_in_vain(small))
    small.loop.run_until(1_500_000)
    assert small.is_failing()
    small.disk.failing.clear()
    deleting = small.loop.spawn(OUTSIDE, small.services.topics.delete(DeleteTopic(UUID(int=7))))
    until = 1_500_000
    while not deleting.done():
        small.loop.run_until(until := until + 1_000)
    assert small.is_failing()  # for it waits before it tries again
    small.loop.run_until(30_000_000)
    assert not small.is_failing()
    assert (small.queues(), small.loop.errors) == (0, [])


def test_a_topic_is_forgotten_although_the_sync_that_says_so_fails(small: Small) -> None:
    small.loop.spawn(OUTSIDE, small.services.topics.delete(DeleteTopic(UUID(int=7))))
    small.loop.run_until(1_003_200)  # the catalogue is synced, the journal of groups is not
    small.disk.failing.add("sync")
    small.loop.run_until(1_200_000)
    assert small.is_failing()
    small.disk.failing.clear()
    small.loop.run_until(30_000_000)
    assert not small.is_failing()
    assert (small.queues(), small.loop.errors) == (0, [])


def test_a_start_after_a_crash_without_a_log_that_opens(small: Small) -> None:
    """The first producer id was the maximum of nothing: a TypeError."""
    small.services.topics.partitions._by_key.clear()
    assert not small.services.topics.partitions.was_closed(CATALOGUE)
    assert small.services.topics._find_first_producer_id() >= 0


def test_a_topic_is_not_called_unknown_before_its_deletion_is_durable(small: Small) -> None:
    """DeleteTopics, sent again after KAFKA_STORAGE_ERROR, was answered that the topic is unknown.

    The topic was there again as soon as the catalogue was read from its journal.
    """
    small.disk.failing.add("append")
    codes = {small.delete("orders") for _ in range(3)}
    assert codes == {Code.STORAGE_ERROR}
    small.disk.failing.clear()
    small.loop.run_until(30_000_000)
    assert small.delete("orders") == Code.NONE
    assert small.delete("orders") == Code.UNKNOWN_TOPIC_OR_PARTITION


async def _ask_in_vain(small: Small) -> None:
    with pytest.raises(StorageFault):
        await small.services.shares.ask(
            "green", Heartbeat("green", MemberId("bob"), 0, frozenset({"orders"}))
        )
