"""The assignors of consumer groups: everything is with one subscriber, in balance, and stays."""

from itertools import pairwise
from math import ceil
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.consumer_assignors import ASSIGNORS, range_, uniform
from headrace.core.consumer_words import AssignMember, Assignor, Partitions, TopicView
from headrace.core.types import MemberId, TopicPartition

NAMES = ("ta", "tb", "tc", "td")
Assignment = dict[MemberId, Partitions]
some_topics = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 7)).map(
    lambda counts: {
        name: TopicView(UUID(int=NAMES.index(name) + 1), count) for name, count in counts.items()
    }
)
some_members = st.dictionaries(
    st.sampled_from("abcdefg").map(MemberId),
    st.builds(
        AssignMember,
        st.frozensets(st.sampled_from(NAMES)),
        st.none() | st.sampled_from(("i1", "i2", "i3")),
        st.frozensets(
            st.builds(
                TopicPartition, st.integers(1, len(NAMES)).map(lambda n: UUID(int=n)),
                st.integers(0, 8),
            )
        ),
    ),
)  # fmt: skip


def everything(topics: dict[str, TopicView]) -> Partitions:
    return frozenset(
        TopicPartition(view.id, index)
        for view in topics.values()
        for index in range(view.partitions)
    )


def again(members: dict[MemberId, AssignMember], told: Assignment) -> dict[MemberId, AssignMember]:
    """The members with what they were told as what they own; new ones own nothing."""
    return {
        name: AssignMember(member.subscribed, member.instance, told.get(name, frozenset()))
        for name, member in members.items()
    }


def alike(count: int, *topics: str) -> dict[MemberId, AssignMember]:
    return {MemberId(f"m{n:04}"): AssignMember(frozenset(topics)) for n in range(count)}


@pytest.mark.parametrize("assignor", ASSIGNORS.values(), ids=ASSIGNORS)
@given(members=some_members, topics=some_topics)
def test_each_partition_is_with_one_member_that_subscribes_to_it(
    assignor: Assignor, members: dict[MemberId, AssignMember], topics: dict[str, TopicView]
) -> None:
    told = assignor(members, topics)
    assert told.keys() == members.keys()
    given_out = [one for held in told.values() for one in held]
    assert len(given_out) == len(set(given_out))
    wanted = {name for member in members.values() for name in member.subscribed}
    assert set(given_out) == everything({n: v for n, v in topics.items() if n in wanted})
    names = {view.id: name for name, view in topics.items()}
    for member, held in told.items():
        assert {names[one.topic_id] for one in held} <= members[member].subscribed
    assert assignor(dict(reversed(members.items())), topics) == told, "the order of members counts"


@given(members=some_members, topics=some_topics)
def test_uniform_has_no_member_with_two_more_than_another_subscriber(
    members: dict[MemberId, AssignMember], topics: dict[str, TopicView]
) -> None:
    told = uniform(members, topics)
    names = {view.id: name for name, view in topics.items()}
    for held in told.values():
        for one in held:
            others = (m for m, said in members.items() if names[one.topic_id] in said.subscribed)
            assert all(len(held) - len(told[other]) <= 1 for other in others)
    assert uniform(again(members, told), topics) == told, "it moved although nothing changed"


@given(st.integers(1, 9), st.integers(0, 40), st.integers(0, 9))
def test_uniform_moves_nothing_but_the_share_of_the_one_that_joins(
    count: int, partitions: int, gone: int
) -> None:
    topics = {"t": TopicView(UUID(int=1), partitions)}
    before = uniform(alike(count, "t"), topics)
    joined = uniform(again(alike(count + 1, "t"), before), topics)
    newest = MemberId(f"m{count:04}")
    assert len(joined[newest]) == partitions // (count + 1)
    assert all(joined[member] <= held for member, held in before.items())
    left = again(alike(count + 1, "t"), joined)
    del left[MemberId(f"m{gone % (count + 1):04}")]
    after = uniform(left, topics)
    assert all(joined[member] <= held for member, held in after.items())
    assert {len(held) for held in after.values()} <= {
        partitions // count, ceil(partitions / count)
    }  # fmt: skip


def test_a_new_uniform_assignment_gives_neighbours_to_the_same_member() -> None:
    told = uniform(alike(3, "t"), {"t": TopicView(UUID(int=1), 7)})
    assert [sorted(one.partition for one in held) for held in told.values()] == [
        [0, 1, 2], [3, 4], [5, 6],
    ]  # fmt: skip


def test_with_different_subscriptions_balance_goes_before_stickiness() -> None:
    narrow, wide = MemberId("narrow"), MemberId("wide")
    topics = {"a": TopicView(UUID(int=1), 4), "b": TopicView(UUID(int=2), 2)}
    owned = everything({"a": topics["a"]})
    told = uniform(
        {
            narrow: AssignMember(frozenset("a")),
            wide: AssignMember(frozenset("ab"), owned=owned),
        },
        topics,
    )
    assert {len(held) for held in told.values()} == {3}
    assert everything({"b": topics["b"]}) <= told[wide]
    assert len(told[wide] & owned) == 1


@given(members=some_members, topics=some_topics)
def test_range_gives_each_subscriber_neighbours_static_members_first(
    members: dict[MemberId, AssignMember], topics: dict[str, TopicView]
) -> None:
    told = range_(members, topics)
    for name, view in topics.items():
        subscribers = sorted(
            (m for m, said in members.items() if name in said.subscribed),
            key=lambda m: (members[m].instance is None, members[m].instance or "", m),
        )
        ranges = [
            sorted(one.partition for one in told[member] if one.topic_id == view.id)
            for member in subscribers
        ]
        sizes = [len(each) for each in ranges]
        assert sizes == sorted(sizes, reverse=True)
        assert all(big - small <= 1 for big, small in pairwise(sizes))
        if subscribers:
            assert [index for each in ranges for index in each] == [*range(view.partitions)]


def test_topics_of_equal_size_are_co_partitioned_by_range() -> None:
    topics = {"a": TopicView(UUID(int=1), 5), "b": TopicView(UUID(int=2), 5)}
    for held in range_(alike(3, "a", "b"), topics).values():
        indexes = [{one.partition for one in held if one.topic_id.int == n} for n in (1, 2)]
        assert indexes[0] == indexes[1]
