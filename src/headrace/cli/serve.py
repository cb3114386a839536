"""`headrace serve`: the options of the command; `serving.py` carries it out."""

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.serving import FORMATS, LEVELS, Options
from headrace.cli.serving import serve as run


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(serve)


def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free one.")
    ] = 9092,
    data_dir: Annotated[Path, typer.Option(help="Folder for the records.")] = Path("headrace-data"),
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="A broker setting by Kafka's name; repeatable."
        ),
    ] = None,
    log_level: Annotated[str, typer.Option(help=f"One of {', '.join(LEVELS)}.")] = "info",
    log_format: Annotated[
        str | None,
        typer.Option(
            help=f"One of {', '.join(FORMATS)}; by default $HEADRACE_LOG_FORMAT, or text."
        ),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Serve metrics for Prometheus there; 0 picks a free one."
        ),
    ] = None,
) -> None:
    """Run a broker until SIGINT or SIGTERM stops it; a second signal ends it at once.

    headrace serve --data-dir /var/lib/headrace --set num.partitions=4
    """
    raise typer.Exit(
        run(Options(host, port, data_dir, settings or (), log_level, log_format, metrics_port))
    )
