"""One segment: a file of record batches and its indexes, both opened when first needed."""

import contextlib
import errno
import logging
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence

from headrace.log import checksums
from headrace.log.api import (
    MISSING,
    CorruptFileError,
    DamagedBlockError,
    Disk,
    File,
    SegmentInfo,
    Slice,
)
from headrace.log.checksums import BlockDigests, Checksums, CorruptBlock, Summary, Unverified
from headrace.log.index import (
    INDEX_SUFFIXES,
    NO_TIMESTAMP,
    SegmentIndex,
    Tail,
    read_tail,
    save_index,
)
from headrace.log.reading import require_fit, require_in_place
from headrace.wire import batches
from headrace.wire.batches import HEADER_BYTES, BatchHeader, CorruptBatch
from headrace.wire.checksums import crc32c

log = logging.getLogger("headrace.log")

_CHUNK_BYTES = 1 << 20
LEADER_EPOCH = 0  # of every batch: there is one broker
_OFFSETS_MAX = (1 << 31) - 1  # above the first, in an index
_TIMES = -1  # no position: the log contradicts the time index, and cannot be indexed
_NONE: Mapping[int, str] = {}  # shared, as a dictionary a segment would take memory
_ANOTHER = "the file is not the segment of which the checksums were written"


class Segment:
    """The batches of offsets [base_offset, end_offset) in `path`.log, `size` bytes.

    Its file and, once it is `sealed`, its indexes are opened at the first use and let go by
    `release`. Every method raises OSError when the disk does.

    Args:
        file_path: where the file is while it does not stand in its place yet.
        file: the file, already open; by default it is opened, or created, at the first use.
    """

    __slots__ = (
        "_blocks", "_damaged", "_disk", "_file", "_index", "_last", "_max_timestamp",
        "_saved_size", "_sound_at", "_unverified", "base_offset", "end_offset", "file_path",
        "first_timestamp", "interval_bytes", "is_let_go", "path", "sealed", "size",
    )  # fmt: skip

    def __init__(
        self,
        disk: Disk,
        folder: str,
        base_offset: int,
        interval_bytes: int,
        *,
        file_path: str | None = None,
        file: File | None = None,
    ) -> None:
        self.base_offset = base_offset
        self.end_offset = base_offset
        self.path = f"{folder}/{base_offset:020d}"
        self.file_path = file_path or f"{self.path}.log"
        self.size = 0
        self.sealed = False
        self.is_let_go = False  # its log does not have it any more, or is closed
        self.first_timestamp: int | None = None
        self.interval_bytes = interval_bytes
        self._disk = disk
        self._file = file
        self._index: SegmentIndex | None = SegmentIndex(base_offset, interval_bytes)
        self._max_timestamp = -1
        self._saved_size = -1
        # None where not every batch was seen: the segment is of a format 0 folder.
        self._blocks: BlockDigests | None = BlockDigests()
        self._unverified: Unverified | None = None
        self._last = 0, 0  # position and checksum of the last batch
        self._sound_at: tuple[int, int] | None = None  # position and checksum of a batch
        self._damaged: Mapping[int, str] = _NONE  # positions of entries that the log contradicts

    @property
    def file(self) -> File:
        if self._file is None:
            if self.size:
                self._require_file()
            self._file = self._disk.open(self.file_path)
        return self._file

    @property
    def index(self) -> SegmentIndex:
        if self._index is None:
            self._index = self._loaded_index()
        return self._index

    @property
    def max_timestamp(self) -> int:
        """The highest timestamp, -1 without any."""
        return self._max_timestamp if self._index is None else self._index.max_timestamp

    def _require_file(self) -> None:
        """Raises: DamagedBlockError where the file is missing; OSError."""
        try:
            self._disk.size(self.file_path)
        except FileNotFoundError as error:
            if self.is_let_go:
                raise FileNotFoundError(
                    errno.ENOENT, "a segment is gone", self.file_path
                ) from error
            raise DamagedBlockError(CorruptFileError(self.file_path, MISSING)) from error

    def info(self) -> SegmentInfo:
        return SegmentInfo(
            self.base_offset, self.end_offset, self.size, self.max_timestamp, self.path,
            self.sealed, self.file_path,
        )  # fmt: skip

    def add(self, header: BatchHeader, base_offset: int, epoch: int) -> None:
        """Count a batch that stands at the end of the file, with this offset and leader epoch."""
        assert self._index is not None
        if self.first_timestamp is None and not self.size:
            self.first_timestamp = header.max_timestamp
        last_offset = base_offset + header.last_offset_delta
        self._index.add(last_offset, self.size, header.size, header.max_timestamp)
        if self._blocks is not None:
            self._blocks.add(self.size, base_offset, epoch, header)
            self._last = self.size, header.crc
        self.size += header.size
        self.end_offset = last_offset + 1

    @property
    def digests(self) -> BlockDigests:
        """The digests of all batches, once every one of them was counted."""
        assert self._blocks is not None, "the segment was checked"
        return self._blocks

    def age_ms(self, timestamp: int) -> int:
        """How much later than the first batch `timestamp` is; 0 where either has none.

        Raises: OSError, also where the first batch is damaged.
        """
        if self.first_timestamp is None:
            try:
                self.require_intact(0, HEADER_BYTES)
                self.first_timestamp = self.header_at(0).max_timestamp
            except CorruptBatch as damage:
                raise self.damaged(damage) from damage
        if timestamp < 0 or self.first_timestamp < 0:
            return 0
        return timestamp - self.first_timestamp

    def damaged(self, damage: CorruptBatch, position: int | None = None) -> OSError:
        """Return the error that names the file, and the batch at a position, to a reader."""
        return DamagedBlockError(CorruptFileError(self.file_path, str(damage), position=position))

    def header_at(self, position: int) -> BatchHeader:
        """Raises: CorruptBatch."""
        return batches.read_header(self.file.pread(HEADER_BYTES, position))

    def last_header(self) -> BatchHeader:
        """Return the header of the last batch of the active segment. Raises: CorruptBatch."""
        return self.header_at(self._last[0])

    def walk(self, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        """The batches from one that begins at `position`.

        Raises: CorruptBatch, also where offsets do not ascend: no checksum of a batch covers them.
        """
        last = self.base_offset - 1
        while position < self.size:
            if self._unverified is not None:
                self.require_intact(position, position + HEADER_BYTES)
            header = self.header_at(position)
            if not last < header.base_offset <= header.last_offset < self.end_offset:
                raise CorruptBatch(f"offset {header.base_offset} after {last}")
            yield position, header
            position, last = position + header.size, header.last_offset

    def require_intact(self, start: int, end: int) -> None:
        """Verify the blocks that hold bytes of [start, end), if that was not done before.

        Only what another process wrote is verified. Raises: OSError, which names the damage.
        """
        if self._unverified is None:
            return
        for begin, stop, digest in self._unverified.of(start, end):
            data = self.file.pread(stop - begin, begin)
            try:
                if len(data) < stop - begin:
                    ending = begin + len(data)
                    raise CorruptBlock(f"the file ends at byte {ending} of {self.size}", len(data))
                checksums.verify_block(data, digest)
            except CorruptBlock as error:
                position = begin + error.position
                damage = CorruptFileError(self.file_path, str(error), position=position)
                raise DamagedBlockError(damage) from error
            self._unverified.verified(begin)
        if not self._unverified.left:
            self._unverified = None

    def intact_until(self, start: int, end: int) -> int:
        """Return `end`, or where the first damaged block begins that does not hold `start`.

        Blocks begin with a batch, so what is returned is the end of one.

        Raises: OSError, as `require_intact`, where the block that holds `start` is damaged.
        """
        if self._unverified is not None:
            for begin, stop, _ in self._unverified.of(start, end):
                try:
                    self.require_intact(begin, stop)
                except DamagedBlockError:
                    if begin <= start:
                        raise
                    return begin
        return end

    def distrust(self) -> None:
        """Verify every block again before it is read next. Raises: OSError."""
        self._sound_at = None
        is_staged = self.file_path != f"{self.path}.log"
        found = checksums.load(self._disk, self.file_path if is_staged else self.path)
        if found is not None and found.summary.size == self.size:
            self._unverified = Unverified(found.blocks, self.size)

    def find(self, offset: int) -> tuple[int, BatchHeader] | None:
        """The batch that holds or follows `offset`, with its position. Raises: CorruptBatch."""
        start = self.index.position_of(offset)
        if start in self._damaged:  # to look again would take long
            raise CorruptBatch(self._damaged[start])
        try:
            return self._find_from(start, offset, trusted=not start)
        except CorruptBatch as damage:
            if not start or self._is_entry(start):
                raise
            suspicion = damage
        # A power cut can leave an index of the right size with something else inside.
        try:
            index = self._replaced_index(".index", suspicion)
        except CorruptBatch as damage:  # it is the log that is damaged
            self._damaged = {**self._damaged, start: str(damage)}
            raise
        return self._find_from(index.position_of(offset), offset, trusted=True)

    def position_before(self, timestamp: int) -> int:
        """Where to begin to look for the first record as late as `timestamp`.

        Where the log is damaged, this may be its start: the record can stand before the damage, and
        whoever walks there names it.

        Raises: CorruptBatch where indexes that are lost cannot be made again.
        """
        entry, used = self.index.time_before(timestamp), self._index
        if entry is None:
            return 0
        try:
            found = self.find(entry[0])
            if found is not None and self._index is used:
                position, header = found
                if (header.last_offset, header.max_timestamp) == entry:
                    return position
                self._require_checksum(position, header)
        except CorruptBatch:
            return 0
        if self._index is used:
            if _TIMES in self._damaged:
                return 0
            # A power cut can leave another time, or another offset with it.
            suspicion = CorruptBatch(f"timestamp {entry[1]} is not that of offset {entry[0]}")
            try:
                self._replaced_index(".timeindex", suspicion)
            except CorruptBatch as damage:
                # To try again would take long.
                self._damaged = {**self._damaged, _TIMES: str(damage)}
                return 0
        entry = self.index.time_before(timestamp)
        return 0 if entry is None else self.index.position_of(entry[0])

    def _replaced_index(self, suffix: str, suspicion: CorruptBatch) -> SegmentIndex:
        """Make the indexes from the log, because it contradicts one of them.

        Raises: CorruptBatch.
        """
        index = self._indexed()
        log.warning("%s%s: does not agree with the log (%s); rebuilt", self.path, suffix, suspicion)
        self._index, self._saved_size = index, -1
        self.save_index()
        return index

    def _find_from(
        self, start: int, offset: int, *, trusted: bool
    ) -> tuple[int, BatchHeader] | None:
        end, before = start, None
        for position, header in self.walk(start):
            if not trusted and position == start:
                expected = self.index.offset_at(start)
                if header.last_offset != expected:
                    raise CorruptBatch(f"{header.last_offset} stands at {start}, not {expected}")
            if header.last_offset >= offset:
                if before is not None and header.base_offset > offset:
                    self._require_checksum(*before)
                return position, header
            end, before = position + header.size, (position, header)
        if end > self.size:
            raise CorruptBatch(f"a batch goes to byte {end}, {self.size} are there")
        if before is not None and offset < self.end_offset:
            self._require_checksum(*before)
        return None

    def _require_checksum(self, position: int, header: BatchHeader) -> None:
        """Verify a batch whose last offset or timestamp may be damaged.

        The one that was verified last is not verified again: readers wait at an offset that no
        batch holds, and come back to the batch before it.
        Raises: CorruptBatch.
        """
        if self._sound_at != (position, header.crc):
            batches.verify(self.file.pread(header.size, position), 0, header)
            self._sound_at = position, header.crc

    def _is_entry(self, position: int) -> bool:
        """Return whether the index is right about the batch at a position that it has."""
        try:
            return self.header_at(position).last_offset == self.index.offset_at(position)
        except CorruptBatch:
            return False

    def slice(self, position: int, first: BatchHeader, max_bytes: int, end: int | None) -> Slice:
        """As `Log.read`, from the batch `first` at `position`. Raises: CorruptBatch."""
        if end is not None and first.base_offset >= end:
            require_fit(self, first, position)
            return Slice(b"", ())
        wanted = min(max(max_bytes, first.size), self.size - position)
        wanted = self.intact_until(position, position + wanted) - position
        data = self.file.pread(wanted, position)
        headers = batches.headers(data)
        size = sum([header.size for header in headers])
        require_in_place(self, data, size, position)
        if not headers:
            require_fit(self, first, position)
        if end is not None and headers and headers[-1].base_offset >= end:
            headers = headers[: bisect_right(headers, end - 1, key=lambda one: one.base_offset)]
            size = sum([header.size for header in headers])
        return Slice(data if size == len(data) else data[:size], headers)

    def position_after(self, offset: int) -> int:
        """Where the batches below `offset` end. Raises: CorruptBatch."""
        found = self.find(offset) if offset < self.end_offset else None
        return self.size if found is None else found[0]

    def boundary(self, position: int) -> int:
        """As `reading.Source.boundary`."""
        return self.index.boundary(position)

    def save_index(self, blocks: BlockDigests | None = None) -> None:
        """Write the indexes and checksums of the segment, unless that is done. Raises: OSError.

        Nothing is synced: `.checksums` shows whether all of it is there. It comes first, because an
        opening takes a sealed segment with indexes alone for one of a format 0 folder, whose blocks
        cannot be verified.

        Args:
            blocks: the digests, where they are not in memory.
        """
        if self._index is None or self._saved_size == self.size or not self.size:
            return
        blocks = self._blocks or blocks
        contents = self._index.contents() if len(self._index) else ()
        parts = [(len(data), int(crc32c(data))) for data in contents] or [(0, 0), (0, 0)]
        if blocks is not None:
            checksums.save(self._disk, self.path, self._summary(parts[0], parts[1]), blocks)
        if contents:
            save_index(self._disk, self.path, contents)
        self._saved_size = self.size

    def save_digests(self) -> None:
        """Write checksums of the file where it does not stand in its place yet; nothing is synced.

        Raises: OSError.
        """
        summary = self._summary((0, 0), (0, 0))
        checksums.save(self._disk, self.file_path, summary, self.digests)

    def _summary(self, index: tuple[int, int], timeindex: tuple[int, int]) -> Summary:
        """Describe the segment and its indexes, which are given by size and checksum."""
        assert self._index is not None, "the segment was counted"
        return Summary(
            self.base_offset, self.end_offset, self.size,
            self._index.max_timestamp, self._index.max_timestamp_offset, *self._last,
            *index, *timeindex,
        )  # fmt: skip

    def release(self) -> None:
        """Close the file; when sealed, forget the indexes, which are read again when needed."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if self.sealed and self._saved_size == self.size:
            self._max_timestamp = self.max_timestamp
            self._index = self._blocks = None

    # ---- opening

    def take(self, size: int, *, sealed: bool) -> None:
        """Trust the checksums or the indexes of a file of `size` bytes, if they agree with it.

        Else every batch is verified. Checksums of an earlier state of the segment count for
        nothing; those that no earlier state can have show that this is another file.

        Raises: CorruptBatch.
        """
        self.sealed = sealed
        found = checksums.load(self._disk, self.path)
        if found is not None and self._agrees(found.summary, size):
            self._take_from_checksums(found)
            return
        if found is not None and not self._is_earlier(found.summary, size):
            written = found.summary
            if written.base_offset == self.base_offset and written.size > size:
                self.size = size  # where the damage begins
                raise CorruptBatch(f"the file has {size} bytes, {written.size} were written")
            self.take_whole(size)  # a damaged batch is the better reason
            self.size = 0
            raise CorruptBatch(_ANOTHER)
        is_wrong = found is not None or self._disk.exists(self.path + checksums.SUFFIX)
        if not is_wrong and sealed and self._took_tail(size):
            return
        self.take_whole(size)
        if is_wrong:
            log.warning("%s.checksums: does not agree with the log; rebuilt", self.path)
        elif size:
            log.info("%s.checksums: the file is missing; rebuilt from the log", self.path)
        self.save_index()

    def take_whole(self, size: int) -> None:
        """Verify and count every batch of a file of `size` bytes. Raises: CorruptBatch."""
        for _ in self.check(size):
            pass

    def take_staged(self) -> None:
        """As `take_whole`, of a file that waits for its place; offsets and sizes are verified, too.

        Raises: CorruptBatch; OSError.
        """
        self.take_whole(self._disk.size(self.file_path))
        written = checksums.load(self._disk, self.file_path)
        if written is None or (written.summary.size, written.summary.last_crc) != (
            self.size, self._last[1],
        ):  # fmt: skip
            return  # a power cut took them
        position = written.blocks.differing(self.digests)
        if position is not None:
            self.size = position  # where the damage begins
            raise CorruptBatch(checksums.MOVED)

    def check(self, size: int, *, contiguous: bool = False) -> Iterator[BatchHeader]:
        """Count the batches of a file of `size` bytes whose checksums are right; yield each.

        Args:
            contiguous: the batches are as they were appended: no offset is missing between them.

        Raises: CorruptBatch at the first that is not, or does not follow.
        """
        self.size, self.end_offset, self.first_timestamp = 0, self.base_offset, None
        self._index = SegmentIndex(self.base_offset, self.interval_bytes)
        self._blocks, self._unverified, self._saved_size = BlockDigests(), None, -1
        data, start = b"", 0
        while self.size < size:
            position = self.size - start
            if len(data) - position < HEADER_BYTES:
                start, position = self.size, 0
                data = self.file.pread(_CHUNK_BYTES, start)
            header = batches.read_header(data, position)
            self._require_fit(header, self.size, size)
            if contiguous and header.base_offset != self.end_offset:
                raise CorruptBatch(f"offset {header.base_offset} after {self.end_offset - 1}")
            if header.leader_epoch != LEADER_EPOCH:  # no checksum of a batch covers it
                problem = f"leader epoch {header.leader_epoch} at offset {header.base_offset}"
                raise CorruptBatch(problem)
            if len(data) - position < header.size:
                start, position = self.size, 0
                data = self.file.pread(max(_CHUNK_BYTES, header.size), start)
            batches.verify(data, position, header)
            self.add(header, header.base_offset, header.leader_epoch)
            yield header

    def cut(self, size: int) -> None:
        """Count the batches of a file that was cut to `size`.

        Raises: CorruptBatch, and the segment counts what it did before; OSError.
        """
        counted = Segment(self._disk, "", self.base_offset, self.interval_bytes, file=self.file)
        counted.take_whole(size)
        self.take_whole(size)
        self._damaged = _NONE

    def fits_checksums(self) -> bool:
        """Return whether `.checksums` is of this file or of an earlier state of it.

        Checksums of a later state are left where the end of the file was cut off.

        Raises: CorruptFileError where it is of another file; OSError.
        """
        found = checksums.load(self._disk, self.path)
        if found is None or found.summary.size > self.size:
            return False
        if not self._is_prefix(found.summary):
            raise CorruptFileError(self.file_path, _ANOTHER, position=0)
        return True

    def _agrees(self, summary: Summary, size: int) -> bool:
        """Whether checksums are those of this file, by its size and its last batch."""
        return summary.size == size and self._is_prefix(summary)

    def _is_earlier(self, summary: Summary, size: int) -> bool:
        """Whether checksums can be those of the file when it was shorter."""
        return summary.size < size and self._is_prefix(summary)

    def _is_prefix(self, summary: Summary) -> bool:
        """Whether the last batch that checksums know stands in the file."""
        if summary.base_offset != self.base_offset:
            return False
        try:
            header = self.header_at(summary.last_position)
        except CorruptBatch:
            return False
        ends = summary.last_position + header.size, header.last_offset + 1
        return ends == (summary.size, summary.end_offset) and header.crc == summary.last_crc

    def _take_from_checksums(self, found: Checksums) -> None:
        summary = found.summary
        self.size, self.end_offset = summary.size, summary.end_offset
        self._saved_size = summary.size
        self._max_timestamp = summary.max_timestamp
        self._last = summary.last_position, summary.last_crc
        self._unverified = Unverified(found.blocks, summary.size)
        self._blocks = None if self.sealed else found.blocks
        self._index = None
        if not self.sealed:
            self._index = self._loaded_index()

    def _took_tail(self, size: int) -> bool:
        """Whether a segment without checksums could be taken by its indexes. Raises: OSError."""
        tail = read_tail(self._disk, self.path, self.base_offset)
        if tail is None or tail.position >= size:
            return False
        suffix = ".index"
        try:
            start = self._start_of(tail)
            if tail.position - start > _CHUNK_BYTES:
                return False  # verified once, instead of many headers at each start
            latest = self._take_from_tail(start, tail, size)
            if latest != (tail.max_timestamp, tail.max_timestamp_offset):
                suffix = ".timeindex"
                raise CorruptBatch(f"the highest timestamp is {latest[0]} at offset {latest[1]}")
        except CorruptBatch as damage:
            log.warning(
                "%s%s: does not agree with the log (%s); rebuilt", self.path, suffix, damage
            )
            return False
        self._blocks, self._index, self._saved_size = None, None, size
        return True

    def _take_from_tail(self, position: int, tail: Tail, size: int) -> tuple[int, int]:
        """Count the batches from the first one that a last entry names, or from one before it.

        A time index that a power cut has shortened names another batch than the one with the
        highest timestamp, by which retention goes. Source: LogSegment.readLargestTimestamp (4.3).

        Returns:
            The highest timestamp of these batches, and the last offset of the first that has it.
        """
        self.end_offset, highest, highest_offset = self.base_offset, NO_TIMESTAMP, self.base_offset
        # Further behind the last entry there would be others.
        indexed = tail.position + max(self.interval_bytes, _CHUNK_BYTES)
        while position < size:
            if position > indexed:
                raise CorruptBatch(f"entries behind offset {tail.offset} are missing")
            header = self.header_at(position)
            self._require_fit(header, position, size)
            self.end_offset = header.last_offset + 1
            if header.max_timestamp > highest:
                highest, highest_offset = header.max_timestamp, header.last_offset
            position += header.size
        self.size, self._max_timestamp = size, highest
        return highest, highest_offset

    def _start_of(self, tail: Tail) -> int:
        """Return a position at or before the batches that the last entries name.

        Raises: CorruptBatch where the last entry of the offset index names none.
        """
        header = self.header_at(tail.position)
        if header.last_offset != tail.offset:
            problem = f"{header.last_offset} stands at {tail.position}, not {tail.offset}"
            raise CorruptBatch(problem)
        if tail.max_timestamp == NO_TIMESTAMP:
            return 0
        if tail.max_timestamp_offset >= tail.offset:
            return tail.position
        index = SegmentIndex.load(self._disk, self.path, self.base_offset, self.interval_bytes)
        return 0 if index is None else index.position_of(tail.max_timestamp_offset)

    def _loaded_index(self) -> SegmentIndex:
        """The indexes from their files where these agree with the checksums, else rebuilt."""
        found = checksums.load(self._disk, self.path)
        differing = [] if found is None else self._differing_files(found.summary)
        index = None
        if not differing and found is not None and not found.summary.index_size:
            index = self._indexed()  # too short for an entry
        elif not differing:
            index = SegmentIndex.load(self._disk, self.path, self.base_offset, self.interval_bytes)
            if index is not None and not self.sealed:  # it goes on behind its last entry
                for position, header in self.walk(index.last_position):
                    index.add(header.last_offset, position, header.size, header.max_timestamp)
        if index is not None and found is not None and found.summary.index_size:
            index.max_timestamp = found.summary.max_timestamp
            index.max_timestamp_offset = found.summary.max_timestamp_offset
        return self._rebuilt_index(found, differing) if index is None else index

    def _rebuilt_index(self, found: Checksums | None, differing: Sequence[str]) -> SegmentIndex:
        """Make the indexes from the log, and write them if the checksums are those of the log.

        Other checksums, which are damaged or of an earlier state, stay as they are: their digests
        with the present size would make the next opening refuse a sound segment. The indexes are
        kept in memory then.

        Args:
            differing: index files that are missing, or not those that the checksums describe.

        Raises: CorruptBatch.
        """
        digests = BlockDigests()
        index = self._indexed(digests)
        if found is not None and found.blocks.differing(digests) is not None:
            log.warning(
                "%s.checksums: does not agree with the log; the next start verifies the segment, "
                "or refuses it where they are of a longer file",
                self.path,
            )
            self._saved_size = -1
            return index
        for path in differing:
            if self._disk.exists(path):
                log.warning("%s: does not agree with its checksum; rebuilt", path)
            else:
                log.info("%s: the file is missing; rebuilt from the log", path)
        if len(index) and found is not None:
            self._index, self._saved_size = index, -1
            self.save_index(found.blocks)
        return index

    def _differing_files(self, summary: Summary) -> list[str]:
        """The index files that are not those of which the checksums were written."""
        written = (
            (summary.index_size, summary.index_crc),
            (summary.timeindex_size, summary.timeindex_crc),
        )
        paths = (self.path + suffix for suffix in INDEX_SUFFIXES)
        return [
            path
            for path, checksum in zip(paths, written, strict=True)
            if checksums.file_checksum(self._disk, path) != checksum
        ]

    def _indexed(self, digests: BlockDigests | None = None) -> SegmentIndex:
        """Return the indexes of what is known of the file.

        Args:
            digests: gets the batches, too.

        Raises: CorruptBatch.
        """
        index = SegmentIndex(self.base_offset, self.interval_bytes)
        last = self.base_offset - 1
        for position, header in self.walk():
            index.add(header.last_offset, position, header.size, header.max_timestamp)
            if digests is not None:
                digests.add(position, header.base_offset, header.leader_epoch, header)
            last = header.last_offset
        if last != self.end_offset - 1:
            raise CorruptBatch(f"the last offset is {last}, and was {self.end_offset - 1}")
        return index

    def _require_fit(self, header: BatchHeader, position: int, size: int) -> None:
        """Raises: CorruptBatch when a batch goes past the end of the file or does not follow."""
        if header.size > size - position:
            raise CorruptBatch(f"a batch of {header.size} bytes, {size - position} are there")
        if header.base_offset < self.end_offset or header.last_offset_delta < 0:
            raise CorruptBatch(f"offset {header.base_offset} after {self.end_offset - 1}")
        if header.last_offset - self.base_offset > _OFFSETS_MAX:
            raise CorruptBatch(f"offset {header.last_offset} is beyond what a segment can hold")


def begun(disk: Disk, folder: str, base_offset: int, interval_bytes: int) -> Segment:
    """An empty segment whose file is there after any crash. Raises: OSError.

    Then the file is removed if the disk allows: it would stand amid the segment before, if that
    goes on because a batch fits it.
    """
    segment = Segment(disk, folder, base_offset, interval_bytes)
    try:
        if disk.exists(segment.file_path):  # a try before could neither sync nor remove its name
            disk.rename(segment.file_path, segment.file_path)
        segment.file.sync()
    except OSError:
        segment.release()
        with contextlib.suppress(OSError):
            disk.remove(segment.file_path)
        raise
    return segment
