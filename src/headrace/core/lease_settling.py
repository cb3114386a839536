"""What leases make of share-partitions: records acquired, locks taken back, and commits.

A commit is one decision and one atomic record batch, however many runs it settles: half of it must
never be durable. What can be done about its length is to make a run cheap.
"""

from collections.abc import Mapping
from uuid import UUID

from headrace.core.errors import Refused
from headrace.core.leases import (
    Acquisition,
    Held,
    Lease,
    LeaseAcquired,
    LeaseCommitted,
    LeaseStaged,
    verdicts,
)
from headrace.core.machine import Decided
from headrace.core.runs import State
from headrace.core.settling import Settling
from headrace.core.shard_words import AcquireLease, Committed, Event, Renewed, StageLease
from headrace.core.share_group import TopicView
from headrace.core.share_partition import SharePartition
from headrace.core.share_starts import started
from headrace.core.share_words import (
    Acquire,
    Acquired,
    Delayed,
    Ended,
    Policy,
    Reclaim,
    ShareKey,
    Verdict,
)
from headrace.core.types import Now, Span, after

Partitions = Mapping[ShareKey, SharePartition]


def acquired(
    lease: Lease,
    command: AcquireLease,
    partitions: Partitions,
    views: Mapping[UUID, TopicView],
    now: Now,
    policy: Policy,
) -> Decided[Event] | Refused:
    """Acquire records of the group's `partitions` in the topics of the lease, each in its turn."""
    known = lease.acquisitions.get(command.seq)
    if known is not None:
        return Decided(reclaimed(lease, partitions, now, policy), known.held)
    refused = lease.check_new(command.seq)
    if refused is not None:
        return refused
    mine = [key for key in sorted(partitions) if key.topic_id in views]
    turn = command.seq % len(mine) if mine else 0
    taken: list[Event] = []
    left = command.records_max
    for index, key in enumerate(mine[turn:] + mine[:turn]):
        partition, end = partitions[key], views[key.topic_id].ends[key.partition]
        if command.bounds:
            end = min(end, command.bounds.get(key, 0))
        first = partition.next_fetch_offset()
        if first >= end:
            continue
        quota = -(-left // (len(mine) - index))
        batches = [Span(first, end - 1)]
        wanted = Acquire(lease.holder, batches, quota, policy.lease_window, exact=True)
        events = partition.decide(wanted, now, policy)
        assert not isinstance(events, Refused), events  # it takes what it finds
        left -= sum(event.records for event in events if isinstance(event, Acquired))
        taken += events
    starts = started(lease.key[0], partitions, views.values(), earliest=True)
    found = (
        Held(event.key, Span(first, last), event.deliveries)
        for event in taken
        if isinstance(event, Acquired)
        for first, last in event.spans
    )
    held = tuple(sorted(found, key=lambda one: (one.key, one.span)))
    if not held:
        return Decided(starts, held)
    return Decided([*starts, *taken, LeaseAcquired(lease.key, command.seq, held)], held)


def reclaimed(lease: Lease, partitions: Partitions, now: Now, policy: Policy) -> list[Acquired]:
    """The locks that an open lease takes back."""
    found: list[Acquired] = []
    for acquisition in lease.acquisitions.values():
        for held in acquisition.held:
            partition = partitions.get(held.key)
            if partition is not None:
                wanted = Reclaim(lease.holder, held.span, held.deliveries)
                events = partition.decide(wanted, now, policy)
                assert not isinstance(events, Refused), events  # it takes what it finds
                found += [event for event in events if isinstance(event, Acquired)]
    return found


def renewed(lease: Lease, partitions: Partitions, now: Now, policy: Policy) -> Decided[Event]:
    """Restart the locks of all that the lease still has."""
    events = reclaimed(lease, partitions, now, policy)
    wanted = sum(len(held.span) for one in lease.acquisitions.values() for held in one.held)
    kept = sum(event.records for event in events)
    return Decided(events, Renewed(kept, wanted - kept))


def locked(lease: Lease, acquisition: Acquisition, partitions: Partitions) -> int:
    """Count the records of an acquisition whose locks the lease still has."""
    holder, count = lease.holder, 0
    for held in acquisition.held:
        partition = partitions.get(held.key)
        if partition is None:
            continue
        for first, last, status in partition.runs.between(held.span.first, held.span.last):
            if (status.holder, status.deliveries) == (holder, held.deliveries):
                count += last - first + 1 if status.state is State.ACQUIRED else 0
    return count


def staged(lease: Lease, command: StageLease) -> Decided[Event] | Refused:
    """Keep what a part says of an acquisition for its commit."""
    if command.seq <= lease.committed:
        return Decided([])  # a batch that is replayed although it is settled
    refused = lease.check_staged(command.seq, command.part, command.staged)
    if refused is not None:
        return refused
    if not lease.acquisitions[command.seq].is_changed_by(
        command.part, command.staged, command.epoch
    ):
        return Decided([])  # most tasks set nothing aside, and say so
    said = tuple(sorted(command.staged, key=lambda one: (one.key, one.span)))
    return Decided([LeaseStaged(lease.key, command.seq, command.part, command.epoch, said)])


def committed(
    lease: Lease, seq: int, partitions: Partitions, now: Now, policy: Policy
) -> Decided[Event]:
    """Settle all numbers up to `seq`: as staged, the rest accepted. Delays begin now."""
    events: list[Event] = []
    delayed: list[Event] = []  # behind all others, so that these are laid in one go
    settled = dict.fromkeys(Verdict, 0)
    wanted, holder = 0, lease.holder
    for number, acquisition in sorted(lease.acquisitions.items()):
        if number > seq:
            break
        wanted += sum(len(held.span) for held in acquisition.held)
        key: ShareKey | None = None
        for held, span, said in verdicts(acquisition):
            if held.key is not key:  # hashing names costs more than all the rest
                key = held.key
                partition = partitions.get(key)
                settle = Settling(key, policy, Ended.LEASE_COMMITTED, holder)
            if partition is None:
                continue
            for first, last, status in partition.claimable(span, held.deliveries, holder):
                whole = first == span.first and last == span.last
                part = span if whole else Span(first, last)
                verdict, reason = (said.verdict, said.reason) if said else (Verdict.ACCEPT, None)
                became = settle(part, status, verdict, reason)
                events.append(became)
                settled[verdict] += last - first + 1
                if said is not None and said.delay_ms and became.state is State.AVAILABLE:
                    delayed.append(Delayed(key, part, after(now.mono, said.delay_ms)))
    if seq > lease.committed:
        delayed.append(LeaseCommitted(lease.key, seq))
    reply = Committed(
        settled[Verdict.ACCEPT],
        settled[Verdict.RELEASE],
        settled[Verdict.REJECT],
        wanted - sum(settled.values()),
    )
    return Decided([*events, *delayed], reply)
