"""The recovery of a shard of share groups: leases take back the locks that died with the process.

A lease may have a hundred thousand ranges outstanding, so the recovery is decided in portions
(`machine.Unfinished`). Nobody else decides anything before the last of them.

Where a lock lapsed, two leases may have acquired the same record. The later delivery holds the
record, so the ranges of a group are taken back by their number of deliveries, the highest first:
a later portion takes no records that are locked already. The ranges of one portion are all decided
by the state before the portion, so the latest deliveries are applied last there. The order is
worked out in a thread where there are many ranges, from data that never changes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

from headrace.core.leases import Acquisition, Held, Lease, LeaseKey, LeaseSeen
from headrace.core.machine import Decided, Unfinished
from headrace.core.shard_words import Event, Recovered, RecoveryStep, Restarted
from headrace.core.share_partition import SharePartition
from headrace.core.share_words import Acquired, Policy, Reclaim, ShareKey
from headrace.core.types import MemberId, Now, Span, after

Partitions = Mapping[ShareKey, SharePartition]
Outstanding = tuple[LeaseKey, tuple[Acquisition, ...]]


def recovered(
    command: Recovered,
    leases: Mapping[LeaseKey, Lease],
    groups: Iterable[str],
    partitions: Partitions,
    policy_of: Callable[[str], Policy],
    now: Now,
) -> Decided[Event]:
    """Decide one portion of the recovery.

    Args:
        command: The command, or what is left of it.
        leases: All leases of the shard.
        groups: The groups that have share-partitions.
        partitions: All share-partitions of the shard.
        policy_of: Returns the policy of a group.
        now: Both clocks.

    Returns:
        The events of the portion, with the rest of the command in the reply.
    """
    if command.blocks is None:
        outstanding = [(key, tuple(one.acquisitions.values())) for key, one in leases.items()]
        names = tuple(groups)
        count = sum(len(one.held) for _, some in outstanding for one in some)
        prepare = partial(_with_blocks, command, outstanding, names)
        if count + len(outstanding) + len(names) > command.runs_max:
            # No lock is taken back yet, but this event is in each portion.
            restarted = Restarted(now.mono, frozenset())
            return Decided([restarted], Unfinished(prepare=prepare))
        command = prepare()
    return _portion(command, partitions, policy_of, now)


def _with_blocks(
    command: Recovered, outstanding: Sequence[Outstanding], groups: Sequence[str]
) -> Recovered:
    """Return the command with its steps in order, in blocks of at most `runs_max`."""
    blocks, block = list[tuple[RecoveryStep, ...]](), list[RecoveryStep]()
    for step in _steps(outstanding, groups):
        if len(block) >= command.runs_max:
            blocks.append(tuple(block))
            block = []
        block.append(step)
    return replace(command, blocks=(*blocks, tuple(block)))


def _steps(outstanding: Sequence[Outstanding], groups: Sequence[str]) -> Iterator[RecoveryStep]:
    """Yield the ranges of each group, its leases, and the groups that have share-partitions."""
    by_group: dict[str, dict[int, list[RecoveryStep]]] = {}
    # Of leases that have a record on the same delivery, the one that was opened last has it.
    for key, acquisitions in reversed(outstanding):
        holder, by_deliveries = Lease(key).holder, by_group.setdefault(key[0], {})
        for acquisition in acquisitions:
            for held in acquisition.held:
                steps = by_deliveries.setdefault(held.deliveries, [])
                steps.append(RecoveryStep(key[0], holder, held))
    for by_deliveries in by_group.values():
        for deliveries in sorted(by_deliveries, reverse=True):
            yield from by_deliveries[deliveries]
    for key, _ in outstanding:
        yield RecoveryStep(key[0], lease=key)
    for group in groups:
        yield RecoveryStep(group)


def _portion(
    command: Recovered, partitions: Partitions, policy_of: Callable[[str], Policy], now: Now
) -> Decided[Event]:
    """Carry out the first steps, and reply with the command of the rest."""
    assert command.blocks is not None
    block, rest, first = command.blocks[0], command.blocks[1:], command.first
    locks = list[list[Event]]()  # those of one lease on the same delivery together
    signs, restarted = list[Event](), list[str]()
    left, at = command.runs_max, 0
    of: tuple[MemberId, int] | None = None
    while at < len(block) and left > 0:
        group, holder, held, lease = block[at]
        policy = policy_of(group)
        if held is not None:
            begin = max(first, held.span.first)
            until, taken, runs = take_back(holder, held, begin, left, partitions, now, policy)
            if of != (of := (holder, held.deliveries)):
                locks.append([])
            locks[-1] += taken
            left -= runs
            if until < held.span.last:
                first = until + 1
                continue
            first = 0
        elif lease is not None:
            signs.append(LeaseSeen(lease, after(now.mono, policy.lock_ms)))
            left -= 1
        else:
            restarted.append(group)
            left -= 1
        at += 1
    restart = Restarted(now.mono, frozenset(restarted))
    events: list[Event] = [*chain.from_iterable(reversed(locks)), *signs, restart]
    if at < len(block):
        rest = (block[at:], *rest)
    if not rest:
        return Decided(events)
    return Decided(events, Unfinished(replace(command, blocks=rest, first=first)))


def take_back(
    holder: MemberId,
    held: Held,
    first: int,
    runs_max: int,
    partitions: Partitions,
    now: Now,
    policy: Policy,
) -> tuple[int, list[Acquired], int]:
    """Take back the locks of a range from an offset on, or of a part of it.

    Returns:
        The last offset of the part, the locks, and how many runs of records the part has at most.
    """
    partition, last = partitions.get(held.key), held.span.last
    if partition is None:
        return last, [], 1
    span = held.span if first == held.span.first else Span(first, last)
    if len(span) > runs_max:
        span = Span(first, partition.runs.reach(first, last, runs_max))
    locks = partition.decide(Reclaim(holder, span, held.deliveries), now, policy)
    assert isinstance(locks, list), locks  # it takes what it finds
    found = [event for event in locks if isinstance(event, Acquired)]
    is_whole = len(found) == 1 and found[0].records == len(span)
    return span.last, found, 1 if is_whole else len(span)  # others may be as many runs
