"""What a broker does to its logs on its own: retention and compaction, beside its clients' work.

Retention looks at every partition each log.retention.check.interval.ms. The cleaner goes from the
dirtiest log to the next, and rests for log.cleaner.backoff.ms when none is worth it. Either begins
soon after the start: otherwise, nothing would be removed by a broker that never runs for as long as
the pause. Journals that hold deltas (`__share_group_state`, `__cluster_metadata`) are left alone:
every record of them counts. Other journals may be handed in with `look_after`.
"""

import asyncio
import logging
from collections.abc import Iterator
from functools import partial

from headrace.broker.background import Background
from headrace.broker.checked_clock import CheckedClock
from headrace.broker.cleaner import Cleaner, Counters, Kept, size_text
from headrace.broker.config import Config
from headrace.broker.partitions import Partition, Partitions
from headrace.broker.shares import STATE_TOPIC
from headrace.broker.topics import Topics
from headrace.core.catalog import METADATA_TOPIC, Topic
from headrace.log.api import Disk

log = logging.getLogger("headrace.broker")

_PARTITIONS_PER_LOOK = 16
# From the start to the first look.
_RETENTION_FIRST_MS = 30_000  # as Kafka: LogManager.InitialTaskDelayMs
_CLEANING_FIRST_MS = 1_000
_DELTAS = frozenset({STATE_TOPIC, METADATA_TOPIC})


class Housekeeping:
    """Runs from `start` to `close`, on the event loop."""

    def __init__(self, config: Config, disk: Disk, clock: CheckedClock, topics: Topics) -> None:
        self.counters = Counters()
        self._config = config
        self._clock = clock
        self._topics = topics
        report = partial(topics.partitions.report_damage, effect="cannot be compacted")
        self._cleaner = Cleaner(disk, clock, config.cleaner_dedupe_bytes, self.counters, report)
        self._one_cleaning = asyncio.Lock()
        self._others: list[Kept] = []
        self._complained: set[Partition] = set()
        self._deleted: set[Partition] = set()  # their topics are, and their files may be there yet
        self.work = Background("logs are no longer looked after", "retention")

    def start(self) -> None:
        """Begin to keep time. Raises: OSError."""
        self._cleaner.load(self._kept())
        self._topics.on_deleted.append(self._forget)
        self._topics.on_forgotten.append(self._cleaner.keep_forgotten)
        self.work.begin(self._retain())
        if self._config.cleaner_enable:
            self.work.begin(self._compact())

    async def close(self) -> None:
        """Abandon what is under way; nothing is left of it but what is complete."""
        self._cleaner.stop()
        await self.work.stop()

    def look_after(self, kept: Kept) -> None:
        """Compact a log that is no topic's partition as well, where its settings ask for it."""
        self._others.append(kept)

    async def expire_all(self) -> None:
        """Apply retention to every partition once; one that fails is told once and passed over."""
        for count, partition in enumerate(self._partitions):
            if count % _PARTITIONS_PER_LOOK == 0:
                await asyncio.sleep(0)
            if self.work.is_stopping:
                return
            await partition.open_ready()
            spared = partition.topic.name in _DELTAS or self._cleaner.busy_with == _name(partition)
            if spared or self._partitions.get(partition.topic.id, partition.index) is None:
                continue
            if await self._expire(partition):
                await asyncio.sleep(0)

    async def clean_dirtiest(self) -> bool:
        """Compact the dirtiest log that is worth it, one at a time; whether there was one."""
        async with self._one_cleaning:
            for partition in self._partitions:
                if self.work.is_stopping:
                    return False
                if "compact" in partition.settings.cleanup_policy:
                    await partition.open_ready()
            self._deleted.intersection_update(self._partitions)
            # A partition that is refused has reported its damage.
            refused = {_name(one) for one in self._partitions if one.refused is not None}
            compacted = [
                one
                for one in self._kept()
                if "compact" in one.settings.cleanup_policy and one.name not in refused
            ]
            return await self._cleaner.clean_dirtiest(compacted)

    async def _expire(self, partition: Partition) -> int:
        try:
            now = self._clock.proven()
            if partition.is_expired(now):
                await partition.roll_ready()
                now = self._clock.proven()
            before = partition.log.size_bytes
            dropped = await partition.expire(now, self._clock.wall())
            after = partition.log.size_bytes
        except OSError as error:
            if partition not in self._complained:
                self._complained.add(partition)
                log.error(
                    "retention of %s failed: %s; its old records stay until that is mended",
                    partition.name,
                    error,
                )
            return 0
        self._complained.discard(partition)
        self.counters.segments_deleted += dropped
        self.counters.bytes_freed += before - after
        if dropped:
            freed = size_text(before - after)
            were = "1 segment" if dropped == 1 else f"{dropped} segments"
            log.info("retention of %s: %s deleted, %s", partition.name, were, freed)
        return dropped

    def _kept(self) -> Iterator[Kept]:
        for partition in self._partitions:
            if partition.topic.name not in _DELTAS and partition not in self._deleted:
                yield _kept(partition)
        yield from self._others

    @property
    def _partitions(self) -> Partitions:
        return self._topics.partitions

    def _forget(self, topic: Topic, by: str) -> None:  # noqa: ARG002  # as all that are told
        for partition in self._partitions:
            if partition.topic.id == topic.id:
                self._complained.discard(partition)
                self._deleted.add(partition)
                self._cleaner.forget(_kept(partition))

    async def _retain(self) -> None:
        pause_ms = min(_RETENTION_FIRST_MS, self._config.retention_check_ms)
        while await self.work.pause(pause_ms):
            await self.expire_all()
            pause_ms = self._config.retention_check_ms

    async def _compact(self) -> None:
        pause_ms = min(_CLEANING_FIRST_MS, self._config.cleaner_backoff_ms)
        while await self.work.pause(pause_ms):
            while await self.clean_dirtiest():
                pass
            pause_ms = self._config.cleaner_backoff_ms


def _name(partition: Partition) -> tuple[str, int]:
    return partition.topic.name, partition.index


def _kept(partition: Partition) -> Kept:
    return Kept(*_name(partition), partition.settings, lambda: partition.log)
