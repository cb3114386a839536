"""Quarantine: take damaged bytes out of a log without losing them.

For an operator who decided to go on without what is damaged, while no broker runs. Bytes are copied
beside their file, or files renamed, before anything is cut off; all copies end with `.torn` and a
position, and no start reads or removes them. A log is cut as a whole: what follows the damage goes
with it, as offsets must not be missing in between. A segment in which compaction left gaps stays a
sealed one: an empty segment follows it, as in the last segment a gap is damage.
"""

from headrace.log import damage, snapshots
from headrace.log.api import Disk
from headrace.log.checkpoints import remove_from_clean_mark
from headrace.log.index import remove_index
from headrace.log.recovery_point import UNKNOWN, Claim, RecoveryPoint, read_claim
from headrace.log.segment import Segment
from headrace.wire.batches import CorruptBatch

_INTERVAL_BYTES = 1 << 30  # no index is of interest here
_SUFFIX = ".log"


def cut_log(disk: Disk, folder: str, base_offset: int, position: int) -> list[str]:
    """Cut a log at a byte of a segment; later segments go, too.

    Args:
        folder: the folder of the log.
        base_offset: the segment.
        position: where a batch begins, at most the size of the segment's file.

    Returns: the paths of the copies.

    Raises: OSError; CorruptBatch where what is before `position` is damaged, too, and nothing has
        changed.
    """
    end_offset, has_gaps = _kept_offsets(disk, folder, base_offset, position)
    remove_from_clean_mark(disk, folder)
    copies: list[str] = []
    for base in reversed(segment_bases(disk, folder)):
        if base > base_offset:
            copies.append(set_aside(disk, f"{folder}/{base:020d}{_SUFFIX}"))
            remove_index(disk, f"{folder}/{base:020d}")
    path = f"{folder}/{base_offset:020d}{_SUFFIX}"
    size = disk.size(path)
    if position < size:
        copies.append(damage.keep_copy(disk, path, position, size))
    first_base = first_base_of(disk, folder, base_offset)
    claim = Claim(first_base, base_offset, position, end_offset)
    if has_gaps:  # first: after a kill in between, the gaps must not be in the last segment
        _truncate(disk, f"{folder}/{end_offset:020d}{_SUFFIX}", 0)
        claim = Claim(first_base, end_offset, 0, end_offset)
    _claim(disk, folder, claim)
    remove_index(disk, f"{folder}/{base_offset:020d}")  # else a cut file is not that of the digests
    _truncate(disk, path, position)
    for offset in snapshots.offsets(disk.list(folder)):
        if offset > end_offset:
            disk.remove(snapshots.path_of(folder, offset))
    return copies


def drop_log_head(disk: Disk, folder: str, first_base: int) -> list[str]:
    """Set the segments below `first_base` aside, so that the log begins there.

    Returns: the new paths of the files. Raises: OSError.
    """
    remove_from_clean_mark(disk, folder)
    bases = segment_bases(disk, folder)
    _, claim = read_claim(disk, folder)
    copies: list[str] = []
    for base in bases:
        if base < first_base:
            remove_index(disk, f"{folder}/{base:020d}")
            copies.append(set_aside(disk, f"{folder}/{base:020d}{_SUFFIX}"))
    # Last: a start removes what lies below the first offset of the claim.
    if first_base in bases and claim.base_offset != UNKNOWN:
        _claim(disk, folder, claim._replace(first_base=first_base))
    return copies


def set_aside(disk: Disk, path: str) -> str:
    """Rename a file or folder to a name that nothing reads; return the name. Raises: OSError."""
    name = damage.torn_name(disk, path, 0)
    disk.rename(path, name)
    return name


def segment_bases(disk: Disk, folder: str) -> list[int]:
    """Return the base offsets of the segments in a folder, ascending."""
    stems = (name.removesuffix(_SUFFIX) for name in disk.list(folder) if name.endswith(_SUFFIX))
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def first_base_of(disk: Disk, folder: str, base_offset: int) -> int:
    """Return the first segment of a log, by its recovery point where there is a claim.

    Segments that were given up may be in place again after a power cut, and stay given up.

    Args:
        base_offset: a segment of the log.

    Raises: OSError.
    """
    claimed = read_claim(disk, folder)[1].first_base
    known = segment_bases(disk, folder) if claimed == UNKNOWN else [claimed]
    return min([base_offset, *known])


def _claim(disk: Disk, folder: str, claim: Claim) -> None:
    """Replace the recovery point: what it claimed is given up."""
    RecoveryPoint(disk, folder).replace(claim)


def _truncate(disk: Disk, path: str, size: int) -> None:
    """Cut a file, durably; one that does not exist is created."""
    file = disk.open(path)
    try:
        file.truncate(size)
        file.sync()
    finally:
        file.close()


def _kept_offsets(disk: Disk, folder: str, base_offset: int, position: int) -> tuple[int, bool]:
    """Return the end of the batches before `position`, and whether offsets between them lack."""
    segment, has_gaps, expected = (
        Segment(disk, folder, base_offset, _INTERVAL_BYTES),
        False,
        base_offset,
    )
    try:
        for header in segment.check(position):
            has_gaps = has_gaps or header.base_offset != expected
            expected = header.last_offset + 1
    finally:
        segment.release()
    if segment.size != position:
        raise CorruptBatch(f"no batch begins at byte {position}")
    return segment.end_offset, has_gaps
