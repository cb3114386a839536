"""`headrace repair`: quarantine what is damaged in a data folder, so that a broker starts."""

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.data_tools import (
    DATA_DIR,
    DataDir,
    Folder,
    JsonObject,
    running,
    unusable_exit,
)

if TYPE_CHECKING:
    from headrace.folder.check import Finding

_LEFT = 1
_RESTORE = "restore a backup"
_Execute = Annotated[
    bool, typer.Option("--execute", help="Carry the plan out; else it is printed only.")
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(repair)


def repair(
    folder: Folder = None,
    data_dir: DataDir = DATA_DIR,
    execute: _Execute = False,
    as_json: JsonObject = False,
) -> None:
    """Plan how to get a damaged data folder to start again, and with --execute do it.

    Damaged bytes are kept in files that no broker reads. Restore a backup instead where there is
    one. Exits 0 when nothing is damaged afterwards, 1 when something is, 2 when the folder cannot
    be repaired.

    headrace repair --data-dir /var/lib/headrace --execute
    """
    data_dir = folder or data_dir
    with running("repair", "checking") as progress:
        from headrace.folder.check import Grade
        from headrace.folder.repair import repair as run

        with unusable_exit("repair", progress):
            done = run(data_dir, progress, execute=execute)
        progress.end()
        left = [one for one in done.left if one.grade is not Grade.NOTE]
        if as_json:
            actions = [{"path": one.path, "action": one.text} for one in done.actions]
            about = {"executed": execute, "actions": actions, "left": [_text(one) for one in left]}
            print(json.dumps(about))
        else:
            for action in done.actions:
                print(action)
            for one in left:
                print(f"not repaired: {_text(one)}")
            if not done.actions:
                state = "no repair is possible" if left else "nothing to repair"
                print(f"{data_dir}: {state}")
            elif not execute:
                print("nothing was changed; run again with --execute to carry this out")
        if left:
            raise typer.Exit(_LEFT)


def _text(finding: "Finding") -> str:
    """Format what a repair leaves; its remedy cannot be another repair."""
    remedy = _RESTORE if "headrace repair" in finding.remedy else finding.remedy
    return str(replace(finding, remedy=remedy))
