"""Produce (0): one record batch a partition, checked by header and checksum, appended as sent.

Request and response are read and written by hand, so that records are neither copied nor parsed:
the batch is given its offset where it was received and goes to the file from there.
Source: ProduceRequest.json, ProduceResponse.json; LogValidator; KIP-98 for idempotent producers.
"""

import asyncio
from dataclasses import dataclass
from uuid import UUID

from headrace.broker.errors import Code, Faulty
from headrace.broker.partitions import Partition
from headrace.broker.request import Answer, Api, HangUp, Raw, Request
from headrace.broker.services import Services
from headrace.log.producers import Duplicate, Fenced, OutOfOrder
from headrace.wire import batches
from headrace.wire.primitives import Malformed, Reader, Writer

# librdkafka takes a broker for too old unless versions from 0 are advertised; they are not served.
APIS = (Api(0, "Produce", range(3, 14), advertised_from=0, body_bytes_max=2**31 - 1),)
_FLEXIBLE_SINCE = 9
_IDS_SINCE = 13


@dataclass(slots=True)
class _Part:
    """One partition of a request, and what became of it."""

    topic: str | UUID
    index: int
    records: memoryview | None
    code: Code = Code.NONE
    message: str | None = None
    base_offset: int = -1
    start_offset: int = -1


async def handle(request: Request, services: Services) -> Answer:
    acks, topics = _decoded(request)
    written: list[tuple[_Part, Partition, int]] = []
    for part in (part for parts in topics for part in parts):
        try:
            if acks not in {-1, 0, 1}:
                raise Faulty(Code.INVALID_REQUIRED_ACKS, f"acks {acks}; -1, 0 and 1 are possible")
            partition = _partition(part, services)
            part.base_offset = _append(partition, part)
            part.start_offset = partition.start_offset
            written.append((part, partition, partition.cuts))
        except Faulty as fault:
            part.code, part.message = fault.code, str(fault)
            services.metrics.failed(request.api_key, fault.code)
    if acks == 0:
        _require_success(topics)
        return None
    outcomes = await asyncio.gather(
        *(partition.durable(cuts=cuts) for _, partition, cuts in written),
        return_exceptions=True,
    )
    for (part, _, _), outcome in zip(written, outcomes, strict=True):
        if isinstance(outcome, OSError):
            part.code, part.message, part.base_offset = Code.STORAGE_ERROR, str(outcome), -1
        elif outcome is not None:
            raise outcome
    return Raw([_encoded(topics, request.version)])


def _partition(part: _Part, services: Services) -> Partition:
    catalog = services.catalog
    if isinstance(part.topic, UUID):
        topic = catalog.topics_by_id.get(part.topic)
        if topic is None:
            raise Faulty(Code.UNKNOWN_TOPIC_ID, f"no topic has the id {part.topic}")
    else:
        topic = catalog.topics.get(part.topic)
    partition = None if topic is None else services.partitions.get(topic.id, part.index)
    if partition is None:
        message = f"partition {part.index} of {part.topic} does not exist"
        raise Faulty(Code.UNKNOWN_TOPIC_OR_PARTITION, message)
    if partition.topic.internal:
        raise Faulty(Code.INVALID_TOPIC, f"{partition.topic.name} is internal")
    return partition


def _append(partition: Partition, part: _Part) -> int:
    """Validate and append; returns the base offset. Raises: Faulty."""
    if part.records is None:
        raise Faulty(Code.INVALID_RECORD, "no records")
    limit = partition.settings.message_max_bytes
    if len(part.records) > limit:
        raise Faulty(Code.MESSAGE_TOO_LARGE, f"{len(part.records)} bytes; {limit} are allowed")
    try:
        header = batches.check(part.records)
    except batches.CorruptBatch as error:
        raise Faulty(Code.CORRUPT_MESSAGE, str(error)) from error
    except batches.InvalidRecord as error:
        raise Faulty(Code.INVALID_RECORD, str(error)) from error
    if header.attributes & batches.TRANSACTIONAL:
        raise Faulty(Code.INVALID_RECORD, "transactions are not served")
    original = _duplicate_of(partition, header)
    if original is not None:
        return original
    try:
        return partition.append(part.records, [header])
    except OSError as error:
        raise Faulty(Code.STORAGE_ERROR, str(error)) from error


def _duplicate_of(partition: Partition, header: batches.BatchHeader) -> int | None:
    """Where an idempotent producer's batch was written before, if it was. Raises: Faulty."""
    match partition.log.producers.check(header):
        case Duplicate(base_offset):
            return base_offset
        case OutOfOrder(message):
            raise Faulty(Code.OUT_OF_ORDER_SEQUENCE, message)
        case Fenced(message):
            raise Faulty(Code.INVALID_PRODUCER_EPOCH, message)
        case None:
            return None


def _require_success(topics: list[list[_Part]]) -> None:
    """Without acks there is no answer, so that a failure can be told only by hanging up."""
    for part in (part for parts in topics for part in parts):
        if part.code:
            raise HangUp(f"acks 0, and partition {part.index} of {part.topic}: {part.message}")


def _decoded(request: Request) -> tuple[int, list[list[_Part]]]:
    """Acks and the partitions by topic. Raises: Malformed."""
    source, flexible = Reader(request.body), request.version >= _FLEXIBLE_SINCE
    if flexible:
        source.compact_nullable_string()
    else:
        source.nullable_string()
    acks = source.int16()
    source.int32()
    topics = []
    for _ in range(_count(source, flexible)):
        topics.append(_decoded_topic(source, request.version))
        if flexible:
            source.tags()
    if flexible:
        source.tags()
    return acks, topics


def _decoded_topic(source: Reader, version: int) -> list[_Part]:
    flexible = version >= _FLEXIBLE_SINCE
    topic: str | UUID
    if version >= _IDS_SINCE:
        topic = source.uuid()
    elif flexible:
        topic = source.compact_string()
    else:
        topic = source.nullable_string() or ""
    parts = []
    for _ in range(_count(source, flexible)):
        index = source.int32()
        size = source.uvarint() - 1 if flexible else source.int32()
        parts.append(_Part(topic, index, None if size < 0 else source.take(size)))
        if flexible:
            source.tags()
    return parts


def _count(source: Reader, flexible: bool) -> int:
    count = source.uvarint() - 1 if flexible else source.int32()
    if not 0 <= count <= source.remaining:
        raise Malformed(f"an array of {count} in {source.remaining} bytes")
    return count


def _encoded(topics: list[list[_Part]], version: int) -> bytearray:
    out, flexible = Writer(), version >= _FLEXIBLE_SINCE
    # An empty topic would have nothing to name it by; it is left out, as it asks for nothing.
    named = [parts for parts in topics if parts]
    _write_count(out, len(named), flexible)
    for parts in named:
        topic = parts[0].topic
        if isinstance(topic, UUID):
            out.uuid(topic)
        elif flexible:
            out.compact_string(topic)
        else:
            out.nullable_string(topic)
        _write_count(out, len(parts), flexible)
        for part in parts:
            _write_part(out, part, version)
        if flexible:
            out.tags()
    out.int32(0)
    if flexible:
        out.tags()
    return out.data


def _write_part(out: Writer, part: _Part, version: int) -> None:
    flexible = version >= _FLEXIBLE_SINCE
    out.int32(part.index)
    out.int16(part.code)
    out.int64(part.base_offset)
    out.int64(-1)
    if version >= 5:
        out.int64(part.start_offset)
    if version >= 8:
        _write_count(out, 0, flexible)
        if flexible:
            out.compact_nullable_string(part.message)
        else:
            out.nullable_string(part.message)
    if flexible:
        out.tags()


def _write_count(out: Writer, count: int, flexible: bool) -> None:
    if flexible:
        out.uvarint(count + 1)
    else:
        out.int32(count)
