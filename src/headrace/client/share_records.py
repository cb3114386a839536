"""What is in flight in a share group, as the broker tells it: runs of records with their states.

Source: DescribeShareRecords (20906) of Headrace, see `wire/share_records.py`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from headrace.client.connection import Cluster
from headrace.client.errors import STORAGE_ERRORS, BrokerError, check
from headrace.client.names import several
from headrace.client.nodes import Node, at_coordinator
from headrace.client.offsets import TopicPartition
from headrace.client.own_apis import ask_own
from headrace.wire.share_records import (
    KEY,
    VERSION,
    DescribeShareRecordsRequest,
    DescribeShareRecordsResponse,
    Holder,
    Partition,
    PartitionCursor,
    Run,
    TopicCursor,
)

Topics = Iterable[str | TopicPartition]


class RecordState(StrEnum):
    """What a share group makes of a record: KIP-932's states; WAITING was never delivered.

    ARCHIVING is a record whose copy for the dead-letter topic is being written.
    """

    AVAILABLE = "Available"
    ACQUIRED = "Acquired"
    ACKNOWLEDGED = "Acknowledged"
    ARCHIVING = "Archiving"
    ARCHIVED = "Archived"
    WAITING = "Waiting"


IN_FLIGHT = tuple(RecordState)[:-1]  # by the numbers that they have in messages


@dataclass(frozen=True, slots=True)
class RecordHolder:
    """Who has acquired records, or had those that are archived last.

    `session` is that of a lease (a Spark query); else it is a member, whose client's id and host
    are None when the broker has not heard of it since it started, or it is no member any more.
    """

    member: str
    client_id: str | None = None
    host: str | None = None
    session: str | None = None


@dataclass(frozen=True, slots=True)
class BrowsedRun:
    """Records `first` to `last`, both included, that share their whole state.

    The acquisition lock of what is acquired ends in `lock_left_ms`, at `lock_until`; the holder has
    it since `acquired_at`, renewals included (ms since 1970, by the broker's clock). `reason` says
    why records were archived.
    """

    topic: str
    partition: int
    first: int
    last: int
    state: RecordState
    delivery_count: int = 0
    holder: RecordHolder | None = None
    lock_left_ms: int | None = None
    lock_until: int | None = None
    acquired_at: int | None = None
    reason: str | None = None

    @property
    def records(self) -> int:
        """How many offsets it spans; compaction may have removed records of them."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class SharePartitionDescription:
    """How a share group is in a partition.

    Records below `start` (SPSO) are finished, those from `end` (SPEO) on were never delivered; the
    log has records from `log_start` on, and ends at `high_watermark`. `records` counts the offsets
    from SPSO on by state, all six of them.
    """

    start: int
    end: int
    log_start: int
    high_watermark: int
    records: Mapping[RecordState, int]


@dataclass(frozen=True, slots=True)
class InFlight:
    """Some runs of a partition that lie one behind the other, and what else is known of it."""

    partition: Partition
    runs: Sequence[BrowsedRun]


def describe_share_partitions(
    cluster: Cluster, group: str, topics: Topics | None = None
) -> dict[TopicPartition, SharePartitionDescription | None]:
    """How a share group is in its partitions, sorted, or in those of `topics`; changes nothing.

    A topic is named by a string, one partition by a tuple. None stands for a partition that the
    group has not begun to read.
    Raises: `BrokerError` 69 when there is no such share group, 24, 3 for a topic or partition that
    does not exist, 56 when a log cannot be opened; `Unsupported` on any other broker than Headrace;
    otherwise as `Cluster`.
    """
    return _described(cluster, group, topics, None)


def describe_readable_share_partitions(
    cluster: Cluster, group: str, topics: Topics | None = None
) -> tuple[
    dict[TopicPartition, SharePartitionDescription | None], dict[TopicPartition, BrokerError]
]:
    """As `describe_share_partitions`, also where the broker cannot read some of the partitions.

    Returns: descriptions, without what the broker cannot read, and why it cannot.
    """
    errors: dict[TopicPartition, BrokerError] = {}
    return _described(cluster, group, topics, errors), errors


def _described(
    cluster: Cluster,
    group: str,
    topics: Topics | None,
    errors: dict[TopicPartition, BrokerError] | None,
) -> dict[TopicPartition, SharePartitionDescription | None]:
    what = f"describing records of share group {group!r}"
    request = DescribeShareRecordsRequest(group, _cursors(topics), (), 0)
    found = {}
    for one in asked(cluster, request, what).partitions:
        place = one.topic, int(one.partition)
        try:
            check(one.error_code, f"{what} in {one.topic}-{one.partition}", one.error_message)
        except BrokerError as error:
            if errors is None or error.code not in STORAGE_ERRORS:
                raise
            errors[place] = error
            continue
        found[place] = None if one.start < 0 else _description(one)
    return dict(sorted(found.items()))


def in_flight(
    cluster: Cluster,
    group: str,
    place: TopicPartition,
    offset: int,
    *,
    states: Iterable[RecordState] = IN_FLIGHT,
    runs_max: int,
) -> InFlight:
    """Runs of one partition from `offset` on; none with an error, as when the topic is gone.

    Raises: `BrokerError` as `describe_share_partitions`, of the group; otherwise as `Cluster`.
    """
    topic, index = place
    numbers = tuple(sorted(IN_FLIGHT.index(state) for state in set(states)))
    cursor = TopicCursor(topic, (PartitionCursor(index, offset),))
    request = DescribeShareRecordsRequest(group, (cursor,), numbers, runs_max)
    answer = asked(cluster, request, f"browsing share group {group!r} in {topic}-{index}")
    (partition,) = answer.partitions
    holders = tuple(map(_holder, answer.holders))
    runs = [_run(place, one, holders, answer.reasons) for one in partition.runs]
    return InFlight(partition, runs)


def asked(
    cluster: Cluster, request: DescribeShareRecordsRequest, what: str
) -> DescribeShareRecordsResponse:
    """The answer of the group's coordinator. Raises: `BrokerError`; as `Cluster`."""

    def asking(node: Node) -> DescribeShareRecordsResponse:
        answer = DescribeShareRecordsResponse
        return ask_own(cluster, node.address, (KEY, VERSION), request, answer, what)

    return at_coordinator(cluster, request.group, what, asking)


def _cursors(topics: Topics | None) -> tuple[TopicCursor, ...] | None:
    if topics is None:
        return None
    if isinstance(topics, str | bytes):
        several(topics, "topics")  # which says so
    return tuple(
        TopicCursor(one)
        if isinstance(one, str)
        else TopicCursor(one[0], (PartitionCursor(one[1], 0),))
        for one in topics
    )


def _description(one: Partition) -> SharePartitionDescription:
    records = dict(zip(IN_FLIGHT, one.records, strict=True))
    records[RecordState.WAITING] = max(one.high_watermark - one.end, 0)
    return SharePartitionDescription(one.start, one.end, one.log_start, one.high_watermark, records)


def _holder(one: Holder) -> RecordHolder:
    return RecordHolder(one.member, one.client_id, one.client_host, one.session)


def _run(
    place: TopicPartition, one: Run, holders: Sequence[RecordHolder], reasons: Sequence[str]
) -> BrowsedRun:
    return BrowsedRun(
        *place,
        one.first,
        one.last,
        IN_FLIGHT[one.state],
        one.delivery_count,
        None if one.holder < 0 else holders[one.holder],
        None if one.lock_left_ms < 0 else one.lock_left_ms,
        None if one.lock_until < 0 else one.lock_until,
        None if one.acquired_at < 0 else one.acquired_at,
        None if one.reason < 0 else reasons[one.reason],
    )
