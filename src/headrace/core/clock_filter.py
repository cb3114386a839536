"""Wall time checked against elapsed time, so that a clock that jumps deletes nothing.

Theory of operation. Elapsed time (a monotonic clock that also runs while the machine sleeps) is
exact over days but has no calendar; wall time has one but can be set. `ClockFilter` keeps *trusted
time*: a wall time that moves on with elapsed time. While the wall clock stays within `jump_max_ms`
of it, trusted time follows the wall clock, which covers NTP corrections. A larger difference is a
*jump*, and trusted time goes on by elapsed time alone. Nothing can show which of the two is right,
so both are used, each where an error does no harm:

- `latest`, the later of the two, is written into records. A time written too late only keeps data
  longer than it had to be kept.
- `earliest`, the earlier of the two, decides what is old enough to be deleted. Deletion by age
  therefore waits for everything that is due by the doubted time alone.

A jump ends when the wall clock returns, or when it has held for `hold_ms` of running time and so
becomes trusted. Several jumps in one direction (a laptop that is switched off each night) are
proven one after the other: `_jumps` holds increasing differences, each with the time since which
the wall clock was at least that far off. Times held survive a restart (`SavedTime`).

Timestamps of producers prove nothing, because clients often run on the same machine, but they can
contradict a jump forward (`contradict`): a batch that is written during the jump, with a time
between trusted time and the doubted wall time, comes from a clock that agrees with neither the
wall clock nor old data. The hold of the jump begins again with it. A single producer is enough,
whatever others write: an error then delays deletion, which goes on by elapsed time, and the jump is
taken over `hold_ms` after the last such batch. Older times are those of data that is copied.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from headrace.core.types import MonoMs, WallMs

_JUMPS_MAX = 64


class ClockChange(Enum):
    """Result of an observation that has to be logged."""

    JUMPED = auto()
    AGREED = auto()  # the wall clock returned to trusted time
    PROVEN = auto()  # a jump held for `hold_ms` and trusted time took it over


class Jump(NamedTuple):
    """Difference of the wall clock from trusted time, and how long it was at least that large."""

    difference_ms: int
    held_ms: int


@dataclass(frozen=True, slots=True)
class SavedTime:
    """Trusted time at one moment of a machine's run, for the next start.

    `boot_id` names the run of the machine within which `elapsed` counts; empty if unknown.
    """

    trusted: WallMs
    boot_id: str
    elapsed: MonoMs
    jumps: tuple[Jump, ...] = ()


class ClockFilter:
    """Trusted time and the jumps under observation. Reads no clock: every call is given both.

    Args:
        elapsed: elapsed time now.
        wall: wall time now; trusted until `restore`.

    Attributes:
        difference_ms: wall time minus trusted time at the last observation; 0 while they agree.
    """

    def __init__(self, elapsed: MonoMs, wall: WallMs) -> None:
        self.difference_ms = 0
        self._offset_ms = wall - elapsed  # trusted time minus elapsed time
        self._jumps: list[tuple[int, int]] = []  # difference, elapsed time since which it holds

    def restore(self, saved: SavedTime, boot_id: str, elapsed: MonoMs) -> None:
        """Take over the trusted time of the last run; `observe` follows.

        Within one run of the machine elapsed time bridges the pause exactly. After a reboot trusted
        time goes on from where the last run left it.
        """
        is_same_boot = bool(boot_id) and boot_id == saved.boot_id and saved.elapsed <= elapsed
        self._offset_ms = saved.trusted - (saved.elapsed if is_same_boot else elapsed)
        self._jumps = [(one.difference_ms, elapsed - one.held_ms) for one in saved.jumps]
        self.difference_ms = saved.jumps[-1].difference_ms if saved.jumps else 0

    def saved(self, boot_id: str, elapsed: MonoMs) -> SavedTime:
        """Return what `restore` needs."""
        jumps = tuple(Jump(difference, elapsed - since) for difference, since in self._jumps)
        return SavedTime(self.trusted(elapsed), boot_id, elapsed, jumps)

    def trusted(self, elapsed: MonoMs) -> WallMs:
        """Return the wall time that elapsed time leads to."""
        return WallMs(self._offset_ms + elapsed)

    @property
    def latest_offset_ms(self) -> int:
        """The later of trusted and wall time, minus elapsed time."""
        return self._offset_ms + max(self.difference_ms, 0)

    @property
    def earliest_offset_ms(self) -> int:
        """The earlier of trusted and wall time, minus elapsed time."""
        return self._offset_ms + min(self.difference_ms, 0)

    def is_due(self, elapsed: MonoMs, hold_ms: int) -> bool:
        """Return whether a jump forward has held so long that `observe` would take it over."""
        return self._is_held(elapsed, hold_ms) and self._jumps[0][0] > 0

    def contradict(
        self, elapsed: MonoMs, timestamp: WallMs, *, since: MonoMs, jump_max_ms: int
    ) -> bool:
        """Begin the hold of each jump forward again that the time of a new batch contradicts.

        Args:
            elapsed: elapsed time now.
            timestamp: highest timestamp of the batch.
            since: elapsed time after which the batch was written.
            jump_max_ms: difference up to which clocks agree.

        Returns:
            Whether there is such a jump.
        """
        # Between the two times as they were at `since`: a right time has only moved on from there.
        ahead_ms = timestamp - self.trusted(since)
        if ahead_ms < -jump_max_ms or self.difference_ms <= 0:
            return False
        limit_ms = ahead_ms + jump_max_ms
        is_contradicted = any(difference > limit_ms for difference, _ in self._jumps)
        self._jumps = [
            (difference, int(elapsed) if difference > limit_ms else held_since)
            for difference, held_since in self._jumps
        ]
        return is_contradicted

    def observe(
        self, elapsed: MonoMs, wall: WallMs, *, jump_max_ms: int, hold_ms: int
    ) -> ClockChange | None:
        """Compare both clocks; return what changed."""
        doubted = self.difference_ms
        self.difference_ms = wall - self.trusted(elapsed)
        if abs(self.difference_ms) > jump_max_ms:
            self._note_jump(elapsed, jump_max_ms)
            if self._prove(elapsed, hold_ms):
                if abs(self.difference_ms) <= jump_max_ms:
                    self._follow()
                return ClockChange.PROVEN
            is_new = abs(self.difference_ms - doubted) > jump_max_ms
            return ClockChange.JUMPED if is_new else None
        self._follow()
        return ClockChange.AGREED if doubted else None

    def _follow(self) -> None:
        self._offset_ms += self.difference_ms
        self.difference_ms = 0
        self._jumps.clear()

    def _note_jump(self, elapsed: MonoMs, jump_max_ms: int) -> None:
        difference, since = self.difference_ms, int(elapsed)
        if self._jumps and (self._jumps[0][0] > 0) != (difference > 0):
            self._jumps.clear()
        while self._jumps and abs(self._jumps[-1][0]) > abs(difference):
            _, since = self._jumps.pop()
        largest = abs(self._jumps[-1][0]) if self._jumps else 0
        # A step back from a larger difference is always kept: it has held since that one.
        is_larger = abs(difference) > largest + jump_max_ms or since < elapsed
        if is_larger and len(self._jumps) < _JUMPS_MAX:
            self._jumps.append((difference, since))

    def _prove(self, elapsed: MonoMs, hold_ms: int) -> bool:
        """Take over the largest difference that held long enough; return whether one did."""
        proven = 0
        while self._is_held(elapsed, hold_ms):
            proven, _ = self._jumps.pop(0)
        self._offset_ms += proven
        self.difference_ms -= proven
        self._jumps = [(difference - proven, since) for difference, since in self._jumps]
        return proven != 0

    def _is_held(self, elapsed: MonoMs, hold_ms: int) -> bool:
        return bool(self._jumps) and elapsed - self._jumps[0][1] >= hold_ms
