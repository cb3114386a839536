"""Who had the records of the state batches of one journal record: for people, and of archived ones.

It is the same for most batches, and so stands once behind all of them, in a tagged field of the
record that Kafka's tools pass over. A compact array of holds, each how it ended (int8, -1: not
told), since when (int64, -1: not told), holder, detail and client (compact nullable strings); then,
to the end, pairs of varints: how many batches in a row, and which hold (0 is none, 1 the first).
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import repeat

from headrace.core.share_words import Ended, Hold, Range
from headrace.core.types import MemberId, WallMs
from headrace.wire.primitives import Buffer, Malformed, Reader, Writer

TAG = 10_001  # of ours, far from any that Kafka may add
Rows = list[tuple[int, Hold | None]]  # so many batches in a row, and the hold of each
Client = Callable[[MemberId], str | None]  # who a member says it is

_UNKNOWN = -1
_ENDED = {one.value: one for one in Ended}


def encoded(rows: Rows, client: Client) -> bytes | None:
    """The tagged field; None where nothing is known of any batch."""
    places: dict[Hold, int] = {}
    seen = {id(None): 0}  # the same by identity: hashing words costs more than all the rest
    pairs = Writer()
    for count, hold in rows:
        place = seen.get(id(hold))
        if place is None and hold is not None:
            place = seen[id(hold)] = places.setdefault(hold, len(places) + 1)
        assert place is not None
        pairs.uvarint(count)
        pairs.uvarint(place)
    if not places:
        return None
    out = Writer()

    def write(sink: Writer, hold: Hold) -> None:
        sink.int8(_UNKNOWN if hold.ended is None else hold.ended)
        sink.int64(_UNKNOWN if hold.since is None else hold.since)
        sink.compact_nullable_string(hold.holder)
        sink.compact_nullable_string(hold.detail)
        sink.compact_nullable_string(None if hold.holder is None else client(hold.holder))

    out.compact_array(places, write)
    return bytes(out.data + pairs.data)


def decoded(raw: Buffer) -> Rows:
    """What the field says. Raises: Malformed."""
    source = Reader(raw)
    holds: list[Hold | None] = [None, *source.compact_array(_read)]
    rows: Rows = []
    while source.remaining:
        count, place = source.uvarint(), source.uvarint()
        if place >= len(holds):
            raise Malformed(f"hold {place} of {len(holds) - 1}")
        rows.append((count, holds[place]))
    return rows


def attached(ranges: tuple[Range, ...], rows: Rows) -> tuple[Range, ...]:
    """The ranges, each with its hold. Raises: Malformed where there are not as many."""
    if sum(count for count, _ in rows) != len(ranges):
        raise Malformed(f"the holds of {len(ranges)} state batches are not as many")
    return tuple((*one[:5], hold) for one, hold in zip(ranges, _each(rows), strict=True))


def _each(rows: Iterable[tuple[int, Hold | None]]) -> Iterator[Hold | None]:
    for count, hold in rows:
        yield from repeat(hold, count)


def _read(source: Reader) -> Hold:
    ended, since = source.int8(), source.int64()
    holder, detail = source.compact_nullable_string(), source.compact_nullable_string()
    client = source.compact_nullable_string()
    return Hold(
        None if holder is None else MemberId(holder),
        None if since == _UNKNOWN else WallMs(since),
        _ENDED.get(ended),  # of one that a newer version knows, only that it ended
        detail,
        client,
    )
