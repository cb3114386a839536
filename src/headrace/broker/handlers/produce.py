"""Produce (0): one record batch a partition, validated whole by `LogValidator`, appended as sent.

Request and response are read and written by hand, so that records are not copied: the batch is
given its offset where it was received and goes to the file from there. A request waits for nothing
unless appends have to reach the disk, its batches are too large to validate on the event loop, or a
segment is full; then batches are validated, and segments synced, in a thread, and batches appended
in the order of the request.
Source: ProduceRequest.json, ProduceResponse.json; KIP-98 for idempotent producers, KIP-467.
"""

import asyncio
import struct
from collections import deque
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any
from uuid import UUID

from headrace.broker.background import in_background
from headrace.broker.errors import Code, Faulty
from headrace.broker.log_validator import (
    LogValidator,
    RecordError,
    RecordsRefused,
    Terms,
    Validated,
)
from headrace.broker.partitions import Partition
from headrace.broker.request import Answer, Answering, HangUp, Raw, Request
from headrace.broker.services import Services
from headrace.broker.settings import LONG_MAX
from headrace.log.api import OffsetOutOfRange
from headrace.log.producers import Duplicate, Fenced, OutOfOrder
from headrace.wire.batches import BatchHeader
from headrace.wire.primitives import Malformed, Reader, Writer

KEY = 0
# Of records that a thread looks at before others have their turn; a refusal counts as so many.
_PORTION_BYTES = 4 << 20
_REFUSED_BYTES = 1 << 20
_PORTION_PARTS = 256
_PART_BYTES = 4096  # what a partition costs beside its records: validating so many takes as long
_PARTS_MAX = 10_000  # partitions in a request
# librdkafka takes a broker for too old unless versions from 0 are advertised; they are not served.
_START_OFFSET_SINCE = 5
_MESSAGES_SINCE = 8
_FLEXIBLE_SINCE = 9
_IDS_SINCE = 13
_ACKS = (-1, 0, 1)
_ACKS_TIMEOUT = struct.Struct(">hi")
_INDEX_SIZE = struct.Struct(">ii")
_PART_HEAD = struct.Struct(">ihqq")
_PART_HEAD_WITH_START = struct.Struct(">ihqqq")
_NO_ERRORS = b"\x01\x00\x00"  # no record errors, no message, no tagged fields


@dataclass(slots=True)
class _Part:
    """One partition of a request, and what became of it."""

    topic: str | UUID
    index: int
    records: memoryview | None
    is_done: bool = False
    terms: Terms | None = None
    validated: Validated | None = None  # once only: it may have been changed by that
    code: Code = Code.NONE
    message: str | None = None
    errors: Sequence[RecordError] = ()
    base_offset: int = -1
    append_time: int = -1
    start_offset: int = -1


def handle(request: Request, services: Services) -> Answering:
    acks, topics = _decoded(request)
    work = _Produce(services, acks, topics, request.version)
    bytes_left = services.validator.inline_bytes_max
    for parts in topics:
        for part in parts:
            inspected = work.append_inline(part, bytes_left)
            if inspected is None:
                return _finish_in_threads(work)
            bytes_left -= inspected
    return work.answer()


async def _finish_in_threads(work: "_Produce") -> Answer:
    """Append the partitions that are not done yet, in their order, and answer.

    What a producer sent before it hung up is appended all the same.
    """
    await asyncio.shield(in_background(work.append_in_threads()))
    answer = work.answer()
    return await answer if isinstance(answer, Coroutine) else answer


class _Produce:
    """One request: its partitions validated, appended, answered."""

    __slots__ = ("_acks", "_doubt_ms", "_now", "_services", "_topics", "_unsynced", "_version")

    def __init__(
        self, services: Services, acks: int, topics: list[list[_Part]], version: int
    ) -> None:
        self._services = services
        self._acks = acks
        self._topics = topics
        self._version = version
        self._now = services.clock.wall()
        self._doubt_ms = services.clock.doubt_ms
        self._unsynced: list[tuple[_Part, Partition, int]] = []

    def append_inline(self, part: _Part, bytes_max: int) -> int | None:
        """Validate and append one partition's batch at once.

        Returns:
            The cost in bytes of records that were looked at; None, and nothing is appended, when
            there are more than `bytes_max`, or a new segment has to begin.
        """
        inspected = _PART_BYTES
        try:
            partition = self._partition(part)
            validated = self._services.validator.validate_inline(
                part.records, self._terms(partition), bytes_max
            )
            if validated is None:
                return None
            records, header, bytes_seen = validated
            inspected += bytes_seen
            if _must_roll(partition, header):
                part.validated = validated
                return None
            part.records = records
            self._append(partition, part, header)
        except Faulty as fault:
            self._fail(part, fault)
        part.is_done = True
        return inspected

    async def append_in_threads(self) -> None:
        """Validate and append batches, a portion at a time: others have their turn."""
        parts = (part for parts in self._topics for part in parts if not part.is_done)
        left = deque(part for part in parts if self._is_resolved(part))
        while left:
            some = islice(left, _PORTION_PARTS)
            jobs = [(part, terms) for part in some if (terms := part.terms) is not None]
            work = partial(_validate_some, self._services.validator, jobs)
            for outcome in await self._services.decoding_threads.run(work):
                part = left.popleft()
                try:
                    if isinstance(outcome, Faulty):
                        raise outcome
                    part.records, header, _ = outcome
                    await self._roll_ready(part, header)
                    # The topic may be another by now, or none.
                    self._append(self._partition(part), part, header)
                except Faulty as fault:
                    self._fail(part, fault)

    async def _roll_ready(self, part: _Part, header: BatchHeader) -> None:
        """Wait until the batch has room: a full segment is synced in a thread. Raises: Faulty."""
        while _must_roll(partition := self._partition(part), header):
            try:
                await partition.roll_ready()
            except OSError as error:
                raise Faulty(Code.STORAGE_ERROR, str(error)) from error

    def answer(self) -> Answer | Coroutine[Any, Any, Answer]:
        """Make the answer, once everything is appended. Raises: HangUp."""
        if self._acks == 0:
            _require_success(self._topics)
            return None
        if self._unsynced:
            return _when_durable(self._topics, self._unsynced, self._version)
        return Raw([_encoded(self._topics, self._version)])

    def _terms(self, partition: Partition) -> Terms:
        validator = self._services.validator
        return validator.terms(partition.settings, self._now, self._version, self._doubt_ms)

    def _is_resolved(self, part: _Part) -> bool:
        try:
            part.terms = self._terms(self._partition(part))
        except Faulty as fault:
            self._fail(part, fault)
            return False
        return True

    def _partition(self, part: _Part) -> Partition:
        if self._acks not in _ACKS:
            raise Faulty(Code.INVALID_REQUIRED_ACKS, f"acks {self._acks}; -1, 0 and 1 are possible")
        return _partition(part, self._services)

    def _append(self, partition: Partition, part: _Part, header: BatchHeader) -> None:
        _append(partition, part, header)
        if _may_have_to_wait(partition):
            self._unsynced.append((part, partition, partition.cuts))

    def _fail(self, part: _Part, fault: Faulty) -> None:
        _fail(part, fault)
        self._services.metrics.failed(KEY, fault.code)


def _validate_some(
    validator: LogValidator, jobs: Sequence[tuple[_Part, Terms]]
) -> list[Validated | Faulty]:
    """Validate the first of `jobs`, until much was looked at; runs in a thread."""
    outcomes: list[Validated | Faulty] = []
    inspected = 0
    with validator.buffer() as output:
        for part, terms in jobs:
            if part.validated is not None:
                outcomes.append(part.validated)
                continue
            try:
                validated = validator.validate_whole(part.records, terms, output)
            except Faulty as fault:
                # Tracebacks would keep the memory of the buffer until the fault is answered.
                fault.__cause__ = fault.__context__ = None
                outcomes.append(fault.with_traceback(None))
                inspected += _REFUSED_BYTES
            else:
                outcomes.append(validated)
                inspected += validated[2]
            if inspected >= _PORTION_BYTES:
                break
    return outcomes


def _may_have_to_wait(partition: Partition) -> bool:
    """Whether what was appended is perhaps less durable than configured."""
    flushes = partition.settings.flush_messages < LONG_MAX
    return flushes or partition.high_watermark < partition.log.end_offset


async def _when_durable(
    topics: list[list[_Part]], unsynced: list[tuple[_Part, Partition, int]], version: int
) -> Answer:
    outcomes = await asyncio.gather(
        *(partition.durable(cuts=cuts) for _, partition, cuts in unsynced), return_exceptions=True
    )
    for (part, _, _), outcome in zip(unsynced, outcomes, strict=True):
        if isinstance(outcome, OSError):
            _fail(part, Faulty(Code.STORAGE_ERROR, str(outcome)))
        elif outcome is not None:
            raise outcome
    return Raw([_encoded(topics, version)])


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


def _append(partition: Partition, part: _Part, header: BatchHeader) -> None:
    """Append a valid batch, unless the log has it already. Raises: Faulty."""
    assert part.records is not None
    try:
        if _is_duplicate(partition, part, header):
            return
        part.base_offset = partition.append(part.records, [header])
    except OSError as error:
        raise Faulty(Code.STORAGE_ERROR, str(error)) from error
    part.append_time = header.max_timestamp if header.timestamp_type else -1
    part.start_offset = partition.start_offset


def _must_roll(partition: Partition, header: BatchHeader) -> bool:
    """Raises: Faulty."""
    try:
        return partition.must_roll(header)
    except OSError as error:
        raise Faulty(Code.STORAGE_ERROR, str(error)) from error


def _is_duplicate(partition: Partition, part: _Part, header: BatchHeader) -> bool:
    """Whether an idempotent producer's batch was written before; then it is answered as then.

    Raises: Faulty; OSError.
    """
    if header.producer_id < 0:
        return False
    match partition.log.producers.check(header):
        case Duplicate(base_offset):
            partition.require_whole()  # what a failed sync left may be about to be cut off
            part.base_offset = base_offset
            part.append_time = _time_of(partition, base_offset)
            part.start_offset = partition.start_offset
            return True
        case OutOfOrder(message):
            raise Faulty(Code.OUT_OF_ORDER_SEQUENCE, message)
        case Fenced(message):
            raise Faulty(Code.INVALID_PRODUCER_EPOCH, message)
        case None:
            return False


def _time_of(partition: Partition, base_offset: int) -> int:
    """The time of a batch that was written before; -1 when it is kept no more. Raises: OSError."""
    try:
        stored = partition.log.read(base_offset, 1).headers
    except OffsetOutOfRange:
        return -1
    return stored[0].max_timestamp if stored else -1


def _fail(part: _Part, fault: Faulty) -> None:
    part.code, part.message = fault.code, str(fault)
    part.base_offset = part.append_time = part.start_offset = -1
    if isinstance(fault, RecordsRefused):
        part.errors = fault.errors


def _require_success(topics: list[list[_Part]]) -> None:
    """Without acks there is no answer, so that a failure can be told only by hanging up."""
    for part in (part for parts in topics for part in parts):
        if part.code:
            raise HangUp(f"acks 0, and partition {part.index} of {part.topic}: {part.message}")


def _decoded(request: Request) -> tuple[int, list[list[_Part]]]:
    """Acks and the partitions by topic. Raises: Malformed."""
    source, flexible = Reader(request.body), request.version >= _FLEXIBLE_SINCE
    source.string(flexible=flexible)
    acks, _ = source.unpack(_ACKS_TIMEOUT)
    topics = []
    parts_left = _PARTS_MAX
    for _ in range(_count(source, flexible)):
        topics.append(_decoded_topic(source, request.version, parts_left))
        parts_left -= max(1, len(topics[-1]))
        if flexible:
            source.tags()
    if flexible:
        source.tags()
    return acks, topics


def _decoded_topic(source: Reader, version: int, parts_max: int) -> list[_Part]:
    flexible = version >= _FLEXIBLE_SINCE
    topic = source.uuid() if version >= _IDS_SINCE else source.string(flexible=flexible) or ""
    parts = []
    count = _count(source, flexible)
    if count > parts_max or parts_max <= 0:
        raise Malformed(f"more than {_PARTS_MAX} partitions in one request")
    for _ in range(count):
        if flexible:
            index, size = source.int32(), source.uvarint() - 1
        else:
            index, size = source.unpack(_INDEX_SIZE)
        parts.append(_Part(topic, index, None if size < 0 else source.take(size)))
        if flexible:
            source.tags()
    return parts


def _count(source: Reader, flexible: bool) -> int:
    count = source.count(flexible=flexible)
    if count < 0:
        raise Malformed("null where an array must stand")
    return count


def _encoded(topics: list[list[_Part]], version: int) -> bytearray:
    out, flexible = Writer(), version >= _FLEXIBLE_SINCE
    # An empty topic would have nothing to name it by; it is left out, as it asks for nothing.
    named = [parts for parts in topics if parts]
    out.count(len(named), flexible=flexible)
    for parts in named:
        topic = parts[0].topic
        if isinstance(topic, UUID):
            out.uuid(topic)
        else:
            out.string(topic, flexible=flexible)
        out.count(len(parts), flexible=flexible)
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
    head = part.index, part.code, part.base_offset, part.append_time
    if version >= _START_OFFSET_SINCE:
        out.data += _PART_HEAD_WITH_START.pack(*head, part.start_offset)
    else:
        out.data += _PART_HEAD.pack(*head)
    if flexible and part.message is None:
        out.raw(_NO_ERRORS)
        return
    if version >= _MESSAGES_SINCE:
        out.count(len(part.errors), flexible=flexible)
        for error in part.errors:
            out.int32(error.batch_index)
            out.string(error.message, flexible=flexible)
            if flexible:
                out.tags()
        out.string(part.message, flexible=flexible)
    if flexible:
        out.tags()
