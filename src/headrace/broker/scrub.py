"""The scrub: reads all that is at rest, slowly, so that damage is found while a backup is young.

A pass verifies each segment and the checkpoint of the catalogue, at no more than
headrace.scrub.bytes.per.second: every byte that was there when it came to the file. Passes begin
headrace.scrub.interval.ms apart, the first an hour after the start at the latest. Reading happens
in threads, a step at a time. Damage is logged, counted, and shown by `/-/ready`; the partition
refuses readers of it.
"""

import asyncio
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.background import Background
from headrace.broker.config import Config
from headrace.broker.partitions import Partition
from headrace.broker.topics import Topics
from headrace.log.api import MISSING, CorruptFileError, DamagedBlockError, Disk
from headrace.log.verify import verify_file

if TYPE_CHECKING:
    from headrace.core.types import WallMs
    from headrace.log.api import Clock
    from headrace.log.segment import Segment

log = logging.getLogger("headrace.broker")

_FIRST_MS_MAX = 3_600_000


class _Damage(NamedTuple):
    """Damage of a file, with what is read from the file: as `Scrub._user`."""

    error: CorruptFileError
    partition: Partition | None
    user: "Segment | str"


class Scrub:
    """Runs from `start` to `close`, on the event loop.

    `bytes_verified` and `passes` count since the start;
    `passed_at` is the wall time at which the last pass ended, None before.
    """

    def __init__(self, config: Config, disk: Disk, clock: "Clock", topics: Topics) -> None:
        self.bytes_verified = 0
        self.passes = 0
        self.passed_at: WallMs | None = None
        self._damages: dict[str, _Damage] = {}
        self.work = Background("data at rest is no longer verified", "scrub")
        self._interval_ms = config.scrub_interval_ms
        self._bytes_per_second = config.scrub_bytes_per_second
        self._disk = disk
        self._clock = clock
        self._topics = topics
        self._owed_ms = 0.0  # pause that the bytes read so far still cost

    def start(self) -> None:
        """Begin to verify, unless it is switched off."""
        if self._interval_ms and self._bytes_per_second:
            self.work.begin(self._run())

    async def close(self) -> None:
        """Abandon the pass under way."""
        await self.work.stop()

    @property
    def damages(self) -> dict[str, CorruptFileError]:
        """The damaged files that are still read, by path."""
        return {
            path: one.error
            for path, one in self._damages.items()
            if self._user(path, one.partition) == one.user
        }

    async def run_pass(self) -> None:
        """Verify everything once."""
        found: dict[str, _Damage] = {}
        checkpoint = self._topics.journal_log.checkpoint_path
        if checkpoint is not None:
            await self._verify(checkpoint, None, found)
        for partition in list(self._topics.partitions):
            await asyncio.sleep(0)
            await partition.open_ready()  # for its list of segments
            for path in self._paths(partition):
                if self.work.is_stopping:
                    return
                await self._verify(path, partition, found)
        self._damages = found
        self.passes += 1
        self.passed_at = self._clock.wall()

    async def _run(self) -> None:
        pause_ms = min(self._interval_ms, _FIRST_MS_MAX)
        while await self.work.pause(pause_ms):
            await self.run_pass()
            pause_ms = self._interval_ms

    def _paths(self, partition: Partition) -> list[str]:
        """Return the segments of a partition that have records; none of one that is refused."""
        if not self._is_served(partition):
            return []
        try:
            segments = partition.log.segments()
        except OSError:  # the partition has logged it
            return []
        return [segment.file_path for segment in segments if segment.size]

    def _is_served(self, partition: Partition) -> bool:
        return self._topics.partitions.get(partition.topic.id, partition.index) is partition

    def _user(self, path: str, partition: Partition | None) -> "Segment | str | None":
        """Return the segment, or without a partition the checkpoint, that is read from a file.

        Returns:
            None when the file is not read any more; another object when the file was replaced.
        """
        if partition is None:
            return path if path == self._topics.journal_log.checkpoint_path else None
        if not self._is_served(partition):
            return None
        try:  # without a list of all segments, of which there may be thousands
            return partition.log.segment_at(path)
        except OSError:
            return None

    async def _verify(
        self, path: str, partition: Partition | None, found: dict[str, _Damage]
    ) -> None:
        user = self._user(path, partition)
        if user is None:
            return  # retention or compaction may have removed it
        active = None if isinstance(user, str) or user.sealed else partition
        cuts = _cuts(active)
        try:
            # An append may be under way in the file of the active segment.
            size = self._disk.size(path) if isinstance(user, str) or user.sealed else user.size
            steps = verify_file(self._disk, path, size)
            while await self._step(steps):
                pass
        except CorruptFileError as error:
            if self._user(path, partition) is not user or not cuts == _cuts(active) >= 0:
                return  # replaced meanwhile, or cut after a sync that failed
            found[path] = _Damage(error, partition, user)
            self._damaged(path, found[path])
        except OSError as error:
            if self._user(path, partition) is not user:
                return
            if isinstance(error, FileNotFoundError):
                missing = CorruptFileError(path, MISSING)
                found[path] = _Damage(missing, partition, user)
                self._damaged(path, found[path])
            else:
                log.warning("scrub: %s cannot be read: %s", path, error.strerror or error)

    def _damaged(self, path: str, damage: _Damage) -> None:
        is_known = path in self._damages
        self._damages[path] = damage
        if damage.partition is not None:
            damage.partition.report_damage(DamagedBlockError(damage.error), "is damaged")
        elif not is_known:
            log.error("scrub: %s", damage.error)

    async def _step(self, steps: Iterator[int]) -> bool:
        """Verify a step in a thread, then pause as long as its bytes cost; False at the end."""
        count = await asyncio.get_running_loop().run_in_executor(None, next, steps, None)
        if count is None:
            return False
        self.bytes_verified += count
        self._owed_ms += count * 1000 / max(self._bytes_per_second, 1)
        if self._owed_ms >= 1:
            owed, self._owed_ms = int(self._owed_ms), self._owed_ms % 1
            return await self.work.pause(owed)
        return not self.work.is_stopping


def _cuts(active: Partition | None) -> int:
    """Return how often the end of an active segment was cut off, -1 while a sync is not mended."""
    if active is None:
        return 0
    return active.cuts if active.log.fault is None else -1
