"""`headrace consumer-groups --reset-offsets`: what offsets become, and setting them.

A plan is made for every group before any offset is set. Source: GroupOffsetsResetter of Kafka 4.3.
"""

import csv
import io
import json
import time
from dataclasses import dataclass

from headrace.cli.consumer_groups import COMMAND, Asked
from headrace.cli.consumer_groups_describe import not_of_consumers
from headrace.cli.consumer_groups_list import named_groups
from headrace.cli.ending import Trouble, end_with, tell
from headrace.cli.group_kinds import of_other_kinds
from headrace.cli.moments import length_ms, moment_ms
from headrace.cli.progress import counted
from headrace.cli.reset_logs import Logs, logs_of, named_logs
from headrace.cli.reset_plans import Offsets, Plans, read_plans
from headrace.cli.table import Table
from headrace.cli.topic_partitions import spelled
from headrace.client.connection import Cluster
from headrace.client.errors import BrokerError, ClientError
from headrace.client.groups import (
    CONSUMER_PROTOCOLS,
    GroupDescription,
    TopicPartition,
    alter_group_offsets,
    describe_groups,
    list_group_offsets,
)
from headrace.wire.error_codes import ErrorCode

_INACTIVE = {"Empty", "Dead"}


@dataclass(frozen=True, slots=True)
class _Draft:
    """A group whose offsets may be set: of which partitions, and to what if a file says so."""

    group: str
    places: list[TopicPartition]
    committed: Offsets
    wanted: Offsets


@dataclass(frozen=True, slots=True)
class _Reset:
    """One group's offsets before and after; `current` lacks what was never committed."""

    group: str
    current: Offsets
    new: Offsets


@dataclass(frozen=True, slots=True)
class _Scope:
    """What all groups have in common: the partitions that are named, a point in time, a file."""

    partitions: list[TopicPartition] | None
    since_ms: int | None
    plans: Plans | None


def reset(cluster: Cluster, asked: Asked) -> None:
    """Print the new offsets, and set them with --execute.

    Raises: Trouble at the end when the offsets of a group could not be planned or set.
    """
    names = list(dict.fromkeys(named_groups(cluster, asked)))
    scope = _scope(cluster, asked, names)
    if not (asked.execute or asked.dry_run):
        tell(
            COMMAND,
            "WARN: No action will be performed as the --execute option is missing; add it to "
            "set the offsets, or --dry-run to go without this line",
        )
    drafts: list[_Draft] = []
    done: list[_Reset] = []
    troubles: list[str] = []
    described = describe_groups(cluster, names)
    others = of_other_kinds(cluster, names, COMMAND)
    for name in counted(names, "groups asked for their offsets"):
        try:
            _require_inactive(described[name])
            if name in others:
                raise Trouble(others[name])
            drafts.append(_draft(cluster, name, scope, asked))
        except Trouble as trouble:
            troubles.append(str(trouble))
    places = {place for draft in drafts for place in draft.places}
    logs = logs_of(cluster, places, scope.since_ms, command=COMMAND)
    for draft in drafts:
        try:
            done.append(_plan(draft, logs, asked))
        except Trouble as trouble:
            troubles.append(str(trouble))
    alone = len(names) == 1 and not asked.all_groups
    if asked.execute:
        done = _executed(cluster, done, troubles, asked, alone=alone)
    _show(done, asked, alone=alone)
    end_with(COMMAND, troubles)


def _scope(cluster: Cluster, asked: Asked, names: list[str]) -> _Scope:
    """Raises: Trouble for what makes no sense, and for partitions that do not exist."""
    since_ms = None
    if asked.to_datetime is not None:
        since_ms = moment_ms(asked.to_datetime)
    elif asked.by_duration is not None:
        since_ms = int(time.time() * 1000) - length_ms(asked.by_duration)
    plans = read_plans(asked.from_file, names) if asked.from_file is not None else None
    partitions = named_logs(cluster, asked.topic) if asked.topic else None
    return _Scope(partitions, since_ms, plans)


def _require_inactive(described: GroupDescription | BrokerError) -> None:
    """Raises: Trouble unless a group's offsets may be set; those of one that is not there may."""
    if isinstance(described, BrokerError):
        if described.code != ErrorCode.group_id_not_found:
            raise Trouble(str(described))
        return
    if described.protocol_type not in CONSUMER_PROTOCOLS:
        raise Trouble(not_of_consumers(described))
    if described.state not in _INACTIVE:
        raise Trouble(
            f"Assignments can only be reset if the group '{described.group}' is inactive, but the "
            f"current state is {described.state}; stop its members first"
        )


def _draft(cluster: Cluster, group: str, scope: _Scope, asked: Asked) -> _Draft:
    """Raises: Trouble when the file has no plan for the group."""
    committed = {place: one.offset for place, one in list_group_offsets(cluster, group).items()}
    if scope.plans is None:
        places = sorted(committed if scope.partitions is None else scope.partitions)
        return _Draft(group, places, committed, {})
    if group not in scope.plans:
        raise Trouble(f"No reset plan for group {group} found in {asked.from_file}")
    wanted = scope.plans[group]
    return _Draft(group, sorted(wanted), committed, wanted)


def _plan(draft: _Draft, logs: Logs, asked: Asked) -> _Reset:
    """Raises: Trouble when a partition has no readable log, or nothing to shift."""
    logs.require(draft.places, draft.group)
    committed = draft.committed
    current = {place: committed[place] for place in draft.places if place in committed}
    new = {place: _new_offset(draft, place, logs, asked) for place in draft.places}
    return _Reset(draft.group, current, new)


def _new_offset(draft: _Draft, place: TopicPartition, logs: Logs, asked: Asked) -> int:
    """By the scenario asked for. Raises: Trouble when there is nothing to start from."""
    if logs.since is not None:
        return logs.since[place]
    earliest, latest = logs.earliest(place), logs.latest(place)
    if asked.to_earliest:
        return earliest
    if asked.to_latest:
        return latest
    if asked.to_current:
        return draft.committed.get(place, latest)
    if asked.to_nearest:
        return min(max(_committed(draft, place, "move"), earliest), latest)
    if asked.shift_by is not None:
        offset = _committed(draft, place, "shift") + asked.shift_by
    else:
        offset = draft.wanted[place] if asked.to_offset is None else asked.to_offset
    return within(place, offset, earliest, latest)


def _committed(draft: _Draft, place: TopicPartition, doing: str) -> int:
    """Raises: Trouble when there is no offset to start from."""
    if place not in draft.committed:
        raise Trouble(
            f"Cannot {doing} offset for partition {spelled(place)} since there is no current "
            "committed offset; name partitions that have one, or use --to-offset"
        )
    return draft.committed[place]


def within(place: TopicPartition, offset: int, earliest: int, latest: int) -> int:
    """The offset, or the end of the log that is next to it, which is told."""
    nearest = min(max(offset, earliest), latest)
    if nearest != offset:
        which = "higher than latest" if offset > latest else "lower than earliest"
        tell(
            COMMAND,
            f"WARN New offset ({offset}) is {which} offset for topic partition {spelled(place)}. "
            f"Value will be set to {nearest}.",
        )
    return nearest


def _executed(
    cluster: Cluster, planned: list[_Reset], troubles: list[str], asked: Asked, *, alone: bool
) -> list[_Reset]:
    """What was set; `troubles` gets why the rest was not. Raises: as `Cluster`.

    Whatever ends it early, a broker that goes or a key press: what was set by then is told.
    """
    done: list[_Reset] = []
    try:
        for one in counted(planned, "groups set"):
            done.append(_execute(cluster, one, troubles))  # noqa: PERF401 -- kept when it ends
    except (ClientError, KeyboardInterrupt):
        _show(done, asked, alone=alone)
        for trouble in troubles:
            tell(COMMAND, trouble)
        raise
    return done


def _execute(cluster: Cluster, planned: _Reset, troubles: list[str]) -> _Reset:
    """What was set of a plan; `troubles` gets why the rest was not."""
    if not planned.new:
        return planned
    results = alter_group_offsets(cluster, planned.group, planned.new)
    errors = [*results.errors.values(), results.group_error]
    troubles += [str(error) for error in errors if error is not None]
    is_set = {place: results.partition_result(place) is None for place in planned.new}
    new = {place: offset for place, offset in planned.new.items() if is_set[place]}
    return _Reset(planned.group, planned.current, new)


def _show(done: list[_Reset], asked: Asked, *, alone: bool) -> None:
    if asked.as_json:
        for one in done:
            print(json.dumps(_as_object(one, executed=asked.execute)))
    elif asked.export:
        lines = io.StringIO()
        writer = csv.writer(lines, lineterminator="\n")
        for one in done:
            for (topic, partition), offset in one.new.items():
                head = [] if alone else [one.group]
                writer.writerow([*head, topic, partition, offset])
        print(lines.getvalue())
    elif done:
        table = Table(("GROUP", 15), ("TOPIC", 15), ("PARTITION", 10), ("NEW-OFFSET", 0))
        for one in done:
            for place, offset in one.new.items():
                table.add(one.group, *place, offset)
        table.show()


def _as_object(one: _Reset, *, executed: bool) -> dict[str, object]:
    return {
        "group": one.group,
        "executed": executed,
        "partitions": [
            {
                "topic": topic,
                "partition": partition,
                "current_offset": one.current.get((topic, partition)),
                "new_offset": offset,
            }
            for (topic, partition), offset in one.new.items()
        ],
    }
