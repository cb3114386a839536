"""`headrace check`: verify a data folder that no broker uses."""

import json
from dataclasses import asdict

import typer

from headrace.cli.data_tools import (
    DATA_DIR,
    DataDir,
    Folder,
    JsonObject,
    running,
    size_text,
    unusable_exit,
)

_FOUND = 1


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(check)


def check(folder: Folder = None, data_dir: DataDir = DATA_DIR, as_json: JsonObject = False) -> None:
    """Verify every file of a data folder while no broker runs; nothing is written.

    Exits 0 when the folder is sound, 1 with findings, 2 when it cannot be checked.

    headrace check --data-dir /var/lib/headrace
    """
    data_dir = folder or data_dir
    with running("check", "checking") as progress:
        from headrace.folder.check import check as run

        with unusable_exit("check", progress):
            report = run(data_dir, progress)
        progress.end()
        if as_json:
            findings = [asdict(one) for one in report.findings]
            about = {"files": report.files, "bytes": report.size, "findings": findings}
            print(json.dumps(about | {"clean": report.is_clean}))
        else:
            for one in report.findings:
                print(one)
            verdict = "sound" if report.is_clean else "damaged"
            size = size_text(report.size)
            print(f"{data_dir}: {verdict}; {report.files} files, {size} verified")
        if not report.is_clean:
            raise typer.Exit(_FOUND)
