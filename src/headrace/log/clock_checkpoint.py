"""The file `clock-checkpoint`: trusted time at the last minute of a broker's run.

A sealed small file of lines `name=value`: `trusted` and `elapsed` in milliseconds, `boot` (id of
the machine's run, may be empty), and for each jump under observation `jump=<difference> <held>`.
The file is advisory: a missing or damaged one is ignored, and the time of the newest journal record
stands in for it.
"""

import logging

from headrace.core.clock_filter import Jump, SavedTime
from headrace.core.types import MonoMs, WallMs
from headrace.log import small_files
from headrace.log.api import CorruptFileError, Disk, NewerFormatError

log = logging.getLogger("headrace.log")

FILE = "clock-checkpoint"


def read_checkpoint(disk: Disk) -> SavedTime | None:
    """Return the saved time; None, with a warning unless the file is absent, where unreadable."""
    try:
        if not disk.exists(FILE):
            return None
        return _parsed(small_files.read_file(disk, FILE).text)
    except (CorruptFileError, NewerFormatError, OSError, ValueError) as error:
        log.warning("%s: ignored: %s; the newest journal record stands in for it", FILE, error)
        return None


def write_checkpoint(disk: Disk, saved: SavedTime) -> None:
    """Replace the file on stable storage: a torn one would hide a jump. Raises: OSError."""
    lines = [f"trusted={saved.trusted}", f"elapsed={saved.elapsed}", f"boot={saved.boot_id}"]
    lines += [f"jump={one.difference_ms} {one.held_ms}" for one in saved.jumps]
    text = "".join(f"{line}\n" for line in lines)
    disk.write(FILE, small_files.sealed(FILE, text))


def _parsed(text: str) -> SavedTime:
    """Raises: ValueError for lines that are not of this file."""
    fields, jumps = dict[str, str](), list[Jump]()
    for line in text.splitlines():
        name, separator, value = line.partition("=")
        if not separator:
            raise ValueError(f"invalid line {line!r}")
        if name == "jump":
            difference, held = map(int, value.split(" "))
            jumps.append(Jump(difference, held))
        else:
            fields[name] = value
    try:
        trusted, elapsed, boot = fields["trusted"], fields["elapsed"], fields["boot"]
    except KeyError as error:
        raise ValueError(f"no line {error}") from error
    return SavedTime(WallMs(int(trusted)), boot, MonoMs(int(elapsed)), tuple(jumps))
