"""What a restart leaves of a share group, orderly or not, and where the log lost its end."""

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.client.connection import Cluster
from headrace.client.leases import Lease
from headrace.wire import batches

from .share_wire_rig import (
    ACCEPT,
    GROUP,
    RELEASE,
    TOPIC,
    Sharer,
    acquired,
    journaled,
    live,
    produce,
)

Connecting = Callable[[headrace.Broker], AbstractContextManager[Callable[[], Any]]]
SHORT_LOCKS = {
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.record.lock.duration.ms": "1000",
}
LIMIT = {"group.share.delivery.count.limit": "2"}


def begin(wire: Any, *sizes: int) -> Sharer:
    """A member at the first of some batches."""
    member = Sharer(wire, wire.create(TOPIC, num_partitions=1).topic_id)
    assert member.beat().error_code == 0
    produce(wire, *sizes)
    return member


def test_a_broker_that_stops_uses_up_no_delivery(tmp_path: Path, connecting: Connecting) -> None:
    """Nobody failed the record; else the restarts of a day would archive it."""
    with headrace.Broker(tmp_path, settings=LIMIT) as broker, connecting(broker) as connect:
        member = begin(connect(), 3)
        topic = member.topic_id
        assert member.take() == [(0, 2, 1)]
        broker.stop()
    for _ in range(3):
        with headrace.Broker(tmp_path, settings=LIMIT) as broker, connecting(broker) as connect:
            assert Sharer(connect(), topic).take() == [(0, 2, 1)]
            broker.stop()
    with headrace.Broker(tmp_path, settings=LIMIT) as broker, connecting(broker) as connect:
        wire = connect()
        assert Sharer(wire, topic).take() == [(0, 2, 1)]
        wire.close()  # whose member gives them back
        assert Sharer(connect(), topic, "other").take(max_wait=9000) == [(0, 2, 2)]


def test_a_restart_ends_the_locks_of_members_and_not_the_records_of_a_lease(
    tmp_path: Path, connecting: Connecting
) -> None:
    with headrace.Broker(tmp_path, settings=SHORT_LOCKS) as broker, connecting(broker) as connect:
        topic = begin(connect(), 3).topic_id
        with Cluster(broker.bootstrap_servers) as cluster:
            lease = Lease(cluster, GROUP, "nightly")
            lease.open((TOPIC,), "latest")
            assert [one.delivery_count for one in lease.acquire(1, 20, 1000)] == [1]
            assert Sharer(connect(), topic).take(max_wait=30_000) == [(0, 2, 2)]
            renewed = lease.renew()
            assert (renewed.held, renewed.lost) == (0, 3)
        broker.stop()  # before the member's connection ends, which would release its records
    with (
        headrace.Broker(tmp_path, settings=SHORT_LOCKS) as broker,
        connecting(broker) as connect,
        Cluster(broker.bootstrap_servers) as cluster,
    ):
        lease = Lease(cluster, GROUP, "nightly", lease.epoch)
        renewed = lease.renew()
        assert (renewed.held, renewed.lost) == (3, 0)
        assert Sharer(connect(), topic).take(max_wait=30_000) == [(0, 2, 2)]
        renewed = lease.renew()
        assert (renewed.held, renewed.lost) == (0, 3)


def cut(folder: Path, size: int) -> Path:
    """A copy of a data folder as after a power cut that took the end of the topic's log."""
    copy = folder.with_name("cut")
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns(".lock", "*.index", "*.timeindex"))
    log = copy / f"{TOPIC}-0" / f"{0:020d}.log"
    log.write_bytes(log.read_bytes()[:size])
    return copy


def test_records_in_the_place_of_lost_ones_are_new(
    tmp_path: Path, connecting: Connecting, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "data"
    with headrace.Broker(folder) as broker, connecting(broker) as connect:
        member = begin(connect(), 10, 10)
        topic, size = member.topic_id, len(batches.build([batches.Record(0, 5, b"k", b"v")] * 10))
        assert member.take() == [(0, 19, 1)]
        member.say(ACCEPT, 0, 3)
        member.say(ACCEPT, 6, 14)
        member.say(RELEASE, 5, 5)
        member.say(RELEASE, 16, 17)
        copy = cut(folder, size)
    with headrace.Broker(copy) as broker, connecting(broker) as connect:
        kept = "SPSO=4, SPEO=10, 4 available, 5 available 1, 6-9 acknowledged"
        assert journaled(copy, topic) == kept
        wire = connect()
        produce(wire, 10)
        assert Sharer(wire, topic).take() == [(4, 4, 1), (5, 5, 2), (10, 19, 1)]
    assert [line for line in caplog.messages if "lost" in line] == [
        "group g: orders-0 ends at 10, and lost the records up to 17 that the group had been "
        "given; those that take their places are new ones"
    ]


def test_a_queue_whose_start_was_lost_goes_on_at_the_end(
    tmp_path: Path, connecting: Connecting
) -> None:
    folder = tmp_path / "data"
    with headrace.Broker(folder) as broker, connecting(broker) as connect:
        member = begin(connect(), 10, 10)
        topic, size = member.topic_id, len(batches.build([batches.Record(0, 5, b"k", b"v")] * 10))
        member.take()
        member.say(ACCEPT, 0, 17)
        copy = cut(folder, size)
    for _ in range(2):
        with headrace.Broker(copy) as broker, connecting(broker) as connect:
            wire = connect()
            assert live(broker).startswith("SPSO=10, SPEO=10")
            broker.stop()
    with headrace.Broker(copy) as broker, connecting(broker) as connect:
        wire = connect()
        produce(wire, 3)
        assert acquired(Sharer(wire, topic).fetch()) == [(10, 12, 1)]
