"""Looking at a share group: the one call of the lease API (`wire/leases.py`) that holds nothing."""

from dataclasses import dataclass
from typing import ClassVar, Self

from headrace.wire.leases import Call, LeaseApi, head
from headrace.wire.primitives import Reader, Writer


@dataclass(frozen=True, slots=True)
class DescribeRequest(Call):
    """Look at the in-flight records of the group; session "" and epoch -1. Changes nothing."""

    KEY: ClassVar[LeaseApi] = LeaseApi.DESCRIBE

    def write(self, out: Writer) -> None:
        self.write_head(out)
        out.tags()

    @classmethod
    def read(cls, source: Reader) -> Self:
        found = cls(*head(source))
        source.tags()
        return found


@dataclass(frozen=True, slots=True)
class InFlight:
    """A run of in-flight records: Kafka's state number, deliveries, the holder ("" for none)."""

    first: int
    last: int
    state: int
    delivery_count: int
    holder: str

    def write(self, out: Writer) -> None:
        out.int64(self.first)
        out.int64(self.last)
        out.int8(self.state)
        out.int16(self.delivery_count)
        out.compact_string(self.holder)
        out.tags()

    @classmethod
    def read(cls, source: Reader) -> Self:
        found = cls(
            source.int64(),
            source.int64(),
            source.int8(),
            source.int16(),
            source.compact_string(),
        )
        source.tags()
        return found


@dataclass(frozen=True, slots=True)
class SharePartition:
    """One share-partition: SPSO `start`, SPEO `end` (exclusive), the log's end, and its runs."""

    topic: str
    partition: int
    start: int
    end: int
    log_end: int
    in_flight: tuple[InFlight, ...]

    def write(self, out: Writer) -> None:
        out.compact_string(self.topic)
        out.int32(self.partition)
        out.int64(self.start)
        out.int64(self.end)
        out.int64(self.log_end)
        out.compact_array(self.in_flight, lambda sink, run: run.write(sink))
        out.tags()

    @classmethod
    def read(cls, source: Reader) -> Self:
        found = cls(
            source.compact_string(),
            source.int32(),
            source.int64(),
            source.int64(),
            source.int64(),
            tuple(source.compact_array(InFlight.read)),
        )
        source.tags()
        return found


@dataclass(frozen=True, slots=True)
class DescribeResponse:
    """Every share-partition of the group, by topic and partition."""

    error_code: int
    error_message: str | None
    partitions: tuple[SharePartition, ...] = ()

    def write(self, out: Writer) -> None:
        out.int16(self.error_code)
        out.compact_nullable_string(self.error_message)
        out.compact_array(self.partitions, lambda sink, one: one.write(sink))
        out.tags()

    @classmethod
    def read(cls, source: Reader) -> Self:
        found = cls(
            source.int16(),
            source.compact_nullable_string(),
            tuple(source.compact_array(SharePartition.read)),
        )
        source.tags()
        return found
