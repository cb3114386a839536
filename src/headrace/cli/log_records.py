"""Records of `__share_group_state` and `__cluster_metadata` as kafka-dump-log prints them.

They are JSON of the record schemas. Only what Headrace writes is known; any other record is shown
as unknown, with its type.
Source: ShareSnapshotKey/Value.json, ShareUpdateKey/Value.json; the metadata records named in
`log/metadata_records.py`.
"""

import json
from base64 import urlsafe_b64encode
from collections.abc import Callable
from typing import Any
from uuid import UUID

from headrace.core.archived import PageForgotten, PageListed
from headrace.log.archived_records import ARCHIVED, restored
from headrace.log.lease_records import LEASE, PART, part_restored
from headrace.log.record_codec import SNAPSHOT, UPDATE
from headrace.log.retained_groups import RETAINED
from headrace.wire.primitives import Malformed, Reader

Decoded = tuple[str | None, str | None]
_COUNT_TAG = 0
_METADATA_FRAME = 1


def share_group_state(key: bytes | None, value: bytes | None, offset: int) -> Decoded:
    """Key and payload of a record of `__share_group_state`.

    Leases and lists of archived records are ours, so Kafka skips them.

    Raises: Malformed.
    """
    if key is None:
        raise Malformed("a record of the share-group journal without a key")
    source = Reader(key)
    kind = source.int16()
    if kind == PART:
        staged = part_restored(source, value)
        group, session = staged.lease
        said = {"groupId": group, "lease": session, "number": staged.seq, "part": staged.part}
        return compact({"type": str(kind), "data": said}), "<staged>"
    if kind == LEASE:
        lease = {"groupId": source.nullable_string(), "lease": source.nullable_string()}
        return compact({"type": str(kind), "data": lease}), None if value is None else "<lease>"
    if kind == ARCHIVED:
        return _archived(restored(source, value))
    if kind == RETAINED:
        shown = compact({"type": str(kind), "data": {"groupId": source.nullable_string()}})
        return shown, "null" if value is None else "<retained>"
    if kind not in (SNAPSHOT, UPDATE):
        return f"Unknown record type {kind} at offset {offset}, skipping.", None
    about = {
        "groupId": source.nullable_string(),
        "topicId": _uuid(source),
        "partition": source.int32(),
    }
    shown = compact({"type": str(kind), "data": about})
    return shown, "null" if value is None else _share_value(kind, Reader(value))


def _archived(event: PageListed | PageForgotten) -> Decoded:
    about = {
        "groupId": event.key.group,
        "topicId": as_uuid(event.key.topic_id),
        "partition": event.key.partition,
        "page": event.page,
    }
    shown = compact({"type": str(ARCHIVED), "data": about})
    if isinstance(event, PageForgotten):
        return shown, "null"
    runs = [
        {
            "number": run.number,
            "firstOffset": run.span.first,
            "lastOffset": run.span.last,
            "deliveryCount": run.deliveries,
            "reason": run.reason,
            "member": run.member,
            "timestamp": run.at,
        }
        for run in event.runs
    ]
    return shown, compact({"data": {"dropped": event.dropped, "archived": runs}})


def _share_value(kind: int, source: Reader) -> str:
    version = source.int16()
    data: dict[str, Any] = {"snapshotEpoch": source.int32()}
    if kind == SNAPSHOT:
        data["stateEpoch"] = source.int32()
    data |= {
        "leaderEpoch": source.int32(),
        "startOffset": source.int64(),
        "deliveryCompleteCount": -1,
    }
    if kind == SNAPSHOT:
        data |= {"createTimestamp": source.int64(), "writeTimestamp": source.int64()}
    data["stateBatches"] = source.compact_array(_state_batch)
    count = source.tags().get(_COUNT_TAG)
    if count is not None:
        data["deliveryCompleteCount"] = Reader(count).int32()
    return compact({"version": str(version), "data": data})


def _state_batch(source: Reader) -> dict[str, int]:
    batch = {
        "firstOffset": source.int64(),
        "lastOffset": source.int64(),
        "deliveryState": source.int8(),
        "deliveryCount": source.int16(),
    }
    source.tags()
    return batch


def cluster_metadata(key: bytes | None, value: bytes | None, offset: int) -> Decoded:  # noqa: ARG001 -- asked by log_dump.Decode
    """Payload of a record of `__cluster_metadata`; its records have no key. Raises: Malformed."""
    if value is None:
        raise Malformed("a metadata record without a value")
    source = Reader(value)
    frame, kind, version = source.uvarint(), source.uvarint(), source.uvarint()
    known = _METADATA.get(kind)
    if frame != _METADATA_FRAME or version != 0 or known is None:
        return None, f"Unknown metadata record type {kind} version {version} at offset {offset}"
    name, read = known
    return None, compact({"type": name, "version": version, "data": read(source)})


def _topic(source: Reader) -> dict[str, Any]:
    return {"name": source.compact_string(), "topicId": _uuid(source)}


def _partition(source: Reader) -> dict[str, Any]:
    data: dict[str, Any] = {"partitionId": source.int32(), "topicId": _uuid(source)}
    for name in ("replicas", "isr", "removingReplicas", "addingReplicas"):
        data[name] = source.compact_array(Reader.int32)
    for name in ("leader", "leaderEpoch", "partitionEpoch"):
        data[name] = source.int32()
    return data


def _config(source: Reader) -> dict[str, Any]:
    return {
        "resourceType": source.int8(),
        "resourceName": source.compact_string(),
        "name": source.compact_string(),
        "value": source.compact_nullable_string(),
    }


def _remove_topic(source: Reader) -> dict[str, Any]:
    return {"topicId": _uuid(source)}


def _producer_ids(source: Reader) -> dict[str, Any]:
    return {
        "brokerId": source.int32(),
        "brokerEpoch": source.int64(),
        "nextProducerId": source.int64(),
    }


_METADATA: dict[int, tuple[str, Callable[[Reader], dict[str, Any]]]] = {
    2: ("TOPIC_RECORD", _topic),
    3: ("PARTITION_RECORD", _partition),
    4: ("CONFIG_RECORD", _config),
    9: ("REMOVE_TOPIC_RECORD", _remove_topic),
    15: ("PRODUCER_IDS_RECORD", _producer_ids),
}


def _uuid(source: Reader) -> str:
    return as_uuid(source.uuid())


def as_uuid(uuid: UUID) -> str:
    """As Kafka writes one."""
    return urlsafe_b64encode(uuid.bytes).decode().rstrip("=")


def compact(about: dict[str, Any]) -> str:
    """JSON without blanks, as Kafka's tool prints it."""
    return json.dumps(about, separators=(",", ":"), ensure_ascii=False)
