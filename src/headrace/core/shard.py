"""One shard of share groups: routes commands to their machines, events to the same (style 2.1).

A shard is the unit of journaling: all that belongs to a group, its members, its share-partitions
and its leases, lives in one shard, so a decision over several of them is one atomic record batch.
"""

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count
from typing import assert_never
from uuid import UUID

from headrace.core.archived import Archive, PageForgotten, PageListed, found_in
from headrace.core.errors import Refused, Why
from headrace.core.lasting import forgotten
from headrace.core.lease_recovery import recovered
from headrace.core.lease_settling import (
    acquired,
    committed,
    reclaim_command,
    reclaim_portion,
    settle_portion,
    staged,
)
from headrace.core.leases import (
    Lease,
    LeaseAcquired,
    LeaseCommitted,
    LeaseDiscarded,
    LeaseEvent,
    LeaseForgotten,
    LeaseKey,
    LeaseOpened,
    LeaseRestored,
    LeaseSeen,
    LeaseStaged,
)
from headrace.core.lost_end import lost_end, returned
from headrace.core.machine import Decided
from headrace.core.runs import Runs, State
from headrace.core.shard_words import (
    AcquireLease,
    AlterShareOffsets,
    ClearArchived,
    Command,
    CommitLease,
    DeleteShareGroup,
    DeleteShareOffsets,
    Event,
    ForgetTopic,
    Forgotten,
    GroupsForgotten,
    Keep,
    LeaseCommand,
    LeaseKept,
    LogEndLost,
    On,
    Opened,
    OpenLease,
    Outside,
    PartitionKept,
    ReclaimLease,
    Recovered,
    ReleaseMember,
    RenewLease,
    Restarted,
    ReturnRanges,
    SettleLease,
    StageLease,
    StartPartitions,
)
from headrace.core.share_admin import Queue, decide_admin
from headrace.core.share_group import (
    Assigned,
    GroupEvent,
    GroupForgotten,
    GroupRetained,
    Heartbeat,
    MemberGone,
    MemberSeen,
    ShareGroup,
    TopicView,
)
from headrace.core.share_partition import SharePartition
from headrace.core.share_starts import is_begun, may_begin, not_begun, started
from headrace.core.share_words import (
    PORTION_RUNS,
    Acquired,
    Advanced,
    Delayed,
    Leaving,
    ReleaseHeld,
    Replayed,
    Settled,
    ShareKey,
    Started,
)
from headrace.core.share_words import Event as PartitionEvent
from headrace.core.types import MemberId, MonoMs, Now, after

_RUNS = (Acquired, Settled, Replayed, Delayed)  # the events that lay runs, most frequent first
_TARGET_RUNS = 10  # what a share-partition or group costs in a tick, beside its runs
_NO_GROUPS: Counter[str] = Counter()
_LISTED = frozenset({Settled, Advanced, Forgotten})  # those that may change a list


class ShareShard:
    """The machine of machines of one shard."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self.groups: dict[str, ShareGroup] = {}
        self.partitions: dict[ShareKey, SharePartition] = {}
        self.leases: dict[LeaseKey, Lease] = {}
        self.retained: set[str] = set()  # groups that are known without share-partitions
        self.archive = Archive()
        self.archiving: set[ShareKey] = set()  # where dead letters wait to be written
        self.restarted: dict[str, MonoMs] = {}  # groups whose members are not known since
        self._of_group: dict[str, dict[ShareKey, SharePartition]] = {}
        self._leases_of: dict[str, dict[LeaseKey, Lease]] = {}
        self._of_topic: dict[UUID, Counter[str]] = {}  # share-partitions by group
        self._due: list[tuple[MonoMs, int, ShareGroup | SharePartition]] = []
        self._queued: dict[ShareGroup | SharePartition, MonoMs] = {}  # each one's earliest
        self._pushes = count()

    def partitions_of(self, group: str) -> Mapping[ShareKey, SharePartition]:
        """The share-partitions of a group."""
        return self._of_group.get(group, {})

    def leases_of(self, group: str) -> Mapping[LeaseKey, Lease]:
        """Return the leases of a group."""
        return self._leases_of.get(group, {})

    def with_leases(self) -> Collection[str]:
        """Return the groups that have leases."""
        return self._leases_of.keys()

    def with_partitions(self) -> list[str]:
        """Return the groups that have share-partitions."""
        return list(self._of_group)

    def walk(self) -> Iterator[str]:
        """Yield the names of all groups; they may come and go between two steps, or come twice."""
        yield from chain(list(self.retained), list(self.groups), list(self._of_group))

    def missing(self, group: str, topic_id: UUID, partitions: int) -> int:
        """Return how many of a topic's partitions are not share-partitions of a group."""
        return partitions - self._of_topic.get(topic_id, _NO_GROUPS)[group]

    def startable(self, group: str, view: TopicView) -> int:
        """Return how many of a topic's partitions a group has not begun, and can begin now."""
        missing = self.missing(group, view.id, view.partitions)
        return missing - not_begun(group, self.partitions, view) if missing else 0

    def queue(self, group: str) -> Queue:
        """All that there is of a group."""
        leases = list(self.leases_of(group).values())
        members, since = self.groups.get(group), self.restarted.get(group)
        is_retained = group in self.retained
        return Queue(group, members, self.partitions_of(group), leases, since, is_retained)

    def groups_of(self, topic_id: UUID) -> Collection[str]:
        """Return the groups that have share-partitions of a topic."""
        return self._of_topic.get(topic_id, _NO_GROUPS).keys()

    def decide(self, command: Command, now: Now) -> Decided[Event] | Refused:
        """The events that `command` makes true and the caller's reply, or why not."""
        answer = self._decide(command, now)
        if isinstance(answer, Refused):
            return answer
        events = self._with_lists(answer.events, now)
        return Decided(events, answer.reply, answer.unused)

    def _decide(self, command: Command, now: Now) -> Decided[Event] | Refused:
        match command:
            case Heartbeat():
                return self._heartbeat(command, now)
            case On(key, inner):
                partition = self.partitions.get(key)
                if partition is None:
                    return Refused(Why.UNKNOWN_PARTITION, f"{key} is not a share-partition")
                events = partition.decide(inner, now, self._outside.policy(key.group))
                return events if isinstance(events, Refused) else Decided(events, events)
            case ReleaseMember() | StartPartitions():
                return Decided(self._for_members(command, now))
            case OpenLease() | AcquireLease() | RenewLease() | StageLease() | CommitLease():
                return self._seen(command.lease, self._with_lease(command, now), now)
            case ReclaimLease() | SettleLease():
                return self._with_lease(command, now)
            case AlterShareOffsets() | DeleteShareOffsets() | DeleteShareGroup():
                return decide_admin(command, self.queue(command.group), self._outside, now)
            case ForgetTopic() | LogEndLost() | ReturnRanges():
                return self._without_records(command)
            case ClearArchived(key, through):
                return Decided(self.archive.cleared(key, through))
            case Keep(partitions, leases, pages, groups):
                kept: list[Event] = [PartitionKept(o) for o in partitions if o in self.partitions]
                kept += [LeaseKept(one) for one in leases if one in self.leases]
                kept += [GroupRetained(one) for one in groups if one in self.retained]
                return Decided([*kept, *(e for one in pages for e in self.archive.kept(*one))])
            case Recovered():
                return recovered(
                    command, self.leases, self._of_group, self.partitions, self._outside.policy, now
                )
            case _:
                assert_never(command)

    def tick(self, now: Now, runs_max: int = PORTION_RUNS) -> Sequence[Event]:
        """Locks that ended and members that fell silent, a portion of them at a time.

        The earliest come first. Where there are more, `next_deadline` stays in the past.
        """
        events: list[Event] = []
        targets = 0
        for target in self._overdue(now):
            left = runs_max - len(events) - targets * _TARGET_RUNS
            if left <= 0:
                break
            due = target.next_deadline()
            if due is None or due > now.mono:
                continue
            targets += 1
            if isinstance(target, SharePartition):
                events += target.expired(now, self._outside.policy(target.key.group), left)
            else:
                timing = self._outside.timing(target.name)
                events += target.expired(now, timing, self._views_of(target.name, target.topics()))
        return self._with_lists(events, now)

    def _overdue(self, now: Now) -> Iterator[ShareGroup | SharePartition]:
        """Yield what was due by now, the earliest first; only so much of the heap is read."""
        heap = self._due
        seen: set[ShareGroup | SharePartition] = set()
        ahead = [(heap[0], 0)] if heap else []
        while ahead and ahead[0][0][0] <= now.mono:
            (_, _, target), index = heapq.heappop(ahead)
            for child in (2 * index + 1, 2 * index + 2):
                if child < len(heap):
                    heapq.heappush(ahead, (heap[child], child))
            if target not in seen:
                seen.add(target)
                yield target

    def next_deadline(self) -> MonoMs | None:
        """When the next lock or session ends."""
        while self._due:
            deadline, _, target = self._due[0]
            due = target.next_deadline()
            if due == deadline:
                return deadline
            heapq.heappop(self._due)
            self._queued.pop(target, None)
            self._push(due, target)
        return None

    def apply(self, event: Event) -> None:
        """The only place where the shard's state changes; live and in recovery."""
        self.apply_all((event,))

    def apply_all(self, events: Sequence[Event]) -> None:
        """Apply events in order: those of one share-partition that lay runs in one go."""
        together: list[PartitionEvent] = []
        for event in events:
            if isinstance(event, _RUNS):
                if together and event.key is not together[0].key:
                    self._lay(together)
                    together = []
                together.append(event)
            else:
                self._lay(together)
                together = []
                self._apply(event)
        self._lay(together)

    def _apply(self, event: Event) -> None:
        match event:
            case Started(key, start, state_epoch) if key not in self.partitions:
                partition = SharePartition(key, start, state_epoch)
                self.partitions[key] = partition
                self._of_group.setdefault(key.group, {})[key] = partition
                self._of_topic.setdefault(key.topic_id, Counter())[key.group] += 1
            case Started() | Advanced() | Leaving():
                self._lay([event])
            case Acquired() | Settled() | Replayed() | Delayed():
                self._lay([event])
            case MemberSeen() | MemberGone() | Assigned():
                self._apply_to_group(event)
            case LeaseOpened() | LeaseAcquired() | LeaseStaged() | LeaseCommitted():
                self._apply_to_lease(event)
            case LeaseDiscarded() | LeaseRestored() | LeaseSeen():
                self._apply_to_lease(event)
            case Restarted(at, groups):
                self.restarted.update(dict.fromkeys(groups, at))
            case PageListed() | PageForgotten():
                self.archive.apply(event)
            case PartitionKept() | LeaseKept():
                pass  # nothing is new but the record
            case GroupRetained(name, is_retained):
                (self.retained.add if is_retained else self.retained.discard)(name)
            case Forgotten() | LeaseForgotten() | GroupForgotten():
                self._forget(event)
            case _:
                assert_never(event)

    # ---- changes, called by apply only

    def _lay(self, events: Sequence[PartitionEvent]) -> None:
        """Apply events of one share-partition."""
        if not events:
            return
        key = events[0].key
        partition = self.partitions[key]
        partition.apply_all(events)
        self._push(partition.next_deadline(), partition)
        if partition.runs.records[State.ARCHIVING]:
            self.archiving.add(key)
        else:
            self.archiving.discard(key)

    def _apply_to_group(self, event: GroupEvent) -> None:
        group = self.groups.setdefault(event.group, ShareGroup(event.group))
        group.apply(event)
        if isinstance(event, MemberSeen):
            self._push(event.member.expires, group)
        elif not (group.members or group.assignment or self.partitions_of(group.name)):
            del self.groups[group.name]  # names that nothing stands behind are not kept

    def _apply_to_lease(self, event: LeaseEvent) -> None:
        lease = self.leases.get(event.lease)
        if lease is None:
            lease = self.leases[event.lease] = Lease(event.lease)
            self._leases_of.setdefault(lease.key[0], {})[lease.key] = lease
        lease.apply(event)

    def _forget(self, event: GroupsForgotten) -> None:
        match event:
            case Forgotten(key):
                gone = self.partitions.pop(key, None)
                if gone is not None:
                    # Its deadlines must not wake anybody any more.
                    gone.runs, gone.leaving = Runs(gone.start), frozenset()
                    groups = self._of_topic[key.topic_id]
                    groups[key.group] -= 1
                    if not groups[key.group]:
                        del groups[key.group]
                    if not groups:
                        del self._of_topic[key.topic_id]
                    del self._of_group[key.group][key]
                    if not self._of_group[key.group]:
                        del self._of_group[key.group]
                self.archiving.discard(key)
            case LeaseForgotten(lease):
                if self.leases.pop(lease, None) is not None:
                    leases = self._leases_of[lease[0]]
                    del leases[lease]
                    if not leases:
                        del self._leases_of[lease[0]]
            case GroupForgotten(name):
                self.groups.pop(name, None)

    def _push(self, deadline: MonoMs | None, target: ShareGroup | SharePartition) -> None:
        if deadline is not None and deadline < self._queued.get(target, after(deadline, 1)):
            self._queued[target] = deadline
            heapq.heappush(self._due, (deadline, next(self._pushes), target))

    # ---- decisions

    def _with_lists(self, events: Sequence[Event], now: Now) -> Sequence[Event]:
        """Events, and what they change in the lists of what was archived without a dead letter."""
        if _LISTED.isdisjoint(map(type, events)):
            return events
        more: list[Event] = []
        for key, runs in found_in(events, self.partitions, now).items():
            more += self.archive.listed(key, runs)
        for event in events:
            if isinstance(event, Forgotten):
                more += self.archive.forgotten(event.key)
        return [*events, *more] if more else events

    def _without_records(self, command: ForgetTopic | LogEndLost | ReturnRanges) -> Decided[Event]:
        match command:
            case ForgetTopic(topic_id):
                return Decided(forgotten(topic_id, self.partitions, self.queue))
            case LogEndLost(key):
                return lost_end(command, self.queue(key.group))
            case ReturnRanges():
                return returned(command, self.partitions)
            case _:
                assert_never(command)

    def _for_members(
        self, command: ReleaseMember | StartPartitions, now: Now
    ) -> Sequence[PartitionEvent]:
        group = command.group
        if isinstance(command, ReleaseMember):
            return self._member_left(group, command.member, now)
        keys = ((ShareKey(group, topic, index), start) for topic, index, start in command.starts)
        return [Started(key, start, 0) for key, start in keys if key not in self.partitions]

    def _member_left(self, group: str, member: MemberId, now: Now) -> list[PartitionEvent]:
        policy, left = self._outside.policy(group), PORTION_RUNS
        events: list[PartitionEvent] = []
        for partition in self.partitions_of(group).values():
            released = _certain(partition.decide(ReleaseHeld(member, left), now, policy))
            left = max(left - len(released), 0)
            events += released
        return events

    def _views(self, names: Iterable[str]) -> dict[str, TopicView]:
        found = ((name, self._outside.topic(name)) for name in sorted(names))
        return {name: view for name, view in found if view is not None}

    def _views_of(self, group: str, names: Iterable[str]) -> dict[str, TopicView]:
        """Return the topics that members of a group may be assigned."""
        known = self.partitions_of(group)
        return {
            name: view
            for name, view in self._views(names).items()
            if not self.missing(group, view.id, view.partitions)
            or is_begun(group, view.id, view.partitions, known)
            or may_begin(view)
        }

    def _heartbeat(self, command: Heartbeat, now: Now) -> Decided[Event] | Refused:
        group = self.groups.get(command.group) or ShareGroup(command.group)
        waited_for = group.topics()
        views = self._views_of(command.group, waited_for | (command.topics or frozenset()))
        timing = self._outside.timing(command.group)
        answer = group.heartbeat(command, now, timing, views)
        if isinstance(answer, Refused):
            return answer
        events, seen = answer
        views = {name: view for name, view in views.items() if self.startable(command.group, view)}
        # A topic that was subscribed to before it existed is read from its first record: "latest"
        # is where it was when the subscription was added, and it was nowhere.
        appeared = [view for name, view in views.items() if name in waited_for]
        found = command.starts
        added = [v.since(found.get(n, ())) for n, v in views.items() if n not in waited_for]
        earliest = self._outside.starts_earliest(command.group)
        known = self.partitions_of(command.group)
        starts = [
            *started(command.group, known, appeared, earliest=True),
            *started(command.group, known, added, earliest=earliest),
        ]
        return Decided([*starts, *events], seen)

    def _open(self, command: OpenLease, now: Now) -> Decided[Event] | Refused:
        group, _ = command.lease
        views = self._views(command.topics)
        missing = [topic for topic in command.topics if topic not in views]
        if missing:
            return Refused(Why.UNKNOWN_TOPIC, f"Topic {missing[0]} does not exist.")
        lease = self.leases.get(command.lease) or Lease(command.lease)
        opened = LeaseOpened(command.lease, lease.epoch + 1, command.topics)
        reply = Opened(
            opened.epoch,
            lease.committed,
            self._outside.policy(group).lock_ms,
            tuple(sorted(lease.acquisitions)),
        )
        known, policy = self.partitions_of(group), self._outside.policy(group)
        starts = started(group, known, views.values(), earliest=command.earliest)
        reclaim = reclaim_command(lease, command.runs_max, opened.epoch, reply)
        first = reclaim_portion(lease, reclaim, known, now, policy)
        return Decided([*starts, opened, *first.events], first.reply)

    def _seen(
        self, lease: LeaseKey, answer: Decided[Event] | Refused, now: Now
    ) -> Decided[Event] | Refused:
        """The answer to a session, which shows that its driver is at work unless it is refused."""
        if isinstance(answer, Refused):
            return answer
        events = [*answer.events, self._sign(lease, now)]
        return Decided(events, answer.reply, answer.unused)

    def _sign(self, lease: LeaseKey, now: Now) -> LeaseSeen:
        return LeaseSeen(lease, after(now.mono, self._outside.policy(lease[0]).lock_ms))

    def _with_lease(self, command: LeaseCommand, now: Now) -> Decided[Event] | Refused:
        group, _ = command.lease
        policy, partitions = self._outside.policy(group), self.partitions_of(group)
        if isinstance(command, SettleLease):
            return settle_portion(command, partitions, policy)
        if isinstance(command, OpenLease):
            return self._open(command, now)
        lease = self.leases.get(command.lease)
        if lease is None:
            return Refused(
                Why.UNKNOWN_MEMBER, f"Session {command.lease[1]} was never opened; open it first."
            )
        refused = lease.fence(command.epoch)
        if refused is not None:
            return refused
        match command:
            case AcquireLease():
                views = {view.id: view for view in self._views(lease.topics).values()}
                return acquired(lease, command, partitions, views, now, policy)
            case RenewLease():
                reclaim = reclaim_command(lease, command.runs_max, lease.epoch)
                return reclaim_portion(lease, reclaim, partitions, now, policy)
            case ReclaimLease():
                return reclaim_portion(lease, command, partitions, now, policy)
            case StageLease():
                return staged(lease, command)
            case CommitLease():
                return committed(lease, command, partitions, now, policy)
            case _:
                assert_never(command)


def _certain(answer: "list[PartitionEvent] | Refused") -> "list[PartitionEvent]":
    assert not isinstance(answer, Refused), answer  # these commands take what they find
    return answer
