"""The command `headrace`: each subcommand is a module with `register(app)`.

Modules here import nothing heavy until their command runs; of the modules, only that of the command
asked for is imported. `serve` starts without the command line parser where its options are plain,
so that the server is up in a moment.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import typer

    app: typer.Typer

_STDIN, _STDERR = 0, 2

# A new command is added here: a module of this package that has the command's name.
COMMANDS = (
    "backup", "check", "configs", "consume", "consumer-groups", "demo", "doctor", "log", "offsets",
    "produce", "repair", "restore", "serve", "share", "share-groups", "sim", "spark", "topics",
)  # fmt: skip


def build(commands: Sequence[str] = COMMANDS) -> "typer.Typer":
    """The command line with these commands."""
    import typer

    from headrace.cli.connect import Version

    built = typer.Typer(
        name="headrace",
        help="A Kafka-compatible broker for shared consumption, in one Python process.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )

    @built.callback()
    def headrace(version: Version = False) -> None:
        """A Kafka-compatible broker for shared consumption, in one Python process."""

    for name in commands:
        import_module(f"headrace.cli.{name.replace('-', '_')}").register(built)
    return built


def command_line(commands: Sequence[str] = COMMANDS) -> Any:
    """Make the command that `run` calls: that of `build`, whose help shows no type for flags."""
    import typer

    command = typer.main.get_command(build(commands))
    waiting: list[Any] = [command]
    while waiting:
        one = waiting.pop()
        waiting += getattr(one, "commands", {}).values()
        for option in one.get_params(typer.Context(one)):
            if getattr(option, "is_flag", False):
                option.metavar = ""  # else typer shows <bool>, as if a value had to follow
    return command


def run() -> None:
    """Entry point of the command. A usage error ends with 1, as it does with Kafka's tools."""
    asked = sys.argv[1:2]
    if None in (sys.stdin, sys.stdout, sys.stderr):
        _fill_standard_streams()
        if sys.stdout is None and asked != ["serve"]:
            print("headrace: standard output is closed; send it somewhere", file=sys.stderr)
            sys.exit(1)
    if asked == ["serve"]:
        from headrace.cli.serving import plain, serve

        options = plain(sys.argv[2:])
        if options is not None:
            sys.exit(serve(options))
    command = command_line(asked if asked and asked[0] in COMMANDS else COMMANDS)
    import typer

    try:
        code = command(prog_name="headrace", standalone_mode=False)
    except typer.Abort:
        sys.exit(1)
    except Exception as error:
        if not isinstance(error, _usage_error()):
            raise
        _show_usage_error(error)
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


def _usage_error() -> type[Exception]:
    """The base of typer's usage errors: typer has a click of its own, or uses the installed one."""
    import typer

    return typer.BadParameter.__mro__[1]


def _show_usage_error(error: Any) -> None:
    """Print one line, or the help of a command that needs arguments and has none."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return
    path = "headrace" if error.ctx is None else error.ctx.command_path
    message = " ".join(error.format_message().split()).rstrip(".")
    print(f"{path}: {message}; see {path} --help", file=sys.stderr)


def _fill_standard_streams() -> None:
    """Have what the shell closed lead nowhere, as /dev/null does; of output Python has no stream.

    Else a log or a connection would get its number: uvloop aborts when it closes such a one. And
    what is printed to errors that are none would be printed to the output.
    """
    while os.open(os.devnull, os.O_RDWR) <= _STDERR:
        pass
    if sys.stdin is None:
        sys.stdin = os.fdopen(_STDIN)
    if sys.stderr is None:
        sys.stderr = os.fdopen(_STDERR, "w")


def __getattr__(name: str) -> Any:
    # Late: only tests and the documentation want all commands at once.
    if name == "app":
        return build()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
