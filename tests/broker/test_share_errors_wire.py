"""ShareFetch and share sessions by raw requests: every error row of Kafka's, in both versions.

The rows are those of Kafka 4.3.1 (order of processing, share session, which partitions appear).
Where Headrace parts from it on purpose the test says so. Rows about permissions, other leaders and
a remote persister are missing: there are none.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from uuid import UUID

import pytest

import headrace

from .share_wire_rig import (
    ACCEPT,
    NOTHING_FETCHED,
    RELEASE,
    RENEW,
    WAIT_S,
    Sharer,
    acquired,
    cut,
    live,
    partition_of,
    produce,
    reset,
    started,
)

SESSIONS_MAX = 201  # the least that is allowed: not below group.share.max.size
EPOCH_MAX = (1 << 31) - 1


ONLY_2 = pytest.mark.parametrize("version", [2], indirect=True)


@pytest.fixture(params=[1, 2])
def version(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def one(connect: Callable[[], Any], version: int) -> Sharer:
    """A member at the start of a topic of one partition, its session not open yet."""
    wire = connect()
    found = Sharer(wire, wire.create("orders", num_partitions=1).topic_id, version=version)
    assert found.beat().error_code == 0
    return found


@pytest.fixture
def two(connect: Callable[[], Any], one: Sharer, version: int) -> Sharer:
    """Somebody else in the same group, over another connection."""
    return Sharer(connect(), one.topic_id, "other", version=version)


def refused(answer: Any, code: int) -> None:
    assert answer.error_code == code
    assert answer.error_message
    assert answer.responses == ()
    assert getattr(answer, "acquisition_lock_timeout", 0) in (0, None)


# ---- the form of a request


@pytest.mark.parametrize(
    "fields",
    [
        {"group_id": None},
        {"group_id": "x" * 32_768},  # what the journal cannot hold
        {"member_id": None},
        {"member_id": ""},
        {"member_id": "x" * 37},
    ],
)
def test_malformed_requests_consume_no_epoch(one: Sharer, fields: dict[str, Any]) -> None:
    assert one.fetch().error_code == 0
    refused(one.fetch(epoch=1, **fields), 42)
    refused(one.acknowledge(epoch=1, **fields), 42)
    assert one.fetch(epoch=1).error_code == 0


@ONLY_2
@pytest.mark.parametrize("limit", ["max_wait", "min_bytes", "max_bytes", "max_records"])
def test_a_renewal_must_not_fetch(one: Sharer, limit: str) -> None:
    produce(one.wire, 3)
    assert one.take() == [(0, 2, 1)]
    limits = NOTHING_FETCHED | {limit: 1}
    refused(one.fetch((0, 2, RENEW), is_renew_ack=True, **limits), 42)
    answer = one.fetch((0, 2, RENEW), is_renew_ack=True, **NOTHING_FETCHED)
    assert partition_of(answer).acknowledge_error_code == 0  # with the epoch of before


@ONLY_2
def test_an_acquire_mode_of_no_kind_fails_the_request_and_consumes_the_epoch(one: Sharer) -> None:
    """Kafka: -1. On purpose: the request is at fault, not the server."""
    produce(one.wire, 3)
    one.fetch(max_records=0)
    refused(one.fetch(epoch=1, share_acquire_mode=2), 42)
    assert acquired(one.fetch(epoch=2)) == [(0, 2, 1)]


# ---- the share session


def test_a_session_must_be_open(one: Sharer) -> None:
    for epoch in (1, 7, -1):
        refused(one.fetch(epoch=epoch), 122)
        refused(one.acknowledge(epoch=epoch), 122)


def test_an_acknowledgement_opens_no_session(one: Sharer) -> None:
    refused(one.acknowledge((0, 0, ACCEPT), epoch=0), 123)
    one.fetch()
    refused(one.acknowledge((0, 0, ACCEPT), epoch=0), 123)


def test_a_session_that_is_opened_brings_no_acknowledgements(one: Sharer) -> None:
    refused(one.fetch((0, 0, ACCEPT), epoch=0), 42)


def test_another_epoch_than_the_next_leaves_the_session_alone(one: Sharer) -> None:
    produce(one.wire, 1)
    assert one.take() == [(0, 0, 1)]
    for epoch in (2, EPOCH_MAX, -2):
        refused(one.fetch((0, 0, ACCEPT), epoch=epoch), 123)
        refused(one.acknowledge((0, 0, ACCEPT), epoch=epoch), 123)
    assert one.code((0, 0, ACCEPT)) == 0


def test_both_requests_move_the_same_epoch(one: Sharer) -> None:
    one.fetch()
    assert one.acknowledge(epoch=1).error_code == 0
    assert one.fetch(epoch=2).error_code == 0
    assert one.acknowledge(epoch=3).error_code == 0
    refused(one.fetch(epoch=3), 123)


def test_a_session_may_be_opened_without_partitions(one: Sharer) -> None:
    produce(one.wire, 1)
    assert acquired(one.fetch(topics=())) == []
    assert acquired(one.fetch(topics=one.topics(always=True))) == [(0, 0, 1)]


def test_a_session_that_is_opened_anew_keeps_the_records(one: Sharer, two: Sharer) -> None:
    produce(one.wire, 2)
    assert one.take() == [(0, 1, 1)]
    assert one.fetch(epoch=0).error_code == 0
    one.epoch = 1
    assert two.take() == []
    assert one.code((0, 1, ACCEPT)) == 0


def test_the_last_request_settles_then_releases(
    broker: headrace.Broker, one: Sharer, two: Sharer
) -> None:
    produce(one.wire, 3)
    one.fetch()
    answer = one.fetch((0, 0, ACCEPT), epoch=-1)
    assert (partition_of(answer).acknowledge_error_code, acquired(answer)) == (0, [])
    assert live(broker) == "SPSO=1, SPEO=3, 1-2 available 1"
    refused(one.fetch(epoch=1), 122)
    assert two.take() == [(1, 2, 2)]


def test_too_many_sessions_are_refused_after_the_wait_of_a_poll(
    connecting: Callable[[headrace.Broker], AbstractContextManager[Callable[[], Any]]],
    version: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = {
        "group.share.max.share.sessions": str(SESSIONS_MAX),
        "headrace.share.max.sessions.per.connection": str(SESSIONS_MAX + 1),
    }
    with headrace.Broker(settings=settings) as broker, connecting(broker) as connect:
        wire = connect()
        for number in range(SESSIONS_MAX):
            full = Sharer(wire, UUID(int=1), f"m{number}", version=version)
            assert full.fetch(topics=()).error_code == 0
        late = Sharer(wire, UUID(int=1), "late", version=version)
        began = time.monotonic()
        refused(late.fetch(topics=(), max_wait=200), 133)
        assert time.monotonic() - began >= 0.19  # clients do not pause by themselves
        # Looked at each second.
        while not any("group.share.max.share.sessions" in line for line in caplog.messages):
            assert time.monotonic() - began < WAIT_S, "nobody was told"
            time.sleep(0.02)
        assert full.fetch(epoch=0, topics=()).error_code == 0
        full.fetch(epoch=-1)
        assert late.fetch(topics=()).error_code == 0


def test_sessions_of_invented_members_keep_no_joined_member_out(
    connecting: Callable[[headrace.Broker], AbstractContextManager[Callable[[], Any]]],
    version: int,
) -> None:
    """B6: 21 connections of members that never joined opened all sessions that there are."""
    settings = {
        "group.share.max.share.sessions": str(SESSIONS_MAX),
        "headrace.share.max.sessions.per.connection": str(SESSIONS_MAX + 1),
    }
    with headrace.Broker(settings=settings) as broker, connecting(broker) as connect:
        wire, other = connect(), connect()
        topic_id = wire.create("orders", num_partitions=1).topic_id
        joined = Sharer(other, topic_id, "joined", version=version)
        assert joined.beat().error_code == 0  # from here on the group reads the topic
        produce(wire, 2)
        invented = [Sharer(wire, topic_id, f"m{n}", version=version) for n in range(SESSIONS_MAX)]
        assert invented[0].take(max_wait=9000) == [(0, 1, 1)]
        for sharer in invented[1:]:
            assert sharer.fetch().error_code == 0
        refused(Sharer(other, topic_id, "late", version=version).fetch(), 133)
        assert joined.take(max_wait=9000) == [(0, 1, 2)]
        refused(invented[0].fetch(), 122)
        assert invented[1].fetch().error_code == 0


def test_a_connection_opens_a_hundred_share_sessions_by_default(wire: Any, version: int) -> None:
    for number in range(100):
        sharer = Sharer(wire, UUID(int=1), f"m{number}", version=version)
        assert sharer.fetch(topics=()).error_code == 0
    refused(Sharer(wire, UUID(int=1), "late", version=version).fetch(topics=()), 133)


def test_a_connection_that_ends_releases_what_its_session_has(one: Sharer, two: Sharer) -> None:
    produce(one.wire, 2)
    one.fetch()
    one.wire.close()
    assert two.take(max_wait=9000) == [(0, 1, 2)]


def test_a_session_belongs_to_the_connection_that_opened_it_last(
    broker: headrace.Broker, connect: Callable[[], Any], one: Sharer, two: Sharer
) -> None:
    produce(one.wire, 2)
    one.fetch()
    old, one.wire = one.wire, connect()
    assert one.fetch(epoch=0).error_code == 0
    one.epoch = 1
    old.close()
    assert one.code((0, 0, ACCEPT)) == 0
    assert live(broker) == "SPSO=1, SPEO=2, 1 acquired 1"
    one.wire.close()
    assert two.take(max_wait=9000) == [(1, 1, 2)]


def test_strangers_may_fetch_and_acknowledge(one: Sharer, two: Sharer) -> None:
    """Membership, assignment and member epochs are of no matter: locks protect the records."""
    produce(one.wire, 1)
    one.beat(-1, None)
    assert two.take() == [(0, 0, 1)]
    assert one.take() == []
    two.say(ACCEPT, 0, 0)


# ---- which partitions appear, and their errors


def test_a_partition_is_told_once_when_it_is_empty(one: Sharer) -> None:
    assert partition_of(one.fetch()).error_code == 0
    assert one.fetch().responses == ()
    assert one.fetch(topics=one.topics(always=True)).responses != ()


def test_a_partition_that_is_forgotten_keeps_its_records(one: Sharer, two: Sharer) -> None:
    produce(one.wire, 1)
    one.fetch()
    produce(one.wire, 1)
    forgotten = ({"topic_id": one.topic_id, "partitions": (0,)},)
    assert one.fetch(forgotten_topics_data=forgotten).responses == ()
    assert one.code((0, 0, RELEASE)) == 0
    assert one.take() == []  # an acknowledgement adds no partition to a session
    assert two.take() == [(0, 0, 2), (1, 1, 1)]


def test_an_index_that_the_topic_has_not(one: Sharer) -> None:
    one.partition = 7
    for _ in range(2):
        assert partition_of(one.fetch()).error_code == 3


def test_a_topic_that_is_not_there_fails_alone(one: Sharer) -> None:
    """Kafka: the whole answer, with -1, until the client forgets the topic. On purpose."""
    produce(one.wire, 1)
    gone = {"topic_id": UUID(int=7), "partitions": ({"partition_index": 0,
            "acknowledgement_batches": ()},)}  # fmt: skip
    answer = one.fetch(topics=(gone, *one.topics(always=True)))
    assert answer.error_code == 0
    codes = {topic.topic_id: topic.partitions[0].error_code for topic in answer.responses}
    assert codes == {UUID(int=7): 100, one.topic_id: 0}
    assert acquired(answer) == [(0, 0, 1)]


def test_a_topic_that_is_deleted_meanwhile_fails_its_acknowledgements(one: Sharer) -> None:
    produce(one.wire, 1)
    one.fetch()
    asked = ({"name": "orders", "topic_id": None},)
    one.wire.call(20, 6, topics=asked, timeout=1000)
    assert one.code((0, 0, ACCEPT)) == 100
    assert partition_of(one.fetch()).error_code == 100


def test_a_share_partition_that_the_group_does_not_have(one: Sharer) -> None:
    """Kafka: -1, which tells clients nothing; here 3, on which they look again. On purpose."""
    stranger = Sharer(one.wire, one.topic_id, group="nobody", version=one.version)
    assert partition_of(stranger.fetch()).error_code == 3
    assert stranger.code((0, 0, ACCEPT)) == 3


def test_a_start_below_the_log_is_passed_over_in_silence(one: Sharer) -> None:
    produce(one.wire, 3, 3)
    one.fetch(max_records=0)
    cut(one.wire, 4)
    assert started(one.wire)[0] == (4, 2)
    answer = partition_of(one.fetch())
    assert answer.error_code == 0
    assert [(got.first_offset, got.last_offset) for got in answer.acquired_records] == [(4, 5)]


def test_a_reset_takes_the_records_of_who_went_on(one: Sharer) -> None:
    """Kafka goes on with the old state until a write comes back with 6. On purpose."""
    produce(one.wire, 3)
    one.fetch()
    one.beat(-1, None)
    assert reset(one.wire, 1) == 0
    assert one.code((0, 2, ACCEPT)) == 121
    assert one.take() == [(1, 2, 1)]


@pytest.mark.parametrize("limits", [{"max_records": 0}, {"max_bytes": 0}])
def test_limits_of_nothing_are_answered_at_once(one: Sharer, limits: dict[str, int]) -> None:
    produce(one.wire, 3)
    assert one.take(max_wait=9000, **limits) == []
    assert one.take() == [(0, 2, 1)]


def test_acknowledgements_do_not_wait_for_records(one: Sharer) -> None:
    """Kafka: as long as the poll lasts, which here is longer than the test's connection waits."""
    produce(one.wire, 1)
    one.fetch()
    answer = one.fetch((0, 0, ACCEPT), max_wait=60_000)
    assert partition_of(answer).acknowledge_error_code == 0
