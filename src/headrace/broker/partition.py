"""One partition: appends as durable as configured, what readers see, and what is kept of it.

A failed sync says nothing of what is on the disk. Under `fsync` nothing above the durable end was
promised to anybody or seen: it is cut off, and appends go on once that is synced. Under `os` all of
it was promised, so it is written once more. Either is tried again, with pauses, until it succeeds.
"""

import asyncio
import contextlib
import errno
import functools
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence

from headrace.broker.metrics import Traffic
from headrace.broker.removal import DelayedRemoval
from headrace.broker.retention import kept_from
from headrace.broker.settings import LONG_MAX
from headrace.broker.storage_faults import StorageFaults
from headrace.broker.topic_settings import TopicSettings
from headrace.broker.waits import Waits
from headrace.core.catalog import Topic
from headrace.core.types import TopicPartition, WallMs
from headrace.log.api import (
    CorruptFileError,
    CorruptLog,
    DamagedBlockError,
    Disk,
    OffsetOutOfRange,
    SegmentInfo,
    Slice,
)
from headrace.log.segment import Segment
from headrace.log.segments import SegmentedLog
from headrace.wire import batches
from headrace.wire.batches import BatchHeader

log = logging.getLogger("headrace.broker")

_MEND_SECONDS_MIN = 0.1
_MEND_SECONDS_MAX = 5.0
# A full segment is synced before the next begins: never more than about this much is left then.
_UNSYNCED_BYTES_MAX = 64 << 20
_UNSYNCED_JOURNAL_BYTES_MAX = 1 << 20  # everybody who commits waits for that of an internal topic
_READ_FAILURES_KEPT = 100
_DROPPED_AT_ONCE = 50  # segments whose files are renamed in a turn of the loop
_ROLL_AHEAD_PART = 256  # of a journal's segment is left empty
_ROLL_AHEAD_SECONDS = 0.001  # between an append and the roll, for requests that waited for it

_closing = threading.Lock()  # held for a moment: a log is closed by `open` or by `close`

Dropped = Callable[[Sequence[str]], None]


class Partition:
    """One partition: its log, its topic's settings, and the durability of what was appended.

    Args:
        open_log: opens the log when it is first needed, given who removes dropped files.
        fsync: answers wait for the disk (headrace.durability); else for the operating system.
        on_start_moved: called with the partition when its start offset moved.
        one_opening: held by `open_ready`: several threads that open logs hold up the event loop.

    `cuts` counts how often a failed sync cost what was appended and not promised.
    """

    # Of the class until they change: with more than 30 attributes of its own, an object takes 2 KB.
    cuts = 0
    failed_bytes = 0  # of the append that failed last
    failed_position = 0  # where its file may not grow, if that is why it failed
    _opening: asyncio.Future[None] | None = None
    _unopened: OSError | None = None  # why `open_ready` could not open the log
    _before_use: Callable[[int], Awaitable[None]] | None = None  # what is awaited with its end
    _next_settings: TopicSettings | None = None  # that came while the log was opened
    _rolling: asyncio.Future[None] | None = None
    _mending: asyncio.Future[None] | None = None
    _refused: CorruptLog | None = None
    _damages: tuple[tuple[CorruptFileError, Segment], ...] = ()
    _read_failures: frozenset[str] = frozenset()
    _flush_due: asyncio.TimerHandle | None = None
    _roll_due: asyncio.TimerHandle | None = None

    def __init__(
        self,
        topic: Topic,
        index: int,
        open_log: Callable[[TopicSettings, Dropped], SegmentedLog],
        settings: TopicSettings,
        waits: Waits,
        faults: StorageFaults,
        disk: Disk,
        *,
        fsync: bool,
        producer_expiration_ms: int,
        on_start_moved: "list[Callable[[Partition], None]]",
        one_opening: asyncio.Lock | None = None,
    ) -> None:
        self.topic = topic
        self.index = index
        self.settings = settings
        self.key = TopicPartition(topic.id, index)
        self.on_start_moved = on_start_moved
        self.traffic = Traffic()
        self._open_log = open_log
        self._log: SegmentedLog | None = None
        self._opens = threading.Lock()  # held while the log is opened
        self._one_opening = one_opening or asyncio.Lock()
        self._waits = waits
        self._faults = faults
        self._removal = DelayedRemoval(disk, self.name)
        self._fsync = fsync
        self._producer_expiration_ms = producer_expiration_ms
        self._promised = 0
        self._unsynced_bytes = 0  # appended since the last sync began
        self._unsynced_bytes_max = (
            _UNSYNCED_JOURNAL_BYTES_MAX if topic.internal else _UNSYNCED_BYTES_MAX
        )
        self._syncing: asyncio.Future[None] | None = None
        self._fault: OSError | None = None
        self.is_failing = False
        self._is_closed = False
        self.is_internal = topic.internal
        self._flushes_as_set = _flushes_as_set(settings)

    @property
    def name(self) -> str:
        return f"{self.topic.name}-{self.index}"

    @property
    def fields(self) -> dict[str, object]:
        """What a log line about this partition carries beside its text."""
        return {"topic": self.topic.name, "partition": self.index}

    @property
    def is_open(self) -> bool:
        return self._log is not None

    @property
    def must_open(self) -> bool:
        """Whether `open_ready` opens the log, or tries to."""
        return self._log is None and self._refused is None and not self._is_closed

    @property
    def log(self) -> SegmentedLog:
        """The log, opened here unless `open_ready` was awaited before.

        Raises: OSError, also when the log is refused, or `open_ready` could not open it.
        """
        if self._log is None:
            if self._is_closed:  # another topic may have the folder by now
                raise self._refusal()
            if self._refused is not None:
                raise OSError(f"{self.name} is refused: {self._refused}")
            if self._unopened is not None:
                raise OSError(str(self._unopened)) from self._unopened
            try:
                self.open()
            except (CorruptLog, OSError) as error:
                raise self._cannot_open(error) from error
        assert self._log is not None
        return self._log

    async def open_ready(self) -> None:
        """Open the log in a thread unless it is open: one with many segments takes long.

        Where that fails, the partition reports it, and the next use of the log raises it.
        """
        if not self.must_open:
            return
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._open_in_thread())
        # A caller that goes away must not end the work for the others.
        await asyncio.shield(self._opening)

    async def _open_in_thread(self) -> None:
        try:
            before, loop = self._before_use, asyncio.get_running_loop()
            async with self._one_opening:
                if before is None:
                    await loop.run_in_executor(None, self.open)
                else:
                    opened = await loop.run_in_executor(None, self._open_unused)
            if before is not None:
                await self._serve_after(opened, before)
        except (CorruptLog, OSError) as error:
            self._unopened = self._cannot_open(error)
        finally:
            self._opening = None
            if self._next_settings is not None:
                settings, self._next_settings = self._next_settings, None
                self.configure(settings)

    def open(self) -> None:
        """Open the log unless it is open; may run in a thread. Raises: OSError; CorruptLog."""
        with self._opens:
            if self._is_closed:
                raise self._refusal()
            if self._log is None:
                self._serve(self._opened())

    def _opened(self) -> SegmentedLog:
        """Open the log, which nobody can use yet. Raises: OSError; CorruptLog."""
        opened = self._open_log(self.settings, self._remove_later)
        if self._waits_for_disk:
            try:
                opened.sync()
            except BaseException:
                opened.close()
                raise
        return opened

    def _serve(self, opened: SegmentedLog) -> None:
        """Let others use a log that was opened, unless the partition was closed meanwhile."""
        with _closing:
            is_closed = self.is_closed  # then `close` found no log
            if not is_closed:
                self._unopened = None
                self._log = opened
        if is_closed:
            opened.close()
            opened.retire()

    def _open_unused(self) -> SegmentedLog:
        """Open the log, which nobody can use yet; for a thread. Raises: OSError; CorruptLog."""
        with self._opens:
            if self._is_closed:
                raise self._refusal()
            return self._opened()

    async def _serve_after(
        self, opened: SegmentedLog, before: Callable[[int], Awaitable[None]]
    ) -> None:
        """Let others use a log once `before` is done with its end. Raises: OSError."""
        try:
            await before(opened.end_offset)
        except BaseException:
            opened.close()
            opened.retire()
            raise
        self._before_use = None
        self._serve(opened)
        for listener in self.on_start_moved if self._log is opened else ():
            listener(self)  # the start may have moved before, too

    def _cannot_open(self, error: CorruptLog | OSError) -> OSError:
        """Report why the log cannot be opened, and return what to raise for it."""
        if isinstance(error, CorruptLog):
            self.refuse(error)
            return OSError(f"{self.name} is refused: {error}")
        if not self._is_closed:
            self._failed(error)
        return OSError(f"{self.name} cannot be opened: {error}")

    def before_use(self, callback: Callable[[int], Awaitable[None]]) -> None:
        """Await `callback` with the end of the log when that is opened, before anybody uses it.

        From now on only `open_ready` opens the log. If the callback raises an OSError, the log is
        not opened, and the next `open_ready` tries again.
        """
        self._before_use = callback
        if self._unopened is None:
            self._unopened = OSError(f"{self.name} is not open yet")

    def not_opened(self, error: OSError) -> None:
        """Report that the log cannot be opened yet; the next use opens it."""
        self._failed(error)

    @property
    def refused(self) -> CorruptLog | None:
        """The damage because of which the partition is not served; a restart looks again."""
        return self._refused

    def refuse(self, damage: CorruptLog) -> None:
        """Serve nothing of this partition: what is left of its log cannot be trusted.

        The damage is logged once, but for a journal: without it the broker does not start, and the
        error of the start names the damage.
        """
        if self._refused is not None:
            return
        self._refused, self.is_failing = damage, False  # writing again would not help
        self._faults.forget(self.name)
        if not self.is_internal:
            log.error(
                "%s. Clients get KAFKA_STORAGE_ERROR for partition %s; others are served",
                damage, self.name, extra=self.fields,
            )  # fmt: skip

    @property
    def damage(self) -> CorruptLog | None:
        """Damage of a segment that the log still has; its other records are served."""
        return next((damage for damage, segment in self._damages if self._has(segment)), None)

    def read_failed(self, error: Exception) -> None:
        """Log a failed read, once for each reason."""
        if self._note(error):
            log.error("%s: read failed: %s", self.name, error, extra=self.fields)

    def report_damage(self, error: DamagedBlockError, effect: str) -> None:
        """Log the damage that a background task met, once, and refuse its readers from now on.

        Args:
            effect: the result for the partition: "cannot be compacted".
        """
        damage = error.damage
        with contextlib.suppress(OSError):  # without checksums, readers are served as before
            self.log.distrust(damage.path)
        if self._note(error):
            log.error(
                "%s %s: %s: %s; stop the broker, and %s",
                self.name, effect, damage.where, damage.problem, damage.remedy, extra=self.fields,
            )  # fmt: skip

    def _note(self, error: Exception) -> bool:
        """Keep damage for `damage`; return whether the failure is to be logged."""
        if isinstance(error, DamagedBlockError) and self._log is not None:
            segment = self._log.segment_at(error.damage.path)
            others = [one for one in self._damages if one[1] is not segment and self._has(one[1])]
            newest = [] if segment is None else [(error.damage, segment)]
            self._damages = (*newest, *others)
        reason = str(error)
        if self._refused is not None or reason in self._read_failures:
            return False
        kept = self._read_failures if len(self._read_failures) < _READ_FAILURES_KEPT else ()
        self._read_failures = frozenset((*kept, reason))
        return True

    def _has(self, segment: Segment) -> bool:
        """Return whether the log has a segment: retention and compaction may have removed it."""
        return self._log is not None and self._log.has(segment)

    @property
    def start_offset(self) -> int:
        return self.log.start_offset

    @property
    def high_watermark(self) -> int:
        """The end of what readers may see: with `fsync`, only what is on the disk."""
        opened = self._log or self.log
        if self._waits_for_disk:
            return max(opened.durable_end, self._promised)
        return opened.end_offset

    @property
    def _waits_for_disk(self) -> bool:
        return self._fsync or self.settings.flush_messages == 1

    def configure(self, settings: TopicSettings) -> None:
        """Take over changed settings; those of the log hold from its next append on."""
        if self._opening is not None:  # with the former settings
            self._next_settings = settings
            return
        waited = self._waits_for_disk
        self.settings = settings
        self._flushes_as_set = _flushes_as_set(settings)
        if self._log is None:
            return
        self._log.configure(
            segment_bytes=settings.segment_bytes,
            segment_ms=settings.segment_ms,
            index_interval_bytes=settings.index_interval_bytes,
        )
        if self._waits_for_disk and not waited:
            self._promised = self._log.end_offset
            self._begin_sync()

    def read_through(self, offset: int, last: int, max_bytes: int) -> Slice:
        """As `SegmentedLog.read_through`, below the high watermark. Raises: as that."""
        return self.log.read_through(offset, last, max_bytes, end=self.high_watermark)

    # ---- appends

    def append(
        self, data: bytearray | memoryview, headers: list[BatchHeader], *, has_room: bool = False
    ) -> int:
        """Write batches at the end and wake readers; returns the first offset.

        Args:
            has_room: `must_roll` has just been false for this one batch.

        What is promised to others must wait for `durable`. Raises: OSError.
        """
        opened = self._log or self.log
        if self._fault is not None:
            self._failed(self._fault)
            raise self._refusal()
        try:
            first = opened.append(data, headers, has_room=has_room)
        except OSError as error:
            self.failed_bytes = len(data)
            is_limit = error.errno == errno.EFBIG
            self.failed_position = opened.segments()[-1].size if is_limit else 0
            if opened.fault is not None:
                self._begin_mending(error)
            else:
                self._failed(error)
            raise
        if self.is_failing:
            self._recovered()
        self.traffic.produced(data, headers)
        self._unsynced_bytes += len(data)
        if self.is_internal and opened.room < self.settings.segment_bytes // _ROLL_AHEAD_PART:
            self._roll_ahead()
        if self._fsync or (self._flushes_as_set and self._waits_for_disk):
            self._begin_sync()
        else:
            self._waits.notify(self.key)
            if self._unsynced_bytes > self._unsynced_bytes_max:
                self._begin_sync()
            if self._flushes_as_set:
                self._flush_as_set(opened)
        return first

    def may_have_to_wait(self) -> bool:
        """Return whether what was appended is perhaps less durable than configured."""
        if not self._fsync and not self._flushes_as_set:
            return False
        flushes = self.settings.flush_messages < LONG_MAX
        return flushes or self.high_watermark < self.log.end_offset

    def must_roll(self, header: BatchHeader) -> bool:
        """Return whether a batch needs a new segment: `roll_ready` must be awaited before.

        Raises: OSError, when the log cannot be opened.
        """
        return self._fault is None and (self._log or self.log).must_roll(header)

    async def roll_ready(self) -> None:
        """Seal the active segment, in a thread; the next append begins a new segment.

        Raises: OSError.
        """
        # A caller that goes away must not end the work for the others.
        await asyncio.shield(self._begin_roll())

    def _begin_roll(self) -> "asyncio.Future[None]":
        """Raises: OSError."""
        if self._rolling is None:
            self.require_whole()
            self.log.begin_seal()
            self._rolling = asyncio.ensure_future(self._prepare_roll())
            self._rolling.add_done_callback(_retrieve)
        return self._rolling

    async def _prepare_roll(self) -> None:
        opened = self.log
        try:
            await asyncio.get_running_loop().run_in_executor(None, opened.prepare_next)
        except OSError as error:
            if self._is_closed:
                raise
            if opened.fault is not None:
                self._begin_mending(error)
            else:
                self._failed(error)
            raise
        finally:
            self._rolling = None
        self._waits.notify(self.key)  # with `fsync`, what was synced may be read now

    def append_records(self, records: list[batches.Record]) -> int:
        """Write records of the broker's own as one batch; otherwise as `append`."""
        data, header = batches.build_with_header(records)
        return self.append(data, [header])

    async def durable(self, *, cuts: int | None = None) -> None:
        """Return once all that is appended is as durable as configured.

        With `fsync`, one fdatasync serves everybody who came before it began. Else one is waited
        for when flush.messages records are not synced.

        Args:
            cuts: `Partition.cuts` at the time of the append, where the caller did something else
                since; what was appended may have been cut off meanwhile.

        Raises: OSError.
        """
        opened, seen = self.log, self.cuts if cuts is None else cuts
        end = opened.end_offset
        unsynced = end - opened.durable_end
        if not self._waits_for_disk and unsynced < self.settings.flush_messages:
            return
        await self.on_disk(end, seen)

    async def on_disk(self, end: int, cuts: int | None = None) -> None:
        """Return once everything below `end` is synced, whatever is configured.

        Raises: OSError, also where something was cut off since there were so many `cuts`.
        """
        opened, seen = self.log, self.cuts if cuts is None else cuts
        while opened.durable_end < end:
            if self._fault is not None or seen != self.cuts:
                raise self._refusal()
            # A caller that goes away must not end the sync for the others.
            await asyncio.shield(self._begin_sync())
        if seen != self.cuts:
            raise self._refusal()

    def require_whole(self) -> None:
        """Raises: OSError while a failed sync is not mended."""
        if self._fault is not None:
            raise self._refusal()

    def _refusal(self) -> OSError:
        """A fresh error for each caller, as every raise adds to its traceback."""
        number = errno.EIO if self._fault is None else self._fault.errno
        told = "is closed" if self._is_closed else "is not mended yet after a failed sync"
        if self._fault is None:
            told = "gave up what was not synced"
        return OSError(number, f"{self.name} {told}")

    def _roll_ahead(self) -> None:
        """Begin to prepare the next segment, once requests that came together are written."""
        if self._roll_due is None:
            loop = asyncio.get_running_loop()
            self._roll_due = loop.call_later(_ROLL_AHEAD_SECONDS, self._roll)

    def _roll(self) -> None:
        self._roll_due = None
        if self._fault is None:
            with contextlib.suppress(OSError):  # the next append tries again
                self._begin_roll().add_done_callback(self._rolled)

    def _rolled(self, roll: "asyncio.Future[None]") -> None:
        if not self._is_closed and not roll.cancelled() and roll.exception() is None:
            self.log.begin_next()

    def _begin_sync(self) -> "asyncio.Future[None]":
        if self._syncing is None:
            self._syncing = asyncio.ensure_future(self._sync())
        return self._syncing

    async def _sync(self) -> None:
        end, self._unsynced_bytes = self.log.end_offset, 0
        try:
            await asyncio.get_running_loop().run_in_executor(None, self.log.sync)
        except OSError as error:
            self._begin_mending(error)
            return
        finally:
            self._syncing = None
        self._waits.notify(self.key)
        if self._waits_for_disk and end < self.log.end_offset:
            self._begin_sync()

    def _flush_as_set(self, opened: SegmentedLog) -> None:
        """Sync now when flush.messages records are not synced, else flush.ms later."""
        if opened.end_offset - opened.durable_end >= self.settings.flush_messages:
            self._begin_sync()
        elif self.settings.flush_ms < LONG_MAX and self._flush_due is None:
            delay = self.settings.flush_ms / 1000
            self._flush_due = asyncio.get_running_loop().call_later(delay, self._flush)

    def _flush(self) -> None:
        self._flush_due = None
        if self._fault is None and self.log.durable_end < self.log.end_offset:
            self._begin_sync()

    # ---- faults

    def _failed(self, error: OSError) -> None:
        self.is_failing = True
        self._faults.failed(self.name, error)

    def _recovered(self) -> None:
        self.is_failing = False
        self._faults.over(self.name)

    def retry(self) -> None:
        """After a failed append: report no failure any more if the log can be written again."""
        if self.is_failing and self._fault is None and not self._is_closed:
            try:
                self.log.heal(keep=True)
            except OSError as error:
                self._failed(error)
            else:
                self._recovered()

    def _begin_mending(self, error: OSError) -> None:
        if self._is_closed:
            return
        self._failed(error)
        if self._fault is None:
            self._fault = error
            keep = not self._waits_for_disk or self.log.durable_end < self._promised
            self.cuts += not keep
            self._mending = asyncio.ensure_future(self._mend(keep))

    async def _mend(self, keep: bool) -> None:
        """Make the log whole again after a failed sync, however long that takes."""
        opened, pause = self.log, _MEND_SECONDS_MIN
        mend = functools.partial(opened.mend, keep=keep)
        while self._fault is not None:
            try:
                await asyncio.get_running_loop().run_in_executor(None, mend)
                opened.resume()
                self._fault = None
            except OSError as error:
                if isinstance(error, DamagedBlockError):
                    self.read_failed(error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _MEND_SECONDS_MAX)
        self._recovered()
        self._waits.notify(self.key)

    # ---- what is kept

    @property
    def is_closed(self) -> bool:
        """Whether the partition is gone: another topic may have its name and folder."""
        return self._is_closed

    def require_deletable(self, before: int) -> None:
        """Raises: OffsetOutOfRange above the high watermark; OSError."""
        if not 0 <= before <= self.high_watermark:
            raise OffsetOutOfRange(before, self.start_offset, self.high_watermark)

    async def begin_at(self, before: int) -> int:
        """Begin at an offset that is kept durably, and drop the segments that were given up.

        Returns: the start offset. Raises: OSError.
        """
        self._require_open()
        self._move_start(before)
        await self._drop_segments(before)
        return self.start_offset

    def is_expired(self, now: WallMs) -> bool:
        """Return whether `expire` would seal the active segment first. Raises: OSError."""
        segments = self.log.segments()
        if not segments[-1].size or self.topic.internal:
            return False
        kept = kept_from(segments, self.settings, now, self.high_watermark)
        return kept >= segments[-1].end_offset

    async def expire(self, now: WallMs, latest: WallMs | None = None) -> int:
        """Drop the segments that the topic's settings keep no longer.

        Of an internal topic, whose records are a journal, only what was deleted goes. Producers
        that were silent for producer.id.expiration.ms are forgotten, sooner where many are known.

        Args:
            now: the earliest that the time may be.
            latest: the latest that it may be; `now` without doubt.

        Returns: how many segments.
        Raises: OSError.
        """
        opened = self.log
        for _ in opened.producers.expiring(now, self._producer_expiration_ms, latest):
            await asyncio.sleep(0)
            self._require_open()
        segments = opened.segments()
        until = self._kept_from(segments, now)
        if until == segments[-1].end_offset and segments[-1].size:
            await self.roll_ready()
            self._require_open()
            opened.begin_next()
            segments = opened.segments()
            until = self._kept_from(segments, now)
        if segments[0].sealed and until >= segments[0].end_offset:
            loop = asyncio.get_running_loop()
            kept = await loop.run_in_executor(None, opened.allow_drop, until)
            self._require_open()
            self._move_start(kept)
            return await self._drop_segments(kept)
        return 0

    def _kept_from(self, segments: Sequence[SegmentInfo], now: WallMs) -> int:
        """Return the offset below which segments may go."""
        if self.topic.internal:
            return self.start_offset
        kept = kept_from(segments, self.settings, now, self.high_watermark)
        return max(self.start_offset, kept)

    async def _drop_segments(self, until: int) -> int:
        """Drop segments that were given up, some in a turn; return how many. Raises: OSError."""
        opened, dropped = self.log, 0
        while count := opened.drop_segments(until, _DROPPED_AT_ONCE):
            dropped += count
            if count < _DROPPED_AT_ONCE:
                break
            await asyncio.sleep(0)
            self._require_open()
        return dropped

    def _require_open(self) -> None:
        """Raises: OSError once the partition is closed."""
        if self._is_closed:
            raise self._refusal()

    def _remove_later(self, paths: Sequence[str]) -> None:
        self._removal.later(paths, self.settings.file_delete_delay_ms)

    def _move_start(self, offset: int) -> None:
        was = self.log.start_offset
        self.log.advance_start(offset)
        if self.log.start_offset != was:
            for listener in self.on_start_moved:
                listener(self)

    # ---- the end

    def settle(self) -> None:
        """As `SegmentedLog.settle`; nothing when the log was never opened. Raises: OSError."""
        if self._log is not None:
            self._log.settle()

    async def opening_ended(self) -> None:
        """Return once no thread opens the log any more."""
        while self._opening is not None:  # one that fails may be tried again by then
            await asyncio.wait([self._opening])

    def retire(self) -> None:
        """Before the folder goes: wait for threads that work in it, and allow no more.

        For a thread, after `close`.
        """
        with self._opens:
            if self._log is not None:
                self._log.retire()

    def close(self) -> None:
        """Close the log and stop every timer; what is under way in threads ends by itself."""
        self._removal.close()
        for due in (self._roll_due, self._flush_due):
            if due is not None:
                due.cancel()
        self._roll_due = self._flush_due = None
        with _closing:
            self._is_closed = True
        if self._fault is None:
            self._fault = OSError(errno.EBADF, "the partition is closed")  # for those who wait
        if self._mending is not None:
            self._mending.cancel()
        self._faults.forget(self.name)
        if self._log is not None:
            self._log.close()


def _retrieve(work: "asyncio.Future[None]") -> None:
    """Take the error of work that perhaps nobody waits for, so that asyncio does not report it."""
    if not work.cancelled():
        work.exception()


def _flushes_as_set(settings: TopicSettings) -> bool:
    """Return whether flush.messages or flush.ms is set."""
    return settings.flush_messages < LONG_MAX or settings.flush_ms < LONG_MAX
