"""The topics of a consumer group of the new protocol, and who is to hold their partitions."""

import hashlib
from collections.abc import Mapping

from headrace.core.consumer_group import ConsumerGroup
from headrace.core.consumer_words import (
    NOTHING,
    AssignMember,
    ConsumerOutside,
    Partitions,
    TopicView,
)
from headrace.core.types import MemberId

_HASH_BYTES = 8  # the journal has room for an int64


def topics_of(group: ConsumerGroup, outside: ConsumerOutside) -> dict[str, TopicView]:
    """The topics that the group subscribes to and that exist."""
    names = frozenset().union(*set(group.existing(outside).values()))
    return {name: view for name in sorted(names) if (view := outside.topic(name)) is not None}


def hash_of(topics: Mapping[str, TopicView]) -> int:
    """An int64 that is another when a topic came, went, grew, or was made anew; 0 without topics.

    Kafka has another hash here: a group that it takes over has a new epoch, and nothing worse.
    """
    if not topics:
        return 0
    digest = hashlib.blake2b(digest_size=_HASH_BYTES)
    for name, view in topics.items():
        digest.update(f"{name} {view.id} {view.partitions}\n".encode())
    return int.from_bytes(digest.digest(), "big", signed=True)


def has_whole_target(group: ConsumerGroup, topics: Mapping[str, TopicView]) -> bool:
    """Return whether the target gives each partition to one member, or a new target is due."""
    if group.epoch > group.target_epoch:
        return True
    targets = [group.target(member) for member in group.members]
    partitions = sum(view.partitions for view in topics.values())
    return partitions == len(NOTHING.union(*targets)) == sum(map(len, targets))


def assigned_by(group: ConsumerGroup, outside: ConsumerOutside) -> dict[MemberId, Partitions]:
    """What the group's assignor gives each of its members."""
    assignors = outside.consumer_limits.assignors
    chosen = group.assignor(default=next(iter(assignors)))
    wanted = group.existing(outside)
    members = {
        member.id: AssignMember(wanted[member.id], member.instance, group.target(member.id))
        for member in group.members.values()
    }
    # A journal may name an assignor that this broker does not have.
    assign = assignors.get(chosen) or next(iter(assignors.values()))
    return assign(members, topics_of(group, outside))
