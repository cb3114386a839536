"""Share groups and the bounds of the logs they read, which move for reasons of their own.

Retention and administrators remove records before a group has finished them. And a power cut may
take the end of a log whose group's journal kept what it said of it: new records will have those
offsets, and must not pass for the old ones. So the journal is synced before there can be any,
whatever the durability: a second power cut might keep those, and bring back what the group had
finished of the old ones.
"""

import asyncio
import contextlib
import errno
import logging
from functools import partial

from headrace.broker.background import in_background
from headrace.broker.partitions import Partition, Partitions
from headrace.broker.runtime import StorageFault
from headrace.broker.shares import Shard, Shares
from headrace.core.shard import ShareShard
from headrace.core.shard_words import LogEndLost, On
from headrace.core.share_words import LogStartMoved, ShareKey
from headrace.core.types import TopicPartition

log = logging.getLogger("headrace.broker")
_RETRY_SECONDS = 0.5


async def agree(shares: Shares, partitions: Partitions) -> None:
    """At the start: follow what happened to logs when the process before died.

    After an orderly stop there is nothing to follow, and logs are not open yet.

    Raises:
        OSError: what lost records leave of groups cannot be synced.
    """
    moved: dict[Partition, None] = {}
    shortened: set[Shard] = set()
    for shard in shares.shards:
        for key, (start, end) in _known(shares.machine_of(shard)).items():
            partition = partitions.get(key.topic_id, key.partition)
            if partition is None:
                continue
            if not partition.is_open:
                if partition.is_failing:  # after a death it has to be open, and the disk is full
                    partition.when_opened(partial(_opened_late, shares, partition))
                continue
            if start < partition.start_offset:
                moved[partition] = None
            if end > partition.high_watermark:
                _end_lost(shard, key, end, partition, partition.high_watermark)
                shortened.add(shard)
    for partition in moved:
        log_start_moved(shares, partition)
    for shard, journal in zip(shares.shards, shares.journals, strict=True):
        if shard in shortened:
            await _keep(shard, journal)


def log_start_moved(shares: Shares, partition: Partition) -> None:
    """Take the share-partitions along whose next records were removed from the log.

    Records in flight below the new start are gone, without dead letters: nothing is left to
    copy. Acknowledging them is no error, and changes nothing.
    """
    start = partition.start_offset
    for shard in shares.shards:
        machine = shares.machine_of(shard)
        for share in machine.overtaken(partition.key.topic_id, partition.index, start):
            log.warning(
                "group %s had not finished the records %d to %d of %s, which were removed "
                "from the log; it goes on at %d",
                share.key.group, share.start, start - 1, partition.name, start,
            )  # fmt: skip
            before, finished = share.start, share.finished
            shard.tell(On(share.key, LogStartMoved(start)))
            lost = share.start - before - (finished - share.finished)
            shares.meters.overtaken(share.key, max(lost, 0))


def _opened_late(shares: Shares, partition: Partition, end: int) -> None:
    """Follow what happened to a log that could not be opened at the start."""
    for shard, journal in zip(shares.shards, shares.journals, strict=True):
        known = _known(shares.machine_of(shard))
        lost = {
            key: known_end
            for key, (_, known_end) in known.items()
            if TopicPartition(key.topic_id, key.partition) == partition.key and known_end > end
        }
        for key, known_end in lost.items():
            _end_lost(shard, key, known_end, partition, end)
        if lost:
            in_background(_keep_later(shard, journal))
    log_start_moved(shares, partition)


def _end_lost(shard: Shard, key: ShareKey, known_end: int, partition: Partition, end: int) -> None:
    log.warning(
        "group %s: %s ends at %d, and lost the records up to %d that the group had been given; "
        "those that take their places are new ones",
        key.group, partition.name, end, known_end - 1,
    )  # fmt: skip
    shard.tell(LogEndLost(key, end))


async def _keep_later(shard: Shard, journal: Partition) -> None:
    """Sync what a shard decided, as soon as that succeeds; the shard decides it again."""
    while not journal.is_closed:
        with contextlib.suppress(OSError):
            await _keep(shard, journal)
            return
        await asyncio.sleep(_RETRY_SECONDS)


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
