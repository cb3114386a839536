"""Groups from an administrator's side: listed, described, deleted, their members removed."""

from typing import Any

import pytest

from headrace.client.connection import Cluster, Patience
from headrace.client.errors import BrokerError, Unreachable, Unsupported
from headrace.client.groups import (
    GroupDescription,
    GroupListing,
    alter_group_offsets,
    delete_groups,
    describe_groups,
    list_consumer_groups,
    list_groups,
    remove_members,
)
from headrace.client.topics import create_topic
from headrace.wire.codec import decode_request, encode_response
from headrace.wire.primitives import Writer

FIND_COORDINATOR, DESCRIBE, LIST, DELETE, LEAVE, CONSUMER_DESCRIBE = 10, 15, 16, 42, 13, 69


def refused(found: object) -> BrokerError:
    assert isinstance(found, BrokerError)
    return found


def description(found: object) -> GroupDescription:
    assert isinstance(found, GroupDescription)
    return found


def answer(key: int, version: int, values: dict[str, Any]) -> Any:
    return lambda body: bytes(encode_response(key, version, values))


def test_a_group_of_members_is_described(real: Cluster, joined: Any) -> None:
    create_topic(real, "d", 2)
    with joined("described", "d", group_instance_id="one"):
        found = description(describe_groups(real, ["described"])["described"])
    assert (found.group, found.type, found.protocol_type) == ("described", "classic", "consumer")
    assert (found.state, found.assignor) == ("Stable", "range")
    assert (found.epoch, found.target_epoch) == (None, None)
    assert f"127.0.0.1:{found.coordinator.port}" == real.bootstrap_servers
    (member,) = found.members
    assert member.member.startswith("one-")
    assert (member.instance, member.client_id, member.host) == ("one", "c", "/127.0.0.1")
    assert member.assignment == {("d", 0), ("d", 1)}
    assert (member.target_assignment, member.epoch, member.upgraded) == (None, None, None)


def test_a_group_of_the_new_protocol_is_described(real: Cluster, joined: Any) -> None:
    """KIP-848; while it lives and when it is empty, and as one of several types."""
    create_topic(real, "c", 2)
    alter_group_offsets(real, "c-classic", {("c", 0): 1}).check()
    with joined("c-live", "c", group_protocol="consumer"):
        both = describe_groups(real, ["c-classic", "c-live", "c-none"])
        listed = list_consumer_groups(real, types=["consumer"])
        assert [one.code for one in delete_groups(real, ["c-live"]).values() if one] == [68]
        error = alter_group_offsets(real, "c-live", {("c", 0): 1}).all()
    assert [one.group for one in listed] == ["c-live"]
    assert (listed[0].protocol_type, listed[0].state) == ("consumer", "Stable")
    assert error is not None
    assert error.code == 25
    assert description(both["c-classic"]).type == "classic"
    assert refused(both["c-none"]).message == "Group c-none not found."
    live = description(both["c-live"])
    assert (live.type, live.protocol_type, live.state) == ("consumer", "consumer", "Stable")
    assert (live.assignor, live.epoch) == ("uniform", live.target_epoch)
    (member,) = live.members
    assert member.assignment == member.target_assignment == frozenset({("c", 0), ("c", 1)})
    assert (member.client_id, member.host, member.upgraded) == ("c", "/127.0.0.1", True)
    assert member.epoch == live.epoch
    empty = description(describe_groups(real, ["c-live"])["c-live"])
    assert (empty.type, empty.state, empty.members) == ("consumer", "Empty", ())
    alter_group_offsets(real, "c-live", {("c", 0): 1}).check()
    assert delete_groups(real, ["c-live"]) == {"c-live": None}


def test_a_group_that_is_not_there_is_told_in_kafkas_words(real: Cluster) -> None:
    create_topic(real, "nt", 1)
    alter_group_offsets(real, "there", {("nt", 0): 1}).check()
    found = describe_groups(real, ["missing", "there", "missing"])
    assert list(found) == ["missing", "there"]
    assert description(found["there"]).state == "Empty"
    missing = refused(found["missing"])
    assert (missing.code, missing.name) == (69, "GROUP_ID_NOT_FOUND")
    assert missing.message == "Group missing not found."
    assert describe_groups(real, []) == {}


def test_groups_are_listed_by_state_and_type(real: Cluster, joined: Any) -> None:
    create_topic(real, "l", 1)
    alter_group_offsets(real, "l-simple", {("l", 0): 0}).check()
    simple = GroupListing("l-simple", "", "Empty", "classic")
    with joined("l-live", "l"):
        live = GroupListing("l-live", "consumer", "Stable", "classic")

        def mine(found: list[GroupListing]) -> list[GroupListing]:
            return [one for one in found if one.group.startswith("l-")]

        assert mine(list_groups(real)) == [live, simple]
        assert mine(list_groups(real, states=["stable"])) == [live]
        assert mine(list_groups(real, types=["Classic"], states=["empty"])) == [simple]
        assert list_groups(real, types=["streams"]) == []
        assert mine(list_consumer_groups(real)) == [live, simple]


def test_groups_of_others_are_no_consumer_groups(cluster: Cluster, script: Any) -> None:
    kinds = {"a": "consumer", "b": "connect", "c": "share", "d": ""}
    listed = [
        {"group_id": group, "protocol_type": kind, "group_state": "Stable", "group_type": "x"}
        for group, kind in kinds.items()
    ]
    script.answers[LIST] = answer(LIST, 5, {"error_code": 0, "groups": listed})
    assert [one.group for one in list_groups(cluster)] == ["a", "b", "c", "d"]
    assert [one.group for one in list_consumer_groups(cluster)] == ["a", "d"]


def test_an_old_broker_lists_groups_without_states_and_types(cluster: Cluster, script: Any) -> None:
    listed = {"error_code": 0, "groups": [{"group_id": "g", "protocol_type": "consumer"}]}
    script.versions[LIST] = (0, 3)
    script.answers[LIST] = answer(LIST, 3, listed)
    assert list_groups(cluster) == [GroupListing("g", "consumer", None, None)]
    with pytest.raises(Unsupported, match="API 16 in version 5"):
        list_groups(cluster, states=["Empty"])
    with pytest.raises(Unsupported, match="API 16 in version 5"):
        list_groups(cluster, types=["Classic"])


def test_groups_are_deleted_one_by_one(real: Cluster, joined: Any) -> None:
    create_topic(real, "x", 1)
    alter_group_offsets(real, "x-simple", {("x", 0): 0}).check()
    with joined("x-live", "x"):
        found = delete_groups(real, ["x-live", "x-none", "x-simple"])
    assert list(found) == ["x-live", "x-none", "x-simple"]
    live, none = refused(found["x-live"]), refused(found["x-none"])
    assert (live.code, live.message) == (68, "The group is not empty.")
    assert "stop its members first" in str(live)
    assert (none.code, none.message) == (69, "The group id does not exist.")
    assert found["x-simple"] is None
    assert refused(describe_groups(real, ["x-simple"])["x-simple"]).code == 69


def test_members_are_removed(real: Cluster, joined: Any) -> None:
    create_topic(real, "r", 1)
    with joined("r-live", "r", group_instance_id="one"):
        missing = refused(remove_members(real, "r-live", instances=["two"])["two"])
        assert (missing.code, missing.message) == (
            25,
            "The coordinator is not aware of this member.",
        )
        assert "checkpoint" not in str(missing)
        assert remove_members(real, "r-live", instances=["one"], reason="a test") == {"one": None}
        assert remove_members(real, "r-live") == {}
    with joined("r-dynamic", "r"):
        found = remove_members(real, "r-dynamic")
        assert list(found.values()) == [None]
        assert next(iter(found)).startswith("c-")
    assert remove_members(real, "r-none", instances=[]) == {}
    with pytest.raises(BrokerError, match=r"Group r-none not found\."):
        remove_members(real, "r-none")


def test_a_reason_is_cut_to_what_brokers_take(cluster: Cluster, script: Any) -> None:
    told: list[str] = []

    def leave(body: Any) -> bytes:
        asked = decode_request(LEAVE, 5, body.take(body.remaining))
        told.extend(one.reason for one in asked.members)
        member = {"member_id": "", "group_instance_id": "i", "error_code": 0}
        return bytes(encode_response(LEAVE, 5, {"error_code": 0, "members": [member]}))

    script.answers[LEAVE] = leave
    assert remove_members(cluster, "g", instances=["i"], reason="x" * 300) == {"i": None}
    assert told == ["member was removed by an admin: " + "x" * 223]
    script.answers[LEAVE] = answer(LEAVE, 5, {"error_code": 30, "members": []})
    with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
        remove_members(cluster, "g", instances=["i"])


def test_a_coordinator_that_moves_or_loads_is_asked_again(cluster: Cluster, script: Any) -> None:
    codes = [14, 16, 0]

    def delete(body: Any) -> bytes:
        result = {"group_id": "g", "error_code": codes.pop(0)}
        return bytes(encode_response(DELETE, 2, {"results": [result]}))

    script.coordinator_errors, script.answers[DELETE] = [15, 14], delete
    assert delete_groups(cluster, ["g"]) == {"g": None}
    assert (codes, script.coordinator_errors) == ([], [])
    assert script.asked.count(FIND_COORDINATOR) == 5


def test_only_what_was_not_answered_is_asked_again(cluster: Cluster, script: Any) -> None:
    asked: list[tuple[str, ...]] = []

    def delete(body: Any) -> bytes:
        groups = decode_request(DELETE, 2, body.take(body.remaining)).groups_names
        asked.append(groups)
        results = [
            {"group_id": one, "error_code": 16 if one == "moved" and len(asked) == 1 else 0}
            for one in groups
        ]
        return bytes(encode_response(DELETE, 2, {"results": results}))

    script.answers[DELETE] = delete
    assert delete_groups(cluster, ["done", "moved"]) == {"done": None, "moved": None}
    assert asked == [("done", "moved"), ("moved",)]


def test_patience_with_a_coordinator_ends(script: Any) -> None:
    script.coordinator_errors = [15] * 1000
    patience = Patience(total_s=0.2, first_s=0.01, most_s=0.05)
    with (
        Cluster(script.address, patience=patience) as cluster,
        pytest.raises(Unreachable, match=r"deleting groups: gave up.*COORDINATOR_NOT_AVAILABLE"),
    ):
        delete_groups(cluster, ["g"])


def test_deleted_groups_are_returned_when_another_group_has_no_coordinator(script: Any) -> None:
    def delete(body: Any) -> bytes:
        groups = decode_request(DELETE, 2, body.take(body.remaining)).groups_names
        results = [{"group_id": one, "error_code": 15 if one == "away" else 0} for one in groups]
        return bytes(encode_response(DELETE, 2, {"results": results}))

    script.answers[DELETE] = delete
    patience = Patience(total_s=0.2, first_s=0.01, most_s=0.05)
    with Cluster(script.address, patience=patience) as cluster:
        results = delete_groups(cluster, ["away", "done"])
    assert list(results) == ["away", "done"]
    assert results["done"] is None
    assert refused(results["away"]).name == "COORDINATOR_NOT_AVAILABLE"


def test_deleted_groups_are_returned_when_the_coordinator_of_another_is_away(script: Any) -> None:
    """The group that was deleted is not requested again, which would return 69 for it."""
    deleted: list[str] = []

    def find(body: Any) -> bytes:
        keys = decode_request(FIND_COORDINATOR, 4, body.take(body.remaining)).coordinator_keys
        ports = {"away": 1, "done": script.port}  # nothing listens on port 1
        nodes = [
            {
                "key": key,
                "node_id": ports[key],
                "host": "127.0.0.1",
                "port": ports[key],
                "error_code": 0,
                "error_message": "",
            }
            for key in keys
        ]
        return bytes(encode_response(FIND_COORDINATOR, 4, {"coordinators": nodes}))

    def delete(body: Any) -> bytes:
        deleted.extend(decode_request(DELETE, 2, body.take(body.remaining)).groups_names)
        results = [{"group_id": one, "error_code": 0} for one in deleted]
        return bytes(encode_response(DELETE, 2, {"results": results}))

    script.answers |= {FIND_COORDINATOR: find, DELETE: delete}
    patience = Patience(total_s=0.2, first_s=0.01, most_s=0.05)
    for groups in (["away", "done"], ["done", "away"]):
        deleted.clear()
        with Cluster(script.address, patience=patience) as cluster:
            results = delete_groups(cluster, groups)
        assert list(results) == groups
        assert (deleted, results["done"]) == (["done"], None)
        error = refused(results["away"])
        assert error.name == "REQUEST_TIMED_OUT"
        assert "gave up after 0.2 s" in str(error)


def test_a_member_that_a_response_leaves_out_is_not_removed(cluster: Cluster, script: Any) -> None:
    member = {"member_id": "", "group_instance_id": "i", "error_code": 0}
    script.answers[LEAVE] = answer(LEAVE, 5, {"error_code": 0, "members": [member]})
    results = remove_members(cluster, "g", instances=["i", "j"])
    assert results["i"] is None
    assert "member j was not included in the response" in str(refused(results["j"]))


def test_a_refused_look_up_is_the_answer_for_its_group(cluster: Cluster, script: Any) -> None:
    script.coordinator_errors = [30]
    found = refused(delete_groups(cluster, ["g"])["g"])
    assert found.code == 30
    assert "finding the coordinator of group 'g'" in str(found)


def test_a_group_that_an_answer_leaves_out_is_an_refused(cluster: Cluster, script: Any) -> None:
    script.answers[DELETE] = answer(DELETE, 2, {"results": []})
    assert refused(delete_groups(cluster, ["g"])["g"]).code == -1


def _described(code: int, state: str = "Stable", **fields: Any) -> dict[str, Any]:
    common = {"group_id": "g", "group_state": state, "error_code": code, "members": []}
    return {"groups": [{**common, "protocol_type": "", "protocol_data": "", **fields}]}


def test_an_old_broker_says_dead_for_not_found(cluster: Cluster, script: Any) -> None:
    script.versions[DESCRIBE] = (0, 5)
    script.answers[DESCRIBE] = answer(DESCRIBE, 5, _described(0, "Dead"))
    found = refused(describe_groups(cluster, ["g"])["g"])
    assert (found.code, found.message) == (69, "Group g not found.")


def _consumer_group(**fields: Any) -> dict[str, Any]:
    common = {
        "group_id": "g",
        "error_code": 0,
        "error_message": None,
        "group_state": "Reconciling",
        "group_epoch": 7,
        "assignment_epoch": 6,
        "assignor_name": "uniform",
        "members": [],
    }
    return {"groups": [{**common, **fields}]}


def _consumer_member(kind: int) -> dict[str, Any]:
    def some(*partitions: int) -> dict[str, Any]:
        topic = {"topic_id": None, "topic_name": "t", "partitions": partitions}
        return {"topic_partitions": [topic]}

    return {
        "member_id": "m",
        "instance_id": None,
        "member_epoch": 5,
        "client_id": "c",
        "client_host": "/1.2.3.4",
        "assignment": some(0),
        "target_assignment": some(0, 1),
        "member_type": kind,
    }


def test_a_consumer_group_tells_epochs_and_targets(cluster: Cluster, script: Any) -> None:
    members = [_consumer_member(kind) for kind in (0, 1, -1)]
    script.answers[CONSUMER_DESCRIBE] = answer(
        CONSUMER_DESCRIBE, 1, _consumer_group(members=members)
    )
    found = description(describe_groups(cluster, ["g"])["g"])
    assert (found.type, found.protocol_type, found.assignor) == ("consumer", "consumer", "uniform")
    assert (found.state, found.epoch, found.target_epoch) == ("Reconciling", 7, 6)
    assert [one.upgraded for one in found.members] == [False, True, None]
    assert found.members[0].assignment == {("t", 0)}
    assert found.members[0].target_assignment == frozenset({("t", 0), ("t", 1)})
    assert found.members[0].epoch == 5
    assert DESCRIBE not in script.asked


@pytest.mark.parametrize("code", [69, 35])
def test_what_is_no_consumer_group_is_asked_for_as_classic(
    cluster: Cluster, script: Any, code: int
) -> None:
    script.answers[CONSUMER_DESCRIBE] = answer(
        CONSUMER_DESCRIBE, 1, _consumer_group(error_code=code, error_message="not one")
    )
    script.answers[DESCRIBE] = answer(DESCRIBE, 6, _described(0, protocol_type="connect"))
    found = description(describe_groups(cluster, ["g"])["g"])
    assert (found.type, found.protocol_type) == ("classic", "connect")


def test_a_group_that_may_not_be_seen_is_not_asked_for_twice(cluster: Cluster, script: Any) -> None:
    script.answers[CONSUMER_DESCRIBE] = answer(CONSUMER_DESCRIBE, 1, _consumer_group(error_code=30))
    assert refused(describe_groups(cluster, ["g"])["g"]).code == 30
    assert DESCRIBE not in script.asked


def _assignment(version: int, *, tail: bytes = b"") -> bytes:
    out = Writer()
    out.int16(version)
    out.int32(1)
    out.nullable_string("t")
    out.int32(2)
    out.int32(0)
    out.int32(4)
    return bytes(out.data) + tail


@pytest.mark.parametrize(
    ("data", "partitions"),
    [
        (b"", set()),
        (b"\xff" * 40, set()),
        (b"\x00\x00\x7f\xff\xff\xff", set()),
        (b"\x00\x00\x00\x00\x00\x01\x00\x02\xff\xfe\x00\x00\x00\x00", set()),
        (b"connect's own", set()),
        (_assignment(0), {("t", 0), ("t", 4)}),
        (_assignment(3, tail=b"\x00\x00\x00\x02hi and more"), {("t", 0), ("t", 4)}),
    ],
    ids=["empty", "ones", "endless", "no-text", "other", "v0", "v3-with-more"],
)
def test_any_bytes_may_stand_for_an_assignment(
    cluster: Cluster, script: Any, data: bytes, partitions: set[tuple[str, int]]
) -> None:
    member = {
        "member_id": "m",
        "group_instance_id": None,
        "client_id": "c",
        "client_host": "/h",
        "member_metadata": b"",
        "member_assignment": data,
    }
    script.answers[DESCRIBE] = answer(DESCRIBE, 6, _described(0, members=[member]))
    (found,) = description(describe_groups(cluster, ["g"])["g"]).members
    assert found.assignment == partitions


def test_every_broker_of_a_cluster_lists_its_groups(cluster: Cluster, script: Any) -> None:
    other = type(script)()
    other.start()
    brokers = [
        {"node_id": node, "host": "127.0.0.1", "port": port}
        for node, port in ((2, other.port), (1, script.port))
    ]
    script.answers[3] = answer(3, 9, {"brokers": brokers, "topics": []})
    for one, group in ((script, "b"), (other, "a")):
        groups = [{"group_id": group, "protocol_type": "", "group_state": "", "group_type": ""}]
        one.answers[LIST] = answer(LIST, 5, {"error_code": 0, "groups": groups})
    assert [found.group for found in list_groups(cluster)] == ["a", "b"]
    other.close()
