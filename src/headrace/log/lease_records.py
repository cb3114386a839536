"""Records of `__share_group_state` that keep leases, which Kafka does not have: type 20900.

Each is the whole state of one lease. The key is type, group and session; the value version, epoch,
committed number, topics, and the acquisitions not committed with what they hold and have staged.
"""

import struct
from uuid import UUID

from headrace.core.leases import Acquisition, Held, Lease, LeaseKey, LeaseRestored, Staged
from headrace.core.machine import Entry
from headrace.core.share_words import ShareKey, Verdict
from headrace.core.types import Span
from headrace.wire.primitives import Malformed, Reader, Writer

LEASE = 20900
_VALUE_VERSION = 0
_HELD = struct.Struct(">16siqqh")
_STAGED = struct.Struct(">16siqqb")
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

    def write_staged(sink: Writer, staged: Staged) -> None:
        key, span = staged.key, staged.span
        sink.data += _STAGED.pack(
            key.topic_id.bytes, key.partition, span.first, span.last, staged.verdict
        )
        sink.compact_nullable_string(staged.reason)

    def write_acquisition(sink: Writer, item: tuple[int, Acquisition]) -> None:
        seq, acquisition = item
        sink.int64(seq)
        sink.compact_array(acquisition.held, write_held)
        sink.compact_array(acquisition.staged, write_staged)

    out.int16(_VALUE_VERSION)
    out.int32(lease.epoch)
    out.int64(lease.committed)
    out.compact_array(lease.topics, Writer.compact_string)
    out.compact_array(sorted(lease.acquisitions.items()), write_acquisition)
    out.tags()
    return Entry(lease_key(lease.key), bytes(out.data))


def restored(lease: LeaseKey, value: bytes) -> LeaseRestored:
    """What the value of such a record says. Raises: Malformed."""
    source = Reader(value)
    version = source.int16()
    if version != _VALUE_VERSION:
        raise Malformed(f"version {version} of a lease is from the future")

    keys: dict[tuple[bytes, int], ShareKey] = {}  # a lease of thousands of ranges has few

    def place(topic_id: bytes, partition: int, first: int, last: int) -> tuple[ShareKey, Span]:
        if not 0 <= first <= last:
            raise Malformed(f"{first}-{last} is not a range of offsets")
        key = keys.get((topic_id, partition))
        if key is None:
            key = keys[topic_id, partition] = ShareKey(lease[0], UUID(bytes=topic_id), partition)
        return key, Span(first, last)

    def read_held(source: Reader) -> Held:
        *where, deliveries = source.unpack(_HELD)
        return Held(*place(*where), deliveries)

    def read_staged(source: Reader) -> Staged:
        *where, verdict = source.unpack(_STAGED)
        if verdict not in _VERDICTS:
            raise Malformed(f"{verdict} is not a verdict")
        return Staged(*place(*where), _VERDICTS[verdict], source.compact_nullable_string())

    def read_acquisition(source: Reader) -> tuple[int, Acquisition]:
        seq = source.int64()
        held = tuple(source.compact_array(read_held))
        return seq, Acquisition(held, tuple(source.compact_array(read_staged)))

    found = LeaseRestored(
        lease,
        source.int32(),
        source.int64(),
        tuple(source.compact_array(Reader.compact_string)),
        tuple(source.compact_array(read_acquisition)),
    )
    source.tags()
    return found
