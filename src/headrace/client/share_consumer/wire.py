"""Requests of a share consumer, and what their answers hold. KIP-932, KIP-1206, KIP-1222."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from headrace.client.share_consumer.parcels import Parcel
from headrace.client.share_consumer.words import Place
from headrace.wire.batches import CorruptBatch, Record, headers
from headrace.wire.excerpts import excerpt
from headrace.wire.primitives import Buffer

HEARTBEAT, SHARE_FETCH, SHARE_ACKNOWLEDGE = 76, 78, 79
METADATA, FIND_COORDINATOR, DESCRIBE_CONFIGS = 3, 10, 32
FETCH_VERSIONS = range(1, 3)
RENEW_VERSION = 2  # of ShareFetch, ShareAcknowledge; also the one with exact limits
METADATA_VERSION, COORDINATOR_VERSION, CONFIGS_VERSION = 12, 4, 4
RECORD_LIMIT = 1
OPEN, FINAL = 0, -1
GROUP_RESOURCE = 32

Span = tuple[int, int]


def topics(parcels: Mapping[Place, Parcel], added: Iterable[Place] = ()) -> list[dict[str, Any]]:
    """The part of a request that names partitions, with what is said of them."""
    found: dict[UUID, list[dict[str, Any]]] = {}
    for topic_id, partition in sorted({*added, *parcels}):
        parcel = parcels.get((topic_id, partition))
        batches = [] if parcel is None else parcel.batches()
        found.setdefault(topic_id, []).append(
            {"partition_index": partition, "acknowledgement_batches": batches}
        )
    return [{"topic_id": topic_id, "partitions": parts} for topic_id, parts in found.items()]


def forgotten(places: Iterable[Place]) -> list[dict[str, Any]]:
    """The part of a ShareFetch that takes partitions out of the session."""
    found: dict[UUID, list[int]] = {}
    for topic_id, partition in sorted(places):
        found.setdefault(topic_id, []).append(partition)
    return [{"topic_id": topic_id, "partitions": parts} for topic_id, parts in found.items()]


@dataclass(frozen=True, slots=True)
class Answered:
    """What a ShareFetch or ShareAcknowledge answers for one partition."""

    place: Place
    code: int
    message: str | None
    acked_code: int
    acked_message: str | None
    data: Buffer = b""
    acquired: tuple[Any, ...] = ()


def fetched(answer: Any) -> list[Answered]:
    """The partitions of a ShareFetch's answer."""
    return [
        Answered(
            (topic.topic_id, int(part.partition_index)),
            int(part.error_code),
            part.error_message,
            int(part.acknowledge_error_code),
            part.acknowledge_error_message,
            part.records or b"",
            part.acquired_records,
        )
        for topic in answer.responses
        for part in topic.partitions
    ]


def acknowledged(answer: Any) -> list[Answered]:
    """The partitions of a ShareAcknowledge's answer."""
    return [
        Answered(
            (topic.topic_id, int(part.partition_index)), 0, None,
            int(part.error_code), part.error_message,
        )
        for topic in answer.responses
        for part in topic.partitions
    ]  # fmt: skip


@dataclass(slots=True)
class Unpacked:
    """Acquired records, each with its timestamp's type and its delivery count.

    `gaps` were acquired where the log has no record; `unread` are those that did not come or cannot
    be read, which is told by `damage`.
    """

    found: list[tuple[Record, int, int]] = field(default_factory=list)
    gaps: list[Span] = field(default_factory=list)
    unread: list[Span] = field(default_factory=list)
    damage: str = ""


def unpacked(answered: Answered) -> Unpacked:
    """The acquired records of a partition. What else its whole batches hold is somebody else's.

    An offset counts as a gap only where the batches around it came: finishing for good what did not
    arrive would lose it.
    """
    result = Unpacked()
    readable: list[tuple[Record, int]] = []
    bad: list[Span] = []
    try:
        batches = headers(answered.data)
    except CorruptBatch as error:
        batches, result.damage = [], str(error)
    first, last = int(answered.acquired[0].first_offset), int(answered.acquired[-1].last_offset)
    position = 0
    for header in batches:
        try:
            if header.base_offset <= last and header.last_offset >= first:
                kind = header.timestamp_type
                found = excerpt(answered.data, position, header, first=first, last=last)
                readable += ((record, kind) for record in found)
        except CorruptBatch as error:
            result.damage = str(error)
            bad.append((header.base_offset, header.last_offset))
        position += header.size
    known = (batches[0].base_offset, batches[-1].last_offset) if batches else (0, -1)
    _sort_out(result, answered.acquired, readable, known, bad)
    return result


def _sort_out(
    result: Unpacked,
    acquired: Iterable[Any],
    readable: list[tuple[Record, int]],
    known: Span,
    bad: list[Span],
) -> None:
    """Records to what was acquired; both ascend."""
    at = 0
    for one in acquired:
        expected, last = int(one.first_offset), int(one.last_offset)
        while at < len(readable) and readable[at][0].offset < expected:
            at += 1
        while at < len(readable) and (record := readable[at][0]).offset <= last:
            if record.offset > expected:
                _missing(result, (expected, record.offset - 1), known, bad)
            result.found.append((record, readable[at][1], int(one.delivery_count)))
            expected = record.offset + 1
            at += 1
        if expected <= last:
            _missing(result, (expected, last), known, bad)


def _missing(result: Unpacked, span: Span, known: Span, bad: list[Span]) -> None:
    """Offsets without a record: gaps where the log has none, unread outside and in bad batches."""
    first, last = span
    holes = [(first, min(last, known[0] - 1)), *bad, (max(first, known[1] + 1), last)]
    for hole in holes:
        start, end = max(hole[0], first), min(hole[1], last)
        if start > end:
            continue
        if first < start:
            result.gaps.append((first, start - 1))
        result.unread.append((start, end))
        first = end + 1
    if first <= last:
        result.gaps.append((first, last))
