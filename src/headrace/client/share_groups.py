"""Share groups: list and describe them, set and forget where they begin, delete them.

Source: ListGroups (KIP-848), ShareGroupDescribe, DescribeShareGroupOffsets, AlterShareGroupOffsets,
DeleteShareGroupOffsets (KIP-932, KIP-1226), DeleteGroups.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.client.connection import Cluster
from headrace.client.errors import STORAGE_ERRORS, BrokerError, check, left_out, refusal
from headrace.client.group_offsets import PartitionResults, partition_results
from headrace.client.groups import GroupListing, assigned, delete_groups, list_groups
from headrace.client.names import several
from headrace.client.nodes import Node, at_coordinator, at_coordinators
from headrace.client.offsets import Spec, TopicPartition, by_topic, offsets_at

_DESCRIBE, _DESCRIBE_VERSION = 77, 1
_DESCRIBE_OFFSETS, _DESCRIBE_OFFSETS_VERSIONS = 90, range(2)
_ALTER_OFFSETS, _DELETE_OFFSETS, _VERSION = 91, 92, 0
_SHARE = "share"
_UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class ShareMember:
    """A member of a share group; `topics` is its subscription."""

    member: str
    client_id: str
    host: str
    rack: str | None
    epoch: int
    topics: frozenset[str]
    assignment: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class ShareGroupDescription:
    """A share group; `state` is Empty, Stable or Dead."""

    group: str
    state: str
    assignor: str
    epoch: int
    assignment_epoch: int
    members: tuple[ShareMember, ...]
    coordinator: Node


@dataclass(frozen=True, slots=True)
class ShareOffset:
    """How far a share group is in a partition: every record below `start` is finished.

    `lag` is how many records are left, without those that are finished behind others; None where
    the broker does not tell (Kafka before 4.2).
    """

    start: int
    leader_epoch: int
    lag: int | None


def list_share_groups(cluster: Cluster, *, states: Iterable[str] = ()) -> list[GroupListing]:
    """The share groups of all brokers by name, of these states when some are given.

    Raises: `Unsupported` when a broker knows no types of groups (Kafka before 3.8); otherwise as
    `Cluster`.
    """
    return list_groups(cluster, states=states, types=[_SHARE])


def describe_share_groups(
    cluster: Cluster, groups: Iterable[str]
) -> dict[str, ShareGroupDescription | BrokerError]:
    """Share groups by name, in the order asked; an error stands for a group.

    It is 69 when there is none, or one of another type, 30 when it may not be seen.
    Raises: `Unsupported` on Kafka before 4.1; otherwise as `Cluster`.
    """

    def asking(node: Node, wanted: list[str]) -> dict[str, ShareGroupDescription | BrokerError]:
        request = {"group_ids": wanted, "include_authorized_operations": False}
        version = cluster.newest(
            _DESCRIBE, range(_DESCRIBE_VERSION, _DESCRIBE_VERSION + 1), address=node.address
        )
        answer = cluster.ask(_DESCRIBE, version, request, address=node.address)
        return {
            one.group_id: BrokerError(
                one.error_code, f"describing share group {one.group_id!r}", one.error_message
            )
            if one.error_code
            else _description(one, node)
            for one in answer.groups
        }

    return at_coordinators(cluster, several(groups, "groups"), "describing share groups", asking)


def list_share_group_offsets(
    cluster: Cluster, group: str, partitions: Iterable[TopicPartition] | None = None
) -> dict[TopicPartition, ShareOffset | None]:
    """Where a share group is, sorted; in all its partitions unless some are named.

    None stands for a partition that it has not begun to read. There are none of a group that does
    not exist, which is no error.
    Raises: `BrokerError` 24, 29, 30; `Unsupported` on Kafka before 4.1; otherwise as `Cluster`.
    """
    return _listed(cluster, group, partitions, None)


def list_readable_share_group_offsets(
    cluster: Cluster, group: str, partitions: Iterable[TopicPartition] | None = None
) -> tuple[dict[TopicPartition, ShareOffset | None], dict[TopicPartition, BrokerError]]:
    """As `list_share_group_offsets`, also where the broker cannot read some of the partitions.

    Returns: offsets, with None for what the broker cannot read, and why it cannot.
    """
    errors: dict[TopicPartition, BrokerError] = {}
    return _listed(cluster, group, partitions, errors), errors


def _listed(
    cluster: Cluster,
    group: str,
    partitions: Iterable[TopicPartition] | None,
    errors: dict[TopicPartition, BrokerError] | None,
) -> dict[TopicPartition, ShareOffset | None]:
    what = f"listing offsets of share group {group!r}"
    asked = None if partitions is None else by_topic(partitions)
    topics = (
        None
        if asked is None
        else [{"topic_name": topic, "partitions": found} for topic, found in asked.items()]
    )
    request = {"groups": [{"group_id": group, "topics": topics}]}

    def asking(node: Node) -> dict[TopicPartition, ShareOffset | None]:
        version = cluster.newest(
            _DESCRIBE_OFFSETS, _DESCRIBE_OFFSETS_VERSIONS, address=node.address
        )
        answer = cluster.ask(_DESCRIBE_OFFSETS, version, request, address=node.address)
        found: dict[TopicPartition, ShareOffset | None] = {}
        if errors is not None:
            errors.clear()  # of an attempt before
        for one in answer.groups:
            check(one.error_code, what, one.error_message)
            for topic in one.topics:
                for part in topic.partitions:
                    place = topic.topic_name, int(part.partition_index)
                    where = f"{what} in {topic.topic_name}-{part.partition_index}"
                    try:
                        check(part.error_code, where, part.error_message)
                    except BrokerError as error:
                        if errors is None or error.code not in STORAGE_ERRORS:
                            raise
                        errors[place] = error
                    found[place] = _offset(part)
        return dict(sorted(found.items()))

    return {} if topics == [] else at_coordinator(cluster, group, what, asking)


def alter_share_group_offsets(
    cluster: Cluster, group: str, starts: Mapping[TopicPartition, int]
) -> PartitionResults:
    """Set where a share group without members begins; one that does not exist comes to be.

    What was in flight there is forgotten, with its delivery counts. -1 is where the group's
    share.auto.offset.reset leads. The group's error is a `BrokerError`: 68 while it has members,
    24, 30, 69 for one of another type. A partition's: 3 when it does not exist, 29, and with
    Headrace 1 for an offset behind the end of the log, and 56 while the broker cannot read it.
    Raises: `Unsupported` on Kafka before 4.1; otherwise as `Cluster`.
    """
    what = f"setting offsets of share group {group!r}"
    request = {
        "group_id": group,
        "topics": [
            {
                "topic_name": topic,
                "partitions": [
                    {"partition_index": one, "start_offset": starts[topic, one]} for one in found
                ],
            }
            for topic, found in by_topic(starts).items()
        ],
    }

    def asking(node: Node) -> dict[TopicPartition, BrokerError | None]:
        answer = _changed(cluster, node, _ALTER_OFFSETS, request, what)
        return {
            (topic.topic_name, int(one.partition_index)): refusal(
                one.error_code,
                f"{what} in {topic.topic_name}-{one.partition_index}",
                one.error_message,
            )
            for topic in answer.responses
            for one in topic.partitions
        }

    return partition_results(cluster, group, tuple(starts), what, asking)


def reset_share_group_offsets(
    cluster: Cluster,
    group: str,
    to: Mapping[TopicPartition, Spec],
    *,
    dry_run: bool = False,
) -> dict[TopicPartition, int]:
    """Move a share group without members to ends of logs or points in time; where it begins then.

    `to` is as in `list_offsets`; a partition without a record that young is moved to its end.
    With `dry_run` nothing is moved. Raises: `BrokerError` as `list_offsets`, and of
    `alter_share_group_offsets` the first; partitions may have been moved then. Otherwise as
    `Cluster`.
    """
    new = {place: found.offset or 0 for place, found in offsets_at(cluster, to).items()}
    if not dry_run:
        alter_share_group_offsets(cluster, group, new).check()
    return new


def delete_share_group_offsets(
    cluster: Cluster, group: str, topics: Iterable[str]
) -> dict[str, BrokerError | None]:
    """Have a share group without members forget topics; each one's error, None for success.

    It is 3 for a topic that does not exist or that the group does not know, 29.
    Raises: `BrokerError` 69 when there is no such share group, 68 while it has members, 24, 30;
    `Unsupported` on Kafka before 4.1; otherwise as `Cluster`.
    """
    what = f"deleting offsets of share group {group!r}"
    wanted = list(dict.fromkeys(several(topics, "topics")))
    request = {"group_id": group, "topics": [{"topic_name": one} for one in wanted]}

    def asking(node: Node) -> dict[str, BrokerError | None]:
        answer = _changed(cluster, node, _DELETE_OFFSETS, request, what)
        found = {
            one.topic_name: refusal(
                one.error_code, f"{what} in {one.topic_name}", one.error_message
            )
            for one in answer.responses
        }
        return {name: found[name] if name in found else left_out(name, what) for name in wanted}

    return at_coordinator(cluster, group, what, asking)


def delete_share_groups(cluster: Cluster, groups: Iterable[str]) -> dict[str, BrokerError | None]:
    """Delete share groups without members, with their state; each one's error, None for success.

    It is 68 when the group has members, 69 when there is none, or one of another type, which is
    left alone; 30. Raises: as `describe_share_groups`.
    """
    described = describe_share_groups(cluster, groups)
    there = [name for name, one in described.items() if not isinstance(one, BrokerError)]
    done = delete_groups(cluster, there)
    return {
        name: one if isinstance(one, BrokerError) else done[name] for name, one in described.items()
    }


def _changed(cluster: Cluster, node: Node, key: int, request: dict[str, Any], what: str) -> Any:
    version = cluster.newest(key, range(_VERSION, _VERSION + 1), address=node.address)
    answer = cluster.ask(key, version, request, address=node.address)
    check(answer.error_code, what, answer.error_message)
    return answer


def _offset(one: Any) -> ShareOffset | None:
    if one.start_offset < 0:
        return None
    lag = int(getattr(one, "lag", _UNKNOWN))
    return ShareOffset(
        int(one.start_offset), int(one.leader_epoch), None if lag == _UNKNOWN else lag
    )


def _description(one: Any, node: Node) -> ShareGroupDescription:
    return ShareGroupDescription(
        one.group_id,
        one.group_state,
        one.assignor_name,
        int(one.group_epoch),
        int(one.assignment_epoch),
        tuple(map(_member, one.members)),
        node,
    )


def _member(one: Any) -> ShareMember:
    return ShareMember(
        one.member_id,
        one.client_id,
        one.client_host,
        one.rack_id,
        int(one.member_epoch),
        frozenset(one.subscribed_topic_names),
        assigned(one.assignment),
    )
