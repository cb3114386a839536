"""Share groups and the bounds of the logs they read, which move for reasons of their own.

Retention and administrators remove records before a group has finished them. And a power cut may
take the end of a log whose group's journal kept what it said of it: new records will have those
offsets, and must not pass for the old ones. So the journal is synced before there can be any,
whatever the durability: a second power cut might keep those, and bring back what the group had
finished of the old ones.
"""

import asyncio
import errno
import logging
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain

from headrace.broker.background import Background
from headrace.broker.partitions import Partition, Partitions
from headrace.broker.runtime import StorageFault
from headrace.broker.shares import Shard, Shares
from headrace.core.leases import FREED_MAX
from headrace.core.shard import ShareShard
from headrace.core.shard_words import LogEndLost, On
from headrace.core.share_words import PORTION_RUNS, LogStartMoved, ShareKey
from headrace.log.buggify import buggify

log = logging.getLogger("headrace.broker")
_KnownEnd = tuple[Shard, ShareKey, int]  # behind which record nothing is known
_RETRY_MS = 500
_MOVED_RUNS = 20  # what a share-partition costs beside its runs


class LogStarts:
    """Moves share-partitions along when the records below their log's start are removed.

    Records in flight below the new start are gone, without dead letters: nothing is left to
    copy. Acknowledging them is no error, and changes nothing.

    One portion is moved at once, and the rest in the background, one portion in each turn of the
    loop: a share-partition may have any number of in-flight ranges, and a partition many groups.
    Meanwhile a lease may still acquire removed records, as if it had been a moment earlier. What a
    fault of a journal takes back is moved again.
    """

    def __init__(self, shares: Shares) -> None:
        self.work = Background(
            "share groups no longer follow the starts of logs", "share groups at log starts"
        )
        self._shares = shares
        self._queue: dict[Partition, None] = {}
        self._unsaved: dict[Partition, None] = {}  # whose changes are perhaps not durable
        self._changed: dict[Shard, ShareShard] = {}  # the state of each shard that has them
        self._is_working = False
        self._is_walking = False  # and no fault makes it wait

    async def close(self) -> None:
        """Move what is left, unless a journal cannot be written."""
        await self.work.stop()

    def moved(self, partition: Partition) -> None:
        """Move the share-partitions of a partition whose start offset moved."""
        self._queue[partition] = None
        if self._is_working or self.work.is_stopping:
            return
        portions = self._portions()
        is_written = next(portions, None)
        if is_written is not None:
            self._is_working = self._is_walking = True
            self.work.begin(self._follow(chain((is_written,), portions)))

    async def settle(self) -> None:
        """Return once everything is moved, or a journal cannot be written."""
        while self._is_walking:  # noqa: ASYNC110  # the portions set no event
            await asyncio.sleep(0)

    async def _follow(self, portions: Iterator[bool]) -> None:
        """Move what is left, until all of it is durable or the broker stops."""
        try:
            while True:
                for is_written in portions:
                    self._is_walking = is_written
                    if is_written:
                        await asyncio.sleep(0)
                    elif not await self.work.pause(_RETRY_MS):
                        return
                self._is_walking = False
                is_fault = self._unsaved and await self._is_taken_back()
                self._queue |= self._unsaved if is_fault else {}
                self._unsaved, self._changed = {}, {}
                if not self._queue or (is_fault and not await self.work.pause(_RETRY_MS)):
                    return
                self._is_walking = True
                portions = self._portions()
        finally:
            self._is_working = self._is_walking = False

    async def _is_taken_back(self) -> bool:
        """Return whether a fault took back what was moved; otherwise it is durable."""
        refused = await self._shares.durable()
        is_rebuilt = any(shard.machine is not state for shard, state in self._changed.items())
        return refused is not None or is_rebuilt

    def _portions(self) -> Iterator[bool]:
        """Move share-partitions; yield after each portion, and True if it could be written."""
        spent = 0
        while self._queue:
            partition = next(iter(self._queue))
            del self._queue[partition]
            for shard in self._shares.shards:
                for group in list(self._shares.machine_of(shard).groups_of(partition.key.topic_id)):
                    for runs in self._overtaken(shard, group, partition, PORTION_RUNS - spent):
                        spent = PORTION_RUNS if runs is None else spent + runs
                        if spent >= PORTION_RUNS:
                            yield runs is not None
                            spent = 0
        if spent:
            yield True

    def _overtaken(
        self, shard: Shard, group: str, partition: Partition, runs_max: int
    ) -> Iterator[int | None]:
        """Move one share-partition; yield the cost in runs of each portion, None at a fault."""
        topic_id, index = partition.key.topic_id, partition.index
        key, logged = ShareKey(group, topic_id, index), -1
        while not partition.is_closed:
            share = self._shares.machine_of(shard).partitions.get(key)
            if share is None or share.start >= (start := partition.start_offset):
                break
            if start != logged:
                logged = start
                log.warning(
                    "group %s had not finished the records %d to %d of %s, which were removed "
                    "from the log; it goes on at %d",
                    group, share.start, start - 1, partition.name, start,
                )  # fmt: skip
            before, finished, runs = share.start, share.finished, len(share.runs)
            self._unsaved[partition] = None
            if isinstance(shard.decide(On(key, LogStartMoved(start, runs_max))), StorageFault):
                yield None
                continue
            self._changed.setdefault(shard, self._shares.machine_of(shard))
            lost = share.start - before - (finished - share.finished)
            self._shares.meters.overtaken(key, max(lost, 0))
            yield _MOVED_RUNS + runs - len(share.runs)
            runs_max = PORTION_RUNS
        yield 1


async def agree(shares: Shares, partitions: Partitions, starts: LogStarts) -> None:
    """At the start: follow what happened to logs when the process before died.

    After an orderly stop there is nothing to follow, and logs are not open yet.

    Raises:
        OSError: what lost records leave of groups cannot be synced.
    """
    moved: dict[Partition, None] = {}
    lost: list[_KnownEnd] = []  # with the ends of logs
    late: dict[Partition, list[_KnownEnd]] = {}
    for shard in shares.shards:
        for key, (start, end) in _known(shares.machine_of(shard)).items():
            partition = partitions.get(key.topic_id, key.partition)
            if partition is None:
                continue
            if not partition.is_open:
                if partition.is_failing:  # after a death it has to be open, and the disk is full
                    late.setdefault(partition, []).append((shard, key, end))
                continue
            if start < partition.start_offset:
                moved[partition] = None
            if end > partition.high_watermark:
                _tell_lost(key, end, partition, partition.high_watermark)
                lost.append((shard, key, partition.high_watermark))
    for partition, ends in late.items():
        partition.before_use(partial(_agree_late, shares, partition, ends, set()))
    await _forget(lost, shares)
    for partition in moved:
        starts.moved(partition)
    await starts.settle()


async def _agree_late(
    shares: Shares, partition: Partition, ends: Iterable[_KnownEnd], told: set[_KnownEnd], end: int
) -> None:
    """Follow what happened to a log that could not be opened at the start, before it is used.

    Args:
        shares: All share groups.
        partition: The partition of the log.
        ends: What was known of its records at the start; nobody was given others since.
        told: What is logged already.
        end: End of the log that was opened.

    Raises:
        OSError: The journal of a group cannot be written; all is to be done again.
    """
    lost = [one for one in ends if one[2] > end]
    for one in lost:
        if one not in told:
            told.add(one)
            _tell_lost(one[1], one[2], partition, end)
    await _forget([(shard, key, end) for shard, key, _ in lost], shares)


async def _forget(lost: Sequence[_KnownEnd], shares: Shares) -> None:
    """Forget the records of share-partitions from an end on, durably.

    A command that has many ranges waits until others are written, so all replies are awaited.

    Raises: OSError.
    """
    commands = [shard.ask(_log_end_lost(key, end)) for shard, key, end in lost]
    outcomes = await asyncio.gather(*commands, return_exceptions=True)
    for (shard, _, _), outcome in zip(lost, outcomes, strict=True):
        if isinstance(outcome, StorageFault):
            raise shard.fault or OSError(errno.EIO, str(outcome)) from outcome
        if isinstance(outcome, BaseException):
            raise outcome
    shortened = {shard for shard, _, _ in lost}
    for shard, journal in zip(shares.shards, shares.journals, strict=True):
        if shard in shortened:
            await _keep(shard, journal)


def _log_end_lost(key: ShareKey, end: int) -> LogEndLost:
    return LogEndLost(key, end, 0 if buggify("log_end_lost.portion") else FREED_MAX)


def _tell_lost(key: ShareKey, known_end: int, partition: Partition, end: int) -> None:
    log.warning(
        "group %s: %s ends at %d, and lost the records up to %d that the group had been given; "
        "those that take their places are new ones",
        key.group, partition.name, end, known_end - 1,
    )  # fmt: skip


async def _keep(shard: Shard, journal: Partition) -> None:
    """Sync what a shard decided. Raises: OSError."""
    try:
        await shard.durable()
    except StorageFault as fault:
        raise shard.fault or OSError(errno.EIO, str(fault)) from fault
    await journal.on_disk(journal.log.end_offset)


def _known(machine: ShareShard) -> dict[ShareKey, tuple[int, int]]:
    """Return SPSO of each share-partition, and behind which record nothing is known of it.

    Leases have records that a share-partition does not know of where a repair left a part of the
    journal.
    """
    known = {key: (share.start, share.end) for key, share in machine.partitions.items()}
    for lease in machine.leases.values():
        for acquisition in lease.acquisitions.values():
            for held in acquisition.held:
                start, end = known.get(held.key, (held.span.first, 0))
                known[held.key] = start, max(end, held.span.last + 1)
    return known
