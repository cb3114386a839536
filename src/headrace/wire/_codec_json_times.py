# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, infer_types=True, annotation_typing=False
"""The compiled kernel for times in JSON: from the texts that `_codec_json` found to numbers.

What is not written as usual makes its row unusual, as there.
Source: ISO 8601; days of a date: the proleptic Gregorian calendar in eras of 400 years.
"""

import cython

COMPILED = bool(cython.compiled)

_DAY_S = 86_400
_UINT32 = (1 << 32) - 1
_COLON, _PLUS, _MINUS, _POINT, _Z = 58, 43, 45, 46, 90


def parse(
    data: memoryview, cells: memoryview, valid: memoryview, is_date: bool, unusual: memoryview
) -> None:
    """Texts (start << 32 | size) become days since 1970 of a date, else microseconds in UTC."""
    with cython.nogil:
        for row in range(len(cells)):
            if valid[row] == 1:
                start = cells[row] >> 32
                end = start + (cells[row] & _UINT32)
                if not _time(data, cells, row, is_date, start, end):
                    unusual[row] = 1


def _time(
    source: memoryview, cells: memoryview, row: int, is_date: bool, position: int, end: int
) -> bool:
    """`2026-01-31`, and for a timestamp `T` or a space, `23:59:59`, a fraction, and a zone."""
    if end - position < 10 or source[position + 4] != _MINUS or source[position + 7] != _MINUS:
        return False
    high, low = _digits(source, position, 2), _digits(source, position + 2, 2)
    month, day = _digits(source, position + 5, 2), _digits(source, position + 8, 2)
    if high < 0 or low < 0 or high + low == 0 or not 1 <= month <= 12 or day < 1:
        return False
    if day > _month_days(high * 100 + low, month):
        return False
    days = _days(high * 100 + low, month, day)
    cells[row] = days
    if is_date:
        return end - position == 10
    if end - position < 19 or (source[position + 10] != 84 and source[position + 10] != 32):
        return False
    if source[position + 13] != _COLON or source[position + 16] != _COLON:
        return False
    hour, minute = _digits(source, position + 11, 2), _digits(source, position + 14, 2)
    second = _digits(source, position + 17, 2)
    if not 0 <= hour < 24 or not 0 <= minute < 60 or not 0 <= second < 60:
        return False
    micros = (days * _DAY_S + hour * 3600 + minute * 60 + second) * 1_000_000
    return _fraction(source, cells, row, micros, position + 19, end)


def _fraction(
    source: memoryview, cells: memoryview, row: int, micros: int, position: int, end: int
) -> bool:
    if position < end and source[position] == _POINT:
        scale = 100_000
        position += 1
        start = position
        while position < end and scale and 48 <= source[position] <= 57:
            micros += (source[position] - 48) * scale
            scale //= 10
            position += 1
        if position == start:
            return False
    cells[row] = micros
    if position == end:
        return True
    if source[position] == _Z:
        return position + 1 == end
    if end - position != 6 or source[position + 3] != _COLON:
        return False
    hour, minute = _digits(source, position + 1, 2), _digits(source, position + 4, 2)
    if not 0 <= hour <= 18 or not 0 <= minute < 60:
        return False
    ahead = (hour * 3600 + minute * 60) * 1_000_000
    cells[row] = micros - ahead if source[position] == _PLUS else micros + ahead
    return source[position] == _PLUS or source[position] == _MINUS


def _digits(source: memoryview, position: int, count: int) -> int:
    value = 0
    for step in range(count):
        octet = source[position + step]
        if not 48 <= octet <= 57:
            return -1
        value = value * 10 + octet - 48
    return value


def _month_days(year: int, month: int) -> int:
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month == 4 or month == 6 or month == 9 or month == 11 else 31


def _days(year: int, month: int, day: int) -> int:
    if month <= 2:
        year -= 1
        month += 12
    era = year // 400
    rest = year - era * 400
    in_year = (153 * (month - 3) + 2) // 5 + day - 1
    return era * 146_097 + rest * 365 + rest // 4 - rest // 100 + in_year - 719_468
