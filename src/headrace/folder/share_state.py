"""Restoring share-partitions of which a damaged journal has updates, and no snapshot any more.

A broker refuses such a journal, as it cannot know the contents of the snapshot. An update has the
SPSO of its time and the states of some records; all others from the SPSO on count as not delivered.
So records may be delivered again, and none is lost.
"""

from collections.abc import Sequence
from contextlib import closing
from typing import Any, cast

from headrace.core.machine import Entry, encoded
from headrace.core.shard import ShareShard
from headrace.core.shard_words import PartitionKept
from headrace.core.share_words import ShareKey
from headrace.core.types import WallMs
from headrace.log.api import Disk
from headrace.log.opening import DELETED
from headrace.log.record_codec import ShareJournal
from headrace.log.repair import set_aside
from headrace.log.segments import SegmentedLog
from headrace.wire import batches

_READ_BYTES = 1 << 20


def restore_share_partitions(
    disk: Disk, folder: str, start: int, now: WallMs
) -> tuple[list[ShareKey], list[str]]:
    """Append snapshots of the share-partitions that a journal has only updates of.

    Segments that compaction has replaced may have what was lost: they are set aside, as opening
    the log would remove them.

    Args:
        folder: of the journal, whose batches are intact.
        start: the offset that the journal begins at.

    Returns: the share-partitions, and the new names of replaced segments.

    Raises: CorruptLog; Malformed for a record that is not understood; OSError.
    """
    shard = ShareShard(cast(Any, None))  # which decides nothing here
    codec = ShareJournal(shard, pruned=True, founding=True)
    replaced = [name for name in disk.list(folder) if name.endswith(f".log{DELETED}")]
    copies = [set_aside(disk, f"{folder}/{name}") for name in sorted(replaced)]
    with closing(SegmentedLog(disk, folder, start_offset=start)) as log:
        offset = log.start_offset
        while offset < log.end_offset:
            piece = log.read(offset, _READ_BYTES)
            for _, key, value in batches.entries(piece.data):
                for event in codec.events(key, value):
                    shard.apply(event)
            offset = piece.headers[-1].last_offset + 1
        restored = sorted(codec.unfounded)
        for share in restored:
            # One batch: a snapshot goes on in updates, and a kill must not leave it without them.
            _append(log, encoded(codec.records([PartitionKept(share)], now)), now)
        log.settle()
    return restored, copies


def _append(log: SegmentedLog, entries: Sequence[Entry], now: WallMs) -> None:
    data, header = batches.build_with_header([batches.Record(0, now, *one) for one in entries])
    log.append(data, [header])
