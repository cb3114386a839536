"""The command `headrace`: each subcommand is a module with `register(app)`.

Modules here import nothing heavy until their command runs, so that the server is up in a moment.
"""

import sys
from typing import Annotated

import typer

from headrace import __version__
from headrace.cli import configs, consume, demo, log, produce, serve, topics

app = typer.Typer(
    name="headrace",
    help="A Kafka-compatible broker for shared consumption, in one Python process.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

_USAGE = 2

# A new command is added here.
COMMANDS = (configs, consume, demo, log, produce, serve, topics)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"headrace {__version__}")
        raise typer.Exit


@app.callback()
def headrace(
    version: Annotated[  # acted on by its callback
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """A Kafka-compatible broker for shared consumption, in one Python process."""


for _command in COMMANDS:
    _command.register(app)


def run() -> None:
    """Entry point of the command. A usage error ends with 1, as it does with Kafka's tools."""
    try:
        app()
    except SystemExit as end:
        sys.exit(1 if end.code == _USAGE else end.code)
