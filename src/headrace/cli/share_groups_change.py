"""`headrace share-groups --reset-offsets`, `--delete-offsets` and `--delete`."""

import json

from headrace.cli.ending import Trouble, end_with
from headrace.cli.group_deletion import show_deleted, told, with_remedy
from headrace.cli.group_kinds import of_other_kinds
from headrace.cli.group_options import Asked
from headrace.cli.moments import moment_ms
from headrace.cli.reset_logs import Logs, logs_of, named_logs
from headrace.cli.share_groups import COMMAND
from headrace.cli.share_groups_describe import Offsets, names_of
from headrace.cli.table import Table
from headrace.client.connection import Cluster
from headrace.client.errors import BrokerError
from headrace.client.offsets import TopicPartition
from headrace.client.share_groups import (
    alter_share_group_offsets,
    delete_share_group_offsets,
    delete_share_groups,
    describe_share_groups,
    list_readable_share_group_offsets,
)
from headrace.wire.error_codes import ErrorCode

_EMPTY = {"Empty", "Dead"}
_DONE = "Successful"


def delete(cluster: Cluster, asked: Asked) -> None:
    """Delete groups. Raises: Trouble when some were not deleted."""
    results = delete_share_groups(cluster, names_of(cluster, asked))
    show_deleted(results, kind="share", command=COMMAND, as_json=asked.as_json)


def delete_offsets(cluster: Cluster, asked: Asked) -> None:
    """Have one group forget topics. Raises: Trouble when some were not forgotten."""
    (group,) = asked.group
    try:
        errors = delete_share_group_offsets(cluster, group, asked.topic)
    except BrokerError as error:
        if asked.as_json:
            print(json.dumps({"group": group, "deleted": False, "error": told(error)}))
        raise Trouble(f"no offset of group '{group}' was deleted: {with_remedy(error)}") from error
    table = Table(("TOPIC", 15), ("STATUS", 0))
    for topic, one in sorted(errors.items()):
        if asked.as_json:
            place = {"group": group, "topic": topic}
            print(json.dumps({**place, "deleted": one is None, "error": told(one)}))
        table.add(topic, _DONE if one is None else f"Error: {one.message}")
    if not asked.as_json:
        table.show()
    failed = sum(one is not None for one in errors.values())
    if failed:
        raise Trouble(
            f"{failed} of {len(errors)} were not deleted from group '{group}'; see STATUS"
        )


def reset(cluster: Cluster, asked: Asked) -> None:
    """Print where a group begins, and set it with --execute.

    Raises: Trouble when nothing can be set, and at the end when some partitions were not.
    """
    (group,) = asked.group
    since_ms = None if asked.to_datetime is None else moment_ms(asked.to_datetime)
    _require_empty(cluster, group)
    current: Offsets = list_readable_share_group_offsets(cluster, group)[0]
    places = named_logs(cluster, asked.topic) if asked.topic else list(current)
    if not places:
        raise Trouble(f"Share group '{group}' reads nothing yet; name topics with --topic")
    logs = logs_of(cluster, places, since_ms, command=COMMAND)
    logs.require(places, group)
    new = {place: _start(place, logs, asked) for place in sorted(places)}
    troubles = []
    if asked.execute:
        results = alter_share_group_offsets(cluster, group, new)
        troubles = [str(one) for one in results.errors.values() if one is not None]
        if results.group_error is not None:
            raise Trouble(
                f"no offset of group '{group}' was set: {with_remedy(results.group_error)}"
            )
        new = {place: start for place, start in new.items() if results.errors[place] is None}
    _show(group, current, new, asked)
    end_with(COMMAND, troubles)


def _require_empty(cluster: Cluster, group: str) -> None:
    """Raises: Trouble when the group has members, or is none of shares; an absent one is empty."""
    others = of_other_kinds(cluster, [group], COMMAND)
    if others:
        raise Trouble(others[group])
    described = describe_share_groups(cluster, [group])[group]
    if isinstance(described, BrokerError):
        if described.code != ErrorCode.group_id_not_found:
            raise Trouble(str(described))
    elif described.state not in _EMPTY:
        raise Trouble(f"Share group '{group}' is not empty; stop its members first")


def _start(place: TopicPartition, logs: Logs, asked: Asked) -> int:
    """By the scenario asked for."""
    if logs.since is not None:
        return logs.since[place]
    return logs.earliest(place) if asked.to_earliest else logs.latest(place)


def _show(group: str, current: Offsets, new: dict[TopicPartition, int], asked: Asked) -> None:
    if asked.as_json:
        rows = []
        for (topic, partition), start in new.items():
            known = current.get((topic, partition))
            row = {"topic": topic, "partition": partition}
            rows.append(row | {"current_offset": known and known.start, "new_offset": start})
        print(json.dumps({"group": group, "executed": asked.execute, "partitions": rows}))
        return
    table = Table(("GROUP", 15), ("TOPIC", 15), ("PARTITION", 10), ("NEW-OFFSET", 0))
    for place, start in new.items():
        table.add(group, *place, start)
    table.show()
