"""Who gets which partition: pure functions of the members' subscriptions."""

from collections.abc import Mapping
from uuid import UUID

from headrace.core.types import MemberId, TopicPartition

Assignment = Mapping[MemberId, frozenset[TopicPartition]]


def share(
    subscriptions: Mapping[MemberId, frozenset[UUID]], partitions: Mapping[UUID, int]
) -> Assignment:
    """The share assignor: every partition has a member, every member a partition (KIP-932).

    Args:
        subscriptions: the topics each member wants.
        partitions: how many partitions each topic has.

    With more members than partitions several share one; the loads of members with equal
    subscriptions differ by one partition at most.

    >>> a, b, topic = MemberId("a"), MemberId("b"), UUID(int=1)
    >>> told = share({a: frozenset({topic}), b: frozenset({topic})}, {topic: 3})
    >>> [len(told[member]) for member in (a, b)]
    [2, 1]
    """
    assigned: dict[MemberId, set[TopicPartition]] = {member: set() for member in subscriptions}
    by_subscribers: dict[tuple[MemberId, ...], list[TopicPartition]] = {}
    for topic in sorted(partitions):
        members = tuple(sorted(m for m, topics in subscriptions.items() if topic in topics))
        if members:
            by_subscribers.setdefault(members, []).extend(
                TopicPartition(topic, index) for index in range(partitions[topic])
            )
    for members, shared in by_subscribers.items():
        for turn in range(max(len(members), len(shared))):
            assigned[members[turn % len(members)]].add(shared[turn % len(shared)])
    return {member: frozenset(told) for member, told in assigned.items()}
