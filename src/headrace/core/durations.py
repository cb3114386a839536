"""Lengths of time as ISO 8601 writes them. Source: java.time.Duration.parse."""

import re

_LENGTH = re.compile(
    r"([-+]?)P(?:([-+]?\d+)D)?"
    r"(T(?=[-+\d])(?:([-+]?\d+)H)?(?:([-+]?\d+)M)?(?:([-+]?\d+)(?:[.,](\d{0,9}))?S)?)?",
    re.IGNORECASE | re.ASCII,
)
_SECOND_MS, _MINUTE_MS, _HOUR_MS, _DAY_MS = 1000, 60_000, 3_600_000, 86_400_000
_NUMBER_DIGITS_MAX = 18  # a count of seconds that fits 64 bits


def length_ms(text: str) -> int:
    """A length of time such as P1DT2H30M, in ms; negative with a sign.

    Raises: ValueError for anything else.

    >>> length_ms("PT1.5S")
    1500
    """
    found = _LENGTH.fullmatch(text)
    numbers = [] if found is None else [found[group] for group in (2, 4, 5, 6)]
    given = [number for number in numbers if number]
    if found is None or not given or any(len(one) > _NUMBER_DIGITS_MAX for one in given):
        raise ValueError(f"{text!r} is no length of time")
    days, hours, minutes, seconds = (int(number or 0) for number in numbers)
    total = days * _DAY_MS + hours * _HOUR_MS + minutes * _MINUTE_MS + seconds * _SECOND_MS
    fraction = int((found[7] or "0").ljust(9, "0")) // 1_000_000
    total += -fraction if (found[6] or "").startswith("-") else fraction
    return -total if found[1] == "-" else total
