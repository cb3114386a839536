"""The lease API: Headrace's own message family beside Kafka's, for readers like a Spark query.

A lease holds ranges of records of a share group without carrying their payload. Its holder is a
*session* named by the reader (in Spark: kept in the checkpoint), so that a restarted reader is the
same holder. Acquisitions are numbered and idempotent, dispositions are staged under the number and
take effect with its commit. Keys stand far outside Kafka's own; stock clients ignore keys they do
not know. All messages are flexible (compact types, request header 2, response header 1), version 0.

Every response begins with an error code of Kafka's and a message for people: 110
FENCED_MEMBER_EPOCH when a newer driver opened the session, 25 UNKNOWN_MEMBER_ID when it was never
opened, 42 INVALID_REQUEST for a number out of order, 3 for an unknown topic.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, ClassVar

from headrace.wire.primitives import Malformed, Reader, Writer
from headrace.wire.structs import (
    Int8,
    Int16,
    Int32,
    Int64,
    Kind,
    MaybeText,
    Struct,
    Tagged,
    Text,
)

_LockMs = Annotated[int, Tagged(0, Kind(Reader.int32, Writer.int32))]


class LeaseApi(IntEnum):
    """API keys of the family."""

    OPEN = 20900
    ACQUIRE = 20901
    RENEW = 20902
    STAGE = 20903
    COMMIT = 20904
    DESCRIBE = 20905


class Verdict(IntEnum):
    """What becomes of a record; numbers are those of Kafka's acknowledge types."""

    ACCEPT = 1
    RELEASE = 2
    REJECT = 3


def _read_verdict(source: Reader) -> Verdict:
    code = source.int8()
    if code not in set(Verdict):
        raise Malformed(f"verdict {code} is not one of 1 accept, 2 release, 3 reject")
    return Verdict(code)


@dataclass(frozen=True, slots=True)
class Range(Struct):
    """Records `first` to `last` (both included) of a partition, on their n-th delivery."""

    topic: Text
    partition: Int32
    first: Int64
    last: Int64
    delivery_count: Int16


@dataclass(frozen=True, slots=True)
class Disposition(Struct):
    """What shall become of records `first` to `last` at the commit of their acquisition.

    Released records are delivered to nobody for `delay_ms` from the commit on.
    """

    topic: Text
    partition: Int32
    first: Int64
    last: Int64
    verdict: Annotated[Verdict, Kind(_read_verdict, Writer.int8)]
    reason: MaybeText = None
    delay_ms: Int64 = 0


@dataclass(frozen=True, slots=True)
class Call(Struct):
    """The head of every request of the family."""

    KEY: ClassVar[LeaseApi]

    group: Text
    session: Text
    epoch: Int32


@dataclass(frozen=True, slots=True)
class OpenRequest(Call):
    """Open the session, subscribed to `topics`; `epoch` is ignored (-1).

    `start` is where a topic new to the group begins: "latest" or "earliest".
    """

    KEY: ClassVar[LeaseApi] = LeaseApi.OPEN

    topics: tuple[Text, ...]
    start: Text


@dataclass(frozen=True, slots=True)
class OpenResponse(Struct):
    """The epoch to use from now on, and what the session still holds.

    `committed` is the last committed number (0 before the first), `lock_ms` how long locks last
    without a renewal, `outstanding` the numbers acquired and not committed.
    """

    error_code: Int16
    error_message: MaybeText
    epoch: Int32 = -1
    committed: Int64 = 0
    lock_ms: Int32 = 0
    outstanding: tuple[Int64, ...] = ()


@dataclass(frozen=True, slots=True)
class Bound(Struct):
    """Records of a partition below `end`."""

    topic: Text
    partition: Int32
    end: Int64


@dataclass(frozen=True, slots=True)
class AcquireRequest(Call):
    """Acquire at most `max_records` under the number `seq`, waiting up to `max_wait_ms` for one.

    Where there are `bounds`, only records below them, and of no other partition. Asked again with a
    number already acquired, the answer is the same ranges.
    """

    KEY: ClassVar[LeaseApi] = LeaseApi.ACQUIRE

    seq: Int64
    max_records: Int64
    max_wait_ms: Int32
    bounds: tuple[Bound, ...] = ()


@dataclass(frozen=True, slots=True)
class AcquireResponse(Struct):
    """The ranges held under the number, ascending; none when nothing was available in time.

    `lock_ms` is how long locks last that begin now; 0 from a broker that does not return it.
    """

    error_code: Int16
    error_message: MaybeText
    ranges: tuple[Range, ...] = ()
    lock_ms: _LockMs = 0


@dataclass(frozen=True, slots=True)
class RenewRequest(Call):
    """Restart the acquisition locks of all outstanding ranges of the session."""

    KEY: ClassVar[LeaseApi] = LeaseApi.RENEW


@dataclass(frozen=True, slots=True)
class RenewResponse(Struct):
    """How many outstanding records are still held, and how many went to others or expired.

    `lock_ms` is as that of `AcquireResponse`.
    """

    error_code: Int16
    error_message: MaybeText
    held: Int64 = 0
    lost: Int64 = 0
    lock_ms: _LockMs = 0


@dataclass(frozen=True, slots=True)
class StageRequest(Call):
    """Replace the dispositions staged under `seq` by `part`; they take effect at its commit.

    Each part, such as a task, stages on its own; of what several say of a record the strictest
    holds. What the drivers of older epochs staged under the number is dropped with the first part.
    """

    KEY: ClassVar[LeaseApi] = LeaseApi.STAGE

    seq: Int64
    dispositions: tuple[Disposition, ...]
    part: Text = ""


@dataclass(frozen=True, slots=True)
class StageResponse(Struct):
    """An error code, 0 when the dispositions are durable."""

    error_code: Int16
    error_message: MaybeText


@dataclass(frozen=True, slots=True)
class CommitRequest(Call):
    """Settle every number up to `seq`: as staged, the rest accepted. Idempotent."""

    KEY: ClassVar[LeaseApi] = LeaseApi.COMMIT

    seq: Int64


@dataclass(frozen=True, slots=True)
class CommitResponse(Struct):
    """Records settled by this call; `refused` were no longer held, their verdict had no effect."""

    error_code: Int16
    error_message: MaybeText
    accepted: Int64 = 0
    released: Int64 = 0
    rejected: Int64 = 0
    refused: Int64 = 0


@dataclass(frozen=True, slots=True)
class DescribeRequest(Call):
    """Look at the in-flight records of the group; session "" and epoch -1. Changes nothing."""

    KEY: ClassVar[LeaseApi] = LeaseApi.DESCRIBE


@dataclass(frozen=True, slots=True)
class InFlight(Struct):
    """A run of in-flight records: Kafka's state number, deliveries, the holder ("" for none)."""

    first: Int64
    last: Int64
    state: Int8
    delivery_count: Int16
    holder: Text


@dataclass(frozen=True, slots=True)
class SharePartition(Struct):
    """One share-partition: SPSO `start`, SPEO `end` (exclusive), the log's end, and its runs.

    The log's end is -1 where the log is damaged.
    """

    topic: Text
    partition: Int32
    start: Int64
    end: Int64
    log_end: Int64
    in_flight: tuple[InFlight, ...]


@dataclass(frozen=True, slots=True)
class DescribeResponse(Struct):
    """Every share-partition of the group, by topic and partition."""

    error_code: Int16
    error_message: MaybeText
    partitions: tuple[SharePartition, ...] = ()
