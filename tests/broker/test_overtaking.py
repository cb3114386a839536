"""Commits that the next of the same connection overtakes: all are answered, the last remains."""

import struct
from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace
from headrace.broker.overtaking import KEY, take
from headrace.wire import codec

from .metrics_rig import METRICS, series

BROKER_SETTINGS = METRICS
VERSIONS = range(2, 10)
LIST_OFFSETS, LATEST = 2, -1
REFUSED, COUNT = 25, 100


def body(
    version: int,
    *offsets: int,
    metadata: str | None = "",
    epoch: int = -1,
    partition: int = 0,
    **other: Any,
) -> bytes:
    """A commit of these offsets for as many partitions of "orders"."""
    partitions = [
        {
            "partition_index": partition + index,
            "committed_offset": offset,
            "committed_leader_epoch": epoch,
            "committed_metadata": metadata,
        }
        for index, offset in enumerate(offsets)
    ]
    fields = {
        "group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "",
        "topics": [{"name": "orders", "partitions": partitions}],
    } | other  # fmt: skip
    return bytes(codec.encode_request(KEY, version, fields))


def frame(number: int, version: int, said: bytes, client: bytes = b"c") -> bytearray:
    head = struct.pack(">hhih", KEY, version, number, len(client)) + client
    return bytearray(head + b"\0" * codec.is_flexible(KEY, version) + said)


def taken(queue: deque[bytearray], version: int) -> list[bytearray]:
    return take(queue, flexible=codec.is_flexible(KEY, version))


@pytest.mark.parametrize("version", VERSIONS)
def test_commits_that_differ_in_their_offsets_are_taken_together(version: int) -> None:
    alike = [frame(one, version, body(version, one, -one)) for one in range(5)]
    other = frame(5, version, body(version, 5))
    queue = deque([*alike, other, other])
    assert taken(queue, version) == alike
    assert taken(queue, version) == [other, other]


@pytest.mark.parametrize(
    "other",
    [
        frame(2, 8, body(8, 1, metadata="x")),
        frame(2, 8, body(8, 1, metadata=None)),
        frame(2, 8, body(8, 1, epoch=3)),
        frame(2, 8, body(8, 1, partition=1)),
        frame(2, 8, body(8, 1, group_id="h")),
        frame(2, 8, body(8, 1, member_id="m")),
        frame(2, 8, body(8, 1, group_instance_id="i")),
        frame(2, 8, body(8, 1, generation_id_or_member_epoch=0)),
        frame(2, 8, body(8, 1), client=b"d"),
        frame(2, 9, body(9, 1)),
        frame(2, 8, body(8, 1, 1)),
        frame(2, 8, body(8, 1) + b"\0"),
    ],
)
def test_what_says_anything_else_is_not_overtaken(other: bytearray) -> None:
    one = frame(1, 8, body(8, 1))
    assert taken(deque([one, other]), 8) == [one]


def test_another_retention_is_something_else() -> None:
    short, long = (frame(1, 4, body(4, 1, retention_time=ms)) for ms in (1, 2))
    assert taken(deque([short, long]), 4) == [short]


def test_damaged_commits_are_taken_one_by_one() -> None:
    damaged = frame(1, 8, body(8, 1)[:-3])
    queue = deque([damaged, damaged.copy()])
    assert taken(queue, 8) == [damaged]
    assert len(queue) == 1


SAID = st.tuples(
    st.sampled_from([("", 0), ("", 1), ("a", 0)]), st.lists(st.integers(0, 9), max_size=2)
)


@given(st.sampled_from(VERSIONS), st.lists(SAID, min_size=1, max_size=12))
def test_runs_are_as_long_as_they_can_be_and_no_longer(
    version: int, asked: list[tuple[tuple[str, int], list[int]]]
) -> None:
    said = [
        ((metadata, partition, len(offsets)), body(
            version, *offsets, metadata=metadata, partition=partition
        ))
        for (metadata, partition), offsets in asked
    ]  # fmt: skip
    kinds = [kind if kind[2] else ("", 0, 0) for kind, _ in said]
    frames = [frame(number, version, one) for number, (_, one) in enumerate(said)]
    queue, at = deque(frames), 0
    while queue:
        run = taken(queue, version)
        assert run == frames[at : at + len(run)]
        assert len(set(kinds[at : at + len(run)])) == 1
        at += len(run)
        assert at == len(frames) or kinds[at] != kinds[at - 1]


def test_all_are_answered_and_the_last_remains(client: Any, broker: headrace.Broker) -> None:
    client.create_topic("orders")
    client.commit(("orders", 0, 0))
    before = series(broker)["headrace_offset_commits_total"][()]
    written = end_of_journal(client.wire)
    sent = [frame(number, 8, body(8, number)) for number in range(1, COUNT + 1)]
    client.wire.socket.sendall(b"".join(struct.pack(">i", len(one)) + one for one in sent))
    answers = [client.wire.receive() for _ in range(COUNT)]
    assert [number for number, _ in answers] == list(range(1, COUNT + 1))
    assert {codes(answer) for _, answer in answers} == {(0,)}
    assert client.fetch(("orders", 0)) == [("orders", 0, COUNT, 0)]
    assert end_of_journal(client.wire) - written < COUNT
    after = series(broker)["headrace_offset_commits_total"][()]
    assert after - before == COUNT


def test_all_are_refused_for_the_same_reason(client: Any) -> None:
    client.create_topic("orders")
    client.commit(("orders", 0, 7))
    said = body(8, 8, generation_id_or_member_epoch=3, member_id="stranger")
    sent = [frame(number, 8, said) for number in range(10)]
    client.wire.socket.sendall(b"".join(struct.pack(">i", len(one)) + one for one in sent))
    answers = [client.wire.receive() for _ in range(10)]
    assert [(number, codes(answer)) for number, answer in answers] == [
        (number, (REFUSED,)) for number in range(10)
    ]
    assert client.fetch(("orders", 0)) == [("orders", 0, 7, 0)]


def codes(answer: bytes) -> tuple[int, ...]:
    told = codec.decode_response(KEY, 8, answer[1:])
    return tuple(one.error_code for topic in told.topics for one in topic.partitions)


def end_of_journal(wire: Any) -> int:
    partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": LATEST}
    asked = [{"name": "__consumer_offsets", "partitions": [partition]}]
    answer = wire.call(LIST_OFFSETS, 5, replica_id=-1, isolation_level=0, topics=asked)
    return int(answer.topics[0].partitions[0].offset)
