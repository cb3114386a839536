"""Administration of share groups from Python, at a real broker and at one that misbehaves."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest

import headrace
from headrace.client.connection import Cluster
from headrace.client.errors import BrokerError, Unsupported
from headrace.client.group_offsets import alter_group_offsets
from headrace.client.groups import GroupListing
from headrace.client.offsets import OffsetSpec
from headrace.client.share_groups import (
    ShareGroupDescription,
    ShareOffset,
    alter_share_group_offsets,
    delete_share_group_offsets,
    delete_share_groups,
    describe_share_groups,
    list_share_group_offsets,
    list_share_groups,
    reset_share_group_offsets,
)
from headrace.client.topics import create_topic
from headrace.wire.codec import encode_response

RECORD_MS = 1_700_000_000_000
_JOIN_S_MAX = 60


@pytest.fixture
def real() -> Iterator[Cluster]:
    """A broker with three records, a second apart, in the first partition of `t`."""
    with headrace.Broker() as broker, Cluster(broker.bootstrap_servers) as cluster:
        create_topic(cluster, "t", 2, configs={"retention.ms": "-1"})
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
        for number in range(3):
            moment = RECORD_MS + 1000 * number
            producer.produce("t", b"%d" % number, partition=0, timestamp=moment)
        assert producer.flush(10) == 0
        yield cluster


@pytest.fixture
def share_member(real: Cluster) -> Iterator[Callable[[str], Any]]:
    """Makes share consumers of `t` that are members of a group."""
    made = []

    def make(group: str) -> Any:
        consumer = confluent_kafka.ShareConsumer(
            {
                "bootstrap.servers": real.bootstrap_servers,
                "group.id": group,
                "client.id": "worker",
                "share.acknowledgement.mode": "explicit",
            }
        )
        made.append(consumer)
        consumer.subscribe(["t"])
        until = time.monotonic() + _JOIN_S_MAX
        while not has_member(real, group):
            assert time.monotonic() < until, "it did not join"
            consumer.poll(0.1)
        return consumer

    yield make
    for consumer in made:
        consumer.close()


def has_member(cluster: Cluster, group: str) -> bool:
    """Whether somebody was given partitions."""
    found = describe_share_groups(cluster, [group])[group]
    return isinstance(found, ShareGroupDescription) and any(one.assignment for one in found.members)


def refused(found: Any) -> BrokerError:
    assert isinstance(found, BrokerError)
    return found


def started(found: ShareOffset | None) -> ShareOffset:
    assert found is not None
    return found


def test_a_group_with_a_member(real: Cluster, share_member: Any) -> None:
    consumer = share_member("live")
    found = describe_share_groups(real, ["live", "none"])
    assert refused(found["none"]).code == 69
    live = found["live"]
    assert isinstance(live, ShareGroupDescription)
    assert (live.group, live.state, live.assignor) == ("live", "Stable", "simple")
    assert live.epoch == live.assignment_epoch
    (member,) = live.members
    assert (member.client_id, member.host, member.rack) == ("worker", "/127.0.0.1", None)
    assert member.topics == {"t"}
    assert member.assignment == {("t", 0), ("t", 1)}
    assert f"127.0.0.1:{live.coordinator.port}" == real.bootstrap_servers
    assert list_share_groups(real) == [GroupListing("live", "share", "Stable", "share")]
    assert refused(alter_share_group_offsets(real, "live", {("t", 0): 0}).group_error).code == 68
    with pytest.raises(BrokerError, match="NON_EMPTY_GROUP"):
        delete_share_group_offsets(real, "live", ["t"])
    assert refused(delete_share_groups(real, ["live"])["live"]).code == 68
    consumer.close()
    assert list_share_groups(real, states=["stable"]) == []


def test_starts_are_set_listed_and_forgotten(real: Cluster) -> None:
    results = alter_share_group_offsets(real, "g", {("t", 0): 1, ("t", 9): 0})
    assert results.partition_result(("t", 0)) is None
    assert refused(results.partition_result(("t", 9))).code == 3
    assert list_share_group_offsets(real, "g") == {
        ("t", 0): ShareOffset(1, 0, 2),
        ("t", 1): ShareOffset(0, 0, 0),
    }
    assert list_share_group_offsets(real, "g", [("t", 1), ("t", 7), ("u", 0)]) == {
        ("t", 1): ShareOffset(0, 0, 0),
        ("t", 7): None,
        ("u", 0): None,
    }
    assert list_share_group_offsets(real, "g", []) == list_share_group_offsets(real, "none") == {}
    errors = delete_share_group_offsets(real, "g", ["t", "absent"])
    assert errors["t"] is None
    assert refused(errors["absent"]).code == 3
    assert list_share_group_offsets(real, "g") == {}


@pytest.mark.parametrize(
    ("spec", "start"),
    [
        (OffsetSpec.EARLIEST, 0),
        (OffsetSpec.LATEST, 3),
        (RECORD_MS + 1, 1),
        (RECORD_MS + 5000, 3),
    ],
)
def test_a_group_is_moved_in_time(real: Cluster, spec: OffsetSpec | int, start: int) -> None:
    to = {("t", 0): spec}
    assert reset_share_group_offsets(real, "g", to, dry_run=True) == {("t", 0): start}
    assert list_share_groups(real) == []
    assert reset_share_group_offsets(real, "g", to) == {("t", 0): start}
    assert started(list_share_group_offsets(real, "g")["t", 0]).start == start


def test_only_share_groups_are_deleted(real: Cluster) -> None:
    alter_group_offsets(real, "consumers", {("t", 0): 1}).check()
    alter_share_group_offsets(real, "g", {("t", 0): 0}).check()
    found = delete_share_groups(real, ["consumers", "g", "none"])
    assert found["g"] is None
    assert refused(found["consumers"]).message == "Group consumers is not a share group."
    assert refused(found["none"]).code == 69
    assert refused(alter_share_group_offsets(real, "consumers", {("t", 0): 0}).all()).code == 69


def test_both_faces_of_the_admin(real: Cluster) -> None:
    with headrace.SyncAdmin(real.bootstrap_servers) as admin:
        assert admin.reset_share_group_offsets("g", {("t", 0): OffsetSpec.EARLIEST})
        assert started(admin.list_share_group_offsets("g")["t", 0]).lag == 3
        assert [one.group for one in admin.list_share_groups()] == ["g"]
        assert admin.delete_share_groups(["g"]) == {"g": None}


def test_what_an_old_broker_does_not_tell(cluster: Cluster, script: Any) -> None:
    """Version 0 has no lag; an answer that leaves a topic out is an error of the topic."""
    script.versions |= {90: (0, 0), 77: (0, 0)}
    part = {"partition_index": 0, "start_offset": 4, "leader_epoch": 2, "error_code": 0}
    topic = {"topic_name": "t", "topic_id": None, "partitions": (part,)}
    group = {"group_id": "g", "topics": (topic,), "error_code": 0, "error_message": None}
    told: dict[int, dict[str, Any]] = {
        90: {"groups": (group,)},
        92: {"error_code": 0, "responses": ()},
    }
    for key, answer in told.items():
        body = bytes(encode_response(key, 0, {"throttle_time": 0, **answer}))
        script.answers[key] = lambda _, body=body: body
    assert list_share_group_offsets(cluster, "g") == {("t", 0): ShareOffset(4, 2, None)}
    (error,) = delete_share_group_offsets(cluster, "g", ["t"]).values()
    assert refused(error).message == "t was not included in the response"
    with pytest.raises(Unsupported):
        describe_share_groups(cluster, ["g"])


def test_a_broker_with_share_groups_off_is_not_told_to_be_another() -> None:
    settings = {"share.group.enable": "false"}
    with (
        headrace.Broker(settings=settings) as broker,
        headrace.SyncAdmin(broker.bootstrap_servers) as admin,
    ):
        consumer = headrace.SyncShareConsumer(broker.bootstrap_servers, group="g", topics=["t"])
        for call in (
            lambda: admin.describe_share_groups(["g"]),
            lambda: admin.list_archived_share_records("g"),
            lambda: admin.describe_share_partitions("g"),
            consumer.start,
        ):
            with pytest.raises(Unsupported, match=r"share groups .*on \(share.group.enable\)"):
                call()
