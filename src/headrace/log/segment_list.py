"""The segments of a log in order: which are open, and how some are dropped or replaced on disk."""

import contextlib
import errno
import logging
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

from headrace.log import checksums
from headrace.log.api import Disk
from headrace.log.index import SUFFIXES
from headrace.log.opening import DELETED, SWAP
from headrace.log.segment import Segment

log = logging.getLogger("headrace.log")

_WARM_MAX = 4  # sealed segments whose files and indexes stay open for readers


class SegmentList:
    """Never empty; all but the last are sealed. Methods raise OSError when the disk does.

    Args:
        dropped: is told the files of dropped segments, which no opening finds any more; else they
            are removed at once.
    """

    def __init__(
        self, disk: Disk, segments: list[Segment], dropped: Callable[[Sequence[str]], None] | None
    ) -> None:
        self._disk = disk
        self._dropped = dropped or self._remove
        self._segments = segments
        self._warm: list[Segment] = []
        self._unfinished: Segment | None = None  # it took the place of these, and lacks its name
        self._replaced: Sequence[Segment] = ()
        self._finished: str | None = None  # where the last one stood before it had its name
        self._is_finishing = False  # a thread may rename the files of these
        self._undiscarded: Segment | None = None  # its removal failed
        self._emptied: bytes | None = None  # the checksums that `stage` emptied, if there were any
        self.bases = [segment.base_offset for segment in segments]
        self.active = segments[-1]

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    def from_offset(self, offset: int) -> Iterator[Segment]:
        """The segment that holds `offset` and those that follow, each ready to be read."""
        for segment in self._segments[max(bisect_right(self.bases, offset) - 1, 0) :]:
            self._use(segment)
            yield segment

    def segment_at(self, path: str) -> Segment | None:
        """Return the segment whose file stands at `path`, None without one that is kept."""
        digits = path.rpartition("/")[2].partition(".")[0]
        if not digits.isdecimal():
            return None
        base_offset = int(digits)
        segment = self._segments[max(bisect_right(self.bases, base_offset) - 1, 0)]
        return segment if segment.file_path == path and not segment.is_let_go else None

    def append(self, segment: Segment) -> None:
        """Go on with a further segment; the last one is sealed."""
        sealed = self.active
        sealed.sealed = True
        self._segments.append(segment)
        self.bases.append(segment.base_offset)
        self.active = segment
        self._use(sealed)

    def base_after(self, until: int) -> int:
        """The base offset of the first segment that `drop_oldest` keeps; in any thread."""
        *sealed, last = self._segments[:]
        kept = (one.base_offset for one in sealed if one.end_offset > until)
        return next(kept, last.base_offset)

    def drop_oldest(self, until: int) -> bool:
        """Drop the first segment if it is sealed and lies wholly below `until`; nothing is synced.

        The recovery point has given it up: whatever a power cut takes back, no opening uses it.
        May be repeated where the disk failed.
        """
        oldest = self._segments[0]
        if oldest is self.active or oldest.end_offset > until:
            return False
        if oldest is self._unfinished and self._is_finishing:
            return False
        paths = self._replaced_paths() if oldest is self._unfinished else []
        self._let_go(oldest)
        # Until the last rename the segment can be read.
        staged = f"{oldest.path}.log{SWAP}{checksums.SUFFIX}"
        paths += [*_derived_paths(oldest), staged, oldest.file_path]
        self._dropped(self._put_away(paths))
        if oldest is self._unfinished:
            self._unfinished, self._replaced = None, ()
        del self._segments[0], self.bases[0]
        return True

    def stage(self, fresh: Segment) -> None:
        """Let the next opening find a cleaned segment, durably; for a thread.

        Raises: OSError, also while another one lacks its name: readers may use the file that would
        be replaced.
        """
        if self._unfinished is not None:
            path = self._unfinished.file_path
            raise OSError(errno.EBUSY, "the replacement before is unfinished", path)
        if self._undiscarded is not None:
            self.discard(self._undiscarded)
        cleaned, path = fresh.file_path, fresh.path + checksums.SUFFIX
        self._emptied = self._disk.read(path) if self._disk.exists(path) else None
        fresh.file_path = f"{fresh.path}.log{SWAP}"
        try:
            # Those of the segment before would not fit the one that takes its place. Without a file
            # a segment that stays after all would count as one of a format 0 folder.
            self._disk.write(path, b"", durable=False)
            fresh.save_digests()
            self._disk.rename(cleaned, fresh.file_path)
        except OSError:
            with contextlib.suppress(OSError):  # renamed or not
                self.discard(fresh)
            raise

    def discard(self, fresh: Segment) -> None:
        """Undo `stage`: the segment that stays gets its checksums back; for a thread.

        The next `stage` tries again what fails: an opening would use the file.
        """
        self._undiscarded = fresh
        self._disk.remove(fresh.file_path)
        self._disk.remove(fresh.file_path + checksums.SUFFIX)
        path = fresh.path + checksums.SUFFIX
        # Else the segment was dropped, or its checksums were written again.
        if self._disk.exists(path) and not self._disk.size(path):
            if self._emptied is None:
                self._disk.remove(path)
            else:
                self._disk.write(path, self._emptied, durable=False)
        self._undiscarded = self._emptied = None

    def take_place(self, bases: Sequence[int], fresh: Segment) -> None:
        """Read from a cleaned segment that is staged.

        `put_away`, `finish` and `remove_staged_checksums` follow.
        """
        at = self.bases.index(bases[0])
        span = slice(at, at + len(bases))
        old = self._segments[span]
        assert self.bases[span] == list(bases), "they are neighbours"
        assert self.active not in old, "the active segment is not cleaned"
        assert fresh.end_offset == old[-1].end_offset, "a cleaned segment keeps its end"
        fresh.sealed = True
        self._segments[span], self.bases[span] = [fresh], [fresh.base_offset]
        for segment in old:
            self._let_go(segment)
        self._unfinished, self._replaced, self._emptied = fresh, old, None
        self._is_finishing = True

    def put_away(self) -> list[str]:
        """Rename the files of replaced segments, durably; for a thread. Returns the new names.

        May be repeated where the disk failed.

        Raises: OSError, also where the file that took their place is gone: it may have its name
        already, which one of them had.
        """
        fresh = self._unfinished
        if fresh is None:
            return []
        if not self._disk.exists(fresh.file_path):
            raise FileNotFoundError(errno.ENOENT, "a staged segment is gone", fresh.file_path)
        renamed = self._put_away(self._replaced_paths())
        # The new one is found already; one sync of the folder is enough for all of these. It is
        # that of a rename without effect, as those before may be from an earlier attempt.
        self._disk.rename(fresh.file_path, fresh.file_path)
        return renamed

    def finish(self, replaced: Sequence[str]) -> None:
        """Give a cleaned segment its name. Where a power cut takes that back, an opening does."""
        fresh = self._unfinished
        if fresh is None:
            return
        staged, path = fresh.file_path, f"{fresh.path}.log"
        try:
            self._disk.rename(staged, path, durable=False)
        except OSError:
            # It may have taken effect: no other file has the name since `put_away`.
            if self._disk.exists(staged) or not self._disk.exists(path):
                raise
        fresh.file_path = path
        self._unfinished, self._replaced = None, ()
        try_to_save_index(fresh)
        self._use(fresh)
        self._finished = staged
        self._dropped(replaced)

    def remove_staged_checksums(self) -> None:
        """Remove the checksums of a replacement that has its name; for a thread.

        Where that fails, the next replacement, the drop of the segment or an opening does it.
        """
        staged, self._finished = self._finished, None
        if staged is None:
            return
        path = staged.removesuffix(SWAP)
        self._disk.rename(path, path)  # once its name is durable, no opening reads them
        self._disk.remove(staged + checksums.SUFFIX)

    def leave_unfinished(self) -> None:
        """Stop a replacement where the disk failed: `resume` goes on, else the next opening."""
        self._is_finishing = False

    def resume(self) -> bool:
        """Go on with an unfinished replacement; False without one. `put_away` follows."""
        self._is_finishing = self._unfinished is not None
        return self._is_finishing

    def close(self) -> None:
        """Close all files."""
        for segment in self._segments:
            segment.is_let_go = True  # a thread may read on while the folder is removed
            segment.release()
        self._warm.clear()

    def _use(self, segment: Segment) -> None:
        """Let a sealed segment stay open, and close the one used longest ago."""
        if not segment.sealed or (self._warm and self._warm[-1] is segment):
            return
        if segment in self._warm:
            self._warm.remove(segment)
        self._warm.append(segment)
        if len(self._warm) > _WARM_MAX:
            self._warm.pop(0).release()

    def _let_go(self, segment: Segment) -> None:
        if segment in self._warm:
            self._warm.remove(segment)
        segment.is_let_go = True
        segment.release()

    def _replaced_paths(self) -> list[str]:
        return [path for one in self._replaced for path in (one.file_path, *_derived_paths(one))]

    def _put_away(self, paths: Sequence[str]) -> list[str]:
        """Rename files, so that no opening finds them; return the names of those there are.

        Files that are renamed already are left so.
        """
        renamed: list[str] = []
        for path in paths:
            try:
                self._disk.rename(path, path + DELETED, durable=False)
            except FileNotFoundError:
                if not self._disk.exists(path + DELETED):
                    continue
            renamed.append(path + DELETED)
        return renamed

    def _remove(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._disk.remove(path)


def _derived_paths(segment: Segment) -> list[str]:
    return [segment.path + suffix for suffix in SUFFIXES]


def try_to_save_index(segment: Segment) -> None:
    """Write the derived files of a segment; without them, the next opening reads all of it."""
    try:
        segment.save_index()
    except OSError as error:
        log.warning(
            "%s.index: not written: %s; the next start reads the segment", segment.path, error
        )
