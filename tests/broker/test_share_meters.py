"""Counters of share groups: each is marked once for what happened, and never by a restart."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import headrace
from headrace.broker.share_meters import NOTICES_MAX, Meter, ShareMeters
from headrace.client.connection import Cluster
from headrace.client.leases import Lease
from headrace.core.leases import LeaseAcquired, LeaseSeen
from headrace.core.runs import State
from headrace.core.settling import LIMIT_REACHED
from headrace.core.shard_words import Event, Forgotten, Restarted
from headrace.core.share_words import NO_RECORD, Acquired, Ended, Hold, Settled, ShareKey
from headrace.core.spans import Spans
from headrace.core.types import MemberId, MonoMs, Span, WallMs
from headrace.wire.leases import Disposition, Verdict

from .metrics_rig import METRICS, series
from .share_wire_rig import (
    ACCEPT,
    GAP,
    REJECT,
    RELEASE,
    RENEW,
    Sharer,
    configure,
    cut,
    live,
    produce,
    reset,
    until,
)

SETTINGS = METRICS | {"group.share.min.record.lock.duration.ms": "1000"}
LIMIT = "2"
PLACE = ("g", "0", "orders")  # labels stand in the order of their names
COUNTERS = (
    "acquired", "accepted", "released", "rejected", "renewed", "expired",
    "without_dead_letter", "dead_lettered",
)  # fmt: skip
Connecting = Callable[[headrace.Broker], AbstractContextManager[Callable[[], Any]]]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[headrace.Broker]:
    with headrace.Broker(tmp_path, settings=SETTINGS) as running:
        yield running


@pytest.fixture
def one(connect: Callable[[], Any]) -> Sharer:
    """A member at the start of ten records, of which each may be delivered twice."""
    wire = connect()
    found = Sharer(wire, wire.create("orders", num_partitions=1).topic_id)
    configure(wire, share_delivery_count_limit=LIMIT)
    produce(wire, 10)
    assert reset(wire, 0) == 0
    found.beat()
    return found


def counted(broker: headrace.Broker) -> dict[str, float]:
    """Every counter that is not 0."""
    told = series(broker)
    found = {name: told[f"headrace_share_records_{name}_total"][PLACE] for name in COUNTERS}
    archived = told["headrace_share_records_archived_total"]
    found |= {f"archived {key[2]}": count for key, count in archived.items()}
    return {name: count for name, count in found.items() if count}


def test_each_counter_is_marked_once(broker: headrace.Broker, one: Sharer) -> None:
    assert counted(broker) == {}
    assert one.take() == [(0, 9, 1)]
    assert one.take() == []
    wanted = {"acquired": 10.0}
    assert counted(broker) == wanted
    one.say(ACCEPT, 0, 2)
    one.say(ACCEPT, 0, 2)  # SPSO is past them
    assert one.code((9, 9, ACCEPT), (3, 99, ACCEPT)) == 42
    wanted["accepted"] = 3
    assert counted(broker) == wanted
    one.say(RELEASE, 3, 4)
    one.say(REJECT, 5, 6)
    one.say(GAP, 7, 7)
    one.say(RENEW, 8, 9)
    wanted |= {"released": 2, "rejected": 2, "archived rejected": 2, "archived gap": 1}
    wanted |= {"without_dead_letter": 2, "renewed": 2}
    assert counted(broker) == wanted
    assert one.take() == [(3, 4, 2)]
    one.say(RELEASE, 3, 4)  # for the last time
    wanted |= {"acquired": 12, "released": 4, "archived limit": 2, "without_dead_letter": 4}
    assert counted(broker) == wanted


def test_locks_that_end_and_sessions_that_end(
    broker: headrace.Broker, one: Sharer, connect: Callable[[], Any]
) -> None:
    configure(one.wire, share_record_lock_duration_ms="1000")
    assert one.take(share_acquire_mode=1, max_records=3) == [(0, 2, 1)]
    until(broker, "SPSO=0, SPEO=3, 0-2 available 1")
    assert counted(broker) == {"acquired": 3, "expired": 3}
    configure(one.wire, share_record_lock_duration_ms="30000")
    other = Sharer(connect(), one.topic_id, "other")
    assert other.take() == [(0, 2, 2), (3, 9, 1)]
    other.acknowledge(epoch=-1)
    assert counted(broker) == {
        "acquired": 13, "expired": 3, "released": 10, "archived limit": 3, "without_dead_letter": 3,
    }  # fmt: skip


def test_retention_counts_what_was_not_finished(
    broker: headrace.Broker, one: Sharer, connect: Callable[[], Any]
) -> None:
    one.take(share_acquire_mode=1, max_records=6)
    one.say(ACCEPT, 2, 3)
    cut(connect(), 8)
    assert counted(broker) == {"acquired": 6, "accepted": 2, "archived retention": 6}


def test_dead_letters_are_counted_when_they_are_written(
    broker: headrace.Broker, one: Sharer
) -> None:
    configure(one.wire, **{"errors.deadletterqueue.topic.name": "dlq.orders"})
    one.take()
    one.say(REJECT, 0, 3)
    until(broker, "SPSO=4, SPEO=10, 4-9 acquired 1")
    assert counted(broker) == {
        "acquired": 10, "rejected": 4, "archived rejected": 4, "dead_lettered": 4,
    }  # fmt: skip


def test_leases_are_counted_like_members(broker: headrace.Broker, one: Sharer) -> None:
    one.beat(-1, None)
    with Cluster(broker.bootstrap_servers) as cluster:
        lease = Lease(cluster, "g", "checkpoint")
        lease.open(("orders",), "earliest")
        lease.acquire(1, 100, 1000)
        lease.acquire(1, 100, 1000)  # asked again: the same
        assert counted(broker)["acquired"] == 10
        renewed = counted(broker).get("renewed", 0)
        lease.renew()
        assert counted(broker)["renewed"] == renewed + 10
        rejected = Disposition("orders", 0, 0, 1, Verdict.REJECT, "broken")
        lease.stage(1, (rejected,))
        lease.commit(1)
        lease.commit(1)
    found = counted(broker)
    assert (found["acquired"], found["accepted"], found["rejected"]) == (10, 8, 2)


def test_a_restart_begins_at_nothing(
    broker: headrace.Broker, one: Sharer, connecting: Connecting
) -> None:
    """What the journal replays, and locks that a lease takes back, did not happen again."""
    one.beat(-1, None)
    with Cluster(broker.bootstrap_servers) as cluster:
        lease = Lease(cluster, "g", "checkpoint")
        lease.open(("orders",), "earliest")
        lease.acquire(1, 6, 1000)
    one.take()
    one.say(ACCEPT, 7, 8)
    broker.stop()
    with headrace.Broker(broker.data_dir, settings=SETTINGS) as again, connecting(again) as connect:
        assert live(again).startswith("SPSO=0, SPEO=9, 0-5 acquired 1, 6 available, 7-8")
        assert counted(again) == {}
        later = Sharer(connect(), one.topic_id, "later")
        assert later.take() == [(6, 6, 1), (9, 9, 1)]
        assert counted(again) == {"acquired": 2}


def test_a_deleted_group_takes_its_series_along(broker: headrace.Broker, one: Sharer) -> None:
    one.take()
    one.beat(-1, None)
    assert one.wire.call(42, 2, groups_names=("g",)).results[0].error_code == 0
    assert "headrace_share_records_acquired_total" not in series(broker)
    assert reset(one.wire, 0) == 0
    assert counted(broker) == {}


def test_a_group_that_does_not_exist_is_not_told(broker: headrace.Broker) -> None:
    """It had a member, whose topics are not there."""
    about: dict[str, Any] = {"group": "left", "topics": ["mistyped"]}
    with headrace.SyncShareConsumer(broker.bootstrap_servers, **about):
        assert series(broker)["headrace_share_group_members"] == {("left",): 1}
    assert not series(broker).get("headrace_share_group_members")


@pytest.mark.parametrize(("granularity", "labels"), [("topic", ("g", "orders")), ("none", ("g",))])
def test_counters_are_summed_up(
    connecting: Connecting, granularity: str, labels: tuple[str, ...]
) -> None:
    settings = METRICS | {"headrace.metrics.granularity": granularity}
    with headrace.Broker(settings=settings) as broker, connecting(broker) as connect:
        wire = connect()
        topic = wire.create("orders", num_partitions=2).topic_id
        for partition in (0, 1):
            one = Sharer(connect(), topic, f"m{partition}", partition=partition)
            one.beat()
            produce(wire, 3, partition=partition)
            assert one.take() == [(0, 2, 1)]
            one.say(REJECT, 0, 0)
        told = series(broker)
        assert told["headrace_share_records_acquired_total"] == {labels: 6}
        archived = {key: count for key, count in
                    told["headrace_share_records_archived_total"].items() if count}  # fmt: skip
        assert archived == {(labels[0], "rejected", *labels[1:]): 2}
        assert "headrace_share_partition_lag" not in told
        assert ("headrace_share_group_lag_sum" in told) == (granularity == "topic")


# ---- the listener alone

KEY = ShareKey("g", UUID(int=1), 0)
M = MemberId("m")


def lock(first: int, last: int, since: int | None = 1, key: ShareKey = KEY) -> Acquired:
    wall = None if since is None else WallMs(since)
    return Acquired(key, Spans.of((first, last)), 1, M, MonoMs(9), since=wall)


def settled(state: State, ended: Ended, reason: str | None = None, last: int = 2) -> Settled:
    return Settled(KEY, Span(0, last), state, 1, reason, Hold(M, WallMs(1), ended))


def counts(*batches: list[Event]) -> dict[str, int]:
    meters = ShareMeters()
    for batch in batches:
        meters.count(batch)
    found = zip(Meter, meters.of(KEY).counts, strict=True)
    return {meter.name.lower(): count for meter, count in found if count}


@pytest.mark.parametrize(
    ("events", "wanted"),
    [
        ([], {}),
        ([lock(0, 4), lock(7, 7)], {"acquired": 6}),
        ([lock(0, 4, None)], {"renewed": 5}),
        ([lock(0, 4), LeaseAcquired(("g", "s"), 1, ()), LeaseSeen(("g", "s"), MonoMs(1))],
         {"acquired": 5}),
        ([lock(0, 4), LeaseSeen(("g", "s"), MonoMs(1))], {"renewed": 5}),
        ([lock(0, 4), Restarted(MonoMs(1), frozenset("g"))], {}),
        ([settled(State.ACKNOWLEDGED, Ended.LEASE_COMMITTED)], {"accepted": 3}),
        ([settled(State.AVAILABLE, Ended.MEMBER_LEFT)], {"released": 3}),
        ([settled(State.AVAILABLE, Ended.LOCK_EXPIRED)], {"expired": 3}),
        ([settled(State.ARCHIVED, Ended.LOCK_EXPIRED, f"{LIMIT_REACHED} 5 reached")],
         {"expired": 3, "archived_limit": 3, "without_dead_letter": 3}),
        ([settled(State.ARCHIVING, Ended.MEMBER_LEFT, f"{LIMIT_REACHED} 5 reached"),
          settled(State.ARCHIVED, Ended.COPIED, f"{LIMIT_REACHED} 5 reached")],
         {"released": 3, "archived_limit": 3, "dead_letters": 3}),
        ([settled(State.ARCHIVING, Ended.ACKNOWLEDGED, "bad"),
          settled(State.ARCHIVED, Ended.NOT_COPIED, "bad")],
         {"rejected": 3, "archived_rejected": 3, "without_dead_letter": 3}),
        ([settled(State.ARCHIVED, Ended.NO_RECORD, NO_RECORD)], {"archived_gap": 3}),
    ],
)  # fmt: skip
def test_what_events_count_as(events: list[Event], wanted: dict[str, int]) -> None:
    assert counts(events) == wanted


def test_a_machine_that_was_rebuilt_goes_on_counting_and_what_is_gone_does_not() -> None:
    meters = ShareMeters()
    for _ in range(3):
        again = ShareKey("g", UUID(int=1), 0)  # alike, and another object
        meters.count([lock(0, 1, key=again)])
    assert meters.of(KEY).counts[Meter.ACQUIRED] == 6
    assert len(meters._by_id) == 1
    meters.count([Forgotten(KEY)])
    assert not meters._by_id
    assert meters.of(KEY).counts[Meter.ACQUIRED] == 0
    assert meters.taken()[0] == set()


def test_locks_that_ended_and_records_on_their_way_to_dead_letters_are_to_be_told() -> None:
    meters, limit = ShareMeters(), f"{LIMIT_REACHED} 5 reached"
    meters.count([settled(State.AVAILABLE, Ended.LOCK_EXPIRED)])
    meters.count([settled(State.AVAILABLE, Ended.LOCK_EXPIRED, last=1)])
    meters.count([settled(State.ARCHIVING, Ended.ACKNOWLEDGED, limit)])
    meters.count([settled(State.ARCHIVED, Ended.ACKNOWLEDGED, limit)])  # told with their list
    meters.count([settled(State.AVAILABLE, Ended.MEMBER_LEFT)])
    meters.count([settled(State.ACKNOWLEDGED, Ended.ACKNOWLEDGED)])
    meters.count([settled(State.ARCHIVED, Ended.ACKNOWLEDGED, "rejected by the consumer")])
    told = {
        about[2:]: (one.first, one.last, one.records) for about, one in meters.taken()[1].items()
    }
    assert told == {
        (Ended.LOCK_EXPIRED, State.AVAILABLE): (0, 2, 5),
        (Ended.ACKNOWLEDGED, State.ARCHIVING): (0, 2, 3),
    }


def test_what_is_to_be_told_has_a_bound() -> None:
    meters = ShareMeters()
    for number in range(NOTICES_MAX + 5):
        hold = Hold(MemberId(f"m{number}"), None, Ended.LOCK_EXPIRED)
        meters.count([Settled(KEY, Span(number, number), State.AVAILABLE, 1, None, hold)])
    _, notices, rest = meters.taken()
    assert (len(notices), rest.records) == (NOTICES_MAX, 5)
    assert meters.taken()[1] == {}


def test_acknowledgements_that_fail_are_counted_as_errors(
    broker: headrace.Broker, one: Sharer
) -> None:
    one.take()
    assert one.code((0, 1, ACCEPT)) == 0
    assert one.code((4, 99, ACCEPT)) == 42
    one.say(RELEASE, 5, 5)
    one.fetch((5, 5, ACCEPT), max_records=0)
    assert series(broker)["headrace_request_errors_total"] == {
        ("ShareAcknowledge", "INVALID_REQUEST"): 1,
        ("ShareFetch", "INVALID_RECORD_STATE"): 1,
    }
