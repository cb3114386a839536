"""ShareFetch (78): records of a share group, acquired for the member that asks. KIP-932, KIP-1206.

Order, as in Kafka: the request's form, the share session, acknowledgements, then the records. What
is acquired is always part of what is sent, because clients acknowledge acquired offsets without a
record as gaps, which would lose them. A request that only brings acknowledgements, finding no
records, is answered at once: its caller waits for the outcome. The body is written by hand, with
each partition's records as a buffer of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from headrace.broker.errors import Code, error_code
from headrace.broker.handlers.share_acknowledge import Acked, acknowledge, malformed, release
from headrace.broker.partitions import Partition
from headrace.broker.request import Answer, Raw, Request
from headrace.broker.runtime import StorageFault
from headrace.broker.services import Services
from headrace.broker.shares import wait_key
from headrace.core.errors import Refused, Why
from headrace.core.shard_words import On
from headrace.core.share_session import FINAL, OPEN, Continue
from headrace.core.share_words import Acquire, Acquired, LogStartMoved, ShareKey
from headrace.core.types import MemberId, Span, TopicPartition, after, elapsed_ms
from headrace.log.api import OffsetOutOfRange, Slice
from headrace.wire.primitives import Buffer, Writer

_BATCH_OPTIMIZED, _RECORD_LIMIT = range(2)
_READ_BYTES_MAX = 1 << 20


@dataclass(slots=True)
class _Found:
    """What one partition answers."""

    code: Code = Code.NONE
    message: str | None = None
    acked: Acked | None = None
    records: bytes = b""
    acquired: list[Acquired] = field(default_factory=list)
    cuts: Sequence[Span] = ()


_Response = dict[TopicPartition, _Found]


async def handle(request: Request, services: Services) -> Answer:
    message = request.message()
    refused = malformed(message) or _malformed_renewal(message)
    if refused is not None:
        return _refusal(refused)
    added, forgotten, has_acks = _partitions(message)
    epoch, member = message.share_session_epoch, MemberId(message.member_id)
    if epoch == OPEN and has_acks:
        return _refusal(Refused(Why.INVALID_REQUEST, "a new session has nothing to acknowledge"))
    moved = services.shares.move(
        Continue((message.group_id, member), epoch, request.connection_id, added, forgotten)
    )
    if isinstance(moved, Refused):
        if moved.why is Why.SESSION_LIMIT:  # clients ask again without a pause of their own
            await services.waits.wait((), message.max_wait)
        return _refusal(moved)
    mode = getattr(message, "share_acquire_mode", _BATCH_OPTIMIZED)
    if mode not in (_BATCH_OPTIMIZED, _RECORD_LIMIT):  # the session has moved, as clients expect
        return _refusal(Refused(Why.INVALID_REQUEST, f"{mode} is not an acquire mode"))
    renewing = getattr(message, "is_renew_ack", False)
    response: _Response = {
        one.partition: _Found(acked=one)
        for one in await acknowledge(services, message, renewing=renewing)
    }
    if epoch == FINAL:
        await release(services, message.group_id, member)
    elif not renewing:
        wanted = message.max_records > 0 and message.max_bytes > 0
        await _poll(services, message, added, response, wait=wanted and not has_acks)
    for found in response.values():
        services.metrics.failed(request.api_key, found.code)
    return Raw(_encoded(response, services.shares.policy(message.group_id).lock_ms))


def _malformed_renewal(message: Any) -> Refused | None:
    limits = (message.max_bytes, message.min_bytes, message.max_records, message.max_wait)
    if getattr(message, "is_renew_ack", False) and any(limits):
        return Refused(Why.INVALID_REQUEST, "a renewal fetches nothing: its limits must be 0")
    return None


def _partitions(message: Any) -> tuple[list[TopicPartition], list[TopicPartition], bool]:
    added = [
        TopicPartition(topic.topic_id, part.partition_index)
        for topic in message.topics
        for part in topic.partitions
    ]
    forgotten = [
        TopicPartition(topic.topic_id, index)
        for topic in message.forgotten_topics_data
        for index in topic.partitions
    ]
    has_acks = any(
        part.acknowledgement_batches for topic in message.topics for part in topic.partitions
    )
    return added, forgotten, has_acks


async def _poll(
    services: Services,
    message: Any,
    added: Sequence[TopicPartition],
    response: _Response,
    *,
    wait: bool,
) -> None:
    """Acquire until something was found, a partition has an error, or the time is up."""
    session = services.shares.sessions.sessions.get((message.group_id, message.member_id))
    if session is None:
        return
    turn = session.next_epoch % max(len(session.partitions), 1)
    order = session.partitions[turn:] + session.partitions[:turn]
    for partition in added:  # told once even when empty, so that the client knows it is served
        response.setdefault(partition, _Found())
    deadline = after(services.clock.mono(), message.max_wait)
    keys = [*order, wait_key(message.group_id)]
    while True:
        if await _acquire_all(services, message, order, response) or not wait or not order:
            return
        left_ms = elapsed_ms(services.clock.mono(), deadline)
        if not await services.waits.wait(keys, left_ms):
            return


async def _acquire_all(
    services: Services, message: Any, order: Sequence[TopicPartition], response: _Response
) -> bool:
    """One look at every partition, in order, while the request's limits last."""
    bytes_left = min(message.max_bytes, services.config.fetch_max_bytes)
    records_left = message.max_records
    something = False
    for partition in order:
        if bytes_left <= 0 or records_left <= 0:
            break
        found = response.get(partition) or _Found()
        await _acquire(
            services, message, partition, found, min(bytes_left, _READ_BYTES_MAX), records_left
        )
        if found.acquired or found.code:
            response[partition] = found
            something = True
        bytes_left -= len(found.records)
        records_left -= sum(len(event.span) for event in found.acquired)
    return something


async def _acquire(
    services: Services,
    message: Any,
    where: TopicPartition,
    found: _Found,
    bytes_max: int,
    records_max: int,
) -> None:
    """Acquire what one partition has and read it."""
    if where.topic_id not in services.catalog.topics_by_id:
        found.code, found.message = Code.UNKNOWN_TOPIC_ID, "The topic does not exist any more."
        return
    key = ShareKey(message.group_id, where.topic_id, where.partition)
    partition = services.partitions.get(where.topic_id, where.partition)
    share = services.shares.machine(message.group_id).partitions.get(key)
    if partition is None or share is None:
        found.code = Code.UNKNOWN_TOPIC_OR_PARTITION
        found.message = "The group has no such share-partition; subscribe to its topic first."
        return
    while True:
        first = share.next_fetch_offset()
        if first >= partition.high_watermark:
            return
        try:
            await _acquire_at(
                first, services, message, key, partition, found, bytes_max, records_max
            )
        except (StorageFault, OSError) as fault:
            found.code, found.message = Code.STORAGE_ERROR, str(fault)
        # Where compaction or retention removed what was looked for, there is more behind it.
        if found.acquired or found.code or share.next_fetch_offset() <= first:
            return


async def _acquire_at(
    first: int,
    services: Services,
    message: Any,
    key: ShareKey,
    partition: Partition,
    found: _Found,
    bytes_max: int,
    records_max: int,
) -> None:
    """Acquire what one read from offset `first` finds. Raises: StorageFault; OSError."""
    shares = services.shares
    exact = getattr(message, "share_acquire_mode", _BATCH_OPTIMIZED) == _RECORD_LIMIT
    try:
        piece = partition.read(first, bytes_max)
    except OffsetOutOfRange:
        await shares.ask(key.group, On(key, LogStartMoved(partition.start_offset)))
        return
    if not piece.headers:
        return
    spans = [Span(one.base_offset, one.last_offset) for one in piece.headers if one.record_count]
    window = shares.policy(key.group).window
    command = Acquire(
        MemberId(message.member_id),
        spans,
        records_max,
        window,
        exact,
        looked_from=first,
        looked_to=piece.headers[-1].last_offset,
        isolate=True,
    )
    answer = await shares.ask(key.group, On(key, command))
    if isinstance(answer, Refused):
        found.code, found.message = error_code(answer), answer.message
        return
    found.acquired = [event for event in answer if isinstance(event, Acquired)]
    if found.acquired:
        found.records = _trimmed(piece, found.acquired[0].span.first, found.acquired[-1].span.last)
        partition.traffic.fetched_bytes += len(found.records)
        found.cuts = [] if exact else _cuts(spans, found.acquired, message.batch_size)


def _trimmed(piece: Slice, first: int, last: int) -> bytes:
    """The whole batches that hold `first` to `last`."""
    start = end = 0
    for header in piece.headers:
        if header.last_offset < first:
            start += header.size
        if header.base_offset <= last:
            end += header.size
    return piece.data if start == 0 and end == len(piece.data) else piece.data[start:end]


def _cuts(batches: Sequence[Span], acquired: Sequence[Acquired], batch_size: int) -> list[Span]:
    """The acquired ranges cut at batch ends wherever `batch_size` records are together."""
    ends = [span.last for span in batches]
    pieces: list[Span] = []
    for event in acquired:
        first, last = event.span.first, event.span.last
        for end in ends:
            if first + max(batch_size, 1) - 1 <= end < last:
                pieces.append(Span(first, end))
                first = end + 1
        pieces.append(Span(first, last))
    return pieces


def _refusal(refused: Refused) -> Raw:
    out = Writer()
    out.int32(0)
    out.int16(error_code(refused))
    out.compact_nullable_string(refused.message)
    out.int32(0)
    out.uvarint(1)
    out.uvarint(1)
    out.tags()
    return Raw([out.data])


def _encoded(response: _Response, lock_ms: int) -> list[Buffer]:
    """The body of ShareFetchResponse versions 1 and 2, which are alike."""
    by_topic: dict[UUID, list[tuple[int, _Found]]] = {}
    for where, found in response.items():
        by_topic.setdefault(where.topic_id, []).append((where.partition, found))
    buffers: list[Buffer] = []
    out = Writer()
    out.int32(0)
    out.int16(Code.NONE)
    out.compact_nullable_string(None)
    out.int32(lock_ms)
    out.uvarint(len(by_topic) + 1)
    for topic_id, partitions in by_topic.items():
        out.uuid(topic_id)
        out.uvarint(len(partitions) + 1)
        for index, found in partitions:
            _write_head(out, index, found)
            buffers += (out.data, found.records)
            out = Writer()
            _write_acquired(out, found)
        out.tags()
    out.uvarint(1)
    out.tags()
    return [*buffers, out.data]


def _write_head(out: Writer, index: int, found: _Found) -> None:
    out.int32(index)
    out.int16(found.code)
    out.compact_nullable_string(found.message)
    out.int16(found.acked.code if found.acked else Code.NONE)
    out.compact_nullable_string(found.acked.message if found.acked else None)
    out.int32(0)  # the current leader is read with codes 6 and 74 only, which one broker never has
    out.int32(0)
    out.tags()
    out.uvarint(len(found.records) + 1)


def _write_acquired(out: Writer, found: _Found) -> None:
    spans = found.cuts or [event.span for event in found.acquired]
    deliveries = iter(found.acquired)
    out.uvarint(len(spans) + 1)
    event = next(deliveries, None)
    for span in spans:
        while event is not None and event.span.last < span.first:
            event = next(deliveries, None)
        assert event is not None
        out.int64(span.first)
        out.int64(span.last)
        out.int16(event.deliveries)
        out.tags()
    out.tags()
