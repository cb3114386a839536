"""Administration of share groups: set or forget start offsets, delete a group. KIP-932.

Only a group without members may be changed, because what a member holds is discarded at once: SPSO
moves, and every lock and delivery count behind it is gone, also in the hands of somebody who went
on without being a member (Kafka's leaders go on with what they have in memory for a while).

A lease counts as a member while its driver calls: a reset between its acquisition and its commit
would deliver anew what the batch is about to write. Of a driver that fell silent, what is
outstanding goes with the state that is discarded; its numbers stay (`LeaseDiscarded`).

Members die with the process. A group is empty after a restart when those of before had the time for
a heartbeat; until then clients are told to ask again.

Dead letters on their way are waited for, in that clients ask again: forgotten before it is copied,
a rejected record would be in neither place (design §8).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, assert_never
from uuid import UUID

from headrace.core.errors import Refused, Why
from headrace.core.leases import (
    Acquisition,
    Lease,
    LeaseDiscarded,
    LeaseForgotten,
    Remainders,
    unused,
)
from headrace.core.machine import Decided, Unfinished
from headrace.core.runs import State
from headrace.core.shard_words import (
    AdminCommand,
    AlterShareOffsets,
    DeleteShareGroup,
    DeleteShareOffsets,
    Event,
    Forgotten,
    Removal,
)
from headrace.core.share_group import GroupForgotten, GroupRetained, ShareGroup, Timing, TopicView
from headrace.core.share_partition import SharePartition
from headrace.core.share_starts import is_begun, may_begin, started
from headrace.core.share_words import ShareKey, Started
from headrace.core.types import MonoMs, Now, after

TO_POLICY = -1  # a start: where share.auto.offset.reset leads
_HEARTBEATS = 2  # that members have time for after a restart: one may be lost with a connection
_NO_TOPIC = "This server does not host this topic-partition."


class Topics(Protocol):
    """What decisions here read beyond the group."""

    def topic(self, name: str) -> TopicView | None: ...
    def starts_earliest(self, group: str) -> bool: ...
    def timing(self, group: str) -> Timing: ...


@dataclass(frozen=True, slots=True)
class Queue:
    """A share group with all that belongs to it; `group` is its members, if it ever had some.

    That counts from `restarted` on, when the members of before were forgotten.
    """

    name: str
    group: ShareGroup | None
    partitions: Mapping[ShareKey, SharePartition]
    leases: Sequence[Lease]
    restarted: MonoMs | None = None
    is_retained: bool = False

    @property
    def exists(self) -> bool:
        """Whether it has members or share-partitions, or had some and was not deleted."""
        return bool(self.partitions or (self.group and self.group.members) or self.is_retained)

    def working_leases(self, now: Now) -> list[Lease]:
        """The leases that count as members."""
        return [lease for lease in self.leases if lease.is_member(now)]

    def is_empty(self, now: Now) -> bool:
        """Whether it has no members, and none of its leases counts as one."""
        return not (self.group and self.group.members) and not self.working_leases(now)


def decide_admin(
    command: AdminCommand, queue: Queue, topics: Topics, now: Now
) -> Decided[Event] | Refused:
    """What becomes of a group, or why nothing does."""
    if not queue.exists and not isinstance(command, AlterShareOffsets):
        return Refused(Why.UNKNOWN_GROUP, f"Group {queue.name} not found.")
    if not queue.is_empty(now):
        return Refused(Why.NON_EMPTY_GROUP, "The group is not empty.")
    if _may_be_heard_of(queue, topics, now):
        told = f"Members of group {queue.name} may be on their way; ask again in a moment."
        return Refused(Why.COORDINATOR_GONE, told)
    if any(one.runs.records[State.ARCHIVING] for one in queue.partitions.values()):
        told = f"Dead letters of group {queue.name} are being written; ask again in a moment."
        return Refused(Why.COORDINATOR_GONE, told)
    match command:
        case AlterShareOffsets():
            return _altered(command, queue, topics)
        case DeleteShareOffsets():
            return _without_topics(command, queue, topics)
        case DeleteShareGroup(group):
            events: list[Event] = [Forgotten(key, Removal.GROUP) for key in queue.partitions]
            events += [LeaseForgotten(lease.key) for lease in queue.leases]
            if queue.is_retained:
                events.append(GroupRetained(group, is_retained=False))
            outstanding = [one for lease in queue.leases for one in lease.acquisitions.values()]
            return Decided([*events, GroupForgotten(group)], unused=unused(outstanding))
        case _:
            assert_never(command)


def _may_be_heard_of(queue: Queue, topics: Topics, now: Now) -> bool:
    """Whether a member of before a restart may not have had the time for a heartbeat yet."""
    if queue.restarted is None or queue.group is not None or not queue.partitions:
        return False
    patience_ms = _HEARTBEATS * topics.timing(queue.name).heartbeat_ms
    return after(queue.restarted, patience_ms) > now.mono


def _altered(command: AlterShareOffsets, queue: Queue, topics: Topics) -> Decided[Event]:
    events: list[Started] = []
    reply: list[Refused | None] = []
    views = {name: topics.topic(name) for name in dict.fromkeys(one[0] for one in command.starts)}
    aged = {
        name: view.since(command.policy.get(name, ()))
        for name, view in views.items()
        if view is not None
    }
    begun = {
        view.id
        for view in views.values()
        if view is not None and is_begun(queue.name, view.id, view.partitions, queue.partitions)
    }
    earliest = topics.starts_earliest(queue.name)
    for name, index, wanted in command.starts:
        view = views[name]
        if view is None or not 0 <= index < view.partitions:
            reply.append(Refused(Why.UNKNOWN_PARTITION, _NO_TOPIC))
            continue
        refused = _closed_refusal(view, index, has_begun=view.id in begun)
        if refused is not None:
            reply.append(refused)
            continue
        first, end = view.starts[index], view.ends[index]
        start = wanted
        if wanted == TO_POLICY:
            start = aged[name].starts[index] if earliest else end
        if not 0 <= start <= end:
            # A start beyond the end would pass over records that are yet to be produced.
            told = f"Offset {wanted} is not in the log of {name}-{index}, which ends at {end}."
            reply.append(Refused(Why.OFFSET_OUT_OF_RANGE, told))
            continue
        key = ShareKey(queue.name, view.id, index)
        known = queue.partitions.get(key)
        state_epoch = 0 if known is None else known.state_epoch + 1
        events.append(Started(key, max(start, first), state_epoch))
        reply.append(None)
    reset = frozenset(event.key for event in events)
    events += _beside(queue, reset, aged.values(), earliest=earliest)
    return _with_discarded(command, queue, reset, events, tuple(reply))


def _closed_refusal(view: TopicView, index: int, *, has_begun: bool) -> Refused | None:
    """Return the refusal where closed logs keep a group from beginning in a partition.

    A group cannot begin a topic while every log is closed that would show that it has: the other
    partitions would be taken for new ones later, and begin behind records.
    """
    if index in view.closed:
        return Refused(Why.LOG_CLOSED, view.closed[index])
    if has_begun or may_begin(view):
        return None
    return Refused(Why.LOG_CLOSED, next(iter(view.closed.values())))


def _beside(
    queue: Queue, reset: frozenset[ShareKey], views: Iterable[TopicView], *, earliest: bool
) -> list[Started]:
    """SPSO of the other partitions of topics that the group has just come to know.

    The topic is added now, so they begin where a subscription added now would: they are no
    partitions that were added to it later, which begin at 0.
    """
    added = {key.topic_id for key in reset} - {key.topic_id for key in queue.partitions}
    new = (view for view in views if view.id in added)
    whole = started(queue.name, (), new, earliest=earliest)
    return [event for event in whole if event.key not in reset]


def _without_topics(command: DeleteShareOffsets, queue: Queue, topics: Topics) -> Decided[Event]:
    gone: list[ShareKey] = []
    reply: list[Refused | None] = []
    known: dict[UUID, list[ShareKey]] = {}
    for key in queue.partitions:
        known.setdefault(key.topic_id, []).append(key)
    for name in command.topics:
        view = topics.topic(name)
        keys = [] if view is None else known.pop(view.id, [])
        if keys:
            gone += keys
            reply.append(None)
        else:
            told = _NO_TOPIC if view is None else "There is no offset information to delete."
            reply.append(Refused(Why.UNKNOWN_TOPIC, told))
    events: list[Event] = [Forgotten(key, Removal.OFFSETS) for key in gone]
    if len(gone) == len(queue.partitions) and not queue.is_retained:
        events.append(GroupRetained(queue.name))
    return _with_discarded(command, queue, frozenset(gone), events, tuple(reply))


def _with_discarded(
    command: AlterShareOffsets | DeleteShareOffsets,
    queue: Queue,
    keys: frozenset[ShareKey],
    events: Sequence[Event],
    reply: object,
) -> Decided[Event]:
    """Decide events by which leases lose what they have outstanding of share-partitions.

    What is left of leases with many ranges is worked out in a thread, and the command is decided
    anew with it: nothing of it is decided before, and whatever has changed meanwhile is seen.
    """
    known = command.known if command.known.keys == keys else Remainders(keys)
    missing = not_prepared(queue, known)
    if sum([acquisition.ranges for acquisition in missing]) > command.ranges_max:
        prepare = partial(_prepared, command, known, missing)
        return Decided([], Unfinished(prepare=prepare, is_atomic=False))  # nothing is decided yet
    known = known.extended(missing)
    replaced = [before for before, left in known.pairs if left is not before]
    return Decided([*events, *discarded(queue, known)], reply, unused(replaced))


def _prepared(
    command: AlterShareOffsets | DeleteShareOffsets,
    known: Remainders,
    missing: Sequence[Acquisition],
) -> AlterShareOffsets | DeleteShareOffsets:
    """Return the command with what is left of further acquisitions."""
    return replace(command, known=known.extended(missing))


def not_prepared(queue: Queue, known: Remainders) -> list[Acquisition]:
    """Return the acquisitions of leases of which it is not known yet what is left."""
    prepared = {id(before) for before, _ in known.pairs}
    return [
        acquisition
        for lease in queue.leases
        for acquisition in lease.acquisitions.values()
        if id(acquisition) not in prepared
    ]


def discarded(queue: Queue, known: Remainders) -> list[LeaseDiscarded]:
    """Return what is left of leases, for which `known` has all acquisitions."""
    left_of = {id(before): left for before, left in known.pairs}
    events: list[LeaseDiscarded] = []
    for lease in queue.leases:
        left = [(seq, left_of[id(before)]) for seq, before in lease.acquisitions.items()]
        changed = tuple([(seq, one) for seq, one in left if one is not lease.acquisitions[seq]])
        if changed:
            events.append(LeaseDiscarded(lease.key, changed))
    return events
