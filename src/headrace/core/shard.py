"""One shard of share groups: routes commands to their machines, events to the same (style 2.1).

A shard is the unit of journaling: all that belongs to a group, its members, its share-partitions
and its leases, lives in one shard, so a decision over several of them is one atomic record batch.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import assert_never
from uuid import UUID

from headrace.core.errors import Refused, Why
from headrace.core.leases import (
    Held,
    Lease,
    LeaseAcquired,
    LeaseCommitted,
    LeaseEvent,
    LeaseKey,
    LeaseOpened,
    LeaseRestored,
    LeaseStaged,
    verdicts,
)
from headrace.core.machine import Decided
from headrace.core.runs import Runs, State
from headrace.core.shard_words import (
    AcquireLease,
    Command,
    CommitLease,
    Committed,
    Event,
    ForgetTopic,
    Forgotten,
    On,
    Opened,
    OpenLease,
    Outside,
    Recovered,
    ReleaseMember,
    Renewed,
    RenewLease,
    StageLease,
)
from headrace.core.share_group import (
    Assigned,
    Heartbeat,
    MemberGone,
    MemberSeen,
    ShareGroup,
    TopicView,
)
from headrace.core.share_partition import SharePartition
from headrace.core.share_words import (
    Acquire,
    Acquired,
    Advanced,
    Reclaim,
    ReleaseHeld,
    Settled,
    ShareKey,
    Started,
    Verdict,
)
from headrace.core.share_words import Event as PartitionEvent
from headrace.core.types import MonoMs, Now, Span


class ShareShard:
    """The machine of machines of one shard."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self.groups: dict[str, ShareGroup] = {}
        self.partitions: dict[ShareKey, SharePartition] = {}
        self.leases: dict[LeaseKey, Lease] = {}
        self.archiving: set[ShareKey] = set()  # where dead letters wait to be written
        self._of_group: dict[str, dict[ShareKey, SharePartition]] = {}
        self._due: list[tuple[MonoMs, int, ShareGroup | SharePartition]] = []
        self._pushes = count()

    def partitions_of(self, group: str) -> Mapping[ShareKey, SharePartition]:
        """The share-partitions of a group."""
        return self._of_group.get(group, {})

    def overtaken(self, topic_id: UUID, partition: int, start: int) -> list[SharePartition]:
        """The share-partitions of a partition whose SPSO is below its log's `start`."""
        keys = (ShareKey(group, topic_id, partition) for group in self._of_group)
        found = (self.partitions.get(key) for key in keys)
        return [one for one in found if one is not None and one.start < start]

    def decide(self, command: Command, now: Now) -> Decided[Event] | Refused:
        """The events that `command` makes true and the caller's reply, or why not."""
        match command:
            case Heartbeat():
                return self._heartbeat(command, now)
            case On(key, inner):
                partition = self.partitions.get(key)
                if partition is None:
                    return Refused(Why.UNKNOWN_PARTITION, f"{key} is not a share-partition")
                events = partition.decide(inner, now, self._outside.policy(key.group))
                return events if isinstance(events, Refused) else Decided(events, events)
            case ReleaseMember(group, member):
                policy = self._outside.policy(group)
                return Decided(
                    [
                        event
                        for partition in self.partitions_of(group).values()
                        for event in _certain(partition.decide(ReleaseHeld(member), now, policy))
                    ]
                )
            case OpenLease():
                return self._open(command, now)
            case AcquireLease() | RenewLease() | StageLease() | CommitLease():
                return self._with_lease(command, now)
            case ForgetTopic(topic_id):
                return Decided([Forgotten(k) for k in self.partitions if k.topic_id == topic_id])
            case Recovered():
                # Where a lock lapsed two leases may know of a record: the later delivery, applied
                # last, is the one that holds it.
                taken = [e for lease in self.leases.values() for e in self._reclaimed(lease, now)]
                taken.sort(key=lambda event: event.deliveries)
                return Decided(taken)
            case _:
                assert_never(command)

    def tick(self, now: Now) -> Sequence[Event]:
        """Locks that ended and members that fell silent."""
        events: list[Event] = []
        for key, partition in self.partitions.items():
            due = partition.next_deadline()
            if due is not None and due <= now.mono:
                events += partition.expired(now, self._outside.policy(key.group))
        for group in self.groups.values():
            due = group.next_deadline()
            if due is not None and due <= now.mono:
                events += group.expired(now, self._views(group.topics()))
        return events

    def next_deadline(self) -> MonoMs | None:
        """When the next lock or session ends."""
        while self._due:
            deadline, _, target = self._due[0]
            if target.next_deadline() == deadline:
                return deadline
            heapq.heappop(self._due)
        return None

    def apply(self, event: Event) -> None:
        """The only place where the shard's state changes; live and in recovery."""
        match event:
            case Started(key, start, state_epoch) if key not in self.partitions:
                partition = SharePartition(key, start, state_epoch)
                self.partitions[key] = partition
                self._of_group.setdefault(key.group, {})[key] = partition
            case Started() | Acquired() | Settled() | Advanced():
                self._apply_to_partition(event)
            case MemberSeen() | MemberGone() | Assigned():
                group = self.groups.get(event.group)
                if group is None:
                    group = self.groups[event.group] = ShareGroup(event.group)
                group.apply(event)
                if isinstance(event, MemberSeen):
                    self._push(event.member.expires, group)
            case LeaseOpened() | LeaseAcquired() | LeaseStaged() | LeaseCommitted():
                self._apply_to_lease(event)
            case LeaseRestored():
                self._apply_to_lease(event)
            case Forgotten(key):
                gone = self.partitions.pop(key, None)
                if gone is not None:
                    gone.runs = Runs(gone.start)  # its deadlines must not wake anybody any more
                self._of_group.get(key.group, {}).pop(key, None)
                self.archiving.discard(key)
            case _:
                assert_never(event)

    # ---- changes, called by apply only

    def _apply_to_partition(self, event: PartitionEvent) -> None:
        partition = self.partitions[event.key]
        partition.apply(event)
        if isinstance(event, Acquired):
            self._push(event.deadline, partition)
        if partition.runs.records[State.ARCHIVING]:
            self.archiving.add(event.key)
        else:
            self.archiving.discard(event.key)

    def _apply_to_lease(self, event: LeaseEvent) -> None:
        lease = self.leases.get(event.lease)
        if lease is None:
            lease = self.leases[event.lease] = Lease(event.lease)
        lease.apply(event)

    def _push(self, deadline: MonoMs, target: ShareGroup | SharePartition) -> None:
        heapq.heappush(self._due, (deadline, next(self._pushes), target))

    # ---- decisions

    def _views(self, names: Iterable[str]) -> dict[str, TopicView]:
        found = ((name, self._outside.topic(name)) for name in sorted(names))
        return {name: view for name, view in found if view is not None}

    def _heartbeat(self, command: Heartbeat, now: Now) -> Decided[Event] | Refused:
        group = self.groups.get(command.group) or ShareGroup(command.group)
        waited_for = group.topics()
        views = self._views(waited_for | (command.topics or frozenset()))
        timing = self._outside.timing(command.group)
        answer = group.heartbeat(command, now, timing, views)
        if isinstance(answer, Refused):
            return answer
        events, seen = answer
        # A topic that was subscribed to before it existed is read from its first record: "latest"
        # is where it was when the subscription was added, and it was nowhere.
        appeared = [view for name, view in views.items() if name in waited_for]
        added = [view for name, view in views.items() if name not in waited_for]
        earliest = self._outside.starts_earliest(command.group)
        started = [
            *self._started(command.group, appeared, earliest=True),
            *self._started(command.group, added, earliest=earliest),
        ]
        return Decided([*started, *events], seen)

    def _started(self, group: str, views: Iterable[TopicView], *, earliest: bool) -> list[Event]:
        """SPSO of each partition new to the group: as told, but 0 where the topic was known.

        KIP-932, "Managing the SPSO": decided and durable before anybody is told of the partition,
        so that nothing produced afterwards is skipped.
        """
        known = self.partitions_of(group)
        topics_known = {key.topic_id for key in known}
        events: list[Event] = []
        for view in views:
            for partition in range(view.partitions):
                key = ShareKey(group, view.id, partition)
                if key in known:
                    continue
                start = (view.starts if earliest else view.ends)[partition]
                if view.id in topics_known:
                    start = 0
                events.append(Started(key, start, state_epoch=0))
        return events

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
        started = self._started(group, views.values(), earliest=command.earliest)
        return Decided([*started, opened, *self._reclaimed(lease, now)], reply)

    def _with_lease(
        self, command: AcquireLease | RenewLease | StageLease | CommitLease, now: Now
    ) -> Decided[Event] | Refused:
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
                return self._acquire(lease, command, now)
            case RenewLease():
                events = self._reclaimed(lease, now)
                wanted = sum(
                    len(held.span)
                    for acquisition in lease.acquisitions.values()
                    for held in acquisition.held
                )
                kept = sum(len(event.span) for event in events)
                return Decided(events, Renewed(kept, wanted - kept))
            case StageLease(_, _, seq) if seq <= lease.committed:
                return Decided([])  # a batch that is replayed although it is settled
            case StageLease(_, _, seq, staged):
                refused = lease.check_staged(seq, staged)
                if refused is not None:
                    return refused
                return Decided([LeaseStaged(lease.key, seq, staged)])
            case CommitLease(_, _, seq):
                return self._commit(lease, seq)
            case _:
                assert_never(command)

    def _acquire(self, lease: Lease, command: AcquireLease, now: Now) -> Decided[Event] | Refused:
        known = lease.acquisitions.get(command.seq)
        if known is not None:
            return Decided(self._reclaimed(lease, now), known.held)
        refused = lease.check_new(command.seq)
        if refused is not None:
            return refused
        group = lease.key[0]
        policy = self._outside.policy(group)
        views = {view.id: view for view in self._views(lease.topics).values()}
        mine = [key for key in sorted(self.partitions_of(group)) if key.topic_id in views]
        turn = command.seq % len(mine) if mine else 0
        acquired: list[Event] = []
        left = command.records_max
        for index, key in enumerate(mine[turn:] + mine[:turn]):
            partition, end = self.partitions[key], views[key.topic_id].ends[key.partition]
            first = partition.next_fetch_offset()
            if first >= end:
                continue
            quota = -(-left // (len(mine) - index))
            wanted = Acquire(
                lease.holder, [Span(first, end - 1)], quota, policy.lease_window, exact=True
            )
            taken = _certain(partition.decide(wanted, now, policy))
            left -= sum(len(event.span) for event in taken if isinstance(event, Acquired))
            acquired += taken
        started = self._started(group, views.values(), earliest=True)
        held = tuple(
            sorted(
                (Held(e.key, e.span, e.deliveries) for e in acquired if isinstance(e, Acquired)),
                key=lambda one: (one.key, one.span),
            )
        )
        if not held:
            return Decided(started, held)
        return Decided([*started, *acquired, LeaseAcquired(lease.key, command.seq, held)], held)

    def _reclaimed(self, lease: Lease, now: Now) -> list[Acquired]:
        policy = self._outside.policy(lease.key[0])
        return [
            event
            for acquisition in lease.acquisitions.values()
            for held in acquisition.held
            if held.key in self.partitions
            for event in _certain(
                self.partitions[held.key].decide(
                    Reclaim(lease.holder, held.span, held.deliveries), now, policy
                )
            )
            if isinstance(event, Acquired)
        ]

    def _commit(self, lease: Lease, seq: int) -> Decided[Event]:
        policy = self._outside.policy(lease.key[0])
        events: list[Event] = []
        settled = dict.fromkeys(Verdict, 0)
        wanted = 0
        for number, acquisition in sorted(lease.acquisitions.items()):
            if number > seq:
                break
            wanted += sum(len(held.span) for held in acquisition.held)
            for held, staged in verdicts(acquisition):
                partition = self.partitions.get(held.key)
                if partition is None:
                    continue
                for run in partition.claimable(staged.span, held.deliveries, lease.holder):
                    events.append(partition.settle(run, staged.verdict, policy, staged.reason))
                    settled[staged.verdict] += len(run.span)
        if seq > lease.committed:
            events.append(LeaseCommitted(lease.key, seq))
        reply = Committed(
            settled[Verdict.ACCEPT],
            settled[Verdict.RELEASE],
            settled[Verdict.REJECT],
            wanted - sum(settled.values()),
        )
        return Decided(events, reply)


def _certain(answer: "list[PartitionEvent] | Refused") -> "list[PartitionEvent]":
    assert not isinstance(answer, Refused), answer  # these commands take what they find
    return answer
