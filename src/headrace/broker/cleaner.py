"""The log cleaner: which log is compacted next, the thread that does it, and what is told of it.

Source: Kafka's LogCleaner and LogCleanerManager (4.3), with one thread.
"""

import asyncio
import contextlib
import errno
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from headrace.broker.checked_clock import CheckedClock
from headrace.broker.topic_settings import TopicSettings
from headrace.core.types import MonoMs, WallMs, after, elapsed_ms
from headrace.log.api import REMEDY, DamagedBlockError, Disk
from headrace.log.cleaner_checkpoint import read_checkpoint, write_checkpoint
from headrace.log.compaction import Compaction, Group, Steps, Tally
from headrace.log.dirty import Dirty, Rules, is_overdue, measure, with_lag
from headrace.log.segment import Segment
from headrace.log.segments import SegmentedLog
from headrace.wire.batches import CorruptBatch

log = logging.getLogger("headrace.broker")

# A rest costs much more than a step over a small batch: under load the interpreter comes back late.
_WORK_S = 0.001
_REST_S = 0.0002  # after so much work, so that the event loop gets the interpreter when it wants it
_LOGS_PER_STEP, _SEGMENTS_PER_STEP = 16, 2000  # of a look at all logs
_RETRY_MS = 600_000


class Kept(NamedTuple):
    """A log that housekeeping looks after; `opened` opens it when it is not. Raises: OSError."""

    topic: str
    partition: int
    settings: TopicSettings
    opened: Callable[[], SegmentedLog]

    @property
    def name(self) -> tuple[str, int]:
        return self.topic, self.partition

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(slots=True)
class Counters:
    """What housekeeping has done since the broker started; `dirty_ratio_max` is of the last look.

    `dirty_ratio_max` includes logs that are set aside, because compaction of them failed.
    `bytes_freed` are those of segments that retention deleted and of records compacted away.
    """

    segments_deleted: int = 0
    bytes_freed: int = 0
    cleanings: int = 0
    failures: int = 0
    dirty_ratio_max: float = 0.0


class Cleaner:
    """Compacts logs, one at a time; `load` first.

    A log whose last replacement of segments is unfinished, because the disk failed, is compacted
    after that is finished: readers use files that do not have their names yet.

    Args:
        map_bytes: log.cleaner.dedupe.buffer.size.
        on_damage: reports the damage of a segment for which a log is left alone.
    """

    def __init__(
        self,
        disk: Disk,
        clock: CheckedClock,
        map_bytes: int,
        counters: Counters,
        on_damage: Callable[[DamagedBlockError], None],
    ) -> None:
        self.busy_with: tuple[str, int] | None = None
        self._disk = disk
        self._clock = clock
        self._map_bytes = map_bytes
        self._counters = counters
        self._offsets: dict[tuple[str, int], int] = {}
        self._unwritten = False
        self._writing = threading.Lock()
        self._on_damage = on_damage
        self._set_aside: dict[tuple[str, int], MonoMs] = {}
        self._damaged: dict[tuple[str, int], Segment] = {}
        self._gone: set[tuple[str, int]] = set()  # since the last look began
        self._stop = threading.Event()
        self._closed = False

    def load(self, present: Iterable[Kept]) -> None:
        """Read up to where these logs were compacted; forget all others. Raises: OSError."""
        names = {one.name for one in present}
        read = read_checkpoint(self._disk)
        self._offsets = {name: offset for name, offset in read.items() if name in names}
        self._unwritten = len(self._offsets) < len(read)

    def forget(self, kept: Kept) -> None:
        """A log is deleted: abandon work on it; one of the same name will be another."""
        self._gone.add(kept.name)
        self._set_aside.pop(kept.name, None)
        self._damaged.pop(kept.name, None)
        self._unwritten |= self._offsets.pop(kept.name, None) is not None
        if self.busy_with == kept.name:
            self._stop.set()

    async def keep_forgotten(self) -> None:
        """Write what was forgotten: after a crash, other logs of those names would pass for clean.

        What passes for clean is not searched for older values when its tombstones go.
        """
        if self._unwritten:
            await self._write_checkpoint()

    def stop(self) -> None:
        """Abandon what is under way, and begin nothing more."""
        self._closed = True
        self._stop.set()

    async def clean_dirtiest(self, kept: Sequence[Kept]) -> bool:
        """Compact the log with the largest dirty part; whether one was.

        What fails is logged, and left alone for ten minutes, or for as long as the log has a
        damaged segment; the next dirtiest then has its turn.
        """
        self._gone.clear()
        for one, dirty in await self._look(kept):
            if self._closed:
                break
            if one.name not in self._gone and await self._clean(one, dirty):
                return True
        if self._unwritten:
            await self._write_checkpoint()
        return False

    async def _look(self, kept: Sequence[Kept]) -> list[tuple[Kept, Dirty]]:
        """The logs that are to be compacted, the dirtiest first."""
        due: list[tuple[Kept, Dirty]] = []
        highest = 0.0
        now, proven = self._clock.mono(), self._clock.proven()
        logs = segments = 0
        for one in kept:
            if logs >= _LOGS_PER_STEP or segments >= _SEGMENTS_PER_STEP:
                await asyncio.sleep(0)
                logs = segments = 0
            logs += 1
            if one.name in self._gone:
                continue
            rests = self._set_aside.get(one.name, now) > now
            try:
                opened = one.opened()
            except OSError as error:
                if not rests:
                    self._fail(one, error)
                continue
            segments += opened.segment_count
            rules, cleaned_to = self._rules(one), self._offsets.get(one.name)
            dirty = measure(opened, cleaned_to, rules, proven)
            highest = max(highest, dirty.ratio)
            if rests or self._has_damaged(one, opened):
                continue
            try:
                await _finish_replacement(opened)
                if self._closed or one.name in self._gone:
                    continue
                if await _seal_overdue(opened, rules, proven):
                    dirty = measure(opened, cleaned_to, rules, proven)
                dirty = with_lag(dirty, opened, rules, proven)
            except OSError as error:
                self._report(one, opened.segment_at, error)
                continue
            highest = max(highest, dirty.ratio)
            if dirty.is_due(rules):
                due.append((one, dirty))
        self._counters.dirty_ratio_max = highest
        return sorted(due, key=lambda pair: pair[1].ratio, reverse=True)

    async def _clean(self, kept: Kept, dirty: Dirty) -> bool:
        started = self._clock.mono()
        self._stop.clear()
        work = self._begin(kept, dirty)
        self.busy_with = kept.name
        try:
            whole = await self._carry_out(work)
        except (OSError, CorruptBatch) as error:
            if not self._stop.is_set() and not work.overtaken:
                self._report(kept, work.segment_at, error)
            return False
        finally:
            self.busy_with = None
        if not whole:
            return False
        self._set_aside.pop(kept.name, None)
        self._offsets[kept.name] = work.end
        await self._write_checkpoint()
        took_ms = elapsed_ms(started, self._clock.mono())
        self._counters.cleanings += 1
        self._counters.bytes_freed += work.tally.bytes_before - work.tally.bytes_after
        log.info("compacted %s: %s", kept, _summary(work.tally, took_ms))
        return True

    def _begin(self, kept: Kept, dirty: Dirty) -> Compaction:
        opened = kept.opened()
        last_offset = opened.producers.remembered().last_offset
        rules, now = self._rules(kept), self._clock.proven()
        return Compaction(self._disk, opened, dirty, rules, now, last_offset)

    async def _carry_out(self, work: Compaction) -> bool:
        """All of a cleaning; False when it was stopped, or its segments went away under it."""
        if not await self._in_thread(work.map_keys()):
            return False
        for group in work.groups():
            if not await self._replace(work, group):
                return False
        await self._in_thread(work.forget_keys())
        return True

    async def _replace(self, work: Compaction, group: Group) -> bool:
        in_executor = partial(asyncio.get_running_loop().run_in_executor, None)
        done = False
        try:
            copy = await in_executor(work.open_copy, group)
            try:
                whole = await self._in_thread(work.copy(group, copy))
            finally:
                copy.close()
            done = whole and work.put(group)
            if done:
                await in_executor(work.put_away, group)
                work.finish(group)
                with contextlib.suppress(OSError):  # the next round does it
                    await in_executor(work.tidy, group)
        finally:
            if not done:
                # What cannot be removed now is removed before the next replacement is staged.
                with contextlib.suppress(OSError):
                    await in_executor(work.discard, group)
        return done

    async def _in_thread(self, steps: Steps) -> bool:
        """Carry steps out beside the event loop; False when they were stopped."""
        if self._closed:
            return False
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, _carry_out, steps, self._stop)
        return not self._stop.is_set()  # it may have been set after the last step

    async def _write_checkpoint(self) -> None:
        self._unwritten = False
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(None, self._write)
        except OSError as error:
            self._not_written(error)

    def _write(self) -> None:
        with self._writing:
            write_checkpoint(self._disk, dict(self._offsets))

    def _not_written(self, error: OSError) -> None:
        self._unwritten = True
        log.error("the cleaner's checkpoint cannot be written: %s; what is compacted stays so, "
                  "and may be looked at again after a restart", error)  # fmt: skip

    def _fail(self, kept: Kept, error: Exception) -> None:
        self._counters.failures += 1
        self._set_aside[kept.name] = after(self._clock.mono(), _RETRY_MS)
        remedy = "check space and permissions of the data folder"
        if isinstance(error, CorruptBatch):
            remedy = f"stop the broker, and {REMEDY}"
        log.error(
            "%s cannot be compacted: %s; the log stays as it is, and compaction is tried again in "
            "%d minutes; %s",
            kept, error, _RETRY_MS // 60_000, remedy,
        )  # fmt: skip

    def _report(
        self,
        kept: Kept,
        segment_at: Callable[[str], Segment | None],
        error: OSError | CorruptBatch,
    ) -> None:
        """Report why a log cannot be compacted, and set the log aside.

        Args:
            segment_at: returns the segment of the log whose file stands at a path.
        """
        if kept.name in self._gone:
            return
        if not isinstance(error, DamagedBlockError):
            self._fail(kept, error)
            return
        damage = error.damage
        segment = segment_at(damage.path)
        if segment is None:  # nothing that the log has is damaged
            self._fail(kept, OSError(errno.EIO, damage.problem, damage.path))
            return
        self._counters.failures += 1
        self._damaged[kept.name] = segment
        self._on_damage(error)

    def _has_damaged(self, kept: Kept, opened: SegmentedLog) -> bool:
        """Return whether a log still has the segment in which compaction met damage."""
        segment = self._damaged.get(kept.name)
        if segment is not None and opened.has(segment):
            return True
        self._damaged.pop(kept.name, None)
        return False

    def _rules(self, kept: Kept) -> Rules:
        settings = kept.settings
        return Rules(
            settings.min_cleanable_ratio,
            settings.min_compaction_lag_ms,
            settings.max_compaction_lag_ms,
            settings.delete_retention_ms,
            settings.segment_bytes,
            self._map_bytes,
        )


async def _finish_replacement(opened: SegmentedLog) -> None:
    """Finish the replacement of segments that the disk stopped in an earlier compaction.

    Raises: OSError.
    """
    if opened.resume_replacement():
        loop = asyncio.get_running_loop()
        opened.finish_replacement(await loop.run_in_executor(None, opened.put_away_replaced))
        with contextlib.suppress(OSError):  # the next replacement does it
            await loop.run_in_executor(None, opened.remove_staged_checksums)


async def _seal_overdue(opened: SegmentedLog, rules: Rules, now: WallMs) -> bool:
    """Seal the active segment where its oldest record is overdue; return whether it was.

    Raises: OSError.
    """
    active = opened.segments()[-1]
    if not active.size or not is_overdue(opened, active.base_offset, rules, now):
        return False
    opened.begin_seal()
    await asyncio.get_running_loop().run_in_executor(None, opened.prepare_next)
    opened.begin_next()
    return True


def _carry_out(steps: Steps, stop: threading.Event) -> None:
    began = time.perf_counter()
    for _ in steps:
        rests = time.perf_counter() - began >= _WORK_S
        if stop.wait(_REST_S) if rests else stop.is_set():
            steps.close()
            return
        if rests:
            began = time.perf_counter()


def _summary(tally: Tally, took_ms: int) -> str:
    told = (
        f"{size_text(tally.bytes_before)} -> {size_text(tally.bytes_after)} in"
        f" {took_ms / 1000:.1f} s, {tally.records_before:,} -> {tally.records_after:,} records"
    )
    if tally.without_key:
        told += f"; {tally.without_key:,} records had no key and were dropped"
    if tally.unreadable:
        told += f"; {tally.unreadable:,} records cannot be decoded and were left alone"
    return told


def size_text(count: float) -> str:
    """Bytes for people: 340 MB."""
    units = iter(("B", "KB", "MB", "GB", "TB"))
    unit = next(units)
    while count >= 1000 and unit != "TB":
        count, unit = count / 1000, next(units)
    return f"{count:.0f} {unit}" if count >= 10 or unit == "B" else f"{count:.1f} {unit}"
