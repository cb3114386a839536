"""Fetch (1): records from logs, as stored.

Sessions are not kept: a request that wants to open one is answered with session 0, after which
clients go on sending complete requests (KIP-227). A poll that finds fewer than `min_bytes` waits
until something is appended. Records reach the socket as they were read, without a copy.
Source: FetchRequest.json, FetchResponse.json; KIP-74 for the limits.
"""

import logging
from dataclasses import dataclass
from typing import Any

from headrace.broker.errors import Code
from headrace.broker.metrics import Metrics, Traffic
from headrace.broker.partitions import LEADER_EPOCH, Partition
from headrace.broker.request import Answer, Api, Raw, Request
from headrace.broker.services import Services
from headrace.core.types import MonoMs, after, elapsed_ms
from headrace.log.api import OffsetOutOfRange
from headrace.wire.primitives import Buffer, Writer

log = logging.getLogger("headrace.broker")
APIS = (Api(1, "Fetch", range(4, 19)),)
_IDS_SINCE = 13
_FLEXIBLE_SINCE = 12
_READ_COMMITTED = 1


@dataclass(frozen=True, slots=True)
class _Found:
    """What one partition answers."""

    index: int
    code: Code
    high_watermark: int = -1
    start_offset: int = -1
    records: bytes = b""
    traffic: Traffic | None = None


_Topics = list[tuple[Any, list[_Found]]]


async def handle(request: Request, services: Services) -> Answer:
    message = request.message()
    committed = message.isolation_level == _READ_COMMITTED
    if getattr(message, "session_epoch", -1) > 0:
        code = Code.FETCH_SESSION_ID_NOT_FOUND
        return Raw(_encoded([], request.version, code, committed=committed))
    topics = await _poll(message, request.version, services)
    _count_answers(topics, request.api_key, services.metrics)
    return Raw(_encoded(topics, request.version, Code.NONE, committed=committed))


async def _poll(message: Any, version: int, services: Services) -> _Topics:
    """Read until enough is there or the time is up."""
    clock = services.clock
    deadline: MonoMs = after(clock.mono(), max(0, message.max_wait))
    while True:
        topics, keys = _read(message, version, services)
        found = [one for _, partitions in topics for one in partitions]
        enough = sum(len(one.records) for one in found) >= message.min_bytes
        if enough or any(one.code for one in found):
            return topics
        left_ms = elapsed_ms(clock.mono(), deadline)
        if not await services.waits.wait(keys, left_ms):
            return topics


def _read(message: Any, version: int, services: Services) -> tuple[_Topics, list[Any]]:
    """What every partition has now, and the keys that tell when it has more."""
    left = min(message.max_bytes, services.config.fetch_max_bytes)
    first = True
    topics: _Topics = []
    keys: list[Any] = []
    for topic in message.topics:
        partitions = []
        topic_id, code = _resolve(topic, version, services)
        for asked in topic.partitions:
            partition = (
                None if topic_id is None else services.partitions.get(topic_id, asked.partition)
            )
            if partition is None:
                partitions.append(_Found(asked.partition, code))
                continue
            keys.append(partition.key)
            one = _read_partition(partition, asked, left, first)
            if one.records:
                left, first = left - len(one.records), False
            partitions.append(one)
        topics.append((topic.topic_id if version >= _IDS_SINCE else topic.topic, partitions))
    return topics, keys


def _resolve(topic: Any, version: int, services: Services) -> tuple[Any, Code]:
    """The id of a topic, and the code for a partition of it that is not there."""
    if version < _IDS_SINCE:
        found = services.catalog.topics.get(topic.topic)
        return (found and found.id), Code.UNKNOWN_TOPIC_OR_PARTITION
    if topic.topic_id in services.catalog.topics_by_id:
        return topic.topic_id, Code.UNKNOWN_TOPIC_OR_PARTITION
    return None, Code.UNKNOWN_TOPIC_ID


def _read_partition(partition: Partition, asked: Any, left: int, first: bool) -> _Found:
    """Records for one partition: at most `left` bytes, but a whole batch if it is the first."""
    if getattr(asked, "current_leader_epoch", -1) > LEADER_EPOCH:
        return _Found(asked.partition, Code.UNKNOWN_LEADER_EPOCH)
    records = b""
    try:
        limit = min(asked.partition_max_bytes, left)
        if not partition.start_offset <= asked.fetch_offset <= partition.high_watermark:
            raise OffsetOutOfRange(
                asked.fetch_offset, partition.start_offset, partition.high_watermark
            )
        if getattr(asked, "last_fetched_epoch", -1) > LEADER_EPOCH:
            return _Found(asked.partition, Code.OFFSET_OUT_OF_RANGE)
        if first or limit > 0:
            records = partition.read(asked.fetch_offset, max(limit, 0)).data
            if len(records) > left and not first:
                records = b""
    except OffsetOutOfRange:
        return _Found(asked.partition, Code.OFFSET_OUT_OF_RANGE)
    except OSError as error:
        log.error(
            "read of %s-%d failed: %s", partition.topic.name, partition.index, error,
            extra=partition.fields,
        )  # fmt: skip
        return _Found(asked.partition, Code.STORAGE_ERROR)
    return _Found(
        asked.partition, Code.NONE, partition.high_watermark, partition.start_offset, records,
        partition.traffic,
    )  # fmt: skip


def _count_answers(topics: _Topics, api_key: int, metrics: Metrics) -> None:
    for _, partitions in topics:
        for one in partitions:
            metrics.failed(api_key, one.code)
            if one.traffic is not None:
                one.traffic.fetched_bytes += len(one.records)


def _encoded(topics: _Topics, version: int, code: Code, *, committed: bool) -> list[Buffer]:
    """The body; each partition's records are a buffer of their own."""
    flexible = version >= _FLEXIBLE_SINCE
    buffers: list[Buffer] = []
    out = Writer()
    out.int32(0)
    if version >= 7:
        out.int16(code)
        out.int32(0)
    _count(out, len(topics), flexible)
    for topic, partitions in topics:
        if version >= _IDS_SINCE:
            out.raw(bytes(16) if topic is None else topic.bytes)
        elif flexible:
            out.compact_string(topic)
        else:
            out.nullable_string(topic)
        _count(out, len(partitions), flexible)
        for found in partitions:
            _head(out, found, version, committed=committed)
            if flexible:
                out.uvarint(len(found.records) + 1)
            else:
                out.int32(len(found.records))
            buffers += (out.data, found.records)
            out = Writer()
            if flexible:
                out.tags()
        if flexible:
            out.tags()
    if flexible:
        out.tags()
    return [*buffers, out.data]


def _head(out: Writer, found: _Found, version: int, *, committed: bool) -> None:
    """What stands before the records of a partition."""
    out.int32(found.index)
    out.int16(found.code)
    out.int64(found.high_watermark)
    out.int64(found.high_watermark)
    if version >= 5:
        out.int64(found.start_offset)
    # No transaction was ever aborted here; clients that read committed want an empty list.
    _count(out, 0 if committed else -1, version >= _FLEXIBLE_SINCE)
    if version >= 11:
        out.int32(-1)


def _count(out: Writer, count: int, flexible: bool) -> None:
    if flexible:
        out.uvarint(count + 1)
    else:
        out.int32(count)
