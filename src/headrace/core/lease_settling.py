"""What leases make of share-partitions: records acquired, locks taken back, and commits.

A commit is one atomic record batch, however many runs it settles: half of it must never be durable.
A long one is decided in portions (`machine.Unfinished`), and all of them are written together. The
session counts as committed with the first, so that no other command of its driver, or of the next
one, meets half of a batch: what is left is in the command of the next portion, and not in the
state. Whatever happens between two portions could have happened before the commit. A portion
settles only what the session still has on the delivery that it acquired: a record whose lock ended
may have been given to others, and a share-partition may be gone or begun anew (`SettleLease`).

Which record is settled how takes the dispositions of all parts in order. For many ranges that is
worked out in a thread, from data that never changes. Locks that are taken back are volatile, and
are taken back in portions as well (`ReclaimLease`), as long as the driver is not replaced.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from operator import attrgetter
from uuid import UUID

from headrace.core.errors import Refused
from headrace.core.lease_recovery import take_back
from headrace.core.leases import (
    ACQUIRED_PARTITIONS_MAX,
    ACQUIRED_RANGES_MAX,
    Acquisition,
    Claim,
    Held,
    Lease,
    LeaseAcquired,
    LeaseCommitted,
    LeaseStaged,
    check_ranges,
    claims,
    in_order,
    unused,
)
from headrace.core.machine import Decided, Unfinished
from headrace.core.runs import State
from headrace.core.settling import Settling
from headrace.core.shard_words import (
    AcquireLease,
    CommitLease,
    Committed,
    Event,
    ReclaimLease,
    Renewed,
    SettleLease,
    StageLease,
)
from headrace.core.share_group import TopicView
from headrace.core.share_partition import SharePartition
from headrace.core.share_starts import not_begun, started
from headrace.core.share_words import (
    Acquire,
    Acquired,
    Delayed,
    Ended,
    Policy,
    ShareKey,
    Verdict,
    within_group,
)
from headrace.core.types import Now, Span, after

Partitions = Mapping[ShareKey, SharePartition]

_PARTITION_RUNS = 10  # what a share-partition costs beside its runs, as each has its record


def acquired(
    lease: Lease,
    command: AcquireLease,
    partitions: Partitions,
    views: Mapping[UUID, TopicView],
    now: Now,
    policy: Policy,
) -> Decided[Event] | Refused:
    """Acquire records of the group's `partitions` in the topics of the lease, each in its turn.

    Of at most `ACQUIRED_PARTITIONS_MAX` of them, and of one for each record; the next number begins
    behind these.
    """
    known = lease.acquisitions.get(command.seq)
    if known is not None:
        reclaim = reclaim_command(lease, command.runs_max, lease.epoch, known.held)
        return reclaim_portion(lease, reclaim, partitions, now, policy)
    refused = lease.check_new(command.seq)
    if refused is not None:
        return refused
    group = lease.key[0]
    mine = _partitions_of(group, partitions, views)
    turn = _turn(command, len(mine))
    taken: list[Event] = []
    partitions_left = ACQUIRED_PARTITIONS_MAX
    left, ranges_left = command.records_max, ACQUIRED_RANGES_MAX
    for index, partition in enumerate(mine[turn:] + mine[:turn]):
        key = partition.key
        end = views[key.topic_id].ends[key.partition]
        if command.bounds:
            end = min(end, command.bounds.get(key, 0))
        first = partition.next_fetch_offset()
        if first >= end:
            continue
        if not partitions_left or left <= 0 or ranges_left <= 0:
            break
        shares = min(len(mine) - index, partitions_left)
        quota, runs_max = (-(-room // shares) for room in (left, ranges_left))
        batches = [Span(first, end - 1)]
        wanted = Acquire(
            lease.holder, batches, quota, policy.lease_window, exact=True, runs_max=runs_max
        )
        events = partition.decide(wanted, now, policy)
        assert not isinstance(events, Refused), events  # it takes what it finds
        left -= sum(event.records for event in events if isinstance(event, Acquired))
        ranges_left -= sum(len(event.spans) for event in events if isinstance(event, Acquired))
        taken += events
        partitions_left -= bool(events)
    most = sum(one.partitions - not_begun(group, partitions, one) for one in views.values())
    starts = started(group, partitions, views.values(), earliest=True) if len(mine) < most else []
    found = (
        Held(event.key, Span(first, last), event.deliveries)
        for event in taken
        if isinstance(event, Acquired)
        for first, last in event.spans
    )
    held = tuple(sorted(found, key=lambda one: (within_group(one.key), one.span.first)))
    if not held:
        return Decided(starts, held)
    return Decided([*starts, *taken, LeaseAcquired(lease.key, command.seq, held)], held)


def _turn(command: AcquireLease, count: int) -> int:
    """Return which of `count` share-partitions an acquisition begins with.

    Each round begins one later: where all numbers began with the same ones, those that come last
    before a bound would get nothing while the others have records.
    """
    if count <= ACQUIRED_PARTITIONS_MAX:
        return command.seq % count if count else 0
    place = command.seq * max(min(ACQUIRED_PARTITIONS_MAX, command.records_max), 1)
    return (place + place // count) % count


def _partitions_of(
    group: str, partitions: Partitions, views: Mapping[UUID, TopicView]
) -> list[SharePartition]:
    """Return the share-partitions of topics, in order: a group may have many of other topics."""
    ordered = [views[topic_id] for topic_id in sorted(views, key=attrgetter("int"))]
    keys = [ShareKey(group, one.id, n) for one in ordered for n in range(one.partitions)]
    return [share for share in map(partitions.get, keys) if share is not None]


def reclaim_command(lease: Lease, runs_max: int, epoch: int, reply: object = None) -> ReclaimLease:
    """Return the command that restarts the locks of all that the lease has outstanding."""
    return ReclaimLease(lease.key, epoch, runs_max, tuple(lease.acquisitions), reply)


def reclaim_portion(
    lease: Lease, command: ReclaimLease, partitions: Partitions, now: Now, policy: Policy
) -> Decided[Event]:
    """Restart the locks of one portion, and reply with the rest of the command."""
    events: list[Event] = []
    left, records, reclaimed_records = command.runs_max, command.records, command.reclaimed
    expected, at, first, before = command.held, command.at, command.first, command.before
    for place, number in enumerate(command.numbers):
        acquisition = lease.acquisitions.get(number)
        held = () if acquisition is None else acquisition.held
        if held is not expected:  # part of it may have been discarded: then it is begun again
            at = first = 0
            records, reclaimed_records = before
        while at < len(held):
            if left <= 0:
                rest = replace(
                    command, numbers=command.numbers[place:], held=held, at=at, first=first,
                    records=records, reclaimed=reclaimed_records, before=before,
                )  # fmt: skip
                return Decided(events, Unfinished(rest, is_atomic=False))  # locks are volatile
            begin, last = max(first, held[at].span.first), held[at].span.last
            until, locks, runs = take_back(
                lease.holder, held[at], begin, left, partitions, now, policy
            )
            events += locks
            reclaimed_records += sum(event.records for event in locks)
            left -= runs
            records += until - begin + 1
            at, first = (at + 1, 0) if until == last else (at, until + 1)
        expected, before = (), (records, reclaimed_records)
    reply = command.reply
    if reply is None:
        reply = Renewed(reclaimed_records, records - reclaimed_records)
    return Decided(events, reply)


def locked(lease: Lease, ranges: Iterable[Held], partitions: Partitions) -> int:
    """Count the records of acquired ranges whose locks the lease still has."""
    holder, count = lease.holder, 0
    for held in ranges:
        partition = partitions.get(held.key)
        if partition is None:
            continue
        for first, last, status in partition.runs.between(held.span.first, held.span.last):
            if (status.holder, status.deliveries) == (holder, held.deliveries):
                count += last - first + 1 if status.state is State.ACQUIRED else 0
    return count


def staged(lease: Lease, command: StageLease) -> Decided[Event] | Refused:
    """Keep what a part says of an acquisition for its commit, once all of it is checked."""
    seq, dispositions = command.seq, command.staged
    if seq <= lease.committed:
        return Decided([])  # a batch that is replayed although it is settled
    refused = lease.check_part(seq, command.part, len(dispositions))
    if refused is not None:
        return refused
    acquisition = lease.acquisitions[seq]
    if not acquisition.is_changed_by(command.part, dispositions, command.epoch):
        return Decided([])  # most tasks set nothing aside, and say so
    if len(dispositions) <= command.ranges_max:
        dispositions = in_order(dispositions)
    # What was acquired may have been discarded since the last portion was checked.
    checked = command.checked if command.held is acquisition.held else 0
    until = min(checked + command.ranges_max, len(dispositions))
    refused = check_ranges(seq, acquisition.held, dispositions, checked, until)
    if refused is not None:
        return refused
    if until < len(dispositions):
        rest = replace(command, checked=until, held=acquisition.held)
        return Decided([], Unfinished(rest, is_atomic=False))  # nothing is decided yet
    events = [LeaseStaged(lease.key, seq, command.part, command.epoch, dispositions)]
    kept = acquisition.kept(command.epoch)
    replaced = {
        name: part
        for name, part in acquisition.parts.items()
        if name == command.part or name not in kept
    }
    return Decided(events, unused=unused([Acquisition((), replaced)]))


def committed(
    lease: Lease, command: CommitLease, partitions: Partitions, now: Now, policy: Policy
) -> Decided[Event]:
    """Settle all numbers up to one: as staged, the rest accepted. Delays begin now."""
    seq, runs_max = command.seq, command.runs_max
    done = [one for number, one in sorted(lease.acquisitions.items()) if number <= seq]
    shares: Iterable[SharePartition] = partitions.values()
    if sum(len(one.held) for one in done) < len(partitions):
        keys = (held.key for one in done for held in one.held)
        shares = filter(None, map(partitions.get, keys))
    lives = frozenset([partition.runs for partition in shares])
    settle = SettleLease(lease.key, (), lives, now.mono, runs_max, Committed(0, 0, 0, 0))
    signs = [LeaseCommitted(lease.key, seq)] if seq > lease.committed else []
    if sum(one.ranges for one in done) > runs_max:
        return Decided(signs, Unfinished(prepare=partial(_with_claims, settle, done)))
    first = settle_portion(_with_claims(settle, done), partitions, policy)
    return Decided([*first.events, *signs], first.reply)


def _with_claims(command: SettleLease, acquisitions: Iterable[Acquisition]) -> SettleLease:
    """Return the command with what these acquisitions claim."""
    blocks, block, records = list[tuple[Claim, ...]](), list[Claim](), 0
    for claim in chain.from_iterable(map(claims, acquisitions)):
        if len(block) >= command.runs_max:
            blocks.append(tuple(block))
            block = []
        block.append(claim)
        records += len(claim.span)
    blocks.append(tuple(block))
    return replace(command, claims=tuple(blocks), done=Committed(0, 0, 0, records))


def settle_portion(command: SettleLease, partitions: Partitions, policy: Policy) -> Decided[Event]:
    """Settle one portion of a commit, and reply with the rest of it, or its outcome."""
    events: list[Event] = []
    delayed: list[Event] = []  # behind all others, so that these are laid in one go
    counts = dict.fromkeys(Verdict, 0)
    key: ShareKey | None = None
    holder, left = Lease(command.lease).holder, command.runs_max
    block, rest = deque(command.claims[0]), command.claims[1:]
    while block and left > 0:
        held, span, disposition = block.popleft()
        if held.key is not key:  # hashing names costs more than all the rest
            left = left if key is None else max(left - _PARTITION_RUNS, 1)
            key = held.key
            partition = partitions.get(key)
            if partition is not None and partition.runs not in command.lives:
                partition = None
            settle = Settling(key, policy, Ended.LEASE_COMMITTED, holder)
        if partition is None:
            continue
        if len(span) > left:
            last = partition.runs.reach(span.first, span.last, left)
            if last < span.last:
                block.appendleft(Claim(held, Span(last + 1, span.last), disposition))
                span = Span(span.first, last)
        verdict, reason, delay_ms = Verdict.ACCEPT, None, 0
        if disposition is not None:
            verdict, reason = disposition.verdict, disposition.reason
            delay_ms = disposition.delay_ms
        is_whole = False
        for first, last, status in partition.claimable(span, held.deliveries, holder):
            is_whole = first == span.first and last == span.last
            part = span if is_whole else Span(first, last)
            event = settle(part, status, verdict, reason)
            events.append(event)
            counts[verdict] += last - first + 1
            if delay_ms and event.state is State.AVAILABLE:
                delayed.append(Delayed(key, part, after(command.since, delay_ms)))
        left -= 1 if is_whole else len(span)  # others may be as many runs
    if block:
        rest = (tuple(block), *rest)
    done = command.done
    done = Committed(
        done.accepted + counts[Verdict.ACCEPT],
        done.released + counts[Verdict.RELEASE],
        done.rejected + counts[Verdict.REJECT],
        done.refused - sum(counts.values()),
    )
    if rest:
        return Decided([*events, *delayed], Unfinished(replace(command, claims=rest, done=done)))
    return Decided([*events, *delayed], done)
