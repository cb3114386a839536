"""What is foretold of a group's offsets is what the sweep then does, to the millisecond."""

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core import offset_life, subscription
from headrace.core.consumer_events import (
    ConsumerGroupStored,
    ConsumerMemberDropped,
    ConsumerMemberStored,
)
from headrace.core.consumer_group import ConsumerGroup
from headrace.core.consumer_words import ConsumerMember
from headrace.core.group_events import GroupDropped, OffsetDropped, RebalanceBegan
from headrace.core.group_words import TIME_UNKNOWN, Cause, Committed, Expire, Limits, Look
from headrace.core.offset_forecast import Base, Due, Kept, Outlook, outlooks, removed_at
from headrace.core.offset_life import Owner
from headrace.core.offsets import Offsets
from headrace.core.types import MemberId, WallMs

MINUTE = 60_000
RETENTION = 3
TOPICS = ("bills", "orders")


@pytest.fixture
def groups(drive_groups: Callable[..., Any]) -> Any:
    return drive_groups()


@dataclass
class Group:
    """All that a group can be, to the one who decides over its offsets."""

    protocol_type: str | None
    is_empty: bool
    is_awaited: bool
    is_rebalancing: bool
    empty_since: WallMs
    subscribed: Container[str]
    name: str = "g"

    def ended(self, cause: Cause | None = None, by: str = "") -> list[GroupDropped]:
        return [GroupDropped(self.name, cause, by)]


class Outside:
    """Three minutes of retention."""

    limits = Limits()

    def is_share_group(self, group: str) -> bool:
        return False

    def retention_minutes(self, group: str) -> int:
        return RETENTION


times = st.integers(0, 10 * MINUTE).map(WallMs)
groups_ = st.builds(
    Group,
    st.sampled_from([None, "consumer", "connect"]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.one_of(st.just(TIME_UNKNOWN), times),
    st.one_of(st.just(subscription.EVERYTHING), st.frozensets(st.sampled_from(TOPICS))),
)
commits = st.builds(
    Committed, st.integers(0, 99), st.just(-1), st.just(""), times, st.one_of(st.none(), times)
)
held = st.dictionaries(st.tuples(st.sampled_from(TOPICS), st.integers(0, 2)), commits)


def offsets(places: dict[tuple[str, int], Committed]) -> Offsets:
    found = Offsets()
    for (topic, partition), one in places.items():
        found.put(topic, partition, one)
    return found


def sweep(owner: Any, have: Offsets, at: int) -> tuple[set[tuple[str, int]], bool]:
    """The partitions whose offsets a sweep at that time drops, and whether the group goes too."""
    decided = offset_life.expire(
        Expire((Look(owner.name),), WallMs(at)), {owner.name: owner}, {owner.name: have}, Outside()
    )
    dropped = {
        (one.topic, one.partition) for one in decided.events if isinstance(one, OffsetDropped)
    }
    return dropped, len(decided.events) > len(dropped)


def due(found: list[Outlook], until: int) -> set[tuple[str, int]]:
    return {
        (one.topic, one.partition)
        for one in found
        if isinstance(one.fate, Due) and one.fate.at <= until
    }


@given(groups_, held)
def test_sweep_does_what_was_foretold(owner: Any, places: dict[tuple[str, int], Committed]) -> None:
    have = offsets(places)
    found = outlooks(owner, have, RETENTION)
    assert [(one.topic, one.partition) for one in found] == sorted(places)
    gone = removed_at(owner, found)
    moments = {one.fate.at for one in found if isinstance(one.fate, Due)} | {20 * MINUTE}
    for at in moments:
        for moment in (at - 1, at):
            assert sweep(owner, have, moment) == (
                due(found, moment),
                gone is not None and moment >= gone,
            )


def fates(groups: Any) -> dict[str, Due | Kept]:
    found = outlooks(groups.group(), groups.shard.offsets["g"], RETENTION)
    return {one.topic: one.fate for one in found}


def test_active_group_keeps_what_it_subscribes_to(
    groups: Any, subscribing: Callable[..., bytes]
) -> None:
    generation = groups.stable(1, offers={"range": subscribing("read")})
    groups.commit("g", 1, "m1", generation, topic="read")
    groups.commit("g", 1, "m1", generation, topic="left")
    at = groups.now.wall
    expected: dict[str, Due | Kept] = {
        "read": Kept.SUBSCRIBED,
        "left": Due(WallMs(at + RETENTION * MINUTE), Base.COMMIT, at),
    }
    assert fates(groups) == expected
    groups.shard.apply(RebalanceBegan("g"))
    assert set(fates(groups).values()) == {Kept.REBALANCING}
    assert removed_at(groups.group(), []) is None


@pytest.mark.parametrize(
    ("kind", "told", "kept"),
    [("consumer", b"?", Kept.UNREADABLE), ("connect", b"?", Kept.OTHER_PROTOCOL)],
)
def test_active_group_whose_topics_nobody_knows_keeps_all(
    groups: Any, kind: str, told: bytes, kept: Kept
) -> None:
    generation = groups.stable(1, kind=kind, offers={"range": told})
    groups.commit("g", 1, "m1", generation)
    assert fates(groups) == {"topic": kept}


def test_empty_group_counts_from_when_it_became_empty_and_goes_with_its_last_offset(
    groups: Any, subscribing: Callable[..., bytes]
) -> None:
    generation = groups.stable(1, offers={"range": subscribing("read")})
    groups.commit("g", 1, "m1", generation, topic="read")
    groups.commit("g", 1, "m1", generation, topic="brief", retention_ms=5)
    committed_at = groups.now.wall
    groups.elapse(1000)
    groups.leave(("m1", None))
    at = groups.now.wall
    last = Due(WallMs(at + RETENTION * MINUTE), Base.EMPTY, at)
    own = Due(WallMs(committed_at + 5), Base.OWN, committed_at)
    assert fates(groups) == {"read": last, "brief": own}
    found = outlooks(groups.group(), groups.shard.offsets["g"], RETENTION)
    assert removed_at(groups.group(), found) == last.at
    assert removed_at(groups.group(), []) == 0


def test_simple_group_counts_from_each_commit(groups: Any) -> None:
    groups.commit("g", 1)
    at = groups.now.wall
    assert fates(groups) == {"topic": Due(WallMs(at + RETENTION * MINUTE), Base.COMMIT, at)}


def test_groups_of_the_new_protocol_are_foretold_alike() -> None:
    member = ConsumerMember(MemberId("m"), None, None, "c", "/h", frozenset({"read"}), "", 1, None)
    group = ConsumerGroup("g")
    have = offsets(
        {("read", 0): Committed(1, -1, "", WallMs(7)), ("left", 0): Committed(1, -1, "", WallMs(8))}
    )
    group.apply(ConsumerMemberStored("g", member))
    group.apply(ConsumerGroupStored("g", 1, 0))

    def told(owner: Owner) -> list[Due | Kept]:
        return [one.fate for one in outlooks(owner, have, RETENTION)]

    assert told(group) == [
        Due(WallMs(8 + RETENTION * MINUTE), Base.COMMIT, WallMs(8)),
        Kept.SUBSCRIBED,
    ]
    group.apply(ConsumerMemberDropped("g", member.id))
    group.apply(ConsumerGroupStored("g", 2, 0, WallMs(500)))
    at = 500 + RETENTION * MINUTE
    assert told(group) == [Due(WallMs(at), Base.EMPTY, WallMs(500))] * 2
    assert sweep(group, have, at - 1) == (set(), False)
    assert sweep(group, have, at) == ({("read", 0), ("left", 0)}, True)
