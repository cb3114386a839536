"""Acknowledgements by raw requests: every row of Kafka's syntax and state checks, in both versions.

Each row is sent as a ShareAcknowledge and on the back of a ShareFetch. The rows are those of Kafka
4.3.1; where Headrace parts from it on purpose the test says so. Rows about other leaders and a
remote persister are missing: there are none.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import headrace
from headrace.broker.share_polls import SharePoll

from .share_wire_rig import (
    ACCEPT,
    GAP,
    NOTHING_FETCHED,
    REJECT,
    RELEASE,
    RENEW,
    Ack,
    Sharer,
    configure,
    cut,
    live,
    partition_of,
    produce,
)

ONLY_2 = pytest.mark.parametrize("version", [2], indirect=True)
ONLY_1 = pytest.mark.parametrize("version", [1], indirect=True)


@pytest.fixture(params=[1, 2])
def version(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def one(connect: Callable[[], Any], version: int) -> Sharer:
    """A member of a group on two empty partitions, of which it reads the first."""
    wire = connect()
    found = Sharer(wire, wire.create("orders", num_partitions=2).topic_id, version=version)
    assert found.beat().error_code == 0
    assert found.take() == []
    return found


@pytest.fixture
def two(connect: Callable[[], Any], one: Sharer, version: int) -> Sharer:
    """Somebody else in the same group."""
    found = Sharer(connect(), one.topic_id, "other", version=version)
    assert found.take() == []
    return found


@pytest.fixture(params=["ShareAcknowledge", "ShareFetch"])
def code(request: pytest.FixtureRequest) -> Callable[..., int]:
    """Acknowledge by either request; the code of the partition."""

    def ask(one: Sharer, *acks: Ack, **other: Any) -> int:
        if request.param == "ShareAcknowledge":
            return one.code(*acks, **other)
        limits = NOTHING_FETCHED if other.get("is_renew_ack") else {"max_records": 0}
        return int(partition_of(one.fetch(*acks, **limits, **other)).acknowledge_error_code)

    return ask


Code = Callable[..., int]


# ---- syntax


@pytest.mark.parametrize(
    "acks",
    [
        [(5, 4, ACCEPT)],
        [(-1, 4, ACCEPT)],
        [(3, 4, ACCEPT), (1, 2, ACCEPT)],
        [(3, 6, ACCEPT), (5, 7, ACCEPT)],
        [(3, 4)],
        [(3, 5, ACCEPT, ACCEPT)],
        [(3, 3, ACCEPT, ACCEPT)],
        [(0, (1 << 62), ACCEPT, ACCEPT)],
        [(3, 4, 5)],
        [(3, 4, -1)],
        [(3, 4, ACCEPT, 127)],
        [(3, 4, RENEW)],
        [(0, 2, ACCEPT), (3, 4, ACCEPT, RENEW)],
    ],
)
def test_malformed_batches(
    broker: headrace.Broker, one: Sharer, code: Code, acks: list[Ack]
) -> None:
    produce(one.wire, 10)
    assert one.take() == [(0, 9, 1)]
    assert code(one, *acks) == 42
    assert live(broker) == "SPSO=0, SPEO=10, 0-9 acquired 1"
    assert code(one, (0, 9, ACCEPT)) == 0


def test_a_batch_that_begins_where_the_last_ended_was_settled_by_it(
    broker: headrace.Broker, one: Sharer, code: Code
) -> None:
    produce(one.wire, 10)
    one.take()
    assert code(one, (3, 4, ACCEPT), (4, 5, ACCEPT)) == 121
    assert live(broker) == "SPSO=0, SPEO=10, 0-9 acquired 1"


@ONLY_1
def test_version_1_knows_no_renewal(one: Sharer, code: Code) -> None:
    produce(one.wire, 2)
    one.take()
    assert code(one, (0, 0, ACCEPT), (1, 1, RENEW)) == 42


@ONLY_2
def test_renewals_are_announced(broker: headrace.Broker, one: Sharer, code: Code) -> None:
    produce(one.wire, 4)
    one.take()
    assert code(one, (0, 0, RENEW)) == 42
    assert code(one, (0, 1, RENEW), is_renew_ack=True) == 0
    assert code(one, (0, 0, ACCEPT), is_renew_ack=True) == 0  # announced, and none there
    assert code(one, (1, 3, ACCEPT, RENEW, REJECT), is_renew_ack=True) == 0
    assert live(broker) == "SPSO=2, SPEO=4, 2 acquired 1, 3 archived"


# ---- state


def test_what_each_type_makes_of_a_record(broker: headrace.Broker, one: Sharer, code: Code) -> None:
    produce(one.wire, 6)
    one.take()
    assert code(one, (1, 4, ACCEPT, RELEASE, REJECT, GAP)) == 0
    assert live(broker) == (
        "SPSO=0, SPEO=6, 0 acquired 1, 1 acknowledged, 2 available 1, 3-4 archived, 5 acquired 1"
    )


def test_nothing_is_in_flight(one: Sharer, code: Code) -> None:
    produce(one.wire, 5)
    assert code(one, (0, 4, ACCEPT)) == 121


def test_below_spso_is_well_and_changes_nothing(
    broker: headrace.Broker, one: Sharer, code: Code
) -> None:
    produce(one.wire, 5)
    one.take()
    one.say(ACCEPT, 0, 2)
    for kind in (ACCEPT, RELEASE, REJECT):
        assert code(one, (0, 2, kind)) == 0
    assert live(broker) == "SPSO=3, SPEO=5, 3-4 acquired 1"


def test_a_range_across_spso_counts_from_there(
    broker: headrace.Broker, one: Sharer, code: Code
) -> None:
    produce(one.wire, 5)
    one.take()
    one.say(ACCEPT, 0, 2)
    assert code(one, (0, 3, REJECT)) == 0
    assert live(broker) == "SPSO=4, SPEO=5, 4 acquired 1"


@pytest.mark.parametrize(
    "acks",
    [(8, 10, ACCEPT), (10, 11, ACCEPT), (40, 41, ACCEPT), (0, (1 << 63) - 1, ACCEPT)],
)
def test_beyond_what_is_in_flight(one: Sharer, code: Code, acks: Ack) -> None:
    produce(one.wire, 10)
    one.take()
    assert code(one, acks) == 42


@pytest.mark.parametrize("kind", [ACCEPT, RELEASE, REJECT])
def test_what_is_not_acquired_any_more(one: Sharer, code: Code, kind: int) -> None:
    produce(one.wire, 3)
    one.take()
    one.say(kind, 1, 1)
    assert code(one, (1, 1, ACCEPT)) == 121
    assert code(one, (0, 2, ACCEPT)) == 121


def test_what_somebody_else_holds(
    broker: headrace.Broker, one: Sharer, two: Sharer, code: Code
) -> None:
    produce(one.wire, 2, 2)
    assert one.take(max_records=2) == [(0, 1, 1)]
    assert two.take() == [(2, 3, 1)]
    for acks in ((2, 3, ACCEPT), (0, 3, ACCEPT)):
        assert code(one, acks) == 121
    assert live(broker) == "SPSO=0, SPEO=4, 0-3 acquired 1"


def test_what_was_given_to_somebody_else_since(one: Sharer, two: Sharer, code: Code) -> None:
    produce(one.wire, 1)
    one.take()
    one.say(RELEASE, 0, 0)
    assert two.take() == [(0, 0, 2)]
    assert code(one, (0, 0, ACCEPT)) == 121
    two.say(ACCEPT, 0, 0)


@ONLY_2
def test_renewals_may_be_off(one: Sharer, code: Code) -> None:
    configure(one.wire, share_renew_acknowledge_enable="false")
    produce(one.wire, 2)
    one.take()
    assert code(one, (0, 1, RENEW), is_renew_ack=True) == 121
    assert code(one, (0, 1, ACCEPT)) == 0


def test_a_share_partition_that_is_not_there(one: Sharer) -> None:
    one.partition = 7
    answer = partition_of(one.acknowledge((0, 0, ACCEPT)))
    assert answer.error_code == 3
    assert answer.error_message


# ---- as a whole


def test_one_bad_batch_fails_all_of_its_partition_and_no_other(
    broker: headrace.Broker, one: Sharer
) -> None:
    for partition in (0, 1):
        produce(one.wire, 4, partition=partition)
    first, second = one.topics((0, 1, ACCEPT), (9, 9, ACCEPT)), ()
    both = Sharer(one.wire, one.topic_id, version=one.version, partition=1)
    both.epoch = one.epoch
    one.take()
    both.epoch += 1
    assert both.take(topics=both.topics(always=True)) == [(0, 3, 1)]
    second = both.topics((0, 3, ACCEPT))
    parts = (*first[0]["partitions"], *second[0]["partitions"])
    answer = both.acknowledge(topics=({"topic_id": one.topic_id, "partitions": parts},))
    (topic,) = answer.responses
    assert [(got.partition_index, got.error_code) for got in topic.partitions] == [(0, 42), (1, 0)]
    assert live(broker) == "SPSO=0, SPEO=4, 0-3 acquired 1"
    assert live(broker, partition=1) == "SPSO=4, SPEO=4"


def test_a_repeated_partition_is_acknowledged_each_time_and_answered_once(
    broker: headrace.Broker, one: Sharer
) -> None:
    produce(one.wire, 4)
    one.take()
    acks = [*one.topics((0, 0, ACCEPT)), *one.topics((9, 9, ACCEPT)), *one.topics((2, 2, ACCEPT))]
    assert partition_of(one.acknowledge(topics=acks)).error_code == 42
    assert live(broker) == ("SPSO=1, SPEO=4, 1 acquired 1, 2 acknowledged, 3 acquired 1")


def test_a_range_may_be_of_many_batches_and_of_a_part_of_one(
    broker: headrace.Broker, one: Sharer, code: Code
) -> None:
    produce(one.wire, 2, 2, 2)
    for _ in range(3):
        one.take(max_records=2)
    assert code(one, (1, 4, ACCEPT)) == 0
    assert live(broker) == "SPSO=0, SPEO=6, 0 acquired 1, 1-4 acknowledged, 5 acquired 1"


def test_no_batches_no_entry(one: Sharer) -> None:
    answer = one.acknowledge(topics=one.topics(always=True))
    assert (answer.error_code, answer.responses) == (0, ())


def test_an_acknowledgement_of_a_partition_outside_the_session(one: Sharer, two: Sharer) -> None:
    """Neither the session's partitions nor membership count: only its epoch and who holds what."""
    produce(one.wire, 1)
    one.take()
    one.fetch(epoch=0, topics=())
    one.epoch = 1
    assert one.code((0, 0, ACCEPT)) == 0


def test_the_lock_duration_is_told(one: Sharer) -> None:
    configure(one.wire, share_record_lock_duration_ms="20000")
    assert one.fetch().acquisition_lock_timeout == 20_000
    if one.version == 2:
        assert one.acknowledge().acquisition_lock_timeout == 20_000


def test_what_retention_removed_is_acknowledged_without_effect(
    broker: headrace.Broker, one: Sharer, code: Code
) -> None:
    produce(one.wire, 5)
    one.take()
    cut(one.wire, 3)
    assert code(one, (0, 2, ACCEPT)) == 0
    assert live(broker) == "SPSO=3, SPEO=5, 3-4 acquired 1"


def test_those_who_wait_are_woken_by_what_moves_spso(one: Sharer, two: Sharer) -> None:
    """Kafka wakes them then, and not for a release; here for both (test_share_wire)."""
    configure(one.wire, share_partition_max_record_locks="100")
    produce(one.wire, 100, 1)
    assert one.take() == [(0, 99, 1)]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(two.take, max_wait=9000)
        one.say(ACCEPT, 0, 0)
        assert waiting.result() == [(100, 100, 1)]


def test_those_who_wait_are_not_woken_by_what_makes_no_room(
    one: Sharer, two: Sharer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds of members that look in vain with every record took most of the broker's time."""
    looks: list[SharePoll] = []
    look = SharePoll.look

    def noted(poll: SharePoll, bytes_min: int = 0) -> bool | None:
        looks.append(poll)
        return look(poll, bytes_min)

    produce(one.wire, 50)
    monkeypatch.setattr(SharePoll, "look", noted)
    assert one.take() == [(0, 49, 1)]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(two.take, max_wait=9000)
        while len(looks) < 2:
            time.sleep(0.01)
        for offset in range(40):
            one.say(ACCEPT, offset, offset)
        assert len(looks) <= 3  # who begins to wait looks once more
        one.say(RELEASE, 45, 45)
        assert waiting.result() == [(45, 45, 2)]
