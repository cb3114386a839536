"""Opening a log: which segments it has, what of its end is whole, and what its producers wrote.

Sealed segments were synced when they were sealed: their indexes are trusted, and only the batches
behind the last index entry are looked at, so that a missing or shortened file is still found out.
The last segment's checksums are read unless its log was closed in order; what a crash left torn at
its end is cut off and said so. Damage elsewhere is refused: cutting there would drop records. What
the process before may have failed to sync is written once more, for the next sync to bring it to
the disk (`recovery_point.py`).
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.log import snapshots
from headrace.log.api import CorruptLog, Disk
from headrace.log.index import remove_index
from headrace.log.producers import Producers
from headrace.log.recovery_point import RecoveryPoint
from headrace.log.segment import Segment
from headrace.wire.batches import CorruptBatch

log = logging.getLogger("headrace.log")

CLEANED, SWAP, DELETED = ".cleaned", ".swap", ".deleted"


@dataclass(slots=True)
class Opened:
    """What was found; `segments` is never empty."""

    segments: list[Segment]
    producers: Producers
    is_clean: bool


class Opening:
    """Reads the folder of one log. Every method raises OSError when the disk does."""

    def __init__(self, disk: Disk, folder: str, interval_bytes: int) -> None:
        self._disk = disk
        self._folder = folder
        self._interval_bytes = interval_bytes
        self._point = RecoveryPoint(disk, folder)

    def open(self, start_offset: int, *, clean: bool) -> Opened:
        """The log as it is, at least from `start_offset` on.

        Args:
            clean: it was closed in order, so its end needs no reading.

        Raises: CorruptLog.
        """
        self._finish_replacements()
        names = self._remove_leftovers()
        bases = _bases(names)
        segments = [self._sealed(base) for base in bases[:-1]]
        producers = Producers()
        if bases:
            _require_continuity(segments, bases[-1])
            taken = self._taken(bases[-1]) if clean else None
            if taken is not None:
                segments.append(taken)
                self._replay(segments, producers, snapshots.offsets(names), taken.end_offset)
            else:
                clean = False
                self._replay(segments, producers, snapshots.offsets(names), bases[-1])
                segments.append(self._checked(bases[-1], producers))
        if not segments or segments[-1].end_offset < start_offset:
            segments = [self._emptied(segments, names, start_offset)]
            producers = Producers()
        return Opened(segments, producers, clean)

    def rebuilt(self, segments: Sequence[Segment], end_offset: int) -> Producers:
        """The producers of a log of which what is below `end_offset` is left."""
        producers = Producers()
        found = snapshots.offsets(self._disk.list(self._folder))
        self._replay(segments, producers, found, end_offset)
        for offset in found:
            if offset > end_offset:
                self._disk.remove(snapshots.path_of(self._folder, offset))
        return producers

    # ---- leftovers

    def _finish_replacements(self) -> None:
        """Put complete cleaned files in their place (`SegmentedLog.replace`)."""
        names = self._disk.list(self._folder)
        for name in names:
            if not name.endswith(f".log{SWAP}"):
                continue
            stem = name.removesuffix(f".log{SWAP}")
            path = f"{self._folder}/{name}"
            swap = Segment(
                self._disk, self._folder, int(stem), self._interval_bytes, file_path=path
            )
            try:
                swap.take_whole(self._disk.size(path))
            except CorruptBatch as damage:
                raise CorruptLog(f"{path} is damaged ({damage}); restore it") from damage
            swap.release()
            for base in _bases(names):
                if swap.base_offset <= base < swap.end_offset:
                    old = f"{self._folder}/{base:020d}"
                    remove_index(self._disk, old)
                    self._disk.remove(f"{old}.log")
            self._disk.rename(path, f"{self._folder}/{stem}.log")

    def _remove_leftovers(self) -> list[str]:
        """Remove what was on its way out or half made; the names that are left."""
        left = []
        for name in self._disk.list(self._folder):
            if name.endswith((CLEANED, SWAP, DELETED)):
                self._disk.remove(f"{self._folder}/{name}")
            else:
                left.append(name)
        return left

    def _emptied(self, segments: list[Segment], names: list[str], start_offset: int) -> Segment:
        """An empty log that begins with `start_offset`, where it had records up to there."""
        if segments:
            log.warning(
                "%s ends at offset %d, and what is below %d was deleted: it begins anew there",
                self._folder, segments[-1].end_offset, start_offset,
            )  # fmt: skip
        self._point.forget()
        # Before there is a further one: who finds both takes what lies between them for lost.
        for segment in segments:
            segment.release()
            self._disk.remove(f"{segment.path}.log")
            remove_index(self._disk, segment.path)
        for offset in snapshots.offsets(names):
            self._disk.remove(snapshots.path_of(self._folder, offset))
        fresh = Segment(self._disk, self._folder, start_offset, self._interval_bytes)
        if start_offset:
            fresh.file.sync()
        return fresh

    # ---- segments

    def _sealed(self, base: int) -> Segment:
        segment = Segment(self._disk, self._folder, base, self._interval_bytes)
        size = self._disk.size(f"{segment.path}.log")
        try:
            segment.take(size, sealed=True)
        except CorruptBatch as damage:
            raise CorruptLog(
                f"{segment.path}.log is damaged at byte {segment.size} of {size} ({damage}) "
                "and is not the last segment; restore it, or remove it and those before it to "
                "give up their records"
            ) from damage
        segment.release()
        return segment

    def _taken(self, base: int) -> Segment | None:
        """The last segment as it was closed; None when it is not so."""
        segment = Segment(self._disk, self._folder, base, self._interval_bytes)
        try:
            segment.take(self._disk.size(f"{segment.path}.log"), sealed=False)
        except CorruptBatch as damage:
            log.warning("%s.log is not as it was closed: %s", segment.path, damage)
            return None
        segment.release()
        return segment

    def _checked(self, base: int, producers: Producers) -> Segment:
        segment = Segment(self._disk, self._folder, base, self._interval_bytes)
        remove_index(self._disk, segment.path)
        size = segment.file.size()
        try:
            for header in segment.check(size):
                producers.record(header, header.base_offset)
        except CorruptBatch as damage:
            log.warning(
                "%s.log: cut %d bytes at %d, which a crash left torn: %s. The log ends with %d now",
                segment.path, size - segment.size, segment.size, damage, segment.end_offset,
            )  # fmt: skip
            segment.file.truncate(segment.size)
        synced = self._point.position(base, segment.size)
        if synced < segment.size:
            segment.file.rewrite(synced)
        segment.release()
        return segment

    # ---- producers

    def _replay(
        self, segments: Sequence[Segment], producers: Producers, found: list[int], end_offset: int
    ) -> None:
        """Remember what was written below `end_offset`: the best snapshot and what follows it."""
        usable = [offset for offset in found if offset <= end_offset]
        start, entries = snapshots.newest(self._disk, self._folder, usable)
        producers.restore(entries)
        for segment in segments:
            if segment.end_offset <= start:
                continue
            position = segment.position_after(start)
            for _, header in segment.walk(position):
                if header.base_offset >= end_offset:
                    return
                producers.record(header, header.base_offset)
            segment.release()


def _bases(names: Sequence[str]) -> list[int]:
    stems = [name.removesuffix(".log") for name in names if name.endswith(".log")]
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def _require_continuity(sealed: Sequence[Segment], last_base: int) -> None:
    followers = [segment.base_offset for segment in sealed[1:]] + [last_base]
    for segment, base_offset in zip(sealed, followers, strict=False):
        if segment.end_offset != base_offset:
            raise CorruptLog(
                f"{segment.path}.log ends before offset {segment.end_offset}, the next segment "
                f"begins with {base_offset}; restore what is missing between them"
            )
