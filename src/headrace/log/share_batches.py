"""State batches of Kafka's ShareSnapshot and ShareUpdate, by the hundred thousand.

A batch is first, last (int64), delivery state (int8), delivery count (int16) and tagged fields, one
of them ours, which says why records were archived. Most have none, and are then 20 bytes that are
packed and unpacked in one go. Sources: ShareSnapshotValue.json, ShareUpdateValue.json.
"""

import struct
from collections.abc import Iterable, Iterator

from headrace.core.runs import State
from headrace.core.share_words import Hold, Range
from headrace.log.share_holds import Rows
from headrace.wire.primitives import Malformed, Reader, Writer

RECORD_BYTES_MAX = 1_000_000  # of state batches in one record; the rest goes into updates behind it
_PLAIN = struct.Struct(">qqbhB")
_UNTAGGED = 0
_REASON = 10_000  # a tag of ours, far from any that Kafka may add
_DURABLE = {state.value: state for state in State if state is not State.ACQUIRED}


def portions(ranges: Iterable[Range]) -> Iterator[tuple[bytes, Rows]]:
    """The ranges as compact arrays of state batches for one record each, and who had them.

    There is at least one.
    """
    pack, encoded, size = _PLAIN.pack, list[bytes](), 0
    tags: dict[str, bytes] = {}  # of each reason; there are few
    rows: Rows = []
    held: Hold | None = None
    held_from = 0
    for first, last, state, deliveries, reason, hold in ranges:
        if size >= RECORD_BYTES_MAX:
            rows.append((len(encoded) - held_from, held))
            yield _array(encoded), rows
            encoded, size, rows, held_from = [], 0, [], 0
            held = hold
        elif hold is not held:
            if encoded:
                rows.append((len(encoded) - held_from, held))
            held, held_from = hold, len(encoded)
        batch = pack(first, last, state, deliveries, _UNTAGGED)
        if reason:
            told = tags.get(reason) or tags.setdefault(reason, _tagged(reason))
            batch = batch[:-1] + told
        encoded.append(batch)
        size += len(batch)
    rows.append((len(encoded) - held_from, held))
    yield _array(encoded), rows


def read(source: Reader) -> tuple[Range, ...]:
    """A compact array of state batches, without their holds. Raises: Malformed."""
    count = source.count(flexible=True)
    if count < 0:
        raise Malformed("null where state batches must stand")
    position = source.position
    plain = _read_plain(source, count) if source.remaining >= count * _PLAIN.size else None
    if plain is not None:
        return plain
    source.position = position
    return tuple(_read_tagged(source) for _ in range(count))


def _read_plain(source: Reader, count: int) -> tuple[Range, ...] | None:
    """Batches without tagged fields; None when there is one that has some, or is no batch."""
    ranges: list[Range] = []
    states = _DURABLE
    packed = source.take(count * _PLAIN.size)
    for first, last, state, deliveries, tags in _PLAIN.iter_unpack(packed):
        if tags or state not in states or not 0 <= first <= last:
            return None
        ranges.append((first, last, states[state], deliveries, None, None))
    return tuple(ranges)


def _read_tagged(source: Reader) -> Range:
    first, last, state, deliveries = source.int64(), source.int64(), source.int8(), source.int16()
    if not 0 <= first <= last:
        raise Malformed(f"{first}-{last} is not a range of offsets")
    reason = source.tags().get(_REASON)
    if state not in _DURABLE:
        raise Malformed(f"delivery state {state} cannot be durable")
    told = bytes(reason).decode(errors="replace") if reason else None
    return first, last, _DURABLE[state], deliveries, told, None


def _tagged(reason: str) -> bytes:
    out = Writer()
    out.tags({_REASON: reason.encode()})
    return bytes(out.data)


def _array(encoded: list[bytes]) -> bytes:
    out = Writer()
    out.count(len(encoded), flexible=True)
    return bytes(out.data) + b"".join(encoded)
