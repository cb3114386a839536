"""Log lines on share groups: what somebody finds at 3 a.m., and no more of it than helps."""

import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

import headrace
from headrace.broker.share_log import LINES_MAX, ShareLog, tell_notices
from headrace.broker.share_meters import About, Notice
from headrace.core.runs import State
from headrace.core.shard_words import Restarted
from headrace.core.share_group import GroupForgotten, Member, MemberGone, MemberSeen
from headrace.core.share_words import (
    Ended,
    ShareKey,
)
from headrace.core.types import MemberId, MonoMs, Now, TopicPartition, WallMs

from .share_wire_rig import DELETE_OFFSETS, Sharer, produce, reset

KEY = ShareKey("g", UUID(int=1), 3)
M = MemberId("m")
WINDOW = 100
BROKER_SETTINGS = {
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.record.lock.duration.ms": "1000",
}
SECONDS_MAX = 20


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Takes the lines on share groups so far."""
    caplog.set_level("INFO", "headrace.broker")

    def take() -> list[str]:
        found = [line for line in caplog.messages if "share group" in line or "locks" in line]
        caplog.clear()
        return found

    return take


# ---- members


def seen(member: str = "m", expires: int = 10, partitions: int = 2) -> MemberSeen:
    told = frozenset(TopicPartition(UUID(int=1), index) for index in range(partitions))
    one = Member(MemberId(member), 1, 0, frozenset({"t"}), MonoMs(expires), told, "app", "::1")
    return MemberSeen("g", one)


class Listening:
    def __init__(self) -> None:
        self.mono = 0
        self.log = ShareLog(lambda: Now(MonoMs(self.mono), WallMs(0)))

    def tell(self, *events: Any) -> None:
        self.log.tell(events)


def test_members_come_once_and_go_with_a_reason(lines: Callable[[], list[str]]) -> None:
    listening = Listening()
    listening.tell(seen())
    listening.tell(seen(expires=20, partitions=5))  # its heartbeats are no news
    listening.tell(seen("n"))
    assert lines() == [
        "share group g: member m of client app /::1 joined and reads 2 partitions; members: 1",
        "share group g: member n of client app /::1 joined and reads 2 partitions; members: 2",
    ]
    listening.tell(MemberGone("g", M))
    assert lines() == ["share group g: member m left; it read 5 partitions; members: 1"]
    listening.mono = 10
    listening.tell(MemberGone("g", MemberId("n")))
    assert lines() == [
        "share group g: member n was silent for its session timeout; it read 2 partitions; "
        "members: 0",
        "share group g has no members left; what they hold comes back when their connections or "
        "locks end",
    ]
    listening.tell(MemberGone("g", M))
    assert lines() == []


@pytest.mark.parametrize("end", [Restarted(MonoMs(1), frozenset("g")), GroupForgotten("g")])
def test_members_of_before_are_forgotten(lines: Callable[[], list[str]], end: Any) -> None:
    listening = Listening()
    listening.tell(seen(), end)
    lines()
    listening.tell(MemberGone("g", M))
    assert lines() == []
    listening.tell(seen())
    assert lines() == [
        "share group g: member m of client app /::1 joined and reads 2 partitions; members: 1"
    ]


# ---- locks that end, records that are given up


def notice(first: int, last: int) -> Notice:
    found = Notice()
    found.add(first, last)
    return found


@pytest.mark.parametrize(
    ("ended", "state", "line"),
    [
        (Ended.LOCK_EXPIRED, State.AVAILABLE,
         "locks of 3 records of orders-3 (5 to 7) ended while member m had them; others get them "
         "now"),
        (Ended.LOCK_EXPIRED, State.ARCHIVED,
         "locks of 3 records of orders-3 (5 to 7) ended while member m had them; the delivery "
         "limit is reached, they are archived without a dead letter"),
        (Ended.ACKNOWLEDGED, State.ARCHIVING,
         "3 records of orders-3 (5 to 7) were given back by member m; the delivery limit is "
         "reached, they go to the dead-letter topic, or are listed as archived if it takes none"),
    ],
)  # fmt: skip
def test_what_happened_to_records_is_a_line(
    lines: Callable[[], list[str]], ended: Ended, state: State, line: str
) -> None:
    about: dict[About, Notice] = {(KEY, M, ended, state): notice(5, 7)}
    tell_notices(about, Notice(), lambda _: "orders-3")
    assert lines() == [f"share group g: {line}"]


def test_a_storm_of_them_is_summed_up(lines: Callable[[], list[str]]) -> None:
    about: dict[About, Notice] = {
        (KEY, MemberId(f"m{number}"), Ended.LOCK_EXPIRED, State.AVAILABLE): notice(number, number)
        for number in range(LINES_MAX + 5)
    }
    tell_notices(about, notice(0, 99), lambda _: "orders-3")
    told = lines()
    assert len(told) == LINES_MAX + 1
    assert told[-1] == "locks of 105 further records ended, or their deliveries are used up"


# ---- administrators, and a live broker


def test_who_changed_a_group_is_told(
    broker: headrace.Broker, connect: Callable[[], Any], lines: Callable[[], list[str]]
) -> None:
    wire = connect()
    one = Sharer(wire, wire.create("orders", num_partitions=1).topic_id)
    assert reset(wire, 0) == 0
    assert reset(wire, 99) == 1
    one.beat()
    assert reset(wire, 0) == 68
    one.beat(-1, None)
    lines()
    topics = ({"topic_name": "orders"}, {"topic_name": "absent"})
    assert reset(wire, 0) == 0
    assert wire.call(DELETE_OFFSETS, 0, group_id="g", topics=topics).error_code == 0
    assert reset(wire, -1) == 0
    wire.call(42, 2, groups_names=("g",))
    assert lines() == [
        "share group g is set to begin orders-0 at 0 by - /127.0.0.1",
        "share group g: orders forgotten by - /127.0.0.1",
        "share group g is set to begin orders-0 at share.auto.offset.reset by - /127.0.0.1",
        "share group g was deleted by - /127.0.0.1",
    ]


def test_a_slow_member_is_told_of_with_what_it_held(
    broker: headrace.Broker, connect: Callable[[], Any], lines: Callable[[], list[str]]
) -> None:
    wire = connect()
    one = Sharer(wire, wire.create("orders", num_partitions=1).topic_id)
    one.beat()
    produce(wire, 3)
    assert one.take() == [(0, 2, 1)]
    deadline = time.monotonic() + SECONDS_MAX
    found: list[str] = []
    while not any("locks" in line for line in found):
        assert time.monotonic() < deadline
        time.sleep(0.02)
        found += lines()
    assert found[-1] == (
        "share group g: locks of 3 records of orders-0 (0 to 2) ended while member m had them; "
        "others get them now"
    )
