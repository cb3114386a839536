"""OffsetDelete (47) by raw requests: codes, their order, and what clients see afterwards."""

import struct
from typing import Any

import pytest

DELETE = 47
SUBSCRIBED = struct.pack(">hih", 0, 1, 6) + b"orders"


def delete(client: Any, *asked: tuple[str, tuple[int, ...]], group: str = "g") -> Any:
    """The code of the group, and (topic, partition, code) of each partition, in their order."""
    topics = [
        {"name": name, "partitions": [{"partition_index": index} for index in indexes]}
        for name, indexes in asked
    ]
    answer = client.wire.call(DELETE, 0, group_id=group, topics=topics)
    assert answer.throttle_time == 0
    told = [
        (topic.name, one.partition_index, one.error_code)
        for topic in answer.topics
        for one in topic.partitions
    ]
    return answer.error_code, told


@pytest.fixture
def member(client: Any) -> str:
    """A member of group "g" that subscribes to `orders`; `bills` was committed too."""
    client.create_topic("orders")
    client.create_topic("bills")
    member = str(client.stable(protocols=({"name": "range", "metadata": SUBSCRIBED},)))
    committed = client.commit(
        ("orders", 0, 1), ("bills", 0, 2), ("bills", 1, 3), generation=1, member=member
    )
    assert [code for _, _, code in committed] == [0, 0, 0]
    return member


def test_what_no_member_subscribes_to_is_deleted(client: Any, member: str) -> None:
    code, told = delete(client, ("orders", (0,)), ("bills", (0,)))
    assert (code, told) == (0, [("orders", 0, 86), ("bills", 0, 0)])
    left = client.fetch(everything=True)
    assert sorted(left) == [("bills", 1, 3, 0), ("orders", 0, 1, 0)]
    assert client.beat(member, 1) == 0


def test_partitions_that_do_not_exist_come_first(client: Any, member: str) -> None:
    asked = ("bills", (0, 9)), ("none", (0,)), ("orders", (1,)), ("bills", (-1, 1))
    code, told = delete(client, *asked)
    assert code == 0
    assert told == [
        ("bills", 9, 3), ("bills", -1, 3), ("bills", 0, 0), ("bills", 1, 0),
        ("none", 0, 3), ("orders", 1, 86),
    ]  # fmt: skip


def test_what_was_never_committed_and_what_is_asked_for_twice(client: Any, member: str) -> None:
    assert delete(client, ("bills", (1, 1))) == (0, [("bills", 1, 0)])
    assert delete(client, ("bills", (1,))) == (0, [("bills", 1, 0)])
    assert delete(client, ("bills", ())) == (0, [])


@pytest.mark.parametrize(("group", "code"), [("", 24), ("absent", 69), ("shared", 69)])
@pytest.mark.parametrize("asked", [(), (("none", (0,)),), (("orders", (0,)),)])
def test_groups_that_are_none(
    client: Any, group: str, code: int, asked: tuple[tuple[str, tuple[int, ...]], ...]
) -> None:
    """Nothing is told of any partition then, not even of one that does not exist."""
    client.create_topic("orders")
    client.share("shared")
    assert delete(client, *asked, group=group) == (code, [])


def test_members_of_another_type(client: Any) -> None:
    client.create_topic("orders")
    joined = client.join(4, protocol_type="connect").member_id
    assert client.join(member=joined, protocol_type="connect").error_code == 0
    assert client.sync(joined, 1, protocol_type="connect").error_code == 0
    assert delete(client, ("none", (0,))) == (68, [])


def test_the_order_of_the_answers_fields(client: Any) -> None:
    """Unlike in nearly all other answers, the code stands before the throttle time."""
    client.wire.send(DELETE, 0, struct.pack(">h", 6) + b"absent" + struct.pack(">i", 0))
    assert client.wire.receive() == (1, struct.pack(">hii", 69, 0, 0))
