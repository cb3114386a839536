"""Choosing between a damaged segment that compaction made and the segments that it replaces.

Compaction stages its segment as `<first>.log.swap`, renames the segments that it replaces to
`….log.deleted`, and renames the swap file to `<first>.log` last, without a sync. A power cut leaves
any part of that, and a start goes on from there: it removes what the swap file replaces. Where the
swap file is damaged, the replaced segments are the better ones, as long as all of them exist.

A repair that is killed is repeated. So a choice changes nothing that it rests on before its last
rename: segments that have their names back are chosen again, and what the swap file replaces is
copied, not renamed.
"""

from headrace.log.api import Disk
from headrace.log.checkpoints import remove_clean_mark
from headrace.log.damage import keep_copy, next_batch
from headrace.log.index import remove_index
from headrace.log.opening import DELETED, SWAP
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
        self._end = self._end_offset()

    def withdraw(self) -> tuple[list[str], str] | None:
        """Let the log have the segments again that the swap file replaces.

        Returns: the files that got their former names back, and the new name of the swap file; None
            where a segment is missing or damaged, and nothing has changed.
        """
        bases = self._replaced_segments()
        if bases is None:
            return None
        remove_clean_mark(self._disk)
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
        remove_clean_mark(self._disk)
        replaced = [
            f"{self._folder}/{base:020d}{_PUT_AWAY}"
            for base in self._put_away_bases()
            if self._end is None or base < self._end
        ]
        if self._disk.exists(self._target):
            replaced.insert(0, self._target)
        copies = [
            keep_copy(self._disk, path, 0, self._disk.size(path))
            for path in [self._path, *replaced]
        ]
        remove_index(self._disk, self._target.removesuffix(".log"))
        self._disk.rename(self._path, self._target)
        return copies

    def _replaced_segments(self) -> list[int] | None:
        """Return the segments to rename back, so that no offset is missing; None if it would be.

        Files of earlier compactions may still be there; the end of the segment before tells which
        belong to the log.
        """
        remaining, put_away = segment_bases(self._disk, self._folder), self._put_away_bases()
        put_away = [base for base in put_away if base not in remaining]
        position, chosen = self._first, list[int]()
        while True:
            is_there = position in remaining
            following = next((base for base in remaining if base > position), None)
            if is_there and (following is None or position >= max(put_away, default=0)):
                return chosen
            if following is not None and is_there and not _between(put_away, position, following):
                position = following  # damage there is not that of the swap file
                continue
            end = None
            if is_there or position in put_away:
                suffix = ".log" if is_there else _PUT_AWAY
                end = self._verified_end(position, f"{self._folder}/{position:020d}{suffix}")
            if end is None or end <= position:
                is_behind = self._end is not None and position >= self._end
                return chosen if is_behind else None
            if not is_there:
                chosen.append(position)
            position = end

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

    def _end_offset(self) -> int | None:
        """Return the offset behind the swap file, None where its last batch is damaged."""
        size, position, expected = self._disk.size(self._path), 0, self._first
        while position < size:
            header = self._batch(position, size)
            if header is not None and header.base_offset >= expected:
                position, expected = position + header.size, header.last_offset + 1
                continue
            following = next_batch(self._pread, position + 1, size, expected)
            if following is None:
                return None
            position = following
        return expected if size else None

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


def _between(bases: list[int], first: int, end: int) -> bool:
    return any(first < base < end for base in bases)
