"""Members of share groups over bare connections, to Apache Kafka and Headrace alike.

Answers are reduced to what clients decide by: codes, acquired ranges with their delivery counts,
offsets of the records sent.
"""

import contextlib
import time
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

from headrace.client.connection import Cluster
from headrace.wire import batches

from .side_by_side import Side

PRODUCE, FIND_COORDINATOR, CREATE_TOPICS, DELETE_TOPICS, ALTER_CONFIGS = 0, 10, 19, 20, 44
HEARTBEAT, DESCRIBE, FETCH, ACKNOWLEDGE, OFFSETS, ALTER_OFFSETS = 76, 77, 78, 79, 90, 91
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
GROUP_RESOURCE, SET = 32, 0
SECONDS_MAX = 60
SOON_MS, WAIT_MS = 100, 10_000  # how long a poll waits that is to find nothing, or something
LEADERLESS = {3, 5, 6}  # a busy Kafka takes a moment to know of a topic that it has created
JOIN, LEAVE, FINAL = 0, -1, -1
# Between the steps of a story tools may run: no lock ends meanwhile, and nobody is missed.
_PATIENT = {"share_record_lock_duration_ms": "60000", "share_session_timeout_ms": "60000"}


class Asking:
    """A topic of one partition and a group of its name, new on one side; its bare members."""

    def __init__(self, side: Side, name: str | None = None, **settings: str) -> None:
        self.side = side
        self.name = name or f"asked-{uuid4()}"
        self.topic_id = self._created()
        self.set(share_auto_offset_reset="earliest", **(_PATIENT | settings))
        self._open = contextlib.ExitStack()

    def __enter__(self) -> "Asking":
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _created(self) -> UUID:
        topic = {
            "name": self.name, "num_partitions": 1, "replication_factor": 1,
            "assignments": [], "configs": [],
        }  # fmt: skip
        answer = self.side.cluster.ask(
            CREATE_TOPICS, 7, {"topics": [topic], "timeout": 10_000, "validate_only": False}
        )
        found: UUID = answer.topics[0].topic_id
        return found

    def deleted(self) -> None:
        gone = {"topics": [{"name": self.name, "topic_id": None}], "timeout": 10_000}
        self.side.cluster.ask(DELETE_TOPICS, 6, gone)

    def set(self, **settings: str) -> None:
        configs = [
            {"name": name.replace("_", "."), "config_operation": SET, "value": value}
            for name, value in settings.items()
        ]
        resource = {
            "resource_type": GROUP_RESOURCE, "resource_name": self.name, "configs": configs
        }  # fmt: skip
        asked = {"resources": [resource], "validate_only": False}
        (answer,) = self.side.cluster.ask(ALTER_CONFIGS, 1, asked).responses
        assert answer.error_code == 0, answer

    def produce(self, *sizes: int) -> None:
        """One batch of each size."""
        for size in sizes:
            self.append([batches.Record(0, 5, b"k", b"v")] * size)

    def append(self, records: list[batches.Record]) -> None:
        """One batch."""
        data = batches.build(records)
        topic = {"name": self.name, "partition_data": [{"index": 0, "records": data}]}
        asked = {"transactional_id": None, "acks": 1, "timeout": 10_000, "topic_data": [topic]}
        until = time.monotonic() + SECONDS_MAX
        while code := self._produced(asked):
            assert code in LEADERLESS, code
            assert time.monotonic() < until, "no leader"
            time.sleep(0.05)

    def _produced(self, asked: dict[str, Any]) -> int:
        answer = self.side.cluster.ask(PRODUCE, 9, asked)
        return int(answer.responses[0].partition_responses[0].error_code)

    def member(self, name: str = "m", *, joins: bool = True) -> "Member":
        """One that was assigned the partition, or one that did not join."""
        one = Member(self, name)
        self._open.enter_context(contextlib.closing(one.cluster))
        if joins:
            one.join()
        return one

    def stands(self) -> Any:
        """Start offset and lag, as administrators see them."""
        topics = [{"topic_name": self.name, "partitions": [0]}]
        asked = {"groups": [{"group_id": self.name, "topics": topics}]}
        (group,) = self.side.cluster.ask(OFFSETS, 1, asked).groups
        (place,) = group.topics[0].partitions
        return place.start_offset, place.lag

    def alter(self, start: int) -> Any:
        """Set the start of partition 0; the code."""
        places = [{"partition_index": 0, "start_offset": start}]
        topics = [{"topic_name": self.name, "partitions": places}]
        answer = self.side.cluster.ask(ALTER_OFFSETS, 0, {"group_id": self.name, "topics": topics})
        return answer.error_code or answer.responses[0].partitions[0].error_code

    def described(self) -> Any:
        """State and members with their number of partitions."""
        asked = {"group_ids": [self.name], "include_authorized_operations": False}
        (group,) = self.side.cluster.ask(DESCRIBE, 1, asked).groups
        members = {
            one.member_id: sum(len(each.partitions) for each in one.assignment.topic_partitions)
            for one in group.members
        }
        return group.group_state, members


class Member:
    """A member with a connection of its own."""

    def __init__(self, asking: Asking, name: str) -> None:
        self.asking = asking
        self.name = name
        self.cluster = Cluster(asking.side.servers)
        self.member_epoch = JOIN
        self.session_epoch = 0

    def beat(self, epoch: int | None = None, **other: Any) -> Any:
        """The answer to a heartbeat."""
        fields = {
            "group_id": self.asking.name,
            "member_id": self.name,
            "member_epoch": self.member_epoch if epoch is None else epoch,
            "rack_id": None,
            "subscribed_topic_names": (self.asking.name,),
        }
        return self.cluster.ask(HEARTBEAT, 1, fields | other)

    def beat_code(self, epoch: int | None = None, **other: Any) -> int:
        return int(self.beat(epoch, **other).error_code)

    def join(self) -> None:
        """Beat until the partition is assigned: Kafka's first answer has none."""
        until = time.monotonic() + SECONDS_MAX
        assigned = False
        while not assigned:
            assert time.monotonic() < until, "no assignment"
            # Kafka creates its coordinator at the first question, and takes a moment to load it.
            self.cluster.ask(FIND_COORDINATOR, 3, {"key": self.asking.name, "key_type": 0})
            answer = self.beat()
            if answer.error_code == 0:
                self.member_epoch = answer.member_epoch
                assigned = bool(answer.assignment.topic_partitions)
            time.sleep(0.05)

    def leave(self) -> int:
        return self.beat_code(LEAVE)

    def fetch(
        self, *acks: Any, wait_ms: int = WAIT_MS, epoch: int | None = None, **other: Any
    ) -> Any:
        """One ShareFetch: the code of a refusal, or what each partition has to say.

        `acks` are (first, last, types...) for partition 0; the first fetch of a session names
        `partitions` for it.
        """
        asked = self.session_epoch if epoch is None else epoch
        opened = other.pop("partitions", (0,) if asked == 0 else ())
        fields = {
            "group_id": self.asking.name,
            "member_id": self.name,
            "share_session_epoch": asked,
            "max_wait": wait_ms,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "max_records": 1000,
            "batch_size": 1000,
            "share_acquire_mode": 0,
            "is_renew_ack": False,
            "topics": self._topics(acks, opened),
            "forgotten_topics_data": (),
        }
        answer = self.cluster.ask(FETCH, other.pop("version", 2), fields | other)
        if answer.error_code:
            return answer.error_code
        if epoch is None:
            self.session_epoch += 1
        return [
            told
            for topic in answer.responses
            for one in sorted(topic.partitions, key=lambda one: one.partition_index)
            if (told := _told(one))
        ]

    def take(self, *acks: Any, **other: Any) -> Any:
        """What the first poll acquires that does: (first, last, deliveries) each.

        Kafka does not wake a poll that waits when a record is released, so polls here are short.
        """
        until = time.monotonic() + SECONDS_MAX
        while not (found := self.fetch(*acks, wait_ms=SOON_MS, **other)):
            assert time.monotonic() < until, "nothing to take"
            acks = ()
        return found[0].get("acquired", found[0])

    def acknowledge(self, *acks: Any, epoch: int | None = None, **other: Any) -> Any:
        """One ShareAcknowledge: the code of a refusal, or of each partition."""
        fields = {
            "group_id": self.asking.name,
            "member_id": self.name,
            "share_session_epoch": self.session_epoch if epoch is None else epoch,
            "is_renew_ack": any(RENEW in types for _, _, *types in acks),
            "topics": self._topics(acks, ()),
        }
        answer = self.cluster.ask(ACKNOWLEDGE, 2, fields | other)
        if answer.error_code:
            return answer.error_code
        if epoch is None:
            self.session_epoch += 1
        codes = [one.error_code for topic in answer.responses for one in topic.partitions]
        return codes[0] if len(codes) == 1 else codes

    def _topics(self, acks: tuple[Any, ...], opened: tuple[int, ...]) -> Any:
        partitions: dict[int, dict[str, Any]] = {
            index: {"partition_index": index, "acknowledgement_batches": []} for index in opened
        }
        for first, last, *types in acks:
            place = partitions.setdefault(0, {"partition_index": 0, "acknowledgement_batches": []})
            place["acknowledgement_batches"].append(
                {"first_offset": first, "last_offset": last, "acknowledge_types": types}
            )
        found = list(partitions.values())
        return [{"topic_id": self.asking.topic_id, "partitions": found}] if found else []


def _told(one: Any) -> dict[str, Any]:
    """What a partition of a ShareFetch answer says, without what it does not."""
    told = {
        "partition": one.partition_index or None,
        "code": one.error_code,
        "ack code": one.acknowledge_error_code,
        "acquired": [
            (each.first_offset, each.last_offset, each.delivery_count)
            for each in one.acquired_records
        ],
        "sent": _ranges(one.records),
    }
    return {name: value for name, value in told.items() if value}


def _ranges(records: Any) -> Any:
    """First and last offset of the records in a response."""
    offsets = [record.offset for record in batches.records(records)] if records else []
    return (offsets[0], offsets[-1]) if offsets else None


def steps(told: Iterator[tuple[str, Any]]) -> dict[str, Any]:
    """By name, what each step of a story told; a name that comes again is numbered."""
    found: dict[str, Any] = {}
    for name, value in told:
        key, number = name, 1
        while key in found:
            number += 1
            key = f"{name} ({number})"
        found[key] = value
    return found
