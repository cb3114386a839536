"""What of a share-partition outlives the process, and what does not outlive its topic."""

from collections.abc import Callable, Collection
from uuid import UUID

from headrace.core.runs import CopiedRuns, Runs, State, Status
from headrace.core.shard_words import Event, Forgotten
from headrace.core.share_admin import Queue
from headrace.core.share_group import GroupRetained
from headrace.core.share_words import Hold, Range, ShareKey


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
    topic_id: UUID, partitions: Collection[ShareKey], queue_of: Callable[[str], Queue]
) -> list[Event]:
    """Return what is forgotten of a topic that is no more."""
    gone = [key for key in partitions if key.topic_id == topic_id]
    groups = dict.fromkeys(key.group for key in gone)
    bare = [name for name in groups if _is_bare(queue_of(name), topic_id)]
    return [*map(Forgotten, gone), *map(GroupRetained, bare)]


def _is_bare(queue: Queue, topic_id: UUID) -> bool:
    """Whether nothing but a record of it tells of the group once the topic is gone."""
    return not queue.is_retained and all(key.topic_id == topic_id for key in queue.partitions)
