"""`headrace share browse`: walk the queue of a share group without taking anything from it."""

from typing import Annotated

import typer

from headrace.cli.connect import BOOTSTRAP_SERVER, BootstrapServer, CommandConfig, Json, connect
from headrace.cli.ending import ending

COMMAND = "share browse"

_Group = Annotated[str, typer.Argument(help="The share group.")]


def register(group: typer.Typer) -> None:
    """Add the command."""
    group.command("browse")(browse)


def browse(
    group: _Group,
    bootstrap_server: BootstrapServer = BOOTSTRAP_SERVER,
    as_json: Json = False,
    command_config: CommandConfig = None,
) -> None:
    """Print the queue of a share group, each record with its state; nothing is taken from it.

    headrace share browse work
    """
    with ending(COMMAND):
        import json

        from headrace.client.leases import describe

        with connect(bootstrap_server, command_config) as cluster:
            for one in describe(cluster, group):
                for run in one.in_flight:
                    place = f"{one.topic}-{one.partition}"
                    row = {"place": place, "first": run.first, "last": run.last, "state": run.state}
                    print(json.dumps(row) if as_json else " ".join(map(str, row.values())))
