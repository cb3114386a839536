"""Share groups by raw requests: the error tables, acquire modes and sessions of the reference."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import pytest

import headrace
from headrace.client.connection import Cluster
from headrace.client.errors import BrokerError
from headrace.client.records import read_records
from headrace.wire import batches

from .share_wire_rig import (
    ACCEPT,
    ACKNOWLEDGE,
    GAP,
    GROUP,
    MEMBER,
    NOTHING_FETCHED,
    REJECT,
    RELEASE,
    RENEW,
    TOPIC,
    Sharer,
    acquired,
    partition_of,
    produce,
)


def sent(answer: Any) -> list[int]:
    """Offsets of the records that a ShareFetch carries."""
    return [record.offset for record in batches.records(partition_of(answer).records)]


@pytest.fixture
def member(connect: Callable[[], Any]) -> Sharer:
    """A member of a group at the log's end of an empty topic."""
    wire = connect()
    found = Sharer(wire, wire.create(TOPIC, num_partitions=1).topic_id)
    assert found.beat().error_code == 0
    return found


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"group_id": ""}, 42),
        ({"group_id": "x" * 32_768}, 42),
        ({"member_id": ""}, 42),
        ({"member_id": "x" * 37}, 42),
        ({"rack_id": ""}, 42),
        ({"member_epoch": -2}, 42),
        ({"member_epoch": 0, "subscribed_topic_names": None}, 42),
        ({"member_epoch": 0, "subscribed_topic_names": ()}, 42),
        ({"member_epoch": 9}, 110),
        ({"member_epoch": 3, "member_id": "stranger"}, 25),
        ({"member_epoch": -1, "member_id": "stranger"}, 25),
        ({"member_epoch": 3, "group_id": "unknown"}, 25),
    ],
)
def test_heartbeats_that_are_refused(member: Sharer, fields: dict[str, Any], code: int) -> None:
    answer = member.beat(epoch=1, topics=None, **fields)
    assert answer.error_code == code
    assert answer.error_message


def test_first_heartbeat_assigns_and_the_last_leaves(member: Sharer) -> None:
    answer = member.beat()
    (assigned,) = answer.assignment.topic_partitions
    assert (assigned.topic_id, assigned.partitions) == (member.topic_id, (0,))
    assert member.beat(-1, None).member_epoch == -1
    assert member.beat(answer.member_epoch, None).error_code == 25


def test_whole_batches_are_acquired_beyond_the_limit(member: Sharer) -> None:
    produce(member.wire, 9, 9, 9, 9)
    answer = member.fetch(max_records=20, batch_size=20)
    assert acquired(answer) == [(0, 26, 1)]
    assert sent(answer) == list(range(27))


def test_record_limit_is_exact_and_the_rest_comes_next(member: Sharer) -> None:
    produce(member.wire, 9, 9)
    answer = member.fetch(max_records=5, share_acquire_mode=1)
    assert acquired(answer) == [(0, 4, 1)]
    assert sent(answer) == list(range(9))  # a batch is never cut
    assert acquired(member.fetch(max_records=500, share_acquire_mode=1)) == [(5, 17, 1)]


def test_ranges_are_cut_at_batch_ends_by_batch_size(member: Sharer) -> None:
    produce(member.wire, 4, 4, 4, 4)
    assert acquired(member.fetch(batch_size=5)) == [(0, 7, 1), (8, 15, 1)]


def test_only_batches_that_hold_acquired_records_are_sent(member: Sharer) -> None:
    produce(member.wire, 3, 3, 3)
    member.fetch()
    member.code((4, 4, RELEASE))
    answer = member.fetch()
    assert acquired(answer) == [(4, 4, 2)]
    assert sent(answer) == [3, 4, 5]


def test_verdicts_one_by_one_and_as_a_range(member: Sharer) -> None:
    produce(member.wire, 10)
    member.fetch()
    assert member.code((0, 3, ACCEPT), (4, 6, RELEASE, REJECT, GAP)) == 0
    assert acquired(member.fetch()) == [(4, 4, 2)]


@pytest.mark.parametrize(
    ("acks", "code"),
    [
        ([(5, 4, ACCEPT)], 42),
        ([(3, 4, ACCEPT), (1, 2, ACCEPT)], 42),
        ([(3, 4)], 42),
        ([(3, 5, ACCEPT, ACCEPT)], 42),
        ([(3, 4, 9)], 42),
        ([(3, 4, RENEW)], 42),
        ([(3, 4, ACCEPT), (4, 5, ACCEPT)], 121),
        ([(8, 12, ACCEPT)], 42),
        ([(40, 41, ACCEPT)], 42),
        ([(0, 0, ACCEPT), (7, 7, ACCEPT)], 121),
    ],
)
def test_acknowledgements_that_are_refused_change_nothing(
    member: Sharer, acks: list[Any], code: int
) -> None:
    produce(member.wire, 10)
    member.fetch()
    assert member.code((7, 7, ACCEPT)) == 0
    assert member.code(*acks) == code
    assert member.code((0, 6, ACCEPT), (8, 9, ACCEPT)) == 0


def test_another_member_may_not_settle(member: Sharer, connect: Callable[[], Any]) -> None:
    produce(member.wire, 2)
    member.fetch()
    other = Sharer(connect(), member.topic_id, "other")
    other.fetch()
    assert other.code((0, 1, ACCEPT)) == 121
    assert member.code((0, 1, ACCEPT)) == 0


def test_session_epochs(member: Sharer) -> None:
    assert member.fetch(epoch=1).error_code == 122
    assert member.acknowledge((0, 0, ACCEPT), epoch=0).error_code == 123
    member.fetch()
    assert member.fetch(epoch=5).error_code == 123
    assert member.acknowledge((0, 0, ACCEPT), epoch=7).error_code == 123
    assert member.fetch().error_code == 0  # the right epoch still works
    assert member.fetch((0, 0, ACCEPT), epoch=0).error_code == 42


def test_renewal_carries_no_fetch_and_keeps_the_records(member: Sharer) -> None:
    produce(member.wire, 3)
    member.fetch()
    refused = member.fetch((0, 2, RENEW), is_renew_ack=True)
    assert refused.error_code == 42
    answer = member.fetch((0, 2, RENEW), is_renew_ack=True, **NOTHING_FETCHED)
    assert partition_of(answer).acknowledge_error_code == 0
    assert member.code((0, 2, ACCEPT)) == 0


def test_final_epoch_settles_then_releases(member: Sharer, connect: Callable[[], Any]) -> None:
    produce(member.wire, 4)
    member.fetch()
    assert member.acknowledge((0, 0, ACCEPT), epoch=-1).error_code == 0
    other = Sharer(connect(), member.topic_id, "other")
    assert acquired(other.fetch()) == [(1, 3, 2)]


def test_closed_connection_releases_at_once(member: Sharer, connect: Callable[[], Any]) -> None:
    produce(member.wire, 4)
    member.fetch()
    other = Sharer(connect(), member.topic_id, "other")
    member.wire.close()
    assert acquired(other.fetch(max_wait=9000)) == [(0, 3, 2)]


# A poll whose time is up answers without another look: what these bring, they were woken for.
def test_waiting_poll_is_woken_by_an_append(member: Sharer, connect: Callable[[], Any]) -> None:
    member.fetch()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(member.fetch, max_wait=9000)
        produce(connect(), 1)
        assert acquired(waiting.result()) == [(0, 0, 1)]


def test_waiting_poll_is_woken_by_a_release(member: Sharer, connect: Callable[[], Any]) -> None:
    produce(member.wire, 1)
    member.fetch()
    other = Sharer(connect(), member.topic_id, "other")
    assert acquired(other.fetch()) == []
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(other.fetch, max_wait=9000)
        assert member.code((0, 0, RELEASE)) == 0
        assert acquired(waiting.result()) == [(0, 0, 2)]


def test_topic_that_is_gone_fails_alone(member: Sharer) -> None:
    stranger = Sharer(member.wire, UUID(int=77), "stranger")
    assert partition_of(stranger.fetch()).error_code == 100


def test_partition_without_subscription_is_unknown(
    member: Sharer, connect: Callable[[], Any]
) -> None:
    answer = Sharer(connect(), member.topic_id, "other").fetch(group_id="nobody")
    assert partition_of(answer).error_code == 3


def test_what_a_poll_wants_may_lie_in_several_partitions(connect: Callable[[], Any]) -> None:
    wire = connect()
    member = Sharer(wire, wire.create(TOPIC, num_partitions=2).topic_id)
    assert member.beat().error_code == 0
    for partition in (0, 1):
        produce(wire, 9, partition=partition)
    size = len(batches.build([batches.Record(0, 5, b"k", b"v")] * 9))
    both = [{"partition_index": one, "acknowledgement_batches": ()} for one in (0, 1)]
    topics = ({"topic_id": member.topic_id, "partitions": both},)
    (topic,) = member.fetch(max_wait=1 << 30, min_bytes=2 * size, topics=topics).responses
    assert sorted(len(list(batches.records(one.records))) for one in topic.partitions) == [9, 9]


def test_a_fetch_that_may_bring_nothing_does_not_wait(member: Sharer) -> None:
    member.fetch()
    assert acquired(member.fetch(max_records=0, max_wait=1 << 30)) == []
    assert acquired(member.fetch(max_bytes=0, max_wait=1 << 30)) == []


@pytest.mark.parametrize(
    ("reason", "kept"),
    [
        ("no such customer", "no such customer"),
        ("ä" * 600, "ä" * 512),
        (None, "rejected by the consumer"),
    ],
)
def test_a_reason_is_kept_with_what_is_rejected(
    member: Sharer, broker: headrace.Broker, reason: str | None, kept: str
) -> None:
    with headrace.SyncAdmin(broker.bootstrap_servers) as admin:
        letters = {"errors.deadletterqueue.topic.name": "dlq.work"}
        admin.incremental_alter_configs(headrace.ResourceType.GROUP, GROUP, values=letters)
    produce(member.wire, 1)
    member.fetch()
    batch = {"first_offset": 0, "last_offset": 0, "acknowledge_types": (REJECT,), "reason": reason}
    partition = {"partition_index": 0, "acknowledgement_batches": (batch,)}
    topic = {"topic_id": member.topic_id, "partitions": (partition,)}
    answer = member.wire.call(
        ACKNOWLEDGE, 1, group_id=GROUP, member_id=MEMBER, share_session_epoch=1, topics=(topic,)
    )
    assert answer.responses[0].partitions[0].error_code == 0
    with Cluster(broker.bootstrap_servers) as cluster:
        until = time.monotonic() + 30
        while not (letter := _first(cluster, "dlq.work")):
            assert time.monotonic() < until, "no dead letter came"
            time.sleep(0.01)
    assert dict(letter.headers)["__dlq.errors.message"] == kept.encode()


def _first(cluster: Cluster, topic: str) -> batches.Record | None:
    """The first record of a topic, None while there is none, nor a topic."""
    try:
        return next(read_records(cluster, topic, 0), None)
    except BrokerError:
        return None
