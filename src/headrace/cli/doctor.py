"""`headrace doctor`: what Headrace needs of this machine, what is there, and what to do about it.

`serve` needs what can fail; the rest, which one extra or another needs, is at most a warning.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.checks import Finding, Grade, clock, disk, open_files, port_on


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(doctor)


def doctor(
    host: Annotated[str, typer.Option(help="Address that `serve` would listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port that `serve` would listen on.")
    ] = 9092,
    data_dir: Annotated[Path, typer.Option(help="Folder that `serve` would use.")] = Path(
        "headrace-data"
    ),
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON array instead of lines.")
    ] = False,
) -> None:
    """Look at what `serve` and the extras need on this machine, and say what to do about it.

    Changes nothing. Exits 1 when something fails that `serve` needs.

    headrace doctor --port 9092 --data-dir /var/lib/headrace
    """
    findings = list(examine(host, port, data_dir))
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            remedy = f"; {finding.remedy}" if finding.remedy else ""
            print(f"{finding.grade:4}  {finding.about}: {finding.found}{remedy}")
    raise typer.Exit(any(finding.grade is Grade.FAIL for finding in findings))


def examine(host: str, port: int, data_dir: Path) -> Iterator[Finding]:
    """Everything there is to find."""
    from headrace.cli.installed import java, kernel, packages

    yield from packages()
    yield kernel()
    yield from disk(data_dir)
    yield port_on(host, port)
    yield open_files()
    yield clock()
    yield java()
