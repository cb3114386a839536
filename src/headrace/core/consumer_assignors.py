"""Who gets which partition of a consumer group of the new protocol: pure functions (KIP-848).

Source: Kafka 4.3's UniformAssignor and RangeAssignor. Topics of the same subscribers are one pool
of partitions, so the work grows with pools, members and partitions, not with their product.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from itertools import islice

from headrace.core.consumer_words import AssignMember, Assignor, Partitions, TopicView
from headrace.core.types import MemberId, TopicPartition

# Of levelling pools that share members; each makes the loads more even, so few are needed.
_PASSES_MAX = 64


Members = Mapping[MemberId, AssignMember]
Topics = Mapping[str, TopicView]


@dataclass(slots=True)
class _Pool:
    """Partitions that the same members subscribe to, and which of them each has."""

    members: tuple[MemberId, ...]
    topics: list[str] = field(default_factory=list)
    free: list[TopicPartition] = field(default_factory=list)  # in order, and nobody's yet
    held: dict[MemberId, list[TopicPartition]] = field(default_factory=dict)
    moved: set[MemberId] = field(default_factory=set)  # who has others than it had


def uniform(members: Members, topics: Topics) -> dict[MemberId, Partitions]:
    """Everybody as many partitions as the others, and as far as that allows those it had.

    Where all subscribe to the same topics the numbers differ by one at most, and nothing moves
    that need not. Otherwise balance comes first: no partition is with a member that has two more
    than another subscriber of it.

    >>> from uuid import UUID
    >>> a, b, topic = MemberId("a"), MemberId("b"), TopicView(UUID(int=1), 4)
    >>> first = uniform({a: AssignMember(frozenset({"t"}))}, {"t": topic})
    >>> second = uniform(
    ...     {a: AssignMember(frozenset({"t"}), owned=first[a]), b: AssignMember(frozenset({"t"}))},
    ...     {"t": topic},
    ... )
    >>> sorted(one.partition for one in second[a]), sorted(one.partition for one in second[b])
    ([0, 1], [2, 3])
    """
    load = dict.fromkeys(sorted(members), 0)
    pools = _pools(load, members, topics)
    for pool in pools:
        _keep(pool, members, topics, load)
    for pool in sorted(pools, key=lambda pool: len(pool.members)):  # least choice first
        _fill(pool, load)
    for _ in range(_PASSES_MAX):
        if sum(_level(pool, load) for pool in pools) == 0:
            break
    return _collected(members, pools)


def range_(members: Members, topics: Topics) -> dict[MemberId, Partitions]:
    """Of each topic, each subscriber the next few partitions; the first ones get one more.

    Static members come first, by instance, then the others by id. So topics with the same
    subscribers and as many partitions are co-partitioned.

    >>> from uuid import UUID
    >>> a, b, topic = MemberId("a"), MemberId("b"), TopicView(UUID(int=1), 5)
    >>> both = AssignMember(frozenset({"t"}))
    >>> told = range_({a: both, b: both}, {"t": topic})
    >>> sorted(one.partition for one in told[a]), sorted(one.partition for one in told[b])
    ([0, 1, 2], [3, 4])
    """
    order = sorted(members, key=lambda one: (*_static_first(members[one].instance), one))
    pools = _pools(order, members, topics)
    for pool in pools:
        for topic in pool.topics:
            view = topics[topic]
            quota, more = divmod(view.partitions, len(pool.members))
            first = 0
            for place, member in enumerate(pool.members[: view.partitions]):
                end = first + quota + (place < more)
                pool.moved.add(member)
                held = pool.held.setdefault(member, [])
                held += [TopicPartition(view.id, index) for index in range(first, end)]
                first = end
    return _collected(members, pools)


ASSIGNORS: Mapping[str, Assignor] = {"uniform": uniform, "range": range_}


def _static_first(instance: str | None) -> tuple[bool, str]:
    return instance is None, instance or ""


def _pools(order: Iterable[MemberId], members: Members, topics: Topics) -> list[_Pool]:
    """The pools, whose members are in the order given and whose topics are in that of names."""
    place = {member: index for index, member in enumerate(order)}
    alike: dict[frozenset[str], list[MemberId]] = {}
    for member in place:
        alike.setdefault(members[member].subscribed, []).append(member)
    kinds = list(alike.values())
    subscribers: dict[str, list[int]] = {}
    for kind, subscribed in enumerate(alike):
        for topic in subscribed & topics.keys():
            subscribers.setdefault(topic, []).append(kind)
    pools: dict[tuple[int, ...], _Pool] = {}
    for topic in sorted(subscribers):
        who = tuple(subscribers[topic])
        if who not in pools:
            everybody = (member for kind in who for member in kinds[kind])
            pools[who] = _Pool(tuple(sorted(everybody, key=place.__getitem__)))
        pools[who].topics.append(topic)
    return list(pools.values())


def _keep(pool: _Pool, members: Members, topics: Topics, load: dict[MemberId, int]) -> None:
    """Leave everything where it is, as far as it is still there and subscribed to."""
    views = [topics[topic] for topic in pool.topics]
    # By numbers: the hash of an id, or of a partition, would be most of the work.
    rows: dict[int, list[tuple[MemberId, TopicPartition] | None]] = {
        view.id.int: [None] * view.partitions for view in views
    }
    for member in pool.members:
        for one in members[member].owned:
            row = rows.get(one.topic_id.int)
            if row is not None and one.partition < len(row) and row[one.partition] is None:
                row[one.partition] = member, one
    for view in views:
        for index, kept in enumerate(rows[view.id.int]):
            if kept is None:
                pool.free.append(TopicPartition(view.id, index))
            else:
                pool.held.setdefault(kept[0], []).append(kept[1])
    for member, held in pool.held.items():
        load[member] += len(held)


def _fill(pool: _Pool, load: dict[MemberId, int]) -> None:
    """Give what nobody has to those who have least, until they have as many as the next."""
    free = iter(pool.free)
    left = len(pool.free)
    order = sorted(pool.members, key=lambda member: (load[member], member))
    width = 1  # how many get something
    while width < len(order):
        lift = width * (load[order[width]] - load[order[width - 1]])
        if lift > left:
            break
        left -= lift
        width += 1
    each, more = divmod(left, width)
    level = load[order[width - 1]] + each
    for place, member in enumerate(sorted(order[:width])):
        given = list(islice(free, level + (place < more) - load[member]))
        if given:
            pool.held.setdefault(member, []).extend(given)
            pool.moved.add(member)
            load[member] += len(given)


def _level(pool: _Pool, load: dict[MemberId, int]) -> int:
    """Move partitions from those who have most to those who have least; how many had to.

    A load that changed stays in the other heap as it was, which does no harm: who gave is never
    among those with least any more, nor who took among those with most.
    """
    givers = [(-load[member], member) for member, held in pool.held.items() if held]
    takers = [(load[member], member) for member in pool.members]
    heapify(givers)
    heapify(takers)
    moved = 0
    while givers and -givers[0][0] - takers[0][0] > 1:
        giver, taker = givers[0][1], takers[0][1]
        pool.held.setdefault(taker, []).append(pool.held[giver].pop())
        pool.moved |= {giver, taker}
        load[giver] -= 1
        load[taker] += 1
        heapreplace(takers, (load[taker], taker))
        if pool.held[giver]:
            heapreplace(givers, (-load[giver], giver))
        else:
            heappop(givers)
        moved += 1
    return moved


def _collected(members: Members, pools: Sequence[_Pool]) -> dict[MemberId, Partitions]:
    told: dict[MemberId, list[TopicPartition]] = {member: [] for member in members}
    for pool in pools:
        for member, held in pool.held.items():
            told[member] += held
    moved = frozenset().union(*(pool.moved for pool in pools))
    return {
        member: members[member].owned
        if member not in moved and len(held) == len(members[member].owned)
        else frozenset(held)
        for member, held in told.items()
    }
