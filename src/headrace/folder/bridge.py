"""Rewriting a damaged segment: every batch that is intact stays, and no offset goes missing.

What cannot be read is replaced by an empty batch over its offsets, as compaction leaves one:
readers pass over it, and the offsets behind it stay what they were. Where only the parts of a
header are damaged that follow from its place in the log (offset, size, epoch, magic), the batch is
recovered. Compaction leaves gaps: a batch with a damaged offset and room for others beside it could
stand at several offsets, and is lost. Where the offsets of two intact batches contradict each other
and either batch could stand elsewhere, both are lost: no record may get a wrong offset, as far as
the batches beside it are intact.

In the segment that was written to last compaction has left no gap, but no segment ends it: behind a
damaged batch, a damaged offset can be far too high and still plausible. There the next two batches
show whether an offset is right, or the next one and the end of the log by its recovery point. A
segment that is only the last one left may have gaps, and counts as one that others follow.
"""

from collections.abc import Iterator
from typing import NamedTuple

from headrace.log import checksums, damage
from headrace.log.api import Disk, File
from headrace.log.index import INDEX_SUFFIXES
from headrace.log.opening import CLEANED
from headrace.log.repair import set_aside
from headrace.wire import batches
from headrace.wire.batches import HEADER_BYTES, MAGIC, BatchHeader, CorruptBatch

_EPOCH = 0
_MAGIC_AT = 16
_DELTA_MAX = (1 << 31) - 1
_BATCH_BYTES_MAX = 1 << 28


class Bridged:
    """What a rewrite did: its copy of the old file, and the offsets that were lost."""

    def __init__(self) -> None:
        self.copy: str | None = None
        self.unfinished: str | None = None  # new name of a file that a compaction left half made
        self.size = 0
        self.end_offset = 0
        self.lost: list[tuple[int, int]] = []  # first and last offset
        self.is_end_lost = False  # the last bytes of the file are damaged or missing
        self.has_gaps = False  # compaction left gaps between the batches


class _Limits(NamedTuple):
    """Offsets below which the batches of a segment end; None where no limit is known.

    Args:
        segment_end: the limit of every batch.
        known_end: the limit of batches in the first `known_bytes` of the file.
    """

    segment_end: int | None
    known_end: int | None = None
    known_bytes: int = 0

    def at(self, position: int) -> int | None:
        """Return the limit of a batch at `position`."""
        return self.known_end if position < self.known_bytes else self.segment_end


class _Places:
    """Where the batches of a file are whose checksum is right; read when it is first needed."""

    def __init__(self, source: File, base_offset: int) -> None:
        self._source, self._base_offset = source, base_offset
        self._found: dict[tuple[int, int], list[int]] | None = None

    def has_another(self, position: int, header: BatchHeader) -> bool:
        """Return whether the file has the batch at `position` in another place, too."""
        if self._found is None:
            self._found = self._read()
        return any(at != position for at in self._found.get((header.size, header.crc), ()))

    def _read(self) -> dict[tuple[int, int], list[int]]:
        found: dict[tuple[int, int], list[int]] = {}
        size, position = self._source.size(), 0
        while position < size:
            header = _verified_header(self._source, position)
            if header is None:
                pread = self._source.pread
                following = damage.next_batch(pread, position + 1, size, self._base_offset)
                position = size if following is None else following
            else:
                found.setdefault((header.size, header.crc), []).append(position)
                position += header.size
        return found


def bridge(
    disk: Disk,
    path: str,
    base_offset: int,
    end_offset: int | None,
    *,
    is_last: bool = False,
    known_bytes: int = 0,
) -> Bridged:
    """Rewrite a segment; a copy of the old file is kept, and what a compaction began to write.

    Its indexes are removed, and its checksums are emptied. The caller removes the empty file once
    it is durable that the log ends there, if it does: until then a repair that is repeated has to
    see that there were checksums.

    Args:
        path: the segment file, which may be missing.
        end_offset: the offset of the next segment, or the known end of the log; None where the
            log ends with its last intact batch.
        is_last: the segment was written to last, so that it has no gaps, and may go on beyond
            `end_offset`.
        known_bytes: where `is_last`, the bytes of the file, from its start, that had all offsets
            up to `end_offset` and none beyond it when the file was sound; 0 where none are known.

    Raises: OSError, and the old file is still there, or the new one in its place.
    """
    found, new = Bridged(), f"{path}{CLEANED}"
    limits = _Limits(base_offset + _DELTA_MAX if end_offset is None else end_offset)
    if is_last:
        limits = _Limits(base_offset + _DELTA_MAX, end_offset, known_bytes)
    if disk.exists(new):  # it may have records that are damaged in the segment
        found.unfinished = set_aside(disk, new)
    out = disk.open(new)
    try:
        if disk.exists(path):
            source = disk.open(path)
            try:
                _copy(source, out, base_offset, limits, found, is_last=is_last)
            finally:
                source.close()
        else:
            found.end_offset, found.is_end_lost = base_offset, True
        found.is_end_lost |= end_offset is not None and end_offset > found.end_offset
        _fill(out, end_offset, found)
        out.sync()
        found.size = out.size()
    finally:
        out.close()
    if disk.exists(path):  # copied, not renamed: a kill here must leave the intact batches
        found.copy = damage.keep_copy(disk, path, 0, disk.size(path))
    _empty_derived_files(disk, path.removesuffix(".log"))
    disk.rename(new, path)
    return found


def _empty_derived_files(disk: Disk, stem: str) -> None:
    """Let derived files of a segment show nothing of its contents any more.

    Checksums go first: after a kill amid this, no index and no digest may make the file, old or
    new, count as that of another segment.
    """
    if disk.exists(stem + checksums.SUFFIX):
        disk.write(stem + checksums.SUFFIX, b"")
    for suffix in INDEX_SUFFIXES:
        if disk.exists(stem + suffix):
            disk.remove(stem + suffix)


def empty_batches(first: int, end: int) -> Iterator[bytes]:
    """Yield batches without records over the offsets [first, end)."""
    while first < end:
        delta = min(end - first - 1, _DELTA_MAX)
        header = BatchHeader(first, 0, _EPOCH, MAGIC, 0, 0, delta, -1, -1, -1, -1, -1, 0)
        yield batches.seal(header, b"")
        first += delta + 1


def _copy(
    source: File,
    out: File,
    base_offset: int,
    limits: _Limits,
    found: Bridged,
    *,
    is_last: bool,
) -> None:
    size, position = source.size(), 0
    found.end_offset = base_offset
    damaged, places = False, _Places(source, base_offset) if is_last else None
    while position < size:
        expected = found.end_offset + damaged  # a damaged batch has at least the first offset
        batch = _intact(source, position, size, expected, limits.segment_end)
        is_right: bool | None = None
        if batch is not None and is_last:
            # No compaction left a gap here: an offset behind an intact batch follows from that.
            is_right = (
                _is_right(source, position, expected, limits)
                if damaged
                else _base_offset(batch) == expected
            )
            batch = None if is_right is False else batch
        begin = position + 1
        if batch is not None and not is_right:
            doubtful_end = _doubtful_end(source, position, size, expected, limits.segment_end)
            if doubtful_end > position:
                batch, begin = None, doubtful_end
        if batch is None:
            following = damage.next_batch(source.pread, begin, size, found.end_offset)
            # Only of the end of a log compaction has removed nothing.
            end_offset = limits.at(position)
            limit = None if is_last and not damaged else _limit(source, following, end_offset)
            batch = _recovered(source, position, following or size, expected, limit, places)
            damaged = damaged or batch is None
            if batch is None and following is None:
                found.is_end_lost = True
                break
        if batch is None:
            assert following is not None
            position = following
            continue
        header = batches.read_header(batch)
        if damaged:
            _fill(out, header.base_offset, found)
            damaged = False
        found.has_gaps |= header.base_offset > found.end_offset
        out.append(batch)
        found.end_offset = header.last_offset + 1
        position += header.size


def _intact(
    source: File, position: int, size: int, expected: int, end_offset: int | None
) -> bytes | None:
    """Return the batch at `position` if it is one that can stand there."""
    try:
        header = batches.read_header(source.pread(HEADER_BYTES, position))
        if header.size > min(size - position, _BATCH_BYTES_MAX):
            return None
        data = source.pread(header.size, position)
        batches.verify(data, 0, header)
    except CorruptBatch:
        return None
    is_placed = header.base_offset >= expected and header.leader_epoch == _EPOCH
    fits = end_offset is None or header.last_offset < end_offset
    return data if is_placed and fits and header.last_offset_delta >= 0 else None


def _is_right(source: File, position: int, expected: int, limits: _Limits) -> bool | None:
    """Return whether an intact batch of the last segment, behind a damaged one, has its offset.

    Returns: None where nothing shows it.
    """
    header = batches.read_header(source.pread(HEADER_BYTES, position))
    limit = limits.at(position)
    # Without a gap it is no evidence: a killed repair may have moved the bytes of the batch.
    if header.base_offset > expected and limit is not None and header.last_offset >= limit:
        return False
    end, behind = header.last_offset + 1, position + header.size
    if behind == limits.known_bytes:
        return end == limits.known_end
    following = _verified_header(source, behind)
    if following is None:
        return None
    if following.base_offset == end:
        return True
    # One of the two offsets is damaged.
    behind += following.size
    next_end = limits.known_end
    if behind != limits.known_bytes:
        second = _verified_header(source, behind)
        next_end = None if second is None else second.base_offset
    if next_end == following.last_offset + 1:
        # Too low an offset is that of an old batch that was written here: it shows nothing.
        return False if following.base_offset > expected + header.last_offset_delta else None
    return True if next_end == end + following.last_offset_delta + 1 else None


def _verified_header(source: File, position: int) -> BatchHeader | None:
    """Return the header of the batch at `position` if its checksum is right."""
    data = _intact(source, position, source.size(), 0, None)
    return None if data is None else batches.read_header(data)


def _doubtful_end(
    source: File, position: int, size: int, expected: int, end_offset: int | None
) -> int:
    """Return where the batches end, from the intact one at `position` on, that cannot be kept.

    An offset behind a gap may be damaged although it is plausible; the offset of the next batch
    shows it, unless that one is damaged. Only a batch that fits elsewhere can have a damaged
    offset: the first batch lower, or the next batch higher.

    Returns:
        `position` where the offset is right, the end of the batch where it is damaged, and the end
        of the next batch where either offset may be damaged.
    """
    header = batches.read_header(source.pread(HEADER_BYTES, position))
    if header.base_offset == expected:
        return position
    behind = position + header.size
    next_offset = _base_offset(source.pread(HEADER_BYTES, behind))
    if next_offset is None or next_offset > header.last_offset:
        return position
    if expected + header.last_offset_delta >= next_offset:
        return position
    data = _intact(source, behind, size, 0, None)
    if data is None:
        return position
    following = batches.read_header(data)
    end = behind + following.size
    limit = _limit(source, end if end < size else None, end_offset)
    is_second_right = (
        limit is not None and header.last_offset + following.last_offset_delta + 1 >= limit
    )
    return behind if is_second_right else end


def _recovered(
    source: File,
    position: int,
    end: int,
    expected: int,
    limit: int | None,
    places: _Places | None,
) -> bytes | None:
    """Return the bytes up to `end` as one batch, if its checksum says that they are one.

    Where another part of its place is damaged, its offset is taken for right. A damaged offset can
    be known only where no offset may be missing on either side of the batch. A batch that the file
    has twice may be an old one that was written here by mistake, and gets no other offset.

    Args:
        expected: the lowest offset that the batch can have.
        limit: the first offset behind the batch; None where it follows the batch before.
        places: the batches of the file; None where the next segment shows the offsets.
    """
    if not HEADER_BYTES <= end - position <= _BATCH_BYTES_MAX:
        return None
    data = bytearray(source.pread(end - position, position))
    offset, stamped = int.from_bytes(data[:8], "big", signed=True), bytearray(data)
    batches.stamp(stamped, 0, len(stamped), offset, _EPOCH)
    stamped[_MAGIC_AT] = MAGIC
    is_offset_damaged = stamped == data or limit is None
    if is_offset_damaged:
        batches.stamp(stamped, 0, len(stamped), expected, _EPOCH)
    try:
        header = batches.read_header(stamped)
        batches.verify(stamped, 0, header)
    except CorruptBatch:
        return None
    if header.last_offset_delta < 0:
        return None
    is_moved = header.base_offset != offset
    if is_moved and places is not None and places.has_another(position, header):
        return None
    if limit is None:
        fits = True
    elif is_offset_damaged:
        fits = header.last_offset + 1 == limit
    else:
        fits = header.base_offset >= expected and header.last_offset < limit
    return bytes(stamped) if fits else None


def _limit(source: File, following: int | None, end_offset: int | None) -> int | None:
    """Return the offset of the batch at `following`, at most that of the end of the segment."""
    if following is None:
        return end_offset
    offset = _base_offset(source.pread(HEADER_BYTES, following))
    return offset if offset is None or end_offset is None else min(offset, end_offset)


def _base_offset(head: bytes) -> int | None:
    try:
        return batches.read_header(head).base_offset
    except CorruptBatch:
        return None


def _fill(out: File, end: int | None, found: Bridged) -> None:
    if end is None or end <= found.end_offset:
        return
    found.lost.append((found.end_offset, end - 1))
    for data in empty_batches(found.end_offset, end):
        out.append(data)
    found.end_offset = end
