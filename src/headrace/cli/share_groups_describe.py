"""`headrace share-groups --list` and `--describe`: offsets and lag, members or states of groups.

Tables are those of Kafka 4.3's ShareGroupCommand; those of members and states have one of each
group, as Kafka's have.
"""

import json
from collections.abc import Mapping
from typing import Any

from headrace.cli.ending import end_with, tell
from headrace.cli.group_options import Asked, named
from headrace.cli.share_groups import COMMAND
from headrace.cli.table import Cell, Table
from headrace.cli.topic_partitions import assigned, of_topics
from headrace.client.connection import Cluster
from headrace.client.errors import BrokerError
from headrace.client.offsets import TopicPartition
from headrace.client.share_groups import (
    ShareGroupDescription,
    ShareOffset,
    describe_share_groups,
    list_readable_share_group_offsets,
    list_share_groups,
)
from headrace.wire.error_codes import ErrorCode

# Source: GroupState.groupStatesForType(SHARE) of Kafka 4.3.
_STATES = ("Dead", "Empty", "Stable")

Offsets = Mapping[TopicPartition, ShareOffset | None]


def list_groups(cluster: Cluster, asked: Asked) -> None:
    """Print the share groups; with --state a table, of those states alone that are named."""
    found = list_share_groups(cluster, states=named(asked.state, _STATES, "state"))
    if asked.as_json:
        for one in found:
            print(json.dumps({"group": one.group, "state": one.state}))
    elif asked.state is None:
        for one in found:
            print(one.group)
    else:
        table = Table(("GROUP", 15), ("STATE", 0))
        for one in found:
            table.add(one.group, one.state)
        print(*table.lines(), sep="\n")


def names_of(cluster: Cluster, asked: Asked) -> list[str]:
    """The groups that are asked for."""
    if not asked.all_groups:
        return asked.group
    return [one.group for one in list_share_groups(cluster)]


def describe(cluster: Cluster, asked: Asked) -> None:
    """Print what is asked of groups. Raises: Trouble at the end when some could not be described.

    Kafka's tool prints nothing at all when one of several groups does not exist.
    """
    troubles = []
    for name, one in sorted(describe_share_groups(cluster, names_of(cluster, asked)).items()):
        if isinstance(one, BrokerError):
            absent = one.code == ErrorCode.group_id_not_found
            told = f"{one.message.rstrip('.')}; see --list" if absent else str(one)
            troubles.append(told)
        elif asked.members:
            _show_members(one, asked)
        elif asked.state is not None:
            _show_state(one, asked)
        else:
            offsets, errors = list_readable_share_group_offsets(cluster, name)
            _show_offsets(one, offsets, asked)
            troubles += map(str, errors.values())
    end_with(COMMAND, troubles)


def _show_offsets(group: ShareGroupDescription, offsets: Offsets, asked: Asked) -> None:
    if asked.as_json:
        print(json.dumps(_offsets_object(group, offsets)))
        return
    if not offsets:
        tell(COMMAND, f"Share group '{group.group}' has no offset information.")
        return
    table = Table(
        ("GROUP", 15), ("TOPIC", 15), ("PARTITION", 10), *[("LEADER-EPOCH", 13)] * asked.verbose,
        ("START-OFFSET", 13), ("LAG", 0),
    )  # fmt: skip
    for place, offset in offsets.items():
        epoch, start, lag = _cells(offset)
        table.add(group.group, *place, *[epoch] * asked.verbose, start, lag)
    table.show()


def _cells(offset: ShareOffset | None) -> tuple[Cell, Cell, Cell]:
    return (None, None, None) if offset is None else (offset.leader_epoch, offset.start, offset.lag)


def _show_members(group: ShareGroupDescription, asked: Asked) -> None:
    if asked.as_json:
        print(json.dumps(_members_object(group)))
        return
    _tell_empty(group)
    if not group.members:
        return
    table = Table(
        ("GROUP", 15), ("CONSUMER-ID", 15), ("HOST", 15), ("CLIENT-ID", 15), ("#PARTITIONS", 12),
        *[("MEMBER-EPOCH", 13)] * asked.verbose, ("ASSIGNMENT", 0),
    )  # fmt: skip
    for one in group.members:
        table.add(
            group.group,
            one.member,
            one.host,
            one.client_id,
            len(one.assignment),
            *[one.epoch] * asked.verbose,
            assigned(one.assignment),
        )
    table.show()


def _show_state(group: ShareGroupDescription, asked: Asked) -> None:
    if asked.as_json:
        print(json.dumps(_state_object(group)))
        return
    _tell_empty(group)
    node = group.coordinator
    table = Table(
        ("GROUP", 15), ("COORDINATOR (ID)", 25), ("STATE", 15),
        *[("GROUP-EPOCH", 12), ("ASSIGNMENT-EPOCH", 17)] * asked.verbose, ("#MEMBERS", 0),
    )  # fmt: skip
    table.add(
        group.group,
        f"{node.host}:{node.port}  ({node.id})",
        group.state,
        *[group.epoch, group.assignment_epoch] * asked.verbose,
        len(group.members),
    )
    table.show()


def _tell_empty(group: ShareGroupDescription) -> None:
    if not group.members:
        tell(COMMAND, f"Share group '{group.group}' has no active members.")


def _head(group: ShareGroupDescription) -> dict[str, Any]:
    return {"group": group.group, "state": group.state}


def _offsets_object(group: ShareGroupDescription, offsets: Offsets) -> dict[str, Any]:
    rows = []
    for (topic, partition), offset in offsets.items():
        epoch, start, lag = _cells(offset)
        row = {"topic": topic, "partition": partition, "leader_epoch": epoch}
        rows.append(row | {"start_offset": start, "lag": lag})
    known = [one.lag for one in offsets.values() if one is not None and one.lag is not None]
    totals = {"total_lag": sum(known), "unknown_lags": len(rows) - len(known)}
    return _head(group) | {"partitions": rows} | totals


def _members_object(group: ShareGroupDescription) -> dict[str, Any]:
    members = [
        {
            "consumer_id": one.member,
            "host": one.host,
            "client_id": one.client_id,
            "rack": one.rack,
            "epoch": one.epoch,
            "topics": sorted(one.topics),
            "assignment": of_topics(one.assignment),
        }
        for one in group.members
    ]
    return _head(group) | {"members": members}


def _state_object(group: ShareGroupDescription) -> dict[str, Any]:
    node = group.coordinator
    return _head(group) | {
        "coordinator": {"id": node.id, "host": node.host, "port": node.port},
        "assignor": group.assignor,
        "group_epoch": group.epoch,
        "assignment_epoch": group.assignment_epoch,
        "member_count": len(group.members),
    }
