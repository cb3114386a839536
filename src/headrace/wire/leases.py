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
from typing import ClassVar, Protocol, Self

from headrace.wire.primitives import Malformed, Reader, Writer


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


class Message(Protocol):
    """A message of the family: it can write and read itself."""

    def write(self, out: Writer) -> None: ...

    @classmethod
    def read(cls, source: Reader) -> Self: ...


@dataclass(frozen=True, slots=True)
class Range:
    """Records `first` to `last` (both included) of a partition, on their n-th delivery."""

    topic: str
    partition: int
    first: int
    last: int
    delivery_count: int

    def write(self, out: Writer) -> None:
        out.compact_string(self.topic)
        out.int32(self.partition)
        out.int64(self.first)
        out.int64(self.last)
        out.int16(self.delivery_count)
        out.tags()

    @classmethod
    def read(cls, source: Reader) -> Self:
        found = cls(
            source.compact_string(),
            source.int32(),
            source.int64(),
            source.int64(),
            source.int16(),
        )
        source.tags()
        return found


@dataclass(frozen=True, slots=True)
class Disposition:
    """What shall become of records `first` to `last` at the commit of their acquisition."""

    topic: str
    partition: int
    first: int
    last: int
    verdict: Verdict
    reason: str | None = None

    def write(self, out: Writer) -> None:
        out.compact_string(self.topic)
        out.int32(self.partition)
        out.int64(self.first)
        out.int64(self.last)
        out.int8(self.verdict)
        out.compact_nullable_string(self.reason)
        out.tags()

    @classmethod
    def read(cls, source: Reader) -> Self:
        topic, partition = source.compact_string(), source.int32()
        first, last, code = source.int64(), source.int64(), source.int8()
        reason = source.compact_nullable_string()
        source.tags()
        if code not in set(Verdict):
            raise Malformed(f"verdict {code} is not one of 1 accept, 2 release, 3 reject")
        return cls(topic, partition, first, last, Verdict(code), reason)


@dataclass(frozen=True, slots=True)
class Call:
    """The head of every request of the family."""

    KEY: ClassVar[LeaseApi]

    group: str
    session: str
    epoch: int

    def write_head(self, out: Writer) -> None:
        out.compact_string(self.group)
        out.compact_string(self.session)
        out.int32(self.epoch)


def head(source: Reader) -> tuple[str, str, int]:
    """What every request begins with: group, session, epoch."""
    return source.compact_string(), source.compact_string(), source.int32()


@dataclass(frozen=True, slots=True)
class OpenRequest(Call):
    """Open the session, subscribed to `topics`; `epoch` is ignored (-1).

    `start` is where a topic new to the group begins: "latest" or "earliest".
    """

    KEY: ClassVar[LeaseApi] = LeaseApi.OPEN

    topics: tuple[str, ...]
    start: str

    def write(self, out: Writer) -> None:
        self.write_head(out)
        out.compact_array(self.topics, Writer.compact_string)
        out.compact_string(self.start)
        out.tags()

    @classmethod
    def read(cls, source: Reader) -> Self:
        group, session, epoch = head(source)
        topics = tuple(source.compact_array(Reader.compact_string))
        found = cls(group, session, epoch, topics, source.compact_string())
        source.tags()
        return found


@dataclass(frozen=True, slots=True)
class OpenResponse:
    """The epoch to use from now on, and what the session still holds.

    `committed` is the last committed number (0 before the first), `lock_ms` how long locks last
    without a renewal, `outstanding` the numbers acquired and not committed.
    """

    error_code: int
    error_message: str | None
    epoch: int = -1
    committed: int = 0
    lock_ms: int = 0
    outstanding: tuple[int, ...] = ()

    def write(self, out: Writer) -> None:
        out.int16(self.error_code)
        out.compact_nullable_string(self.error_message)
        out.int32(self.epoch)
        out.int64(self.committed)
        out.int32(self.lock_ms)
        out.compact_array(self.outstanding, Writer.int64)
        out.tags()

    @classmethod
    def read(cls, source: Reader) -> Self:
        found = cls(
            source.int16(),
            source.compact_nullable_string(),
            source.int32(),
            source.int64(),
            source.int32(),
            tuple(source.compact_array(Reader.int64)),
        )
        source.tags()
        return found


@dataclass(frozen=True, slots=True)
class AcquireRequest(Call):
    """Acquire at most `max_records` under the number `seq`, waiting up to `max_wait_ms` for one.

    Asked again with a number already acquired, the answer is the same ranges.
    """

    KEY: ClassVar[LeaseApi] = LeaseApi.ACQUIRE

    seq: int
    max_records: int
    max_wait_ms: int

    def write(self, out: Writer) -> None:
        self.write_head(out)
        out.int64(self.seq)
        out.int64(self.max_records)
        out.int32(self.max_wait_ms)
        out.tags()

    @classmethod
    def read(cls, source: Reader) -> Self:
        found = cls(*head(source), source.int64(), source.int64(), source.int32())
        source.tags()
        return found


@dataclass(frozen=True, slots=True)
class AcquireResponse:
    """The ranges held under the number, ascending; none when nothing was available in time."""

    error_code: int
    error_message: str | None
    ranges: tuple[Range, ...] = ()

    def write(self, out: Writer) -> None:
        out.int16(self.error_code)
        out.compact_nullable_string(self.error_message)
        out.compact_array(self.ranges, lambda sink, held: held.write(sink))
        out.tags()

    @classmethod
    def read(cls, source: Reader) -> Self:
        found = cls(
            source.int16(),
            source.compact_nullable_string(),
            tuple(source.compact_array(Range.read)),
        )
        source.tags()
        return found


@dataclass(frozen=True, slots=True)
class RenewRequest(Call):
    """Restart the acquisition locks of all outstanding ranges of the session."""

    KEY: ClassVar[LeaseApi] = LeaseApi.RENEW

    def write(self, out: Writer) -> None:
        self.write_head(out)
        out.tags()

    @classmethod
    def read(cls, source: Reader) -> Self:
        found = cls(*head(source))
        source.tags()
        return found


@dataclass(frozen=True, slots=True)
class RenewResponse:
    """How many outstanding records are still held, and how many went to others or expired."""

    error_code: int
    error_message: str | None
    held: int = 0
    lost: int = 0

    def write(self, out: Writer) -> None:
        out.int16(self.error_code)
        out.compact_nullable_string(self.error_message)
        out.int64(self.held)
        out.int64(self.lost)
        out.tags()

    @classmethod
    def read(cls, source: Reader) -> Self:
        found = cls(
            source.int16(), source.compact_nullable_string(), source.int64(), source.int64()
        )
        source.tags()
        return found


@dataclass(frozen=True, slots=True)
class StageRequest(Call):
    """Replace the dispositions staged under `seq`; they take effect at its commit."""

    KEY: ClassVar[LeaseApi] = LeaseApi.STAGE

    seq: int
    dispositions: tuple[Disposition, ...]

    def write(self, out: Writer) -> None:
        self.write_head(out)
        out.int64(self.seq)
        out.compact_array(self.dispositions, lambda sink, one: one.write(sink))
        out.tags()

    @classmethod
    def read(cls, source: Reader) -> Self:
        group, session, epoch = head(source)
        found = cls(
            group, session, epoch, source.int64(), tuple(source.compact_array(Disposition.read))
        )
        source.tags()
        return found


@dataclass(frozen=True, slots=True)
class StageResponse:
    """An error code, 0 when the dispositions are durable."""

    error_code: int
    error_message: str | None

    def write(self, out: Writer) -> None:
        out.int16(self.error_code)
        out.compact_nullable_string(self.error_message)
        out.tags()

    @classmethod
    def read(cls, source: Reader) -> Self:
        found = cls(source.int16(), source.compact_nullable_string())
        source.tags()
        return found


@dataclass(frozen=True, slots=True)
class CommitRequest(Call):
    """Settle every number up to `seq`: as staged, the rest accepted. Idempotent."""

    KEY: ClassVar[LeaseApi] = LeaseApi.COMMIT

    seq: int

    def write(self, out: Writer) -> None:
        self.write_head(out)
        out.int64(self.seq)
        out.tags()

    @classmethod
    def read(cls, source: Reader) -> Self:
        found = cls(*head(source), source.int64())
        source.tags()
        return found


@dataclass(frozen=True, slots=True)
class CommitResponse:
    """Records settled by this call; `refused` were no longer held, their verdict had no effect."""

    error_code: int
    error_message: str | None
    accepted: int = 0
    released: int = 0
    rejected: int = 0
    refused: int = 0

    def write(self, out: Writer) -> None:
        out.int16(self.error_code)
        out.compact_nullable_string(self.error_message)
        for count in (self.accepted, self.released, self.rejected, self.refused):
            out.int64(count)
        out.tags()

    @classmethod
    def read(cls, source: Reader) -> Self:
        code, message = source.int16(), source.compact_nullable_string()
        found = cls(code, message, source.int64(), source.int64(), source.int64(), source.int64())
        source.tags()
        return found
