"""Choosing between a damaged segment that compaction made and the segments that it replaces.

Compaction stages its segment as `<first>.log.swap`, renames the segments that it replaces to
`….log.deleted`, and renames the swap file to `<first>.log` last, without a sync. A power cut leaves
any part of that, and a start goes on from there: it removes what the swap file replaces. Where the
swap file is damaged, the replaced segments are the better ones, as long as all of them are intact.

Otherwise the swap file has the records of a segment that is missing or damaged, and takes its
place. A segment behind the last such one stays if it has its name: the log ends the swap file where
the next segment begins. Segments before are set aside, or they would end the swap file too early.
Where the swap file and a replaced segment are both damaged, the swap file is preferred: its damage
inside the segments that stay loses nothing. Only up to its last intact batch does the swap file
decide; what is damaged behind is not better in it.

A repair that is killed is repeated. So a choice changes nothing that it rests on before its last
rename: segments that have their names back are chosen again, segments that are set aside are
missing and no more intact than before, and the rest of what the swap file replaces is copied.
"""

import contextlib
import math

from headrace.log import checksums
from headrace.log.api import CorruptFileError, Disk
from headrace.log.damage import keep_copy, next_batch
from headrace.log.index import remove_index
from headrace.log.opening import DELETED, SWAP, finish_replacement, waiting_replacements
from headrace.log.recovery_point import RecoveryPoint, read_claim
from headrace.log.repair import segment_bases, set_aside
from headrace.log.segment import Segment
from headrace.wire import batches
from headrace.wire.batches import HEADER_BYTES, BatchHeader, CorruptBatch

_INTERVAL_BYTES = 1 << 30  # no index is of interest
_PUT_AWAY = f".log{DELETED}"


class Replacement:
    """The swap file `<folder>/<first>.log.swap`, which is damaged. Methods raise OSError."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._target = path.removesuffix(SWAP)
        self._folder, _, name = self._target.rpartition("/")
        self._first = int(name.removesuffix(".log"))
        self._end, self._is_end_known = self._end_offset()

    def withdraw(self) -> tuple[list[str], str] | None:
        """Let the log have the segments again that the swap file replaces.

        Returns: the files that got their former names back, and the new name of the swap file; None
            where a segment is missing or damaged, and nothing has changed.
        """
        bases = self._replaced_segments()
        if bases is None:
            return None
        restored = []
        for base in bases:
            path = f"{self._folder}/{base:020d}"
            remove_index(self._disk, path)  # it may be that of the swap file
            self._disk.rename(f"{path}{_PUT_AWAY}", f"{path}.log")
            restored.append(f"{path}{_PUT_AWAY}")
        return restored, set_aside(self._disk, self._path)

    def complete(self) -> list[str]:
        """Let the swap file take its place, damaged as it is.

        Returns: the names of copies of the swap file and of what it replaces.
        """
        covered = self._covered_segments()
        replaced = [
            f"{self._folder}/{base:020d}{_PUT_AWAY}"
            for base in self._put_away_bases()
            if base not in covered and (base < self._end or not self._is_end_known)
        ]
        if self._disk.exists(self._target):
            replaced.insert(0, self._target)
        copies = [
            keep_copy(self._disk, path, 0, self._disk.size(path))
            for path in [self._path, *replaced]
        ]
        for base in covered:
            path = f"{self._folder}/{base:020d}"
            if self._disk.exists(f"{path}{_PUT_AWAY}"):  # first, as a repetition would choose it
                copies.append(set_aside(self._disk, f"{path}{_PUT_AWAY}"))
            copies.append(set_aside(self._disk, f"{path}.log"))
            remove_index(self._disk, path)
        stem = self._target.removesuffix(".log")
        remove_index(self._disk, stem)
        written = checksums.load(self._disk, self._path)
        self._disk.rename(self._path, self._target)
        if written is not None and written.summary.size == self._disk.size(self._target):
            checksums.save(self._disk, stem, *written)  # they show what is damaged
        return copies

    def _replaced_segments(self) -> list[int] | None:
        """Return the segments to rename back, so that no offset is missing; None if it would be.

        Files of earlier compactions may still be there: only those belong to the log that begin
        where the segment before ends.
        """
        remaining, put_away = segment_bases(self._disk, self._folder), self._put_away_bases()
        put_away = [base for base in put_away if base not in remaining]
        position, chosen = self._first, list[int]()
        while True:
            is_there, is_inside = position in remaining, position < self._end
            following = next((base for base in remaining if base > position), None)
            if is_there and not is_inside:
                if following is None or position >= max(put_away, default=0):
                    return chosen
                if not _between(put_away, position, following):
                    position = following  # damage there is not that of the swap file
                    continue
            end = None
            if is_there or position in put_away:
                suffix = ".log" if is_there else _PUT_AWAY
                end = self._verified_end(position, f"{self._folder}/{position:020d}{suffix}")
            if is_inside and following is not None and end is not None and end > following:
                return None
            if end is None or end <= position:
                is_last = self._first < position > max([*remaining, *put_away])
                is_behind = not is_inside and (self._is_end_known or is_last)
                return chosen if is_behind else None
            if not is_there:
                chosen.append(position)
            position = end

    def _covered_segments(self) -> list[int]:
        """Return the segments to set aside for the swap file, which has their records.

        They are those inside it, up to the last that is damaged or does not end where the next
        begins.
        """
        bases = [base for base in segment_bases(self._disk, self._folder) if base > self._first]
        covered = [base for base in bases if base < self._end]
        following = next((base for base in bases if base >= self._end), None)
        while covered:
            base = covered[-1]
            end = self._verified_end(base, f"{self._folder}/{base:020d}.log")
            if end is None or (end < self._end if following is None else end != following):
                break
            following = covered.pop()
        return covered

    def _put_away_bases(self) -> list[int]:
        """Return the segments from the first on that were renamed for their removal, ascending."""
        names = self._disk.list(self._folder)
        stems = [name.removesuffix(_PUT_AWAY) for name in names if name.endswith(_PUT_AWAY)]
        return sorted(int(stem) for stem in stems if stem.isdecimal() and int(stem) >= self._first)

    def _verified_end(self, base: int, path: str) -> int | None:
        """Return the offset behind the segment in a file, None where a batch is damaged."""
        segment = Segment(self._disk, self._folder, base, _INTERVAL_BYTES, file_path=path)
        try:
            segment.take_whole(self._disk.size(path))
        except CorruptBatch:
            return None
        finally:
            segment.release()
        return segment.end_offset

    def _end_offset(self) -> tuple[int, bool]:
        """Return the offset behind the last intact batch, and whether the swap file ends there."""
        size, position, expected = self._disk.size(self._path), 0, self._first
        limit = self._limit()
        while position < size:
            header = self._batch(position, size)
            if header is not None and expected <= header.base_offset <= header.last_offset < limit:
                position, expected = position + header.size, header.last_offset + 1
                continue
            following = next_batch(self._pread, position + 1, size, expected)
            if following is None:
                return expected, False
            position = following
        return expected, size > 0

    def _limit(self) -> float:
        """Return the base offset of the last segment, which compaction never replaces.

        The checksum of a batch does not cover its offset: a damaged one would reach beyond.
        """
        bases = [*segment_bases(self._disk, self._folder), *self._put_away_bases()]
        bases.append(read_claim(self._disk, self._folder)[1].base_offset)
        return max((base for base in bases if base > self._first), default=math.inf)

    def _batch(self, position: int, size: int) -> BatchHeader | None:
        """Return the header of a batch whose checksum is right."""
        try:
            header = batches.read_header(self._pread(HEADER_BYTES, position))
            if header.size > size - position:
                return None
            batches.verify(self._pread(header.size, position), 0, header)
        except CorruptBatch:
            return None
        return header

    def _pread(self, count: int, position: int) -> bytes:
        return self._disk.read(self._path, count, position)


def finish_replacements(disk: Disk, folder: str) -> list[str]:
    """Give whole segments that compaction made their names, as the next start would.

    A repair goes by the names of segments: it would take the first one that has its name for the
    begin of the log, and the start would remove the others as given up.

    Returns: the new names of the segments in place that were replaced. Raises: OSError.
    """
    copies: list[str] = []
    point = RecoveryPoint(disk, folder)
    replacements = waiting_replacements(disk.list(folder), point.claim.first_base)
    if replacements and not point.is_missing:
        point.secure()  # else an older claim may name a segment that is replaced
    for name in replacements:
        with contextlib.suppress(CorruptFileError):
            finish_replacement(
                disk, f"{folder}/{name}", lambda path: copies.append(set_aside(disk, path))
            )
    return copies


def _between(bases: list[int], first: int, end: int) -> bool:
    return any(first < base < end for base in bases)
