"""Members of share groups over bare connections, and the state of a group as others see it."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import headrace
from headrace.client.connection import Cluster
from headrace.client.leases import describe
from headrace.core.runs import State
from headrace.core.shard import ShareShard
from headrace.core.share_words import ShareKey
from headrace.log.record_codec import ShareJournal
from headrace.wire import batches

PRODUCE, DELETE_RECORDS, CREATE_PARTITIONS, ALTER_CONFIGS = 0, 21, 37, 44
HEARTBEAT, FETCH, ACKNOWLEDGE, DESCRIBE_OFFSETS, ALTER_OFFSETS, DELETE_OFFSETS = (
    76,
    78,
    79,
    90,
    91,
    92,
)
GAP, ACCEPT, RELEASE, REJECT, RENEW = 0, 1, 2, 3, 4
GROUP, MEMBER, TOPIC = "g", "m", "orders"
NOTHING_FETCHED = {"max_wait": 0, "min_bytes": 0, "max_bytes": 0, "max_records": 0}
WAIT_S = 30
STATE_TOPIC = "__share_group_state"

Ack = tuple[int, ...]  # first, last, types
Range = tuple[int, int, int]  # first, last, delivery count


class Sharer:
    """One member, which need not have joined its group: ShareFetch and ShareAcknowledge ask not."""

    def __init__(
        self,
        wire: Any,
        topic_id: UUID,
        name: str = MEMBER,
        *,
        group: str = GROUP,
        version: int = 2,
        partition: int = 0,
    ) -> None:
        self.wire = wire
        self.topic_id = topic_id
        self.name = name
        self.group = group
        self.version = version
        self.partition = partition
        self.epoch = 0  # of the session

    def beat(self, epoch: int = 0, topics: Sequence[str] | None = (TOPIC,), **other: Any) -> Any:
        fields = {
            "group_id": self.group,
            "member_id": self.name,
            "member_epoch": epoch,
            "rack_id": None,
            "subscribed_topic_names": topics,
        }
        return self.wire.call(HEARTBEAT, 1, **(fields | other))

    def assigned(self, epoch: int = 0, topics: Sequence[str] | None = (TOPIC,)) -> list[int]:
        """The partitions that a heartbeat's answer tells, whatever their topics."""
        answer = self.beat(epoch, topics)
        assert answer.error_code == 0, answer.error_message
        told = answer.assignment.topic_partitions
        return sorted(index for topic in told for index in topic.partitions)

    def fetch(self, *acks: Ack, epoch: int | None = None, **other: Any) -> Any:
        """One ShareFetch; of this partition where the session is new."""
        asked = self.epoch if epoch is None else epoch
        fields = {
            "group_id": self.group,
            "member_id": self.name,
            "share_session_epoch": asked,
            "max_wait": 0,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "max_records": 1000,
            "batch_size": 1000,
            "share_acquire_mode": 0,
            "is_renew_ack": False,
            "topics": self.topics(*acks, always=asked == 0),
            "forgotten_topics_data": (),
        }
        return self._call(FETCH, fields | other, epoch is None)

    def acknowledge(self, *acks: Ack, epoch: int | None = None, **other: Any) -> Any:
        fields = {
            "group_id": self.group,
            "member_id": self.name,
            "share_session_epoch": self.epoch if epoch is None else epoch,
            "is_renew_ack": False,
            "topics": self.topics(*acks),
        }
        return self._call(ACKNOWLEDGE, fields | other, epoch is None)

    def take(self, **fetching: Any) -> list[Range]:
        """What a ShareFetch acquires."""
        return acquired(self.fetch(**fetching))

    def say(self, kind: int, first: int, last: int) -> None:
        """An acknowledgement that has to hold."""
        renewing = {"is_renew_ack": True} if kind == RENEW else {}
        assert self.code((first, last, kind), **renewing) == 0

    def code(self, *acks: Ack, **other: Any) -> int:
        """The partition's code of a ShareAcknowledge."""
        answer = self.acknowledge(*acks, **other)
        assert answer.error_code == 0, answer.error_message
        (topic,) = answer.responses
        (partition,) = topic.partitions
        return int(partition.error_code)

    def topics(self, *acks: Ack, always: bool = False) -> Any:
        """This partition, with acknowledgements, as a request names it."""
        if not acks and not always:
            return ()
        found = [
            {"first_offset": first, "last_offset": last, "acknowledge_types": types}
            for first, last, *types in acks
        ]
        one = {"partition_index": self.partition, "acknowledgement_batches": found}
        return ({"topic_id": self.topic_id, "partitions": (one,)},)

    def _call(self, key: int, fields: dict[str, Any], counts: bool) -> Any:
        if self.version == 1:
            fields = {
                name: value
                for name, value in fields.items()
                if name not in ("share_acquire_mode", "is_renew_ack")
            }
        answer = self.wire.call(key, self.version, **fields)
        if counts and answer.error_code == 0:
            self.epoch += 1
        return answer


def partition_of(answer: Any) -> Any:
    """The only partition of an answer."""
    assert answer.error_code == 0, answer.error_message
    (topic,) = answer.responses
    (partition,) = topic.partitions
    return partition


def acquired(answer: Any) -> list[Range]:
    """First, last and delivery count of what a ShareFetch gave."""
    assert answer.error_code == 0, answer.error_message
    return [
        (one.first_offset, one.last_offset, one.delivery_count)
        for topic in answer.responses
        for partition in topic.partitions
        for one in partition.acquired_records
    ]


def produce(wire: Any, *sizes: int, partition: int = 0, topic: str = TOPIC, at: int = 5) -> None:
    """One record batch of each size, its records of the time `at`."""
    built = {size: batches.build([batches.Record(0, at, b"k", b"v")] * size) for size in sizes}
    for size in sizes:
        data = {"index": partition, "records": built[size]}
        one = {"name": topic, "partition_data": (data,)}
        fields = {"transactional_id": None, "acks": 1, "timeout": 1000, "topic_data": (one,)}
        (told,) = wire.call(PRODUCE, 9, **fields).responses
        assert told.partition_responses[0].error_code == 0


def cut(wire: Any, before: int, partition: int = 0) -> None:
    """Remove the records below an offset, as retention does."""
    one = {"partition_index": partition, "offset": before}
    topics = ({"name": TOPIC, "partitions": (one,)},)
    (told,) = wire.call(DELETE_RECORDS, 2, topics=topics, timeout=1000).topics
    assert told.partitions[0].error_code == 0


def add_partitions(wire: Any, count: int) -> None:
    asked = ({"name": TOPIC, "count": count, "assignments": None},)
    answer = wire.call(CREATE_PARTITIONS, 3, topics=asked, timeout=1000, validate_only=False)
    assert answer.results[0].error_code == 0


def configure(wire: Any, group: str = GROUP, **settings: str) -> None:
    """Set settings of a group; `_` stands for a dot."""
    entries = [
        {"name": name.replace("_", "."), "config_operation": 0, "value": value}
        for name, value in settings.items()
    ]
    one = {"resource_type": 32, "resource_name": group, "configs": entries}
    (told,) = wire.call(ALTER_CONFIGS, 1, resources=(one,), validate_only=False).responses
    assert told.error_code == 0, told.error_message


def reset(wire: Any, start: int, *, group: str = GROUP, partition: int = 0) -> int:
    """Set SPSO as an administrator; the code."""
    one = {"partition_index": partition, "start_offset": start}
    topics = ({"topic_name": TOPIC, "partitions": (one,)},)
    answer = wire.call(ALTER_OFFSETS, 0, group_id=group, topics=topics)
    if answer.error_code:
        return int(answer.error_code)
    return int(answer.responses[0].partitions[0].error_code)


def started(wire: Any, group: str = GROUP) -> dict[int, tuple[int, int]]:
    """SPSO and lag of each partition of the topic, as DescribeShareGroupOffsets has them."""
    asked = {"group_id": group, "topics": None}
    (found,) = wire.call(DESCRIBE_OFFSETS, 1, groups=(asked,)).groups
    return {
        one.partition_index: (one.start_offset, one.lag)
        for topic in found.topics
        for one in topic.partitions
    }


def live(broker: headrace.Broker, group: str = GROUP, partition: int = 0) -> str:
    """What the broker shows of a share-partition, in the seed's words."""
    with Cluster(broker.bootstrap_servers) as cluster:
        found = {one.partition: one for one in describe(cluster, group)}[partition]
    runs = [(one.first, one.last, one.state, one.delivery_count) for one in found.in_flight]
    return _told(found.start, found.end, runs)


def until(broker: headrace.Broker, wanted: str) -> None:
    """Wait for a state that time brings."""
    deadline = time.monotonic() + WAIT_S
    while (now := live(broker)) != wanted:
        assert time.monotonic() < deadline, f"{now}, not {wanted}"
        time.sleep(0.01)


def journaled(folder: Path, topic_id: UUID, group: str = GROUP, partition: int = 0) -> str:
    """What the records of the journal alone say of a share-partition, in the same words.

    Of the only shard; of a folder that a broker may be using.
    """
    shard = ShareShard(cast(Any, None))  # the outside is for decisions, and none are taken
    journal = ShareJournal(shard)
    for path in sorted((folder / f"{STATE_TOPIC}-0").glob("*.log")):
        for _, key, value in batches.entries(path.read_bytes()):
            shard.apply_all(journal.events(key, value))
    share = shard.partitions[ShareKey(group, topic_id, partition)]
    runs = [(run.span.first, run.span.last, run.state, run.deliveries) for run in share.runs]
    return _told(share.start, share.end, runs)


def _told(start: int, end: int, runs: Sequence[tuple[int, int, int, int]]) -> str:
    alike: list[tuple[int, int, str]] = []
    for first, last, state, deliveries in runs:
        counts = state in (State.AVAILABLE, State.ACQUIRED) and deliveries
        word = State(state).name.lower() + (f" {deliveries}" if counts else "")
        if alike and alike[-1][2] == word:  # as the seed has it: whoever holds them, until when
            alike[-1] = (alike[-1][0], last, word)
        else:
            alike.append((first, last, word))
    words = [f"SPSO={start}", f"SPEO={end}"]
    for first, last, word in alike:
        words.append(f"{first}-{last} {word}" if first != last else f"{first} {word}")
    return ", ".join(words)
