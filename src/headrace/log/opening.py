"""Opening a log: its segments, the end of the last one, and the producers that wrote to it.

Sealed segments were synced when they were sealed. They are trusted by their checksums or, where
those are missing, by their indexes, whose last entries must agree with the batches from there to
the end. The last segment is trusted, too, if its log was closed in order; else every batch of it is
verified.

Damage is judged by `damage.py`: only the unsynced end of an unclean stop is torn, which is copied
beside the segment and cut off. Everything else is refused, because cutting there would drop
records. The log must also be at least what its recovery point claims (`recovery_point.py`), so that
a missing first or last segment is noticed; a log that had a recovery point must have it. What the
process before may have failed to sync is written once more, for the next sync to bring it to the
disk.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.log import checksums, damage, snapshots
from headrace.log.api import CorruptFileError, DamagedBlockError, Disk
from headrace.log.index import SUFFIXES, remove_index
from headrace.log.producers import ProducerLimit, Producers
from headrace.log.recovery_point import EMPTYING, NAME, UNKNOWN, Claim, RecoveryPoint
from headrace.log.segment import Segment, begun
from headrace.wire.batches import BatchHeader, CorruptBatch

log = logging.getLogger("headrace.log")

CLEANED, SWAP, DELETED = ".cleaned", ".swap", ".deleted"
_STAGED = SWAP + checksums.SUFFIX  # of a replacement
_LEFTOVERS = (CLEANED, SWAP, DELETED, _STAGED)  # on their way out or half made
_MOVE = "move the directory away, then run `headrace check`"
_INTERVAL_BYTES = 1 << 30  # no index is of interest
MISSING_SEGMENTS = "all segments of the log are missing"
_MISSING_POINT = "the file is missing, so it is not known how much of the log was synced"
FOREIGN = "the first batch is not the one that was written"


@dataclass(slots=True)
class Opened:
    """What was found; `segments` is never empty."""

    segments: list[Segment]
    producers: Producers
    is_clean: bool


class Opening:
    """Reads the folder of one log. Every method raises OSError when the disk does.

    Args:
        has_point: the log had a recovery point, whose name was synced.
    """

    def __init__(
        self,
        disk: Disk,
        folder: str,
        interval_bytes: int,
        point: RecoveryPoint,
        producer_limit: ProducerLimit | None = None,
        *,
        has_point: bool = False,
    ) -> None:
        self._has_point = has_point
        self._producer_limit = producer_limit
        self._disk = disk
        self._folder = folder
        self._interval_bytes = interval_bytes
        self._point = point

    def open(self, start_offset: int, *, clean: bool, end_offset: int | None = None) -> Opened:
        """The log as it is, at least from `start_offset` on.

        Args:
            clean: it was closed in order, so its end needs no reading.
            end_offset: where it ended then, if that is known.

        Raises: CorruptFileError.
        """
        try:
            return self._open(start_offset, clean, end_offset)
        except (CorruptFileError, DamagedBlockError, IsADirectoryError) as error:
            self._point.keep()
            self._require_files()
            if isinstance(error, DamagedBlockError):
                raise error.damage from error
            raise

    def _require_files(self) -> None:
        """Raises: CorruptFileError where a directory has the name of a segment or its index."""
        for name in self._disk.list(self._folder):
            if name.partition(".")[0].isdecimal():
                path = f"{self._folder}/{name}"
                try:
                    self._disk.read(path, 1)
                except IsADirectoryError as error:
                    problem = "the file cannot be read: it is a directory"
                    raise CorruptFileError(path, problem, remedy=_MOVE) from error
                except OSError:
                    continue  # the damage that was found is the better reason

    def _open(self, start_offset: int, clean: bool, end_offset: int | None) -> Opened:
        names = self._disk.list(self._folder)
        if self._has_point:
            self._require_point(names)
        if replacements := waiting_replacements(names, self._point.claim.first_base):
            names = self._replaced(replacements)
        leftovers = [name for name in names if name.endswith(_LEFTOVERS)]
        names = [name for name in names if not name.endswith(_LEFTOVERS)]
        bases = [base for base in _bases(names) if base >= self._point.claim.first_base]
        is_being_emptied = self._is_being_emptied(bases, start_offset)
        is_lacking = clean and self._lacks_empty_last(bases, end_offset)
        if is_lacking:
            bases.append(self._point.claim.base_offset)
        if not is_being_emptied:
            self._require_claimed_segments(bases)
        self._remove_given_up(names)
        if is_being_emptied:  # not read: a segment with gaps that became the last looks damaged
            segments = [self._emptied(bases, names, start_offset)]
            self._remove_unclaimed(leftovers)
            return Opened(segments, Producers(self._producer_limit), clean)
        if is_lacking:
            self._restore_last(bases[-1])
        elif bases and (not clean or self._point.claim.end_offset == UNKNOWN):
            self._sync_name(bases[-1])
        segments = [self._sealed(base) for base in bases[:-1]]
        self._report_unverified(segments, names)
        producers = Producers(self._producer_limit)
        if bases:
            _require_continuity(segments, bases[-1])
            if clean:
                segments.append(self._taken(bases[-1]))
                self._replay(segments, producers, names, segments[-1].end_offset)
            else:
                self._replay(segments, producers, names, bases[-1])
                segments.append(self._checked(bases[-1], producers))
        if clean and end_offset is not None:
            self._require_end(segments, end_offset, start_offset)
        if not segments or segments[-1].end_offset < start_offset:
            segments = [self._emptied(bases, names, start_offset)]
            producers = Producers(self._producer_limit)
        self._replace_missing_point(segments)
        self._remove_unclaimed(leftovers)  # last: a log that is refused may need them
        return Opened(segments, producers, clean)

    def rebuilt(self, segments: Sequence[Segment], end_offset: int) -> Producers:
        """The producers of a log of which what is below `end_offset` is left."""
        producers = Producers(self._producer_limit)
        names = self._disk.list(self._folder)
        self._replay(segments, producers, names, end_offset)
        return producers

    # ---- leftovers

    def _replaced(self, replacements: Sequence[str]) -> list[str]:
        """Finish what compaction began; return what the folder has then."""
        if not self._point.is_missing:
            self._point.secure()  # else an older claim may name a segment that is replaced
        for name in replacements:
            finish_replacement(self._disk, f"{self._folder}/{name}", self._disk.remove)
        return self._disk.list(self._folder)

    def _remove_given_up(self, names: Sequence[str]) -> None:
        """Remove segments that were given up; a power cut may have undone their renaming."""
        given_up = []
        for name in names:
            stem, _, suffix = name.partition(".")
            is_segment = stem.isdecimal() and f".{suffix}" in {".log", *SUFFIXES}
            if is_segment and int(stem) < self._point.claim.first_base:
                given_up.append(name)
        self._remove_unclaimed(given_up)

    def _remove_unclaimed(self, names: Sequence[str]) -> None:
        """Remove files that an older claim may need, after the present one is durable."""
        if not all(name.endswith((CLEANED, DELETED)) for name in names):
            self._point.secure()
        for name in names:
            self._disk.remove(f"{self._folder}/{name}")

    def _is_being_emptied(self, bases: Sequence[int], start_offset: int) -> bool:
        """Return whether an opening before was cut short when it set the segments aside."""
        claim = self._point.claim
        if claim.end_offset != EMPTYING or claim.base_offset != start_offset:
            return False
        if start_offset not in bases:
            return start_offset > max(bases, default=0)
        return not self._disk.size(f"{self._folder}/{start_offset:020d}.log")

    def _lacks_empty_last(self, bases: Sequence[int], end_offset: int | None) -> bool:
        """Return whether the empty last segment of a log that was closed in order is missing.

        Otherwise it may have had records: a power cut takes the claims of the last seconds.
        """
        claim = self._point.claim
        if not bases and claim.first_base == UNKNOWN:  # then any others would be missing, too
            return False
        if claim.size or claim.first_crc:  # it had records, even if the mark of the stop differs
            return False
        return claim.base_offset == end_offset and end_offset > max(bases, default=-1)

    def _restore_last(self, base: int) -> None:
        """Create the empty last segment again."""
        path = f"{self._folder}/{base:020d}.log"
        log.warning("%s: the last segment of the log, which was empty, is missing; restored", path)
        first_base = self._point.claim.first_base
        self._point.replace(Claim(first_base, base, 0, UNKNOWN))  # until its name is synced
        begun(self._disk, self._folder, base, self._interval_bytes).release()
        self._point.replace(Claim(first_base, base, 0, base))

    def _sync_name(self, base: int) -> None:
        """Sync the name of the last segment unless a batch of it is claimed.

        The process that made the file may have been killed, or the sync of its folder may have
        failed. The name of a first segment is synced with that of the recovery point.
        """
        claim = self._point.claim
        is_used = claim.base_offset == base and (claim.size or claim.first_crc)
        if base and not is_used:
            path = f"{self._folder}/{base:020d}.log"
            self._disk.rename(path, path)

    def _emptied(self, bases: Sequence[int], names: Sequence[str], start_offset: int) -> Segment:
        """An empty log that begins with `start_offset`, above all records that it has.

        Its segments are set aside: the start offset may be that of a former topic of the name.
        """
        if bases:
            log.warning(
                "%s: the log ends before its start offset %d; it continues there, and its "
                "segments are kept with names that end with .torn.0",
                self._folder, start_offset,
            )  # fmt: skip
        if start_offset:
            first_base = self._point.claim.first_base  # what lies below it is removed
            self._point.replace(Claim(first_base, start_offset, 0, EMPTYING))
        # Before there is a further one: who finds both takes what lies between them for lost. The
        # last one first: what is left after a kill has no gap.
        for base in reversed(bases):
            path = f"{self._folder}/{base:020d}"
            if self._disk.size(f"{path}.log"):
                aside = damage.torn_name(self._disk, f"{path}.log", 0)
                self._disk.rename(f"{path}.log", aside)
            elif base != start_offset:
                self._disk.remove(f"{path}.log")
            remove_index(self._disk, path)
        for offset in snapshots.offsets(names):
            self._disk.remove(snapshots.path_of(self._folder, offset))
        if not start_offset:
            fresh = Segment(self._disk, self._folder, 0, self._interval_bytes)
            _ = fresh.file  # made now: the first append would wait for the folder
            fresh.release()
            return fresh
        self._point.replace(Claim(start_offset, start_offset, 0, EMPTYING))
        fresh = begun(self._disk, self._folder, start_offset, self._interval_bytes)
        fresh.release()
        self._point.replace(Claim(start_offset, start_offset, 0, start_offset))
        return fresh

    # ---- segments

    def _sealed(self, base: int) -> Segment:
        return self._trusted(base, sealed=True)

    def _report_unverified(self, segments: Sequence[Segment], names: Sequence[str]) -> None:
        """Log once how many segments have indexes and no checksums."""
        before = {*names}
        stems = [f"{segment.base_offset:020d}" for segment in segments]
        lacking = [one for one in stems if f"{one}{checksums.SUFFIX}" not in before]
        indexed = [one for one in lacking if f"{one}.index" in before]
        paths = [f"{self._folder}/{one}{checksums.SUFFIX}" for one in indexed]
        count = sum(not self._disk.exists(path) for path in paths)  # some were rebuilt just now
        if count:
            log.info(
                "%s: %d segments have no .checksums, because the files are missing or an earlier "
                "release wrote the segments; offsets and sizes in them are not verified",
                self._folder, count,
            )  # fmt: skip

    def _taken(self, base: int) -> Segment:
        """The last segment as it was closed."""
        segment = self._trusted(base, sealed=False)
        claim = self._point.claim
        if claim.base_offset == base and segment.size < claim.size:
            problem = f"the file has {segment.size} bytes, {claim.size} were synced"
            raise CorruptFileError(f"{segment.path}.log", problem)
        is_same = claim.base_offset == base and segment.size == claim.size
        if is_same and segment.end_offset != claim.end_offset >= 0:
            problem = f"the log ends at offset {segment.end_offset}, not at {claim.end_offset}"
            raise CorruptFileError(f"{segment.path}.log", problem)
        return segment

    def _trusted(self, base: int, *, sealed: bool) -> Segment:
        segment = Segment(self._disk, self._folder, base, self._interval_bytes)
        size = self._disk.size(f"{segment.path}.log")
        try:
            segment.take(size, sealed=sealed)
        except CorruptBatch as error:
            reason = "" if sealed else ", although the broker stopped in order"
            raise CorruptFileError(
                f"{segment.path}.log", f"{error}{reason}", position=segment.size
            ) from error
        finally:
            segment.release()
        return segment

    def _checked(self, base: int, producers: Producers) -> Segment:
        """The last segment, verified and without a torn end."""
        segment = Segment(self._disk, self._folder, base, self._interval_bytes)
        try:
            self._check(segment, producers)
        finally:
            segment.release()
        return segment

    def _check(self, segment: Segment, producers: Producers) -> None:
        base, claim = segment.base_offset, self._point.claim
        synced = claim.size if claim.base_offset == base else 0
        path, size = f"{segment.path}.log", segment.file.size()
        try:
            for header in segment.check(size, contiguous=True):
                if header.base_offset == base:
                    self._require_first(path, header)
                producers.record(header, header.base_offset)
        except CorruptBatch as error:
            self._cut(segment, str(error), size, synced)
        if segment.size < synced:
            problem = f"the file has {size} bytes, {synced} were synced"
            raise CorruptFileError(path, problem, position=size)
        if not segment.fits_checksums():  # to remove them takes a sync for each partition
            remove_index(self._disk, segment.path)
        if synced < segment.size:
            segment.file.rewrite(synced)
        if not segment.size:
            self._point.emptied(base)

    def _require_first(self, path: str, header: BatchHeader) -> None:
        """Check that a segment begins with the batch it began with. Raises: CorruptFileError."""
        claim = self._point.claim
        if claim.base_offset == header.base_offset and claim.first_crc not in (0, header.crc):
            raise CorruptFileError(path, f"{FOREIGN}; the file is that of another log", position=0)

    def _cut(self, segment: Segment, problem: str, size: int, synced: int) -> None:
        """Cut off the torn end of the last segment, and keep a copy."""
        path = f"{segment.path}.log"
        damage.require_torn(
            path, problem, segment.size, size,
            expected=segment.end_offset, durable_size=synced, clean=False,
            pread=segment.file.pread,
        )  # fmt: skip
        copy = damage.keep_copy(self._disk, path, segment.size, size)
        log.warning(
            "%s: cut off %d unsynced bytes at byte %d, torn by a crash (%s); the log ends at "
            "offset %d; copy kept in %s",
            path, size - segment.size, segment.size, problem, segment.end_offset, copy,
        )  # fmt: skip
        segment.file.truncate(segment.size)

    # ---- claims

    def _require_point(self, names: Sequence[str]) -> None:
        """Raises: CorruptFileError where the recovery point is missing, or all else is."""
        if self._point.is_missing:
            raise CorruptFileError(f"{self._folder}/{NAME}", _MISSING_POINT)
        is_claimed = self._point.claim.base_offset != UNKNOWN
        if not is_claimed and not any(".log" in name for name in names):
            raise CorruptFileError(self._folder, MISSING_SEGMENTS)

    def _replace_missing_point(self, segments: Sequence[Segment]) -> None:
        if self._point.is_missing and any(segment.size for segment in segments):
            log.warning(
                "%s/%s: the file is missing, so damage at the end of the log could pass for bytes "
                "that were never synced; a new one is written",
                self._folder, NAME,
            )  # fmt: skip
            self._point.began(segments[0].base_offset, segments[-1].base_offset, 0)

    def _require_claimed_segments(self, bases: Sequence[int]) -> None:
        claim = self._point.claim
        if claim.base_offset < 0:
            return
        if claim.base_offset > max(bases, default=-1):
            path = f"{self._folder}/{claim.base_offset:020d}.log"
            raise CorruptFileError(path, "the last segment of the log is missing")
        if bases and 0 <= claim.first_base < bases[0]:
            path = f"{self._folder}/{claim.first_base:020d}.log"
            raise CorruptFileError(
                path, f"offsets {claim.first_base} to {bases[0] - 1} are missing"
            )

    def _require_end(self, segments: Sequence[Segment], end_offset: int, start_offset: int) -> None:
        found = segments[-1].end_offset if segments else 0
        # An opening before may have set the segments aside, and failed at its last step.
        is_emptied = found == start_offset > end_offset and not segments[-1].size
        if found != end_offset and not is_emptied:
            path = f"{segments[-1].path}.log" if segments else self._folder
            raise CorruptFileError(
                path, f"the log ends at offset {found}; it ended at {end_offset} when it was closed"
            )

    # ---- producers

    def _replay(
        self,
        segments: Sequence[Segment],
        producers: Producers,
        names: Sequence[str],
        end_offset: int,
    ) -> None:
        """Restore what was written below `end_offset`: the best snapshot and what follows it."""
        usable = [offset for offset in snapshots.offsets(names) if offset <= end_offset]
        start, entries = snapshots.newest(self._disk, self._folder, usable)
        first = segments[0].base_offset if segments else end_offset
        if start < first:
            log.warning(
                "%s: no producer snapshot covers the offsets below %d; a batch that an idempotent "
                "producer wrote below and repeats now is appended again",
                self._folder, first,
            )  # fmt: skip
        producers.restore(entries)
        for segment in segments:
            if segment.end_offset <= start:
                continue
            try:
                self._replay_segment(segment, producers, start, end_offset)
            except CorruptBatch as error:
                raise CorruptFileError(f"{segment.path}.log", str(error)) from error
            finally:
                segment.release()

    def _replay_segment(
        self, segment: Segment, producers: Producers, start: int, end_offset: int
    ) -> None:
        for _, header in segment.walk(segment.position_after(start)):
            if header.base_offset >= end_offset:
                return
            producers.record(header, header.base_offset)


def waiting_replacements(names: Sequence[str], first_base: int) -> list[str]:
    """Return the files of segments that compaction made and that have no name of their own yet.

    One that begins with segments which were given up would bring their records back.

    Args:
        names: the files of the folder of a log.
        first_base: the first segment that was not given up.
    """
    swaps = [name for name in names if name.endswith(f".log{SWAP}")]
    stems = [(name, name.removesuffix(f".log{SWAP}")) for name in swaps]
    return [name for name, stem in stems if stem.isdecimal() and int(stem) >= first_base]


def finish_replacement(disk: Disk, path: str, put_away: Callable[[str], object]) -> None:
    """Give a segment that compaction made its name, in the place of those that it replaces.

    Args:
        path: the file that waits for its name (`SegmentedLog.replace`).
        put_away: removes or renames the file of a replaced segment.

    Raises: CorruptFileError where it is no whole replacement, and nothing has changed; OSError.
    """
    target = path.removesuffix(SWAP)
    folder, _, name = target.rpartition("/")
    base_offset = int(name.removesuffix(".log"))
    swap = Segment(disk, folder, base_offset, _INTERVAL_BYTES, file_path=path)
    try:
        swap.take_staged()
    except CorruptBatch as error:
        raise CorruptFileError(path, str(error), position=swap.size) from error
    finally:
        swap.release()
    if not swap.size:
        raise CorruptFileError(path, "the file is empty", position=0)
    names = disk.list(folder)
    # No checksum covers an offset, and segments in its range are put away.
    if not _begins(names, swap.end_offset):
        raise CorruptFileError(
            path, f"it ends with offset {swap.end_offset - 1}, and no segment follows there"
        )
    for base in _bases(names):
        if base_offset <= base < swap.end_offset:
            replaced = f"{folder}/{base:020d}"
            remove_index(disk, replaced)
            put_away(f"{replaced}.log")
    disk.rename(path, target)
    if disk.exists(path + checksums.SUFFIX):
        disk.remove(path + checksums.SUFFIX)


def _begins(names: Sequence[str], offset: int) -> bool:
    """Return whether a segment begins at an offset, in its place or about to get there."""
    first = f"{offset:020d}.log"
    return first in names or f"{first}{SWAP}" in names


def _bases(names: Sequence[str]) -> list[int]:
    stems = [name.removesuffix(".log") for name in names if name.endswith(".log")]
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def _require_continuity(sealed: Sequence[Segment], last_base: int) -> None:
    followers = [segment.base_offset for segment in sealed[1:]] + [last_base]
    for segment, base_offset in zip(sealed, followers, strict=False):
        if segment.end_offset != base_offset:
            raise CorruptFileError(
                f"{segment.path}.log",
                f"it ends before offset {segment.end_offset}, and the next segment begins with "
                f"{base_offset}; the segments between them are missing",
            )
