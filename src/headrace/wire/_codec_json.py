# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, infer_types=True, annotation_typing=False
"""The compiled kernel for JSON: flat fields of objects to cells, without a Python object a value.

It knows the usual: an object in UTF-8 whose wanted fields are of their type. Whatever is not, from
a wrong type over an escape in a string to a damaged value, makes the whole row *unusual*, and
others read it; so nothing here has to say what is wrong. One source, as `_codec`: Cython compiles
it with the types of `_codec_json.pxd`, and plain Python runs it for tests. Every position is
compared to the end of its value before a byte is read there.
Source: RFC 8259.
"""

from typing import Any

import cython

COMPILED = bool(cython.compiled)
LAYOUT = 2  # of what callers pass; a build of another is out of date

# What a field is. INTEGER has a least and a greatest value; cells hold what is named.
INTEGER = _INTEGER = 1
DOUBLE = _DOUBLE = 2
BOOLEAN = 3  # 0 or 1
STRING = _STRING = 4  # its start in the data << 32 | its size
JSON = _JSON = 5  # the same, of any value as it is written

# A field is five numbers: kind, start and end of the name, least and greatest value.
_FIELD_NUMBERS = 5
POWERS_EXACT = _POWERS_EXACT = 23  # powers of ten, from the 0th on, that a double holds exactly

_SEEN, _SEEN_NULL = 1, 2
_MANTISSA_MAX = (1 << 63) // 10  # one more digit may not fit 64 bits
_EXPONENT_MAX = 9_999
_MANTISSA_EXACT = 1 << 53
_DEPTH_MAX = 60
_UINT32 = (1 << 32) - 1
_QUOTE, _BACKSLASH, _COLON, _COMMA = 34, 92, 58, 44
_OPEN, _CLOSE, _OPEN_LIST, _CLOSE_LIST = 123, 125, 91, 93
_PLUS, _MINUS, _POINT = 43, 45, 46


class Plan:
    """What is looked for and where it goes: `cells` and `valid` have a row for each field.

    `doubles` is the memory of `cells`. In `valid`, which is all 0 at first, 1 is a value. `text`
    says that all values are known to be UTF-8.
    """

    def __init__(
        self,
        rows: int,
        data: memoryview,
        fields: memoryview,
        names: memoryview,
        powers: memoryview,
        cells: memoryview,
        doubles: memoryview,
        valid: memoryview,
        text: bool,
    ) -> None:
        self.views = (data, fields, names, powers, cells, doubles, valid)
        self.rows = rows
        self.count = len(fields) // _FIELD_NUMBERS
        self.text = text
        self.data: memoryview = _source(data)
        self.fields: memoryview = _numbers(fields)
        self.names: memoryview = _source(names)
        self.powers: memoryview = _powers(powers)
        self.cells: memoryview = _int64s(cells)
        self.doubles: Any = _doubles(doubles)
        self.valid: memoryview = _octets(valid)


def decode(plan: Plan, ends: memoryview, unusual: memoryview) -> int:
    """Fill cells; row n is from `ends[n]` to `ends[n + 1]`. Returns how many rows are `unusual`."""
    found = 0
    with cython.nogil:
        for row in range(plan.rows):
            unusual[row] = 0
            if not _object(plan, row, ends[row], ends[row + 1]):
                unusual[row] = 1
                found += 1
                for field in range(plan.count):
                    plan.valid[field * plan.rows + row] = 0
    return found


def gather(plan: Plan, field: int, out: memoryview, ends: memoryview) -> None:
    """The texts of a STRING or JSON field in one; `ends` gets one more than the rows."""
    target = _octets(out)
    with cython.nogil:
        size = 0
        ends[0] = 0
        for row in range(plan.rows):
            cell = field * plan.rows + row
            if plan.valid[cell] == _SEEN:
                length = plan.cells[cell] & _UINT32
                _copy(target, size, plan.data, plan.cells[cell] >> 32, length)
                size += length
            ends[row + 1] = size


def _octets(view: memoryview) -> Any:
    """The memory of a view, of one type in each of these; plain Python gets the view itself."""
    return cython.address(view[0]) if cython.compiled else view


def _int64s(view: memoryview) -> Any:
    return cython.address(view[0]) if cython.compiled else view


def _numbers(view: memoryview) -> Any:
    return cython.address(view[0]) if cython.compiled else view


def _doubles(view: memoryview) -> Any:
    return cython.address(view[0]) if cython.compiled else view


def _powers(view: memoryview) -> Any:
    return cython.address(view[0]) if cython.compiled else view


def _source(view: memoryview) -> Any:
    return cython.address(view[0]) if cython.compiled else view


def _copy(target: memoryview, at: int, source: memoryview, start: int, size: int) -> None:
    if cython.compiled:
        memcpy(cython.address(target[at]), cython.address(source[start]), size)  # type: ignore[name-defined]  # noqa: F821 - cimported in _codec_json.pxd
    else:
        target[at : at + size] = source[start : start + size]


def _object(plan: Plan, row: int, position: int, end: int) -> bool:
    position = _token(plan.data, position, end, _OPEN)
    if position < 0:
        return False
    if position < end and plan.data[position] == _CLOSE:
        return _space(plan.data, position + 1, end) == end
    expected = 0
    while True:
        start = position + 1
        close = _string(plan, position, end)
        position = _token(plan.data, close + 1, end, _COLON) if close > 0 else -1
        if position < 0:
            return False
        field = _field(plan, start, close, expected)
        if field < 0:
            position = _skip(plan, position, end)
        else:
            expected = field + 1
            position = _cell(plan, field, row, position, end)
        position = _space(plan.data, position, end) if position > 0 else end
        if position >= end:
            return False
        if plan.data[position] == _CLOSE:
            return _space(plan.data, position + 1, end) == end
        position = _token(plan.data, position, end, _COMMA)
        if position < 0:
            return False


def _space(source: memoryview, position: int, end: int) -> int:
    while position < end and (
        source[position] == 32
        or source[position] == 10
        or source[position] == 13
        or source[position] == 9
    ):
        position += 1
    return position


def _token(source: memoryview, position: int, end: int, wanted: int) -> int:
    """What follows `wanted` and space around it; -1 when something else stands there."""
    position = _space(source, position, end)
    if position >= end or source[position] != wanted:
        return -1
    return _space(source, position + 1, end)


def _string(plan: Plan, position: int, end: int) -> int:
    """The closing quote of a string without escapes; -1 when there is none."""
    if position >= end or plan.data[position] != _QUOTE:
        return -1
    position += 1
    while position < end:
        octet = plan.data[position]
        if octet == _QUOTE:
            return position
        if octet < 32 or octet == _BACKSLASH or (octet > 127 and not plan.text):
            return -1
        position += 1
    return -1


def _field(plan: Plan, start: int, end: int, expected: int) -> int:
    """The number of a field, looked for from `expected` on, as fields mostly keep their order."""
    for step in range(plan.count):
        field = expected + step
        if field >= plan.count:
            field -= plan.count
        name = plan.fields[field * _FIELD_NUMBERS + 1]
        if plan.fields[field * _FIELD_NUMBERS + 2] - name == end - start:
            position = start
            while position < end and plan.data[position] == plan.names[name + position - start]:
                position += 1
            if position == end:
                return field
    return -1


def _cell(plan: Plan, field: int, row: int, position: int, end: int) -> int:
    """What follows a wanted value; -1 for an unusual one, as the second of the same name."""
    kind = plan.fields[field * _FIELD_NUMBERS]
    cell = field * plan.rows + row
    if position >= end or plan.valid[cell] != 0:
        return -1
    plan.valid[cell] = _SEEN
    if plan.data[position] == 110:
        plan.valid[cell] = _SEEN_NULL
        return _literal(plan.data, position, end)
    if kind == _STRING:
        close = _string(plan, position, end)
        plan.cells[cell] = (position + 1) << 32 | (close - position - 1)
        return close + 1 if close > 0 else -1
    if kind == _JSON:
        close = _skip(plan, position, end)
        plan.cells[cell] = position << 32 | (close - position)
        return close
    if kind == _INTEGER:
        return _integer(plan, field, cell, position, end)
    if kind == _DOUBLE:
        return _double(plan, cell, position, end)
    plan.cells[cell] = plan.data[position] == 116
    return _literal(plan.data, position, end)


def _literal(source: memoryview, position: int, end: int) -> int:
    """What follows null, true or false; -1 when none of them stands there."""
    if position + 4 <= end:
        first, second = source[position], source[position + 1]
        third, fourth = source[position + 2], source[position + 3]
        if first == 110 and second == 117 and third == 108 and fourth == 108:
            return position + 4
        if first == 116 and second == 114 and third == 117 and fourth == 101:
            return position + 4
        if first == 102 and second == 97 and third == 108 and fourth == 115:
            return position + 5 if position + 5 <= end and source[position + 4] == 101 else -1
    return -1


def _number(source: memoryview, position: int, end: int) -> tuple[int, int, int, int]:
    """Mantissa, exponent of ten, whether it is an integer, and what follows the number.

    What follows is -1 when it is no number of JSON; the mantissa -1 when it has too many digits.
    """
    mantissa = exponent = 0
    whole = 1
    is_long = False
    if position < end and source[position] == _MINUS:
        position += 1
    start = position
    while position < end and 48 <= source[position] <= 57:
        is_long |= mantissa >= _MANTISSA_MAX
        mantissa = 0 if is_long else mantissa * 10 + source[position] - 48
        position += 1
    if position == start or (source[start] == 48 and position > start + 1):
        return 0, 0, 0, -1
    if position < end and source[position] == _POINT:
        whole = 0
        position += 1
        start = position
        while position < end and 48 <= source[position] <= 57:
            is_long |= mantissa >= _MANTISSA_MAX
            mantissa = 0 if is_long else mantissa * 10 + source[position] - 48
            exponent -= 1
            position += 1
        if position == start:
            return 0, 0, 0, -1
    if position < end and source[position] | 32 == 101:
        whole = 0
        shift, position = _exponent(source, position + 1, end)
        exponent += shift
    return (-1 if is_long else mantissa), exponent, whole, position


def _exponent(source: memoryview, position: int, end: int) -> tuple[int, int]:
    shift = 0
    negative = position < end and source[position] == _MINUS
    if negative or (position < end and source[position] == _PLUS):
        position += 1
    start = position
    while position < end and 48 <= source[position] <= 57:
        if shift < _EXPONENT_MAX:
            shift = shift * 10 + source[position] - 48
        position += 1
    return (-shift if negative else shift), (position if position > start else -1)


def _integer(plan: Plan, field: int, cell: int, position: int, end: int) -> int:
    mantissa, _, whole, after = _number(plan.data, position, end)
    if after < 0 or not whole or mantissa < 0:
        return -1
    value = -mantissa if plan.data[position] == _MINUS else mantissa
    if value < plan.fields[field * _FIELD_NUMBERS + 3]:
        return -1
    if value > plan.fields[field * _FIELD_NUMBERS + 4]:
        return -1
    plan.cells[cell] = value
    return after


def _double(plan: Plan, cell: int, position: int, end: int) -> int:
    mantissa, exponent, whole, after = _number(plan.data, position, end)
    if after < 0 or after >= end:
        return -1
    if mantissa < 0 or mantissa > _MANTISSA_EXACT or not -_POWERS_EXACT < exponent < _POWERS_EXACT:
        return -1 if whole else _parsed(plan, cell, position, after)
    value = mantissa * 1.0
    if exponent < 0:
        value /= plan.powers[-exponent]
    else:
        value *= plan.powers[exponent]
    plan.doubles[cell] = -value if plan.data[position] == _MINUS else value
    return after


def _parsed(plan: Plan, cell: int, start: int, after: int) -> int:
    """A double of more digits, -1 for zero. Another byte follows it, at which `strtod` ends."""
    if cython.compiled:
        stopped = cython.NULL
        first = cython.cast(cython.p_char, cython.address(plan.data[start]))
        plan.doubles[cell] = strtod(first, cython.address(stopped))  # type: ignore[name-defined]  # noqa: F821 - cimported in _codec_json.pxd
        if stopped - first != after - start:
            return -1
    else:
        plan.doubles[cell] = float(bytes(plan.data[start:after]))
    return after if plan.doubles[cell] != 0 else -1


def _skip(plan: Plan, position: int, end: int) -> int:
    """What follows a value that nobody wants, whatever it holds; -1 for an unusual one."""
    depth = 0
    lists = 0  # a bit a level: whether it is a list
    while position < end:
        octet = plan.data[position]
        if octet == _OPEN or octet == _OPEN_LIST:  # noqa: SIM109 - a comparison, no tuple
            if depth == _DEPTH_MAX:
                return -1
            depth += 1
            lists = lists << 1 | (octet == _OPEN_LIST)
            position = _space(plan.data, position + 1, end)
            if position < end and plan.data[position] != octet + 2:
                position = _inner(plan, position, end, lists)
                if position < 0:
                    return -1
                continue
        else:
            position = _scalar(plan, position, end)
            if depth == 0 or position < 0:
                return position
        while depth:
            position = _space(plan.data, position, end)
            if position >= end or plan.data[position] != (_CLOSE_LIST if lists & 1 else _CLOSE):
                break
            depth -= 1
            lists >>= 1
            position += 1
        if depth == 0:
            return position
        position = _inner(plan, _token(plan.data, position, end, _COMMA), end, lists)
        if position < 0:
            return -1
    return -1


def _inner(plan: Plan, position: int, end: int, lists: int) -> int:
    """Where a value stands inside a list, or behind its name in an object; -1 when none does."""
    if position < 0 or lists & 1:
        return position
    close = _string(plan, position, end)
    return _token(plan.data, close + 1, end, _COLON) if close > 0 else -1


def _scalar(plan: Plan, position: int, end: int) -> int:
    octet = plan.data[position]
    if octet == _QUOTE:
        close = _string(plan, position, end)
        return close + 1 if close > 0 else -1
    if octet == _MINUS or 48 <= octet <= 57:
        _, _, _, after = _number(plan.data, position, end)
        return after
    return _literal(plan.data, position, end)
