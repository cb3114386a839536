"""Telling a damaged segment from a whole one that stands under the name of another.

A repair keeps the intact batches of a damaged segment, and recovers those whose offset is damaged.
Of a file that was exchanged with another one, that would put records of another log, or of
another place in the log, where clients read them. Batches do not name their log, so the identity of
a file comes from its `.checksums`, which are bound to the path, or from its offsets.
"""

from headrace.log import checksums
from headrace.log.api import Disk
from headrace.log.checksums import Checksums
from headrace.log.index import SegmentIndex
from headrace.log.segment import Segment
from headrace.wire import batches
from headrace.wire.batches import HEADER_BYTES, CorruptBatch

_INTERVAL_BYTES = 1 << 30  # no index is of interest here


def is_foreign(disk: Disk, path: str, end_offset: int | None) -> bool:
    """Return whether a segment file is a whole one of another segment.

    A file with a damaged batch is taken for its own. Where there are checksums, a whole file is
    foreign if they know neither its last batch nor a block of it, and the time index does not
    fit; so a file of less than 256 KiB without an entry there, cut exactly behind a batch, counts
    as foreign. Without checksums, it is foreign if it has several batches, and none of them lies
    between its name and `end_offset`.

    Args:
        path: the segment file, which may be missing.
        end_offset: the offset of the next segment, None where no segment follows.

    Raises: OSError.
    """
    if not disk.exists(path):
        return False
    folder, _, name = path.rpartition("/")
    stem, base = path.removesuffix(".log"), int(name.removesuffix(".log"))
    index = SegmentIndex.load(disk, stem, base, _INTERVAL_BYTES)
    times = dict(index.times()) if index is not None else {}
    try:
        first = batches.read_header(disk.read(path, HEADER_BYTES, 0)).base_offset
    except CorruptBatch:
        return False
    segment = Segment(disk, folder, first, _INTERVAL_BYTES, file_path=path)
    count = inside = timed = 0
    try:
        for header in segment.check(disk.size(path)):
            count += 1
            is_below = end_offset is None or header.last_offset < end_offset
            inside += header.base_offset >= base and is_below
            timed += times.get(header.last_offset) == header.max_timestamp
        written = checksums.load(disk, stem)
        if written is None:
            return count > 1 and not inside
        expected = sum(offset < segment.end_offset for offset in times)
        return not 0 < timed == expected and not _is_known(segment, written)
    except CorruptBatch:
        return False
    finally:
        segment.release()


def _is_known(segment: Segment, written: Checksums) -> bool:
    """Return whether checksums know the batch at the end that they name, or a block of batches."""
    summary, found = written.summary, segment.digests
    if summary.last_position < segment.size:
        try:
            if segment.header_at(summary.last_position).crc == summary.last_crc:
                return True
        except CorruptBatch:
            pass
    return not set(written.blocks.entries).isdisjoint(found.entries)
