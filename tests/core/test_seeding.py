"""Offsets that a reset policy commits: every cell of both tables, and when nothing is committed.

The tables are those of KIP-842 as read in docs/reset.md; an error cell leaves the offset alone.
"""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from headrace.core.consumer_words import TopicView
from headrace.core.errors import Why
from headrace.core.group_events import OffsetCommitted
from headrace.core.group_words import TIME_UNKNOWN, Cause, Extent, ResetPolicy, Seed
from headrace.core.machine import Entry
from headrace.core.reset import OutOfRange, Strategy
from headrace.core.types import WallMs
from headrace.log.group_records import BY_HEADER, CAUSE_HEADER

TOPIC = UUID(int=1)
START, END = 10, 20
MINUTE = 60_000

NOTHING_COMMITTED = {  # (a new group, a partition that is newer than the group)
    Strategy.NONE: (None, None),
    Strategy.EARLIEST: (START, START),
    Strategy.LATEST: (END, END),
    Strategy.EARLIEST_ON_START: (START, START),
    Strategy.LATEST_ON_START: (END, END),
    Strategy.SAFE_LATEST: (END, START),
}
OUTSIDE = {  # without the other setting, wherever the position is
    Strategy.NONE: None,
    Strategy.EARLIEST: START,
    Strategy.LATEST: END,
    Strategy.EARLIEST_ON_START: None,
    Strategy.LATEST_ON_START: None,
    Strategy.SAFE_LATEST: END,
}
UNDER, OVER = START - 1, END + 1


def extent(first: int | None = None, **other: Any) -> Extent:
    """Partition 0 of topic "t" with records 10 to 19."""
    about: dict[str, Any] = {
        "topic": "t",
        "topic_id": TOPIC,
        "partition": 0,
        "start": START,
        "end": END,
    }
    return Extent(**(about | other), first=None if first is None else WallMs(first))


@pytest.fixture
def groups(drive_groups: Callable[..., Any], subscribing: Callable[..., bytes]) -> Any:
    """A classic group "g" with a member that subscribes to "t"."""
    driver = drive_groups()
    driver.topics["t"] = TopicView(TOPIC, 2)
    driver.stable(1, offers={"range": subscribing("t")}, session_ms=1_800_000)
    return driver


@pytest.fixture
def consumers(drive_consumers: Callable[..., Any]) -> Any:
    """A group of KIP-848 with a member that subscribes to "t"."""
    driver = drive_consumers()
    driver.topics["t"] = TopicView(TOPIC, 2)
    driver.enter("m1")
    return driver


@pytest.fixture(params=["groups", "consumers"])
def either(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def policy(strategy: Strategy, nearest: OutOfRange = OutOfRange.NONE) -> dict[str, ResetPolicy]:
    return {"g": ResetPolicy(strategy, nearest)}


def outcome(offset: int | None) -> dict[tuple[str, int], int]:
    return {} if offset is None else {("t", 0): offset}


@pytest.mark.parametrize("nearest", OutOfRange)
@pytest.mark.parametrize("is_newer", [False, True])
@pytest.mark.parametrize("strategy", Strategy)
def test_nothing_committed(
    either: Any, strategy: Strategy, is_newer: bool, nearest: OutOfRange
) -> None:
    either.policies = policy(strategy, nearest)
    began = either.now.wall
    either.elapse(1_000)
    wanted = NOTHING_COMMITTED[strategy][is_newer]
    count = either.seed(extent(began if is_newer else began - 1))
    assert (count, either.committed()) == (wanted is not None, outcome(wanted))


@pytest.mark.parametrize("strategy", Strategy)
def test_a_partition_that_was_added(either: Any, strategy: Strategy) -> None:
    """Its end is its start: nothing is lost, whatever the strategy; `none` leaves it alone."""
    either.policies = policy(strategy)
    either.seed(extent(start=0, end=0), added=True)
    assert either.committed() == outcome(None if strategy is Strategy.NONE else 0)


@pytest.mark.parametrize("position", [UNDER, OVER])
@pytest.mark.parametrize("nearest", OutOfRange)
@pytest.mark.parametrize("strategy", Strategy)
def test_outside_the_log(
    groups: Any, strategy: Strategy, nearest: OutOfRange, position: int
) -> None:
    groups.policies = policy(strategy, nearest)
    groups.commit("g", position, "m1", 1, topic="t")
    wanted = OUTSIDE[strategy]
    if nearest is OutOfRange.NEAREST:
        wanted = START if position == UNDER else END
    count = groups.seed(extent())
    assert count == (wanted is not None)
    assert groups.committed() == outcome(position if wanted is None else wanted)


@pytest.mark.parametrize("nearest", OutOfRange)
@pytest.mark.parametrize("strategy", Strategy)
def test_an_added_partition_that_retention_cut_before_anybody_came(
    groups: Any, strategy: Strategy, nearest: OutOfRange
) -> None:
    """Its seed lies outside the log, but what the log has still is that of a new partition."""
    groups.policies = policy(strategy, nearest)
    groups.seed(extent(start=0, end=0), added=True)
    groups.seed(extent(groups.now.wall))
    wanted = NOTHING_COMMITTED[strategy][True]
    if nearest is OutOfRange.NEAREST and strategy is not Strategy.NONE:
        wanted = START
    assert groups.committed() == outcome(wanted)


@pytest.mark.parametrize("position", [START, END])
@pytest.mark.parametrize("strategy", Strategy)
def test_an_offset_inside_stays(groups: Any, strategy: Strategy, position: int) -> None:
    groups.policies = policy(strategy, OutOfRange.NEAREST)
    groups.commit("g", position, "m1", 1, topic="t")
    assert groups.seed(extent()) == 0
    assert groups.committed() == outcome(position)


def test_a_committed_offset_below_zero_is_none(groups: Any) -> None:
    """As clients take it, which read -1 where nothing is committed."""
    groups.policies = policy(Strategy.EARLIEST_ON_START)
    groups.commit("g", -1, "m1", 1, topic="t")
    assert groups.seed(extent()) == 1
    assert groups.committed() == outcome(START)


def test_of_an_added_partition_what_somebody_committed_stays(groups: Any) -> None:
    groups.policies = policy(Strategy.LATEST)
    groups.commit("g", 5, "m1", 1, topic="t")
    assert groups.seed(extent(start=0, end=0), added=True) == 0
    assert groups.committed() == outcome(5)


def test_what_was_committed_for_a_deleted_namesake_is_nothing(groups: Any) -> None:
    groups.policies = policy(Strategy.EARLIEST)
    groups.commit("g", 5, "m1", 1, topic="t", topic_id=UUID(int=9))
    groups.seed(extent())
    assert groups.committed() == outcome(START)


# ---- who is seeded


def test_without_a_policy_nothing_happens(either: Any) -> None:
    before = len(either.journal)
    assert either.seed(extent()) == either.seed(extent(), added=True) == 0
    assert len(either.journal) == before


def test_a_group_that_is_not_there_is_not_made(groups: Any) -> None:
    groups.policies = {"x": ResetPolicy(Strategy.LATEST)}
    assert groups.seed(extent(), group="x") == groups.seed(extent(), group="x", added=True) == 0
    assert "x" not in groups.shard.groups


def test_topics_that_nobody_subscribes_to_are_left_alone(either: Any) -> None:
    either.policies = policy(Strategy.LATEST)
    other = extent(topic="u")
    assert either.seed(other) == either.seed(other, added=True) == 0


def test_a_topic_that_was_made_again_keeps_what_is_committed_for_it(either: Any) -> None:
    """A log was looked at, and then its topic was deleted; nothing of it must come over."""
    either.policies = policy(Strategy.EARLIEST)
    old, new = UUID(int=8), UUID(int=9)
    either.topics["t"] = TopicView(new, 1)
    assert either.seed(extent(topic_id=new)) == 1
    for added in (False, True):
        assert either.seed(extent(topic_id=old, start=0, end=0), added=added) == 0
    del either.topics["t"]
    answer = either.shard.decide(Seed("g", (extent(topic_id=new, partition=1),)), either.now)
    assert answer.events == []
    assert either.committed() == outcome(START)


def test_a_group_without_members_is_told_nothing_new(groups: Any) -> None:
    groups.policies = policy(Strategy.EARLIEST, OutOfRange.NEAREST)
    groups.commit("g", UNDER, "m1", 1, topic="t")
    groups.leave(("m1", None))
    assert groups.seed(extent(), extent(partition=1)) == 0
    assert groups.committed() == outcome(UNDER)


def test_a_group_without_members_has_added_partitions_of_what_it_read(groups: Any) -> None:
    groups.policies = policy(Strategy.SAFE_LATEST)
    groups.commit("g", 15, "m1", 1, topic="t")
    groups.leave(("m1", None))
    new = extent(partition=1, start=0, end=0)
    assert groups.seed(new, extent(topic="u", start=0, end=0), added=True) == 1
    assert groups.committed() == {("t", 0): 15, ("t", 1): 0}


def test_a_simple_group_has_added_partitions_of_what_it_read(drive_groups: Any) -> None:
    groups = drive_groups()
    groups.policies = policy(Strategy.LATEST)
    groups.commit("g", 15, topic="t")
    assert groups.seed(extent(partition=1, start=0, end=0), added=True) == 1
    assert groups.seed(extent(partition=2)) == 0
    assert groups.committed() == {("t", 0): 15, ("t", 1): 0}


@pytest.mark.parametrize(
    "joining", [{"offers": {"range": b"\0\0\0\0\0\1"}}, {"kind": "connect"}], ids=str
)
def test_members_whose_topics_nobody_can_read_see_to_it_themselves(
    drive_groups: Any, joining: Any
) -> None:
    groups = drive_groups()
    groups.policies = policy(Strategy.LATEST)
    groups.stable(1, **joining)
    assert groups.seed(extent()) == groups.seed(extent(), added=True) == 0
    groups.commit("g", 15, "m1", 1, topic="t")
    assert groups.seed(extent(partition=1, start=0, end=0), added=True) == 1


def test_a_group_in_its_first_rebalance_is_not_seeded(drive_groups: Any) -> None:
    groups = drive_groups(initial_delay_ms=3_000)
    groups.policies = policy(Strategy.LATEST)
    groups.join()
    assert groups.seed(extent()) == groups.seed(extent(), added=True) == 0


def test_a_new_topic_that_a_regular_expression_matches(drive_consumers: Any) -> None:
    """Also before the member's next heartbeat, with which it is subscribed to."""
    groups = drive_consumers()
    groups.policies = policy(Strategy.SAFE_LATEST)
    groups.enter("m1", regex="order.*")
    groups.make_topic("orders", 1)
    orders = groups.topics["orders"].id
    new = extent(topic="orders", topic_id=orders, start=0, end=0)
    other = extent(topic="bills", start=0, end=0)
    assert groups.seed(new, other, added=True) == 1
    assert groups.committed() == {("orders", 0): 0}


# ---- when a group began


def test_it_began_with_its_first_member_and_keeps_that(groups: Any) -> None:
    began = groups.now.wall
    groups.elapse(MINUTE)
    groups.join(offers={"range": b""})
    groups.join("m1", offers={"range": b""})
    groups.sync("m1", 2, {})
    groups.restart()
    groups.leave(("m1", None), ("m2", None))
    assert groups.group().is_empty
    groups.restart()
    groups.elapse(1_000)
    groups.join()
    assert groups.group().began == began


def test_a_group_of_the_new_protocol_likewise(consumers: Any) -> None:
    began = consumers.now.wall
    consumers.elapse(1_000)
    consumers.enter("m2")
    consumers.heartbeat("m1", -1)
    consumers.heartbeat("m2", -1)
    consumers.restart()
    assert consumers.consumers().is_empty
    consumers.elapse(1_000)
    consumers.enter("m3")
    assert consumers.consumers().began == began


def test_it_goes_along_into_the_other_protocol_and_back(consumers: Any) -> None:
    began = consumers.now.wall
    consumers.heartbeat("m1", -1)
    consumers.elapse(1_000)
    consumers.join()
    member = next(iter(consumers.group().members))
    consumers.sync(member, 1, {})
    assert consumers.group().began == began
    consumers.leave((member, None))
    consumers.elapse(1_000)
    consumers.enter("m3")
    consumers.restart()
    assert consumers.consumers().began == began


def test_it_goes_with_the_group(groups: Any) -> None:
    groups.commit("g", 15, "m1", 1, topic="t")
    groups.leave(("m1", None))
    assert groups.delete("g") is None
    groups.elapse(1_000)
    groups.commit("g", 15, topic="t")
    assert groups.group().began == TIME_UNKNOWN
    groups.join()
    assert groups.group().began == groups.now.wall


def test_where_nobody_knows_when_a_group_began_no_partition_is_newer(
    drive_groups: Any, subscribing: Callable[..., bytes]
) -> None:
    """A journal of a time before this was kept; from the next generation on it is known."""
    told = subscribing("t")
    group = "0003 0008 636f6e73756d6572 00000001 0005 72616e6765 0002 6d31 0000000000000005"
    member = "00000001 0002 6d31 ffff 0001 63 0001 68 0000ea60 001b7740"
    value = bytes.fromhex(group + member) + len(told).to_bytes(4) + told + bytes(4)
    groups = drive_groups()
    groups.policies = policy(Strategy.SAFE_LATEST)
    groups.journal.append(Entry(b"\0\2\0\1g", value))
    groups.restart()
    assert groups.seed(extent(groups.now.wall + MINUTE)) == 1
    assert groups.committed() == outcome(END)
    groups.join("m1", offers={"range": told})
    groups.sync("m1", 2, {})
    groups.restart()
    assert groups.group().began == groups.now.wall
    assert groups.seed(extent(groups.now.wall, partition=1)) == 1
    assert groups.committed() == {("t", 0): END, ("t", 1): START}


# ---- what becomes of a seeded offset


def test_it_says_why(groups: Any) -> None:
    groups.policies = policy(Strategy.SAFE_LATEST, OutOfRange.NEAREST)
    groups.seed(extent(start=0, end=0), added=True)
    groups.seed(extent(), by="client /host")
    groups.seed(extent(0, partition=1), by="client /host")
    told = [dict(entry.headers) for entry in groups.journal[-3:]]
    assert {one[CAUSE_HEADER] for one in told} == {b"seeded"}
    assert [one[BY_HEADER] for one in told] == [
        b"safe_latest: new partition",
        b"nearest: outside the log (client /host)",
        b"safe_latest: nothing committed (client /host)",
    ]


def test_it_expires_and_is_deleted_like_any_other(groups: Any) -> None:
    groups.policies = policy(Strategy.LATEST)
    groups.seed(extent())
    assert groups.delete_offsets("g", ("t", 0)) == [Why.SUBSCRIBED_TO_TOPIC]
    groups.leave(("m1", None))
    groups.elapse(60 * 60_000 - 1)
    assert groups.expire("g").offsets == 0
    groups.elapse(1)
    assert groups.expire("g").offsets == 1
    assert "g" not in groups.shard.groups


def test_it_goes_with_its_topic(groups: Any) -> None:
    groups.policies = policy(Strategy.LATEST)
    groups.seed(extent())
    groups.forget("t", UUID(int=9))
    assert groups.committed() == outcome(END)
    groups.forget("t", TOPIC)
    assert groups.committed() == {}


def test_members_commit_over_it(groups: Any) -> None:
    groups.policies = policy(Strategy.LATEST)
    groups.seed(extent())
    groups.commit("g", 12, "m1", 1, topic="t")
    assert groups.seed(extent()) == 0
    assert groups.committed() == outcome(12)


def test_what_it_is_has_the_topic_and_no_epoch(groups: Any) -> None:
    groups.policies = policy(Strategy.LATEST)
    answer = groups.shard.decide(Seed("g", (extent(),)), groups.now)
    (event,) = answer.events
    assert isinstance(event, OffsetCommitted)
    assert event.cause is Cause.SEEDED
    made = event.committed
    assert (made.offset, made.leader_epoch, made.metadata) == (END, -1, "")
    assert (made.topic_id, made.committed_at, made.expires_at) == (TOPIC, groups.now.wall, None)
