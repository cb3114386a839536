"""Bare requests of share groups to Apache Kafka and to Headrace: each error row, both versions.

One story, told to both brokers at the same time; what is meant to differ is listed here, with the
reason. tests/broker holds the same rows against Headrace alone, and what they leave behind.
"""

import time
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from tests.broker.conftest import Wire
from tests.broker.share_wire_rig import (
    ACCEPT,
    GAP,
    NOTHING_FETCHED,
    REJECT,
    RELEASE,
    RENEW,
    Ack,
    Sharer,
    configure,
    partition_of,
    produce,
)

from .side_by_side import Side, Sides

RECORDS = 20
SECONDS_MAX = 60
ALREADY_THERE = 36
Told = dict[str, Any]

# What differs on purpose: Kafka's answer, ours, and why.
INTENDED: dict[str, tuple[Any, Any, str]] = {
    "heartbeat: group unknown": (69, 25, "69 is fatal to clients; on 25 they rejoin"),
    "heartbeat: leave, group unknown": (69, 25, "the same"),
    "fetch: acquire mode 2": (-1, 42, "the request is at fault, not the server"),
    "fetch: topic unknown": (-1, 100, "a topic that is gone fails alone"),
}


def member(wire: Any, topic: UUID, group: str, version: int, name: str = "m") -> Sharer:
    return Sharer(wire, topic, name, group=group, version=version)


def ready(side: Side, group: str, version: int) -> tuple[Sharer, Sharer]:
    """Two members of a group over connections of their own; the first holds RECORDS records."""
    wire, second = Wire(side.port), Wire(side.port)
    topic = created(wire)
    lock = {"share.record.lock.duration.ms": "60000"}  # which is to outlast the story
    configure(wire, group, **{"share.auto.offset.reset": "earliest"}, **lock)
    one = member(wire, topic, group, version)
    joined(one)
    deadline = time.monotonic() + SECONDS_MAX
    # Kafka initializes a share-partition when it is first fetched, and needs another fetch then.
    while one.take(max_wait=500) != [(0, RECORDS - 1, 1)]:
        assert time.monotonic() < deadline
    other = member(second, topic, group, version, "other")
    other.fetch()
    return one, other


def produced_by(wire: Any) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        try:
            produce(wire, RECORDS)
        except AssertionError:  # the leader is not elected yet
            assert time.monotonic() < deadline
            time.sleep(0.1)
        else:
            return


def created(wire: Any) -> UUID:
    """The topic of all rows, made and filled by who comes first."""
    topic = {"name": "orders", "num_partitions": 1, "replication_factor": 1}
    asked = (topic | {"assignments": (), "configs": ()},)
    made = wire.call(19, 7, topics=asked, timeout=30_000, validate_only=False).topics[0]
    assert made.error_code in (0, ALREADY_THERE), made
    if made.error_code == 0:
        produced_by(wire)
    asked = ({"topic_id": None, "name": "orders"},)
    answer = wire.call(
        3, 12, topics=asked, allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )  # fmt: skip
    found = answer.topics[0].topic_id
    assert isinstance(found, UUID), answer
    return found


def joined(one: Sharer) -> int:
    """Join until there is an assignment; the epoch."""
    deadline = time.monotonic() + SECONDS_MAX
    # Kafka makes the topic of groups when a coordinator is looked for.
    asked = {"key_type": 0, "coordinator_keys": (one.group,)}
    while one.wire.call(10, 4, **asked).coordinators[0].error_code:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    answer = one.beat()
    while answer.error_code or not answer.assignment or not answer.assignment.topic_partitions:
        assert time.monotonic() < deadline, answer
        time.sleep(0.2)
        answer = one.beat()
    return int(answer.member_epoch)


def heartbeats(one: Sharer, group: str) -> Iterator[tuple[str, Any]]:
    def code(**fields: Any) -> int:
        return int(one.beat(**fields).error_code)

    epoch = joined(one)
    yield "heartbeat: no group", code(group_id="")
    yield "heartbeat: no member", code(member_id="")
    yield "heartbeat: 37 characters", code(member_id="x" * 37)
    yield "heartbeat: 36 characters", code(member_id="x" * 36)
    yield "heartbeat: empty rack", code(rack_id="")
    yield "heartbeat: epoch -2", code(member_epoch=-2)
    yield "heartbeat: joins without topics", code(subscribed_topic_names=None)
    yield "heartbeat: joins with no topics", code(subscribed_topic_names=())
    yield "heartbeat: group unknown", code(group_id=f"{group}-no", member_epoch=1)
    yield "heartbeat: leave, group unknown", code(group_id=f"{group}-no", member_epoch=-1)
    yield "heartbeat: member unknown", code(member_id="stranger", member_epoch=1)
    yield "heartbeat: leave, member unknown", code(member_id="stranger", member_epoch=-1)
    yield "heartbeat: epoch of the future", code(member_epoch=epoch + 99)
    late = member(one.wire, one.topic_id, group, 1, "late")
    answer = late.beat()
    answer = late.beat(answer.member_epoch, ())
    yield "heartbeat: unsubscribes", (answer.error_code, len(answer.assignment.topic_partitions))
    answer = late.beat(-1, None)
    yield "heartbeat: leaves", (answer.error_code, answer.member_epoch, answer.heartbeat_interval)
    yield "heartbeat: assignment of who leaves", answer.assignment


def sessions(one: Sharer, other: Sharer) -> Iterator[tuple[str, Any]]:
    new = member(one.wire, one.topic_id, one.group, one.version, "new")
    yield "fetch: no session", new.fetch(epoch=1).error_code
    yield "fetch: ends no session", new.fetch(epoch=-1).error_code
    yield "acknowledge: no session", new.acknowledge(epoch=1).error_code
    yield "acknowledge: ends no session", new.acknowledge(epoch=-1).error_code
    yield "acknowledge: epoch 0", new.acknowledge((0, 0, ACCEPT), epoch=0).error_code
    yield "fetch: opens with acknowledgements", new.fetch((0, 0, ACCEPT), epoch=0).error_code
    yield "fetch: opens with nothing", new.fetch(topics=()).error_code
    for epoch in (2, 99):
        yield f"fetch: epoch {epoch} for 1", new.fetch(epoch=epoch).error_code
        yield f"acknowledge: epoch {epoch} for 1", new.acknowledge(epoch=epoch).error_code
    yield "acknowledge: moves the epoch", new.acknowledge().error_code
    yield "fetch: goes on", new.fetch().error_code
    for name, fields in (
        ("no group", {"group_id": None}),
        ("no member", {"member_id": ""}),
        ("37 characters", {"member_id": "x" * 37}),
    ):
        yield f"fetch: {name}", new.fetch(epoch=3, **fields).error_code
        yield f"acknowledge: {name}", new.acknowledge(epoch=3, **fields).error_code
    yield "fetch: refusals consume no epoch", new.fetch().error_code
    if one.version == 2:
        limits = NOTHING_FETCHED | {"max_records": 1}
        refused = new.fetch(epoch=4, is_renew_ack=True, **limits)
        yield "fetch: a renewal that fetches", refused.error_code
        yield "fetch: which consumes no epoch", new.fetch().error_code
        asked = {"share_acquire_mode": 2, "topics": new.topics(always=True)}
        yield "fetch: acquire mode 2", new.fetch(epoch=5, **asked).error_code
        yield "fetch: which consumes the epoch", new.fetch(epoch=6).error_code
    yield "fetch: index unknown", index_unknown(other)
    yield "fetch: topic unknown", topic_unknown(other)


def index_unknown(one: Sharer) -> int:
    elsewhere = member(one.wire, one.topic_id, one.group, one.version, "elsewhere")
    elsewhere.partition = 7
    return int(partition_of(elsewhere.fetch()).error_code)


def topic_unknown(one: Sharer) -> int:
    elsewhere = member(one.wire, UUID(int=77), one.group, one.version, "nowhere")
    answer = elsewhere.fetch()
    return int(answer.error_code or partition_of(answer).error_code)


MALFORMED: dict[str, list[Ack]] = {
    "last before first": [(5, 4, ACCEPT)],
    "goes back": [(3, 4, ACCEPT), (1, 2, ACCEPT)],
    "overlaps": [(3, 6, ACCEPT), (5, 7, ACCEPT)],
    "begins where the last ended": [(3, 4, ACCEPT), (4, 5, ACCEPT)],
    "no types": [(3, 4)],
    "too few types": [(3, 5, ACCEPT, ACCEPT)],
    "too many types": [(3, 3, ACCEPT, ACCEPT)],
    "type 5": [(3, 4, 5)],
    "type -1": [(3, 4, -1)],
    "renewal that was not announced": [(3, 4, RENEW)],
    "ends beyond what is in flight": [(RECORDS - 1, RECORDS, ACCEPT)],
    "begins beyond what is in flight": [(RECORDS, RECORDS + 1, ACCEPT)],
    "far beyond": [(RECORDS + 40, RECORDS + 41, ACCEPT)],
}


def acknowledgements(one: Sharer, other: Sharer) -> Iterator[tuple[str, Any]]:
    for name, acks in MALFORMED.items():
        yield f"ack: {name}", one.code(*acks)
        yield f"ack on a fetch: {name}", piggybacked(one, *acks)
    yield "ack: somebody else's", other.code((0, 0, ACCEPT))
    yield "ack: one of two batches is bad", one.code((0, 0, ACCEPT), (RECORDS, RECORDS, ACCEPT))
    if one.version == 2:
        yield "ack: renewal", one.code((0, 9, RENEW), is_renew_ack=True)
        yield "ack: announced, none there", one.code((0, 0, ACCEPT), is_renew_ack=True)
    else:
        yield "ack: accepted", one.code((0, 0, ACCEPT))
    yield "ack: below SPSO", one.code((0, 0, REJECT))
    yield "ack: a type each", one.code((5, 8, ACCEPT, RELEASE, REJECT, GAP))
    for offset in (5, 6, 7, 8):
        yield f"ack: {offset} once more", one.code((offset, offset, ACCEPT))
    yield "ack: across SPSO", one.code((0, 1, ACCEPT))
    yield "ack: from held to released", one.code((4, 6, ACCEPT))
    yield "ack: no batches", len(one.acknowledge(topics=one.topics(always=True)).responses)
    one.partition = 7
    yield "ack: index unknown", one.code((0, 0, ACCEPT))
    one.partition = 0
    yield "ack: the rest", one.code((2, 4, ACCEPT), (9, RECORDS - 1, ACCEPT))
    yield "fetch: what was released", other.take(max_wait=2000)
    yield "fetch: ends the session", other.fetch((6, 6, ACCEPT), epoch=-1).error_code


def piggybacked(one: Sharer, *acks: Ack) -> int:
    return int(partition_of(one.fetch(*acks, max_records=0)).acknowledge_error_code)


@pytest.mark.parametrize("version", [1, 2])
def test_both_answer_alike(sides: Sides, version: int) -> None:
    def story(side: Side) -> Told:
        one, other = ready(side, f"rows-{version}", version)
        told = dict(heartbeats(one, one.group))
        told |= dict(sessions(one, other))
        told |= dict(acknowledgements(one, other))
        one.wire.close()
        other.wire.close()
        return told

    kafka, headrace = sides.both(story)
    assert len(kafka) > 60
    meant = {
        name: (theirs, ours) for name, (theirs, ours, _) in INTENDED.items() if name in headrace
    }
    differ = {
        name: (kafka.get(name), headrace.get(name))
        for name in kafka | headrace
        if kafka.get(name) != headrace.get(name)
    }
    assert differ == meant
