"""Copies of records for a dead-letter topic: what they say, how large they are, which are there.

Headers are those of Kafka 4.4 (KIP-1191), and who had the record last; values are UTF-8 text. The
record's own key, value, headers and timestamp stay, unless the group wants no payload.

Records are decoded in a thread, and a bounded number at a time: a producer's batch may hold a
million of them.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from headrace.broker.partitions import Partition
from headrace.core.leases import told_holder
from headrace.core.runs import Run
from headrace.core.share_words import ShareKey
from headrace.core.types import Span
from headrace.log.api import OffsetOutOfRange, Slice
from headrace.wire import batches
from headrace.wire.excerpts import excerpt
from headrace.wire.primitives import Malformed

PREFIX = "__dlq.errors."
_READ_BYTES = 256 * 1024
_RECORDS_AT_ONCE = 10_000  # that are decoded and not copied yet
_HEAD_BYTES_MAX = 100  # of a batch, its one record, and the lengths in it
_HEADER_BYTES_MAX = 10  # beside the name and value of a header

Place = tuple[str, str, int]  # group, topic, partition
Origin = tuple[str, str, int, int, int]  # a place, offset, timestamp


@dataclass(frozen=True, slots=True)
class Lost:
    """Offsets whose records cannot be had, and `why`, to follow their names."""

    span: Span
    why: str


Found = batches.Record | Lost
_REMOVED = "cannot be had from the log any more"


async def origins(partition: Partition, starts: Mapping[Place, int]) -> set[Origin]:
    """Return what the copies in a partition are copies of, as far as these are durable.

    A failed sync may still cut off the others, and they are written again. A dead-letter topic may
    have any number of copies, so only those of records that may not be finished are kept in memory.

    Args:
        partition: A partition of a dead-letter topic.
        starts: The offset that copies of each place are looked for from; no others are.

    Raises: OSError.
    """
    found: set[Origin] = set()
    offset, end = partition.start_offset, partition.high_watermark
    loop = asyncio.get_running_loop()
    while (piece := _piece(partition, offset, end)) is not None:
        found |= await loop.run_in_executor(None, _origins, piece, starts)
        offset = piece.headers[-1].last_offset + 1
    return found


async def wanted(source: Partition, runs: Sequence[Run]) -> AsyncIterator[list[tuple[Run, Found]]]:
    """The records of the runs, each with its run, a piece of the log at a time.

    Every offset of the runs is told of: a damaged batch stands for all of its records.
    """
    loop = asyncio.get_running_loop()
    index = 0
    offset, end = runs[0].span.first, runs[-1].span.last + 1
    while index < len(runs):
        offset = max(offset, runs[index].span.first)
        piece = _piece(source, offset, end)
        if piece is None:
            yield list(_removed(runs, index, offset, end))
            return
        found = _wanted(piece, runs, index, offset)
        while some := await loop.run_in_executor(None, _some, found):
            yield some
        offset = piece.headers[-1].last_offset + 1
        while index < len(runs) and runs[index].span.last < offset:
            index += 1


def copy_of(
    record: batches.Record, key: ShareKey, topic: str, run: Run, *, payload: bool
) -> batches.Record:
    """The dead letter of a record of the topic, with its payload or without."""
    told = {
        "topic": topic,
        "partition": str(key.partition),
        "offset": str(record.offset),
        "group": key.group,
        "delivery.count": str(run.deliveries),
        "message": run.reason or "",
        "member": told_holder(run.holder) if run.holder else "",
    }
    headers = tuple((PREFIX + name, value.encode()) for name, value in told.items())
    if not payload:
        return batches.Record(0, record.timestamp, None, None, headers)
    return batches.Record(0, record.timestamp, record.key, record.value, record.headers + headers)


def came_from(record: batches.Record, topic: str) -> bool:
    """Whether the record was once read from a topic, and got there as a dead letter of it."""
    name, wanted_value = f"{PREFIX}topic", topic.encode()
    return any(header == name and value == wanted_value for header, value in record.headers)


def size_max(record: batches.Record) -> int:
    """Bytes that a record takes at most, with the head of a batch."""
    payload = len(record.key or b"") + len(record.value or b"")
    headers = sum(
        len(name.encode()) + len(value or b"") + _HEADER_BYTES_MAX for name, value in record.headers
    )
    return _HEAD_BYTES_MAX + payload + headers


def ends(one: Found) -> tuple[int, int]:
    """The first and the last offset."""
    return (one.span.first, one.span.last) if isinstance(one, Lost) else (one.offset, one.offset)


def _origins(piece: Slice, starts: Mapping[Place, int]) -> set[Origin]:
    found: set[Origin] = set()
    start = 0
    for header in piece.headers:
        data = piece.data[start : start + header.size]
        start += header.size
        with contextlib.suppress(Malformed):
            for origin in filter(None, map(_origin, batches.records(data))):
                from_offset = starts.get(origin[:3])
                if from_offset is not None and origin[3] >= from_offset:
                    found.add(origin)
    return found


def _some(found: Iterator[tuple[Run, Found]]) -> list[tuple[Run, Found]]:
    return list(islice(found, _RECORDS_AT_ONCE))


def _wanted(
    piece: Slice, runs: Sequence[Run], index: int, offset: int
) -> Iterator[tuple[Run, Found]]:
    """What a piece that was read from `offset` on says of the runs from `index` on."""
    for one in _decoded(piece, offset, runs[-1].span.last):
        first, last = ends(one)
        yield from _removed(runs, index, offset, first)
        while index < len(runs) and runs[index].span.last < first:
            index += 1
        if index < len(runs) and last >= runs[index].span.first:
            yield runs[index], one
        offset = max(offset, last + 1)
    yield from _removed(runs, index, offset, piece.headers[-1].last_offset + 1)


def _removed(runs: Sequence[Run], index: int, start: int, end: int) -> Iterator[tuple[Run, Found]]:
    """The offsets of the runs from `index` on in [start, end), where there is no record."""
    while start < end and index < len(runs) and runs[index].span.first < end:
        run = runs[index]
        first, last = max(run.span.first, start), min(run.span.last, end - 1)
        if first <= last:
            yield run, Lost(Span(first, last), _REMOVED)
        index += 1


def _decoded(piece: Slice, first: int, last: int) -> Iterator[Found]:
    """Decode the records of a piece from offset `first` to `last`.

    A batch is decoded twice, so that a damaged one gives no record, however many it holds.
    """
    start = 0
    for header in piece.headers:
        data = piece.data[start : start + header.size]
        start += header.size
        if header.base_offset > last:
            return
        try:
            for _ in batches.records(data):
                pass
        except Malformed as error:
            span = Span(header.base_offset, header.last_offset)
            yield Lost(span, f"cannot be decoded ({error})")
        else:
            yield from excerpt(data, 0, header, first=first, last=last)


def _piece(partition: Partition, offset: int, end: int) -> Slice | None:
    try:
        piece = partition.log.read(max(offset, partition.log.start_offset), _READ_BYTES, end=end)
    except OffsetOutOfRange:
        return None
    return piece if piece.headers else None


def _origin(record: batches.Record) -> Origin | None:
    told = {
        name.removeprefix(PREFIX): (value or b"").decode(errors="replace")
        for name, value in record.headers
        if name.startswith(PREFIX)
    }
    try:
        place = told["group"], told["topic"], int(told["partition"]), int(told["offset"])
    except (KeyError, ValueError):
        return None  # somebody else's record in the dead-letter topic
    return (*place, record.timestamp)
