"""OffsetCommit by hand: the one request that every consumer sends all the time.

The schema codec takes eight times as long; it is the oracle of this in the tests.
Source: OffsetCommitRequest.json, OffsetCommitResponse.json (versions 2 to 10).
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from headrace.wire.primitives import Buffer, Malformed, Reader, Writer

TOPIC_IDS_SINCE = 10
_RETENTION_UNTIL = 4
_THROTTLE_SINCE = 3
_EPOCH_SINCE = 6
_INSTANCE_SINCE = 7
_FLEXIBLE_SINCE = 8
_PLACE = struct.Struct(">iqi")
_PLACE_WITHOUT_EPOCH = struct.Struct(">iq")
_PARTITION_BYTES, OFFSET_BYTES = 4, 8
_TOLD = struct.Struct(">ihB")
_TOLD_PLAIN = struct.Struct(">ih")
_GENERATION = struct.Struct(">i")
_NO_EPOCH = -1
_NO_RETENTION = -1
_ONE_BYTE_MAX = 0x7F

TopicKey = str | UUID | None  # None for Kafka's zero id


class Place(NamedTuple):
    """One partition of a request; `at` is where in the body its offset stands."""

    partition: int
    offset: int
    leader_epoch: int
    metadata: str | None
    at: int


class CommitRequest(NamedTuple):
    """`retention_ms` is -1 where the client leaves it to the broker."""

    group: str
    generation: int
    member: str
    instance: str | None
    retention_ms: int
    topics: list[tuple[TopicKey, list[Place]]]


class _Unusual(Exception):
    """Not what consumers send all the time."""


def read(body: Buffer, version: int) -> CommitRequest:
    """A request as it came. Raises: Malformed."""
    if _FLEXIBLE_SINCE <= version < TOPIC_IDS_SINCE:
        try:
            return _read_short(bytes(body))
        except (_Unusual, IndexError, struct.error, UnicodeDecodeError):
            pass  # `_read` has the last word, and says what is wrong
    return _read(body, version)


def _read_short(data: bytes) -> CommitRequest:
    """Names and counts of one byte, no tags: without a call for each part, in a third of the time.

    Raises: _Unusual; also IndexError, struct.error and UnicodeDecodeError where `_read` may.
    """
    at = group_size = data[0]  # a compact size counts itself
    group = data[1:at].decode()
    (generation,) = _GENERATION.unpack_from(data, at)
    at += _GENERATION.size
    member_size = data[at]
    member = data[at + 1 : at + member_size].decode()
    at += member_size
    size = data[at]
    instance = data[at + 1 : at + size].decode() if size else None
    at += size or 1
    topic_count = data[at]
    at += 1
    if not (group_size and member_size and topic_count):
        raise _Unusual
    topics: list[tuple[TopicKey, list[Place]]] = []
    for _ in range(topic_count - 1):
        name_size = data[at]
        name = data[at + 1 : at + name_size].decode()
        at += name_size
        places, at = _short_places(data, at)
        if not name_size or name_size > _ONE_BYTE_MAX:
            raise _Unusual
        topics.append((name, places))
    if (
        data[at]
        or at + 1 != len(data)
        or max(group_size, member_size, size, topic_count) > _ONE_BYTE_MAX
    ):
        raise _Unusual
    return CommitRequest(group, generation, member, instance, _NO_RETENTION, topics)


def _short_places(data: bytes, at: int) -> tuple[list[Place], int]:
    """The partitions of a topic, and where it ends."""
    count = data[at]
    at += 1
    places = []
    for _ in range(count - 1):
        partition, offset, epoch = _PLACE.unpack_from(data, at)
        offset_at = at + _PARTITION_BYTES
        at += _PLACE.size
        size = data[at]
        metadata = data[at + 1 : at + size].decode() if size else None
        at += size or 1
        if data[at] or size > _ONE_BYTE_MAX:
            raise _Unusual
        at += 1
        places.append(Place(partition, offset, epoch, metadata, offset_at))
    if data[at] or not 0 < count <= _ONE_BYTE_MAX:
        raise _Unusual
    return places, at + 1


def _read(body: Buffer, version: int) -> CommitRequest:
    source, flexible = Reader(body), version >= _FLEXIBLE_SINCE
    string = source.compact_nullable_string if flexible else source.nullable_string
    group, generation, member = string(), source.int32(), string()
    instance = string() if version >= _INSTANCE_SINCE else None
    retention_ms = source.int64() if version <= _RETENTION_UNTIL else _NO_RETENTION
    topics = []
    for _ in range(_count(source, flexible)):
        key: TopicKey
        if version >= TOPIC_IDS_SINCE:
            topic_id = source.uuid()
            key = topic_id if topic_id.int else None
        else:
            key = _present(string())
        topics.append((key, _places(source, version)))
        if flexible:
            source.tags()
    if flexible:
        source.tags()
    return CommitRequest(
        _present(group), generation, _present(member), instance, retention_ms, topics
    )


def _places(source: Reader, version: int) -> list[Place]:
    flexible = version >= _FLEXIBLE_SINCE
    form = _PLACE if version >= _EPOCH_SINCE else _PLACE_WITHOUT_EPOCH
    string = source.compact_nullable_string if flexible else source.nullable_string
    places = []
    for _ in range(_count(source, flexible)):
        offset_at = source.position + _PARTITION_BYTES
        told = source.unpack(form)
        partition, offset, epoch = told if len(told) == 3 else (*told, _NO_EPOCH)
        places.append(Place(partition, offset, epoch, string(), offset_at))
        if flexible:
            source.tags()
    return places


def _present(text: str | None) -> str:
    if text is None:
        raise Malformed("null where a string must stand")
    return text


def _count(source: Reader, flexible: bool) -> int:
    count = source.count(flexible=flexible)
    if count < 0:
        raise Malformed("null where an array must stand")
    return count


def written(
    topics: Sequence[tuple[TopicKey, Sequence[tuple[int, int]]]], version: int
) -> bytearray:
    """The response: for each topic its partitions with their error codes."""
    out, flexible = Writer(), version >= _FLEXIBLE_SINCE
    if version >= _THROTTLE_SINCE:
        out.int32(0)
    out.count(len(topics), flexible=flexible)
    for key, partitions in topics:
        if version >= TOPIC_IDS_SINCE:
            out.raw(key.bytes if isinstance(key, UUID) else bytes(16))
        else:
            assert isinstance(key, str), key
            out.string(key, flexible=flexible)
        out.count(len(partitions), flexible=flexible)
        for index, code in partitions:
            out.raw(_TOLD.pack(index, code, 0) if flexible else _TOLD_PLAIN.pack(index, code))
        if flexible:
            out.tags()
    if flexible:
        out.tags()
    return out.data
