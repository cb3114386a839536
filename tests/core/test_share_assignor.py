"""Who gets which partition of a share group: balance, and who keeps what as members come and go."""

from collections import Counter
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.assignors import Assignment, share
from headrace.core.share_group import Heartbeat, Seen, ShareGroup, Timing, TopicView
from headrace.core.types import MemberId, MonoMs, Now, TopicPartition, WallMs

ORDERS, BILLS = UUID(int=1), UUID(int=2)
BOTH = frozenset({ORDERS, BILLS})
NOW = Now(MonoMs(0), WallMs(0))

names = st.sampled_from([MemberId(name) for name in "abcdefgh"])
steps = st.lists(st.tuples(names, st.sampled_from([None, BOTH, BOTH, frozenset({ORDERS})])))
sizes = st.fixed_dictionaries({ORDERS: st.integers(1, 9), BILLS: st.integers(1, 9)})


def everything(partitions: dict[UUID, int]) -> set[TopicPartition]:
    return {TopicPartition(t, index) for t, count in partitions.items() for index in range(count)}


@given(steps, sizes)
def test_pools_are_balanced_and_complete(
    steps: list[tuple[MemberId, frozenset[UUID] | None]], partitions: dict[UUID, int]
) -> None:
    wanted: dict[MemberId, frozenset[UUID]] = {}
    told: Assignment = {}
    for member, topics in steps:
        wanted.pop(member, None)
        if topics is not None:
            wanted[member] = topics
        told = share(wanted, partitions, told)
        assert told.keys() == wanted.keys()
        for pool in _pools(wanted):
            members = [one for one, of_it in wanted.items() if of_it >= pool]
            loads = [sum(one.topic_id in pool for one in told[member]) for member in members]
            shared = Counter(
                one for member in members for one in told[member] if one.topic_id in pool
            )
            assert shared.keys() == everything({t: partitions[t] for t in pool})
            assert max(loads) - min(loads) <= 1
            assert max(shared.values()) - min(shared.values()) <= 1
            assert set(loads) == {1} or set(shared.values()) == {1}
        for member in wanted:
            assert {one.topic_id for one in told[member]} <= wanted[member]


def _pools(wanted: dict[MemberId, frozenset[UUID]]) -> list[frozenset[UUID]]:
    """The sets of topics that have the same subscribers, if any."""
    subscribers = {t: frozenset(m for m, topics in wanted.items() if t in topics) for t in BOTH}
    if subscribers[ORDERS] == subscribers[BILLS]:
        return [BOTH] if wanted else []
    return [frozenset({t}) for t in BOTH if subscribers[t]]


@given(st.permutations([MemberId(name) for name in "abcdefgh"]), sizes)
def test_who_joins_only_takes_and_who_leaves_only_gives(
    order: list[MemberId], partitions: dict[UUID, int]
) -> None:
    here: list[MemberId] = []
    told: Assignment = {}
    for joining in order:
        here.append(joining)
        after = share(dict.fromkeys(here, BOTH), partitions, told)
        assert all(after[member] <= told[member] for member in here if member != joining)
        told = after
    count = len(everything(partitions))
    for leaving in reversed(order[1:]):
        here.remove(leaving)
        after = share(dict.fromkeys(here, BOTH), partitions, told)
        if count > len(here):
            # None gives up what it has; with fewer partitions one may have to move to be read.
            assert all(after[member] >= told[member] for member in here)
        told = after


def test_nothing_new_changes_nothing() -> None:
    wanted = {MemberId("a"): BOTH, MemberId("b"): BOTH, MemberId("c"): frozenset({BILLS})}
    told = share(wanted, {ORDERS: 5, BILLS: 2}, {})
    assert share(wanted, {ORDERS: 5, BILLS: 2}, told) == told


def test_new_partitions_go_to_those_with_least() -> None:
    a, b = MemberId("a"), MemberId("b")
    before = share({a: BOTH, b: BOTH}, {ORDERS: 3}, {})
    after = share({a: BOTH, b: BOTH}, {ORDERS: 4}, before)
    assert after[a] >= before[a]
    assert after[b] >= before[b]
    assert len(after[a]) == len(after[b]) == 2


def test_more_members_than_partitions_share_them() -> None:
    members = [MemberId(name) for name in "abcde"]
    told = share(dict.fromkeys(members, frozenset({ORDERS})), {ORDERS: 2}, {})
    assert all(len(found) == 1 for found in told.values())
    assert sorted(Counter(one for found in told.values() for one in found).values()) == [2, 3]


@given(st.permutations([MemberId(name) for name in "abcdef"]), st.integers(1, 8), st.data())
def test_while_members_join_somebody_reads_every_partition(
    order: list[MemberId], count: int, data: st.DataObject
) -> None:
    """By what members were told: an old one hears of a change with its next heartbeat only."""
    group = ShareGroup("group")
    topics = {"orders": TopicView(ORDERS, (0,) * count, (5,) * count)}
    told: dict[MemberId, tuple[int, frozenset[TopicPartition]]] = {}

    def beat(member: MemberId) -> None:
        epoch, known = told.get(member, (0, frozenset()))
        wanted = None if epoch else frozenset({"orders"})
        command = Heartbeat("group", member, epoch, wanted)
        answer = group.heartbeat(command, NOW, Timing(), topics)
        assert isinstance(answer, tuple)
        events, seen = answer
        assert isinstance(seen, Seen)
        for event in events:
            group.apply(event)
        told[member] = seen.epoch, known if seen.assignment is None else seen.assignment

    for joining in order:
        beat(joining)
        for member in data.draw(st.lists(st.sampled_from(sorted(told)), max_size=3)):
            beat(member)
        read = frozenset().union(*(places for _, places in told.values()))
        assert read == everything({ORDERS: count})
