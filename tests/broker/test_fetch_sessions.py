"""Fetch sessions on the wire: what each request of one is answered with. KIP-227."""

import threading
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

import headrace
from headrace.wire import batches
from headrace.wire.batches import Record

Connect = Callable[[], Any]
VERSIONS = [7, 11, 12, 13, 18]


class Topics:
    """Topics of one connection, fetched from by name or by id, as the version wants."""

    def __init__(self, wire: Any) -> None:
        self.wire = wire
        self.ids: dict[str, UUID] = {}

    def create(self, name: str, partitions: int = 2) -> None:
        topic = {"name": name, "num_partitions": partitions, "replication_factor": 1}
        created = self.wire.call(
            19, 7, topics=[topic | {"assignments": [], "configs": []}], timeout=0,
            validate_only=False,
        )  # fmt: skip
        self.ids[name] = created.topics[0].topic_id

    def delete(self, name: str) -> None:
        deleted = self.wire.call(20, 6, topics=[{"name": name, "topic_id": None}], timeout=0)
        assert deleted.responses[0].error_code == 0

    def produce(self, name: str, index: int = 0, value: bytes = b"v") -> None:
        records = batches.build([Record(0, 1000, None, value)])
        topics = [{"name": name, "partition_data": [{"index": index, "records": records}]}]
        answer = self.wire.call(0, 9, transactional_id=None, acks=1, timeout=100, topic_data=topics)
        assert answer.responses[0].partition_responses[0].error_code == 0

    def named(self, name: str, version: int) -> dict[str, Any]:
        return {"topic_id": self.ids[name]} if version >= 13 else {"topic": name}

    def fetch(
        self, version: int, session: int, epoch: int, *wanted: tuple[str, int, int],
        forgotten: tuple[str, int] | None = None, wire: Any = None, **fields: Any,
    ) -> Any:  # fmt: skip
        """Fetch (topic, partition, offset) triples."""
        topics = [
            self.named(name, version)
            | {"partitions": [
                {"partition": index, "fetch_offset": offset, "partition_max_bytes": 1_000_000}
            ]}
            for name, index, offset in wanted
        ]  # fmt: skip
        gone = []
        if forgotten is not None:
            name, index = forgotten
            gone = [self.named(name, version) | {"partitions": [index]}]
        defaults = {"max_wait": 0, "min_bytes": 1}
        return (wire or self.wire).call(
            1, version, session_id=session, session_epoch=epoch, topics=topics,
            forgotten_topics_data=gone, **(defaults | fields),
        )  # fmt: skip


@pytest.fixture
def topics(connect: Connect) -> Topics:
    """Topic `orders` of two partitions, one record in the first."""
    found = Topics(connect())
    found.create("orders")
    found.produce("orders")
    return found


def told(answer: Any) -> list[tuple[int, int, int, int]]:
    """Partition, code, high watermark and bytes of each part of an answer."""
    return [
        (part.partition_index, part.error_code, part.high_watermark, len(part.records))
        for topic in answer.responses
        for part in topic.partitions
    ]


ONE = len(batches.build([Record(0, 1000, None, b"v")]))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_session_tells_all_once_and_then_what_is_new(topics: Topics, version: int) -> None:
    first = topics.fetch(version, 0, 0, ("orders", 0, 0), ("orders", 1, 0))
    assert first.error_code == 0
    assert first.session_id > 0
    assert told(first) == [(0, 0, 1, ONE), (1, 0, 0, 0)]

    def go_on(epoch: int, *wanted: tuple[str, int, int], **more: Any) -> Any:
        answer = topics.fetch(version, first.session_id, epoch, *wanted, **more)
        assert (answer.error_code, answer.session_id) == (0, first.session_id)
        return told(answer)

    assert go_on(1, ("orders", 0, 1)) == []
    topics.produce("orders", 1)
    assert go_on(2) == [(1, 0, 1, ONE)], "asked for with the first request"
    assert go_on(3) == [(1, 0, 1, ONE)], "until it is asked for another offset"
    assert go_on(4, ("orders", 1, 1)) == []
    topics.produce("orders", 0)
    topics.produce("orders", 1)
    assert go_on(5, forgotten=("orders", 0)) == [(1, 0, 2, ONE)]


@pytest.mark.parametrize("version", VERSIONS)
def test_requests_that_do_not_fit_a_session(topics: Topics, version: int) -> None:
    session = topics.fetch(version, 0, 0, ("orders", 0, 1)).session_id
    refused = [
        topics.fetch(version, session + 1, 1),
        topics.fetch(version, session, 2),
        topics.fetch(version, session, 1),
        topics.fetch(version, session, 1),
    ]
    assert [one.error_code for one in refused] == [70, 71, 0, 71]
    for one in (refused[0], refused[1], refused[3]):
        assert (one.session_id, list(one.responses)) == (0, [])


def test_a_session_is_by_names_or_by_ids(topics: Topics) -> None:
    by_name = topics.fetch(12, 0, 0, ("orders", 0, 1)).session_id
    by_id = topics.fetch(13, 0, 0, ("orders", 0, 1)).session_id
    for version, session in ((13, by_name), (12, by_id)):
        answer = topics.fetch(version, session, 1)
        assert (answer.error_code, answer.session_id) == (106, 0)
    assert topics.fetch(13, by_id, 1).error_code == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_replacing_closing_and_going_without(topics: Topics, version: int) -> None:
    old = topics.fetch(version, 0, 0, ("orders", 0, 0)).session_id
    new = topics.fetch(version, old, 0, ("orders", 1, 0)).session_id
    assert new not in {0, old}
    assert topics.fetch(version, old, 1).error_code == 70
    closed = topics.fetch(version, new, -1)
    assert (closed.error_code, closed.session_id, told(closed)) == (0, 0, [])
    assert topics.fetch(version, new, 1).error_code == 70
    without = topics.fetch(version, 0, -1, ("orders", 0, 0))
    assert (without.session_id, told(without)) == (0, [(0, 0, 1, ONE)])
    emptied = topics.fetch(version, 0, 0, ("orders", 0, 1)).session_id
    answer = topics.fetch(version, emptied, 1, forgotten=("orders", 0))
    assert (answer.error_code, answer.session_id) == (0, 0)
    assert topics.fetch(version, emptied, 2).error_code == 70


def test_a_session_may_go_on_over_another_connection(topics: Topics, connect: Connect) -> None:
    session = topics.fetch(13, 0, 0, ("orders", 0, 0)).session_id
    assert told(topics.fetch(13, session, 1, wire=connect())) == [(0, 0, 1, ONE)]


@pytest.mark.parametrize(("version", "code"), [(12, 3), (13, 100)])
def test_errors_are_repeated_until_they_are_over(topics: Topics, version: int, code: int) -> None:
    topics.ids["later"] = UUID(int=99)
    session = topics.fetch(version, 0, 0, ("orders", 0, 1), ("later", 0, 0)).session_id
    for epoch in (1, 2):
        assert told(topics.fetch(version, session, epoch)) == [(0, code, -1, 0)]
    if version == 12:  # an id that is unknown remains so
        topics.create("later")
        assert told(topics.fetch(version, session, 3)) == [(0, 0, 0, 0)]
        assert told(topics.fetch(version, session, 4)) == []


@pytest.mark.parametrize(
    ("version", "created", "code"), [(12, False, 3), (13, False, 3), (13, True, 103)]
)
def test_a_topic_that_goes_while_it_is_fetched(
    topics: Topics, version: int, created: bool, code: int
) -> None:
    session = topics.fetch(version, 0, 0, ("orders", 0, 1)).session_id
    topics.delete("orders")
    if created:
        topics.create("orders")
    assert told(topics.fetch(version, session, 1)) == [(0, code, -1, 0)]


def test_a_deletion_wakes_who_waits(topics: Topics, connect: Connect) -> None:
    session = topics.fetch(12, 0, 0, ("orders", 0, 1)).session_id
    other, found = connect(), []
    poll = threading.Thread(
        target=lambda: found.append(topics.fetch(12, session, 1, wire=other, max_wait=60_000))
    )
    poll.start()
    topics.delete("orders")
    poll.join(20)
    assert told(found[0]) == [(0, 3, -1, 0)]


def test_no_partition_starves(topics: Topics) -> None:
    topics.create("many", 3)
    for index in range(3):
        for _ in range(2):
            topics.produce("many", index)
    wanted = [("many", index, 0) for index in range(3)]
    first = topics.fetch(12, 0, 0, *wanted, max_bytes=ONE)
    heard = [[part[0] for part in told(first) if part[3]]]
    for epoch in (1, 2, 3):
        answer = topics.fetch(12, first.session_id, epoch, max_bytes=ONE)
        heard.append([part[0] for part in told(answer) if part[3]])
    assert heard == [[0], [1], [2], [0]]


def test_without_slots_every_request_is_complete(connecting: Callable[..., Any]) -> None:
    settings = {"max.incremental.fetch.session.cache.slots": 0}
    with headrace.Broker(settings=settings) as broker, connecting(broker) as connect:
        topics = Topics(connect())
        topics.create("orders")
        topics.produce("orders")
        for _ in range(2):
            answer = topics.fetch(13, 0, 0, ("orders", 0, 0))
            assert (answer.session_id, told(answer)) == (0, [(0, 0, 1, ONE)])


def test_the_session_least_used_gives_way(connecting: Callable[..., Any]) -> None:
    settings = {"max.incremental.fetch.session.cache.slots": 2}
    with headrace.Broker(settings=settings) as broker, connecting(broker) as connect:
        topics = Topics(connect())
        topics.create("orders")
        opened = [topics.fetch(13, 0, 0, ("orders", 0, 0)).session_id for _ in range(3)]
        assert opened[2] == 0, "both are in use"
        assert [topics.fetch(13, one, 1).error_code for one in opened[:2]] == [0, 0]
