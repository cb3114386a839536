"""Which topic a partition's folder belongs to: Kafka's file `partition.metadata`, sealed.

Source: PartitionMetadataFile (4.3).
"""

import re
from typing import NamedTuple

from headrace.log import small_files
from headrace.log.api import CorruptFileError, Disk, NewerFormatError
from headrace.log.manifest import METADATA

_VERSION = 0
_TEXT = re.compile(r"version: (\d{1,9})\ntopic_id: ([\w-]+)\n")


class Metadata(NamedTuple):
    """The topic id in base64, as Kafka writes it; `is_sealed` is False in a format 0 folder."""

    topic_id: str
    is_sealed: bool


def read(disk: Disk, folder: str, *, unsealed: bool = False) -> Metadata:
    """Read the file of a partition.

    Args:
        unsealed: accept a file without a checksum.

    Raises: CorruptFileError; NewerFormatError.
    """
    path = f"{folder}/{METADATA}"
    found = small_files.read_file(disk, path, unsealed=unsealed)
    fields = _TEXT.fullmatch(found.text)
    if fields is None:
        raise CorruptFileError(path, "the file names no topic id")
    if int(fields[1]) > _VERSION:
        raise NewerFormatError(path, fields[1])
    return Metadata(fields[2], found.is_sealed)


def write(disk: Disk, folder: str, topic_id: str) -> None:
    """Write the file durably. Raises: OSError."""
    text = f"version: {_VERSION}\ntopic_id: {topic_id}\n"
    small_files.write_file(disk, f"{folder}/{METADATA}", text)
