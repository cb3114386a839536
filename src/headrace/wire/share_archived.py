"""ListArchivedRecords (20907) and ClearArchivedRecords (20908), of Headrace's own.

What a share group archived without a dead letter, run by run, and the administrator's word that it
was seen. A run has a number that rises with all that is listed in its share-partition; a list is
told in pages, each going on behind a number, and cleared through one. Messages are flexible
(compact types, request header 2, response header 1), version 0. The keys stand beside those of the
lease API (`wire/leases.py`).
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

from headrace.wire.structs import Int8, Int16, Int32, Int64, MaybeText, Struct, Text

VERSION = 0
RUNS_MAX = 5_000  # in one answer
BYTES_MAX = 1 << 20  # of runs and their texts; the last of them may exceed it


class ArchivedApi(IntEnum):
    """API keys."""

    LIST = 20907
    CLEAR = 20908


@dataclass(frozen=True, slots=True)
class Place(Struct):
    """A run of a share-partition; with number 0 none, and before all others."""

    topic: Text
    partition: Int32
    number: Int64 = 0


@dataclass(frozen=True, slots=True)
class ListArchivedRequest(Struct):
    """The list of a group, in all topics when none are named; what comes behind `after`.

    At most `runs_max` runs are told, and never more than `RUNS_MAX`.
    """

    KEY: ClassVar[int] = ArchivedApi.LIST

    group: Text
    topics: tuple[Text, ...] = ()
    after: Place = Place("", -1)
    runs_max: Int32 = RUNS_MAX


@dataclass(frozen=True, slots=True)
class Run(Struct):
    """Records `first` to `last`, both included, archived after so many deliveries.

    `member` had them last, "" where nobody had; `archived_at` is ms since 1970, of the last of
    them.
    """

    BYTES: ClassVar[int] = 48

    number: Int64
    first: Int64
    last: Int64
    delivery_count: Int16
    archived_at: Int64
    reason: Text
    member: Text


@dataclass(frozen=True, slots=True)
class Partition(Struct):
    """Some runs of a share-partition, oldest first.

    Records below `log_start` are gone from the log; -1 where it cannot be opened. `dropped` counts
    older records that the list had no room for.
    """

    topic: Text
    partition: Int32
    log_start: Int64
    dropped: Int64
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class ListArchivedResponse(Struct):
    """Partitions by topic and number; `more` is 1 when there are runs behind these.

    `error_code` is 69 GROUP_ID_NOT_FOUND when there is no such share group, 24 for a name that is
    none, 42 for numbers that make no sense, 15 when the journal cannot be written.
    """

    error_code: Int16
    error_message: MaybeText
    partitions: tuple[Partition, ...] = ()
    more: Int8 = 0


@dataclass(frozen=True, slots=True)
class ClearArchivedRequest(Struct):
    """Clear the list of each share-partition through the run named, and what it had to drop."""

    KEY: ClassVar[int] = ArchivedApi.CLEAR

    group: Text
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class ClearArchivedResponse(Struct):
    """As a list's; a topic that is gone has no list, which is no error."""

    error_code: Int16
    error_message: MaybeText
