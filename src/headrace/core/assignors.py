"""Who gets which partition of a share group: pure functions of subscriptions and the past."""

from collections.abc import Mapping, Sequence
from typing import TypeVar
from uuid import UUID

from headrace.core.types import MemberId, TopicPartition

Assignment = Mapping[MemberId, frozenset[TopicPartition]]

_Item = TypeVar("_Item", MemberId, TopicPartition)
_Bin = TypeVar("_Bin", MemberId, TopicPartition)


def share(
    subscriptions: Mapping[MemberId, frozenset[UUID]],
    partitions: Mapping[UUID, int],
    before: Assignment,
) -> Assignment:
    """The share assignor: every partition has a member, every member a partition (KIP-932).

    Args:
        subscriptions: the topics each member wants.
        partitions: how many partitions each topic has.
        before: the assignment so far; who had a partition keeps it, as far as balance allows.

    Topics with the same subscribers are balanced together: the loads of these differ by one
    partition at most, or with more members than partitions, the partitions' numbers of members.
    Among members with the same subscription, one that joins only takes: what moved from one old
    member to another would be read by nobody until the other's next heartbeat. A new subscription
    may split topics that were balanced together; their parts are balanced anew.

    >>> a, b, topic = MemberId("a"), MemberId("b"), UUID(int=1)
    >>> first = share({b: frozenset({topic})}, {topic: 3}, {})
    >>> both = share({a: frozenset({topic}), b: frozenset({topic})}, {topic: 3}, first)
    >>> sorted(one.partition for one in both[a]), sorted(one.partition for one in both[b])
    ([2], [0, 1])
    """
    assigned: dict[MemberId, set[TopicPartition]] = {member: set() for member in subscriptions}
    pools: dict[tuple[MemberId, ...], list[TopicPartition]] = {}
    for topic in sorted(partitions):
        members = tuple(sorted(m for m, topics in subscriptions.items() if topic in topics))
        if members:
            pools.setdefault(members, []).extend(
                TopicPartition(topic, index) for index in range(partitions[topic])
            )
    owners: dict[TopicPartition, list[MemberId]] = {}
    for member in sorted(before.keys() & subscriptions.keys()):
        for one in before[member]:
            owners.setdefault(one, []).append(member)
    for members, shared in pools.items():
        shared.sort(key=_in_order)
        if len(members) > len(shared):
            owned = {m: sorted(before.get(m, ()), key=_in_order) for m in members}
            for member, one in _spread(members, shared, owned).items():
                assigned[member].add(one)
        else:
            for one, member in _spread(shared, members, owners).items():
                assigned[member].add(one)
    return {member: frozenset(told) for member, told in assigned.items()}


def _in_order(one: TopicPartition) -> tuple[int, int]:
    """By number first: so who has too many keeps some of every topic, and gives of every one."""
    return one.partition, one.topic_id.int


def _spread(
    items: Sequence[_Item], bins: Sequence[_Bin], before: Mapping[_Item, Sequence[_Bin]]
) -> dict[_Item, _Bin]:
    """Every item into one bin, as many into each, give or take one, where it was before if it can.

    An item that was in several bins stays in the one with least.
    """
    quota, larger = divmod(len(items), len(bins))
    load = dict.fromkeys(bins, 0)
    spread: dict[_Item, _Bin] = {}
    for item in items:
        limit = quota + (larger > 0)
        room = [one for one in before.get(item, ()) if load.get(one, limit) < limit]
        if room:
            spread[item] = kept = min(room, key=load.__getitem__)
            load[kept] += 1
            larger -= load[kept] > quota
    free = [item for item in items if item not in spread]
    rooms = (one for level in range(quota + 1) for one in bins if load[one] <= level)
    return {**spread, **dict(zip(free, rooms, strict=False))}
