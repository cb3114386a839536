"""What of a share-partition outlives the process, and what the loss of the end of its log."""

from collections.abc import Callable, Collection, Iterator
from typing import assert_never
from uuid import UUID

from headrace.core.runs import CopiedRuns, Runs, State, Status
from headrace.core.shard_words import Event, ForgetTopic, Forgotten, LogEndLost
from headrace.core.share_admin import Queue, discarded
from headrace.core.share_group import GroupRetained
from headrace.core.share_words import Hold, Range, Replayed, ShareKey, Started


def durable(runs: Runs | CopiedRuns) -> list[Range]:
    """What outlives the process: locks forgotten, never-delivered records not mentioned."""
    ranges: list[Range] = []
    holds: dict[Status, Hold] = {}
    for first, last, status in runs.pieces():
        state, deliveries, hold = status.state, status.deliveries, None
        if state is State.ACQUIRED:
            state, deliveries = State.AVAILABLE, status.stored
        elif status.holder is not None:
            hold = holds.get(status) or holds.setdefault(status, Hold(status.holder))
        if deliveries or state is not State.AVAILABLE:
            ranges.append((first, last, state, deliveries, status.reason, hold))
    return ranges


def forgotten(
    command: ForgetTopic | LogEndLost,
    partitions: Collection[ShareKey],
    queue_of: Callable[[str], Queue],
) -> list[Event]:
    """What is forgotten of a log that is no more, or whose end is not."""
    match command:
        case ForgetTopic(topic_id):
            gone = [key for key in partitions if key.topic_id == topic_id]
            groups = dict.fromkeys(key.group for key in gone)
            bare = [name for name in groups if _is_bare(queue_of(name), topic_id)]
            return [*map(Forgotten, gone), *map(GroupRetained, bare)]
        case LogEndLost(key, end):
            return _cut_off(key, queue_of(key.group), end)
        case _:
            assert_never(command)


def _is_bare(queue: Queue, topic_id: UUID) -> bool:
    """Whether nothing but a record of it tells of the group once the topic is gone."""
    return not queue.is_retained and all(key.topic_id == topic_id for key in queue.partitions)


def _cut_off(key: ShareKey, queue: Queue, end: int) -> list[Event]:
    """Nothing is known any more of records from `end` on: others will stand there.

    What leases have outstanding of the share-partition goes with it, as in a reset.
    """
    share = queue.partitions.get(key)
    if share is None or share.end <= end:
        return [*_discarded_behind(key, queue, end)]
    left = [
        (first, min(last, end - 1), state, deliveries, reason, hold)
        for first, last, state, deliveries, reason, hold in durable(share.runs)
        if first < end
    ]
    start = Started(key, min(share.start, end), share.state_epoch + 1)
    return [start, Replayed(key, left), *discarded(queue, frozenset([key]))]


def _discarded_behind(key: ShareKey, queue: Queue, end: int) -> Iterator[Event]:
    """Yield what leases have from `end` on that the share-partition does not know of."""
    for event in discarded(queue, frozenset([key])):
        acquisitions = next(one for one in queue.leases if one.key == event.lease).acquisitions
        held = (held for one in acquisitions.values() for held in one.held)
        if any(one.key == key and one.span.last >= end for one in held):
            yield event
