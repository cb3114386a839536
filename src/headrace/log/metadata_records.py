"""The journal of the catalogue: Kafka's KRaft metadata records, as in `__cluster_metadata-0`.

A record has no key; its value is a frame version (1), the record type and its version, as unsigned
varints, then the fields. Kafka's `kafka-dump-log --cluster-metadata-decoder` reads them.
Source: MetadataRecordSerde; TopicRecord, PartitionRecord, ConfigRecord, RemoveTopicRecord and
ProducerIdsRecord.json (metadata/src/main/resources/common/metadata), version 0 of each.
"""

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import assert_never
from uuid import UUID

from headrace.core.catalog import (
    ConfigSet,
    Event,
    PartitionsAdded,
    ProducerIdsAllocated,
    Resource,
    TopicCreated,
    TopicDeleted,
)
from headrace.core.machine import Entry
from headrace.core.types import WallMs
from headrace.wire.primitives import Malformed, NewerVersionError, Reader, Writer

_FRAME_VERSION = 1
_PARTITION_AT = 3  # after the frame version, the type and its version
_INT32 = struct.Struct(">i")


class _Type(IntEnum):
    """The API keys of the record schemas."""

    TOPIC = 2
    PARTITION = 3
    CONFIG = 4
    REMOVE_TOPIC = 9
    PRODUCER_IDS = 15


class MetadataRecords:
    """The catalogue's Journal; `node_id` is written as leader and only replica of partitions."""

    def __init__(self, node_id: int) -> None:
        self._node_id = node_id

    def records(
        self,
        events: Sequence[Event],
        written_at: WallMs,  # noqa: ARG002  # asked by Journal
    ) -> list[Entry]:
        """All events are durable, and none holds a time; every partition has a record."""
        return [Entry(None, value) for event in events for value in self._values(event)]

    def events(
        self,
        key: bytes | None,  # noqa: ARG002  # asked by Journal
        value: bytes | None,
    ) -> list[Event]:
        """The event of one record. Raises: Malformed, also on a type or version not known here."""
        if value is None:
            raise Malformed("a metadata record without a value")
        source = Reader(value)
        frame, kind, version = source.uvarint(), source.uvarint(), source.uvarint()
        if frame != _FRAME_VERSION or version != 0:
            raise NewerVersionError(
                f"metadata record type {kind} version {version} (frame {frame}) is from the future"
            )
        event = _read(kind, source)
        source.tags()
        return [event]

    def _values(self, event: Event) -> list[bytes]:
        if not isinstance(event, PartitionsAdded):
            return [self._value(event)]
        # They differ in one number, and a topic may have thousands.
        one = self._partition(event.topic_id)
        head, tail = one[:_PARTITION_AT], one[_PARTITION_AT + _INT32.size :]
        return [head + _INT32.pack(n) + tail for n in range(event.first, event.last + 1)]

    def _value(
        self, event: TopicCreated | ConfigSet | TopicDeleted | ProducerIdsAllocated
    ) -> bytes:
        out = Writer()
        out.uvarint(_FRAME_VERSION)
        match event:
            case TopicCreated(name, topic_id):
                _head(out, _Type.TOPIC)
                out.compact_string(name)
                out.uuid(topic_id)
            case ConfigSet(resource, name, config, value):
                _head(out, _Type.CONFIG)
                out.int8(resource)
                out.compact_string(name)
                out.compact_string(config)
                out.compact_nullable_string(value)
            case TopicDeleted(topic_id):
                _head(out, _Type.REMOVE_TOPIC)
                out.uuid(topic_id)
            case ProducerIdsAllocated(next_id):
                _head(out, _Type.PRODUCER_IDS)
                out.int32(self._node_id)
                out.int64(-1)
                out.int64(next_id)
            case _:
                assert_never(event)
        out.tags()
        return bytes(out.data)

    def _partition(self, topic_id: UUID) -> bytes:
        """The record of a topic's partition 0."""
        out = Writer()
        out.uvarint(_FRAME_VERSION)
        _head(out, _Type.PARTITION)
        out.int32(0)
        out.uuid(topic_id)
        for replicas in ([self._node_id], [self._node_id], [], []):
            out.compact_array(replicas, Writer.int32)
        out.int32(self._node_id)
        for epoch in (0, 0):
            out.int32(epoch)
        out.tags()
        return bytes(out.data)


def node_of(value: bytes) -> int | None:
    """Return the broker that a record names as the leader of a partition; None for other records.

    Raises: Malformed.
    """
    source = Reader(value)
    if [source.uvarint() for _ in range(3)] != [_FRAME_VERSION, _Type.PARTITION, 0]:
        return None
    source.int32()
    source.uuid()
    for _ in range(4):
        source.compact_array(Reader.int32)
    return source.int32()


def _head(out: Writer, kind: int) -> None:
    out.uvarint(kind)
    out.uvarint(0)


def _read(kind: int, source: Reader) -> Event:
    match kind:
        case _Type.TOPIC:
            return TopicCreated(source.compact_string(), source.uuid())
        case _Type.PARTITION:
            partition, topic_id = source.int32(), source.uuid()
            for _ in range(4):
                source.compact_array(Reader.int32)
            for _ in range(3):
                source.int32()
            return PartitionsAdded(topic_id, partition, partition)
        case _Type.CONFIG:
            number = source.int8()
            if number not in set(Resource):
                raise Malformed(f"configuration of a resource of type {number}")
            name, key = source.compact_string(), source.compact_string()
            return ConfigSet(Resource(number), name, key, source.compact_nullable_string())
        case _Type.REMOVE_TOPIC:
            return TopicDeleted(source.uuid())
        case _Type.PRODUCER_IDS:
            source.int32()
            source.int64()
            return ProducerIdsAllocated(source.int64())
        case _:
            raise NewerVersionError(f"metadata record type {kind} is from the future")
