"""Up to where each log was compacted: Kafka's file `cleaner-offset-checkpoint`, sealed.

A line with the version 0, one with the number of entries, then an entry a line: topic, partition,
offset. The file is derived: where it does not verify, logs are compacted from their start.
Source: CheckpointFile, OffsetCheckpointFile, LogCleanerManager (4.3).
"""

import logging
from collections.abc import Mapping

from headrace.log import small_files
from headrace.log.api import CorruptFileError, Disk
from headrace.log.checkpoints import parsed_offsets

log = logging.getLogger("headrace.log")

FILE = "cleaner-offset-checkpoint"
_VERSION = "0"

Offsets = Mapping[tuple[str, int], int]
"""First dirty offset by topic and partition."""


def read_checkpoint(disk: Disk) -> Offsets:
    """Read the file; nothing, and a WARNING line, where it does not verify. Raises: OSError."""
    if not disk.exists(FILE):
        return {}
    try:
        return parsed_offsets(small_files.read_file(disk, FILE, unsealed=True).text, FILE)
    except CorruptFileError as error:
        log.warning("%s: %s; logs are compacted from their start", FILE, error.problem)
        return {}


def write_checkpoint(disk: Disk, offsets: Offsets) -> None:
    """Replace the file. Raises: OSError."""
    lines = [_VERSION, str(len(offsets))]
    lines += [f"{topic} {index} {offset}" for (topic, index), offset in sorted(offsets.items())]
    small_files.write_file(disk, FILE, "".join(f"{line}\n" for line in lines))
