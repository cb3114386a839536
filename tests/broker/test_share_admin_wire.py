"""Administration of share groups by raw requests: the rules and errors of the reference."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import headrace
from headrace.broker.partition import Partition
from headrace.client.connection import Cluster
from headrace.client.leases import Lease

from .share_wire_rig import (
    ACCEPT,
    ALTER_OFFSETS,
    DELETE_OFFSETS,
    DESCRIBE_OFFSETS,
    GROUP,
    MEMBER,
    RELEASE,
    TOPIC,
    Sharer,
    configure,
    cut,
    produce,
)

DESCRIBE, DELETE_GROUPS = 77, 42
DESCRIBE_GROUPS, CONSUMER_GROUP_DESCRIBE = 15, 69
NOTHING = (-1, -1)


class Admin(Sharer):
    """An administrator of group "g" on one bare connection, who may be a member of it too."""

    def join(self, group: str = GROUP) -> Any:
        answer = self.beat(group_id=group)
        assert answer.error_code == 0, answer.error_message
        return answer

    def leave(self) -> None:
        assert self.beat(-1, None).error_code == 0

    def describe(self, *groups: str) -> Any:
        fields = {"group_ids": groups or (GROUP,), "include_authorized_operations": False}
        return self.wire.call(DESCRIBE, 1, **fields).groups

    def offsets(self, topics: Any = None, version: int = 1, group: str = GROUP) -> Any:
        asked = {"group_id": group, "topics": topics}
        (found,) = self.wire.call(DESCRIBE_OFFSETS, version, groups=(asked,)).groups
        return found

    def places(self, **asked: Any) -> dict[tuple[str, int], tuple[int, int]]:
        """Start offset and lag of each partition."""
        found = self.offsets(**asked)
        assert found.error_code == 0
        return {
            (topic.topic_name, one.partition_index): (one.start_offset, one.lag)
            for topic in found.topics
            for one in topic.partitions
        }

    def alter(self, *starts: tuple[str, int, int], group: str = GROUP) -> Any:
        topics = [
            {"topic_name": name, "partitions": ({"partition_index": at, "start_offset": start},)}
            for name, at, start in starts
        ]
        return self.wire.call(ALTER_OFFSETS, 0, group_id=group, topics=topics)

    def altered(self, *starts: tuple[str, int, int]) -> list[tuple[str, int, int]]:
        """Topic, partition and code of each start that was to be set."""
        answer = self.alter(*starts)
        assert answer.error_code == 0, answer.error_message
        return [
            (topic.topic_name, one.partition_index, one.error_code)
            for topic in answer.responses
            for one in topic.partitions
        ]

    def delete_offsets(self, *topics: str, group: str = GROUP) -> Any:
        asked = [{"topic_name": name} for name in topics]
        return self.wire.call(DELETE_OFFSETS, 0, group_id=group, topics=asked)

    def delete(self, *groups: str) -> dict[str, int]:
        answer = self.wire.call(DELETE_GROUPS, 2, groups_names=groups)
        return {one.group_id: one.error_code for one in answer.results}


@pytest.fixture
def admin(connect: Callable[[], Any]) -> Admin:
    """With a topic of two partitions; ten records are in the first."""
    wire = connect()
    found = Admin(wire, wire.create(TOPIC, num_partitions=2).topic_id)
    produce(wire, 10)
    return found


def test_a_group_with_a_member_is_described(admin: Admin) -> None:
    epoch = admin.join().member_epoch
    (group,) = admin.describe()
    assert (group.error_code, group.group_state, group.assignor_name) == (0, "Stable", "simple")
    assert group.group_epoch == group.assignment_epoch == epoch
    assert group.authorized_operations == -(1 << 31)
    (member,) = group.members
    assert (member.member_id, member.member_epoch, member.rack_id) == (MEMBER, epoch, None)
    assert (member.client_host, member.subscribed_topic_names) == ("/127.0.0.1", (TOPIC,))
    (assigned,) = member.assignment.topic_partitions
    assert (assigned.topic_name, assigned.partitions) == (TOPIC, (0, 1))
    assert assigned.topic_id == admin.topic_id
    admin.leave()
    (group,) = admin.describe()
    assert (group.error_code, group.group_state, group.members) == (0, "Empty", ())


def test_operations_are_told_to_who_asks(admin: Admin) -> None:
    admin.join()
    fields = {"group_ids": (GROUP,), "include_authorized_operations": True}
    (group,) = admin.wire.call(DESCRIBE, 1, **fields).groups
    assert group.authorized_operations > 0


def test_a_reset_makes_the_group(admin: Admin) -> None:
    assert admin.describe()[0].error_code == 69
    assert admin.altered((TOPIC, 0, 3)) == [(TOPIC, 0, 0)]
    (group,) = admin.describe()
    assert (group.error_code, group.group_state, group.members) == (0, "Empty", ())


def test_groups_that_cannot_be_described(admin: Admin, client: Any) -> None:
    client.wire = admin.wire
    client.commit((TOPIC, 0, 1))
    admin.join("s")
    told = {
        one.group_id: (one.error_code, one.error_message) for one in admin.describe("", "x", GROUP)
    }
    assert told == {
        "": (24, "The group id is empty."),
        "x": (69, "Group x not found."),
        GROUP: (69, f"Group {GROUP} is not a share group."),
    }
    asked = {"include_authorized_operations": False}
    (old,) = admin.wire.call(DESCRIBE_GROUPS, 6, groups=("s",), **asked).groups
    assert (old.error_code, old.group_state) == (69, "Dead")
    (new,) = admin.wire.call(CONSUMER_GROUP_DESCRIBE, 1, group_ids=("s",), **asked).groups
    assert (new.error_code, new.error_message) == (69, "Group s is not a consumer group.")


def test_groups_are_listed_by_type_and_state(admin: Admin, client: Any) -> None:
    client.wire = admin.wire
    client.commit((TOPIC, 0, 1))
    admin.alter((TOPIC, 0, 0), group="empty")
    admin.join("stable")
    stable, empty = (("stable", "share", "Stable", "share"), ("empty", "share", "Empty", "share"))
    assert client.listed(types=("Share",)) == [empty, stable]
    assert client.listed("STABLE", types=("share",)) == [stable]
    assert client.listed("dead") == []
    assert client.listed(types=("nonsense",)) == []


def test_offsets_and_lag(admin: Admin) -> None:
    assert admin.altered((TOPIC, 0, 0), (TOPIC, 1, 0)) == [(TOPIC, 0, 0), (TOPIC, 1, 0)]
    assert admin.places() == {(TOPIC, 0): (0, 10), (TOPIC, 1): (0, 0)}
    admin.join()
    assert admin.take() == [(0, 9, 1)]
    assert admin.places()[TOPIC, 0] == (0, 10)  # acquired is not finished
    admin.say(ACCEPT, 0, 3)
    admin.say(ACCEPT, 6, 7)
    assert admin.places()[TOPIC, 0] == (4, 4)
    (topic,) = admin.offsets(version=0).topics
    assert [one.start_offset for one in topic.partitions] == [4, 0]


def test_a_log_that_cannot_be_opened_has_no_lag(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(self: Partition) -> int:
        raise OSError(f"{self.name} cannot be opened: it is damaged")

    admin.altered((TOPIC, 0, 0))
    with monkeypatch.context() as patched:
        patched.setattr(Partition, "high_watermark", property(unreadable))
        told = admin.offsets().topics[0].partitions[0]
    assert (told.error_code, told.start_offset, told.lag) == (56, -1, -1)
    assert told.error_message.endswith("cannot be opened: it is damaged")


def test_what_is_not_there_has_no_offsets_and_is_no_error(admin: Admin) -> None:
    admin.altered((TOPIC, 0, 0))
    asked = (
        {"topic_name": TOPIC, "partitions": (0, 7)},
        {"topic_name": "absent", "partitions": (0,)},
    )
    assert admin.places(topics=asked) == {
        (TOPIC, 0): (0, 10),
        (TOPIC, 7): NOTHING,
        ("absent", 0): NOTHING,
    }
    absent = admin.offsets(topics=asked).topics[1]
    assert absent.topic_id is None
    assert admin.places(group="unknown") == {}
    assert admin.places(group="unknown", topics=asked[:1]) == {
        (TOPIC, 0): NOTHING,
        (TOPIC, 7): NOTHING,
    }
    assert admin.places(group="") == {}


def test_a_reset_discards_locks_and_counts_at_once(admin: Admin) -> None:
    """Also in the hands of somebody who left the group and went on fetching."""
    admin.altered((TOPIC, 0, 0))
    admin.join()
    assert admin.take() == [(0, 9, 1)]
    admin.say(RELEASE, 0, 4)
    admin.leave()
    assert admin.altered((TOPIC, 0, 2)) == [(TOPIC, 0, 0)]
    assert admin.places()[TOPIC, 0] == (2, 8)
    assert admin.code((5, 9, ACCEPT)) == 121
    assert admin.take() == [(2, 9, 1)]


def test_a_poll_that_waits_is_woken_by_a_reset(admin: Admin, connect: Callable[[], Any]) -> None:
    admin.altered((TOPIC, 0, 10))
    assert admin.take() == []
    other = Admin(connect(), admin.topic_id)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(admin.take, max_wait=9000)
        assert other.altered((TOPIC, 0, 4)) == [(TOPIC, 0, 0)]
        assert waiting.result(timeout=8) == [(4, 9, 1)]


def test_a_group_with_members_is_left_alone(admin: Admin) -> None:
    admin.join()
    before = admin.places()
    for answer in (admin.alter((TOPIC, 0, 0)), admin.delete_offsets(TOPIC)):
        assert (answer.error_code, answer.responses) == (68, ())
        assert answer.error_message == "The group is not empty."
    assert admin.delete(GROUP) == {GROUP: 68}
    assert admin.places() == before


@pytest.mark.parametrize(("group", "code"), [("", 24), ("x" * 32_768, 24), ("consumers", 69)])
def test_names_that_are_no_share_groups(admin: Admin, client: Any, group: str, code: int) -> None:
    client.wire = admin.wire
    answer = client.wire.call(
        8, 9, group_id="consumers", generation_id_or_member_epoch=-1, member_id="",
        topics=({"name": TOPIC, "partitions": ({
            "partition_index": 0, "committed_offset": 1, "committed_leader_epoch": 0,
            "committed_metadata": "",
        },)},),
    )  # fmt: skip
    assert answer.topics[0].partitions[0].error_code == 0
    for refused in (admin.alter((TOPIC, 0, 0), group=group), admin.delete_offsets(group=group)):
        assert refused.error_code == code
        assert refused.error_message


def test_each_partition_has_its_own_error(admin: Admin) -> None:
    assert admin.altered((TOPIC, 0, 10), ("absent", 0, 0), (TOPIC, 7, 0), (TOPIC, 1, 1)) == [
        (TOPIC, 0, 0),
        (TOPIC, 7, 3),
        (TOPIC, 1, 1),
        ("absent", 0, 3),
    ]
    assert admin.altered((TOPIC, 1, -2)) == [(TOPIC, 1, 1)]
    assert admin.places() == {(TOPIC, 0): (10, 0), (TOPIC, 1): (0, 0)}


def test_a_start_below_the_log_is_where_the_log_begins(admin: Admin) -> None:
    cut(admin.wire, 4)
    admin.altered((TOPIC, 0, 0))
    assert admin.places()[TOPIC, 0] == (4, 6)


def test_minus_one_is_where_the_policy_leads_now(admin: Admin) -> None:
    admin.altered((TOPIC, 0, -1))
    produce(admin.wire, 3)
    assert admin.places() == {(TOPIC, 0): (10, 3), (TOPIC, 1): (0, 0)}
    configure(admin.wire, share_auto_offset_reset="earliest")
    admin.altered((TOPIC, 0, -1))
    assert admin.places()[TOPIC, 0] == (0, 13)


def test_the_other_partitions_of_a_new_topic_begin_by_policy(admin: Admin) -> None:
    """Not at 0, as partitions do that are added to a topic which the group knows."""
    produce(admin.wire, 5, partition=1)
    admin.altered((TOPIC, 0, 3))
    assert admin.places() == {(TOPIC, 0): (3, 7), (TOPIC, 1): (5, 0)}
    admin.altered((TOPIC, 1, 0))
    assert admin.places() == {(TOPIC, 0): (3, 7), (TOPIC, 1): (0, 5)}


def test_topics_are_forgotten_and_begin_anew(admin: Admin) -> None:
    admin.wire.create("other", num_partitions=1)
    admin.altered((TOPIC, 0, 0), ("other", 0, 0))
    admin.wire.create("never", num_partitions=1)
    answer = admin.delete_offsets(TOPIC, "never", "absent")
    told = {one.topic_name: (one.error_code, one.error_message) for one in answer.responses}
    assert answer.error_code == 0
    assert told == {
        TOPIC: (0, None),
        "never": (3, "There is no offset information to delete."),
        "absent": (3, "This server does not host this topic-partition."),
    }
    assert admin.places() == {("other", 0): (0, 0)}
    admin.join()
    assert admin.places()[TOPIC, 0] == (10, 0)  # latest, as for a new subscription
    refused = admin.delete_offsets(TOPIC, group="unknown")
    assert (refused.error_code, refused.error_message) == (69, "Group unknown not found.")


def test_a_group_stays_known_after_its_last_offsets_are_deleted(admin: Admin, client: Any) -> None:
    client.wire = admin.wire
    admin.altered((TOPIC, 0, 0))
    assert admin.delete_offsets(TOPIC).error_code == 0
    assert [name for name, *_ in client.listed()] == [GROUP]
    (found,) = admin.describe()
    assert (found.error_code, found.group_state) == (0, "Empty")
    assert admin.places() == {}
    assert admin.delete(GROUP) == {GROUP: 0}
    assert client.listed() == []


def test_groups_are_deleted_with_all_their_state(
    admin: Admin, client: Any, broker: headrace.Broker
) -> None:
    client.wire = admin.wire
    admin.altered((TOPIC, 0, 0))
    assert admin.delete(GROUP, "unknown") == {GROUP: 0, "unknown": 69}
    assert client.listed() == []
    assert admin.describe()[0].error_code == 69
    assert admin.places() == {}
    assert admin.delete(GROUP) == {GROUP: 69}
    assert admin.take() == []  # who goes on without it is given nothing
    assert admin.join().member_epoch == 1
    assert admin.places()[TOPIC, 0] == (10, 0)


def test_a_lease_whose_driver_is_at_work_is_a_member(admin: Admin, broker: headrace.Broker) -> None:
    with Cluster(broker.bootstrap_servers) as cluster:
        lease = Lease(cluster, GROUP, "checkpoint")
        lease.open((TOPIC,), "earliest")
        (held,) = lease.acquire(1, 100, 1000)
        assert (held.first, held.last) == (0, 9)
        (group,) = admin.describe()
        assert group.group_state == "Stable"
        (member,) = group.members
        assert (member.member_id, member.client_id) == ("checkpoint", "lease")
        assert member.assignment.topic_partitions[0].partitions == (0, 1)
        assert admin.alter((TOPIC, 0, 0)).error_code == 68
        assert admin.delete(GROUP) == {GROUP: 68}
