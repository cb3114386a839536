"""`headrace offsets`: what happened to the offsets of a group, and what will.

Both commands read the group's journal, `__consumer_offsets`, over the wire; history does so from a
data folder, too.
"""

import time
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.connect import (
    BOOTSTRAP_SERVER,
    BootstrapServer,
    CommandConfig,
    Json,
    connect,
    data_folder,
)
from headrace.cli.ending import ending

_NS_PER_MS = 1_000_000

_Group = Annotated[str, typer.Argument(help="The consumer group.")]
_Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic", metavar="TOPIC[:P,P]", help="Only this topic, or its partitions; repeatable."
    ),
]
_Since = Annotated[
    str | None, typer.Option(metavar="TIME", help="Only from then on: 90m, 2h, 7d ago, or a time.")
]
_Limit = Annotated[
    int | None, typer.Option("--limit", metavar="N", min=1, help="Only the last N of them.")
]
_All = Annotated[bool, typer.Option("--all", help="Also commits of what was committed already.")]
_DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir", metavar="DIR", help="Read a broker's files, which need not run, instead."
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help="Why the offsets of a group moved, and when they will expire.")
    group.callback()(_offsets)
    group.command("history")(history)
    group.command("forecast")(forecast)
    app.add_typer(group, name="offsets", no_args_is_help=True)


def _offsets() -> None:
    """Why the offsets of a group moved, and when they will expire."""


def history(
    context: typer.Context,
    group: _Group,
    bootstrap_server: BootstrapServer = BOOTSTRAP_SERVER,
    topic: _Topics = None,
    since: _Since = None,
    limit: _Limit = None,
    all_: _All = False,
    data_dir: _DataDir = None,
    as_json: Json = False,
    command_config: CommandConfig = None,
) -> None:
    """Print who moved the offsets of a group, when, from where to where, and why.

    headrace offsets history billing --topic orders:0 --since 2h
    """
    with ending("offsets history"):
        from headrace.cli.offsets_history import Wanted
        from headrace.cli.offsets_history import history as show
        from headrace.cli.offsets_journal import GroupInFiles, GroupOnWire
        from headrace.cli.times import since as parsed
        from headrace.cli.topic_partitions import named_partitions

        wanted = Wanted(
            named_partitions(topic or ()),
            None if since is None else parsed(since, time.time_ns() // _NS_PER_MS),
            limit,
            repeats=all_,
            as_json=as_json,
        )
        if data_dir is not None:
            show(GroupInFiles(data_folder(context, data_dir), group), group, wanted)
            return
        with connect(bootstrap_server, command_config) as cluster:
            show(GroupOnWire(cluster, group), group, wanted)


def forecast(
    group: _Group,
    bootstrap_server: BootstrapServer = BOOTSTRAP_SERVER,
    as_json: Json = False,
    command_config: CommandConfig = None,
) -> None:
    """Print when the offsets of a group expire, why then, and what would stop it.

    headrace offsets forecast billing --bootstrap-server 127.0.0.1:9092
    """
    with ending("offsets forecast"):
        from headrace.cli.offsets_forecast import forecast as show

        now = time.time_ns() // _NS_PER_MS
        with connect(bootstrap_server, command_config) as cluster:
            show(cluster, group, now=now, as_json=as_json)
