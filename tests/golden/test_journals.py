"""Journal bytes that Apache Kafka's own tool has read: ours reads the same, and writes the same."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest

from headrace.core.catalog import Catalog
from headrace.core.machine import Entry
from headrace.core.runs import State
from headrace.core.shard import ShareShard
from headrace.core.shard_words import Outside
from headrace.core.types import WallMs
from headrace.log.checkpointed_log import encoded
from headrace.log.lease_records import LEASE
from headrace.log.metadata_records import MetadataRecords
from headrace.log.record_codec import ShareJournal, read_share_record
from headrace.log.share_history import Delivery, Happening, RecordHistory, What
from headrace.wire import batches
from headrace.wire.primitives import Reader

HERE = Path(__file__).parent


def records(name: str) -> list[batches.Record]:
    return list(batches.records((HERE / f"{name}.log").read_bytes()))


def printed(name: str) -> list[str]:
    return (HERE / f"{name}.txt").read_text().splitlines()


def uuid_text(value: Any) -> str:
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


@pytest.mark.parametrize("name", ["share_group_state", "share_group_holds"])
def test_share_state_reads_as_kafka_read_it(name: str) -> None:
    found = zip(records(name), printed(name), strict=True)
    for record, line in found:
        assert record.key is not None
        if Reader(record.key).int16() == LEASE:
            assert "Unknown record type 20900" in line
            continue
        decoded = read_share_record(record.key, record.value)
        if decoded is None:
            assert line.endswith("payload: <DELETE>")
            continue
        match = re.fullmatch(r"key: (\{.*\}) payload: (\{.*\})", line)
        assert match is not None
        key, value = (json.loads(part)["data"] for part in match.groups())
        assert key == {
            "groupId": decoded.key.group,
            "topicId": uuid_text(decoded.key.topic_id),
            "partition": decoded.key.partition,
        }
        assert value["startOffset"] == decoded.start
        assert value["snapshotEpoch"] == decoded.snapshot_epoch
        assert value.get("stateEpoch") == decoded.state_epoch
        assert [tuple(batch.values()) for batch in value["stateBatches"]] == [
            (one.span.first, one.span.last, one.state, one.deliveries) for one in decoded.batches
        ]


def test_reasons_stand_where_kafka_passes_over_them() -> None:
    reasons = {
        batch.span.first: batch.reason
        for record in records("share_group_state")
        if (decoded := read_share_record(record.key, record.value)) is not None
        for batch in decoded.batches
        if batch.state is State.ARCHIVED
    }
    assert reasons == {
        7: "rejected by the consumer",
        57: "rejected by the consumer",
        101: "not JSON",
    }


@pytest.mark.parametrize(
    ("name", "offset", "expected"),
    [
        ("share_group_state", 0, [(1, None, "accepted")]),
        ("share_group_state", 101, [(1, None, "rejected")]),
        ("share_group_holds", 0, [(1, "slow", "lock expired"), (2, "quick", "accepted")]),
        ("share_group_holds", 1, [(1, "slow", "lock expired"), (2, "quick", "released")]),
        ("share_group_holds", 5, [(1, "slow", "lock expired"), (2, "quick", "member left")]),
        ("share_group_holds", 8, [(1, None, "rejected")]),
    ],
)
def test_who_had_records_stands_where_kafka_passes_over_it(
    name: str, offset: int, expected: list[Any]
) -> None:
    """The older journal does not say it, and is read."""
    (first, *_) = (read_share_record(one.key, one.value) for one in records(name))
    assert first is not None
    history = RecordHistory(first.key, offset)
    for record in records(name):
        history.take(record, is_whole=True)
    deliveries = [one for one in history.biography() if isinstance(one, Delivery)]
    assert not history.unreadable
    assert [(d.number, d.client and d.client.split()[0], d.outcome) for d in deliveries] == expected


def test_what_else_happened_stands_there_too() -> None:
    (first, *_) = (read_share_record(one.key, one.value) for one in records("share_group_holds"))
    assert first is not None
    history = RecordHistory(first.key, 8)
    for record in records("share_group_holds"):
        history.take(record, is_whole=True)
    started, delivery, copied, deleted = history.biography()
    assert isinstance(delivery, Delivery)
    assert (delivery.session, delivery.seq, delivery.reason) == ("checkpoint", 1, "not JSON")
    told = [one for one in (started, copied, deleted) if isinstance(one, Happening)]
    assert [(one.what, one.detail) for one in told] == [
        (What.STARTED, None), (What.DEAD_LETTER, "letters-0"), (What.DELETED, "group deletion"),
    ]  # fmt: skip


def test_share_state_is_written_as_kafka_read_it(nowhere: Outside) -> None:
    """What is replayed and journaled again gives the same bytes."""
    shard = ShareShard(nowhere)
    journal = ShareJournal(shard)
    rewriting = ShareJournal(shard)
    for record in records("share_group_state"):
        events = journal.events(record.key, record.value)
        for event in events:
            shard.apply(event)
        assert record.key is not None
        if Reader(record.key).int16() != LEASE:
            again = rewriting.records(events, WallMs(record.timestamp))
            assert again == [Entry(record.key, record.value)]


def test_catalogue_reads_and_writes_as_kafka_read_it() -> None:
    catalog, journal = Catalog(), MetadataRecords(node_id=1)
    for record, line in zip(records("cluster_metadata"), printed("cluster_metadata"), strict=True):
        told = json.loads(line.removeprefix("payload: "))
        (event,) = journal.events(record.key, record.value)
        catalog.apply(event)
        assert told["type"].replace("_", "").startswith(_KAFKA_NAMES[type(event).__name__])
        assert journal.records([event], WallMs(0)) == [Entry(record.key, record.value)]
    assert set(catalog.topics) == {"__share_group_state", "jobs", "jobs.dlq"}
    assert catalog.next_producer_id == 1000


def test_checkpoint_of_the_catalogue_is_written_as_kafka_read_it() -> None:
    catalog, journal = Catalog(), MetadataRecords(node_id=1)
    kept = records("cluster_metadata_checkpoint")
    for record in kept:
        for event in journal.events(record.key, record.value):
            catalog.apply(event)
    written_at = WallMs(kept[0].timestamp)
    again = encoded(journal.records(catalog.events(), written_at), written_at)
    assert again == (HERE / "cluster_metadata_checkpoint.log").read_bytes()
    first, *told, last = printed("cluster_metadata_checkpoint")
    assert first.startswith("SnapshotHeader")
    assert last.startswith("SnapshotFooter")
    assert len(told) == len(kept)


_KAFKA_NAMES = {
    "TopicCreated": "TOPICRECORD",
    "PartitionsAdded": "PARTITIONRECORD",
    "ConfigSet": "CONFIGRECORD",
    "TopicDeleted": "REMOVETOPICRECORD",
    "ProducerIdsAllocated": "PRODUCERIDSRECORD",
}
