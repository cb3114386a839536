"""`headrace restore`: write a backup to a new data folder."""

import json
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.data_tools import DataDir, JsonObject, running, size_text

_Source = Annotated[Path, typer.Argument(metavar="SOURCE", help="The folder of backups.")]
_Id = Annotated[
    str | None, typer.Option("--backup", metavar="ID", help="The backup; the last one by default.")
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(restore)


def restore(
    source: _Source,
    data_dir: DataDir,
    backup: _Id = None,
    as_json: JsonObject = False,
) -> None:
    """Write a backup to a new data folder, and verify it.

    The folder must not exist, or be empty.

    headrace restore /backups/orders --data-dir /var/lib/headrace-restored
    """
    with running("restore", "restoring") as progress:
        from headrace.folder import backup as backups
        from headrace.folder.store import Store

        found = backups.restore(Store(source), backup, data_dir, progress)
        about = {
            "id": found.id,
            "data_dir": str(data_dir),
            "files": len(found.files),
            "bytes": found.size,
        }
        text = (
            f"restored backup {found.id} to {data_dir}: {len(found.files)} files, "
            f"{size_text(found.size)}"
        )
        print(json.dumps(about) if as_json else text)
