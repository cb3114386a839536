"""What a share group forgets where a log lost its end: other records will stand there.

The share-partition begins anew with what is left of its in-flight state, and what leases have
outstanding of it goes with it, as in a reset. A share-partition may have any number of ranges, so
that is decided in portions (`machine.Unfinished`): what is left of leases is worked out in a thread
first; then the in-flight state goes, with what leases had of it; then what is left of it comes
back, a block at a time. Nobody may read the log meanwhile, or acknowledge its records.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from headrace.core.lasting import durable
from headrace.core.leases import Acquisition, unused
from headrace.core.machine import Decided, Unfinished
from headrace.core.runs import CopiedRuns
from headrace.core.shard_words import Event, LogEndLost, ReturnRanges
from headrace.core.share_admin import Queue, discarded, not_prepared
from headrace.core.share_partition import SharePartition
from headrace.core.share_words import Range, Replayed, ShareKey, Started


def lost_end(command: LogEndLost, queue: Queue) -> Decided[Event]:
    """Forget what a group knows of records from the new end of a log on."""
    missing = not_prepared(queue, command.known)
    if sum([acquisition.ranges for acquisition in missing]) > command.ranges_max:
        return Decided([], Unfinished(prepare=partial(_with_remainders, command, missing)))
    command = _with_remainders(command, missing)
    events = discarded(queue, command.known)
    share = queue.partitions.get(command.key)
    if share is None or share.end <= command.end:
        behind = {id(one) for one in command.behind}
        acquisitions = {lease.key: lease.acquisitions.values() for lease in queue.leases}
        return Decided(
            [event for event in events if not behind.isdisjoint(map(id, acquisitions[event.lease]))]
        )
    state_epoch = share.state_epoch + 1
    started = Started(command.key, min(share.start, command.end), state_epoch)
    freed = unused(before for before, left in command.known.pairs if left is not before)
    if len(share.runs) <= command.ranges_max:
        left = Replayed(command.key, _below(durable(share.runs), command.end))
        return Decided([started, left, *events], unused=freed)
    rest = partial(_rest, command, share, state_epoch, share.runs.copied())
    return Decided([started, *events], Unfinished(prepare=rest), freed)


def _with_remainders(command: LogEndLost, missing: Sequence[Acquisition]) -> LogEndLost:
    """Return the command with what is left of further acquisitions."""
    key, end = command.key, command.end
    known = replace(command.known, keys=frozenset([key])).extended(missing)
    behind = [one for one in missing if _has_behind(one, key, end)]
    return replace(command, known=known, behind=(*command.behind, *behind))


def _has_behind(acquisition: Acquisition, key: ShareKey, end: int) -> bool:
    return any(held.key == key and held.span.last >= end for held in acquisition.held)


def _below(ranges: Iterable[Range], end: int) -> list[Range]:
    """Return ranges up to, and without, `end`."""
    return [(one[0], min(one[1], end - 1), *one[2:]) for one in ranges if one[0] < end]


def _rest(
    command: LogEndLost, share: SharePartition, state_epoch: int, runs: CopiedRuns
) -> ReturnRanges:
    """Return the command by which what is left of `runs` comes back."""
    ranges, size = _below(durable(runs), command.end), max(command.ranges_max, 1)
    blocks = [tuple(ranges[at : at + size]) for at in range(0, len(ranges), size)]
    return ReturnRanges(share, state_epoch, tuple(blocks))


def returned(
    command: ReturnRanges, partitions: Mapping[ShareKey, SharePartition]
) -> Decided[Event]:
    """Let one block of ranges come back, and reply with the rest of the command."""
    share = command.share
    is_same = partitions.get(share.key) is share and share.state_epoch == command.state_epoch
    if not is_same or not command.blocks:  # it was deleted, or reset, meanwhile
        return Decided([])
    # The start of the log may have moved meanwhile.
    start, block, rest = share.start, command.blocks[0], command.blocks[1:]
    ranges = [(max(one[0], start), *one[1:]) for one in block if one[1] >= start]
    reply = Unfinished(replace(command, blocks=rest)) if rest else None
    return Decided([Replayed(share.key, ranges)] if ranges else [], reply)
