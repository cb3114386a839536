"""Fetch requests and responses, read and written by hand: with every poll of a consumer both pass.

Versions 4 to 18. Source: FetchRequest.json, FetchResponse.json.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from uuid import UUID

from headrace.broker.errors import Code
from headrace.core.fetch_session import FINAL, NO_SESSION, Asked, Key
from headrace.wire.primitives import Buffer, Malformed, Reader, Writer

SESSIONS_SINCE = 7
IDS_SINCE = 13
_START_OFFSET_SINCE = 5
_LEADER_EPOCH_SINCE = 9
_PREFERRED_REPLICA_SINCE = 11
_FLEXIBLE_SINCE = 12
_REPLICA_TAGGED_SINCE = 15
_READ_COMMITTED = 1

_TOP = struct.Struct(">ihi")


@dataclass(slots=True)
class FetchRequest:
    """What a request asks; `asked` only what changed when it goes on with a session."""

    version: int
    wait_ms_max: int
    bytes_min: int
    bytes_max: int
    committed: bool
    session_id: int
    epoch: int
    asked: list[Asked]
    forgotten: list[Key]

    @property
    def by_ids(self) -> bool:
        return self.version >= IDS_SINCE


@dataclass(slots=True)
class Found:
    """What one partition answers; offsets are -1 with an error."""

    asked: Asked
    code: Code = Code.NONE
    high_watermark: int = -1
    start_offset: int = -1
    records: Buffer = b""
    name: str | None = None
    # Kafka answers null where it looked for aborted transactions of nobody: with uncommitted reads,
    # and out of range.
    has_aborted: bool = True


@cache
def _limits_form(version: int) -> struct.Struct:
    """The longest wait, the least and the most bytes, isolation, and the session and its epoch."""
    replica = "4x" if version < _REPLICA_TAGGED_SINCE else ""
    return struct.Struct(f">{replica}iiib" + ("ii" if version >= SESSIONS_SINCE else ""))


@cache
def _asked_form(version: int) -> struct.Struct:
    """Partition, leader epoch, offset, last fetched epoch, log start, and the most bytes."""
    form = ">i"
    form += "i" if version >= _LEADER_EPOCH_SINCE else ""
    form += "q"
    form += "i" if version >= _FLEXIBLE_SINCE else ""
    form += "q" if version >= _START_OFFSET_SINCE else ""
    return struct.Struct(form + "i")


def decoded(body: Buffer, version: int) -> FetchRequest:
    """Raises: Malformed."""
    source, flexible = Reader(body), version >= _FLEXIBLE_SINCE
    limits = source.unpack(_limits_form(version))
    session_id, epoch = NO_SESSION, FINAL
    if version >= SESSIONS_SINCE:
        wait_ms_max, bytes_min, bytes_max, isolation, session_id, epoch = limits
    else:
        wait_ms_max, bytes_min, bytes_max, isolation = limits
    asked: list[Asked] = []
    for _ in range(_count(source, flexible)):
        _read_topic(source, version, asked)
    forgotten: list[Key] = []
    if version >= SESSIONS_SINCE:
        for _ in range(_count(source, flexible)):
            _read_forgotten(source, version, forgotten)
    if version >= _PREFERRED_REPLICA_SINCE:
        source.string(flexible=flexible)
    if flexible:
        source.tags()
    return FetchRequest(
        version, wait_ms_max, bytes_min, bytes_max, isolation == _READ_COMMITTED,
        session_id, epoch, asked, forgotten,
    )  # fmt: skip


def _topic(source: Reader, version: int) -> UUID | str:
    if version >= IDS_SINCE:
        return source.uuid()
    return source.string(flexible=version >= _FLEXIBLE_SINCE) or ""


def _count(source: Reader, flexible: bool) -> int:
    count = source.count(flexible=flexible)
    if count < 0:
        raise Malformed("null where an array must stand")
    return count


def _read_topic(source: Reader, version: int, asked: list[Asked]) -> None:
    topic, flexible = _topic(source, version), version >= _FLEXIBLE_SINCE
    form = _asked_form(version)
    for _ in range(_count(source, flexible)):
        leader_epoch = last_epoch = -1
        if flexible:
            partition, leader_epoch, offset, last_epoch, _, bytes_max = source.unpack(form)
            source.tags()
        elif version >= _LEADER_EPOCH_SINCE:
            partition, leader_epoch, offset, _, bytes_max = source.unpack(form)
        else:
            partition, offset, *_, bytes_max = source.unpack(form)
        asked.append(Asked(topic, partition, leader_epoch, offset, last_epoch, bytes_max))
    if flexible:
        source.tags()


def _read_forgotten(source: Reader, version: int, forgotten: list[Key]) -> None:
    topic, flexible = _topic(source, version), version >= _FLEXIBLE_SINCE
    forgotten += [(topic, source.int32()) for _ in range(_count(source, flexible))]
    if flexible:
        source.tags()


@cache
def _found_form(version: int) -> struct.Struct:
    """Partition, code, high watermark, last stable offset, and the log's start.

    Before flexible versions also the number of aborted transactions, the replica to read from, and
    the size of the records.
    """
    form = ">ihqqq" if version >= _START_OFFSET_SINCE else ">ihqq"
    if version < _FLEXIBLE_SINCE:
        form += "iii" if version >= _PREFERRED_REPLICA_SINCE else "ii"
    return struct.Struct(form)


def encoded(
    request: FetchRequest, found: Sequence[Found], session_id: int, code: Code = Code.NONE
) -> list[Buffer]:
    """The body; each partition's records are a buffer of their own, where there are any."""
    version, flexible = request.version, request.version >= _FLEXIBLE_SINCE
    buffers: list[Buffer] = []
    out = Writer()
    if version >= SESSIONS_SINCE:
        out.raw(_TOP.pack(0, code, session_id))
    else:
        out.int32(0)
    topics = _by_topic(found)
    out.count(len(topics), flexible=flexible)
    for partitions in topics:
        _write_topic(out, partitions[0].asked.topic, flexible)
        out.count(len(partitions), flexible=flexible)
        for one in partitions:
            _write_head(out, one, request)
            if one.records:
                buffers += (out.data, one.records)
                out = Writer()
            if flexible:
                out.tags()
        if flexible:
            out.tags()
    if flexible:
        out.tags()
    return [*buffers, out.data]


def _by_topic(found: Sequence[Found]) -> list[list[Found]]:
    """Neighbours of one topic together; the order is that in which the client is to read them."""
    topics: list[list[Found]] = []
    for one in found:
        if topics and topics[-1][0].asked.topic == one.asked.topic:
            topics[-1].append(one)
        else:
            topics.append([one])
    return topics


def _write_topic(out: Writer, topic: UUID | str, flexible: bool) -> None:
    if isinstance(topic, UUID):
        out.uuid(topic)
    else:
        out.string(topic, flexible=flexible)


def _write_head(out: Writer, found: Found, request: FetchRequest) -> None:
    """What stands before the records of a partition, their size included."""
    version, size = request.version, len(found.records)
    form, partition, end = _found_form(version), found.asked.partition, found.high_watermark
    # No transaction was ever aborted here; clients that read committed want an empty list.
    aborted = 0 if found.has_aborted else -1
    if version >= _FLEXIBLE_SINCE:
        out.raw(form.pack(partition, found.code, end, end, found.start_offset))
        out.count(aborted, flexible=True)
        out.int32(-1)
        out.count(size, flexible=True)
    elif version >= _PREFERRED_REPLICA_SINCE:
        start = found.start_offset
        out.raw(form.pack(partition, found.code, end, end, start, aborted, -1, size))
    elif version >= _START_OFFSET_SINCE:
        out.raw(form.pack(partition, found.code, end, end, found.start_offset, aborted, size))
    else:
        out.raw(form.pack(partition, found.code, end, end, aborted, size))
