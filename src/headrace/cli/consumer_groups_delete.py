"""`headrace consumer-groups --delete` and `--delete-offsets`.

The text of --delete-offsets is that of KIP-496: its error of a group, its table of partitions.
"""

import json
from typing import Any

from headrace.cli.consumer_groups import COMMAND, Asked
from headrace.cli.consumer_groups_list import named_groups
from headrace.cli.ending import Trouble
from headrace.cli.group_deletion import show_deleted, told, with_remedy
from headrace.cli.group_kinds import of_other_kinds
from headrace.cli.table import Table
from headrace.cli.topic_partitions import named_partitions
from headrace.client.connection import Cluster
from headrace.client.errors import BrokerError
from headrace.client.groups import delete_consumer_groups, delete_group_offsets

_NOT_PROVIDED = "Not Provided"
_DONE = "Successful"

# A partition, or a topic whose partitions are not known.
_Place = tuple[str, int | None]


def delete(cluster: Cluster, asked: Asked) -> None:
    """Delete groups. Raises: Trouble when some were not deleted."""
    results = delete_consumer_groups(cluster, named_groups(cluster, asked))
    show_deleted(results, kind="consumer", command=COMMAND, as_json=asked.as_json)


def delete_offsets(cluster: Cluster, asked: Asked) -> None:
    """Delete offsets of one group. Raises: Trouble when some were not deleted."""
    (group,) = asked.group
    errors: dict[_Place, BrokerError | None] = {}
    partitions = []
    for topic, numbers in named_partitions(asked.topic).items():
        try:
            its = cluster.partitions(topic) if numbers is None else numbers
        except BrokerError as error:
            errors[topic, None] = error
        else:
            partitions += [(topic, number) for number in its]
    results = delete_group_offsets(cluster, group, partitions)
    if results.group_error is not None:
        _refused(cluster, group, results.group_error, asked)
    errors.update(results.errors.items())
    _show(group, errors, asked)
    failed = sum(error is not None for error in errors.values())
    if failed:
        raise Trouble(
            f"{failed} of {len(errors)} were not deleted from group '{group}'; see STATUS"
        )


def _refused(cluster: Cluster, group: str, error: BrokerError, asked: Asked) -> None:
    other = of_other_kinds(cluster, [group], COMMAND).get(group)
    message = other or error.message
    if asked.as_json:
        about = {"name": error.name, "message": message}
        print(json.dumps({"group": group, "deleted": False, "error": about}))
    else:
        print(f"\nError: Deletion of offsets failed due to: {message}")
    raise Trouble(f"no offset of group '{group}' was deleted: {other or with_remedy(error)}")


def _show(group: str, errors: dict[_Place, BrokerError | None], asked: Asked) -> None:
    table = Table(("TOPIC", 30), ("PARTITION", 15), ("STATUS", 0))
    for (topic, partition), error in sorted(errors.items(), key=_order):
        if asked.as_json:
            place = {"group": group, "topic": topic, "partition": partition}
            print(json.dumps({**place, "deleted": error is None, "error": told(error)}))
            continue
        status = _DONE if error is None else f"Error: {error.message}"
        table.add(topic, _NOT_PROVIDED if partition is None else partition, status)
    if not asked.as_json:
        table.show()


def _order(item: tuple[_Place, Any]) -> tuple[str, int]:
    (topic, partition), _ = item
    return topic, -1 if partition is None else partition
