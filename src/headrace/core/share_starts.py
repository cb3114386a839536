"""Where a share group begins in the partitions that are new to it. KIP-932, "Managing the SPSO".

Partitions begin in portions where they are many, the first ones last: a group that has one of the
first portion has begun the topic, and what is missing then was added later, or could not be opened.
"""

from collections.abc import Collection, Iterable
from uuid import UUID

from headrace.core.share_group import CLOSED, TopicView
from headrace.core.share_words import ShareKey, Started

STARTED_AT_ONCE = 100


def started(
    group: str, known: Collection[ShareKey], views: Iterable[TopicView], *, earliest: bool
) -> list[Started]:
    """Return SPSO of each partition new to the group: 0 where it has begun the topic.

    Decided and durable before anybody is told of the partition, so that nothing produced
    afterwards is skipped. A partition whose log cannot be opened begins later.
    """
    events: list[Started] = []
    for view in views:
        has_begun = is_begun(group, view.id, view.partitions, known)
        if not has_begun and not may_begin(view):
            continue
        for partition in range(view.partitions):
            key = ShareKey(group, view.id, partition)
            if key in known or view.ends[partition] == CLOSED:
                continue
            start = (view.starts if earliest else view.ends)[partition]
            events.append(Started(key, 0 if has_begun else start, state_epoch=0))
    return events


def is_begun(group: str, topic_id: UUID, partitions: int, known: Collection[ShareKey]) -> bool:
    """Return whether a group has begun a topic of so many partitions."""
    keys = (ShareKey(group, topic_id, number) for number in _first_portion(partitions))
    return any(key in known for key in keys)


def not_begun(group: str, known: Collection[ShareKey], view: TopicView) -> int:
    """Return how many closed partitions of a topic a group has not begun: it cannot begin them."""
    return sum([ShareKey(group, view.id, number) not in known for number in view.closed])


def may_begin(view: TopicView) -> bool:
    """Return whether a group can begin a topic: nothing else would show that it has."""
    return any(view.ends[number] != CLOSED for number in _first_portion(view.partitions))


def _first_portion(partitions: int) -> range:
    """Return the partitions that begin last, in one command; added ones change none of them."""
    return range(min(partitions, STARTED_AT_ONCE))
