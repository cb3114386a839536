"""Topics: create, describe, extend and delete them, or their oldest records.

Source: CreateTopics and DeleteTopics (KIP-4), CreatePartitions (KIP-195), Metadata, DeleteRecords
(KIP-107).
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from headrace.client.connection import Address, Cluster
from headrace.client.errors import STORAGE_ERRORS, BrokerError, check, left_out
from headrace.client.names import several
from headrace.client.nodes import results_of
from headrace.client.offsets import TopicPartition, by_topic
from headrace.wire.error_codes import ErrorCode
from headrace.wire.primitives import Malformed

_METADATA, _METADATA_VERSION = 3, 12
_CREATE_TOPICS, _CREATE_TOPICS_VERSION = 19, 5
_DELETE_TOPICS, _DELETE_TOPICS_VERSION = 20, 4
_CREATE_PARTITIONS, _CREATE_PARTITIONS_VERSION = 37, 2
_DELETE_RECORDS, _DELETE_RECORDS_VERSION = 21, 1
_BROKERS_DEFAULT = -1
_TIMEOUT_MS = 30_000


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition; `leader` is None while it has none."""

    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """One topic with its partitions, ascending; `id` is None on a cluster without topic ids."""

    name: str
    id: UUID | None
    internal: bool
    partitions: tuple[PartitionDescription, ...]


def create_topic(
    cluster: Cluster,
    topic: str,
    partitions: int | None = None,
    *,
    replication_factor: int | None = None,
    assignments: Sequence[Sequence[int]] = (),
    configs: Mapping[str, str] | None = None,
    exist_ok: bool = False,
) -> bool:
    """Create a topic; whether it was created, which it was not when it exists and may.

    Args: `partitions` and `replication_factor` are the broker's defaults when None; `assignments`
    names the replicas of each partition instead of both.

    Raises: `BrokerError` 36 when it exists, unless `exist_ok`; otherwise as `Cluster`.
    """
    what = f"creating topic {topic!r}"
    placed = [
        {"partition_index": index, "broker_ids": list(brokers)}
        for index, brokers in enumerate(assignments)
    ]
    wanted = {
        "name": topic,
        "num_partitions": _BROKERS_DEFAULT if partitions is None else partitions,
        "replication_factor": _BROKERS_DEFAULT
        if replication_factor is None
        else replication_factor,
        "assignments": placed,
        "configs": [{"name": name, "value": value} for name, value in (configs or {}).items()],
    }
    request = {"topics": [wanted], "timeout": _TIMEOUT_MS, "validate_only": False}

    def attempt() -> None:
        answer = cluster.ask(_CREATE_TOPICS, _CREATE_TOPICS_VERSION, request)
        check(answer.topics[0].error_code, what, answer.topics[0].error_message)

    try:
        cluster.retrying(what, attempt, final=STORAGE_ERRORS)
    except BrokerError as error:
        if not (exist_ok and error.code == ErrorCode.topic_already_exists):
            raise
        return False
    return True


def delete_topic(cluster: Cluster, topic: str) -> None:
    """Delete a topic with its records. Raises: `BrokerError` 3 when there is none; as `Cluster`."""
    what = f"deleting topic {topic!r}"

    def attempt() -> None:
        request = {"topic_names": [topic], "timeout": _TIMEOUT_MS}
        answer = cluster.ask(_DELETE_TOPICS, _DELETE_TOPICS_VERSION, request)
        check(answer.responses[0].error_code, what)

    cluster.retrying(what, attempt, final=STORAGE_ERRORS)


def add_partitions(
    cluster: Cluster, topic: str, count: int, *, assignments: Sequence[Sequence[int]] = ()
) -> None:
    """Extend a topic to `count` partitions; `assignments` names the replicas of each new one.

    Raises: `BrokerError` 37 when it has as many already; otherwise as `Cluster`.
    """
    what = f"extending topic {topic!r} to {count} partitions"
    placed = [{"broker_ids": list(brokers)} for brokers in assignments] or None
    wanted = {"name": topic, "count": count, "assignments": placed}
    request = {"topics": [wanted], "timeout": _TIMEOUT_MS, "validate_only": False}

    def attempt() -> None:
        answer = cluster.ask(_CREATE_PARTITIONS, _CREATE_PARTITIONS_VERSION, request)
        check(answer.results[0].error_code, what, answer.results[0].error_message)

    cluster.retrying(what, attempt, final=STORAGE_ERRORS)


def describe_topics(
    cluster: Cluster, names: Iterable[str] | None = None
) -> dict[str, TopicDescription]:
    """Topics by name, sorted; all of them without `names`, and of `names` those that exist.

    Raises: as `Cluster`.
    """
    asked = None
    if names is not None:
        asked = [{"topic_id": None, "name": name} for name in several(names, "names")]
    if asked == []:
        return {}
    return cluster.retrying("describing topics", lambda: _described(cluster, asked))


def list_topics(cluster: Cluster, *, internal: bool = False) -> list[str]:
    """The names of the topics, sorted; with `internal` also those that the broker keeps for itself.

    Raises: as `Cluster`.
    """
    found = describe_topics(cluster)
    return [name for name, one in found.items() if internal or not one.internal]


def delete_records(
    cluster: Cluster, before: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int | BrokerError]:
    """Delete the records of each partition below an offset; -1 means all there are now.

    The first offset that is left is returned, or an error in its place: 1 for an offset beyond the
    end, 3 for a partition that does not exist, 44 or 17 for a topic whose records must stay, 56
    for a disk that fails.
    Raises: as `nodes.results_of`.
    """
    offsets = dict(before)

    def attempt(
        missing: list[TopicPartition],
    ) -> Iterator[tuple[TopicPartition, int | BrokerError]]:
        of_leader: dict[Address, list[TopicPartition]] = defaultdict(list)
        for one in missing:
            try:
                of_leader[cluster.leader(*one)].append(one)
            except BrokerError as error:
                yield one, error
        away: OSError | Malformed | None = None
        for leader, partitions in of_leader.items():
            try:
                results = _deleted(cluster, leader, {one: offsets[one] for one in partitions})
            except (OSError, Malformed) as error:
                away = error
            else:
                yield from results.items()
        if away is not None:
            raise away

    return results_of(cluster, offsets, "deleting records", attempt, final=STORAGE_ERRORS)


def broker_ids(cluster: Cluster) -> tuple[int, ...]:
    """The ids of the brokers, ascending. Raises: as `Cluster`."""

    def attempt() -> tuple[int, ...]:
        return tuple(sorted(broker.node_id for broker in _metadata(cluster, []).brokers))

    return cluster.retrying("listing brokers", attempt)


def _described(cluster: Cluster, asked: list[dict[str, Any]] | None) -> dict[str, TopicDescription]:
    found = {}
    for one in _metadata(cluster, asked).topics:
        if one.error_code in {
            ErrorCode.unknown_topic_or_partition,
            ErrorCode.invalid_topic_exception,
        }:
            continue
        check(one.error_code, f"describing topic {one.name!r}")
        parts = sorted(one.partitions, key=lambda part: part.partition_index)
        found[one.name] = TopicDescription(
            one.name, one.topic_id, one.is_internal, tuple(_partition(part) for part in parts)
        )
    return dict(sorted(found.items()))


def _deleted(
    cluster: Cluster, leader: Address, wanted: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int | BrokerError]:
    topics = [
        {
            "name": topic,
            "partitions": [
                {"partition_index": one, "offset": wanted[topic, one]} for one in partitions
            ],
        }
        for topic, partitions in by_topic(wanted).items()
    ]
    request = {"topics": topics, "timeout": _TIMEOUT_MS}
    answer = cluster.ask(_DELETE_RECORDS, _DELETE_RECORDS_VERSION, request, address=leader)
    found: dict[TopicPartition, int | BrokerError] = {
        one: left_out(f"{one[0]}-{one[1]}", "deleting records") for one in wanted
    }
    for topic in answer.topics:
        for one in topic.partitions:
            what = f"deleting records of {topic.name}-{one.partition_index}"
            found[topic.name, int(one.partition_index)] = (
                BrokerError(one.error_code, what) if one.error_code else int(one.low_watermark)
            )
    return found


def _metadata(cluster: Cluster, asked: list[dict[str, Any]] | None) -> Any:
    request = {
        "topics": asked,
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
    }
    return cluster.ask(_METADATA, _METADATA_VERSION, request)


def _partition(part: Any) -> PartitionDescription:
    leader = int(part.leader_id) if part.leader_id >= 0 else None
    return PartitionDescription(
        int(part.partition_index), leader, tuple(part.replica_nodes), tuple(part.isr_nodes)
    )
