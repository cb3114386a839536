"""Committed offsets of a group: list, set and delete them.

Source: OffsetFetch (KIP-447), OffsetCommit, OffsetDelete (KIP-496). What is set or deleted has one
result a partition, as in Java's AlterConsumerGroupOffsetsResult, DeleteConsumerGroupOffsetsResult.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.client.connection import Cluster
from headrace.client.errors import STORAGE_ERRORS, BrokerError, check, left_out, refusal
from headrace.client.nodes import Node, at_coordinator, at_coordinators
from headrace.client.offsets import Spec, TopicPartition, by_topic, offsets_at

_OFFSET_FETCH, _OFFSET_FETCH_VERSION = 9, 7
_OFFSET_COMMIT, _OFFSET_COMMIT_VERSIONS = 8, range(8, 10)
_OFFSET_DELETE, _OFFSET_DELETE_VERSION = 47, 0
# A commit by nobody who is a member: an administrator's, or a consumer's without a group protocol.
_NO_GENERATION, _NO_MEMBER = -1, ""
_NONE = -1
_UNKNOWN_MEMBER_ID = 25
_HAS_MEMBERS = "offsets can be set while the group has no members; stop them first"


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """The offset of the next record to read, with what its consumer wrote beside it."""

    offset: int
    leader_epoch: int | None = None
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class PartitionResults:
    """What became of each partition that was asked for; errors are values, None is success.

    `group_error` is there when the group as a whole was refused, otherwise `errors` has every
    partition that was asked for, in that order.
    """

    group: str
    partitions: tuple[TopicPartition, ...]
    errors: Mapping[TopicPartition, BrokerError | None]
    group_error: BrokerError | None = None

    def partition_result(self, partition: TopicPartition) -> BrokerError | None:
        """The group's error if there is one, else that of the partition.

        Raises: `ValueError` for a partition that was not asked for.
        """
        if partition not in (self.errors if self.group_error is None else self.partitions):
            topic, number = partition
            raise ValueError(f"{topic}-{number} was not asked for")
        return self.errors[partition] if self.group_error is None else self.group_error

    def all(self) -> BrokerError | None:
        """The group's error if there is one, else the first of a partition in the order asked."""
        if self.group_error is not None:
            return self.group_error
        return next((error for error in self.errors.values() if error is not None), None)

    def check(self) -> None:
        """Return when all went well. Raises: `BrokerError`, what `all` tells."""
        error = self.all()
        if error is not None:
            raise error


def list_group_offsets(
    cluster: Cluster,
    group: str,
    partitions: Iterable[TopicPartition] | None = None,
    *,
    require_stable: bool = False,
) -> dict[TopicPartition, CommittedOffset]:
    """The committed offsets of a group, sorted; of all its partitions unless some are named.

    A partition without one is left out, and so a group that does not exist has none: Kafka makes
    no difference. With `require_stable` offsets of transactions that go on are waited for.

    Raises: `BrokerError` 30 when the group may not be read; otherwise as `Cluster`.
    """
    what = f"listing offsets of group {group!r}"
    asked = None if partitions is None else by_topic(partitions)
    topics = (
        None
        if asked is None
        else [{"name": topic, "partition_indexes": found} for topic, found in asked.items()]
    )
    request = {"group_id": group, "topics": topics, "require_stable": require_stable}

    def asking(node: Node) -> dict[TopicPartition, CommittedOffset]:
        answer = cluster.ask(_OFFSET_FETCH, _OFFSET_FETCH_VERSION, request, address=node.address)
        check(answer.error_code, what)
        found = {}
        for topic in answer.topics:
            for one in topic.partitions:
                check(one.error_code, f"{what} in {topic.name}-{one.partition_index}")
                if one.committed_offset >= 0:
                    found[topic.name, int(one.partition_index)] = _committed(one)
        return dict(sorted(found.items()))

    return {} if topics == [] else at_coordinator(cluster, group, what, asking)


def alter_group_offsets(
    cluster: Cluster, group: str, offsets: Mapping[TopicPartition, CommittedOffset | int]
) -> PartitionResults:
    """Set offsets of a group that has no members; a group that does not exist comes to be.

    A partition's error is a `BrokerError`: 25 while the group has members, 3 for a partition that
    does not exist, 12 for metadata that is too long. Raises: `ValueError` for an offset below 0;
    otherwise as `Cluster`.
    """
    what = f"setting offsets of group {group!r}"
    wanted = {
        partition: CommittedOffset(given) if isinstance(given, int) else given
        for partition, given in offsets.items()
    }
    for (topic, number), one in wanted.items():
        if one.offset < 0:  # brokers take it
            raise ValueError(f"{one.offset} is no offset; the first one of {topic}-{number} is 0")
    request = {
        "group_id": group,
        "generation_id_or_member_epoch": _NO_GENERATION,
        "member_id": _NO_MEMBER,
        "group_instance_id": None,
        "topics": [
            {"name": topic, "partitions": [_to_commit(one, wanted[topic, one]) for one in found]}
            for topic, found in by_topic(wanted).items()
        ],
    }

    def asking(node: Node) -> dict[TopicPartition, BrokerError | None]:
        version = cluster.newest(_OFFSET_COMMIT, _OFFSET_COMMIT_VERSIONS, address=node.address)
        answer = cluster.ask(_OFFSET_COMMIT, version, request, address=node.address)
        return _errors(answer.topics, what, _not_committed)

    return partition_results(cluster, group, tuple(wanted), what, asking)


def reset_group_offsets(
    cluster: Cluster,
    group: str,
    to: Mapping[TopicPartition, Spec],
    *,
    dry_run: bool = False,
) -> dict[TopicPartition, CommittedOffset]:
    """Move a group without members to ends of logs or points in time; what it is at then.

    `to` is as in `list_offsets`; a partition without a record that young is moved to its end.
    With `dry_run` nothing is moved. Raises: `BrokerError` as `list_offsets`, and of
    `alter_group_offsets` the first; partitions may have been moved then. Otherwise as `Cluster`.
    """
    new = {
        one: CommittedOffset(found.offset or 0, found.leader_epoch)
        for one, found in offsets_at(cluster, to).items()
    }
    if not dry_run:
        alter_group_offsets(cluster, group, new).check()
    return new


def delete_group_offsets(
    cluster: Cluster, group: str, partitions: Iterable[TopicPartition]
) -> PartitionResults:
    """Delete offsets of a group; one that has members keeps those of topics it subscribes to.

    The group's error is a `BrokerError`: 69 when there is none, 24 for a name that is none, 68
    when it has members that are no consumers, 30. A partition's: 86 while the group subscribes to
    its topic, 3 for a partition that does not exist, 29. Raises: as `Cluster`.
    """
    what = f"deleting offsets of group {group!r}"
    wanted = tuple(dict.fromkeys(partitions))
    request = {
        "group_id": group,
        "topics": [
            {"name": topic, "partitions": [{"partition_index": one} for one in found]}
            for topic, found in by_topic(wanted).items()
        ],
    }

    def asking(node: Node) -> dict[TopicPartition, BrokerError | None]:
        answer = cluster.ask(_OFFSET_DELETE, _OFFSET_DELETE_VERSION, request, address=node.address)
        check(answer.error_code, what)
        return _errors(answer.topics, what, refusal)

    return partition_results(cluster, group, wanted, what, asking)


Refusing = Callable[[int, str], BrokerError | None]


def partition_results(
    cluster: Cluster,
    group: str,
    partitions: tuple[TopicPartition, ...],
    what: str,
    asking: Callable[[Node], dict[TopicPartition, BrokerError | None]],
) -> PartitionResults:
    """What `asking` the coordinator says of each partition; what it raises is the group's error.

    Raises: as `Cluster`.
    """

    def of_group(
        node: Node, groups: list[str]
    ) -> dict[str, dict[TopicPartition, BrokerError | None] | BrokerError]:
        try:
            answers = asking(node)
        except BrokerError as error:
            return dict.fromkeys(groups, error)
        again = next((one for one in answers.values() if _is_transient(one)), None)
        return dict.fromkeys(groups, answers if again is None else again)

    found = at_coordinators(cluster, [group], what, of_group)[group]
    if isinstance(found, BrokerError):
        return PartitionResults(group, partitions, {}, found)
    errors = {
        one: found[one] if one in found else left_out(f"{one[0]}-{one[1]}", what)
        for one in partitions
    }
    return PartitionResults(group, partitions, errors)


def _is_transient(error: BrokerError | None) -> bool:
    return error is not None and error.retriable and error.code not in STORAGE_ERRORS


def _errors(topics: Any, what: str, refusing: Refusing) -> dict[TopicPartition, BrokerError | None]:
    return {
        (topic.name, int(one.partition_index)): refusing(
            one.error_code, f"{what} in {topic.name}-{one.partition_index}"
        )
        for topic in topics
        for one in topic.partitions
    }


def _not_committed(code: int, what: str) -> BrokerError | None:
    if code == _UNKNOWN_MEMBER_ID:
        return BrokerError(code, what, remedy=_HAS_MEMBERS)
    return refusal(code, what)


def _to_commit(partition: int, wanted: CommittedOffset) -> dict[str, Any]:
    return {
        "partition_index": partition,
        "committed_offset": wanted.offset,
        "committed_leader_epoch": _NONE if wanted.leader_epoch is None else wanted.leader_epoch,
        "committed_metadata": wanted.metadata,
    }


def _committed(one: Any) -> CommittedOffset:
    epoch = int(one.committed_leader_epoch)
    return CommittedOffset(
        int(one.committed_offset), None if epoch == _NONE else epoch, one.metadata or ""
    )
