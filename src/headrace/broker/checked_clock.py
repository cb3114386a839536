"""The clock of a broker: the machine's clocks, checked for jumps and stalls.

Three kinds of time come from here, and each use takes the one in which an error does no harm:

- `mono` orders locks, sessions and waits. It does not advance while the event loop did not run
  (SIGSTOP, a suspended machine, a long pause of the collector): input that waited in sockets is
  read before anything expires, because nothing comes nearer to its deadline during a stall.
- `wall` is written into records and journals. While the wall clock is in doubt it is the later of
  wall time and trusted time.
- `proven` decides what is old enough to be deleted: the earlier of the two.

`core/clock_filter.py` decides what is trusted. Readings compute wall time from elapsed time; the
wall clock itself is read once a second, so `wall` costs one clock call. During a jump forward the
newest batches are looked at once a minute, and before the jump is taken over.

A stall is found by a beat each second: a loop that has not beaten for `STALL_MS` did not run. Then
`mono` makes up for the whole gap, and stands still until the input that waited in sockets has been
read (`waiting_input.py`): for `GRACE_MS` at least, in which clients that were stopped with the
broker can send their heartbeats, and for `CATCH_UP_MS_MAX` at most, so that a client that sends
more than the broker reads stops no expiry for longer. Readings cost nothing for this: the gap is
counted with the maximum, and what was not needed of it is taken back once the input is read. A
stall within that time adds its own gap, and the time begins again.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Protocol, runtime_checkable

from headrace.broker.background import Background, in_background
from headrace.broker.config import Config
from headrace.core.clock_filter import ClockChange, ClockFilter, SavedTime
from headrace.core.types import MonoMs, Now, WallMs
from headrace.log.api import Clock, Disk
from headrace.log.clock_checkpoint import read_checkpoint, write_checkpoint

log = logging.getLogger("headrace.broker")

OBSERVE_MS = 1_000
SAVE_MS = 60_000
BEAT_MS = 1_000
LOOK_MS = 60_000
CONTRADICTION_LOGGED_MS = 86_400_000
STALL_MS = 2_000
GRACE_MS = 1_000
CATCH_UP_MS_MAX = 30_000
_INPUT_LOOK_MS = 20
_UNITS = ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1_000, "second"))


@runtime_checkable
class BootClock(Protocol):
    """A clock that also counts the time in which the machine is suspended."""

    def boot(self) -> MonoMs:
        """Return the milliseconds since the machine booted."""

    @property
    def boot_id(self) -> str:
        """Name of the machine's current run; empty if unknown."""


class NewestTimes(Protocol):
    """Times of batches that were written lately; `newest_batches.py`."""

    def begin(self) -> None:
        """Leave out what was written before."""

    def look(self) -> Sequence[tuple[str, WallMs]]:
        """Return partitions that grew since the look before, with the time of the last batch."""


class Input(Protocol):
    """Input that waits in sockets; `waiting_input.py`."""

    def begin(self) -> None:
        """Note which connections may have input now."""

    def is_read(self) -> bool:
        """Return whether all input that waited at `begin` has been read."""


class CheckedClock:
    """`log.api.Clock` over the machine's clocks. Reads them as they are until `start`.

    Args:
        config: returns the settings as they are now.
    """

    def __init__(self, clock: Clock, disk: Disk, config: Callable[[], Config]) -> None:
        self.work = Background("time is no longer checked for jumps and stalls", "clock")
        self._clock = clock
        self._disk = disk
        self._config = config
        self._machine_mono = clock.mono
        self._elapsed: Callable[[], MonoMs] = clock.mono
        self._boot_id = ""
        if isinstance(clock, BootClock):
            self._elapsed, self._boot_id = clock.boot, clock.boot_id
        elapsed = self._elapsed()
        self._filter = ClockFilter(elapsed, clock.wall())
        self._is_restored = False
        self._saved_at = elapsed
        self._saving: asyncio.Task[None] | None = None
        self._observe_at = elapsed + OBSERVE_MS
        self._newest: NewestTimes | None = None
        self._looked_at = elapsed
        self._contradicted_at = -math.inf  # when that was logged
        self._latest_ms = self._filter.latest_offset_ms
        self.doubt_ms = 0  # how much earlier than `wall` the time may be
        # Stalls: the loop's time of the last beat, and what `mono` is behind the machine's clock.
        self._loop_time: Callable[[], float] = float
        self._stall_at = math.inf
        self._beat_at = 0.0
        self._beat_mono = self._last_mono = clock.mono()
        self._stalled_ms = 0
        self._still_at = self._beat_mono  # where `mono` stood still after the latest stall
        self._input: Input | None = None
        self._resumed_at: MonoMs | None = None  # while input may wait since a stall

    # ---- readings

    def mono(self) -> MonoMs:
        """Return monotonic time without the time in which the event loop did not run."""
        if self._loop_time() > self._stall_at:
            self._note_stall()
        now = self._machine_mono() - self._stalled_ms
        if now > self._last_mono:
            self._last_mono = MonoMs(now)
        return self._last_mono

    def wall(self) -> WallMs:
        """Return the time to write into records: the later one while wall time is in doubt."""
        elapsed = self._elapsed()
        if elapsed >= self._observe_at:
            self._observe(elapsed)
        return WallMs(self._latest_ms + elapsed)

    def now(self) -> Now:
        """Return `mono` and `wall`; written out, because every command takes one."""
        if self._loop_time() > self._stall_at:
            self._note_stall()
        mono = self._machine_mono() - self._stalled_ms
        if mono > self._last_mono:
            self._last_mono = MonoMs(mono)
        elapsed = self._elapsed()
        if elapsed >= self._observe_at:
            self._observe(elapsed)
        return Now(self._last_mono, WallMs(self._latest_ms + elapsed))

    def proven(self) -> WallMs:
        """Return the time that decides about deletion: the earlier one while in doubt."""
        elapsed = self._elapsed()
        self._observe(elapsed)
        return WallMs(self._filter.earliest_offset_ms + elapsed)

    @property
    def disagreement_ms(self) -> int:
        """Wall time minus trusted time; 0 while they agree."""
        self._observe(self._elapsed())
        return self._filter.difference_ms

    @property
    def stalled_ms(self) -> int:
        """Time by which sessions and locks were extended since the start."""
        return self._stalled_ms - self._unused_ms(self._clock.mono())

    # ---- a run of the broker

    def heed(self, newest: NewestTimes) -> None:
        """Let the times of new batches contradict a jump forward."""
        self._newest = newest

    def wait_for(self, waiting: Input) -> None:
        """Let `mono` stand still after a stall until this input has been read."""
        self._input = waiting

    def restore(self) -> None:
        """Take over the trusted time of the last run, if it was saved."""
        saved = read_checkpoint(self._disk)
        if saved is not None:
            self._restore(saved)

    def start(self, newest: WallMs | None) -> None:
        """Begin to keep time on the running event loop.

        Args:
            newest: time of the newest record in a journal, which stands in for a saved time.
        """
        if not self._is_restored and newest is not None:
            self._restore(SavedTime(newest, "", MonoMs(0)))
        self._is_restored = True
        self._save()
        loop = asyncio.get_running_loop()
        self._loop_time = loop.time
        self.beat()
        self.work.begin(self._run())

    def beat(self) -> None:
        """Note that the event loop runs, after a skip of its time too."""
        self._beat_at = self._loop_time()
        self._beat_mono = self._clock.mono()
        self._stall_at = self._beat_at + STALL_MS / 1000

    async def close(self) -> None:
        """Save the time and stop looking for stalls."""
        await self.work.stop()
        self._stall_at = math.inf
        if self._saving is not None:
            await self._saving
        self._save()

    async def _run(self) -> None:
        while await self.work.pause(BEAT_MS if self._resumed_at is None else _INPUT_LOOK_MS):
            if self._loop_time() > self._stall_at:
                self._note_stall()
            self.beat()
            self._look_at_input()
            elapsed = self._elapsed()
            if elapsed >= self._observe_at:
                self._observe(elapsed)
            if elapsed - self._saved_at >= SAVE_MS and self._saving is None:
                self._saving = in_background(self._save_in_thread())  # a disk may take long

    # ---- stalls

    def _note_stall(self) -> None:
        """Give back the time since the last beat, in which the loop did not run."""
        before = self._beat_mono
        stalled_ms = self._clock.mono() - before
        self.beat()
        if stalled_ms < STALL_MS:  # the loop's time moved, and the clock's did not
            return
        self._go_on(before)  # of the stall before, if its input was not read yet
        # A stall that interrupts the grace after another one lets it begin again; what was left of
        # it is not added, or sessions would end later with each further stall.
        self._still_at = max(self._still_at, MonoMs(before - self._stalled_ms))
        self._stalled_ms = self._beat_mono - self._still_at + CATCH_UP_MS_MAX
        self._resumed_at = self._beat_mono
        if self._input is None:
            self._go_on(self._beat_mono)
        else:
            self._input.begin()
        log.warning(
            "clock: the broker did not run for about %.1f s (stopped, suspended or overloaded); "
            "sessions and locks are extended by as much",
            stalled_ms / 1000,
        )

    def _look_at_input(self) -> None:
        """Go on once the input that waited during a stall has been read, or after the maximum."""
        if self._resumed_at is None:
            return
        now = self._clock.mono()
        is_over = not self._unused_ms(now)
        if is_over:
            log.warning(
                "clock: input that waited while the broker did not run is unread after %s; "
                "sessions and locks expire again",
                duration_text(CATCH_UP_MS_MAX),
            )
        if is_over or self._input is None or self._input.is_read():
            self._go_on(now)

    def _go_on(self, now: MonoMs) -> None:
        """Let `mono` go on, after `GRACE_MS` since a stall at the earliest."""
        self._stalled_ms -= self._unused_ms(now)
        self._resumed_at = None

    def _unused_ms(self, now: MonoMs) -> int:
        """Return how much shorter `mono` would stand still after a stall if it went on now."""
        if self._resumed_at is None:
            return 0
        return CATCH_UP_MS_MAX - min(max(now - self._resumed_at, GRACE_MS), CATCH_UP_MS_MAX)

    # ---- jumps of the wall clock

    def _restore(self, saved: SavedTime) -> None:
        self._is_restored = True
        elapsed = self._elapsed()
        self._filter.restore(saved, self._boot_id, elapsed)
        self._looked_at = elapsed
        self._observe(elapsed, is_start=saved.boot_id != self._boot_id or not self._boot_id)

    def _observe(self, elapsed: MonoMs, *, is_start: bool = False) -> None:
        config, wall = self._config(), self._clock.wall()
        doubted = self._filter.difference_ms
        if doubted > 0 and self._newest is not None and config.clock_hold_ms:
            is_due = self._filter.is_due(elapsed, config.clock_hold_ms)
            if is_due or elapsed - self._looked_at >= LOOK_MS:
                self._look(self._newest, elapsed, wall, config)
        change = self._filter.observe(
            elapsed, wall,
            jump_max_ms=config.clock_jump_max_ms, hold_ms=config.clock_hold_ms,
        )  # fmt: skip
        self._observe_at = elapsed + OBSERVE_MS
        self._latest_ms = self._filter.latest_offset_ms
        self.doubt_ms = abs(self._filter.difference_ms)
        if change is not None:
            self._log_change(change, wall, self._filter.trusted(elapsed), is_start=is_start)
        if self._filter.difference_ms <= 0:
            self._contradicted_at = -math.inf
        elif doubted <= 0 and self._newest is not None:
            self._newest.begin()
            self._looked_at = elapsed

    def _look(self, newest: NewestTimes, elapsed: MonoMs, wall: WallMs, config: Config) -> None:
        """Compare the newest batches with a wall time that is ahead."""
        since, self._looked_at = self._looked_at, elapsed
        contradicting = [
            one for one in newest.look()
            if self._filter.contradict(
                elapsed, one[1], since=since, jump_max_ms=config.clock_jump_max_ms
            )
        ]  # fmt: skip
        if contradicting and elapsed - self._contradicted_at >= CONTRADICTION_LOGGED_MS:
            self._contradicted_at = elapsed
            partition, timestamp = contradicting[0]
            log.warning(
                "clock: wall time %s is contradicted by new batches: the last one of %s is of %s; "
                "wall time is trusted once it has held for %s without such batches "
                "(headrace.clock.hold.ms; 0 trusts it now)",
                time_text(wall), partition, time_text(timestamp),
                duration_text(config.clock_hold_ms),
            )  # fmt: skip

    def _log_change(
        self, change: ClockChange, wall: WallMs, trusted: WallMs, *, is_start: bool
    ) -> None:
        hold = duration_text(self._config().clock_hold_ms)
        if change is ClockChange.AGREED:
            log.info("clock: wall time %s agrees with elapsed time again", time_text(wall))
        elif change is ClockChange.PROVEN:
            log.warning(
                "clock: wall time %s held for %s (headrace.clock.hold.ms) and is trusted from now "
                "on; deletion by age goes by %s",
                time_text(wall), hold, time_text(trusted),
            )  # fmt: skip
        else:
            direction = "ahead of" if wall > trusted else "behind"
            origin = "where the last run ended" if is_start else "elapsed time since the start"
            log.log(
                # A machine that was switched off for a while is no reason for a warning.
                logging.INFO if is_start and wall > trusted else logging.WARNING,
                "clock: wall time %s is %s %s %s, which leads to %s (headrace.clock.jump.max.ms); "
                "nothing is deleted for its age by the later time until both agree, or until wall "
                "time has held for %s of running time in which no batch was written that "
                "contradicts it (headrace.clock.hold.ms; 0 trusts it now)",
                time_text(wall), duration_text(abs(wall - trusted)), direction, origin,
                time_text(trusted), hold,
            )  # fmt: skip

    async def _save_in_thread(self) -> None:
        elapsed = self._saved_at = self._elapsed()
        saved = self._filter.saved(self._boot_id, elapsed)
        try:
            await asyncio.get_running_loop().run_in_executor(None, self._write, saved)
        finally:
            self._saving = None

    def _save(self) -> None:
        elapsed = self._saved_at = self._elapsed()
        self._write(self._filter.saved(self._boot_id, elapsed))

    def _write(self, saved: SavedTime) -> None:
        try:
            write_checkpoint(self._disk, saved)
        except OSError as error:
            log.debug("clock: cannot save the time: %s; the next minute tries again", error)


def time_text(wall: WallMs) -> str:
    """Return a wall time in UTC to the second; milliseconds where no calendar has it."""
    try:
        return f"{datetime.fromtimestamp(wall / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
    except (OverflowError, ValueError):
        return f"{wall} ms"


def duration_text(duration_ms: int) -> str:
    """Return a duration in its largest fitting unit: 30 days, 1 hour, 0 seconds."""
    size, unit = next((one for one in _UNITS if duration_ms >= one[0]), _UNITS[-1])
    count = round(duration_ms / size)
    return f"{count} {unit}" if count == 1 else f"{count} {unit}s"
