"""`headrace spark`: Spark queries as the groups that they read through."""

from typing import Annotated

import typer

from headrace.cli.connect import BOOTSTRAP_SERVER, BootstrapServer, CommandConfig, Json, connect
from headrace.cli.ending import ending

_Group = Annotated[
    list[str] | None, typer.Option("--group", help="Only queries of this group; repeatable.")
]
_All = Annotated[bool, typer.Option("--all", help="Also quiet queries that hold nothing.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help="See Spark queries as the groups that they read through.")
    group.callback()(_spark)
    group.command("status")(status)
    app.add_typer(group, name="spark", no_args_is_help=True)


def _spark() -> None:
    """See Spark queries as the groups that they read through."""


def status(
    bootstrap_server: BootstrapServer = BOOTSTRAP_SERVER,
    group: _Group = None,
    all_: _All = False,
    as_json: Json = False,
    command_config: CommandConfig = None,
) -> None:
    """Print the Spark queries that read from a cluster: their group, batch, lag and what they hold.

    headrace spark status --group billing
    """
    with ending("spark status"):
        from headrace.cli.spark_status import show

        with connect(bootstrap_server, command_config) as cluster:
            show(cluster, group or [], with_quiet=all_, as_json=as_json)
