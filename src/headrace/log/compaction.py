"""Compaction of one log: of every key the last record stays, all offsets stay what they are.

Theory of operation. The sealed segments are a clean head, compacted before, and a dirty tail. A
cleaning reads the dirty part into a map from key to last offset, then copies head and tail without
the records that the map knows a later one of, and without tombstones whose time is over. Small
neighbours become one segment. A copy stands aside, complete and synced, before it takes its
segments' place, oldest first: so whatever a crash leaves, no removed tombstone can bring an older
value back. The last batch of a copy is kept, if need be without records, so that segments go on
without a hole; so is the last batch of a producer, whose sequence would be forgotten.

The work is in steps of about a millisecond (`Steps`), for a thread that shares the interpreter with
an event loop. What touches the log itself (`put`, `finish`) belongs on the loop and syncs nothing.

Keys are kept whole in the map, not as digests: a collision would remove a record that nobody wrote
anew, and a short key in a dict costs hardly more than its digest. The memory they take is estimated
and bounded; where it is used up a cleaning ends early, and the next one goes on.
Source: Kafka's LogCleaner and Cleaner (4.3); KIP-58, KIP-354, KIP-534.
"""

import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field

from headrace.core.types import WallMs
from headrace.log import checksums
from headrace.log.api import MISSING, CorruptFileError, DamagedBlockError, Disk, File, SegmentInfo
from headrace.log.checksums import MOVED, BlockDigests
from headrace.log.dirty import Dirty, Rules
from headrace.log.key_map import KeyMap
from headrace.log.rewriting import Found, moved, scan, with_records, without_records
from headrace.log.segment import LEADER_EPOCH, Segment
from headrace.log.segments import SegmentedLog
from headrace.wire import batches
from headrace.wire.batches import HEADER_BYTES, BatchHeader, CorruptBatch

log = logging.getLogger("headrace.log")

Steps = Generator[None, None, None]

_READ_BYTES = 256 << 10
_WRITE_BYTES = 256 << 10
_RECORDS_PER_STEP = 256
_KEY_OVERHEAD_BYTES = 160  # of a dict entry with its bytes and int objects, besides the key
_BATCH_KEYS_BYTES_MAX = 256 << 20
_OFFSETS_PER_SEGMENT_MAX = (1 << 31) - 1
_HORIZON_MAX = 1 << 62  # a timestamp's distance to it must fit 64 bits


@dataclass(slots=True)
class Tally:
    """What a cleaning read and what it left."""

    bytes_before: int = 0
    bytes_after: int = 0
    records_before: int = 0
    records_after: int = 0
    without_key: int = 0
    unreadable: int = 0


@dataclass(slots=True)
class Group:
    """Neighbouring segments that become one."""

    segments: Sequence[SegmentInfo]
    changed: bool = False
    tally: Tally = field(default_factory=Tally)
    replaced: Sequence[str] = ()  # files of segments whose place the copy took

    @property
    def end_offset(self) -> int:
        return self.segments[-1].end_offset

    @property
    def bases(self) -> list[int]:
        return [one.base_offset for one in self.segments]

    @property
    def replaces(self) -> bool:
        """Whether the copy is anything else than what is there."""
        return self.changed or len(self.segments) > 1

    @property
    def cleaned(self) -> str:
        """The file that their copy is written to."""
        return f"{self.segments[0].path}.log.cleaned"


@dataclass(slots=True)
class _Chosen:
    """Which records of a batch stay; few objects, however many records.

    `bounds` are the beginnings and ends of their pieces, in turn; `latest` is the highest of their
    distances to the base timestamp.
    """

    bounds: list[int] = field(default_factory=list)
    count: int = 0
    latest: int = -(1 << 63)
    tombstones: int = 0
    without_key: int = 0


class Compaction:
    """One cleaning of one log: `map_keys`, then for each group `open_copy`, `copy`, `put`,
    `put_away`, `finish` and `tidy`; `discard` where `put` is not reached or returns False.

    Args:
        last_offset: returns the last offset that an idempotent producer wrote, by its id.

    Raises:
        OSError: from every method.
        DamagedBlockError: from steps that meet damage in a segment.
        CorruptBatch: from `copy`; the copy was damaged on its way to the disk.
    """

    def __init__(
        self,
        disk: Disk,
        kept: SegmentedLog,
        dirty: Dirty,
        rules: Rules,
        now: WallMs,
        last_offset: Callable[[int], int | None],
    ) -> None:
        self.end = dirty.start  # the map knows every record below it
        self.tally = Tally()
        self._disk = disk
        self._log = kept
        self._dirty = dirty
        self._rules = rules
        self._now = now
        self._last_offset = last_offset
        self._last_offsets = KeyMap()
        self._segments = [
            one for one in kept.segments() if one.sealed and one.base_offset < dirty.end
        ]
        self._left = self._segments

    def map_keys(self) -> Steps:
        """Learn the last offset of every key of the dirty part, as far as memory goes.

        A segment of which the map has a part is read to its end, where its digests are compared: by
        what the map has of it, records of earlier segments go before it is copied.
        """
        room = self._rules.map_bytes
        offsets, end = self._last_offsets, self._dirty.end
        for segment in self._segments:
            if segment.end_offset <= self._dirty.start or segment.base_offset >= end:
                continue
            is_mapped = False
            for header, data in self._batches(segment):
                if header.base_offset < end:
                    found = yield from self._keys(header, data)
                    fresh = [key for key in found if key not in offsets]
                    room -= sum(map(len, fresh)) + len(fresh) * _KEY_OVERHEAD_BYTES
                    if room < 0 and offsets:
                        end = header.base_offset
                        if not is_mapped:
                            break  # the rest would be read for nothing
                    else:
                        offsets.update(found.items())
                        is_mapped = is_mapped or bool(found)
                yield
        self.end = end

    def forget_keys(self) -> Steps:
        """Give the memory back that the keys took, when the work is done."""
        yield from self._last_offsets.forget()

    def groups(self) -> list[Group]:
        """The segments below the end of the map, together as long as they fit in one."""
        grouped: list[list[SegmentInfo]] = []
        size = 0
        for one in self._segments:
            if one.base_offset >= self.end:
                break
            fits = grouped and size + one.size <= self._rules.segment_bytes
            if fits and one.end_offset - grouped[-1][0].base_offset <= _OFFSETS_PER_SEGMENT_MAX:
                grouped[-1].append(one)
                size += one.size
            else:
                grouped.append([one])
                size = one.size
        return [Group(segments) for segments in grouped]

    def open_copy(self, group: Group) -> File:
        """An empty file for the copy of a group; for a thread."""
        with self._log.in_folder():
            self._disk.remove(group.cleaned)
            return self._disk.open(group.cleaned)

    def copy(self, group: Group, copy: File) -> Steps:
        """Write what stays of a group, sync it, and let the log read it."""
        waiting = bytearray()
        for segment in group.segments:
            for header, data in self._batches(segment):
                waiting += yield from self._left_of(header, data, group)
                if len(waiting) >= _WRITE_BYTES:
                    group.tally.bytes_after += len(waiting)
                    copy.append(waiting)
                    waiting = bytearray()
                yield
            group.tally.bytes_before += segment.size
        group.tally.bytes_after += len(waiting)
        copy.append(waiting)
        if group.replaces:
            copy.sync()
            yield
            self._log.prepare(group.bases, group.cleaned)

    def put(self, group: Group) -> bool:
        """Put a finished copy in its segments' place; False when those are there no more.

        `put_away` and `finish` follow, else `discard`.
        """
        if not self._is_there(group.segments):
            return False
        if group.replaces and not self._log.take_place(group.bases):
            return False
        _add(self.tally, group.tally)
        self._left = self._left[len(group.segments) :]
        return True

    def put_away(self, group: Group) -> None:
        """Rename the files of replaced segments, or remove a useless copy; for a thread."""
        if group.replaces:
            group.replaced = self._log.put_away_replaced()
        else:
            self._remove_copy(group)

    def finish(self, group: Group) -> None:
        """Let the copy have the name of its first segment."""
        if group.replaces:
            self._log.finish_replacement(group.replaced)

    def tidy(self, group: Group) -> None:
        """Remove what only an unfinished replacement needs; for a thread."""
        if group.replaces:
            self._log.remove_staged_checksums()

    def discard(self, group: Group) -> None:
        """Remove a copy that was not put in its place; for a thread."""
        self._log.discard_replacement()
        self._remove_copy(group)

    def _remove_copy(self, group: Group) -> None:
        with self._log.in_folder():
            self._disk.remove(group.cleaned)

    @property
    def overtaken(self) -> bool:
        """Whether segments that were to be read are there no more."""
        return not self._is_there(self._left)

    def _is_there(self, segments: Sequence[SegmentInfo]) -> bool:
        """Whether the log still has these segments as they were."""
        there = {one.base_offset: one for one in self._log.segments()}
        return all(there.get(one.base_offset) == one for one in segments)

    def segment_at(self, path: str) -> Segment | None:
        """Return the segment of the log whose file stands at `path`, None without one."""
        return self._log.segment_at(path)

    # ---- reading

    def _batches(self, segment: SegmentInfo) -> Iterator[tuple[BatchHeader, bytes]]:
        """The batches of a segment, read in pieces, their checksums and offsets found right.

        No checksum of a batch covers its offset, by which older values of its keys would go. Where
        compaction left a gap before, a damaged one may fit; the digests of the segment tell.

        Raises: DamagedBlockError; OSError.
        """
        path = segment.file_path
        data, start, offset = b"", 0, 0
        following = segment.base_offset  # the lowest offset that the next batch may have
        read = BlockDigests()
        while offset < segment.size:
            try:
                position = offset - start
                if len(data) - position < HEADER_BYTES:
                    data, start, position = self._read(path, _READ_BYTES, offset), offset, 0
                header = batches.read_header(data, position)
                if header.size > segment.size - offset:
                    raise CorruptBatch(f"a batch of {header.size} bytes goes past the end")
                if len(data) - position < header.size:
                    count = max(_READ_BYTES, header.size)
                    data, start, position = self._read(path, count, offset), offset, 0
                batches.verify(data, position, header)
                _require_place(header, following, segment)
            except CorruptBatch as damage:
                raise _damaged(path, str(damage), offset) from damage
            following = header.last_offset + 1
            read.add(offset, header.base_offset, header.leader_epoch, header)
            yield header, data[position : position + header.size]
            offset += header.size
        written = checksums.load(self._disk, segment.path)
        # They are not written, or a later segment has the path.
        if written is not None and written.summary.size == segment.size:
            differing = written.blocks.differing(read)
            if differing is not None:
                raise _damaged(path, MOVED, differing)
        if following != segment.end_offset:
            problem = f"the last offset is {following - 1}, and was {segment.end_offset - 1}"
            raise DamagedBlockError(CorruptFileError(path, problem))

    def _read(self, path: str, count: int, position: int) -> bytes:
        """Raises: DamagedBlockError for a missing file; OSError."""
        try:
            return self._disk.read(path, count, position)
        except FileNotFoundError as error:
            raise DamagedBlockError(CorruptFileError(path, MISSING)) from error

    def _keys(self, header: BatchHeader, data: bytes) -> Generator[None, None, dict[bytes, int]]:
        """Read the keys of a batch, with the last offset of each.

        A batch that cannot be decoded adds none, and so does one whose keys take more memory than
        those of one batch may: older values of them stay.
        """
        found: dict[bytes, int] = {}
        room = _BATCH_KEYS_BYTES_MAX
        if header.is_control:
            return found
        try:
            body = bytes(batches.payload(data, 0, header))
            for number, one in enumerate(scan(body, header)):
                if one.key is not None and one.offset >= self._dirty.start:
                    if one.key not in found:
                        room -= len(one.key) + _KEY_OVERHEAD_BYTES
                    if room < 0:
                        raise CorruptBatch(f"keys of more than {_BATCH_KEYS_BYTES_MAX} bytes")
                    found[one.key] = one.offset
                if number % _RECORDS_PER_STEP == 0:
                    yield
        except CorruptBatch:
            found.clear()
        return found

    # ---- deciding

    def _left_of(
        self, header: BatchHeader, data: bytes, group: Group
    ) -> Generator[None, None, bytes]:
        """What stays of a batch; nothing, or the batch as it is, or one with fewer records.

        The broker checks the checksum of a batch and not what a producer put inside: what makes no
        sense stays as it is.
        """
        if header.is_control:
            return data
        tally = group.tally
        tally.records_before += header.record_count
        try:
            body = bytes(batches.payload(data, 0, header))
            chosen = yield from self._choose(header, body)
        except CorruptBatch:
            tally.unreadable += header.record_count
            tally.records_after += header.record_count
            return data
        tally.records_after += chosen.count
        tally.without_key += chosen.without_key
        horizon = self._horizon(header, chosen)
        if not chosen.count:
            left = without_records(header) if self._must_stay(header, group) else b""
        elif chosen.count < header.record_count or horizon is not None:
            bounds = zip(chosen.bounds[::2], chosen.bounds[1::2], strict=True)
            kept = b"".join(body[start:end] for start, end in bounds)
            if horizon is not None:
                kept = yield from self._moved(header, kept, chosen.count, horizon)
            left = with_records(header, kept, chosen.count, chosen.latest, horizon=horizon)
        else:
            return data
        group.changed = group.changed or left != data
        return left

    def _choose(self, header: BatchHeader, body: bytes) -> Generator[None, None, _Chosen]:
        """Which records of a batch stay. Raises: CorruptBatch."""
        chosen = _Chosen()
        bounds = chosen.bounds
        for number, one in enumerate(scan(body, header)):
            if self._stays(header, one):
                if bounds and bounds[-1] == one.start:
                    bounds[-1] = one.end
                else:
                    bounds += (one.start, one.end)
                chosen.latest = max(chosen.latest, one.timestamp_delta)
                chosen.count += 1
                chosen.tombstones += one.is_tombstone
            elif one.key is None:
                chosen.without_key += 1
            if number % _RECORDS_PER_STEP == 0:
                yield
        return chosen

    def _moved(
        self, header: BatchHeader, kept: bytes, count: int, horizon: int
    ) -> Generator[None, None, bytes]:
        pieces: list[bytes] = []
        for one in scan(kept, header._replace(record_count=count)):
            pieces.append(moved(kept, one, header.base_timestamp - horizon))
            if len(pieces) % _RECORDS_PER_STEP == 0:
                yield
        return b"".join(pieces)

    def _must_stay(self, header: BatchHeader, group: Group) -> bool:
        """Whether a batch is needed even without records."""
        return header.last_offset + 1 == group.end_offset or (
            header.producer_id >= 0 and self._last_offset(header.producer_id) == header.last_offset
        )

    def _stays(self, header: BatchHeader, one: Found) -> bool:
        if one.offset >= self.end:
            return True
        if one.key is None or self._last_offsets.get(one.key, one.offset) > one.offset:
            return False
        horizon = header.delete_horizon
        return not one.is_tombstone or horizon is None or self._now < horizon

    def _horizon(self, header: BatchHeader, chosen: _Chosen) -> int | None:
        """When the tombstones of a batch may go, told once: when it first becomes clean."""
        if header.delete_horizon is not None or header.last_offset >= self.end:
            return None
        if not chosen.tombstones:
            return None
        return min(self._now + self._rules.delete_retention_ms, _HORIZON_MAX)


def _require_place(header: BatchHeader, following: int, segment: SegmentInfo) -> None:
    """Check what no checksum of a batch covers. Raises: CorruptBatch."""
    if not following <= header.base_offset <= header.last_offset < segment.end_offset:
        raise CorruptBatch(
            f"a batch of offsets {header.base_offset} to {header.last_offset}, and "
            f"{following} to {segment.end_offset - 1} are left"
        )
    # A segment of a format 0 folder is opened by its indexes, which do not have the epoch.
    if header.leader_epoch != LEADER_EPOCH:
        raise CorruptBatch(f"leader epoch {header.leader_epoch} at offset {header.base_offset}")


def _damaged(path: str, problem: str, position: int) -> DamagedBlockError:
    return DamagedBlockError(CorruptFileError(path, problem, position=position))


def _add(total: Tally, more: Tally) -> None:
    for name in Tally.__slots__:
        setattr(total, name, getattr(total, name) + getattr(more, name))
