"""The journal of share groups kept short: what recovery does not need is removed from its front.

As Kafka's share coordinator does (ShareCoordinatorService: prune and cold snapshot jobs): at the
start and each share.coordinator.state.topic.prune.interval.ms after it, the log start of a shard's
journal moves up to the oldest of the newest snapshots. Share-partitions and leases at rest would
hold it back for ever, so those whose newest snapshot is older than
share.coordinator.cold.partition.snapshot.interval.ms get a new one, where that frees more than it
writes. What is younger than headrace.share.history.ms stays, for people who ask what became of a
record.

Ages are those of records, and the start does not wait for the interval: a broker whose lives are
shorter than it would keep, and replay, everything.
"""

import logging
from functools import partial

from headrace.broker.background import Background
from headrace.broker.checked_clock import CheckedClock
from headrace.broker.config import Config
from headrace.broker.decoding_threads import DecodingThreads
from headrace.broker.partitions import Partition, Partitions
from headrace.broker.runtime import StorageFault
from headrace.broker.shares import Shard, Shares
from headrace.core.types import earlier
from headrace.log.api import CorruptRecordsError, DamagedBlockError, OffsetOutOfRange
from headrace.log.buggify import buggify
from headrace.log.record_codec import ShareJournal

log = logging.getLogger("headrace.broker")

PORTION = 20  # snapshots that one command writes at most


class SharePruning:
    """Runs from `start` to `close`, on the event loop."""

    def __init__(
        self,
        config: Config,
        clock: CheckedClock,
        shares: Shares,
        partitions: Partitions,
        threads: DecodingThreads,
    ) -> None:
        self._config = config
        self._clock = clock
        self._shares = shares
        self._partitions = partitions
        self._threads = threads
        self.work = Background(
            "the journal of share groups is no longer pruned", "share journal pruning"
        )

    def start(self) -> None:
        """Prune for the first time and begin to keep time; shards are open, the clock started."""
        self.work.begin(self._run())

    async def close(self) -> None:
        """Leave off after the shard that is under way."""
        await self.work.stop()

    async def prune(self) -> None:
        """Prune every shard's journal once."""
        for shard, journal in zip(self._shares.shards, self._shares.journals, strict=True):
            try:
                await self._prune(shard, journal)
            except (DamagedBlockError, CorruptRecordsError) as error:
                journal.report_damage(DamagedBlockError(error.damage), "cannot be pruned")
            except (OSError, StorageFault, OffsetOutOfRange) as error:
                log.warning("%s is not pruned this time: %s", shard.name, error)
            if self.work.is_stopping:
                return

    async def _run(self) -> None:
        await self.prune()
        while await self.work.pause(self._config.share_state_prune_ms):
            await self.prune()

    async def _prune(self, shard: Shard, partition: Partition) -> None:
        """Raises: OSError; StorageFault; OffsetOutOfRange; CorruptRecordsError."""
        config = self._config
        cold_below = await self._younger_from(partition, config.share_cold_snapshot_ms)
        await self._replace_cold(shard, cold_below)
        history_from = await self._younger_from(partition, config.share_history_ms)
        await shard.durable()
        # Nothing is awaited in between: a newer state, which is not durable, would count.
        end, cuts = partition.log.end_offset, partition.cuts
        until = min(_codec(shard).needed_from(end), history_from)
        if until <= partition.start_offset:
            return
        # The snapshots must not be lost with the power, once what came before them is removed.
        await partition.on_disk(end, cuts)
        was = partition.start_offset
        moved = await self._partitions.delete_records({partition: until})
        if not isinstance(outcome := moved[partition], int):
            raise outcome
        log.info("%s: removed %d records, which no recovery needs", shard.name, until - was)

    async def _replace_cold(self, shard: Shard, below: int) -> None:
        """Snapshot what was last snapshotted below an offset. Raises: StorageFault."""
        codec = _codec(shard)
        cold = codec.count_below(below)
        if below - codec.needed_from(below) < 2 * cold:
            return  # most of what would go are the very snapshots that would be written again
        while cold > 0 and not self.work.is_stopping:
            portion = 1 if buggify("share_pruning.portion") else PORTION
            keep = _codec(shard).cold(below, portion)
            if not keep:
                return
            await shard.ask(keep)
            cold -= len(keep)

    async def _younger_from(self, partition: Partition, age_ms: int) -> int:
        """Return the first offset whose record is not older than `age_ms`.

        Raises: OSError; CorruptRecordsError.
        """
        since, end = earlier(self._clock.proven(), age_ms), partition.high_watermark
        found = await self._threads.search(partition, partial(partition.log.search_time, since))
        return end if found is None else found[0]


def _codec(shard: Shard) -> ShareJournal:
    assert isinstance(shard.codec, ShareJournal)
    return shard.codec
