"""Times as people read and write them on the command line.

Printed are local times in ISO 8601 with their offset from UTC, to the millisecond, so that lines of
machines in several zones can be compared.
"""

import re
from datetime import UTC, datetime

from headrace.cli.ending import Trouble

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SHORT = re.compile(r"(?:\d+(?:ms|s|m|h|d))+")
_PART = re.compile(r"(\d+)(ms|s|m|h|d)")
_ISO = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?")
_ISO_UNITS = ("d", "h", "m", "s")


def local(ms: int) -> str:
    """A time of the wall clock, e.g. 2026-11-21T16:03:12.345+01:00."""
    try:
        there = datetime.fromtimestamp(ms / 1000, tz=UTC).astimezone()
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"  # a client may commit with any retention
    return there.isoformat(timespec="milliseconds")


def in_words(ms: int) -> str:
    """A duration by its two largest units, e.g. 6 d 23 h; below a second in milliseconds."""
    if ms < _UNITS_MS["s"]:
        return f"{ms} ms"
    largest = next(unit for unit in reversed(_UNITS_MS) if ms >= _UNITS_MS[unit])
    units = list(_UNITS_MS)[1 : list(_UNITS_MS).index(largest) + 1]
    told = []
    for unit in units[-1:-3:-1]:
        count, ms = divmod(ms, _UNITS_MS[unit])
        if count:
            told.append(f"{count} {'min' if unit == 'm' else unit}")
    return " ".join(told)


def since(text: str, now_ms: int) -> int:
    """The time that `--since` means, in ms: an ISO 8601 time, or how long ago. Raises: Trouble."""
    ago = _duration_ms(text)
    if ago is not None:
        return now_ms - ago
    try:
        told = datetime.fromisoformat(text)
    except ValueError:
        raise Trouble(
            f"--since {text}: write how long ago, as 90m, 2h or 7d, or a time, as"
            " 2026-11-21T15:00 (local) or 2026-11-21T15:00:00Z"
        ) from None
    return int(told.astimezone().timestamp() * 1000)


def _duration_ms(text: str) -> int | None:
    if _SHORT.fullmatch(text):
        return sum(int(count) * _UNITS_MS[unit] for count, unit in _PART.findall(text))
    iso = _ISO.fullmatch(text)
    if iso is None or not any(iso.groups()):
        return None
    named = zip(iso.groups(default="0"), _ISO_UNITS, strict=True)
    return sum(int(count) * _UNITS_MS[unit] for count, unit in named)
