"""The same requests about groups, as no stock client sends them, to Kafka and Headrace: same codes.

Both sides have their answers reduced to what clients decide by: error codes, epochs, offsets. Where
Headrace means to differ, docs/consumer-groups.md says so and nothing is asked here.
"""

import time
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

from .side_by_side import Side, Sides

COMMIT, FETCH, JOIN, BEAT, LEAVE, SYNC, DESCRIBE, OFFSET_DELETE, CONSUMER_BEAT = (
    8, 9, 11, 12, 13, 14, 15, 47, 68,
)  # fmt: skip
CREATE_TOPICS, FIND_COORDINATOR = 19, 10
COMMIT_VERSIONS, FETCH_VERSIONS = range(2, 11), range(1, 11)
TOPIC_IDS_SINCE = 10
READY_SECONDS_MAX = 60
STRANGE = UUID(int=99)

Told = Iterator[tuple[str, Any]]


class Asking:
    """What a story asks one side for, about a topic of its own."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self.topic = f"requests-{uuid4()}"
        one = {"name": self.topic, "num_partitions": 3, "replication_factor": 1}
        created = side.cluster.ask(
            CREATE_TOPICS, 7, {"topics": [one | {"assignments": [], "configs": []}],
                               "timeout": 10_000, "validate_only": False},
        )  # fmt: skip
        self.topic_id: UUID = created.topics[0].topic_id
        self._wait_for_coordinators()

    def _wait_for_coordinators(self) -> None:
        """Kafka creates them at the first question, and takes a moment to load them.

        And a busy one takes a moment to know of the topic.
        """
        ask = {"key": self.group(""), "key_type": 0}
        until = time.monotonic() + READY_SECONDS_MAX
        groups = [self.group(one) for one in ("simple", "absent", "own", "classic", "consumer")]
        while (
            self.code(FIND_COORDINATOR, 3, **ask)
            or any(self.fetch(one, 9, 0)[0] for one in (*groups, ""))
            or self.commit(self.group("ready")) != [0]
        ):
            assert time.monotonic() < until, "no coordinator"
            time.sleep(0.1)

    def group(self, name: str) -> str:
        return f"{self.topic}-{name}"

    def commit(self, group: str, version: int = 9, **other: Any) -> list[int]:
        """The code of each partition, in the order of the answer."""
        name = {"topic_id": self.topic_id} if version >= TOPIC_IDS_SINCE else {"name": self.topic}
        fields = {
            "group_id": group,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "topics": [name | {"partitions": [place(0)]}],
        }
        answer = self.side.cluster.ask(COMMIT, version, fields | other)
        return [one.error_code for topic in answer.topics for one in topic.partitions]

    def fetch(self, group: str, version: int, *indexes: int, **other: Any) -> Any:
        by_id = version >= TOPIC_IDS_SINCE
        name = {"topic_id": self.topic_id} if by_id else {"name": self.topic}
        one = {"group_id": group, "topics": [name | {"partition_indexes": indexes}]} | other
        fields = {"groups": [one]} if version >= 8 else one
        answer = self.side.cluster.ask(FETCH, version, fields | {"require_stable": False})
        found = answer.groups[0] if version >= 8 else answer
        return getattr(found, "error_code", 0), sorted(
            (place.partition_index, place.committed_offset, place.metadata, place.error_code)
            for topic in found.topics
            for place in topic.partitions
        )

    def code(self, key: int, version: int, /, **fields: Any) -> int:
        return int(self.side.cluster.ask(key, version, fields).error_code)

    def delete(self, group: str, *indexes: int) -> tuple[int, list[int]]:
        partitions = [{"partition_index": index} for index in indexes]
        topics = [{"name": self.topic, "partitions": partitions}]
        answer = self.side.cluster.ask(OFFSET_DELETE, 0, {"group_id": group, "topics": topics})
        codes = [one.error_code for topic in answer.topics for one in topic.partitions]
        return answer.error_code, codes


def place(partition: int, offset: int = 1, metadata: str | None = "") -> dict[str, Any]:
    return {
        "partition_index": partition,
        "committed_offset": offset,
        "committed_leader_epoch": -1,
        "committed_metadata": metadata,
    }


def agreed(sides: Sides, story: Any) -> None:
    """Both sides tell the same, step by step."""
    kafka, headrace = sides.both(lambda side: list(story(Asking(side))))
    assert headrace == kafka


def _commits(asking: Asking) -> Told:
    simple, absent = asking.group("simple"), asking.group("absent")
    for version in COMMIT_VERSIONS:
        yield f"simple, version {version}", asking.commit(simple, version)
        told = asking.commit(absent, version, generation_id_or_member_epoch=1)
        yield f"absent, version {version}", told
    for generation in (-2, 0, 3):
        told = asking.commit(simple, generation_id_or_member_epoch=generation)
        yield f"generation {generation}", told
    yield "member of a simple group", asking.commit(simple, member_id="x")
    yield "instance of a simple group", asking.commit(simple, group_instance_id="i")
    yield "no group id", asking.commit("")
    offsets = [place(0, -5), place(9), place(1, 10**12), place(-1), place(2, 2**63 - 1)]
    topics = [
        {"name": asking.topic, "partitions": offsets},
        {"name": "no such topic", "partitions": [place(0)]},
    ]
    yield "all sorts", asking.commit(simple, topics=topics)
    offsets = [place(0, 1, "é" * 4096), place(1, 1, "😀" * 2049)]
    topics = [{"name": asking.topic, "partitions": offsets}]
    yield "long metadata", asking.commit(simple, topics=topics)
    strange = [{"topic_id": one, "partitions": [place(0)]} for one in (None, STRANGE)]
    yield "unknown ids", asking.commit(simple, 10, topics=strange)
    for retention in (0, -2, 5000, 2**63 - 1, -(2**63)):
        told = asking.commit(asking.group("own"), 2, retention_time=retention)
        yield f"retention {retention}", told


def test_commits_from_outside(sides: Sides) -> None:
    agreed(sides, _commits)


def _reads(asking: Asking) -> Told:
    simple, absent = asking.group("simple"), asking.group("absent")
    committed = [{"name": asking.topic, "partitions": [place(0, 7, "m")]}]
    yield "commit", asking.commit(simple, topics=committed)
    for version in FETCH_VERSIONS:
        yield f"simple, version {version}", asking.fetch(simple, version, 0, 1, 9, -1)
        yield f"absent, version {version}", asking.fetch(absent, version, 0)
        if version >= 2:
            yield f"all, version {version}", asking.fetch(simple, version, topics=None)
    yield "told of a member", asking.fetch(simple, 9, 0, member_id="x", member_epoch=5)
    for group in ("", absent):
        yield f"delete of {group[:1]!r}", asking.delete(group, 0)
    yield "delete", asking.delete(simple, 1, 9)


def test_reading_and_deleting_from_outside(sides: Sides) -> None:
    agreed(sides, _reads)


def _members(asking: Asking) -> Told:
    group = asking.group("classic")
    member, generation = asking.side.join(group, "consumer", b"\0\0\0\0\0\0")
    whom = {"group_id": group, "generation_id": generation, "member_id": member}
    mine: dict[str, Any] = {"generation_id_or_member_epoch": generation, "member_id": member}
    yield "commit before the assignment", asking.commit(group, **mine)
    wrong: list[dict[str, Any]] = [
        {}, {"generation_id": generation + 1}, {"generation_id": -1}, {"member_id": "x"},
        {"member_id": ""}, {"group_id": ""}, {"group_id": asking.group("absent")},
        {"group_instance_id": "i"},
    ]  # fmt: skip
    plain = {"assignments": [], "protocol_type": "consumer", "protocol_name": "range"}
    for other in (*wrong[1:], {"protocol_type": None}, {"protocol_name": "x"}, {}):
        yield f"sync {other.keys()}", asking.code(SYNC, 5, **(whom | plain | other))
    for other in wrong:
        yield f"beat {other.keys()}", asking.code(BEAT, 4, **(whom | other))
    for other in (mine, {}, mine | {"member_id": "x"}, mine | {"group_instance_id": "i"},
                  mine | {"generation_id_or_member_epoch": -1}):  # fmt: skip
        yield f"commit {other.keys()}", asking.commit(group, **other)
    for version in range(6):
        for name, who in ((group, "x"), (group, ""), ("", "x"), (asking.group("absent"), "x")):
            one = {"member_id": who, "group_instance_id": None, "reason": None}
            fields = {"members": [one]} if version >= 3 else {"member_id": who}
            answer = asking.side.cluster.ask(LEAVE, version, {"group_id": name} | fields)
            codes = [each.error_code for each in getattr(answer, "members", ())]
            yield f"leave {version} {name[:1]!r} {who!r}", (answer.error_code, codes)


def test_members_of_classic_groups(sides: Sides) -> None:
    agreed(sides, _members)


def _beats(asking: Asking) -> Told:
    group = asking.group("consumer")
    joining: dict[str, Any] = {
        "group_id": group, "member_id": "m", "member_epoch": 0, "instance_id": None,
        "rack_id": None, "rebalance_timeout": 60_000, "subscribed_topic_names": (asking.topic,),
        "subscribed_topic_regex": None, "server_assignor": None, "topic_partitions": (),
    }  # fmt: skip
    for other in (
        {"group_id": ""}, {"member_id": ""}, {"instance_id": ""}, {"rack_id": ""},
        {"rebalance_timeout": -1}, {"topic_partitions": None}, {"subscribed_topic_names": None},
        {"member_epoch": -3}, {"member_epoch": -2}, {"member_epoch": -1}, {"member_epoch": 1},
        {"server_assignor": "x"}, {"server_assignor": ""}, {"subscribed_topic_regex": "("}, {},
        {"member_epoch": 3}, {"member_epoch": 1}, {"member_id": "x", "member_epoch": 2},
        {"instance_id": "i", "member_epoch": 2}, {"member_epoch": -2},
    ):  # fmt: skip
        yield f"{other}", asking.code(CONSUMER_BEAT, 1, **(joining | other))
    for epoch in (2, 3, 1, 0, -1):
        for version in (8, 9, 10):
            mine: dict[str, Any] = {"generation_id_or_member_epoch": epoch, "member_id": "m"}
            yield f"commit {epoch} {version}", asking.commit(group, version, **mine)
        told = asking.fetch(group, 9, 0, member_id="m", member_epoch=epoch)
        yield f"fetch {epoch}", told[0]
    yield "commit from outside", asking.commit(group)
    yield "fetch from outside", asking.fetch(group, 9, 0)[0]
    yield "subscribed", asking.delete(group, 0)
    yield "leave", asking.code(CONSUMER_BEAT, 1, **(joining | {"member_epoch": -1}))
    # What librdkafka 2.16 sends when it subscribes again after unsubscribe() amid a revocation.
    incomplete = {"member_epoch": 0, "rebalance_timeout": -1, "topic_partitions": None}
    answer = asking.side.cluster.ask(CONSUMER_BEAT, 1, joining | incomplete)
    yield "subscribe after leaving", (answer.error_code, answer.error_message)
    yield "empty", asking.commit(group)


def test_members_of_the_new_protocol(sides: Sides) -> None:
    agreed(sides, _beats)
