"""The seed document on share groups (KIP-932 as proposed), held against a broker by raw requests.

Its operation table, its example of records in flight and its state diagram, row by row; after each
step the state is as the broker shows it, and as its journal alone would have it.
"""

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

import headrace

from .share_wire_rig import (
    ACCEPT,
    GAP,
    REJECT,
    RELEASE,
    RENEW,
    Sharer,
    configure,
    journaled,
    live,
    produce,
    until,
)

LIMIT = 5  # share.delivery.count.limit by default
BROKER_SETTINGS = {"group.share.min.record.lock.duration.ms": "1000"}
Connecting = Callable[[headrace.Broker], AbstractContextManager[Callable[[], Any]]]


@pytest.fixture
def topic(connect: Callable[[], Any]) -> Any:
    return connect().create("orders", num_partitions=1).topic_id


def locks_end_after(wire: Any, ms: int) -> None:
    """For locks that begin from now on; those that run go on as they are."""
    configure(wire, share_record_lock_duration_ms=str(ms))


class Table:
    """A member of a group at offset 100, and the state as the broker and its journal have it."""

    def __init__(self, broker: headrace.Broker, wire: Any, topic: Any) -> None:
        self.broker = broker
        self.wire = wire
        self.topic = topic
        produce(wire, 100)
        self.one = Sharer(wire, topic)
        assert self.one.beat().error_code == 0

    def fetch(self) -> list[tuple[int, int, int]]:
        return self.one.take(share_acquire_mode=1)

    def expect(self, seen: str, durable: str) -> None:
        assert live(self.broker) == seen
        assert journaled(self.broker.data_dir, self.topic) == durable


@pytest.fixture
def table(broker: headrace.Broker, connect: Callable[[], Any], topic: Any) -> Table:
    return Table(broker, connect(), topic)


def test_the_operation_table_of_a_batch(table: Table) -> None:
    table.expect("SPSO=100, SPEO=100", "SPSO=100, SPEO=100")  # latest offset 100
    produce(table.wire, 10)
    assert table.fetch() == [(100, 109, 1)]
    table.expect("SPSO=100, SPEO=110, 100-109 acquired 1", "SPSO=100, SPEO=100")
    table.one.say(ACCEPT, 100, 109)
    table.expect("SPSO=110, SPEO=110", "SPSO=110, SPEO=110")


def test_the_operation_table_of_a_messier_sequence(table: Table) -> None:
    one, expect = table.one, table.expect
    produce(table.wire, 20)
    assert one.take(share_acquire_mode=1, max_records=10) == [(100, 109, 1)]
    one.say(ACCEPT, 100, 109)
    assert table.fetch() == [(110, 119, 1)]
    expect("SPSO=110, SPEO=120, 110-119 acquired 1", "SPSO=110, SPEO=110")
    one.say(RELEASE, 110, 110)
    expect(
        "SPSO=110, SPEO=120, 110 available 1, 111-119 acquired 1",
        "SPSO=110, SPEO=111, 110 available 1",
    )
    one.say(ACCEPT, 119, 119)
    rest = "119 acknowledged"
    expect(
        f"SPSO=110, SPEO=120, 110 available 1, 111-118 acquired 1, {rest}",
        f"SPSO=110, SPEO=120, 110 available 1, 111-118 available, {rest}",
    )
    produce(table.wire, 1)
    assert table.fetch() == [(110, 110, 2), (120, 120, 1)]
    rest += ", 120 acquired 1"
    assert live(table.broker) == (f"SPSO=110, SPEO=121, 110 acquired 2, 111-118 acquired 1, {rest}")

    locks_end_after(table.wire, 1000)
    one.say(RENEW, 111, 112)  # so that theirs end alone, and long before the others
    now = f"110 acquired 2, 111-112 available 1, 113-118 acquired 1, {rest}"
    until(table.broker, f"SPSO=110, SPEO=121, {now}")
    locks_end_after(table.wire, 30_000)
    written = "110-112 available 1, 113-118 available, 119 acknowledged"
    assert journaled(table.broker.data_dir, table.topic) == f"SPSO=110, SPEO=120, {written}"

    one.say(ACCEPT, 113, 118)
    rest, kept = "113-119 acknowledged, 120 acquired 1", "113-119 acknowledged"
    expect(
        f"SPSO=110, SPEO=121, 110 acquired 2, 111-112 available 1, {rest}",
        f"SPSO=110, SPEO=120, 110-112 available 1, {kept}",
    )
    assert table.fetch() == [(111, 112, 2)]
    assert live(table.broker) == f"SPSO=110, SPEO=121, 110-112 acquired 2, {rest}"
    one.say(ACCEPT, 110, 110)
    expect(
        f"SPSO=111, SPEO=121, 111-112 acquired 2, {rest}",
        f"SPSO=111, SPEO=120, 111-112 available 1, {kept}",
    )
    one.say(ACCEPT, 111, 112)
    expect("SPSO=120, SPEO=121, 120 acquired 1", "SPSO=120, SPEO=120")


def test_the_example_of_records_in_flight(
    broker: headrace.Broker,
    connect: Callable[[], Any],
    connecting: Connecting,
    topic: Any,
    tmp_path: Path,
) -> None:
    wire = connect()
    one = Sharer(wire, topic)
    assert one.beat().error_code == 0
    produce(wire, *[1] * 9)
    assert one.take(max_records=7) == [(0, 6, 1)]
    one.say(ACCEPT, 0, 1)  # Archived: SPSO has passed them
    one.say(RELEASE, 3, 3)
    assert one.take(max_records=1) == [(3, 3, 2)]
    one.say(RELEASE, 3, 3)
    one.say(ACCEPT, 5, 5)
    one.say(REJECT, 6, 6)
    in_flight = "3 available 2, {}, 5 acknowledged, 6 archived"
    seen = in_flight.format("4 acquired 1")
    assert live(broker) == f"SPSO=2, SPEO=7, 2 acquired 1, {seen}"
    # What is durable: SPSO, the count of 3, the states of 5 and 6.
    kept = in_flight.format("4 available")
    assert journaled(broker.data_dir, topic) == f"SPSO=2, SPEO=7, 2 available, {kept}"
    as_killed = tmp_path / "as-killed"  # a broker that stops releases what is acquired
    shutil.copytree(broker.data_dir, as_killed, ignore=shutil.ignore_patterns(".lock"))
    with (
        headrace.Broker(as_killed, settings=BROKER_SETTINGS) as again,
        connecting(again) as connect,
    ):
        assert live(again) == f"SPSO=2, SPEO=7, 2 available, {kept}"
        # Those of the figure that are Available beyond SPEO - 1 are given as any other.
        later = Sharer(connect(), topic, "later")
        assert later.take() == [(2, 2, 1), (3, 3, 3), (4, 4, 1), (7, 8, 1)]


def test_records_before_spso_cannot_be_had_and_after_speo_can(
    broker: headrace.Broker, connect: Callable[[], Any], topic: Any
) -> None:
    wire = connect()
    produce(wire, 5)
    one = Sharer(wire, topic)
    one.beat()
    assert one.take() == []
    produce(wire, 2)
    assert one.take(max_records=1) == [(5, 6, 1)]


class Held:
    """A record at offset 1 that is held for its n-th time, behind one that holds SPSO back."""

    def __init__(self, broker: headrace.Broker, connect: Callable[[], Any], topic: Any) -> None:
        self.broker = broker
        self.stuck = Sharer(connect(), topic, "stuck")
        self.one = Sharer(connect(), topic)
        self.one.beat()
        produce(self.one.wire, 1)
        assert self.stuck.take() == [(0, 0, 1)]
        produce(self.one.wire, 1)

    def deliver(self, deliveries: int) -> None:
        for number in range(1, deliveries + 1):
            if number > 1:
                self.one.say(RELEASE, 1, 1)
            assert self.one.take() == [(1, 1, number)]

    @property
    def state(self) -> str:
        told = live(self.broker)
        head = "SPSO=0, SPEO=2, 0 acquired 1, 1 "
        assert told.startswith(head) or told == "SPSO=0, SPEO=2, 0-1 acquired 1"
        return told.removeprefix(head)


@pytest.fixture
def held(broker: headrace.Broker, connect: Callable[[], Any], topic: Any) -> Held:
    return Held(broker, connect, topic)


@pytest.mark.parametrize(
    ("kind", "deliveries", "state"),
    [
        (ACCEPT, 1, "acknowledged"),
        (ACCEPT, LIMIT, "acknowledged"),
        (RELEASE, 1, "available 1"),
        (RELEASE, LIMIT - 1, f"available {LIMIT - 1}"),
        (RELEASE, LIMIT, "archived"),
        (REJECT, 1, "archived"),
        (REJECT, LIMIT, "archived"),
        (GAP, 1, "archived"),
        (RENEW, 2, "acquired 2"),
    ],
)
def test_edges_of_the_state_diagram_that_a_consumer_takes(
    held: Held, kind: int, deliveries: int, state: str
) -> None:
    held.deliver(deliveries)
    held.one.say(kind, 1, 1)
    assert held.state == state
    if state != f"acquired {deliveries}":
        # The edge was taken: nobody holds the record any more.
        assert held.one.code((1, 1, ACCEPT)) == 121


@pytest.mark.parametrize(("deliveries", "state"), [(1, "available 1"), (LIMIT, "archived")])
def test_an_acquisition_lock_that_elapsed(held: Held, deliveries: int, state: str) -> None:
    held.deliver(deliveries)
    locks_end_after(held.one.wire, 1000)
    held.one.say(RENEW, 1, 1)
    until(held.broker, f"SPSO=0, SPEO=2, 0 acquired 1, 1 {state}")
    assert held.one.code((1, 1, ACCEPT)) == 121


@pytest.mark.parametrize(("deliveries", "state"), [(1, "available 1"), (LIMIT, "archived")])
def test_a_session_that_ended_releases(held: Held, deliveries: int, state: str) -> None:
    held.deliver(deliveries)
    assert held.one.acknowledge(epoch=-1).error_code == 0
    assert held.state == state


@pytest.mark.parametrize("kind", [ACCEPT, REJECT])
def test_what_is_finished_at_spso_moves_it(held: Held, kind: int) -> None:
    held.deliver(1)
    held.one.say(kind, 1, 1)
    held.stuck.say(ACCEPT, 0, 0)
    assert live(held.broker) == "SPSO=2, SPEO=2"
