"""ShareFetch and ShareAcknowledge by hand: what a share consumer sends and gets with every poll.

The schema codec takes several times as long; it is the oracle of this in the tests. An
acknowledgement may bring a reason, in a tagged field of ours that Kafka's clients do not send.
Source: ShareFetchRequest.json, ShareAcknowledgeRequest.json, ShareFetchResponse.json,
ShareAcknowledgeResponse.json (versions 1 and 2).
"""

import struct
from collections.abc import Iterable, Sequence
from itertools import starmap
from typing import NamedTuple
from uuid import UUID

from headrace.wire.primitives import Buffer, Malformed, Reader, Writer

ACQUIRE_MODES_SINCE = RENEWALS_SINCE = LOCK_TIMEOUT_SINCE = 2
REASON_TAG = 10_000  # far from any that Kafka may add, as in the journal
_LIMITS = struct.Struct(">5i")
_MODE = struct.Struct(">b?")
_SPAN = struct.Struct(">qq")
_PLAIN = struct.Struct(">qqBBB")  # with one acknowledge type, and without tagged fields
_ONE_TYPE = 2  # a compact count counts itself
_TYPES = [bytes([kind]) for kind in range(256)]
_ACQUIRED = struct.Struct(">qqhx")  # and no tagged fields
_PART_OF_FETCH = struct.Struct(">ih")
_NO_LEADER = bytes(9)  # read with codes 6 and 74 only, which one broker never has

Acquisition = tuple[int, int, int]  # first, last, deliveries


class Batch(NamedTuple):
    """Acknowledge types of a range, a byte each: one for all of it, or one for each offset."""

    first: int
    last: int
    types: bytes
    reason: str | None = None


class Part(NamedTuple):
    """What a request has about one partition."""

    topic_id: UUID
    partition: int
    batches: Sequence[Batch]


class AcknowledgeRequest(NamedTuple):
    """A ShareAcknowledge."""

    group: str | None
    member: str | None
    epoch: int
    renews: bool
    parts: list[Part]


class FetchRequest(NamedTuple):
    """A ShareFetch; `forgotten` are topic ids and partitions."""

    group: str | None
    member: str | None
    epoch: int
    renews: bool
    parts: list[Part]
    wait_ms_max: int
    bytes_min: int
    bytes_max: int
    records_max: int
    batch_size: int
    acquire_mode: int
    forgotten: list[tuple[UUID, int]]


def read_acknowledge(body: Buffer, version: int) -> AcknowledgeRequest:
    """A ShareAcknowledge. Raises: Malformed."""
    source = Reader(body)
    group, member = source.compact_nullable_string(), source.compact_nullable_string()
    epoch = source.int32()
    renews = source.boolean() if version >= RENEWALS_SINCE else False
    parts = _parts(source)
    source.tags()
    return AcknowledgeRequest(group, member, epoch, renews, parts)


def read_fetch(body: Buffer, version: int) -> FetchRequest:
    """A ShareFetch. Raises: Malformed."""
    source = Reader(body)
    group, member = source.compact_nullable_string(), source.compact_nullable_string()
    epoch = source.int32()
    wait_ms_max, bytes_min, bytes_max, records_max, batch_size = source.unpack(_LIMITS)
    mode, renews = source.unpack(_MODE) if version >= ACQUIRE_MODES_SINCE else (0, False)
    parts = _parts(source)
    forgotten = []
    for _ in range(_count(source)):
        topic_id = source.uuid()
        forgotten += [(topic_id, source.int32()) for _ in range(_count(source))]
        source.tags()
    source.tags()
    return FetchRequest(
        group, member, epoch, renews, parts, wait_ms_max, bytes_min, bytes_max, records_max,
        batch_size, mode, forgotten,
    )  # fmt: skip


def _parts(source: Reader) -> list[Part]:
    parts = []
    for _ in range(_count(source)):
        topic_id = source.uuid()
        for _ in range(_count(source)):
            parts.append(Part(topic_id, source.int32(), _batches(source)))
            source.tags()
        source.tags()
    return parts


def _batches(source: Reader) -> list[Batch]:
    count, found = _count(source), list[Batch]()
    for _ in range(count):
        start = source.position
        if source.remaining >= _PLAIN.size:  # nearly always
            first, last, types, kind, tags = source.unpack(_PLAIN)
            if types == _ONE_TYPE and not tags:
                found.append(Batch(first, last, _TYPES[kind]))
                continue
            source.position = start
        first, last = source.unpack(_SPAN)
        types = bytes(source.take(_count(source)))
        reason = source.tags().get(REASON_TAG)
        told = None if reason is None else Reader(reason).compact_nullable_string()
        found.append(Batch(first, last, types, told))
    return found


def _count(source: Reader) -> int:
    count = source.count(flexible=True)
    if count < 0:
        raise Malformed("null where an array must stand")
    return count


# ---- responses


class AcknowledgedPart(NamedTuple):
    """What became of the acknowledgements of one partition."""

    topic_id: UUID
    partition: int
    code: int
    message: str | None


def written_acknowledge(
    parts: Iterable[AcknowledgedPart],
    version: int,
    *,
    code: int = 0,
    message: str | None = None,
    lock_ms: int = 0,
    leader_id: int = 0,
) -> bytearray:
    """The response to a ShareAcknowledge; `leader_id` leads all partitions, at epoch 0."""
    out = Writer()
    out.int32(0)
    out.int16(code)
    out.compact_nullable_string(message)
    if version >= LOCK_TIMEOUT_SINCE:
        out.int32(lock_ms)
    by_topic: dict[UUID, list[AcknowledgedPart]] = {}
    for part in parts:
        by_topic.setdefault(part.topic_id, []).append(part)
    out.uvarint(len(by_topic) + 1)
    for topic_id, told in by_topic.items():
        out.uuid(topic_id)
        out.uvarint(len(told) + 1)
        for one in told:
            out.int32(one.partition)
            out.int16(one.code)
            out.compact_nullable_string(one.message)
            out.int32(leader_id)
            out.int32(0)
            out.tags()
            out.tags()
        out.tags()
    out.uvarint(1)
    out.tags()
    return out.data


class FetchedPart(NamedTuple):
    """What a ShareFetch answers of one partition; `acquired` ascend."""

    topic_id: UUID
    partition: int
    code: int = 0
    message: str | None = None
    acknowledge_code: int = 0
    acknowledge_message: str | None = None
    records: Buffer = b""
    acquired: Sequence[Acquisition] = ()


def written_fetch(
    parts: Iterable[FetchedPart], *, code: int = 0, message: str | None = None, lock_ms: int = 0
) -> list[Buffer]:
    """The response to a ShareFetch, alike in both versions: records are buffers of their own."""
    by_topic: dict[UUID, list[FetchedPart]] = {}
    for part in parts:
        by_topic.setdefault(part.topic_id, []).append(part)
    buffers: list[Buffer] = []
    out = Writer()
    out.int32(0)
    out.int16(code)
    out.compact_nullable_string(message)
    out.int32(lock_ms)
    out.uvarint(len(by_topic) + 1)
    for topic_id, found in by_topic.items():
        out.uuid(topic_id)
        out.uvarint(len(found) + 1)
        for one in found:
            _write_head(out, one)
            if one.records:
                buffers += (out.data, one.records)
                out = Writer()
            out.uvarint(len(one.acquired) + 1)
            out.raw(b"".join(starmap(_ACQUIRED.pack, one.acquired)))
            out.tags()
        out.tags()
    out.uvarint(1)
    out.tags()
    return [*buffers, out.data]


def _write_head(out: Writer, part: FetchedPart) -> None:
    out.raw(_PART_OF_FETCH.pack(part.partition, part.code))
    out.compact_nullable_string(part.message)
    out.int16(part.acknowledge_code)
    out.compact_nullable_string(part.acknowledge_message)
    out.raw(_NO_LEADER)
    out.uvarint(len(part.records) + 1)
