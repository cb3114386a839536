"""Records of `__consumer_offsets` as kafka-dump-log prints them with --offsets-decoder.

Source: OffsetCommitKey/Value.json, GroupMetadataKey/Value.json, and, for what members say of
themselves, ConsumerProtocolSubscription.json and ConsumerProtocolAssignment.json (Kafka 4.3).
"""

from base64 import b64encode
from collections.abc import Callable
from typing import Any

from headrace.cli import consumer_group_records
from headrace.cli.log_records import Decoded, as_uuid, compact
from headrace.core.consumer_events import ConsumerEvent
from headrace.core.group_events import GroupStored, OffsetCommitted
from headrace.core.group_words import Committed, Member, Snapshot
from headrace.log.consumer_group_records import KINDS, TOPICS
from headrace.log.group_records import GROUP, LEGACY_OFFSET, OFFSET, GroupJournal
from headrace.wire.primitives import Malformed, Reader

_DELETED = "<DELETE>"
_CONSUMER = "consumer"  # the protocol type whose members' words are known
_NO_EXPIRY = -1


def consumer_offsets(key: bytes | None, value: bytes | None, offset: int) -> Decoded:
    """Key and payload of a record of `__consumer_offsets`. Raises: Malformed."""
    if key is None:
        raise Malformed("a record of the consumer-group journal without a key")
    source = Reader(key)
    kind = source.int16()
    if kind in KINDS:
        return _new_protocol(kind, key, value)
    if kind not in (LEGACY_OFFSET, OFFSET, GROUP):
        return f"Unknown record type {kind} at offset {offset}, skipping.", None
    about: dict[str, Any] = {"group": source.nullable_string()}
    if kind != GROUP:
        about |= {"topic": source.nullable_string(), "partition": source.int32()}
    shown = compact({"type": str(kind), "data": about})
    (event,) = GroupJournal().events(key, value)
    if value is None:
        return shown, _DELETED
    version = Reader(value).int16()
    match event:
        case OffsetCommitted():
            data = _committed(event.committed, version)
        case GroupStored():
            data = _group(event.snapshot, version)
        case _:
            raise AssertionError(f"{event} has no value")
    return shown, compact({"version": str(version), "data": data})


def _new_protocol(kind: int, key: bytes, value: bytes | None) -> Decoded:
    about = consumer_group_records.about(kind, Reader(key, 2))
    shown = compact({"type": str(kind), "data": about})
    events = GroupJournal().events(key, value)
    if value is None:
        return shown, _DELETED
    version = Reader(value).int16()
    if kind == TOPICS:
        data = consumer_group_records.partition_metadata(Reader(value, 2))
    else:
        (event,) = events
        assert isinstance(event, ConsumerEvent)
        data = consumer_group_records.data(event)
    return shown, compact({"version": str(version), "data": data})


def _committed(committed: Committed, version: int) -> dict[str, Any]:
    data: dict[str, Any] = {"offset": committed.offset}
    if version >= 3:
        data["leaderEpoch"] = committed.leader_epoch
    data |= {"metadata": committed.metadata, "commitTimestamp": committed.committed_at}
    if version == 1:
        expires_at = committed.expires_at
        data["expireTimestamp"] = _NO_EXPIRY if expires_at is None else expires_at
    if committed.topic_id is not None:
        data["topicId"] = as_uuid(committed.topic_id)
    return data


def _group(snapshot: Snapshot, version: int) -> dict[str, Any]:
    data: dict[str, Any] = {
        "protocolType": snapshot.protocol_type or "",
        "generation": snapshot.generation,
        "protocol": snapshot.protocol,
        "leader": snapshot.leader,
    }
    if version >= 2:
        data["currentStateTimestamp"] = snapshot.state_at
    return data | {"members": [_member(one, snapshot, version) for one in snapshot.members]}


def _member(member: Member, snapshot: Snapshot, version: int) -> dict[str, Any]:
    is_known = snapshot.protocol_type == _CONSUMER
    data: dict[str, Any] = {"memberId": member.id}
    if version >= 3:
        data["groupInstanceId"] = member.instance
    data |= {"clientId": member.client_id, "clientHost": member.client_host}
    if version >= 1:
        data["rebalanceTimeout"] = member.rebalance_ms
    data["sessionTimeout"] = member.session_ms
    for name, told, read in (
        ("subscription", member.metadata(snapshot.protocol), _subscription),
        ("assignment", member.assignment, _assignment),
    ):
        data[name] = _words(told, read) if is_known else _base64(told)
    return data


def _words(told: bytes, read: Callable[[Reader], dict[str, Any]]) -> dict[str, Any] | str | None:
    """What a member says, or its bytes: a client may say what it likes."""
    try:
        return read(Reader(told))
    except Malformed:
        return _base64(told)


def _subscription(source: Reader) -> dict[str, Any]:
    version = source.int16()
    data: dict[str, Any] = {
        "topics": _array(source, Reader.nullable_string),
        "userData": _bytes(source),
    }
    if version >= 1:
        data["ownedPartitions"] = _array(source, _partitions)
    if version >= 2:
        data["generationId"] = source.int32()
    if version >= 3:
        data["rackId"] = source.nullable_string()
    return data


def _assignment(source: Reader) -> dict[str, Any]:
    source.int16()
    return {"assignedPartitions": _array(source, _partitions), "userData": _bytes(source)}


def _partitions(source: Reader) -> dict[str, Any]:
    return {"topic": source.nullable_string(), "partitions": _array(source, Reader.int32)}


def _array(source: Reader, item: Callable[[Reader], Any]) -> list[Any]:
    count = source.int32()
    if not 0 <= count <= source.remaining:
        raise Malformed(f"an array of {count} in {source.remaining} bytes")
    return [item(source) for _ in range(count)]


def _bytes(source: Reader) -> str | None:
    count = source.int32()
    return None if count < 0 else _base64(source.take(count))


def _base64(data: bytes | memoryview) -> str:
    return b64encode(data).decode()
