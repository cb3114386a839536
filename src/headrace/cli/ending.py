"""How a command ends: quietly, or with one line on stderr that says what to do, and exit code 1.

Exit codes: 0 done; 1 something failed or was refused, usage errors included, as Kafka's tools;
2 `check` or `repair` could not begin; 130 and 143 ended by SIGINT and SIGTERM; 141 when nothing
reads the output any more.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

import typer

FAILED = 1
UNUSABLE = 2
INTERRUPTED = 130
PIPE_CLOSED = 141


class Trouble(Exception):
    """What a person has to be told, in one line with its remedy; ends the command."""


class UnusableExit(SystemExit):
    """Ends a command with exit code 2, which no usage error has."""

    def __init__(self) -> None:
        super().__init__(UNUSABLE)


@contextmanager
def ending(command: str) -> Iterator[None]:
    """Run the body of `command`; what goes wrong with the cluster or the files becomes one line."""
    from headrace.client.errors import ClientError

    try:
        yield
        sys.stdout.flush()
    except (Trouble, ClientError) as error:
        fail(command, str(error))
    except UnicodeEncodeError as error:
        fail(command, _unwritable(error))
    except BrokenPipeError:
        leave_closed_pipe()
    except OSError as error:
        fail(command, error_text(error))
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


@contextmanager
def stopping(stop: Callable[[int], None]) -> Iterator[None]:
    """While the body runs, SIGINT and SIGTERM do not end it: `stop` is called with their number."""
    import signal

    def handle(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 -- a handler's form
        stop(number)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _unwritable(error: UnicodeEncodeError) -> str:
    text = error.object[error.start : error.end]
    return f"{text!r} cannot be written as {error.encoding}; set PYTHONIOENCODING=utf-8"


def error_text(error: OSError) -> str:
    """Format an error of the operating system: the file, and what is wrong with it."""
    named = f"{error.filename}: " if error.filename else ""
    return f"{named}{error.strerror or error}"


def end_with(command: str, troubles: Sequence[str]) -> None:
    """Return when there are none. Raises: Trouble, the last one, when the others were told."""
    for trouble in troubles[:-1]:
        tell(command, trouble)
    if troubles:
        raise Trouble(troubles[-1])


def tell(command: str, message: str) -> None:
    """One line on stderr."""
    print(f"headrace {command}: {' '.join(message.split())}", file=sys.stderr, flush=True)


def fail(command: str, message: str) -> NoReturn:
    """One line on stderr, and the end with exit code 1."""
    tell(command, message)
    raise typer.Exit(FAILED)


def leave_closed_pipe() -> NoReturn:
    """End without a word: the reader of the output has gone, as `head` does."""
    # What is still buffered must go somewhere when the interpreter flushes at its end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise typer.Exit(PIPE_CLOSED)
