"""DescribeShareRecords (20906): what is in flight in a share group, of Headrace's own.

It is what KIP-932 leaves for later, "a browsing consumer which does not modify the share group
state or take acquisition locks", which needs no more than DESCRIBE of the group, and whose position
is its own. Nothing is changed by it, and nobody is woken. Runs are told instead of records, and
records are read by Fetch. The message is flexible (compact types, request header 2, response header
1), version 0. The key stands beside those of the lease API (`wire/leases.py`).
"""

import struct
from dataclasses import dataclass
from typing import Annotated, ClassVar, Self

from headrace.wire.primitives import Reader, Writer
from headrace.wire.structs import (
    Int8,
    Int16,
    Int32,
    Int64,
    MaybeText,
    Struct,
    Text,
    maybe_array,
)

KEY, VERSION = 20906, 0
RUNS_MAX = 2_000  # in one answer, which the broker makes in some 5 ms
BYTES_MAX = 1 << 20  # of runs, holders and reasons; the last of them may exceed it
TEXT_CHARS_MAX = 1_000  # of a reason or a name; the rest is not told
_RUN = struct.Struct(">qqbhiqqqi")


@dataclass(frozen=True, slots=True)
class PartitionCursor(Struct):
    """A partition, and the first offset of interest; what lies below SPSO is passed over."""

    partition: Int32
    offset: Int64


@dataclass(frozen=True, slots=True)
class TopicCursor(Struct):
    """A topic; without `partitions` all that the group reads of it, from SPSO on."""

    topic: Text
    partitions: Annotated[tuple[PartitionCursor, ...] | None, maybe_array(PartitionCursor)] = None


@dataclass(frozen=True, slots=True)
class DescribeShareRecordsRequest(Struct):
    """Look at a group; without `topics` at all that it reads.

    `states` are numbers of Kafka's delivery states, all of them when there are none. At most
    `runs_max` runs are told, and never more than `RUNS_MAX`; with 0 only how partitions are.
    """

    KEY: ClassVar[int] = KEY

    group: Text
    topics: Annotated[tuple[TopicCursor, ...] | None, maybe_array(TopicCursor)] = None
    states: tuple[Int8, ...] = ()
    runs_max: Int32 = RUNS_MAX


@dataclass(frozen=True, slots=True)
class Holder(Struct):
    """Who has acquired records, or had those that are archived last.

    `session` is that of a lease, `client_id` and `client_host` are those of a member as its last
    heartbeat told; all are null of a holder that is neither.
    """

    member: Text
    client_id: MaybeText = None
    client_host: MaybeText = None
    session: MaybeText = None


@dataclass(frozen=True, slots=True)
class Run(Struct):
    """Records `first` to `last`, both included, that share their whole state.

    `holder` (of archived records: who had them last) and `reason` (why they were archived) are
    indexes into the answer's, -1 for none. The acquisition lock ends in `lock_left_ms`, at
    `lock_until` on the broker's wall clock, on which the holder has the records since
    `acquired_at`; all three are -1 without a lock.
    """

    BYTES: ClassVar[int] = _RUN.size + 1

    first: Int64
    last: Int64
    state: Int8
    delivery_count: Int16
    holder: Int32 = -1
    lock_left_ms: Int64 = -1
    lock_until: Int64 = -1
    acquired_at: Int64 = -1
    reason: Int32 = -1

    def write(self, out: Writer) -> None:
        """As any struct, at once: an answer is runs most of all."""
        out.raw(
            _RUN.pack(
                self.first, self.last, self.state, self.delivery_count,
                self.holder, self.lock_left_ms, self.lock_until, self.acquired_at, self.reason,
            )
        )  # fmt: skip
        out.tags()

    @classmethod
    def read(cls, source: Reader) -> Self:
        found = cls(*source.unpack(_RUN))
        source.tags()
        return found


@dataclass(frozen=True, slots=True)
class Partition(Struct):
    """A share-partition: SPSO `start`, SPEO `end` (exclusive), its log, and some runs of it.

    All offsets are -1 where the group has not begun to read, and of the log where it cannot be
    opened. `records` counts those in flight by the number of their state, 0 to 4. `next_offset` is
    where to go on; at `end` there is nothing left to go on to.
    """

    topic: Text
    partition: Int32
    error_code: Int16
    error_message: MaybeText
    start: Int64 = -1
    end: Int64 = -1
    log_start: Int64 = -1
    high_watermark: Int64 = -1
    records: tuple[Int64, ...] = ()
    next_offset: Int64 = -1
    runs: tuple[Run, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribeShareRecordsResponse(Struct):
    """Partitions by topic and number; errors are those of DescribeShareGroupOffsets.

    `error_code` is 69 GROUP_ID_NOT_FOUND when there is no such share group, 24 for a name that is
    none, 42 for numbers that make no sense, 15 when the journal cannot be written. A partition's is
    3 when it does not exist, 56 when its log cannot be opened.
    """

    error_code: Int16
    error_message: MaybeText
    holders: tuple[Holder, ...] = ()
    reasons: tuple[Text, ...] = ()
    partitions: tuple[Partition, ...] = ()
