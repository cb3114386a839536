"""Up to where each log was compacted: Kafka's file `cleaner-offset-checkpoint`.

A line with the version 0, one with the number of entries, then an entry a line: topic, partition,
offset. What is lost with the file is compacted once more.
Source: CheckpointFile, OffsetCheckpointFile, LogCleanerManager (4.3).
"""

import logging
from collections.abc import Mapping

from headrace.log.api import Disk

log = logging.getLogger("headrace.log")

FILE = "cleaner-offset-checkpoint"
_VERSION = "0"

Offsets = Mapping[tuple[str, int], int]
"""First dirty offset by topic and partition."""


def read_checkpoint(disk: Disk) -> Offsets:
    """What the file says; nothing, and a warning, when it makes no sense. Raises: OSError."""
    if not disk.exists(FILE):
        return {}
    lines = disk.read(FILE).decode(errors="replace").splitlines()
    try:
        version, count, *entries = lines
        found = dict(_entry(line) for line in entries)
        if version != _VERSION or int(count) != len(found):
            raise ValueError(f"version {version} with {len(found)} of {count} entries")
    except ValueError as error:
        log.warning(
            "%s is damaged and ignored: %s; logs are compacted from their start", FILE, error
        )
        return {}
    return found


def write_checkpoint(disk: Disk, offsets: Offsets) -> None:
    """Replace the file. Raises: OSError."""
    lines = [_VERSION, str(len(offsets))]
    lines += [f"{topic} {index} {offset}" for (topic, index), offset in sorted(offsets.items())]
    disk.write(FILE, "".join(f"{line}\n" for line in lines).encode())


def _entry(line: str) -> tuple[tuple[str, int], int]:
    topic, index, offset = line.split(" ")
    return (topic, int(index)), int(offset)
