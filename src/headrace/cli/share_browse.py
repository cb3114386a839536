"""`headrace share browse`: walk along the queue of a share group, without taking anything."""

from typing import Annotated

import typer

from headrace.cli.connect import BOOTSTRAP_SERVER, BootstrapServer, CommandConfig, Json, connect
from headrace.cli.ending import Trouble, ending
from headrace.cli.properties import pairs

COMMAND = "share browse"

_Group = Annotated[str, typer.Argument(help="The share group.")]
_Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic", metavar="TOPIC[:P,P]", help="Only this topic, or its partitions; repeatable."
    ),
]
_State = Annotated[
    str | None,
    typer.Option(
        metavar="STATE,...",
        help="Only these: available, acquired, acknowledged, archiving, archived, waiting.",
    ),
]
_FromOffset = Annotated[
    int, typer.Option("--from-offset", min=0, metavar="N", help="Begin there in each partition.")
]
_Messages = Annotated[
    int | None, typer.Option(min=0, metavar="N", help="End after so many records, or runs.")
]
_Runs = Annotated[
    bool, typer.Option("--runs", help="A line for neighbours in the same state; reads no record.")
]
_Formatter = Annotated[
    list[str] | None,
    typer.Option(
        "--formatter-property",
        metavar="NAME=VALUE",
        help="What is printed of records, e.g. print.key=true, as consume has it; repeatable.",
    ),
]


def register(group: typer.Typer) -> None:
    """Add the command."""
    group.command("browse")(browse)


def browse(
    group: _Group,
    bootstrap_server: BootstrapServer = BOOTSTRAP_SERVER,
    topic: _Topics = None,
    state: _State = None,
    from_offset: _FromOffset = 0,
    max_messages: _Messages = None,
    runs: _Runs = False,
    formatter_property: _Formatter = None,
    as_json: Json = False,
    command_config: CommandConfig = None,
) -> None:
    """Print the queue of a share group, each record with its state; nothing is taken from it.

    headrace share browse work --state acquired,available --formatter-property print.key=true
    """
    with ending(COMMAND):
        from headrace.cli.group_options import named
        from headrace.cli.share_browse_queue import Wanted, show
        from headrace.cli.topic_partitions import named_partitions
        from headrace.client.share_records import RecordState

        if runs and formatter_property:
            raise Trouble("--runs shows no record; leave it or --formatter-property out")
        states = named(state, tuple(RecordState), "state")
        wanted = Wanted(
            group,
            named_partitions(topic or ()),
            tuple(map(RecordState, states)) or None,
            from_offset,
            max_messages,
            as_runs=runs,
            as_json=as_json,
            shown=pairs("--formatter-property", formatter_property),
        )
        with connect(bootstrap_server, command_config) as cluster:
            show(cluster, wanted)
