"""`__consumer_offsets` as Apache Kafka's own tool has read it: ours reads and writes the same."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest

from headrace.core.group_events import (
    Event,
    GroupDropped,
    GroupStored,
    OffsetCommitted,
    OffsetDropped,
)
from headrace.core.group_words import Committed, Snapshot
from headrace.core.machine import Entry
from headrace.core.types import WallMs
from headrace.log.group_records import GroupJournal
from headrace.wire import batches

HERE = Path(__file__).parent
RECORDS = list(batches.records((HERE / "consumer_offsets.log").read_bytes()))
PRINTED = (HERE / "consumer_offsets.txt").read_text().splitlines()
CASES = list(zip(RECORDS, PRINTED, strict=True))


@pytest.mark.parametrize(("record", "line"), CASES, ids=range(len(CASES)))
def test_records_are_read_as_kafka_read_them(record: batches.Record, line: str) -> None:
    match = re.fullmatch(r"key: (\{.*\}) payload: (\{.*\}|<DELETE>)", line)
    assert match is not None
    key = json.loads(match[1])
    value = None if match[2] == "<DELETE>" else json.loads(match[2])["data"]
    (event,) = GroupJournal().events(record.key, record.value)
    assert _told(event) == (key["data"], value)


@pytest.mark.parametrize("record", RECORDS, ids=range(len(RECORDS)))
def test_records_are_written_as_kafka_read_them(record: batches.Record) -> None:
    journal = GroupJournal()
    again = journal.records(journal.events(record.key, record.value), WallMs(record.timestamp))
    assert again == [Entry(record.key, record.value)]


def test_all_kinds_of_records_are_there() -> None:
    versions = {json.loads(line.split(" payload: ")[1])["version"] for line in PRINTED[:-2]}
    assert versions == {"1", "3", "4"}
    assert [line.endswith("<DELETE>") for line in PRINTED].count(True) == 2


def _told(event: Event) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Key and value in the words of Kafka's tool."""
    match event:
        case GroupStored(group, snapshot):
            return {"group": group}, _group(snapshot)
        case GroupDropped(group):
            return {"group": group}, None
        case OffsetCommitted(group, topic, partition, committed):
            return _place(group, topic, partition), _offset(committed)
        case OffsetDropped(group, topic, partition):
            return _place(group, topic, partition), None
        case _:
            raise AssertionError(f"{event} is not durable")


def _place(group: str, topic: str, partition: int) -> dict[str, Any]:
    return {"group": group, "topic": topic, "partition": partition}


def _offset(committed: Committed) -> dict[str, Any]:
    told: dict[str, Any] = {
        "offset": committed.offset,
        "metadata": committed.metadata,
        "commitTimestamp": committed.committed_at,
    }
    if committed.expires_at is not None:
        return told | {"expireTimestamp": committed.expires_at}
    assert committed.topic_id is not None
    topic_id = base64.urlsafe_b64encode(committed.topic_id.bytes).rstrip(b"=").decode()
    return told | {"leaderEpoch": committed.leader_epoch, "topicId": topic_id}


def _group(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "protocolType": snapshot.protocol_type,
        "generation": snapshot.generation,
        "protocol": snapshot.protocol,
        "leader": snapshot.leader,
        "currentStateTimestamp": snapshot.state_at,
        "members": [
            {
                "memberId": member.id,
                "groupInstanceId": member.instance,
                "clientId": member.client_id,
                "clientHost": member.client_host,
                "rebalanceTimeout": member.rebalance_ms,
                "sessionTimeout": member.session_ms,
                "subscription": _SUBSCRIPTION[member.metadata(snapshot.protocol)],
                "assignment": _ASSIGNMENT[member.assignment],
            }
            for member in snapshot.members
        ],
    }


# What the consumer of this journal said of itself, and what its leader assigned it: the bytes, and
# what Kafka's tool read in them.
_SUBSCRIPTION = {
    b"\0\3\0\0\0\1\0\6orders\0\0\0\0\0\0\0\0\xff\xff\xff\xff\0\0": {
        "topics": ["orders"],
        "userData": "",
        "ownedPartitions": [],
        "generationId": -1,
        "rackId": "",
    }
}
_ASSIGNMENT = {
    b"\0\0\0\0\0\1\0\6orders\0\0\0\1\0\0\0\0\0\0\0\0": {
        "assignedPartitions": [{"topic": "orders", "partitions": [0]}],
        "userData": "",
    }
}
