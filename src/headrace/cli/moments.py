"""Moments and lengths of time as Kafka's tools take them, in milliseconds.

Source: Utils.getDateTime of Kafka (ISO 8601, UTC where no zone is named).
"""

import re
from datetime import UTC, datetime, timedelta, timezone

from headrace.cli.ending import Trouble
from headrace.core import durations

_MOMENT = re.compile(
    r"(\d{4})-(\d{2})-(\d{2})T(\d{2}):(\d{2})(?::(\d{2})(?:[.,](\d{1,9}))?)?"
    r"(?:Z|([+-])(\d{2})(?::?(\d{2}))?)?"
)
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_SECOND_MS = 1000


def moment_ms(text: str) -> int:
    """A point in time such as 2026-11-21T13:20:54.206+01:00, as ms since 1970. Raises: Trouble."""
    found = _MOMENT.fullmatch(text.strip())
    try:
        if found is None:
            raise ValueError
        year, month, day, hour, minute = (int(found[group]) for group in range(1, 6))
        zone = UTC
        if found[8]:
            away = timedelta(hours=int(found[9]), minutes=int(found[10] or 0))
            zone = timezone(-away if found[8] == "-" else away)
        whole = datetime(year, month, day, hour, minute, int(found[6] or 0), tzinfo=zone)
    except ValueError:
        if _DAY.fullmatch(text.strip()):
            raise Trouble(
                f"{text!r} is a date without a time, and Kafka's form needs one; write "
                f"{text.strip()}T00:00:00 for the beginning of that day in UTC"
            ) from None
        raise Trouble(
            f"{text!r} is no time; write it as 2026-11-21T13:20:54.206, with +01:00 behind it for "
            "another zone than UTC"
        ) from None
    since = whole - datetime(1970, 1, 1, tzinfo=UTC)
    seconds = since.days * 86_400 + since.seconds
    return seconds * _SECOND_MS + int((found[7] or "0").ljust(9, "0")) // 1_000_000


def length_ms(text: str) -> int:
    """A length of time such as P1DT2H30M, as ms; negative with a sign. Raises: Trouble."""
    try:
        return durations.length_ms(text.strip())
    except ValueError:
        raise Trouble(
            f"{text!r} is no length of time; write it as PnDTnHnMnS, e.g. P7D or PT1H30M"
        ) from None
