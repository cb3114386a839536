"""`headrace share archived`: what a share group archived without a dead letter; and clear it."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.connect import (
    BOOTSTRAP_SERVER,
    BootstrapServer,
    CommandConfig,
    Json,
    connect,
    require_address,
)
from headrace.cli.ending import Trouble, ending, tell

if TYPE_CHECKING:
    from headrace.client.connection import Cluster
    from headrace.client.share_archived import ArchivedRecords, ArchivedRun

COMMAND = "share archived"

_Group = Annotated[str, typer.Argument(help="The share group.")]
_Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic", metavar="TOPIC[:P,P]", help="Only in this topic, or its partitions; repeatable."
    ),
]
_Clear = Annotated[bool, typer.Option("--clear", help="Clear what is printed from the list.")]


def register(group: typer.Typer) -> None:
    """Add the command."""
    group.command("archived")(archived)


def archived(
    context: typer.Context,
    group: _Group,
    bootstrap_server: BootstrapServer = BOOTSTRAP_SERVER,
    topic: _Topics = None,
    clear: _Clear = False,
    as_json: Json = False,
    command_config: CommandConfig = None,
) -> None:
    """List the records that a share group archived without a dead letter, with the reason.

    headrace share archived work --topic orders
    """
    with ending(COMMAND):
        if clear:
            require_address(context, "--clear")
        from headrace.cli.topic_partitions import named_partitions
        from headrace.client.share_archived import clear_archived_share_records

        places = named_partitions(topic or ())
        with connect(bootstrap_server, command_config) as cluster:
            found = _listed(cluster, group, places)
            if as_json:
                _print_json(found)
            else:
                _print_table(group, topic, found)
            for (name, partition), count in found.dropped.items():
                tell(
                    COMMAND,
                    f"{count} older records of {name}-{partition} are not listed: there was no "
                    "room for them",
                )
            if clear:
                clear_archived_share_records(cluster, group, found)
                _tell_cleared(found, as_json=as_json)


def _listed(
    cluster: "Cluster", group: str, places: Mapping[str, Sequence[int] | None]
) -> "ArchivedRecords":
    """The list as far as it is asked for; `places` as in `named_partitions`.

    Raises: Trouble; as the client.
    """
    from headrace.cli.group_deletion import for_share_group
    from headrace.client.errors import BrokerError
    from headrace.client.share_archived import ArchivedRecords, list_archived_share_records

    try:
        found = list_archived_share_records(cluster, group, places or None)
    except BrokerError as error:
        raise for_share_group(error, group) from None
    _require_there(cluster, places)

    def is_asked(topic: str, partition: int) -> bool:
        numbers = places.get(topic)
        return numbers is None or partition in numbers

    return ArchivedRecords(
        tuple(run for run in found.runs if is_asked(run.topic, run.partition)),
        {place: count for place, count in found.dropped.items() if is_asked(*place)},
        {place: number for place, number in found.through.items() if is_asked(*place)},
    )


def _require_there(cluster: "Cluster", places: Mapping[str, Sequence[int] | None]) -> None:
    """Raises: Trouble for a topic or partition that does not exist."""
    from headrace.client.topics import describe_topics

    topics = describe_topics(cluster, places)
    for topic, numbers in places.items():
        if topic not in topics:
            raise Trouble(f"there is no topic {topic!r}; see headrace topics --list")
        count = len(topics[topic].partitions)
        for number in numbers or ():
            if not 0 <= number < count:
                raise Trouble(f"topic {topic} has no partition {number}; it has {count}, from 0 on")


def _print_json(found: "ArchivedRecords") -> None:
    for run in found.runs:
        about = {
            "topic": run.topic,
            "partition": run.partition,
            "first": run.first,
            "last": run.last,
            "delivery_count": run.delivery_count,
            "archived_at_ms": run.archived_at,
            "readable": run.readable,
            "member": run.member,
            "reason": run.reason,
        }
        print(json.dumps(about))


def _print_table(group: str, topics: list[str] | None, found: "ArchivedRecords") -> None:
    from headrace.cli.table import Table
    from headrace.cli.times import local

    if not found.runs:
        where = f" of {', '.join(topics)}" if topics else ""
        print(f"Share group '{group}' has no records{where} archived without a dead letter.")
        return
    table = Table(
        ("TOPIC", 15), ("PARTITION", 10), ("OFFSETS", 15), ("DELIVERIES", 10), ("ARCHIVED", 15),
        ("READABLE", 10), ("MEMBER", 15), ("REASON", 0),
    )  # fmt: skip
    for run in found.runs:
        offsets = f"{run.first}-{run.last}" if run.last > run.first else str(run.first)
        when, readable = local(run.archived_at), _readable(run)
        counts = (run.delivery_count, when, readable, run.member)
        table.add(run.topic, run.partition, offsets, *counts, " ".join(run.reason.split()))
    table.show()


def _readable(run: "ArchivedRun") -> str | None:
    """Whether the records can be read still."""
    if run.readable is None:
        return None
    if run.readable == run.records:
        return "yes"
    return f"from {run.last - run.readable + 1}" if run.readable else "no"


def _tell_cleared(found: "ArchivedRecords", *, as_json: bool) -> None:
    count = sum(run.records for run in found.runs)
    if as_json:
        print(json.dumps({"cleared": count, "dropped": sum(found.dropped.values())}))
    elif found.runs or found.dropped:
        print(f"Cleared {count} records from the list.")
