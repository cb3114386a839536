"""Records of `__share_group_state` that keep leases, which Kafka does not have: 20900 and 20909.

One of type 20900 is the whole state of one lease. The key is type, group and session; the value
version, epoch, committed number, topics, and the acquisitions not committed with what they hold and
have staged, by part. One of type 20909 is what a part staged since, under type, group, session,
number and part; the next whole state has it, too.
"""

import struct
from uuid import UUID

from headrace.core.leases import (
    Acquisition,
    Held,
    Lease,
    LeaseKey,
    LeaseRestored,
    LeaseStaged,
    Staged,
)
from headrace.core.machine import Entry
from headrace.core.share_words import ShareKey, Verdict
from headrace.core.types import Span
from headrace.wire.primitives import Malformed, NewerVersionError, Reader, Writer

LEASE = 20900
PART = 20909
_WITHOUT_PARTS, _VALUE_VERSION = 0, 1
_PART_VERSION = 0
_HELD = struct.Struct(">16siqqh")
_STAGED = struct.Struct(">16siqqbq")
_STAGED_BEFORE = struct.Struct(">16siqqb")
_VERDICTS = {verdict.value: verdict for verdict in Verdict}


def lease_key(lease: LeaseKey) -> bytes:
    """The key of the records of a lease; a tombstone under it forgets the lease."""
    out = Writer()
    out.int16(LEASE)
    for part in lease:
        out.nullable_string(part)
    return bytes(out.data)


def lease_record(lease: Lease) -> Entry:
    """The whole state of a lease."""
    out = Writer()

    def write_held(sink: Writer, held: Held) -> None:
        key, span = held.key, held.span
        sink.data += _HELD.pack(
            key.topic_id.bytes, key.partition, span.first, span.last, held.deliveries
        )

    def write_part(sink: Writer, part: tuple[str, tuple[Staged, ...]]) -> None:
        sink.compact_string(part[0])
        sink.compact_array(part[1], _write_staged)

    def write_acquisition(sink: Writer, item: tuple[int, Acquisition]) -> None:
        seq, acquisition = item
        sink.int64(seq)
        sink.compact_array(acquisition.held, write_held)
        sink.int32(acquisition.epoch)
        sink.compact_array(acquisition.parts.items(), write_part)

    out.int16(_VALUE_VERSION)
    out.int32(lease.epoch)
    out.int64(lease.committed)
    out.compact_array(lease.topics, Writer.compact_string)
    out.compact_array(sorted(lease.acquisitions.items()), write_acquisition)
    out.tags()
    return Entry(lease_key(lease.key), bytes(out.data))


def part_record(event: LeaseStaged) -> Entry:
    """What a part staged."""
    key, out = Writer(), Writer()
    key.int16(PART)
    for name in (*event.lease, event.part):
        key.nullable_string(name)
    key.int64(event.seq)
    out.int16(_PART_VERSION)
    out.int32(event.epoch)
    out.compact_array(event.staged, _write_staged)
    out.tags()
    return Entry(bytes(key.data), bytes(out.data))


def part_restored(source: Reader, value: bytes | None) -> LeaseStaged:
    """What such a record says, its key read up to the type. Raises: Malformed."""
    group, session, part = (source.nullable_string() or "" for _ in range(3))
    seq = source.int64()
    if value is None:
        raise Malformed("what a part of a lease staged is never deleted alone")
    source = Reader(value)
    version = source.int16()
    if version != _PART_VERSION:
        raise NewerVersionError(f"version {version} of a part of a lease is from the future")
    epoch = source.int32()
    found = LeaseStaged((group, session), seq, part, epoch, _Places(group).staged(source))
    source.tags()
    return found


def restored(lease: LeaseKey, value: bytes) -> LeaseRestored:
    """What the value of such a record says. Raises: Malformed."""
    source = Reader(value)
    version = source.int16()
    if version not in (_WITHOUT_PARTS, _VALUE_VERSION):
        raise NewerVersionError(f"version {version} of a lease is from the future")
    places = _Places(lease[0])
    epoch = source.int32()

    def read_held(source: Reader) -> Held:
        *where, deliveries = source.unpack(_HELD)
        return Held(*places(*where), deliveries)

    def read_part(source: Reader) -> tuple[str, tuple[Staged, ...]]:
        return source.compact_string(), places.staged(source)

    def read_acquisition(source: Reader) -> tuple[int, Acquisition]:
        seq = source.int64()
        held = tuple(source.compact_array(read_held))
        if version == _WITHOUT_PARTS:
            said = places.staged_before(source)
            return seq, Acquisition(held, {"": said} if said else {}, epoch)
        staged_at = source.int32()
        return seq, Acquisition(held, dict(source.compact_array(read_part)), staged_at)

    found = LeaseRestored(
        lease,
        epoch,
        source.int64(),
        tuple(source.compact_array(Reader.compact_string)),
        tuple(source.compact_array(read_acquisition)),
    )
    source.tags()
    return found


class _Places:
    """Reads where records are; a lease of thousands of ranges has few share-partitions."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._keys: dict[tuple[bytes, int], ShareKey] = {}

    def __call__(
        self, topic_id: bytes, partition: int, first: int, last: int
    ) -> tuple[ShareKey, Span]:
        if not 0 <= first <= last:
            raise Malformed(f"{first}-{last} is not a range of offsets")
        key = self._keys.get((topic_id, partition))
        if key is None:
            key = ShareKey(self._group, UUID(bytes=topic_id), partition)
            self._keys[topic_id, partition] = key
        return key, Span(first, last)

    def staged(self, source: Reader) -> tuple[Staged, ...]:
        """The dispositions that come next."""

        def one(source: Reader) -> Staged:
            *where, verdict, delay_ms = source.unpack(_STAGED)
            reason = source.compact_nullable_string()
            return Staged(*self(*where), _verdict(verdict), reason, delay_ms)

        return tuple(source.compact_array(one))

    def staged_before(self, source: Reader) -> tuple[Staged, ...]:
        """The same, as they were written before there were delays."""

        def one(source: Reader) -> Staged:
            *where, verdict = source.unpack(_STAGED_BEFORE)
            return Staged(*self(*where), _verdict(verdict), source.compact_nullable_string())

        return tuple(source.compact_array(one))


def _verdict(code: int) -> Verdict:
    if code not in _VERDICTS:
        raise Malformed(f"{code} is not a verdict")
    return _VERDICTS[code]


def _write_staged(sink: Writer, staged: Staged) -> None:
    key, span = staged.key, staged.span
    sink.data += _STAGED.pack(
        key.topic_id.bytes, key.partition, span.first, span.last, staged.verdict, staged.delay_ms
    )
    sink.compact_nullable_string(staged.reason)
