"""The journal of a shard of groups: events as records of `__consumer_offsets`, and back.

Layout of Kafka 4.3: OffsetCommitKey (type 0 or 1) with OffsetCommitValue, GroupMetadataKey (type 2)
with GroupMetadataValue; a key begins with its type, a value with its version, both int16. Written
are OffsetCommitValue 4, or 1 where a client chose its own retention (it alone has room for the
expiry, and none for leader epoch and topic id), and GroupMetadataValue 4, which has room for a
tagged field of ours: when the group began (3 where that is not known); read are all versions from 0
to 4. Groups of the new protocol have types of their own (`consumer_group_records.py`).

Why an offset moved and who asked stand in headers of the record, for people: a tombstone has no
other place, and Kafka's tools pass over them. A commit without a cause is a plain one.
Sources: OffsetCommitValue.json, GroupMetadataValue.json.
"""

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeVar
from uuid import UUID

from headrace.core.consumer_events import ConsumerGroupDropped
from headrace.core.group_events import (
    Answered,
    Event,
    GroupDropped,
    GroupStored,
    JoinParked,
    OffsetCommitted,
    OffsetDropped,
    OffsetsDropped,
    SyncParked,
    TimerCleared,
    TimerSet,
)
from headrace.core.group_words import TIME_UNKNOWN, Candidate, Cause, Committed, Member, Snapshot
from headrace.core.machine import Entry
from headrace.core.types import MemberId, WallMs
from headrace.log import consumer_group_records
from headrace.log.consumer_group_records import BEGAN
from headrace.wire.primitives import Malformed, NewerVersionError, Reader, Writer, uuid_of

LEGACY_OFFSET, OFFSET, GROUP = 0, 1, 2
CAUSE_HEADER, BY_HEADER = "headrace.cause", "headrace.by"
_NEWEST = 4
_OFFSET_VERSION, _EXPIRING_VERSION = 4, 1
_GROUP_VERSION, _RIGID_GROUP_VERSION = 4, 3
_TOPIC_ID = 0  # a tag
# OffsetCommitValue 4 as nearly all are: without metadata, with a topic id.
_PLAIN = struct.Struct(">hqiBqBBB16s")
_EMPTY, _ONE_TAG, _UUID_BYTES = 1, 1, 16
_PLAIN_PARTS = (_OFFSET_VERSION, _EMPTY, _ONE_TAG, _TOPIC_ID, _UUID_BYTES)
_OFFSET_KINDS = (b"\0\0", b"\0\1")  # how keys of LEGACY_OFFSET and OFFSET begin
_PARTITION = struct.Struct(">i")
_CACHED = 4096
_CACHED_SIZE_MAX = 512  # characters or bytes of what is cached: strangers choose the names
_NO_EPOCH = -1
_AS_SESSION = -1  # the rebalance timeout of clients that know none

Bytes = bytes | None
T = TypeVar("T")


class GroupJournal:
    """Encodes what a shard's events make durable, and gives the events back in recovery."""

    def records(self, events: Sequence[Event], written_at: WallMs) -> list[Entry]:  # noqa: ARG002  # Journal's signature; these records carry their own times
        """One record for each durable event; none for the others."""
        out: list[Entry] = []
        for event in events:
            match event:
                case OffsetCommitted(group, topic, partition, committed, cause, by):
                    key, value = _offset_key(group, topic, partition), _offset_value(committed)
                    told = None if cause is Cause.COMMIT else cause
                    out.append(Entry(key, value, _headers(told, by)))
                case OffsetDropped(group, topic, partition, cause, by):
                    key = _offset_key(group, topic, partition)
                    out.append(Entry(key, None, _headers(cause, by)))
                case OffsetsDropped(group, topics, cause, by):
                    headers = _headers(cause, by)
                    for topic, partitions in topics:
                        place = _place(group, topic)
                        keys = [place + _PARTITION.pack(one) for one in partitions]
                        out += [Entry(key, None, headers) for key in keys]
                case GroupStored(group, snapshot):
                    out.append(Entry(_group_key(group), _group_value(snapshot)))
                case GroupDropped(group, cause, by):
                    out.append(Entry(_group_key(group), None, _headers(cause, by)))
                case Answered() | TimerSet() | TimerCleared() | JoinParked() | SyncParked():
                    pass  # these die with the process, as classic members do
                case _:
                    entry = consumer_group_records.entry(event)
                    if entry is not None and isinstance(event, ConsumerGroupDropped):
                        entry = entry._replace(headers=_headers(event.cause, event.by))
                    out += () if entry is None else (entry,)
        return out

    def events(self, key: Bytes, value: Bytes) -> list[Event]:
        """What a record stands for. Raises: Malformed for bytes, types or versions not known."""
        if key is None:
            raise Malformed("a record of the consumer-group journal without a key")
        if key.startswith(_OFFSET_KINDS):  # nearly all
            place = key[: -_PARTITION.size]
            short = len(place) <= _CACHED_SIZE_MAX
            found = _group_and_topic_cached(place) if short else _group_and_topic(place)
            group, topic = found
            (partition,) = _PARTITION.unpack_from(key, len(key) - _PARTITION.size)
            if value is None:
                return [OffsetDropped(group, topic, partition)]
            return [OffsetCommitted(group, topic, partition, _committed(value))]
        source = Reader(key)
        kind = source.int16()
        if kind == GROUP:
            group = _text(source)
            _at_end(source)
            return [_stored(group, value)]
        if kind in consumer_group_records.KINDS:
            return list(consumer_group_records.events(kind, source, value))
        raise NewerVersionError(f"record type {kind} is from the future; a newer Headrace wrote it")


@lru_cache(maxsize=_CACHED)
def _headers(cause: Cause | None, by: str) -> tuple[tuple[str, bytes | None], ...]:
    told = (CAUSE_HEADER, cause.value if cause else ""), (BY_HEADER, by)
    return tuple((name, text.encode()) for name, text in told if text)


# ---- offsets


def _offset_key(group: str, topic: str, partition: int) -> bytes:
    short = len(group) <= _CACHED_SIZE_MAX
    place = _place_cached(group, topic) if short else _place(group, topic)
    return place + _PARTITION.pack(partition)


def _place(group: str, topic: str) -> bytes:
    """A key up to its partition."""
    out = Writer()
    out.int16(OFFSET)
    out.nullable_string(group)
    out.nullable_string(topic)
    return bytes(out.data)


def _group_and_topic(place: bytes) -> tuple[str, str]:
    """What stands in a key before its partition; one text for all records of a group."""
    source = Reader(place, 2)
    found = _text(source), _text(source)
    _at_end(source)
    return found


# Commits name few groups and topics again and again.
_place_cached = lru_cache(maxsize=_CACHED)(_place)
_group_and_topic_cached = lru_cache(maxsize=_CACHED)(_group_and_topic)


def _offset_value(committed: Committed) -> bytes:
    out = Writer()
    if committed.expires_at is not None:
        out.int16(_EXPIRING_VERSION)
        out.int64(committed.offset)
        out.nullable_string(committed.metadata)
        out.int64(committed.committed_at)
        out.int64(committed.expires_at)
        return bytes(out.data)
    topic_id = committed.topic_id
    if topic_id is not None and not committed.metadata:  # nearly all
        return _PLAIN.pack(
            _OFFSET_VERSION, committed.offset, committed.leader_epoch, _EMPTY,
            committed.committed_at, _ONE_TAG, _TOPIC_ID, _UUID_BYTES, topic_id.bytes,
        )  # fmt: skip
    out.int16(_OFFSET_VERSION)
    out.int64(committed.offset)
    out.int32(committed.leader_epoch)
    out.compact_string(committed.metadata)
    out.int64(committed.committed_at)
    out.tags({_TOPIC_ID: topic_id.bytes} if topic_id else None)
    return bytes(out.data)


def _committed(value: bytes) -> Committed:
    if len(value) == _PLAIN.size:
        version, offset, epoch, empty, at, tags, tag, size, raw = _PLAIN.unpack(value)
        if (version, empty, tags, tag, size) == _PLAIN_PARTS:
            return Committed(offset, epoch, "", at, None, _real(uuid_of(raw)))
    source = Reader(value)
    version = _version(source, "a committed offset")
    flexible = version == _NEWEST
    offset = source.int64()
    leader_epoch = source.int32() if version >= 3 else _NO_EPOCH
    metadata = source.compact_string() if flexible else _text(source)
    committed_at = WallMs(source.int64())
    expires_at = WallMs(source.int64()) if version == _EXPIRING_VERSION else None
    if expires_at == TIME_UNKNOWN:
        expires_at = None  # Kafka's old brokers wrote -1 for: none of its own
    topic_id = None
    if flexible:
        told = source.tags().get(_TOPIC_ID)
        topic_id = Reader(told).uuid() if told is not None else None
    _at_end(source)
    return Committed(offset, leader_epoch, metadata, committed_at, expires_at, _real(topic_id))


def _real(topic_id: UUID | None) -> UUID | None:
    """Kafka's zero id means none."""
    return topic_id if topic_id is not None and topic_id.int else None


# ---- groups


def _group_key(group: str) -> bytes:
    out = Writer()
    out.int16(GROUP)
    out.nullable_string(group)
    return bytes(out.data)


def _group_value(snapshot: Snapshot) -> bytes:
    out = Writer()
    flexible = snapshot.began != TIME_UNKNOWN
    out.int16(_GROUP_VERSION if flexible else _RIGID_GROUP_VERSION)
    out.string(snapshot.protocol_type or "", flexible=flexible)
    out.int32(snapshot.generation)
    out.string(snapshot.protocol, flexible=flexible)
    out.string(snapshot.leader, flexible=flexible)
    out.int64(snapshot.state_at)
    out.count(len(snapshot.members), flexible=flexible)
    for member in snapshot.members:
        for text in (member.id, member.instance, member.client_id, member.client_host):
            out.string(text, flexible=flexible)
        out.int32(member.rebalance_ms)
        out.int32(member.session_ms)
        for data in (member.metadata(snapshot.protocol), member.assignment):
            out.count(len(data), flexible=flexible)
            out.raw(data)
        if flexible:
            out.tags()
    if flexible:
        began = Writer()
        began.int64(snapshot.began)
        out.tags({BEGAN: bytes(began.data)})
    return bytes(out.data)


def _stored(group: str, value: Bytes) -> Event:
    if value is None:
        return GroupDropped(group)
    source = Reader(value)
    version = _version(source, "a group")
    flexible = version == _NEWEST
    protocol_type = source.compact_string() if flexible else _text(source)
    generation = source.int32()
    protocol = _nullable(source, flexible)
    leader = _nullable(source, flexible)
    state_at = WallMs(source.int64()) if version >= 2 else TIME_UNKNOWN
    members = tuple(_array(source, flexible, lambda: _member(source, version, protocol)))
    told = source.tags().get(BEGAN) if flexible else None
    began = WallMs(Reader(told).int64()) if told is not None else TIME_UNKNOWN
    _at_end(source)
    known = None if leader is None else MemberId(leader)
    return GroupStored(
        group,
        Snapshot(protocol_type or None, generation, protocol, known, state_at, members, began),
    )


def _member(source: Reader, version: int, protocol: str | None) -> Member:
    flexible = version == _NEWEST
    text = Reader.compact_string if flexible else _text
    name = text(source)
    if protocol is None:
        raise Malformed(f"a group with member {name} and without a protocol")
    instance = _nullable(source, flexible) if version >= 3 else None
    client_id, client_host = text(source), text(source)
    rebalance_ms = source.int32() if version >= 1 else _AS_SESSION
    session_ms = source.int32()
    metadata, assignment = _bytes(source, flexible), _bytes(source, flexible)
    if flexible:
        source.tags()
    return Member(
        MemberId(name),
        instance,
        client_id,
        client_host,
        session_ms if rebalance_ms == _AS_SESSION else rebalance_ms,
        session_ms,
        (Candidate(protocol, metadata),),
        assignment,
    )


# ---- parts


def _version(source: Reader, what: str) -> int:
    version = source.int16()
    if not 0 <= version <= _NEWEST:
        raise NewerVersionError(f"version {version} of {what} is from the future")
    return version


def _text(source: Reader) -> str:
    text = source.nullable_string()
    if text is None:
        raise Malformed("null where a name must stand")
    return text


def _nullable(source: Reader, flexible: bool) -> str | None:
    return source.compact_nullable_string() if flexible else source.nullable_string()


def _bytes(source: Reader, flexible: bool) -> bytes:
    count = source.uvarint() - 1 if flexible else source.int32()
    return bytes(source.take(count))


def _array(source: Reader, flexible: bool, item: Callable[[], T]) -> list[T]:
    count = source.uvarint() - 1 if flexible else source.int32()
    if not 0 <= count <= source.remaining:
        raise Malformed(f"an array of {count} in {source.remaining} bytes")
    return [item() for _ in range(count)]


def _at_end(source: Reader) -> None:
    if source.remaining:
        raise Malformed(f"{source.remaining} bytes more than the record has fields")
