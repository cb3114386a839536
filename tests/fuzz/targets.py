"""What is fuzzed: everything that reads bytes which a stranger, or a broken disk, may have written.

A target takes any bytes and must end with a value or with the errors it documents; whatever else it
raises is a fault. `SEEDS` are well-formed inputs of each target, from which mutations start.
"""

import asyncio
import contextlib
import struct
from collections.abc import Callable, Coroutine
from functools import cache
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from crc32c import crc32c

from headrace.broker.apis import SERVED as APIS
from headrace.broker.apis import SERVED_FOR_SHARE_GROUPS
from headrace.broker.config import Config
from headrace.broker.dispatch import Dispatcher, Peer, Pending
from headrace.broker.errors import Faulty
from headrace.broker.log_validator import LogValidator, Terms
from headrace.broker.request import HangUp
from headrace.broker.services import Services
from headrace.broker.topic_settings import TopicSettings
from headrace.core.catalog import CreateTopic
from headrace.core.shard import ShareShard
from headrace.core.shard_words import AlterShareOffsets
from headrace.core.types import WallMs
from headrace.log.api import CorruptLog
from headrace.log.group_records import GroupJournal
from headrace.log.memory_disk import MemoryDisk, VirtualClock
from headrace.log.metadata_records import MetadataRecords
from headrace.log.record_codec import ShareJournal
from headrace.log.segments import SegmentedLog
from headrace.wire import (
    batches,
    codec,
    columns,
    compression,
    lease_sessions,
    offset_expiry,
    produced,
    share_archived,
    share_records,
)
from headrace.wire.batches import CorruptBatch, Record
from headrace.wire.compression import Codec
from headrace.wire.excerpts import excerpt
from headrace.wire.frames import STAGING_BYTES, Frames
from headrace.wire.primitives import Malformed, Writer
from headrace.wire.share_archived import ArchivedApi
from headrace.wire.structs import Struct

FRAME_BYTES_MAX = 1 << 16
OUTPUT_BYTES_MAX = 1 << 20
_WAIT_SECONDS_MAX = 0.5
_TOPIC = UUID(int=1)
_HEADER = struct.Struct(">qiibIhiqqqhii")
_SETTINGS = TopicSettings.resolve(
    Config.parse({}), {"message.timestamp.after.max.ms": str(1 << 62)}
)
_VALIDATOR = LogValidator(
    Config.parse({"headrace.batch.decompressed.max.bytes": str(OUTPUT_BYTES_MAX)})
)
SERVED = [
    (api.key, version) for api in (*APIS, *SERVED_FOR_SHARE_GROUPS) for version in api.versions
]  # fmt: skip


def frames(data: bytes) -> None:
    """A stream of bytes cut into frames, received in pieces of varying size."""
    source = Frames(FRAME_BYTES_MAX, bytearray(STAGING_BYTES))
    position, step = 0, 1
    with contextlib.suppress(Malformed):
        while position < len(data):
            room = source.buffer()
            piece = data[position : position + min(step, len(room))]
            room[: len(piece)] = piece
            found = source.received(len(piece))
            assert all(len(frame) <= FRAME_BYTES_MAX for frame in found)
            position, step = position + len(piece), step % 977 * 3 + 1


def requests(data: bytes) -> None:
    """One frame answered by the whole broker; hanging up is its way to refuse."""
    broker, peer = _broker(), Peer(1, "127.0.0.1", 1)

    async def respond() -> None:
        with contextlib.suppress(HangUp, TimeoutError):
            async with asyncio.timeout(_WAIT_SECONDS_MAX):
                response = broker.dispatcher.respond(bytearray(data), peer)
                if isinstance(response, Pending):
                    ready = asyncio.Event()
                    response.later.when_ready(ready.set)
                    await ready.wait()
                    broker.dispatcher.finish(response)
                elif isinstance(response, Coroutine):
                    await response

    broker.loop.run_until_complete(respond())


def record_batches(data: bytes) -> None:
    """What a producer sent, checked as Produce does; read as far as it is accepted."""
    with contextlib.suppress(Malformed, produced.InvalidRecord):
        produced.check(memoryview(data))
        list(batches.records(data))


def records(data: bytes) -> None:
    """Records behind a checksum that is right, as only a hostile producer makes them."""
    if len(data) < 2:
        return
    batch = _sealed(data)
    with contextlib.suppress(Malformed):
        list(batches.records(batch))
    with contextlib.suppress(Malformed):
        columns.decode(bytes(batch), first=0, last=1 << 40, headers=True)


def validated(data: bytes) -> None:
    """Records behind a checksum that is right, as Produce validates them; what is accepted is read.

    The kernel and plain Python accept the same.
    """
    if len(data) < 3:
        return
    kind, body = data[0] % 5, data[2:]
    stored = body if data[0] & 0x80 else compression.compress(kind, body)
    batch = _sealed(bytes([kind, data[1]]) + stored)
    (header,) = batches.headers(batch)
    refusal, found = None, None
    terms = Terms(_SETTINGS, WallMs(0), 9)
    try:
        with _VALIDATOR.buffer() as output:
            _, found, _ = _VALIDATOR.validate_whole(memoryview(batch), terms, output)
    except Faulty as fault:
        refusal = fault
    if not data[0] & 0x80 and header.record_count > 0 and not (refusal and refusal.code == 32):
        rules = (-(1 << 63), (1 << 63) - 1, False, 1 << 20)
        try:
            latest, _ = produced._inspect(body, header, rules)
        except produced.InvalidRecord:
            assert found is None
        else:
            assert found is not None, refusal
            assert found.max_timestamp == latest
    if found is not None:
        records = list(batches.records(batch))
        assert len(records) == header.record_count
        assert max(one.timestamp for one in records) == found.max_timestamp
        columns.decode(bytes(batch), first=0, last=1 << 40, headers=True)


def excerpts(data: bytes) -> None:
    """Some records of a batch as a share consumer reads them, behind a checksum that is right."""
    if len(data) < 3:
        return
    batch = _sealed(data[1:])
    first = data[0]
    with contextlib.suppress(CorruptBatch):
        (header,) = batches.headers(batch)
        for record in excerpt(batch, 0, header, first=first, last=first + 1):
            assert first <= record.offset <= first + 1


def compressed(data: bytes) -> None:
    """A payload of any codec; a bomb ends at the limit."""
    if data:
        with contextlib.suppress(Malformed):
            found = compression.decompress(data[0] % 6, data[1:], limit=OUTPUT_BYTES_MAX)
            assert len(found) <= OUTPUT_BYTES_MAX


def journals(data: bytes) -> None:
    """A record of a journal: key and value, split where the first byte says."""
    if not data:
        return
    key, value = data[1 : 1 + data[0]], data[1 + data[0] :]
    shard = ShareShard(_broker().services.shares)
    for journal in (ShareJournal(shard), GroupJournal(), MetadataRecords(1)):
        with contextlib.suppress(Malformed):
            journal.events(key or None, value or None)


def segments(data: bytes) -> None:
    """A log whose last segment holds these bytes: opened, it is sound, or refuses."""
    disk = MemoryDisk()
    disk.open("t-0/00000000000000000000.log").append(data)
    with contextlib.suppress(CorruptLog):
        log = SegmentedLog(disk, "t-0")
        offset = log.start_offset
        while offset < log.end_offset:
            found = log.read(offset, 1 << 20)
            assert found.headers
            assert found.headers[-1].last_offset >= offset
            offset = found.headers[-1].last_offset + 1
        log.close()


class _Broker(NamedTuple):
    loop: asyncio.AbstractEventLoop
    services: Services
    dispatcher: Dispatcher


@cache
def _broker() -> _Broker:
    """A broker without a socket, with one topic; its polls never wait."""
    loop = asyncio.new_event_loop()
    services = Services(Config.parse({}), MemoryDisk(), VirtualClock(), lambda: _TOPIC)
    services.host, services.port = "127.0.0.1", 9092

    async def start() -> None:
        services.topics.load()
        await services.start()
        await services.topics.create(CreateTopic("t", _TOPIC, 2, {}))
        await services.shares.ask("g", AlterShareOffsets("g", (("t", 0, 0),)))
        partition = services.partition("t", 0)
        assert partition is not None
        for _ in range(5):
            partition.append_records([Record(0, 5, b"k", b"v")] * 20)

    loop.run_until_complete(start())
    services.waits.close()
    return _Broker(loop, services, Dispatcher(services))


def _sealed(data: bytes) -> bytearray:
    """A batch of any records; the first two bytes are its attributes and how many it claims."""
    body, count = data[2:], data[1]
    batch = bytearray(batches.HEADER_BYTES) + body
    attributes = data[0] & 0x1F
    _HEADER.pack_into(
        batch, 0, 0, len(batch) - 12, 0, 2, 0, attributes, count - 1, 5, 9, -1, -1, -1, count
    )
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    return batch


def _frame(key: int, version: int, body: bytes) -> bytes:
    head = struct.pack(">hhih", key, version, 7, -1)
    flexible = not codec.knows(key, version) or codec.is_flexible(key, version)
    return head + (b"\0" if flexible else b"") + body


def _batch(kind: int = Codec.NONE) -> bytes:
    given = [Record(0, 5, b"k", b"v", (("h", b"x"),)), Record(0, 6, None, None)]
    return batches.build(given, compression=kind)


def _heartbeat(version: int) -> bytes:
    """A join of a group of the new protocol, by names and by a regular expression."""
    fields = {
        "group_id": "g", "member_id": "m", "member_epoch": 0, "instance_id": "i", "rack_id": None,
        "rebalance_timeout": 1, "subscribed_topic_names": ("t",), "subscribed_topic_regex": "t.*",
        "server_assignor": "range", "topic_partitions": (),
    }  # fmt: skip
    return _frame(68, version, bytes(codec.encode_request(68, version, fields)))


def _sharing(version: int) -> list[bytes]:
    """A member that begins to fetch, goes on, and acknowledges in every way, with a reason."""
    acks = [
        {"first_offset": 0, "last_offset": 0, "acknowledge_types": (1,)},
        {"first_offset": 1, "last_offset": 3, "acknowledge_types": (2, 3, 0), "reason": "no JSON"},
    ]
    parts = [{"partition_index": 0, "acknowledgement_batches": acks}]
    renews = {"is_renew_ack": False} if version > 1 else {}
    mode = {"share_acquire_mode": 1} if version > 1 else {}
    who = {"group_id": "g", "member_id": "m"} | renews
    asked = {
        "max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 20, "max_records": 6, "batch_size": 2,
        "forgotten_topics_data": [{"topic_id": _TOPIC, "partitions": (1,)}],
    } | mode  # fmt: skip
    new = [
        {"topic_id": _TOPIC, "partitions": [{"partition_index": 0, "acknowledgement_batches": []}]}
    ]
    old = [{"topic_id": _TOPIC, "partitions": parts}]
    bodies = [
        (78, who | asked | {"share_session_epoch": 0, "topics": new}),
        (79, who | {"share_session_epoch": 1, "topics": old}),
        (78, who | asked | {"share_session_epoch": 2, "topics": old}),
        (79, who | {"share_session_epoch": -1, "topics": old}),
    ]
    return [
        _frame(key, version, bytes(codec.encode_request(key, version, fields)))
        for key, fields in bodies
    ]


def _looks() -> list[bytes]:
    """What our own requests about groups are: records, what was archived, sessions, expiry."""
    cursor = share_records.TopicCursor("t", (share_records.PartitionCursor(0, 0),))
    topics = (cursor, share_records.TopicCursor("t"))
    place = share_archived.Place("t", 0, 1)
    given: list[tuple[int, Struct]] = [
        (share_records.KEY, share_records.DescribeShareRecordsRequest("g", topics)),
        (ArchivedApi.LIST, share_archived.ListArchivedRequest("g", ("t",), place)),
        (ArchivedApi.CLEAR, share_archived.ClearArchivedRequest("g", (place,))),
        (lease_sessions.KEY, lease_sessions.ListLeaseSessionsRequest("g", "g", "s")),
        (offset_expiry.KEY, offset_expiry.DescribeOffsetExpiryRequest("g", "t", 0)),
    ]
    found = []
    for key, message in given:
        out = Writer()
        message.write(out)
        found.append(_frame(key, 0, bytes(out.data)))
    return found


def _journaled() -> list[bytes]:
    """Every kind of record of groups of the new protocol."""
    golden = Path(__file__).parent.parent / "golden" / "consumer_groups.log"
    found = batches.records(golden.read_bytes())
    return [bytes([len(one.key or b"")]) + (one.key or b"") + (one.value or b"") for one in found]


TARGETS: dict[str, Callable[[bytes], None]] = {
    "frames": frames,
    "requests": requests,
    "record_batches": record_batches,
    "records": records,
    "validated": validated,
    "excerpts": excerpts,
    "compressed": compressed,
    "journals": journals,
    "segments": segments,
}
SEEDS: dict[str, list[bytes]] = {
    "frames": [struct.pack(">i", 10) + bytes(10), struct.pack(">i", 40_000) + bytes(40_000)],
    "requests": [
        *(_frame(key, version, bytes(40)) for key, version in SERVED),
        *map(_heartbeat, range(2)),
        *(frame for version in (1, 2) for frame in _sharing(version)),
        *_looks(),
    ],
    "record_batches": [_batch(kind) for kind in Codec],
    "records": [bytes([kind, 2]) + _batch(kind)[batches.HEADER_BYTES :] for kind in Codec],
    "validated": [bytes([kind, 2]) + _batch()[batches.HEADER_BYTES :] for kind in (*Codec, 0x80)],
    "excerpts": [bytes([1, kind, 2]) + _batch(kind)[batches.HEADER_BYTES :] for kind in Codec],
    "compressed": [bytes([kind]) + compression.compress(kind, bytes(1000)) for kind in Codec],
    "journals": [
        b"\x04\0\0\0\0" + bytes(40),
        b"\0" + bytes([1, 2, 0, 1]) + bytes(30),
        *_journaled(),
    ],
    "segments": [_batch() + _batch(Codec.ZSTD)],
}
