"""Groups: list, describe and delete them, and have their members leave.

Committed offsets have a module of their own; programs that administer groups find them here too.
Source: ListGroups (KIP-518, KIP-848), ConsumerGroupDescribe (KIP-848, KIP-1099), DescribeGroups
(KIP-1043), DeleteGroups (KIP-229), LeaveGroup (KIP-345, KIP-800).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from headrace.client.connection import Cluster
from headrace.client.errors import BrokerError, Unsupported, check, left_out, refusal
from headrace.client.group_offsets import (
    CommittedOffset,
    PartitionResults,
    alter_group_offsets,
    delete_group_offsets,
    list_group_offsets,
)
from headrace.client.names import several
from headrace.client.nodes import Node, at_coordinator, at_coordinators, brokers
from headrace.client.offsets import TopicPartition
from headrace.wire.primitives import Malformed, Reader

__all__ = [
    "CONSUMER_PROTOCOLS",
    "CommittedOffset",
    "GroupDescription",
    "GroupListing",
    "MemberDescription",
    "Node",
    "PartitionResults",
    "TopicPartition",
    "alter_group_offsets",
    "delete_consumer_groups",
    "delete_group_offsets",
    "delete_groups",
    "describe_groups",
    "list_consumer_groups",
    "list_group_offsets",
    "list_groups",
    "remove_members",
]

# Protocol types: one that was only ever committed to has none.
CONSUMER_PROTOCOLS = ("", "consumer")
_LIST_GROUPS = 16
_LIST_VERSIONS, _LIST_VERSIONS_OF_STATES, _LIST_VERSIONS_OF_TYPES = (
    range(3, 6),
    range(4, 6),
    range(5, 6),
)
_DESCRIBE_GROUPS, _DESCRIBE_GROUPS_VERSIONS = 15, range(5, 7)
_CONSUMER_GROUP_DESCRIBE, _CONSUMER_GROUP_DESCRIBE_VERSIONS = 69, range(2)
_DELETE_GROUPS, _DELETE_GROUPS_VERSION = 42, 2
_LEAVE_GROUP, _LEAVE_GROUP_VERSIONS = 13, range(3, 6)
_UNSUPPORTED_VERSION, _GROUP_ID_NOT_FOUND = 35, 69
_CONSUMER, _SHARE = "consumer", "share"
_DEAD = "Dead"
_CONSUMER_MEMBER, _UNKNOWN_MEMBER = 1, -1
_REASON = "member was removed by an admin"
_REASON_LENGTH_MAX = 255


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group in few words. Source: ListGroups.

    `state` is None on Kafka before 2.6, `type` (e.g. "classic", "consumer", "share") before 3.8.
    `protocol_type` is "consumer" for consumers, "" for a group that was only ever committed to.
    """

    group: str
    protocol_type: str
    state: str | None
    type: str | None


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member of a group; the last three are None in a classic group.

    `target_assignment` is what it is to have in the end, `epoch` its member epoch, `upgraded`
    whether it speaks the consumer protocol (None where the broker does not tell).
    """

    member: str
    instance: str | None
    client_id: str
    host: str
    assignment: frozenset[TopicPartition]
    target_assignment: frozenset[TopicPartition] | None
    epoch: int | None
    upgraded: bool | None


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A classic or a consumer group; epochs are None in a classic one.

    `type` is "classic" or "consumer", `protocol_type` "consumer" for consumers of both types.
    """

    group: str
    type: str
    protocol_type: str
    assignor: str
    state: str
    members: tuple[MemberDescription, ...]
    coordinator: Node
    epoch: int | None
    target_epoch: int | None


def list_groups(
    cluster: Cluster, *, states: Iterable[str] = (), types: Iterable[str] = ()
) -> list[GroupListing]:
    """The groups of all brokers by name, of these states and types when some are given.

    Raises: `Unsupported` when a broker knows no states (before Kafka 2.6) or types (before 3.8)
    that are asked for; otherwise as `Cluster`.
    """
    request = {
        "states_filter": several(states, "states"),
        "types_filter": several(types, "types"),
    }
    versions = _LIST_VERSIONS
    if request["types_filter"]:
        versions = _LIST_VERSIONS_OF_TYPES
    elif request["states_filter"]:
        versions = _LIST_VERSIONS_OF_STATES

    def attempt() -> list[GroupListing]:
        found = {}
        for node in brokers(cluster):
            version = cluster.newest(_LIST_GROUPS, versions, address=node.address)
            answer = cluster.ask(_LIST_GROUPS, version, request, address=node.address)
            check(answer.error_code, f"listing groups of broker {node.id}")
            for one in answer.groups:
                found[one.group_id] = GroupListing(
                    one.group_id,
                    one.protocol_type,
                    getattr(one, "group_state", None),
                    getattr(one, "group_type", None),
                )
        return [found[group] for group in sorted(found)]

    return cluster.retrying("listing groups", attempt)


def list_consumer_groups(
    cluster: Cluster, *, states: Iterable[str] = (), types: Iterable[str] = ()
) -> list[GroupListing]:
    """Of `list_groups` those of consumers, and those that were only ever committed to.

    Raises: as `list_groups`.
    """
    found = list_groups(cluster, states=states, types=types)
    return [one for one in found if one.protocol_type in CONSUMER_PROTOCOLS]


def describe_groups(
    cluster: Cluster, groups: Iterable[str]
) -> dict[str, GroupDescription | BrokerError]:
    """Classic and consumer groups by name, in the order asked; an error stands for a group.

    It is 69 ("Group X not found.") when there is none of these types, 30 when it may not be seen.
    Raises: as `Cluster`.
    """

    def asking(node: Node, wanted: list[str]) -> dict[str, GroupDescription | BrokerError]:
        found = _described_consumer_groups(cluster, node, wanted)
        others = [group for group in wanted if group not in found]
        return found | (_described_classic_groups(cluster, node, others) if others else {})

    return at_coordinators(cluster, several(groups, "groups"), "describing groups", asking)


def delete_groups(cluster: Cluster, groups: Iterable[str]) -> dict[str, BrokerError | None]:
    """As `delete_consumer_groups`, of groups of any type. Raises: as `Cluster`."""

    def asking(node: Node, wanted: list[str]) -> dict[str, BrokerError | None]:
        request = {"groups_names": wanted}
        answer = cluster.ask(_DELETE_GROUPS, _DELETE_GROUPS_VERSION, request, address=node.address)
        return {
            one.group_id: refusal(one.error_code, f"deleting group {one.group_id!r}")
            for one in answer.results
        }

    return at_coordinators(cluster, several(groups, "groups"), "deleting groups", asking)


def delete_consumer_groups(
    cluster: Cluster, groups: Iterable[str]
) -> dict[str, BrokerError | None]:
    """Delete groups without members, with their offsets; each one's error, None for success.

    It is 68 when the group has members, 69 when there is none, or a share group, which is left
    alone; 30 when it may not be deleted. Raises: as `Cluster`.
    """
    wanted = list(dict.fromkeys(several(groups, "groups")))
    shares = {one.group for one in list_groups(cluster) if one.protocol_type == _SHARE}
    done = delete_groups(cluster, [name for name in wanted if name not in shares])
    return {name: _share_group(name) if name in shares else done[name] for name in wanted}


def _share_group(name: str) -> BrokerError:
    told = f"Group {name} is a share group."
    return BrokerError(_GROUP_ID_NOT_FOUND, f"deleting group {name!r}", told)


def remove_members(
    cluster: Cluster,
    group: str,
    *,
    instances: Iterable[str] | None = None,
    reason: str | None = None,
) -> dict[str, BrokerError | None]:
    """Have members leave a group: the static ones with these instance ids, or all of them.

    Each one's error, None for success, by instance id, or by member id where it has none: 25 when
    the group has no such member. `reason` is for the log of the broker. A consumer that lives on
    joins anew.

    Raises: `BrokerError` 69 for all members of a group that does not exist; otherwise as `Cluster`.
    """
    what = f"removing members of group {group!r}"
    reason = f"{_REASON}: {reason}" if reason else _REASON
    if instances is None:
        described = describe_groups(cluster, [group])[group]
        if isinstance(described, BrokerError):
            raise described
        leaving = {
            one.instance or one.member: ("" if one.instance else one.member, one.instance)
            for one in described.members
        }
    else:
        leaving = {one: ("", one) for one in several(instances, "instances")}
    members = [
        {
            "member_id": member,
            "group_instance_id": instance,
            "reason": reason[:_REASON_LENGTH_MAX],
        }
        for member, instance in leaving.values()
    ]

    def asking(node: Node) -> dict[str, BrokerError | None]:
        version = cluster.newest(_LEAVE_GROUP, _LEAVE_GROUP_VERSIONS, address=node.address)
        request = {"group_id": group, "members": members}
        answer = cluster.ask(_LEAVE_GROUP, version, request, address=node.address)
        check(answer.error_code, what)
        removed = {
            (one.group_instance_id or one.member_id): _not_removed(one.error_code, what)
            for one in answer.members
        }
        return {
            one: removed[one] if one in removed else left_out(f"member {one}", what)
            for one in leaving
        }

    return at_coordinator(cluster, group, what, asking) if members else {}


def _not_removed(code: int, what: str) -> BrokerError | None:
    return BrokerError(code, what, remedy="") if code else None


def _described_consumer_groups(
    cluster: Cluster, node: Node, groups: list[str]
) -> dict[str, GroupDescription | BrokerError]:
    """Those of `groups` that are not classic; none where the broker knows the classic ones only."""
    try:
        version = cluster.newest(
            _CONSUMER_GROUP_DESCRIBE, _CONSUMER_GROUP_DESCRIBE_VERSIONS, address=node.address
        )
    except Unsupported:
        return {}
    request = {"group_ids": groups, "include_authorized_operations": False}
    answer = cluster.ask(_CONSUMER_GROUP_DESCRIBE, version, request, address=node.address)
    found: dict[str, GroupDescription | BrokerError] = {}
    for one in answer.groups:
        if one.error_code in {_GROUP_ID_NOT_FOUND, _UNSUPPORTED_VERSION}:
            continue
        if one.error_code:
            found[one.group_id] = _undescribed(one.error_code, one.group_id, one.error_message)
            continue
        members = tuple(_consumer_member(member) for member in one.members)
        found[one.group_id] = GroupDescription(
            one.group_id,
            _CONSUMER,
            _CONSUMER,
            one.assignor_name,
            one.group_state,
            members,
            node,
            int(one.group_epoch),
            int(one.assignment_epoch),
        )
    return found


def _described_classic_groups(
    cluster: Cluster, node: Node, groups: list[str]
) -> dict[str, GroupDescription | BrokerError]:
    version = cluster.newest(_DESCRIBE_GROUPS, _DESCRIBE_GROUPS_VERSIONS, address=node.address)
    request = {"groups": groups, "include_authorized_operations": False}
    answer = cluster.ask(_DESCRIBE_GROUPS, version, request, address=node.address)
    found: dict[str, GroupDescription | BrokerError] = {}
    for one in answer.groups:
        message = getattr(one, "error_message", None)
        code = one.error_code
        if not code and one.group_state == _DEAD:
            # Before version 6 that is all that is said of a group that does not exist.
            code, message = _GROUP_ID_NOT_FOUND, f"Group {one.group_id} not found."
        if code:
            found[one.group_id] = _undescribed(code, one.group_id, message)
            continue
        members = tuple(_classic_member(member) for member in one.members)
        found[one.group_id] = GroupDescription(
            one.group_id,
            "classic",
            one.protocol_type,
            one.protocol_data,
            one.group_state,
            members,
            node,
            None,
            None,
        )
    return found


def _undescribed(code: int, group: str, message: str | None) -> BrokerError:
    return BrokerError(code, f"describing group {group!r}", message)


def _consumer_member(one: Any) -> MemberDescription:
    kind = getattr(one, "member_type", _UNKNOWN_MEMBER)
    return MemberDescription(
        one.member_id,
        one.instance_id,
        one.client_id,
        one.client_host,
        assigned(one.assignment),
        assigned(one.target_assignment),
        int(one.member_epoch),
        None if kind == _UNKNOWN_MEMBER else kind == _CONSUMER_MEMBER,
    )


def assigned(assignment: Any) -> frozenset[TopicPartition]:
    """The partitions of an assignment in an answer of ConsumerGroupDescribe or its like."""
    return frozenset(
        (one.topic_name, int(partition))
        for one in assignment.topic_partitions
        for partition in one.partitions
    )


def _classic_member(one: Any) -> MemberDescription:
    return MemberDescription(
        one.member_id,
        one.group_instance_id,
        one.client_id,
        one.client_host,
        _classic_assignment(one.member_assignment),
        None,
        None,
        None,
    )


def _classic_assignment(data: bytes) -> frozenset[TopicPartition]:
    """What a group's leader assigned, read as version 0; nothing where that is no such thing.

    Members may have a protocol of their own (Kafka Connect has), and may be wrong.
    Source: ConsumerProtocolAssignment.json.
    """
    source = Reader(data)
    found: set[TopicPartition] = set()
    try:
        source.int16()  # the version: later ones only append
        for _ in range(source.int32()):
            topic = source.nullable_string() or ""
            found.update((topic, source.int32()) for _ in range(source.int32()))
    except Malformed:
        return frozenset()
    return frozenset(found)
