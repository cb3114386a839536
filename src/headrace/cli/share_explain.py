"""`headrace share explain`: what became of one record of a share group, as its journal tells."""

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
from headrace.cli.ending import Trouble, ending

COMMAND = "share explain"

_Group = Annotated[str, typer.Argument(help="The share group.")]
_Record = Annotated[
    str, typer.Argument(metavar="TOPIC:PARTITION:OFFSET", help="The record, as orders:0:42.")
]
_DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir", metavar="DIR", help="Read a broker's files, which need not run, instead."
    ),
]


def register(group: typer.Typer) -> None:
    """Add the command."""
    group.command("explain")(explain)


def explain(
    context: typer.Context,
    group: _Group,
    record: _Record,
    bootstrap_server: BootstrapServer = BOOTSTRAP_SERVER,
    data_dir: _DataDir = None,
    as_json: Json = False,
    command_config: CommandConfig = None,
) -> None:
    """Print every delivery of a record: to whom, when, and what came of it.

    headrace share explain work orders:0:42
    """
    with ending(COMMAND):
        from headrace.cli.offsets_journal import SHARE_TOPIC, GroupInFiles, GroupOnWire, Journal
        from headrace.cli.share_explain_places import LogInFiles, LogOnWire
        from headrace.cli.share_explain_story import show

        place = parsed(record)
        journal = Journal(SHARE_TOPIC, COMMAND)
        if data_dir is not None:
            folder = data_folder(context, data_dir)
            files = LogInFiles(folder, place)
            show(GroupInFiles(folder, group, journal), files, group, as_json=as_json)
            return
        with connect(bootstrap_server, command_config) as cluster:
            served = LogOnWire(cluster, place)
            show(GroupOnWire(cluster, group, journal), served, group, as_json=as_json)


def parsed(text: str) -> tuple[str, int, int]:
    """Topic, partition and offset of a record. Raises: Trouble."""
    topic, *numbers = text.rsplit(":", 2)
    if not topic or len(numbers) != 2 or not all(map(_is_number, numbers)):
        raise Trouble(
            f"invalid record '{text}': expected TOPIC:PARTITION:OFFSET, for example orders:0:42"
        )
    return topic, int(numbers[0]), int(numbers[1])


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) < 1 << 63
