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
from headrace.log.api import OffsetOutOfRange
from headrace.log.producers import Duplicate, Fenced, OutOfOrder, TooMany
from headrace.wire.batches import BatchHeader
from headrace.wire.primitives import Malformed, Reader, Writer, uuid_of

KEY = 0
# Of records that a thread looks at before others have their turn; a refusal counts as so many.
_PORTION_BYTES = 4 << 20
_REFUSED_BYTES = 1 << 20
_PORTION_PARTS = 100
_PARTS_INLINE = 200  # partitions of a request that is decoded on the event loop
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
# A request for one partition: null, acks, timeout, one topic, its name; one partition, its records.
_ALONE_HEAD = struct.Struct(">hhiih")
_ALONE_PART = struct.Struct(">iii")
_ALONE_BYTES_MIN = _ALONE_HEAD.size + _ALONE_PART.size
# The same with compact lengths, which are one more than the number.
_ALONE_FLEXIBLE_HEAD = struct.Struct(">bhibb")
_ALONE_FLEXIBLE_PART = struct.Struct(">bi")
_ALONE_FLEXIBLE_BYTES_MIN = _ALONE_FLEXIBLE_HEAD.size + _ALONE_FLEXIBLE_PART.size
_ID_BYTES = 16
_NO_THROTTLING, _NO_THROTTLING_FLEXIBLE = bytes(4), bytes(5)
_NO_ERRORS = b"\x01\x00\x00"  # no record errors, no message, no tagged fields


@dataclass(slots=True)
class _Part:
    """One partition of a request, and what became of it."""

    topic: str | UUID
    index: int
    records: memoryview | None
    is_repeated: bool = False  # the request has several batches for the partition
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
    try:
        acks, topics = _decoded_alone(request) or _decoded(request, _PARTS_INLINE)
    except _ManyPartsError:
        return _in_portions(request, services)
    work = _Produce(services, acks, topics, request.version)
    bytes_left = services.validator.inline_bytes_max
    for parts in topics:
        for part in parts:
            inspected = work.append_inline(part, bytes_left)
            if inspected is None:
                return _finish_in_threads(work)
            bytes_left -= inspected
    return work.answer()


async def _in_portions(request: Request, services: Services) -> Answer:
    """Answer a request with many partitions: decoded in a thread, appended in portions."""
    budgets = services.budgets
    async with budgets.one_large():
        acks, topics = await budgets.in_thread(partial(_decoded_many, request))
    work = _Produce(services, acks, topics, request.version)
    await asyncio.shield(in_background(work.append_in_threads()))
    async with budgets.one_large():
        answer = await budgets.in_thread(work.answer)
    return await answer if isinstance(answer, Coroutine) else answer


async def _finish_in_threads(work: "_Produce") -> Answer:
    """Append the partitions that are not done yet, in their order, and answer.

    What a producer sent before it hung up is appended all the same.
    """
    await asyncio.shield(in_background(work.append_in_threads()))
    answer = work.answer()
    return await answer if isinstance(answer, Coroutine) else answer


class _Produce:
    """One request: its partitions validated, appended, answered."""

    __slots__ = (
        "_acks", "_doubt_ms", "_now", "_services", "_topics", "_unsynced", "_validator", "_version",
    )  # fmt: skip

    def __init__(
        self, services: Services, acks: int, topics: list[list[_Part]], version: int
    ) -> None:
        self._services, self._validator = services, services.validator
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
            there are more than `bytes_max`, a log has to be opened, or a new segment to begin.
        """
        inspected = _PART_BYTES
        try:
            partition = self._partition(part)
            if not partition.is_open:
                return None
            terms = self._terms(partition)
            validated = self._validator.validate_inline(part.records, terms, bytes_max)
            if validated is None:
                return None
            records, header, bytes_seen = validated
            inspected += bytes_seen
            if partition.must_roll(header):
                part.validated = validated
                return None
            part.records = records
            self._append(partition, part, header)
        except Faulty as fault:
            self._fail(part, fault)
        except OSError as error:
            self._fail(part, Faulty(Code.STORAGE_ERROR, str(error)))
        part.is_done = True
        return inspected

    async def append_in_threads(self) -> None:
        """Validate and append batches, a portion at a time: others have their turn."""
        parts = (part for parts in self._topics for part in parts if not part.is_done)
        portions = self._services.budgets.portions(parts)
        left = deque([part async for part in portions if await self._is_resolved(part)])
        while left:
            some = islice(left, _PORTION_PARTS)
            jobs = [(part, terms) for part in some if (terms := part.terms) is not None]
            work = partial(_validate_some, self._validator, jobs)
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
                except OSError as error:
                    self._fail(part, Faulty(Code.STORAGE_ERROR, str(error)))

    async def _roll_ready(self, part: _Part, header: BatchHeader) -> None:
        """Wait until the batch has room: a full segment is synced in a thread.

        Raises: Faulty; OSError.
        """
        while (partition := self._partition(part)).must_roll(header):
            await partition.roll_ready()

    def answer(self) -> Answer | Coroutine[Any, Any, Answer]:
        """Make the answer, once everything is appended. Raises: HangUp."""
        if self._acks == 0:
            _require_success(self._topics)
            return None
        if self._unsynced:
            return _when_durable(self._topics, self._unsynced, self._version)
        return Raw([_encoded(self._topics, self._version)])

    def _terms(self, partition: Partition) -> Terms:
        return self._validator.terms(partition.settings, self._now, self._version, self._doubt_ms)

    async def _is_resolved(self, part: _Part) -> bool:
        try:
            partition = self._partition(part)
            if not partition.is_open:
                await partition.open_ready()
            part.terms = self._terms(partition)
        except Faulty as fault:
            self._fail(part, fault)
            return False
        return True

    def _partition(self, part: _Part) -> Partition:
        """Return the partition that a batch goes to. Raises: Faulty."""
        if self._acks not in _ACKS:
            raise Faulty(Code.INVALID_REQUIRED_ACKS, f"acks {self._acks}; -1, 0 and 1 are possible")
        if part.is_repeated:
            message = f"several batches for partition {part.index} of {part.topic} in one request"
            raise Faulty(Code.INVALID_REQUEST, message)
        topics = self._services.topics
        catalog = topics.catalog
        if isinstance(part.topic, UUID):
            topic = catalog.topics_by_id.get(part.topic)
            if topic is None:
                raise Faulty(Code.UNKNOWN_TOPIC_ID, f"no topic has the id {part.topic}")
        else:
            topic = catalog.topics.get(part.topic)
        partition = None if topic is None else topics.partitions.get(topic.id, part.index)
        if partition is None:
            message = f"partition {part.index} of {part.topic} does not exist"
            raise Faulty(Code.UNKNOWN_TOPIC_OR_PARTITION, message)
        if partition.is_internal:
            raise Faulty(Code.INVALID_TOPIC, f"{partition.topic.name} is internal")
        return partition

    def _append(self, partition: Partition, part: _Part, header: BatchHeader) -> None:
        """Append a valid batch for which there is room, unless the log has it already.

        Raises: Faulty; OSError.
        """
        assert part.records is not None
        if header.producer_id < 0 or not _is_duplicate(partition, part, header):
            part.base_offset = partition.append(part.records, [header], has_room=True)
            part.append_time = header.max_timestamp if header.timestamp_type else -1
            part.start_offset = partition.log.start_offset
        if partition.may_have_to_wait():
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


def _is_duplicate(partition: Partition, part: _Part, header: BatchHeader) -> bool:
    """Whether an idempotent producer's batch was written before; then it is answered as then.

    Raises: Faulty; OSError.
    """
    outcome = partition.log.producers.check(header)
    if outcome is None:  # nearly always
        return False
    match outcome:
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
        case TooMany(message):  # which no client repeats; a retriable code it would, for minutes
            raise Faulty(Code.POLICY_VIOLATION, message)


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


def _decoded_alone(request: Request) -> tuple[int, list[list[_Part]]] | None:
    """Decode a request for one partition without a transactional id, as nearly all are.

    In two steps: field by field it is a tenth of what a small request costs.

    Returns:
        None for any other request, well-formed or not.

    Raises:
        Malformed: as `_decoded` would find.
    """
    if request.version < _FLEXIBLE_SINCE:
        return _decoded_plain(request.body)
    return _decoded_compact(request.body, has_id=request.version >= _IDS_SINCE)


def _decoded_plain(body: memoryview) -> tuple[int, list[list[_Part]]] | None:
    if len(body) < _ALONE_BYTES_MIN:
        return None
    null, acks, _, topics, size = _ALONE_HEAD.unpack_from(body)
    start = _ALONE_HEAD.size + size
    if null != -1 or topics != 1 or size < 0 or len(body) < start + _ALONE_PART.size:
        return None
    partitions, index, records = _ALONE_PART.unpack_from(body, start)
    start += _ALONE_PART.size
    if partitions != 1 or records < 0 or start + records > len(body):
        return None
    try:
        topic = str(body[_ALONE_HEAD.size : _ALONE_HEAD.size + size], "utf-8")
    except UnicodeDecodeError:
        return None
    return acks, [[_Part(topic, index, body[start : start + records])]]


def _decoded_compact(body: memoryview, *, has_id: bool) -> tuple[int, list[list[_Part]]] | None:
    if len(body) < _ALONE_FLEXIBLE_BYTES_MIN:
        return None
    null, acks, _, topics, size = _ALONE_FLEXIBLE_HEAD.unpack_from(body)
    begin = _ALONE_FLEXIBLE_HEAD.size
    if has_id:
        begin, size = begin - 1, _ID_BYTES + 1
    end = begin + size - 1
    if null != 0 or topics != 2 or size < 1 or end + _ALONE_FLEXIBLE_PART.size > len(body):
        return None
    partitions, index = _ALONE_FLEXIBLE_PART.unpack_from(body, end)
    source = Reader(body, end + _ALONE_FLEXIBLE_PART.size)
    records = source.uvarint() - 1
    start = source.position
    # Behind the records: no tagged fields of the partition, of the topic, of the request.
    if partitions != 2 or records < 0 or bytes(body[start + records :]) != bytes(3):
        return None
    name = bytes(body[begin:end])
    try:
        topic = uuid_of(name) if has_id else str(name, "utf-8")
    except UnicodeDecodeError:
        return None
    return acks, [[_Part(topic, index, body[start : start + records])]]


class _ManyPartsError(Exception):
    """A request has more partitions than are to be decoded."""


def _decoded_many(request: Request) -> tuple[int, list[list[_Part]]]:
    """As `_decoded`, for a request with many partitions. Raises: Malformed."""
    try:
        return _decoded(request, _PARTS_MAX)
    except _ManyPartsError:
        raise Malformed(f"more than {_PARTS_MAX} partitions in one request") from None


def _decoded(request: Request, parts_max: int) -> tuple[int, list[list[_Part]]]:
    """Acks and the partitions by topic, each once. Raises: Malformed; _ManyPartsError."""
    source, flexible = Reader(request.body), request.version >= _FLEXIBLE_SINCE
    if flexible:
        source.compact_nullable_string()
    else:
        source.nullable_string()
    acks, _ = source.unpack(_ACKS_TIMEOUT)
    topics: dict[str | UUID, dict[int, _Part]] = {}
    parts_left = parts_max
    for _ in range(_count(source, flexible)):
        parts_left -= _decode_topic(source, request.version, parts_left, topics) or 1
        if flexible:
            source.tags()
    if flexible:
        source.tags()
    return acks, [list(parts.values()) for parts in topics.values()]


def _decode_topic(
    source: Reader, version: int, parts_max: int, topics: dict[str | UUID, dict[int, _Part]]
) -> int:
    """Add the partitions of a topic to `topics`; return their number, repeated ones included.

    A partition that is repeated is marked, and refused: another batch of it would be lost if the
    last one counted, as in Kafka.
    """
    flexible = version >= _FLEXIBLE_SINCE
    topic: UUID | str
    if version >= _IDS_SINCE:
        topic = source.uuid()
    elif flexible:
        topic = source.compact_nullable_string() or ""
    else:
        topic = source.nullable_string() or ""
    count = _count(source, flexible)
    if count > parts_max or parts_max <= 0:
        raise _ManyPartsError
    parts = topics.setdefault(topic, {})
    for _ in range(count):
        if flexible:
            index, size = source.int32(), source.uvarint() - 1
        else:
            index, size = source.unpack(_INDEX_SIZE)
        part = _Part(topic, index, None if size < 0 else source.take(size))
        part.is_repeated = index in parts
        parts[index] = part
        if flexible:
            source.tags()
    return count


def _count(source: Reader, flexible: bool) -> int:
    count = source.count(flexible=flexible)
    if count < 0:
        raise Malformed("null where an array must stand")
    return count


def _encoded(topics: list[list[_Part]], version: int) -> bytearray:
    out, flexible = Writer(), version >= _FLEXIBLE_SINCE
    write_count = out.uvarint if flexible else out.int32
    null = 1 if flexible else 0  # compact counts begin with null
    # An empty topic would have nothing to name it by; it is left out, as it asks for nothing.
    named = [parts for parts in topics if parts]
    write_count(len(named) + null)
    for parts in named:
        topic = parts[0].topic
        if isinstance(topic, UUID):
            out.data += topic.bytes
        else:
            out.string(topic, flexible=flexible)
        write_count(len(parts) + null)
        for part in parts:
            _write_part(out, part, version)
        if flexible:
            out.data.append(0)
    out.data += _NO_THROTTLING_FLEXIBLE if flexible else _NO_THROTTLING
    return out.data


def _write_part(out: Writer, part: _Part, version: int) -> None:
    flexible = version >= _FLEXIBLE_SINCE
    if version >= _START_OFFSET_SINCE:
        out.data += _PART_HEAD_WITH_START.pack(
            part.index, part.code, part.base_offset, part.append_time, part.start_offset
        )
    else:
        out.data += _PART_HEAD.pack(part.index, part.code, part.base_offset, part.append_time)
    if flexible and part.message is None:
        out.data += _NO_ERRORS
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
