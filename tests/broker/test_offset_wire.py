"""OffsetCommit and OffsetFetch by raw requests: versions, codes, and what goes with a topic."""

from typing import Any
from uuid import UUID

import pytest

from headrace.wire import codec

FETCH = 9
STRANGE = UUID(int=99)


@pytest.mark.parametrize("version", range(2, 10))
def test_committing_and_fetching_in_every_version(client: Any, version: int) -> None:
    client.create_topic("orders")
    committed = client.commit(("orders", 1, 5), ("orders", 0, 7), version=version)
    assert committed == [("orders", 1, 0), ("orders", 0, 0)]
    fetched = client.fetch(("orders", 0), ("orders", 1), ("none", 0), version=version)
    assert fetched == [("orders", 0, 7, 0), ("orders", 1, 5, 0), ("none", 0, -1, 0)]
    everything = client.fetch(version=version, everything=True)
    assert sorted(everything) == [("orders", 0, 7, 0), ("orders", 1, 5, 0)]
    assert client.fetch(("orders", 0), version=version, group="absent") == [("orders", 0, -1, 0)]
    assert client.fetch(version=version, group="absent", everything=True) == []


def test_oldest_fetch(client: Any) -> None:
    client.create_topic("orders")
    client.commit(("orders", 0, 7))
    assert client.fetch(("orders", 0), ("orders", 1), version=1) == [
        ("orders", 0, 7, 0),
        ("orders", 1, -1, 0),
    ]


def test_committing_and_fetching_by_topic_id(client: Any) -> None:
    orders = client.create_topic("orders")
    committed = client.commit((STRANGE, 0, 1), (orders, 0, 7), (orders, 9, 7), version=10)
    assert committed == [(STRANGE, 0, 100), (orders, 9, 3), (orders, 0, 0)]
    assert client.fetch((orders, 0), (STRANGE, 0), version=10) == [
        (orders, 0, 7, 0),
        (STRANGE, 0, -1, 100),
    ]
    assert client.fetch(version=10, everything=True) == [(orders, 0, 7, 0)]


def test_several_groups_are_fetched_at_once(client: Any) -> None:
    client.create_topic("orders")
    client.commit(("orders", 0, 7))
    client.commit(("orders", 0, 8), group_id="h")
    groups = tuple({"group_id": name, "topics": None} for name in ("g", "h", "absent"))
    answer = client.wire.call(FETCH, 8, groups=groups, require_stable=False)
    found = {
        one.group_id: [p.committed_offset for topic in one.topics for p in topic.partitions]
        for one in answer.groups
    }
    assert found == {"g": [7], "h": [8], "absent": []}


def test_what_is_asked_for_twice_is_told_once(client: Any) -> None:
    """A short request could otherwise make an answer of any size."""
    client.create_topic("orders")
    client.commit(("orders", 0, 7), metadata="long")
    assert client.fetch(("orders", 0), ("orders", 0), ("orders", 1)) == [
        ("orders", 0, 7, 0),
        ("orders", 1, -1, 0),
    ]
    groups = ({"group_id": "g", "topics": None},) * 3
    answer = client.wire.call(FETCH, 8, groups=groups, require_stable=False)
    assert [one.group_id for one in answer.groups] == ["g"]


def test_what_is_wrong_is_told_of_each_partition_first(client: Any) -> None:
    client.create_topic("orders")
    told = client.commit(("orders", 0, 1), ("none", 0, 1), ("orders", 2, 1), ("orders", -1, 1))
    assert told == [("none", 0, 3), ("orders", 2, 3), ("orders", -1, 3), ("orders", 0, 0)]
    assert client.commit(("orders", 0, 1), metadata="x" * 4097) == [("orders", 0, 12)]


@pytest.mark.parametrize(("version", "code"), [(9, 69), (8, 22), (2, 22)])
def test_generation_of_a_group_that_is_not_there(client: Any, version: int, code: int) -> None:
    client.create_topic("orders")
    told = client.commit(("orders", 0, 1), version=version, generation=1, member="m")
    assert told == [("orders", 0, code)]
    assert client.listed() == []


def test_commits_of_members_and_strangers(client: Any) -> None:
    client.create_topic("orders")
    member = client.stable()

    def code(generation: int, who: str) -> int:
        told = client.commit(("orders", 0, 1), generation=generation, member=who)
        return int(told[0][2])

    assert code(1, member) == 0
    assert [code(2, member), code(-1, member), code(1, "x"), code(-1, "")] == [22, 22, 25, 25]


def test_offsets_go_with_their_topic(client: Any) -> None:
    client.create_topic("orders")
    client.commit(("orders", 0, 7))
    client.delete_topic("orders")
    assert client.fetch(everything=True) == []
    client.create_topic("orders")
    assert client.fetch(("orders", 0)) == [("orders", 0, -1, 0)]
    assert client.listed() == []  # it had nothing else


def test_commits_sent_together_are_decided_in_order_and_answered_in_order(client: Any) -> None:
    client.create_topic("orders", 3)
    wire = client.wire
    for number in range(200):
        place = {
            "partition_index": number % 4, "committed_offset": number,
            "committed_leader_epoch": -1, "committed_metadata": None,
        }  # fmt: skip
        topics = [{"name": "orders", "partitions": [place]}]
        fields = {"group_id": "g", "member_id": "", "topics": topics}
        wire.send(8, 8, bytes(codec.encode_request(8, 8, fields)), number)
    asked = {"groups": [{"group_id": "g", "topics": None}], "require_stable": False}
    wire.send(FETCH, 8, bytes(codec.encode_request(FETCH, 8, asked)), 200)
    for number in range(200):
        correlation_id, body = wire.receive()
        assert correlation_id == number
        (topic,) = codec.decode_response(8, 8, body[1:]).topics
        (told,) = topic.partitions
        assert (told.partition_index, told.error_code) == (number % 4, 3 if number % 4 == 3 else 0)
    correlation_id, body = wire.receive()
    assert correlation_id == 200
    (topic,) = codec.decode_response(FETCH, 8, body[1:]).groups[0].topics
    found = {one.partition_index: one.committed_offset for one in topic.partitions}
    assert found == {0: 196, 1: 197, 2: 198}
