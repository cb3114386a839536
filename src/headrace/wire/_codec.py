# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, infer_types=True, annotation_typing=False
"""The compiled kernel: records of batches to columns, without a Python object a record.

One source: Cython compiles it, with the C types that `_codec.pxd` gives its names, and plain Python
runs it, for tests and coverage only, as that is some hundred times slower than numpy. No bounds
are checked by the compiler, so every position is compared to the end of what surrounds it before a
byte is read there, and callers give columns with room for all that the bytes can contain. Nothing
is raised amid the records, where the GIL is released: a refusal is a number.

`headrace.wire.columns` chooses between this and numpy: import that one.
"""

from typing import Any

import cython

COMPILED = bool(cython.compiled)
LAYOUT = 6  # of what callers pass; a build of another is out of date

# Why a record is refused; `columns_compiled` has the words.
_BAD_VARINT = 1
_BAD_LENGTH = 2
_BAD_HEADER_COUNT = 3
_BAD_RECORD_LENGTH = 4
_BAD_DELTA = 5
_BAD_TIMESTAMP = 6
_NAMELESS = 7
_TOO_MANY_HEADERS = 8
_KEYLESS = 1
_UNTIMELY = 2
_RELEASE_BYTES = 1 << 16  # below, giving up the GIL costs more than it frees
_HEADER_BYTES = 61
_PLAIN_BYTES = 12  # that `_plain_record` may read in front of a key
_SHORT_END = 1 << 14  # above every number in two bytes of a varint
_VARINT_BYTES_MAX = 5
_VARLONG_BYTES_MAX = 10
_INT64_MAX = (1 << 63) - 1
_INT64_MIN = -_INT64_MAX - 1
_UINT32 = (1 << 32) - 1
_UINT64 = (1 << 64) - 1
_MS_MAX = _INT64_MAX // 1000


class Binary:
    """A column of bytes in the making: each value is copied behind the one before, if `wanted`."""

    def __init__(
        self, data: memoryview, ends: memoryview, valid: memoryview, wanted: bool = True
    ) -> None:
        self.views = (data, ends, valid)
        self.wanted = wanted
        self.size = self.rows = self.nulls = 0
        self.data: memoryview = _octets(data)
        self.ends: memoryview = _int32s(ends)
        self.valid: memoryview = _octets(valid)
        self.ends[0] = 0


Views = tuple[memoryview, memoryview, memoryview]


class Rows:
    """What else is known of the records, and why decoding stopped, if it did."""

    def __init__(
        self, first: int, last: int, numbers: Views, valid: memoryview, headers: Views | None
    ) -> None:
        self.views = (numbers, valid, headers)
        self.first, self.last = first, last
        self.count = self.parsed = self.too_far = self.header_bytes = self.refusal = 0
        self.base_offset = self.last_delta = 0
        self.base_timestamp = self.max_timestamp = self.timestamp_type = 0
        self.offset: memoryview = _int64s(numbers[0])
        self.micros: memoryview = _int64s(numbers[1])
        self.kind: memoryview = _int32s(numbers[2])
        self.valid: memoryview = _octets(valid)
        self.has_headers = headers is not None
        if headers:
            self.header_start: memoryview = _int64s(headers[0])
            self.header_end: memoryview = _int64s(headers[1])
            self.headers_end: memoryview = _int32s(headers[2])
            self.headers_end[0] = 0


class Scan:
    """Rules for the records of one produced batch, and what a pass over them finds.

    `wrong` receives pairs of a record's index and its fault, as many as it has room for; `noted`
    counts all of them.
    """

    def __init__(
        self, base_timestamp: int, earliest: int, latest: int, is_keyed: bool, headers_max: int,
        wrong: memoryview,
    ) -> None:  # fmt: skip
        self.base_timestamp = base_timestamp
        self.earliest, self.latest = earliest, latest
        self.is_keyed = is_keyed
        self.headers_max = headers_max
        self.views = wrong
        self.wrong: memoryview = _int64s(wrong)
        self.room = len(wrong) // 2
        self.noted = self.headers = self.parsed = self.refusal = 0
        self.max_timestamp = _INT64_MIN


def frames(data: memoryview) -> int:
    """How many whole batches stand in `data`; -1 where one must begin and none does."""
    found = position = 0
    while len(data) - position >= _HEADER_BYTES:
        size = 12 + _signed32(_source(data), position + 8)
        if data[position + 16] != 2 or size < _HEADER_BYTES:
            return -1
        if size > len(data) - position:
            break
        found += 1
        position += size
    return found


def misplaced(data: bytes, stop: int, first: int, end: int) -> int:
    """Where a batch begins in the first `stop` bytes whose offsets are not in their place; or -1.

    They must be at least `first`, below `end`, and above those of the batch before. No checksum of
    a batch covers its offset.
    """
    source = _inside(data)  # which takes a third of the time of a view
    position = 0
    if stop > len(data):
        return 0
    while position < stop:
        if stop - position < _HEADER_BYTES:
            return position
        size = 12 + _signed32(source, position + 8)
        if size < _HEADER_BYTES or size > stop - position:
            return position
        base_offset = _signed64(source, position)
        last_delta = _signed32(source, position + 23)
        if base_offset < first or last_delta < 0 or base_offset >= end - last_delta:
            return position
        first = base_offset + last_delta + 1
        position += size
    return -1


def survey(data: memoryview, count: int, first: int, last: int, table: memoryview) -> int:
    """The headers of those of the first `count` batches that have records from `first` to `last`.

    Each becomes a row of `table`: position, size, CRC, codec, whether its offsets or its count are
    impossible, type of timestamp, base offset, last offset delta, base and greatest timestamp,
    number of records. Returns how many there are.
    """
    source = _source(data)
    wanted = position = 0
    for _ in range(count):
        size = 12 + _signed32(source, position + 8)
        base_offset = _signed64(source, position)
        last_delta = _signed32(source, position + 23)
        attributes = source[position + 22]
        records = _signed32(source, position + 57)
        above = last_delta > 0 and base_offset > _INT64_MAX - last_delta
        below = last_delta < 0 and base_offset < _INT64_MIN - last_delta
        ends = _INT64_MAX if above else _INT64_MIN if below else base_offset + last_delta
        if base_offset <= last and ends >= first and attributes & 0x20 == 0:
            table[wanted, 0] = position
            table[wanted, 1] = size
            table[wanted, 2] = _signed32(source, position + 17) & _UINT32
            table[wanted, 3] = attributes & 7
            table[wanted, 4] = above or below or base_offset < 0 or records < 0
            table[wanted, 5] = (attributes >> 3) & 1
            table[wanted, 6] = base_offset
            table[wanted, 7] = last_delta
            table[wanted, 8] = _signed64(source, position + 27)
            table[wanted, 9] = _signed64(source, position + 35)
            table[wanted, 10] = records
            wanted += 1
        position += size
    return wanted


def decode(
    data: memoryview, table: memoryview, batches: int, rows: Rows, keys: Binary, values: Binary
) -> None:
    """The records of the batches in `table`; its first two columns now say where records stand.

    `rows.refusal` is not 0 when some are damaged; `rows.parsed` counts those before.
    """
    source = _source(data)
    with cython.nogil:
        for batch in range(batches):
            rows.timestamp_type = table[batch, 5]
            rows.base_offset = table[batch, 6]
            rows.last_delta = table[batch, 7]
            rows.base_timestamp = table[batch, 8]
            rows.max_timestamp = table[batch, 9]
            position, stop, count = table[batch, 0], table[batch, 1], table[batch, 10]
            if not _batch(source, position, stop, count, rows, keys, values):
                break


def decode_headers(data: memoryview, rows: Rows, names: Binary, contents: Binary) -> None:
    """The headers of the records that `decode` kept; refuses as it does."""
    source = _source(data)
    with cython.nogil:
        for row in range(rows.count):
            rows.parsed = row
            if not _headers(source, row, rows, names, contents):
                break


def lengthen(data: bytearray, size: int) -> None:
    """Make `data` longer without writing to it: the caller does that before it reads there.

    Raises: BufferError while a view of it exists.
    """
    PyByteArray_Resize(data, size)  # type: ignore[name-defined]  # noqa: F821  # of the pxd


def check(data: memoryview, start: int, stop: int, count: int, scan: Scan) -> None:
    """Check that `data[start:stop]` is exactly `count` records, well-formed as producers send them.

    `scan.refusal` is not 0 at the first malformed record; `scan.parsed` counts those before it.
    """
    source = _source(data)
    if stop - start < _RELEASE_BYTES:
        _check(source, start, stop, count, scan)
    else:
        with cython.nogil:
            _check(source, start, stop, count, scan)


def highest_timestamp(
    data: memoryview, start: int, stop: int, count: int, base_timestamp: int,
    earliest: int, latest: int, is_keyed: bool, headers_max: int,
) -> int:  # fmt: skip
    """Check records as `check`, without an object for what is found.

    Returns:
        The highest timestamp; the lowest number of 64 bits where `check` may find fault.
    """
    scan = Scan.__new__(Scan)
    scan.base_timestamp = base_timestamp
    scan.earliest, scan.latest = earliest, latest
    scan.is_keyed = is_keyed
    scan.headers_max = headers_max
    scan.room = scan.noted = scan.headers = 0
    check(data, start, stop, count, scan)
    return _INT64_MIN if scan.refusal or scan.noted else scan.max_timestamp


def lz4_end(data: memoryview, position: int, trailer: int) -> int:
    """Return where the blocks of an LZ4 frame end that begin at `position`; -1 beyond `data`.

    A block of no bytes is the end, marked as uncompressed too: Kafka's decoder stops there.

    Args:
        trailer: bytes of checksum behind each block.
    """
    source = _source(data)
    stop = len(data)
    with cython.nogil:
        end = _lz4_end(source, position, stop, trailer)
    return end  # noqa: RET504  # a return inside would need the GIL


def find_time(
    data: memoryview, start: int, stop: int, count: int, last_delta: int, base_timestamp: int,
    wanted: int, least: int, found: memoryview,
) -> int:  # fmt: skip
    """Find the first record with an offset delta >= `least` and a timestamp >= `wanted`.

    `found` receives its offset delta (-1 without one), its timestamp, and of the records from
    `least` on that were looked at the highest timestamp and the number. Returns 0, or the reason
    of a refusal.
    """
    source, result = _source(data), _int64s(found)
    with cython.nogil:
        refusal = _find_time(
            source, start, stop, count, last_delta, base_timestamp, wanted, least, result
        )
    return refusal  # noqa: RET504  # a return inside would need the GIL


def _octets(view: memoryview) -> Any:
    """The memory of a view, of one type in each of these; plain Python gets the view itself."""
    return cython.address(view[0]) if cython.compiled else view


def _int32s(view: memoryview) -> Any:
    return cython.address(view[0]) if cython.compiled else view


def _int64s(view: memoryview) -> Any:
    return cython.address(view[0]) if cython.compiled else view


def _inside(data: bytes) -> Any:
    return cython.cast("const octet_t *", PyBytes_AsString(data)) if cython.compiled else data  # type: ignore[name-defined]  # noqa: F821 - cimported in _codec.pxd


def _source(view: memoryview) -> Any:
    return cython.address(view[0]) if cython.compiled else view


def _copy(target: memoryview, at: int, source: memoryview, start: int, size: int) -> None:
    if cython.compiled:
        memcpy(cython.address(target[at]), cython.address(source[start]), size)  # type: ignore[name-defined]  # noqa: F821 - cimported in _codec.pxd
    else:
        target[at : at + size] = source[start : start + size]


def _signed32(data: memoryview, at: int) -> int:
    high = data[at] - 256 if data[at] > 127 else data[at]
    return high * (1 << 24) + (data[at + 1] << 16 | data[at + 2] << 8 | data[at + 3])


def _signed64(data: memoryview, at: int) -> int:
    return _signed32(data, at) * (_UINT32 + 1) + (_signed32(data, at + 4) & _UINT32)


def _unzigzag(raw: int) -> int:
    return (raw >> 1) ^ -(raw & 1)


def _varint(source: memoryview, position: int, end: int, bytes_max: int) -> tuple[int, int]:
    """A zigzag varint, and the position after it or the reason of a refusal below 0.

    A position that is such a reason comes back as it is, so that a caller looks at the last only.
    """
    if 0 <= position < end:
        octet = source[position]
        if octet < 0x80:
            return _unzigzag(octet), position + 1
        if position + 1 < end and source[position + 1] < 0x80:
            octet = (octet & 0x7F) | source[position + 1] << 7
            return _unzigzag(octet), position + 2
    return _long_varint(source, position, min(end, position + bytes_max))


def _long_varint(source: memoryview, position: int, end: int) -> tuple[int, int]:
    if position < 0:
        return 0, position
    raw = 0
    shift = 0
    while position < end:
        octet = source[position]
        position += 1
        raw |= (octet & 0x7F) << shift
        if octet < 0x80:
            return _unzigzag(raw & _UINT64), position
        shift += 7
    return 0, -_BAD_VARINT


def _piece(source: memoryview, position: int, end: int) -> tuple[int, int]:
    """Size (-1 for null) and start of a field; the start as the position of `_varint`."""
    size, start = _varint(source, position, end, _VARINT_BYTES_MAX)
    if size < -1 or (start >= 0 and size > end - start):
        return 0, -_BAD_LENGTH
    return size, start


def _append(column: Binary, source: memoryview, start: int, size: int) -> None:
    if not column.wanted:
        return
    row = column.rows
    if row & 7 == 0:
        column.valid[row >> 3] = 0
    if size >= 0:
        column.valid[row >> 3] |= 1 << (row & 7)
        _copy(column.data, column.size, source, start, size)
        column.size += size
    else:
        column.nulls += 1
    column.rows = row + 1
    column.ends[row + 1] = column.size


def _refuse(rows: Rows, why: int) -> int:
    rows.refusal = why
    return -1


def _batch(
    source: memoryview,
    position: int,
    stop: int,
    count: int,
    rows: Rows,
    keys: Binary,
    values: Binary,
) -> bool:
    previous = -1
    for _ in range(count):
        size, position = _varint(source, position, stop, _VARINT_BYTES_MAX)
        if position < 0 or size < 0 or size > stop - position:
            _refuse(rows, _BAD_LENGTH)
            return False
        previous = _record(source, position, position + size, previous, rows, keys, values)
        if previous < 0:
            return False
        rows.parsed += 1
        position += size
    if position != stop:
        _refuse(rows, _BAD_LENGTH)
    return position == stop


def _record(
    source: memoryview,
    position: int,
    end: int,
    previous: int,
    rows: Rows,
    keys: Binary,
    values: Binary,
) -> int:
    """Takes in one record; returns its offset delta, -1 when it is refused."""
    # The first byte of a record holds attributes, of which Kafka uses none.
    elapsed, position = _varint(source, position + 1, end, _VARLONG_BYTES_MAX)
    delta, position = _varint(source, position, end, _VARINT_BYTES_MAX)
    key_size, key_start = _piece(source, position, end)
    value_size, value_start = _piece(source, key_start + max(key_size, 0), end)
    count, position = _varint(source, value_start + max(value_size, 0), end, _VARINT_BYTES_MAX)
    if position < 0:
        return _refuse(rows, -position)
    if count < 0 or count > (end - position) >> 1:
        return _refuse(rows, _BAD_HEADER_COUNT)
    if count == 0 and position != end:
        return _refuse(rows, _BAD_RECORD_LENGTH)
    if delta <= previous or delta > rows.last_delta:
        return _refuse(rows, _BAD_DELTA)
    if not _is_sum(rows.base_timestamp, elapsed):
        return _refuse(rows, _BAD_TIMESTAMP)
    if rows.first <= rows.base_offset + delta <= rows.last:
        _append(keys, source, key_start, key_size)
        _append(values, source, value_start, value_size)
        _keep(rows, delta, elapsed, position, end, count)
    return delta


def _is_sum(one: int, other: int) -> bool:
    """Whether their sum has 64 bits."""
    if other > 0:
        return one <= _INT64_MAX - other
    return one >= _INT64_MIN - other


def _keep(rows: Rows, delta: int, elapsed: int, position: int, end: int, count: int) -> None:
    row = rows.count
    timestamp = rows.max_timestamp if rows.timestamp_type else rows.base_timestamp + elapsed
    if row & 7 == 0:
        rows.valid[row >> 3] = 0
    if -_MS_MAX <= timestamp <= _MS_MAX:
        rows.valid[row >> 3] |= 1 << (row & 7)
        rows.micros[row] = timestamp * 1000
    else:
        rows.too_far += 1
        rows.micros[row] = 0
    rows.offset[row] = rows.base_offset + delta
    rows.kind[row] = rows.timestamp_type
    if rows.has_headers:
        rows.header_start[row] = position
        rows.header_end[row] = end
        rows.headers_end[row + 1] = rows.headers_end[row] + count
        rows.header_bytes += end - position
    rows.count = row + 1


def _headers(source: memoryview, row: int, rows: Rows, names: Binary, contents: Binary) -> bool:
    position = rows.header_start[row]
    end = rows.header_end[row]
    for _ in range(rows.headers_end[row + 1] - rows.headers_end[row]):
        name_size, name_start = _piece(source, position, end)
        size, start = _piece(source, name_start + max(name_size, 0), end)
        if start < 0 or name_size < 0:
            _refuse(rows, -start if start < 0 else _NAMELESS)
            return False
        _append(names, source, name_start, name_size)
        _append(contents, source, start, size)
        position = start + max(size, 0)
    if position != end:
        _refuse(rows, _BAD_RECORD_LENGTH)
    return position == end


def _check(source: memoryview, position: int, stop: int, count: int, scan: Scan) -> bool:
    # Copies: the compiler cannot keep fields of an object in registers.
    base_timestamp, is_keyed = scan.base_timestamp, scan.is_keyed
    allowed_from, allowed_to = scan.earliest, scan.latest
    latest = _INT64_MIN
    for index in range(count):
        end, elapsed, key_size = _plain_record(source, position, stop, index)
        if end < 0 or not _is_sum(base_timestamp, elapsed):
            end, elapsed, key_size = _any_record(source, position, stop, index, scan)
            if end < 0:
                return _end_check(scan, index, latest, -end)
        timestamp = base_timestamp + elapsed
        latest = max(latest, timestamp)
        if (is_keyed and key_size < 0) or timestamp < allowed_from or timestamp > allowed_to:
            _note(scan, index, key_size, timestamp)
        position = end
    return _end_check(scan, count, latest, 0 if position == stop else _BAD_LENGTH)


def _plain_record(
    source: memoryview, position: int, stop: int, index: int
) -> tuple[int, int, int]:  # fmt: skip
    """Parse a record without headers whose sizes and deltas take at most two bytes each.

    Nearly all records are of this kind; it costs half as much as `_any_record`.

    Returns:
        The end of the record, its timestamp delta and the size of its key (-1 for null). The end is
        -1 for any other record, well-formed or not.
    """
    if stop - position < _PLAIN_BYTES:
        return -1, 0, 0
    size, at = _short_varint(source, position)
    end = at + (size >> 1)
    elapsed, at = _short_varint(source, at + 1)
    delta, at = _short_varint(source, at)
    key, at = _short_varint(source, at)
    key_size = _unzigzag(key)
    at += max(key_size, 0)
    if end > stop or at + 2 > end:
        return -1, 0, 0
    value, at = _short_varint(source, at)
    value_size = _unzigzag(value)
    at += max(value_size, 0)
    is_short = (size | elapsed | delta | key | value) < _SHORT_END
    is_positive = ((size | elapsed) & 1) == 0 and key_size >= -1 and value_size >= -1
    if is_short and is_positive and delta == 2 * index and at + 1 == end and source[at] == 0:
        return end, elapsed >> 1, key_size
    return -1, 0, 0


def _short_varint(source: memoryview, at: int) -> tuple[int, int]:
    """A varint of one or two bytes, zigzag; `_SHORT_END` or more where it has further bytes."""
    raw = source[at]
    if raw < 0x80:
        return raw, at + 1
    return (raw & 0x7F) | source[at + 1] << 7, at + 2


def _any_record(
    source: memoryview, position: int, stop: int, index: int, scan: Scan
) -> tuple[int, int, int]:  # fmt: skip
    """Parse any record; returns as `_plain_record`, with a reason below 0 where it is refused."""
    size, position = _varint(source, position, stop, _VARINT_BYTES_MAX)
    if position < 0 or size < 0 or size > stop - position:
        return -_BAD_LENGTH, 0, 0
    end = position + size
    # The first byte of a record holds attributes, of which Kafka uses none.
    elapsed, position = _varint(source, position + 1, end, _VARLONG_BYTES_MAX)
    delta, position = _varint(source, position, end, _VARINT_BYTES_MAX)
    refusal = _check_place(scan, index, delta, elapsed)
    if position < 0 or refusal:
        return (position if position < 0 else -refusal), 0, 0
    key_size, position = _piece(source, position, end)
    value_size, position = _piece(source, position + max(key_size, 0), end)
    position = _check_headers(source, position + max(value_size, 0), end, scan)
    return position, elapsed, key_size


def _end_check(scan: Scan, parsed: int, latest: int, refusal: int) -> bool:
    scan.parsed = parsed
    scan.max_timestamp = latest
    scan.refusal = refusal
    return refusal == 0


def _check_place(scan: Scan, index: int, delta: int, elapsed: int) -> int:
    if delta != index:
        return _BAD_DELTA
    return 0 if _is_sum(scan.base_timestamp, elapsed) else _BAD_TIMESTAMP


def _check_headers(source: memoryview, position: int, end: int, scan: Scan) -> int:
    """Check the headers, with which a record ends; returns the position, or a reason below 0."""
    count, position = _varint(source, position, end, _VARINT_BYTES_MAX)
    if position < 0:
        return position
    if count == 0 and position == end:
        return position
    if count < 0 or count > (end - position) >> 1:
        return -_BAD_HEADER_COUNT
    if count > scan.headers_max - scan.headers:
        return -_TOO_MANY_HEADERS
    scan.headers += count
    for _ in range(count):
        name_size, position = _piece(source, position, end)
        size, position = _piece(source, position + max(name_size, 0), end)
        if position < 0:
            return position
        if name_size < 0:
            return -_NAMELESS
        position += max(size, 0)
    return position if position == end else -_BAD_RECORD_LENGTH


def _note(scan: Scan, index: int, key_size: int, timestamp: int) -> None:
    """Note a record that breaks a rule of its topic; not every record without a key does."""
    fault = 0
    if scan.is_keyed and key_size < 0:
        fault = _KEYLESS
    elif timestamp != -1 and (timestamp < scan.earliest or timestamp > scan.latest):
        fault = _UNTIMELY
    if fault:
        if scan.noted < scan.room:
            scan.wrong[2 * scan.noted] = index
            scan.wrong[2 * scan.noted + 1] = fault
        scan.noted += 1


def _lz4_end(source: memoryview, position: int, stop: int, trailer: int) -> int:
    while stop - position >= 4:
        low = source[position] | source[position + 1] << 8 | source[position + 2] << 16
        size = low + (source[position + 3] & 0x7F) * (1 << 24)
        position += 4
        if size == 0:
            return position
        position += size + trailer
    return -1


def _find_time(
    source: memoryview, position: int, stop: int, count: int, last_delta: int, base_timestamp: int,
    wanted: int, least: int, found: memoryview,
) -> int:  # fmt: skip
    previous = -1
    found[0] = -1
    found[1] = found[2] = _INT64_MIN
    found[3] = 0
    for _ in range(count):
        size, position = _varint(source, position, stop, _VARINT_BYTES_MAX)
        if position < 0 or size < 0 or size > stop - position:
            return _BAD_LENGTH
        end = position + size
        elapsed, position = _varint(source, position + 1, end, _VARLONG_BYTES_MAX)
        delta, position = _varint(source, position, end, _VARINT_BYTES_MAX)
        if position < 0:
            return -position
        if delta <= previous or delta > last_delta:
            return _BAD_DELTA
        if not _is_sum(base_timestamp, elapsed):
            return _BAD_TIMESTAMP
        if delta >= least:
            found[3] += 1
            timestamp = base_timestamp + elapsed
            found[2] = max(found[2], timestamp)
            if timestamp >= wanted:
                found[0] = delta
                found[1] = timestamp
                return 0
        previous = delta
        position = end
    return 0 if position == stop else _BAD_LENGTH
