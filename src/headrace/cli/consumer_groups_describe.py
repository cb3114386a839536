"""`headrace consumer-groups --describe`: offsets and lag, members or states of groups.

Tables are those of Kafka 4.3's ConsumerGroupCommand. An operator's totals are in the JSON objects.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.cli.consumer_groups import COMMAND, Asked
from headrace.cli.consumer_groups_list import named_groups
from headrace.cli.ending import end_with, tell
from headrace.cli.group_kinds import of_other_kinds
from headrace.cli.progress import counted
from headrace.cli.table import MISSING, Cell, Table
from headrace.cli.topic_partitions import assigned, of_topics
from headrace.client.connection import Cluster
from headrace.client.errors import BrokerError
from headrace.client.groups import (
    CONSUMER_PROTOCOLS,
    CommittedOffset,
    GroupDescription,
    MemberDescription,
    TopicPartition,
    describe_groups,
    list_group_offsets,
)
from headrace.client.log_ends import Ends, readable_ends_of
from headrace.wire.error_codes import ErrorCode

_REBALANCING = {"PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling"}


@dataclass(frozen=True, slots=True)
class Row:
    """One partition of a group: assigned to a member, or with a committed offset, or both."""

    partition: TopicPartition
    committed: CommittedOffset | None
    ends: Ends
    member: MemberDescription | None

    @property
    def lag(self) -> int | None:
        """Records between the committed offset and the end of the log; None when one is unknown."""
        if self.committed is None or self.ends.latest is None:
            return None
        return self.ends.latest - self.committed.offset


def describe(cluster: Cluster, asked: Asked) -> None:
    """Print what is asked of groups. Raises: Trouble at the end when some could not be described.

    Kafka's tool prints nothing at all when one of several groups does not exist.
    """
    found, troubles = _described(cluster, named_groups(cluster, asked))
    if asked.members:
        for one in found:
            _show_members(one, asked)
    elif asked.state is not None:
        for one in found:
            _show_state(one, asked)
    else:
        troubles += _show_offsets(cluster, found, asked)
    end_with(COMMAND, troubles)


def _described(cluster: Cluster, names: Iterable[str]) -> tuple[list[GroupDescription], list[str]]:
    """The groups that are there, by name, and why the others are not."""
    found, troubles = [], []
    described = describe_groups(cluster, names)
    absent = [
        name
        for name, one in described.items()
        if isinstance(one, BrokerError) and one.code == ErrorCode.group_id_not_found
    ]
    others = of_other_kinds(cluster, absent, COMMAND) if absent else {}
    for name, one in sorted(described.items()):
        if name in absent:
            troubles.append(others.get(name, f"Group {name} not found; see --list"))
        elif isinstance(one, BrokerError):
            troubles.append(str(one))
        elif one.protocol_type not in CONSUMER_PROTOCOLS:
            troubles.append(not_of_consumers(one))
        else:
            found.append(one)
    return found, troubles


def not_of_consumers(group: GroupDescription) -> str:
    """What is told of a group that Kafka Connect or another program made."""
    return f"Group {group.group} is not a consumer group ({group.protocol_type}); see --list"


def rows_of(
    group: GroupDescription,
    committed: Mapping[TopicPartition, CommittedOffset],
    ends: Mapping[TopicPartition, Ends],
) -> list[Row]:
    """The partitions of members, those with most first; then those that are committed alone."""
    rows = []
    left = dict(committed)
    for member in sorted(group.members, key=lambda one: -len(one.assignment)):
        for place in sorted(member.assignment):
            rows.append(Row(place, committed.get(place), ends[place], member))
            left.pop(place, None)
    rows += [Row(place, offset, ends[place], None) for place, offset in sorted(left.items())]
    return rows


def _show_offsets(cluster: Cluster, groups: list[GroupDescription], asked: Asked) -> list[str]:
    """Show offsets of groups, and return why the ends of logs are missing in them."""
    committed = {
        one.group: list_group_offsets(cluster, one.group)
        for one in counted(groups, "groups asked for their offsets")
    }
    places = {
        place
        for one in groups
        for part in (committed[one.group], *(member.assignment for member in one.members))
        for place in part
    }
    ends, errors = readable_ends_of(cluster, places, with_earliest=asked.as_json)
    for one in groups:
        rows = rows_of(one, committed[one.group], ends)
        if asked.as_json:
            print(json.dumps(_offsets_object(one, rows)))
            continue
        _tell_state(one)
        if rows:
            _offsets_table(one, rows, verbose=asked.verbose).show()
    return [str(error) for _, error in sorted(errors.items())]


def _offsets_table(group: GroupDescription, rows: list[Row], *, verbose: bool) -> Table:
    table = Table(
        ("GROUP", 15), ("TOPIC", 15), ("PARTITION", 10), *[("LEADER-EPOCH", 15)] * verbose,
        ("CURRENT-OFFSET", 15), ("LOG-END-OFFSET", 15), ("LAG", 15),
        ("CONSUMER-ID", 15), ("HOST", 15), ("CLIENT-ID", 0),
    )  # fmt: skip
    for one in map(_row_object, rows):
        table.add(
            group.group,
            one["topic"],
            one["partition"],
            *[one["leader_epoch"]] * verbose,
            *(one[name] for name in ("current_offset", "log_end_offset", "lag")),
            *(one[name] for name in ("consumer_id", "host", "client_id")),
        )
    return table


def _show_members(group: GroupDescription, asked: Asked) -> None:
    if asked.as_json:
        print(json.dumps(_members_object(group)))
        return
    _tell_state(group)
    members_table(group, verbose=asked.verbose).show()


def members_table(group: GroupDescription, *, verbose: bool) -> Table:
    """A row a member; columns of static members and of both protocols when there are such."""
    static = any(one.instance for one in group.members)
    mixed = {True, False} <= {one.upgraded for one in group.members}
    columns = [("GROUP", 15), ("CONSUMER-ID", 15), *[("GROUP-INSTANCE-ID", 17)] * static]
    columns += [("HOST", 15), ("CLIENT-ID", 15), ("#PARTITIONS", 15)]
    if verbose:
        columns += [("CURRENT-EPOCH", 15), ("CURRENT-ASSIGNMENT", 20)]
        columns += [("TARGET-EPOCH", 15), ("TARGET-ASSIGNMENT", 20), *[("UPGRADED", 0)] * mixed]
    else:
        columns += [("", 0)]  # Kafka's line ends with a blank
    table = Table(*columns)
    for one in group.members:
        instance = [one.instance or ""] * static
        cells: list[Cell] = [group.group, one.member, *instance, one.host, one.client_id]
        cells += [len(one.assignment)]
        if verbose:
            upgraded = None if one.upgraded is None else str(one.upgraded).lower()
            cells += [one.epoch, assigned(one.assignment), group.target_epoch]
            cells += [assigned(one.target_assignment), *[upgraded] * mixed]
        else:
            cells += [""]
        table.add(*cells)
    return table


def _show_state(group: GroupDescription, asked: Asked) -> None:
    if asked.as_json:
        print(json.dumps(_state_object(group)))
        return
    _tell_state(group)
    node = group.coordinator
    table = Table(
        ("GROUP", 15), ("COORDINATOR (ID)", 25), ("ASSIGNMENT-STRATEGY", 20), ("STATE", 20),
        *[("GROUP-EPOCH", 15), ("TARGET-ASSIGNMENT-EPOCH", 25)] * asked.verbose,
        ("#MEMBERS", 0),
    )  # fmt: skip
    table.add(
        group.group,
        f"{node.host}:{node.port}  ({node.id})",
        group.assignor or MISSING,
        group.state,
        *[group.epoch, group.target_epoch] * asked.verbose,
        len(group.members),
    )
    table.show()


def _tell_state(group: GroupDescription) -> None:
    if group.state == "Empty":
        tell(COMMAND, f"Consumer group '{group.group}' has no active members.")
    elif group.state in _REBALANCING:
        tell(COMMAND, f"Warning: Consumer group '{group.group}' is rebalancing.")


def _head(group: GroupDescription) -> dict[str, Any]:
    return {"group": group.group, "type": group.type, "state": group.state}


def _offsets_object(group: GroupDescription, rows: list[Row]) -> dict[str, Any]:
    known = [row.lag for row in rows if row.lag is not None]
    return _head(group) | {
        "partitions": [_row_object(row) for row in rows],
        "total_lag": sum(known),
        "unknown_lags": len(rows) - len(known),
    }


def _row_object(row: Row) -> dict[str, Any]:
    committed, member = row.committed, row.member
    return {
        "topic": row.partition[0],
        "partition": row.partition[1],
        "current_offset": committed and committed.offset,
        "leader_epoch": committed and committed.leader_epoch,
        "metadata": committed and committed.metadata,
        "log_start_offset": row.ends.earliest,
        "log_end_offset": row.ends.latest,
        "lag": row.lag,
        "consumer_id": member and member.member,
        "host": member and member.host,
        "client_id": member and member.client_id,
    }


def _members_object(group: GroupDescription) -> dict[str, Any]:
    members = [
        {
            "consumer_id": one.member,
            "group_instance_id": one.instance,
            "host": one.host,
            "client_id": one.client_id,
            "epoch": one.epoch,
            "assignment": of_topics(one.assignment),
            "target_assignment": None
            if one.target_assignment is None
            else of_topics(one.target_assignment),
            "upgraded": one.upgraded,
        }
        for one in group.members
    ]
    return _head(group) | {"target_assignment_epoch": group.target_epoch, "members": members}


def _state_object(group: GroupDescription) -> dict[str, Any]:
    node = group.coordinator
    return _head(group) | {
        "coordinator": {"id": node.id, "host": node.host, "port": node.port},
        "assignment_strategy": group.assignor or None,
        "group_epoch": group.epoch,
        "target_assignment_epoch": group.target_epoch,
        "member_count": len(group.members),
    }
