"""Membership of share groups: the table of heartbeat rules, assignment, sessions."""

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from headrace.core.errors import Refused, Why
from headrace.core.share_group import Heartbeat, Seen, ShareGroup, Timing, TopicView
from headrace.core.share_session import PARTITIONS_MAX, Continue, ShareSessions
from headrace.core.types import MemberId, MonoMs, Now, TopicPartition, WallMs

ORDERS, BILLS = UUID(int=1), UUID(int=2)
TIMING = Timing(session_ms=45_000, heartbeat_ms=5_000, members_max=3)


class Driver:
    def __init__(self) -> None:
        self.group = ShareGroup("group")
        self.mono = 0
        self.timing = TIMING
        self.topics = {"orders": TopicView(ORDERS, (0, 0), (5, 5))}

    @property
    def now(self) -> Now:
        return Now(MonoMs(self.mono), WallMs(0))

    def beat(self, member: str, epoch: int, topics: set[str] | None = None) -> Seen | Refused:
        wanted = None if topics is None else frozenset(topics)
        command = Heartbeat("group", MemberId(member), epoch, wanted)
        answer = self.group.heartbeat(command, self.now, self.timing, self.topics)
        if isinstance(answer, Refused):
            return answer
        events, seen = answer
        self._apply(events)
        return seen

    def elapse(self, ms: int) -> None:
        self.mono += ms
        self._apply(self.group.expired(self.now, self.timing, self.topics))

    def _apply(self, events: Any) -> None:
        for event in events:
            self.group.apply(event)


@pytest.fixture
def drive() -> Driver:
    return Driver()


def partitions(topic: UUID, *indexes: int) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic, index) for index in indexes)


def test_first_answer_carries_the_whole_assignment(drive: Driver) -> None:
    assert drive.beat("a", 0, {"orders"}) == Seen(1, 5_000, partitions(ORDERS, 0, 1))


def test_topic_that_does_not_exist_is_assigned_when_it_appears(drive: Driver) -> None:
    seen = drive.beat("a", 0, {"bills"})
    assert seen == Seen(1, 200, frozenset())  # empty, never absent; and asked again soon
    drive.topics["bills"] = TopicView(BILLS, (0,), (0,))
    assert drive.beat("a", 1) == Seen(2, 5_000, partitions(BILLS, 0))


def test_who_subscribes_to_nothing_waits_for_nothing(drive: Driver) -> None:
    drive.beat("a", 0, {"orders"})
    assert drive.beat("a", 1, set()) == Seen(2, 5_000, frozenset())


def test_partitions_move_as_members_come_and_go(drive: Driver) -> None:
    drive.beat("a", 0, {"orders"})
    second = drive.beat("b", 0, {"orders"})
    assert isinstance(second, Seen)
    assert second.assignment is not None
    first = drive.beat("a", 1)
    assert isinstance(first, Seen)
    assert first.assignment is not None
    assert first.assignment | second.assignment == partitions(ORDERS, 0, 1)
    assert not first.assignment & second.assignment
    assert drive.beat("b", -1) == Seen(-1, 0, None)
    assert drive.beat("a", first.epoch) == Seen(first.epoch + 1, 5_000, partitions(ORDERS, 0, 1))


def test_between_two_assignments_lies_the_interval(drive: Driver) -> None:
    drive.timing = replace(TIMING, assignment_interval_ms=1000)
    assert drive.beat("a", 0, {"orders"}) == Seen(1, 5_000, partitions(ORDERS, 0, 1))
    drive.mono = 999
    assert drive.beat("b", 0, {"orders"}) == Seen(2, 200, frozenset()), "asked again soon"
    assert drive.beat("a", 1) == Seen(2, 5_000, None)
    drive.mono = 1000
    assert drive.beat("b", 2) == Seen(3, 5_000, partitions(ORDERS, 1))
    assert drive.beat("a", 2) == Seen(3, 5_000, partitions(ORDERS, 0))


def test_in_the_interval_nobody_keeps_what_is_not_wanted_any_more(drive: Driver) -> None:
    drive.timing = replace(TIMING, assignment_interval_ms=1000)
    drive.topics["bills"] = TopicView(BILLS, (0,), (0,))
    drive.beat("a", 0, {"orders", "bills"})
    drive.mono = 500
    assert drive.beat("a", 1, {"orders"}) == Seen(2, 5_000, partitions(ORDERS, 0, 1))
    drive.beat("a", -1)
    assert drive.group.assignment == {}
    # Nobody has anything, so there is nothing to spare by waiting.
    assert drive.beat("b", 0, {"bills"}) == Seen(4, 5_000, partitions(BILLS, 0))


def test_without_an_interval_each_change_is_assigned_at_once(drive: Driver) -> None:
    drive.beat("a", 0, {"orders"})
    assert drive.beat("b", 0, {"orders"}) == Seen(2, 5_000, partitions(ORDERS, 1))


def test_nothing_new_is_no_assignment(drive: Driver) -> None:
    drive.beat("a", 0, {"orders"})
    assert drive.beat("a", 1) == Seen(1, 5_000, None)
    assert drive.beat("a", 1, {"orders"}) == Seen(1, 5_000, partitions(ORDERS, 0, 1))


def test_lost_answer_is_repeated_with_the_previous_epoch(drive: Driver) -> None:
    drive.beat("a", 0, {"orders"})
    drive.beat("b", 0, {"orders"})
    first = drive.beat("a", 1)
    assert isinstance(first, Seen)
    assert first.epoch == 2
    assert drive.beat("a", 1) == Seen(2, 5_000, None)


@pytest.mark.parametrize(
    ("member", "epoch", "topics", "why"),
    [
        ("a", 0, None, Why.INVALID_REQUEST),
        ("a", 0, set[str](), Why.INVALID_REQUEST),
        ("stranger", 3, None, Why.UNKNOWN_MEMBER),
        ("stranger", -1, None, Why.UNKNOWN_MEMBER),
        ("a", 7, None, Why.STALE_EPOCH),
    ],
)
def test_heartbeats_that_are_refused(
    drive: Driver, member: str, epoch: int, topics: set[str] | None, why: Why
) -> None:
    drive.beat("a", 0, {"orders"})
    answer = drive.beat(member, epoch, topics)
    assert isinstance(answer, Refused)
    assert answer.why is why


def test_full_group_refuses_new_members_only(drive: Driver) -> None:
    for member in "abc":
        drive.beat(member, 0, {"orders"})
    full = drive.beat("d", 0, {"orders"})
    assert isinstance(full, Refused)
    assert full.why is Why.GROUP_FULL
    assert isinstance(drive.beat("a", 0, {"orders"}), Seen)


def test_silent_member_is_removed(drive: Driver) -> None:
    drive.beat("a", 0, {"orders"})
    drive.elapse(40_000)
    drive.beat("b", 0, {"orders"})
    drive.elapse(5_000)
    assert set(drive.group.members) == {"b"}
    assert drive.group.assignment == {MemberId("b"): partitions(ORDERS, 0, 1)}


class Sessions:
    def __init__(self) -> None:
        self.sessions = ShareSessions(sessions_max=2)

    def go(self, member: str, epoch: int, connection: int = 1, **changed: Any) -> Why | None:
        answer = self.sessions.decide(
            Continue(("group", MemberId(member)), epoch, connection, **changed)
        )
        if isinstance(answer, Refused):
            return answer.why
        for event in answer:
            self.sessions.apply(event)
        return None


def test_share_session_table() -> None:
    table = Sessions()
    first, second = TopicPartition(ORDERS, 0), TopicPartition(ORDERS, 1)
    assert table.go("a", 1) is Why.SESSION_NOT_FOUND
    assert table.go("a", -1) is Why.SESSION_NOT_FOUND
    assert table.go("a", 0, may_open=False) is Why.SESSION_EPOCH
    assert table.go("a", 0, added=[first]) is None
    assert table.go("a", 2) is Why.SESSION_EPOCH
    assert table.go("a", 1, added=[second], forgotten=[first]) is None
    assert table.sessions.sessions["group", MemberId("a")].partitions == (second,)
    assert table.go("a", 0) is None  # opened again: the epoch begins anew
    assert table.go("a", 1) is None
    assert table.go("b", 0) is None
    assert table.go("c", 0) is Why.SESSION_LIMIT
    assert table.go("a", -1) is None
    assert len(table.sessions) == 1


def test_a_joined_member_takes_the_place_of_the_oldest_session_without_a_member() -> None:
    table = Sessions()
    joined = {("group", MemberId(name)) for name in ("a", "d", "e", "f")}
    table.sessions = ShareSessions(4, connection_max=3, is_member=joined.__contains__)
    for name in "abc":
        assert table.go(name, 0) is None
    assert table.go("d", 0) is Why.SESSION_LIMIT, "its connection has three"
    assert table.go("x", 0, connection=2) is None
    assert table.go("y", 0, connection=2) is Why.SESSION_LIMIT, "it did not join"
    assert table.go("b", 1) is None  # it stays the oldest one
    assert table.go("d", 0, connection=2) is None
    assert table.go("b", 2) is Why.SESSION_NOT_FOUND
    assert table.go("e", 0, connection=2) is None
    assert table.go("f", 0, connection=3) is None
    assert {key[1] for key in table.sessions.sessions} == {"a", "d", "e", "f"}
    joined.add(("group", MemberId("g")))
    assert table.go("g", 0, connection=3) is Why.SESSION_LIMIT, "all are of members"
    assert table.go("d", 1) is None


def test_share_sessions_end_with_their_connection() -> None:
    table = Sessions()
    table.go("a", 0, connection=1)
    table.go("b", 0, connection=2)
    (ended,) = table.sessions.disconnected(1)
    table.sessions.apply(ended)
    assert [key[1] for key in table.sessions.sessions] == ["b"]


def test_a_share_session_holds_so_many_partitions_however_often_they_are_named() -> None:
    table = Sessions()
    whole = [TopicPartition(ORDERS, index) for index in range(PARTITIONS_MAX)]
    one_more = TopicPartition(ORDERS, PARTITIONS_MAX)
    assert table.go("a", 0, added=[*whole, one_more]) is Why.INVALID_REQUEST
    assert table.go("a", 0, added=[*whole, whole[0]]) is None
    assert table.go("a", 1, added=whole[:9]) is None  # as acknowledgements name them
    assert table.go("a", 2, added=[one_more]) is Why.INVALID_REQUEST
    assert table.go("a", 2, added=[one_more], forgotten=whole[:1]) is None
