"""Administration of share groups by raw requests: the rules and errors of the reference."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import pytest

import headrace
from headrace.broker.partition import Partition
from headrace.client.connection import Cluster
from headrace.client.leases import Lease
from headrace.wire import batches

HEARTBEAT, DESCRIBE, FETCH, ACKNOWLEDGE = 76, 77, 78, 79
DESCRIBE_OFFSETS, ALTER_OFFSETS, DELETE_OFFSETS, DELETE_GROUPS = 90, 91, 92, 42
DESCRIBE_GROUPS, CONSUMER_GROUP_DESCRIBE, PRODUCE, DELETE_RECORDS = 15, 69, 0, 21
GROUP, MEMBER, TOPIC = "g", "member", "orders"
ACCEPT, RELEASE = 1, 2
NOTHING = (-1, -1)


class Admin:
    """An administrator of group "g" on one bare connection, and a member of it."""

    def __init__(self, wire: Any) -> None:
        self.wire = wire
        self.topic_id: UUID | None = None
        self.epoch = 0

    def create(self, name: str = TOPIC, partitions: int = 2) -> UUID:
        found = self.wire.create(name, num_partitions=partitions).topic_id
        assert isinstance(found, UUID)
        self.topic_id = found
        return found

    def produce(self, count: int, partition: int = 0) -> None:
        data = batches.build([batches.Record(0, 5, b"k", b"v") for _ in range(count)])
        one = {"name": TOPIC, "partition_data": ({"index": partition, "records": data},)}
        fields = {"transactional_id": None, "acks": 1, "timeout": 1000, "topic_data": (one,)}
        self.wire.call(PRODUCE, 9, **fields)

    def beat(self, epoch: int, *topics: str, member: str = MEMBER, group: str = GROUP) -> Any:
        answer = self.wire.call(
            HEARTBEAT, 1, group_id=group, member_id=member, member_epoch=epoch, rack_id=None,
            subscribed_topic_names=topics or None,
        )  # fmt: skip
        assert answer.error_code == 0, answer.error_message
        return answer

    def fetch(self, member: str = MEMBER, wait_ms: int = 0) -> list[tuple[int, int, int]]:
        """First, last and delivery count of what is acquired of partition 0."""
        answer = self.wire.call(
            FETCH, 2, group_id=GROUP, member_id=member, share_session_epoch=self.epoch,
            max_wait=wait_ms, min_bytes=1, max_bytes=1 << 20, max_records=1000, batch_size=1000,
            share_acquire_mode=0, is_renew_ack=False, topics=self._partition(()),
            forgotten_topics_data=(),
        )  # fmt: skip
        assert answer.error_code == 0
        self.epoch += 1
        return [
            (one.first_offset, one.last_offset, one.delivery_count)
            for topic in answer.responses
            for partition in topic.partitions
            for one in partition.acquired_records
        ]

    def say(self, kind: int, first: int, last: int, member: str = MEMBER) -> int:
        ack = {"first_offset": first, "last_offset": last, "acknowledge_types": (kind,)}
        answer = self.wire.call(
            ACKNOWLEDGE, 2, group_id=GROUP, member_id=member, share_session_epoch=self.epoch,
            is_renew_ack=False, topics=self._partition((ack,)),
        )  # fmt: skip
        assert answer.error_code == 0
        self.epoch += 1
        return int(answer.responses[0].partitions[0].error_code)

    def _partition(self, acks: tuple[Any, ...]) -> Any:
        one = {"partition_index": 0, "acknowledgement_batches": acks}
        return ({"topic_id": self.topic_id, "partitions": (one,)},)

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
    found = Admin(connect())
    found.create()
    found.produce(10)
    return found


def test_a_group_with_a_member_is_described(admin: Admin) -> None:
    epoch = admin.beat(0, TOPIC).member_epoch
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
    admin.beat(-1)
    (group,) = admin.describe()
    assert (group.error_code, group.group_state, group.members) == (0, "Empty", ())


def test_operations_are_told_to_who_asks(admin: Admin) -> None:
    admin.beat(0, TOPIC)
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
    admin.beat(0, TOPIC, group="s")
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
    admin.beat(0, TOPIC, group="stable")
    stable, empty = (("stable", "share", "Stable", "share"), ("empty", "share", "Empty", "share"))
    assert client.listed(types=("Share",)) == [empty, stable]
    assert client.listed("STABLE", types=("share",)) == [stable]
    assert client.listed("dead") == []
    assert client.listed(types=("nonsense",)) == []


def test_offsets_and_lag(admin: Admin) -> None:
    assert admin.altered((TOPIC, 0, 0), (TOPIC, 1, 0)) == [(TOPIC, 0, 0), (TOPIC, 1, 0)]
    assert admin.places() == {(TOPIC, 0): (0, 10), (TOPIC, 1): (0, 0)}
    admin.beat(0, TOPIC)
    assert admin.fetch() == [(0, 9, 1)]
    assert admin.places()[TOPIC, 0] == (0, 10)  # acquired is not finished
    assert admin.say(ACCEPT, 0, 3) == 0
    assert admin.say(ACCEPT, 6, 7) == 0
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
    admin.beat(0, TOPIC)
    assert admin.fetch() == [(0, 9, 1)]
    assert admin.say(RELEASE, 0, 4) == 0
    admin.beat(-1)
    assert admin.altered((TOPIC, 0, 2)) == [(TOPIC, 0, 0)]
    assert admin.places()[TOPIC, 0] == (2, 8)
    assert admin.say(ACCEPT, 5, 9) == 121
    assert admin.fetch() == [(2, 9, 1)]


def test_a_poll_that_waits_is_woken_by_a_reset(admin: Admin, connect: Callable[[], Any]) -> None:
    admin.altered((TOPIC, 0, 10))
    assert admin.fetch() == []
    other = Admin(connect())
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(admin.fetch, wait_ms=9000)
        assert other.altered((TOPIC, 0, 4)) == [(TOPIC, 0, 0)]
        assert waiting.result(timeout=8) == [(4, 9, 1)]


def test_a_group_with_members_is_left_alone(admin: Admin) -> None:
    admin.beat(0, TOPIC)
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
    assert admin.altered(
        (TOPIC, 0, 10), ("absent", 0, 0), (TOPIC, 7, 0), (TOPIC, 1, 1), (TOPIC, 1, -2)
    ) == [(TOPIC, 0, 0), (TOPIC, 7, 3), (TOPIC, 1, 1), (TOPIC, 1, 1), ("absent", 0, 3)]
    assert admin.places() == {(TOPIC, 0): (10, 0), (TOPIC, 1): (0, 0)}


def test_a_start_below_the_log_is_where_the_log_begins(admin: Admin) -> None:
    cut = {"name": TOPIC, "partitions": ({"partition_index": 0, "offset": 4},)}
    admin.wire.call(DELETE_RECORDS, 2, topics=(cut,), timeout=1000)
    admin.altered((TOPIC, 0, 0))
    assert admin.places()[TOPIC, 0] == (4, 6)


def test_minus_one_is_where_the_policy_leads_now(admin: Admin) -> None:
    admin.altered((TOPIC, 0, -1))
    admin.produce(3)
    assert admin.places() == {(TOPIC, 0): (10, 3), (TOPIC, 1): (0, 0)}
    entry = {"name": "share.auto.offset.reset", "config_operation": 0, "value": "earliest"}
    group = {"resource_type": 32, "resource_name": GROUP, "configs": (entry,)}
    answer = admin.wire.call(44, 1, resources=(group,), validate_only=False)
    assert answer.responses[0].error_code == 0
    admin.altered((TOPIC, 0, -1))
    assert admin.places()[TOPIC, 0] == (0, 13)


def test_the_other_partitions_of_a_new_topic_begin_by_policy(admin: Admin) -> None:
    """Not at 0, as partitions do that are added to a topic which the group knows."""
    admin.produce(5, partition=1)
    admin.altered((TOPIC, 0, 3))
    assert admin.places() == {(TOPIC, 0): (3, 7), (TOPIC, 1): (5, 0)}
    admin.altered((TOPIC, 1, 0))
    assert admin.places() == {(TOPIC, 0): (3, 7), (TOPIC, 1): (0, 5)}


def test_topics_are_forgotten_and_begin_anew(admin: Admin) -> None:
    admin.create("other", 1)
    admin.altered((TOPIC, 0, 0), ("other", 0, 0))
    admin.create("never", 1)
    answer = admin.delete_offsets(TOPIC, "never", "absent")
    told = {one.topic_name: (one.error_code, one.error_message) for one in answer.responses}
    assert answer.error_code == 0
    assert told == {
        TOPIC: (0, None),
        "never": (3, "There is no offset information to delete."),
        "absent": (3, "This server does not host this topic-partition."),
    }
    assert admin.places() == {("other", 0): (0, 0)}
    admin.beat(0, TOPIC)
    assert admin.places()[TOPIC, 0] == (10, 0)  # latest, as for a new subscription
    refused = admin.delete_offsets(TOPIC, group="unknown")
    assert (refused.error_code, refused.error_message) == (69, "Group unknown not found.")


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
    assert admin.fetch() == []  # who goes on without it is given nothing
    assert admin.beat(0, TOPIC).member_epoch == 1
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
