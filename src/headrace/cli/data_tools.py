"""What the commands for data folders share: options, progress, and errors in one line."""

import errno
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.ending import Trouble, UnusableExit, ending, error_text, tell

DATA_DIR = Path("headrace-data")
DataDir = Annotated[Path, typer.Option("--data-dir", metavar="DIR", help="The data folder.")]
Folder = Annotated[
    Path | None, typer.Argument(metavar="DATA_DIR", help="The data folder; the same as --data-dir.")
]
JsonObject = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
_QUIET_S, _EVERY_S = 1.0, 0.2
_CLEAR = "\r\x1b[K"
_MIB = 1 << 20
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class ByteProgress:
    """Show on a terminal how many bytes are done, once a command takes longer than a second."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._bytes = 0
        self._due = time.monotonic() + _QUIET_S
        self._is_shown = False

    def __call__(self, count: int) -> None:
        self._bytes += count
        now = time.monotonic()
        if now < self._due or sys.stderr is None or not sys.stderr.isatty():
            return
        self._due, self._is_shown = now + _EVERY_S, True
        text = f"{_CLEAR}{self._what}: {self._bytes // _MIB} MiB"
        print(text, end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Remove the line."""
        if self._is_shown:
            print(_CLEAR, end="", file=sys.stderr, flush=True)


@contextmanager
def running(command: str, what: str) -> Iterator[ByteProgress]:
    """Run the body of a command; errors of data folders and backups become one line."""
    from headrace.folder.lock import FolderError
    from headrace.folder.store import StoreError
    from headrace.log.api import CorruptLog

    progress = ByteProgress(what)
    with ending(command):
        try:
            yield progress
        except (FolderError, StoreError, CorruptLog) as error:
            raise Trouble(str(error)) from error
        except OSError as error:
            if error.errno not in _NO_SPACE:
                raise
            raise Trouble(f"{error_text(error)}; free space, then run it again") from error
        finally:
            progress.end()


@contextmanager
def unusable_exit(command: str, progress: ByteProgress) -> Iterator[None]:
    """Run the work on a data folder; where it fails as a whole the command ends with exit code 2.

    Raises: UnusableExit, after one line on standard error.
    """
    from headrace.folder.lock import FolderError
    from headrace.log.api import CorruptLog

    try:
        yield
    except (FolderError, CorruptLog, OSError) as error:
        progress.end()
        tell(command, error_text(error) if isinstance(error, OSError) else str(error))
        raise UnusableExit from error


def size_text(size: int) -> str:
    """Format a number of bytes."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} bytes"
