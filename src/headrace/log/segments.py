"""A partition's log: segments of record batches in Kafka's own layout, on any `Disk`.

`<folder>/00000000000000000000.log` holds batches as they are sent, named by its first offset, with
sparse indexes beside it. A batch gets its offset in place and is written with one append; if that
fails, what it left is cut off before anything else is written. Only the last segment is written
to; a full one is synced and sealed before a further one begins. What opening trusts, what it reads
and what it cuts off is told in `opening.py`.

Sealing syncs two files and a folder, so a caller on an event loop does that part in a thread:
`begin_seal`, `prepare_next` in the thread, then an append or `begin_next`. From `begin_seal` on
nothing is added to the segment; an append that comes during `prepare_next` waits for it. An append
that finds the segment full without that preparation does all of it itself: a caller on an event
loop asks `must_roll` before. Segments are dropped and replaced in such steps, too: what syncs is
said to be for a thread, and all else syncs nothing.

A log starts with its first segment, or inside it once records were deleted up to an offset; whoever
opens the log keeps that offset (`checkpoints.py`) and hands it in again. A failed sync leaves the
log unusable until `mend` and `resume` made it whole; `recovery_point.py` tells why.
"""

import contextlib
import errno
import threading
from collections.abc import Callable, Iterator, Sequence

from headrace.core.types import WallMs
from headrace.log import snapshots, times
from headrace.log.api import DamagedBlockError, Disk, OffsetOutOfRange, SegmentInfo, Slice
from headrace.log.buggify import buggify
from headrace.log.index import remove_index
from headrace.log.opening import Opening
from headrace.log.producers import ProducerLimit, Remembered
from headrace.log.reading import Stops, bytes_from
from headrace.log.recovery_point import UNKNOWN, Claim, RecoveryPoint
from headrace.log.segment import LEADER_EPOCH, Segment, begun
from headrace.log.segment_list import SegmentList, try_to_save_index
from headrace.wire import batches
from headrace.wire.batches import BatchHeader, CorruptBatch
from headrace.wire.primitives import Buffer

SEGMENT_BYTES = 1 << 30
SEGMENT_MS = 7 * 86_400_000
INDEX_INTERVAL_BYTES = 4096
_OFFSETS_PER_SEGMENT_MAX = (1 << 31) - 1
_DROPPED_MAX = 1_000_000


class SegmentedLog:
    """The log of one partition; implements `log.api.Log`.

    Args:
        folder: where it stands on `disk`; made when absent.
        segment_bytes: size at which a further segment begins (segment.bytes).
        segment_ms: so much later than the first of a segment a batch begins another (segment.ms).
        index_interval_bytes: log bytes for one index entry (index.interval.bytes).
        clean: the log was settled and closed, and nothing happened to it since.
        end_offset: where the log ended then, if that is known.
        start_offset: where it begins at least, as the caller has kept it.
        dropped: is told the files of dropped segments, to remove them; else they go at once.
        producer_limit: the bound of the idempotent producers that logs remember together.
        has_point: the log had a recovery point, whose name was synced.

    Raises: CorruptLog, OSError.
    """

    # Saves 2 KB a log: Python shares the keys of a class's instances up to 30 attributes only.
    __slots__ = (
        "_changing",
        "_choosing",
        "_claimed_base",
        "_cut_at",
        "_disk",
        "_durable_end",
        "_fault",
        "_first_batch",
        "_folder",
        "_fresh",
        "_given_up",
        "_interval_bytes",
        "_is_closed",
        "_is_retired",
        "_is_sealing",
        "_left_next",
        "_may_drop",
        "_next",
        "_point",
        "_producer_limit",
        "_rewrites",
        "_rolling",
        "_sealed_producers",
        "_segment_bytes",
        "_segment_ms",
        "_segments",
        "_settled_end",
        "_start",
        "_stops",
        "_syncing",
        "_torn",
        "producers",
    )

    def __init__(
        self,
        disk: Disk,
        folder: str,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        segment_ms: int = SEGMENT_MS,
        index_interval_bytes: int = INDEX_INTERVAL_BYTES,
        clean: bool = False,
        end_offset: int | None = None,
        start_offset: int = 0,
        dropped: Callable[[Sequence[str]], None] | None = None,
        producer_limit: ProducerLimit | None = None,
        has_point: bool = False,
    ) -> None:
        self._disk = disk
        self._producer_limit = producer_limit
        self._folder = folder
        self._point = RecoveryPoint(disk, folder)
        self._syncing = threading.Lock()
        self._rolling = threading.Lock()  # taken before `_syncing`
        self._choosing = threading.Lock()  # never for as long as the disk takes
        self._given_up = self._may_drop = UNKNOWN  # below it: about to be, and durably
        self._first_batch = UNKNOWN, 0  # offset and checksum of the one that began a segment
        self._is_sealing = self._is_closed = False
        self._rewrites = 0
        self._sealed_producers: Remembered | None = None
        self._next: Segment | None = None
        self._stops = Stops()
        self._torn = False
        self._left_next: str | None = None  # the file of a next segment, unless it is durable
        self._fault: OSError | None = None
        self._cut_at: int | None = None
        self._is_retired = False
        self._changing = threading.Lock()  # names in the folder, by threads
        self._fresh: Segment | None = None  # staged to take the place of others
        self.configure(
            segment_bytes=segment_bytes,
            segment_ms=segment_ms,
            index_interval_bytes=index_interval_bytes,
        )
        opening = Opening(
            disk, folder, index_interval_bytes, self._point, producer_limit, has_point=has_point
        )
        opened = opening.open(start_offset, clean=clean, end_offset=end_offset)
        self.producers = opened.producers
        self.producers.count_in()
        self._segments = SegmentList(disk, opened.segments, dropped)
        self._start = max(start_offset, self._segments.bases[0])
        active = self._segments.active
        # Of an empty segment the first batch is still to be claimed.
        is_claimed = active.size and self._point.claim.first_crc
        self._claimed_base = self._point.claim.base_offset if is_claimed else UNKNOWN
        self._settled_end = self.end_offset if opened.is_clean else -1
        self._durable_end = self.end_offset if opened.is_clean else self._claimed_end(active)

    def configure(self, *, segment_bytes: int, segment_ms: int, index_interval_bytes: int) -> None:
        """Change the settings from the next append on."""
        self._segment_bytes = segment_bytes
        self._segment_ms = segment_ms
        self._interval_bytes = index_interval_bytes

    @property
    def start_offset(self) -> int:
        return self._start

    @property
    def end_offset(self) -> int:
        return self._segments.active.end_offset

    @property
    def durable_end(self) -> int:
        """What is below is on stable storage, whatever happens."""
        return self._durable_end

    @property
    def fault(self) -> OSError | None:
        """The failed sync that keeps the log from being used."""
        return self._fault

    @property
    def rewrites(self) -> int:
        """As `JournalLog.rewrites`."""
        return self._rewrites

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches, those below the start offset in its segment included."""
        return sum(segment.size for segment in self._segments)

    @property
    def room(self) -> int:
        """Bytes that the active segment can still take."""
        return self._segment_bytes - self._segments.active.size

    def distrust(self, path: str) -> None:
        """Verify a segment again as it is read, because its file is damaged. Raises: OSError."""
        for one in self._segments:
            if one.file_path == path and one.sealed:
                one.distrust()

    def segments(self) -> list[SegmentInfo]:
        """All segments in order; the last is the one that is written to."""
        return [segment.info() for segment in self._segments]

    @property
    def segment_count(self) -> int:
        """The number of segments, without a look at them."""
        return len(self._segments.bases)

    def segment_at(self, path: str) -> Segment | None:
        """Return the segment whose file stands at `path`, None without one.

        Compaction puts another segment at the same path.
        """
        return self._segments.segment_at(path)

    def has(self, segment: Segment) -> bool:
        """Return whether a segment was neither dropped nor replaced."""
        return self._segments.segment_at(segment.file_path) is segment

    # ---- writing

    def append(
        self,
        data: bytearray | memoryview,
        headers: Sequence[BatchHeader],
        *,
        has_room: bool = False,
    ) -> int:
        """As `Log.append`. Raises: OSError, with the log as before; after a fault until `mend`.

        Args:
            has_room: `must_roll` has just been false for this one batch.
        """
        if self._torn or self._fault is not None:
            self._require_whole()
        first = offset = self._segments.active.end_offset
        position = 0
        for header in headers:
            batches.stamp(data, position, header.size, offset, LEADER_EPOCH)
            position += header.size
            offset += header.last_offset_delta + 1
        segment = self._segments.active
        if not has_room or self._next is not None:
            segment = self._with_room(position, offset, headers)
        if self._left_next is not None:
            self._remove_left_next()
        try:
            segment.file.append(data)
        except OSError:
            self._torn = True
            with contextlib.suppress(OSError):  # at once: on a full disk this room is needed
                self._require_whole()
            raise
        offset = first
        for header in headers:
            segment.add(header, offset, LEADER_EPOCH)
            if header.producer_id >= 0:
                self.producers.record(header, offset, is_live=True)
            offset += header.last_offset_delta + 1
        if segment.base_offset != self._claimed_base:
            if first == segment.base_offset:
                self._first_batch = first, headers[0].crc
            self._claim_segment(segment)
        return first

    def must_roll(self, header: BatchHeader) -> bool:
        """Return whether an append of the batch needs a new segment that is not prepared yet."""
        active = self._segments.active
        if self._next is not None or not active.size:
            return False
        if buggify("log.roll"):
            return True
        size, newest = header.size, header.max_timestamp
        end_offset = active.end_offset + header.last_offset_delta + 1
        oldest = active.first_timestamp
        if (  # by hand, as it is run for every batch
            oldest is not None
            and newest - oldest <= self._segment_ms
            and active.size + size <= self._segment_bytes
            and end_offset - active.base_offset <= _OFFSETS_PER_SEGMENT_MAX
            and not self._is_sealing
        ):
            return False
        return self._is_full(active, size, end_offset, newest)

    def begin_seal(self) -> None:
        """Add nothing more to the active segment: the next append begins a new one.

        Raises: OSError.
        """
        if not self._is_sealing and self._segments.active.size:
            self._require_whole()
            self._sealed_producers = self.producers.remembered()
            self._is_sealing = True

    def prepare_next(self) -> None:
        """Do the part of `roll` that waits for the disk; for a thread, after `begin_seal`.

        Raises: OSError; the segment stays sealed, and the next append tries again.
        """
        with self._rolling:
            if not self._is_sealing or self._next is not None:
                return
            self.sync()
            # After a fault `resume` may have ended the sealing. What is synced is not cut off.
            if self._is_sealing:
                assert self._sealed_producers is not None
                self._next = self._sealed(self._sealed_producers)
        if self._is_closed:
            self._let_go_next()

    def roll(self) -> None:
        """Seal the active segment when it holds anything. Raises: OSError."""
        with self._rolling:
            if not self._segments.active.size:
                return
            self._require_whole()
            if self._next is None:
                self._next = self._sealed(self.producers.remembered())
            self._segments.append(self._next)
            self._next, self._is_sealing, self._sealed_producers = None, False, None

    def begin_next(self) -> bool:
        """Go on with the segment that `prepare_next` made; False when there is none."""
        if self._next is None or self._fault is not None:
            return False
        self.roll()
        return True

    def _sealed(self, producers: Remembered) -> Segment:
        """Make the active segment and the producers' entries durable; return the next segment."""
        active = self._segments.active
        # Recovery looks for a torn end in the last segment only: this one must be whole.
        self.sync()
        try_to_save_index(active)
        # Once older segments are dropped, nothing else tells what their producers wrote.
        self._save_snapshot(producers, durable=True)
        self._left_next = f"{self._folder}/{active.end_offset:020d}.log"
        following = begun(self._disk, self._folder, active.end_offset, self._interval_bytes)
        self._left_next = None
        return following

    def sync(self) -> None:
        """As `Log.sync`; may run in another thread than appends.

        Raises: OSError, and again until the log was mended: later batches would be promised behind
        a hole.
        """
        with self._syncing:
            self._refuse_after_fault()
            active = self._segments.active
            end_offset, size = active.end_offset, active.size
            if end_offset == self._durable_end:
                return
            try:
                active.file.sync()
            except OSError as error:
                self._fault = error
                raise
            if not self._claimed_base == self._point.claim.base_offset == active.base_offset:
                self._claim_segment(active, wait=True)
            self._point.synced(active.base_offset, size, end_offset)
            # After the claim, as answers wait for it: what may be torn was promised to nobody.
            self._durable_end = end_offset

    def secure_point(self) -> None:
        """Bring the recovery point to stable storage; for a thread. Raises: OSError."""
        self._point.secure()

    def mend(self, *, keep: bool) -> None:
        """After a failed sync: bring the file to where everything in it is durable.

        May run in another thread; nothing may be appended meanwhile, and `resume` must follow.

        Args:
            keep: what was never synced was promised: it is written once more. Else it is cut off.

        Raises: OSError.
        """
        with self._syncing:
            if self._fault is None or self._is_retired:
                return
            active = self._segments.active
            try:
                # Once cut, the file ends before what the segment still counts.
                position = self._cut_at
                if position is None:
                    position = active.position_after(self._durable_end)
            except CorruptBatch as damage:
                raise active.damaged(damage) from damage
            if keep:
                active.file.truncate(active.size)
                active.file.rewrite(position)
            else:
                self._cut_at = position
                active.file.truncate(position)
            active.file.sync()
            if not keep:
                self._forget_cut(active, position)

    def _forget_cut(self, active: Segment, position: int) -> None:
        """Remove what was derived from the batches that are cut off. Raises: OSError."""
        remove_index(self._disk, active.path)
        if not position:
            self._point.emptied(active.base_offset)
        for offset in snapshots.offsets(self._disk.list(self._folder)):
            if offset > self._durable_end:
                self._disk.remove(snapshots.path_of(self._folder, offset))

    def resume(self) -> None:
        """Go on after `mend`, or cut off what a failed append left; syncs nothing.

        Raises: OSError, and `mend` has to be tried again.
        """
        if self._fault is None:
            self._require_whole()
            return
        if self._cut_at is not None:
            active = self._segments.active
            self._rewrites += 1
            try:
                active.cut(self._cut_at)
            except CorruptBatch as damage:
                raise active.damaged(damage) from damage
            if not active.size:
                self._claimed_base, self._first_batch = UNKNOWN, (UNKNOWN, 0)
            opening = Opening(
                self._disk, self._folder, self._interval_bytes, self._point, self._producer_limit
            )
            rebuilt = opening.rebuilt(list(self._segments), self._durable_end)
            self.producers.release()
            self.producers = rebuilt
            self.producers.count_in()
            # These are from before the cut, and the segment may have room again.
            self._is_sealing, self._sealed_producers = False, None
        self._durable_end = self.end_offset
        self._cut_at = self._fault = None
        self._torn = False

    def heal(self, *, keep: bool) -> None:
        """Do both steps of a repair: `mend` and `resume`. Raises: OSError."""
        self.mend(keep=keep)
        self.resume()

    # ---- reading

    def read(self, offset: int, max_bytes: int, *, end: int | None = None) -> Slice:
        """As `Log.read`; stops at the end of a segment. Raises: OffsetOutOfRange, OSError."""
        for segment in self._readable(offset):
            try:
                found = segment.find(offset)
                if found is not None:
                    return segment.slice(*found, max_bytes, end)
            except CorruptBatch as damage:
                self._require_whole_file()
                raise segment.damaged(damage) from damage
        return Slice(b"", ())

    def read_bytes(
        self, offset: int, max_bytes: int, *, end: int | None = None, whole: bool = True
    ) -> Buffer:
        """As `read`, but bytes; none when the first batch is larger and not `whole`."""
        try:
            return self._stops.read(self._readable(offset), offset, max_bytes, end, whole=whole)
        except DamagedBlockError:
            self._require_whole_file()
            raise

    def read_through(self, offset: int, last: int, max_bytes: int, *, end: int) -> Slice:
        """As `read`, and nothing behind the batch that holds `last`."""
        try:
            return self._stops.read_through(self._readable(offset), offset, last, max_bytes, end)
        except DamagedBlockError:
            self._require_whole_file()
            raise

    @property
    def last_read_bytes(self) -> int:
        """Bytes that the last `read_bytes` or `read_through` read from files."""
        return self._stops.read_bytes

    def _require_whole_file(self) -> None:
        """Raises: OSError while the file has less than is counted, as a sync failed."""
        if self._cut_at is not None:
            self._refuse_after_fault()

    def bytes_from(self, offset: int, enough: int) -> int:
        """As `reading.bytes_from`. Raises: also OffsetOutOfRange."""
        return bytes_from(self._readable(offset), offset, enough)

    def offset_for_time(self, timestamp: WallMs) -> tuple[int, WallMs] | None:
        """As `Log.offset_for_time`. Raises: OSError; CorruptBatch for what a producer made."""
        return times.carry_out(self.search_time(timestamp))

    def offset_of_max_time(self) -> tuple[int, WallMs] | None:
        """The first offset that has the highest timestamp, with it; None in an empty log."""
        return times.carry_out(self.search_max_time())

    def search_time(self, timestamp: WallMs) -> times.Search:
        """Begin `offset_for_time` for a caller that lets others have their turn."""
        return self._searched(times.offset_for_time(self._segments, self._start, timestamp))

    def search_max_time(self) -> times.Search:
        """Begin `offset_of_max_time`, as `search_time`."""
        return self._searched(times.offset_of_max_time(self._segments, self._start))

    def _searched(self, search: times.Search) -> times.Search:
        """Raises: OSError while the file has less than is counted, as a sync failed."""
        try:
            return (yield from search)
        except DamagedBlockError:
            self._require_whole_file()
            raise

    def last_timestamp(self) -> WallMs:
        """Return the highest timestamp of the last batch, -1 where the active segment has none.

        Raises: OSError; CorruptBatch.
        """
        active = self._segments.active
        return WallMs(active.last_header().max_timestamp if active.size else -1)

    # ---- what is kept

    def advance_start(self, offset: int) -> None:
        """Delete what is below `offset`; nothing when that is deleted already.

        Segments stay until they are dropped. The caller has kept the offset durably, unless it is
        the first of a segment and `allow_drop` gave up those before. Raises: OffsetOutOfRange
        above the end.
        """
        if offset > self.end_offset:
            raise OffsetOutOfRange(offset, self._start, self.end_offset)
        if offset > self._start:
            self._start = offset
            self._rewrites += 1

    def allow_drop(self, until: int) -> int:
        """Give up sealed segments that lie wholly below `until`, durably; for a thread.

        `drop_segments` then drops them; after a crash the next opening does.

        Returns:
            The base offset of the first segment that stays.

        Raises: OSError, and it is not known whether they are given up.
        """
        with self._choosing:
            first_base = max(self._first_base, self._segments.base_after(until))
            is_news = first_base > self._segments.bases[0]
            self._given_up = max(self._given_up, first_base)
        if is_news:
            self._point.dropping(first_base)
            self._may_drop = max(self._may_drop, first_base)
        return first_base

    def drop_segments(self, until: int, most: int = _DROPPED_MAX) -> int:
        """Drop segments that `allow_drop` gave up and that lie wholly below `until`.

        Their files are renamed at once, and nothing is synced. The start offset moves with them.

        Args:
            most: how many segments at most.

        Returns: how many. Raises: OSError; what was dropped by then is dropped.
        """
        count = 0
        try:
            while count < most and self._segments.drop_oldest(min(until, self._may_drop)):
                count += 1
        finally:
            self._start = max(self._start, self._segments.bases[0])
            self._rewrites += count > 0
        return count

    def prepare(self, bases: Sequence[int], cleaned: str) -> None:
        """Stage a file that is to take the place of neighbouring sealed segments; for a thread.

        From then on the next opening puts it there, unless the first of the segments was given up
        by then. `take_place`, `put_away_replaced`, `finish_replacement` and
        `remove_staged_checksums` follow, or `discard_replacement`.

        Args:
            bases: the base offsets of the segments, in order.
            cleaned: the file (`….log.cleaned`), complete and synced; its last batch ends where the
                last of the segments does.

        Raises: CorruptBatch; OSError, also while an earlier replacement is unfinished.
        """
        fresh = Segment(self._disk, self._folder, bases[0], self._interval_bytes, file_path=cleaned)
        fresh.take_whole(self._disk.size(cleaned))
        fresh.release()  # it may come to nothing, and nobody else would close the file
        with self.in_folder():
            # A repair takes the segment that is claimed for the last one, which has no gaps. And
            # the disk may have a claim whose sync failed: it gives up the first of these segments,
            # and if a power cut takes the later claims, the next opening removes the new file.
            self._point.follow(self._first_base, self._segments.active.base_offset)
            self._segments.stage(fresh)
        self._fresh = fresh

    def take_place(self, bases: Sequence[int]) -> bool:
        """Read from the file that `prepare` staged, in place of its segments.

        Returns: False when these are being dropped; nothing has changed.
        """
        assert self._fresh is not None, "prepare comes first"
        with self._choosing:
            if bases[0] < self._given_up:
                return False
            self._segments.take_place(bases, self._fresh)
            self._fresh = None  # the log reads it: it is not discarded any more
            self._rewrites += 1
        return True

    def put_away_replaced(self) -> list[str]:
        """Rename the files of replaced segments; for a thread. Returns their names.

        Raises: OSError; `resume_replacement` tries again, or the next opening does it.
        """
        try:
            with self.in_folder():
                return self._segments.put_away()
        except OSError:
            self._segments.leave_unfinished()
            raise

    def finish_replacement(self, replaced: Sequence[str]) -> None:
        """Let the file that took the segments' place have its name.

        Raises: OSError; as `put_away_replaced`.
        """
        if self._is_closed:
            return
        try:
            self._segments.finish(replaced)
        except OSError:
            self._segments.leave_unfinished()
            raise

    def remove_staged_checksums(self) -> None:
        """Remove what a finished replacement was verified by; for a thread. Raises: OSError."""
        with self.in_folder():
            self._segments.remove_staged_checksums()

    def resume_replacement(self) -> bool:
        """Go on with a replacement that the disk stopped after `take_place`.

        Returns: True when there is one: `put_away_replaced` follows, with the steps behind it.
        """
        return not self._is_closed and self._segments.resume()

    def discard_replacement(self) -> None:
        """Remove a staged file that did not take its place; for a thread. Raises: OSError."""
        fresh, self._fresh = self._fresh, None
        if fresh is not None:
            with self.in_folder():
                self._segments.discard(fresh)

    def replace(self, bases: Sequence[int], cleaned: str) -> None:
        """Do all steps of a replacement. Raises: as `prepare`; OSError for dropped segments."""
        self.prepare(bases, cleaned)
        if not self.take_place(bases):
            self.discard_replacement()
            raise OSError(errno.ESTALE, f"{cleaned}: its segments are being dropped")
        self.finish_replacement(self.put_away_replaced())
        self.remove_staged_checksums()

    @contextlib.contextmanager
    def in_folder(self) -> Iterator[None]:
        """Keep the folder from being removed meanwhile; for threads. Raises: OSError once it is."""
        with self._changing:
            if self._is_retired:
                raise OSError(errno.EBADF, f"{self._folder} is removed")
            yield

    # ---- the end

    def settle(self) -> None:
        """Make everything durable, for a quick next opening. Raises: OSError."""
        if self._settled_end == self.end_offset and self._fault is None and not self._torn:
            return
        if self._is_sealing:
            self.roll()
        self._require_whole()
        self._remove_left_next()
        self.sync()
        active = self._segments.active
        active.save_index()
        # The one at which the active segment begins may be all that tells of dropped segments.
        self._save_snapshot(self.producers.remembered(), durable=not active.size)
        if self.end_offset:
            claim = Claim(self._first_base, active.base_offset, active.size, self.end_offset)
            if active.size and self._point.claim.base_offset == active.base_offset:
                claim = claim._replace(first_crc=self._point.claim.first_crc)
            self._point.settled(claim)
        self._settled_end = self.end_offset

    def close(self) -> None:
        """As `Log.close`; a thread in `prepare_next` is not waited for."""
        self._is_closed, self._is_sealing = True, False
        self._let_go_next()
        self._segments.close()
        self._point.close()
        self.producers.release()

    def retire(self) -> None:
        """Before the folder goes: wait for what another thread writes there, and allow no more."""
        self._point.retire()
        with self._changing:
            self._is_retired = True
        with self._rolling, self._syncing:
            self._is_sealing = False
            self._fault = OSError(errno.EBADF, "removed")
            self._release_next()  # whoever tries meanwhile finds the lock taken

    def delete(self) -> None:
        """As `Log.delete`. Raises: OSError."""
        self.close()
        self._disk.remove(self._folder)

    # ---- inside

    def _let_go_next(self) -> None:
        """Close the segment that was prepared, unless a thread prepares one, which does it then."""
        if self._rolling.acquire(blocking=False):
            try:
                self._release_next()
            finally:
                self._rolling.release()

    def _release_next(self) -> None:
        if self._next is not None:
            self._next.release()
            self._next = None

    @property
    def _first_base(self) -> int:
        return max(self._may_drop, self._segments.bases[0])

    def _claimed_end(self, active: Segment) -> int:
        """The end of what is durable for sure: the rest may be in the system's memory only."""
        claim = self._point.claim
        known = claim.base_offset == active.base_offset and claim.end_offset >= 0
        return claim.end_offset if known else active.base_offset

    def _claim_segment(self, segment: Segment, *, wait: bool = False) -> None:
        """Let the recovery point name a segment that has a batch, now or later.

        Args:
            wait: for a thread: now, though another one waits for the disk.
        """
        base, crc = self._first_batch
        # A segment whose claim a power cut took begins with another batch than this one.
        first_crc = crc if base == segment.base_offset else 0
        began = self._point.began(self._first_base, segment.base_offset, first_crc, wait=wait)
        if began and self._point.claim.base_offset >= segment.base_offset:  # else it failed
            self._claimed_base = segment.base_offset

    def _with_room(self, size: int, end_offset: int, headers: Sequence[BatchHeader]) -> Segment:
        """The segment that batches go to; a further one when the active one is full."""
        active = self._segments.active
        if active.size:
            newest = max(one.max_timestamp for one in headers)
            if self._is_full(active, size, end_offset, newest):
                self.roll()
        return self._segments.active

    def _is_full(self, active: Segment, size: int, end_offset: int, newest: int) -> bool:
        return (
            self._is_sealing
            or active.size + size > self._segment_bytes
            or end_offset - active.base_offset > _OFFSETS_PER_SEGMENT_MAX
            or active.age_ms(newest) > self._segment_ms
        )

    def _readable(self, offset: int) -> Iterator[Segment]:
        if not self._start <= offset <= self.end_offset:
            raise OffsetOutOfRange(offset, self._start, self.end_offset)
        return self._segments.from_offset(offset)

    def _refuse_after_fault(self) -> None:
        if self._fault is not None:
            raise OSError(
                self._fault.errno, f"{self._folder}: a sync failed and is not repaired yet"
            )

    def _require_whole(self) -> None:
        """Cut off what a failed write left, so that no good batch follows a half one."""
        self._refuse_after_fault()
        if self._torn:
            active = self._segments.active
            active.file.truncate(active.size)
            self._torn = False

    def _remove_left_next(self) -> None:
        """Remove the file of a next segment that a failed roll may have left. Raises: OSError.

        It would stand amid batches that go on in the segment before.
        """
        if self._left_next is not None:
            self._disk.remove(self._left_next)
            path = self._segments.active.file_path
            self._disk.rename(path, path)  # syncs the folder, also where the file was gone
            self._left_next = None

    def _save_snapshot(self, producers: Remembered, *, durable: bool) -> None:
        if self.end_offset > self._segments.bases[0]:
            entries = list(producers.entries())
            snapshots.save(self._disk, self._folder, self.end_offset, entries, durable=durable)
        self._prune_snapshots()

    def _prune_snapshots(self) -> None:
        """Keep the snapshots of the end and of the last two segments.

        Where the one at which the active segment begins is damaged, the one before it serves.
        """
        kept = {self.end_offset, *self._segments.bases[-2:]}
        snapshots.prune(self._disk, self._folder, kept)
