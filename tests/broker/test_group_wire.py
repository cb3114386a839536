"""Consumer groups by raw requests: codes, versions, and who is told what on the wire."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.wire import codec

METADATA, CONFIGS = 3, 44
COMMIT, JOIN, LEAVE, DESCRIBE, LIST, DELETE = 8, 11, 13, 15, 16, 42
Connecting = Callable[[headrace.Broker], AbstractContextManager[Callable[[], Any]]]
Clients = Callable[[Any], Any]


def members(client: Any) -> list[str]:
    answer = client.wire.call(DESCRIBE, 6, groups=("g",), include_authorized_operations=False)
    return [one.member_id for one in answer.groups[0].members]


def test_first_join_needs_an_id_from_version_four_on(client: Any) -> None:
    answer = client.join(version=9)
    assert (answer.error_code, answer.generation_id, answer.leader) == (79, -1, "")
    assert answer.protocol_name is None
    assert answer.member_id.startswith("-")  # client id and uuid
    assert client.join(version=9, member=answer.member_id).generation_id == 1
    refused = client.join(version=4, group_id="h")
    assert (refused.error_code, refused.protocol_name) == (79, "")


@pytest.mark.parametrize("version", range(10))
def test_every_version_joins_syncs_and_leaves(client: Any, version: int) -> None:
    member = client.join(version).member_id if version >= 4 else ""
    joined = client.join(version, member)
    assert (joined.error_code, joined.generation_id, joined.protocol_name) == (0, 1, "range")
    assert joined.leader == joined.member_id
    (peer,) = joined.members
    assert (peer.member_id, peer.metadata) == (joined.member_id, b"topics")
    synced = client.sync(joined.member_id, 1, min(version, 5))
    assert (synced.error_code, synced.assignment) == (0, b"all")
    assert client.beat(joined.member_id, 1) == 0


@pytest.mark.parametrize("version", range(6))
def test_leaving_in_every_version(client: Any, version: int) -> None:
    member = client.stable()

    def leave(group: str, who: str) -> tuple[int, list[int]]:
        fields: dict[str, Any] = {"member_id": who}
        if version >= 3:
            fields = {"members": ({"member_id": who, "group_instance_id": None, "reason": None},)}
        answer = client.wire.call(LEAVE, version, group_id=group, **fields)
        return answer.error_code, [one.error_code for one in getattr(answer, "members", ())]

    assert leave("", member)[0] == 24
    assert leave("absent", member) == ((25, []) if version < 3 else (0, [25]))
    assert leave("g", "stranger") == ((25, []) if version < 3 else (0, [25]))
    assert leave("g", member) == ((0, []) if version < 3 else (0, [0]))
    assert client.listed() == [("g", "consumer", "Empty", "classic")]


def test_codes_of_members(client: Any) -> None:
    member = client.stable()
    assert client.join(member=member, protocols=()).error_code == 23
    assert client.join(group_id="").error_code == 24
    assert client.join(session_timeout=1).error_code == 26
    unknown = client.join(member="stranger")
    assert (unknown.error_code, unknown.member_id) == (25, "stranger")
    assert client.sync(member, 1, protocol_type=None).error_code == 23
    assert client.sync(member, 1, protocol_name="other").error_code == 23
    assert client.sync(member, 2).error_code == 22
    assert client.sync(member, 1, group_id="").error_code == 24
    assert client.sync(member, 1, group_id="absent").error_code == 25
    assert [client.beat(member, 1, group) for group in ("g", "", "absent")] == [0, 24, 25]
    assert client.beat(member, 7) == 22


def test_full_group_says_so_without_an_id(connecting: Connecting, group_client: Clients) -> None:
    with headrace.Broker(settings={"group.max.size": 1}) as broker, connecting(broker) as connect:
        client = group_client(connect())
        client.stable()
        answer = client.join()
        assert (answer.error_code, answer.member_id) == (81, "")


def test_join_waits_for_the_other_member(
    connect: Callable[[], Any], client: Any, group_client: Clients
) -> None:
    first = client.stable()
    second = group_client(connect())
    other = second.join().member_id
    second.wire.send(JOIN, 9, bytes(codec.encode_request(JOIN, 9, second.joining(other))))
    client.beat_until(27, first, 1)
    assert client.join(member=first).generation_id == 2
    _, body = second.wire.receive()
    answer = codec.decode_response(JOIN, 9, body[1:])
    assert (answer.error_code, answer.generation_id, answer.members) == (0, 2, ())


@pytest.mark.parametrize("behind", [(LEAVE,), (METADATA, COMMIT, LEAVE)])
def test_who_leaves_behind_its_waiting_join_and_hangs_up_is_gone(
    connect: Callable[[], Any], client: Any, group_client: Clients, behind: tuple[int, ...]
) -> None:
    """So do clients that are closed while their group rebalances; its session goes on for long."""
    first = client.stable()
    second = group_client(connect())
    other = second.join(session_timeout=300_000).member_id
    fields = second.joining(other, session_timeout=300_000)
    second.wire.send(JOIN, 9, bytes(codec.encode_request(JOIN, 9, fields)))
    client.beat_until(27, first, 1)
    leaver = {"member_id": other, "group_instance_id": None, "reason": None}
    requests: dict[int, tuple[int, dict[str, Any]]] = {
        METADATA: (4, {"topics": (), "allow_auto_topic_creation": False}),
        COMMIT: (
            6,
            {"group_id": "g", "member_id": other, "generation_id_or_member_epoch": 1, "topics": ()},
        ),
        LEAVE: (5, {"group_id": "g", "members": (leaver,)}),
    }
    for key in behind:
        version, asked = requests[key]
        second.wire.send(key, version, bytes(codec.encode_request(key, version, asked)))
    second.wire.close()
    deadline = time.monotonic() + 30
    while members(client) != [first]:
        assert time.monotonic() < deadline, "the member is still in the group"
    assert client.join(member=first).generation_id == 2
    assert members(client) == [first]


def test_stopping_broker_answers_those_who_wait(
    connecting: Connecting, group_client: Clients
) -> None:
    broker = headrace.Broker().start()
    with connecting(broker) as connect:
        client, second = group_client(connect()), group_client(connect())
        first = client.stable()
        other = second.join().member_id
        second.wire.send(JOIN, 9, bytes(codec.encode_request(JOIN, 9, second.joining(other))))
        client.beat_until(27, first, 1)
        broker.stop()
        answer = codec.decode_response(JOIN, 9, second.wire.receive()[1][1:])
        assert answer.error_code == 15


def test_describing_groups(client: Any) -> None:
    client.create_topic("orders")
    member = client.stable()
    client.commit(("orders", 0, 1), group_id="simple")
    assert client.share("shared") == 0
    names = ("g", "simple", "shared", "absent")

    def described(version: int) -> dict[str, Any]:
        answer = client.wire.call(
            DESCRIBE, version, groups=names, include_authorized_operations=True
        )
        return {one.group_id: one for one in answer.groups}

    told = described(6)
    assert (told["g"].group_state, told["g"].protocol_type) == ("Stable", "consumer")
    assert (told["g"].protocol_data, told["g"].authorized_operations) == ("range", 3400)
    (one,) = told["g"].members
    assert (one.member_id, one.client_host) == (member, "/127.0.0.1")
    assert (one.member_metadata, one.member_assignment) == (b"topics", b"all")
    assert (told["simple"].group_state, told["simple"].members) == ("Empty", ())
    for name, why in (("absent", "Group absent not found."), ("shared", "not a classic group.")):
        assert (told[name].error_code, told[name].group_state) == (69, "Dead")
        assert told[name].error_message.endswith(why)
        assert told[name].authorized_operations == -(2**31), "of nothing, nothing is told"
    for name in ("absent", "shared"):
        assert (described(5)[name].error_code, described(5)[name].group_state) == (0, "Dead")
    assert described(0)["g"].group_state == "Stable"


def test_listing_groups_by_state_and_type(client: Any) -> None:
    client.create_topic("orders")
    client.stable()
    client.commit(("orders", 0, 1), group_id="simple")
    assert client.share("shared") == 0
    stable = ("g", "consumer", "Stable", "classic")
    simple, shared = ("simple", "", "Empty", "classic"), ("shared", "share", "Stable", "share")
    assert client.listed() == [stable, shared, simple]
    assert client.listed(" stable ") == [stable, shared]
    assert client.listed("EMPTY", "stable", types=("Classic",)) == [stable, simple]
    assert client.listed(types=("share",)) == [shared]
    assert client.listed("bogus") == client.listed(types=("bogus",)) == []
    assert len(client.wire.call(LIST, 0).groups) == 3


def test_deleting_groups(client: Any) -> None:
    client.create_topic("orders")
    client.stable()
    client.commit(("orders", 0, 1), group_id="simple")
    assert client.share("shared") == 0
    names = ("simple", "g", "shared", "absent", "simple")
    answer = client.wire.call(DELETE, 2, groups_names=names)
    codes = {one.group_id: one.error_code for one in answer.results}
    assert codes == {"simple": 0, "g": 68, "shared": 68, "absent": 69}
    assert len(answer.results) == 4
    assert client.fetch(group="simple", everything=True) == []


def test_group_is_of_one_type(client: Any) -> None:
    client.create_topic("orders")
    client.stable()
    assert client.share("g") == 69
    assert client.share("shared") == 0
    assert client.join(group_id="shared").error_code == 23
    assert client.sync("m", 1, group_id="shared").error_code == 25
    for version in (2, 9):
        told = client.commit(("orders", 0, 1), group_id="shared", version=version)
        assert told == [("orders", 0, 69)]


def test_group_type_is_fixed_before_the_first_member(client: Any) -> None:
    client.create_topic("orders")
    for group, kind in (("a", "share"), ("b", "consumer")):
        config = {"name": "group.type", "config_operation": 0, "value": kind}
        resource = {"resource_type": 32, "resource_name": group, "configs": (config,)}
        answer = client.wire.call(CONFIGS, 1, resources=(resource,), validate_only=False)
        assert answer.responses[0].error_code == 0
    assert client.join(group_id="a").error_code == 23
    assert client.commit(("orders", 0, 1), group_id="a") == [("orders", 0, 69)]
    assert client.share("b") == 69
    assert client.join(group_id="b").error_code == 79
    assert client.share("a") == 0


def test_restart_loses_neither_members_nor_offsets(
    connecting: Connecting, tmp_path: Path, group_client: Clients
) -> None:
    settings = {"offsets.topic.num.partitions": 3}
    with headrace.Broker(tmp_path, settings=settings) as broker, connecting(broker) as connect:
        client = group_client(connect())
        client.create_topic("orders")
        member = client.stable()
        assert client.commit(("orders", 0, 7), generation=1, member=member)[0][2] == 0
        assert client.commit(("orders", 1, 8), group_id="other")[0][2] == 0
        topics = {
            one.name: one
            for one in client.wire.call(
                METADATA,
                12,
                topics=None,
                allow_auto_topic_creation=False,
                include_topic_authorized_operations=False,
            ).topics
        }
        assert topics["__consumer_offsets"].is_internal
        assert len(topics["__consumer_offsets"].partitions) == 3
    with headrace.Broker(tmp_path) as broker, connecting(broker) as connect:
        client = group_client(connect())
        assert client.beat(member, 1) == 0
        assert client.sync(member, 1).assignment == b"all"
        assert client.fetch(everything=True) == [("orders", 0, 7, 0)]
        assert client.fetch(group="other", everything=True) == [("orders", 1, 8, 0)]


def test_a_group_asked_for_twice_is_described_once(client: Any) -> None:
    """A short request could otherwise make an answer of any size."""
    client.stable()
    answer = client.wire.call(
        DESCRIBE, 6, groups=["g", "no", "g"], include_authorized_operations=False
    )
    assert [(one.group_id, one.error_code) for one in answer.groups] == [("g", 0), ("no", 69)]
