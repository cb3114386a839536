"""Batches of strangers: what a claim, a bomb or garbage costs, and what is refused (B1, B4)."""

import asyncio
import struct
import threading
import time
from collections.abc import Coroutine
from typing import Any
from uuid import uuid4

import cramjam
import pytest
from crc32c import crc32c

from headrace.broker.decoding_threads import DecodingThreads
from headrace.broker.dispatch import Buffers, Dispatcher, Peer, Pending
from headrace.broker.partition import Partition
from headrace.core.catalog import CreateTopic, DeleteTopic, Topic
from headrace.wire import batches, codec, compression, produced
from headrace.wire.batches import BatchHeader, Record
from headrace.wire.compression import Codec, compress

from .inside_rig import Inside, play

LOOP_SECONDS_MAX = 0.020
TRIES = 4
PEER = Peer(1, "127.0.0.1", 1)
NOW = 1_700_000_000_000
DAY_MS = 86_400_000


class Broker(Inside):
    """The inside of a broker and topics of one partition."""

    def __init__(self, **settings: str) -> None:
        super().__init__(None, **settings)
        self.dispatcher = Dispatcher(self.services)

    async def topic(self, name: str = "orders", *, count: int = 1, **settings: str) -> Partition:
        """Create a topic; return its first partition."""
        given = {key.replace("_", "."): value for key, value in settings.items()}
        made = await self.services.topics.create(CreateTopic(name, uuid4(), count, given))
        assert isinstance(made, Topic)
        partition = self.services.partition(name, 0)
        assert partition is not None
        return partition

    async def call(self, key: int, version: int, /, **fields: Any) -> tuple[Any, float]:
        """The decoded response, and the CPU that the thread of the event loop used for it."""
        body = bytes(codec.encode_request(key, version, fields))
        flexible = b"\0" if codec.is_flexible(key, version) else b""
        frame = bytearray(struct.pack(">hhih", key, version, 1, -1) + flexible + body)
        began = time.thread_time()
        response = self.dispatcher.respond(frame, PEER)
        assert not isinstance(response, Pending)
        buffers: Buffers = await response if isinstance(response, Coroutine) else response
        used = time.thread_time() - began
        answer = b"".join(buffers)[8 + len(flexible) :]
        return codec.decode_response(key, version, answer), used

    async def produce(self, *records: bytes, name: str = "orders", version: int = 9) -> Any:
        """Produce a batch to each partition from the first one on; return what is answered."""
        (answer, _) = await self.produce_timed(*records, name=name, version=version)
        return answer[0] if len(records) == 1 else answer

    async def produce_timed(
        self, *records: bytes, name: str = "orders", version: int = 9
    ) -> tuple[Any, float]:
        parts = [{"index": index, "records": batch} for index, batch in enumerate(records)]
        answer, used = await self.call(
            0, version, transactional_id=None, acks=-1, timeout=100,
            topic_data=[{"name": name, "partition_data": parts}],
        )  # fmt: skip
        return answer.responses[0].partition_responses, used


def sealed(body: bytes, count: int, kind: Codec = Codec.NONE, at: int = NOW) -> bytes:
    """A batch that claims `count` records, whatever is in it; its checksum is right."""
    batch = bytearray(
        batches.build_encoded(
            body, record_count=max(count, 1), base_timestamp=at, max_timestamp=at, attributes=kind
        )
    )
    struct.pack_into(">i", batch, 23, count - 1)
    struct.pack_into(">i", batch, 57, count)
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    return bytes(batch)


def with_headers(count: int, kind: Codec = Codec.ZSTD, at: int = NOW) -> bytes:
    """One record with so many empty headers."""
    rest = b"\0\0\0\1\1" + batches.varint(count) + b"\0\1" * count
    return sealed(compress(kind, batches.varint(len(rest)) + rest), 1, kind, at)


RECORD = b"\x0e\0\0\0\1\2v\0"
VALID = batches.build([Record(0, NOW, None, b"v")])
FUTURE = NOW + 30 * DAY_MS


def _in_two(kind: Codec) -> bytes:
    """Two records, each compressed on its own."""
    return compress(kind, RECORD) + compress(kind, b"\x0e\0\0\2\1\2v\0")


@pytest.mark.parametrize(
    ("records", "code", "told"),
    [
        (sealed(RECORD, (1 << 31) - 1), 87, "claims 2147483647 records"),
        (sealed(RECORD, 1_000_000), 87, "claims 1000000 records"),
        (sealed(RECORD * 2, 1), 87, "behind the last"),
        (sealed(RECORD * 3, 3), 87, "offset delta"),
        (sealed(b"garbage" * 20, 1, Codec.ZSTD), 87, "compressed records"),
        (sealed(b"garbage" * 20, 1, Codec.LZ4), 87, "compressed records"),
        (sealed(b"garbage" * 20, 1, Codec.GZIP), 87, "compressed records"),
        (sealed(b"garbage" * 20, 1, Codec.SNAPPY), 87, "compressed records"),
        (sealed(compress(Codec.ZSTD, RECORD) + b"more", 1, Codec.ZSTD), 87, "compressed records"),
        (sealed(_in_two(Codec.LZ4), 2, Codec.LZ4), 87, "one LZ4 frame"),
        (sealed(bytes(cramjam.lz4.compress(RECORD)), 1, Codec.LZ4), 87, "independent blocks"),
        (sealed(_in_two(Codec.GZIP), 2, Codec.GZIP), 87, "one gzip member"),
        (sealed(compress(Codec.LZ4, RECORD), (1 << 31) - 1, Codec.LZ4), 87, "claims 2147483647"),
        (sealed(compress(Codec.LZ4, RECORD), 1_000_000, Codec.LZ4), 87, "records claimed"),
        (sealed(b"", 1), 87, "records claimed"),
        (sealed(b"", 0), 87, "0 records"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_batch_claims_its_bytes_must_keep(records: bytes, code: int, told: str) -> None:
    async def scene(broker: Broker) -> None:
        partition = await broker.topic()
        answer, used = await broker.produce_timed(records)
        assert (answer[0].error_code, answer[0].base_offset) == (code, -1)
        assert told in answer[0].error_message
        assert used < LOOP_SECONDS_MAX
        assert partition.log.end_offset == 0
        assert (await broker.produce(VALID)).base_offset == 0

    play(Broker, scene)


BOMBS = {
    "headers": (with_headers(8_000_000, at=FUTURE), "headers.max"),
    "headers, gzip": (with_headers(8_000_000, Codec.GZIP, at=FUTURE), "headers.max"),
    "records": (
        sealed(compress(Codec.ZSTD, bytes(7_000_000)), 1_000_001, Codec.ZSTD),
        "records.max",
    ),
    "bytes": (sealed(compress(Codec.ZSTD, bytes(200 << 20)), 1, Codec.ZSTD), "decompressed.max"),
    "bytes, lz4": (sealed(compress(Codec.LZ4, bytes(100 << 20)), 1, Codec.LZ4), "decompressed.max"),
}


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_a_bomb_is_refused_beside_the_event_loop(name: str, policy: str) -> None:
    """B1: its few kilobytes held the loop for ten seconds."""
    records, told = BOMBS[name]

    async def scene(broker: Broker) -> None:
        partition = await broker.topic(cleanup_policy=policy)
        times = []
        for _ in range(TRIES):
            (answer,), used = await broker.produce_timed(records)
            assert (answer.error_code, told in answer.error_message) == (10, True)
            times.append(used)
        assert min(times) < LOOP_SECONDS_MAX
        assert partition.log.end_offset == 0

    play(Broker, scene)


def test_decompression_never_writes_beyond_its_buffer() -> None:
    """Whatever the frame claims; what comes behind the buffer belongs to others."""
    data = bytes(3 << 20)
    for kind in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD):
        room = bytearray(b"\x55" * (2 << 20))
        with pytest.raises(compression.OutputFull):
            compression.decompress_to(kind, compress(kind, data), memoryview(room)[: 1 << 20])
        assert room[1 << 20 :] == b"\x55" * (1 << 20)
        with compression.scratch(4 << 20) as output:
            assert compression.decompress_to(kind, compress(kind, data), output) == len(data)


def test_at_the_limits() -> None:
    limits = {
        "headrace_batch_decompressed_max_bytes": "2000",
        "headrace_batch_records_max": "50",
        "headrace_batch_headers_max": "20",
    }

    async def scene(broker: Broker) -> None:
        await broker.topic()

        async def code(*given: Record, kind: Codec = Codec.ZSTD) -> int:
            return int((await broker.produce(batches.build(given, compression=kind))).error_code)

        one = Record(0, NOW, None, b"")
        room = 2000 - 9  # its own length and that of its value take two bytes each
        assert await code(one._replace(value=bytes(room))) == 0
        assert await code(one._replace(value=bytes(room + 1))) == 10
        assert await code(one._replace(value=bytes(room + 1)), kind=Codec.NONE) == 0
        assert await code(*[one] * 50) == 0
        assert await code(*[one] * 51) == 10
        headers = (("h", None),) * 10
        assert await code(one._replace(headers=headers), one._replace(headers=headers)) == 0
        assert await code(one._replace(headers=headers), one._replace(headers=headers * 2)) == 10

    play(lambda: Broker(**limits), scene)


def test_the_highest_time_of_the_records_counts() -> None:
    """Searches by time trust the header, so a claim of another time is corrected."""

    async def scene(broker: Broker) -> None:
        partition = await broker.topic()
        claimed = bytearray(VALID)
        struct.pack_into(">q", claimed, 35, FUTURE)
        struct.pack_into(">I", claimed, 17, crc32c(memoryview(claimed)[21:]))
        assert (await broker.produce(bytes(claimed))).error_code == 0
        stored = partition.log.read(0, 1 << 20)
        assert stored.headers[0].max_timestamp == NOW
        assert [one.timestamp for one in batches.records(stored.data)] == [NOW]

    play(Broker, scene)


@pytest.mark.parametrize("kind", [Codec.NONE, Codec.ZSTD])
def test_records_that_break_a_rule_are_named(kind: Codec) -> None:
    async def scene(broker: Broker) -> None:
        await broker.topic(
            message_timestamp_before_max_ms="1000", message_timestamp_after_max_ms="1000",
            cleanup_policy="compact",
        )  # fmt: skip
        times = [NOW, NOW - 1001, NOW + 1001, -1, NOW - 1000, NOW + 1000]
        given = [Record(0, at, b"k", b"v") for at in times]
        answer = await broker.produce(batches.build(given, compression=kind))
        assert answer.error_code == 32
        assert [one.batch_index for one in answer.record_errors] == [1, 2]
        given[0] = given[0]._replace(key=None)
        answer = await broker.produce(batches.build(given, compression=kind))
        assert answer.error_code == 87
        assert [one.batch_index for one in answer.record_errors] == [0, 1, 2]

    play(Broker, scene)


# ---- beside the event loop


def _large(number: int, kind: Codec = Codec.LZ4) -> bytes:
    """More than is validated on the event loop."""
    value = b"%d" % number + bytes(4 << 20)
    return batches.build([Record(0, NOW, None, value)], compression=kind)


def _small(number: int) -> bytes:
    return batches.build([Record(0, NOW, None, b"%d" % number)])


def _order(partition: Partition) -> list[int]:
    found, offset = [], 0
    while offset < partition.log.end_offset:
        piece = partition.log.read(offset, 1 << 20)
        found += [int((one.value or b"").rstrip(b"\0")) for one in batches.records(piece.data)]
        offset = piece.headers[-1].last_offset + 1
    return found


def test_large_batches_are_validated_in_a_thread_and_appended_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    where: list[bool] = []
    order: list[int] = []
    inspect, append = produced.inspect, Partition.append

    def inspecting(*given: Any) -> Any:
        where.append(threading.current_thread() is threading.main_thread())
        return inspect(*given)

    def appending(partition: Partition, *given: Any, **settings: Any) -> int:
        if partition.topic.name == "orders":
            order.append(partition.index)
        return append(partition, *given, **settings)

    async def scene(broker: Broker) -> None:
        await broker.topic(count=6, max_message_bytes=str(8 << 20))
        monkeypatch.setattr(produced, "inspect", inspecting)
        monkeypatch.setattr(Partition, "append", appending)
        first = _small(0), _large(1), _small(2), b"x", _large(3, Codec.NONE), _small(4)
        answer = await broker.produce(*first)
        assert [part.error_code for part in answer] == [0, 0, 0, 87, 0, 0]
        assert [part.base_offset for part in answer] == [0, 0, 0, -1, 0, 0]
        assert order == [0, 1, 2, 4, 5]
        assert where == [True, False, False, False, False]

    play(Broker, scene)


def test_what_was_sent_before_hanging_up_is_appended() -> None:
    """As with acks=0 and a producer that ends: the task of its connection is cancelled."""

    async def scene(broker: Broker) -> None:
        first = await broker.topic(count=2, max_message_bytes=str(8 << 20))
        last = broker.services.partition("orders", 1)
        assert last is not None
        append, appended = last.append, asyncio.Event()

        def appending(
            data: bytearray | memoryview, headers: list[BatchHeader], *, has_room: bool = False
        ) -> int:
            base_offset = append(data, headers, has_room=has_room)
            appended.set()
            return base_offset

        last.append = appending  # type: ignore[method-assign]  # tells when it is done
        task = asyncio.ensure_future(broker.produce(_large(1), _small(2)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await appended.wait()
        assert (_order(first), _order(last)) == ([1], [2])

    play(Broker, scene)


def test_a_topic_deleted_during_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(broker: Broker) -> None:
        partition = await broker.topic(max_message_bytes=str(8 << 20))
        run = broker.services.decoding_threads.run

        async def run_and_delete(work: Any) -> Any:
            found = await run(work)
            await broker.services.topics.delete(DeleteTopic(partition.key.topic_id))
            return found

        monkeypatch.setattr(broker.services.decoding_threads, "run", run_and_delete)
        assert (await broker.produce(_large(1))).error_code == 3

    play(Broker, scene)


def test_many_connections_share_the_threads() -> None:
    """Memory for decoding is bounded by the number of threads, also for callers that go away."""
    running, most = [0], [0]
    lock = threading.Lock()

    def work() -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.002)
        with lock:
            running[0] -= 1

    async def go() -> None:
        threads = DecodingThreads(2)
        tasks = [asyncio.ensure_future(threads.run(work)) for _ in range(30)]
        await asyncio.sleep(0.003)
        for task in tasks[::2]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await threads.run(work)

    asyncio.run(go())
    assert most[0] == 2


def test_many_partitions_are_not_all_answered_on_the_loop() -> None:
    """A request of 60 kB that names 1,000 partitions; its garbage is refused in threads."""

    async def scene(broker: Broker) -> None:
        await broker.topic(count=1_000)
        records = [b"x" * 60] * 1_000
        seen = []
        run = broker.services.decoding_threads.run

        async def counted(work: Any) -> Any:
            found = await run(work)
            if isinstance(found, list):  # else the request is decoded or the response encoded
                seen.append(len(found))
            return found

        broker.services.decoding_threads.run = counted  # type: ignore[method-assign]  # counts the calls
        answer = await broker.produce(*records)
        assert {part.error_code for part in answer} == {87}
        assert len(answer) == 1_000
        assert max(seen) <= 256
        assert sum(seen) >= 1_000 - 512

    play(Broker, scene)


# ---- what releases before this one may have stored


@pytest.mark.parametrize("name", ["headers", "records", "bytes"])
def test_stored_bombs_do_not_hold_the_loop_when_times_are_looked_up(name: str) -> None:
    """B1: each ListOffsets by time decoded the batch again, on the loop."""

    async def scene(broker: Broker) -> None:
        partition = await broker.topic()
        stored = bytearray(BOMBS[name][0])
        partition.append(stored, batches.headers(stored))
        for asked in (NOW + 1, -3):
            times = []
            for _ in range(TRIES):
                answer, used = await broker.call(
                    2, 7, replica_id=-1, isolation_level=0,
                    topics=[{"name": "orders", "partitions": [
                        {"partition_index": 0, "current_leader_epoch": -1, "timestamp": asked}
                    ]}],
                )  # fmt: skip
                found = answer.topics[0].partitions[0]
                times.append(used)
            assert found.error_code in {0, 2}
            assert min(times) < LOOP_SECONDS_MAX

    play(Broker, scene)


def test_a_stored_batch_that_cannot_be_decoded_fails_its_lookup_alone() -> None:
    """Releases without validation could store one."""

    async def scene(broker: Broker) -> None:
        partition = await broker.topic()
        stored = bytearray(batches.build([batches.Record(0, 5, None, b"x" * 40)]))
        stored[61:] = b"\xff" * (len(stored) - 61)
        stored[17:21] = crc32c(bytes(stored[21:])).to_bytes(4, "big")
        partition.append(stored, batches.headers(stored))
        for timestamp, wanted in ((1, (2, -1)), (-1, (0, 1))):
            answer, _ = await broker.call(
                2, 7, replica_id=-1, isolation_level=0,
                topics=[{"name": "orders", "partitions": [
                    {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
                ]}],
            )  # fmt: skip
            found = answer.topics[0].partitions[0]
            assert (found.error_code, found.offset) == wanted

    play(Broker, scene)


# ---- compression.type


STORED = {
    "uncompressed": Codec.NONE, "gzip": Codec.GZIP, "snappy": Codec.SNAPPY, "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}  # fmt: skip


@pytest.mark.parametrize("sent", Codec)
@pytest.mark.parametrize("stored", [*STORED, "producer"])
def test_batches_are_stored_with_the_codec_of_the_topic(stored: str, sent: Codec) -> None:
    """Small ones at once, large ones in a thread; what is sent with it stays byte for byte."""
    large = b"large" * (1 << 17)

    async def scene(broker: Broker) -> None:
        partition = await broker.topic(
            compression_type=stored, compression_gzip_level="1", max_message_bytes=str(2 << 20)
        )
        for number, value in enumerate((b"small", large)):
            records = [Record(0, NOW + n, b"k", value, (("h", b"x"),)) for n in (1, 0)]
            batch = batches.build(
                records, compression=sent, producer_id=7, producer_epoch=0,
                base_sequence=2 * number,
            )  # fmt: skip
            answer = await broker.produce(batch)
            assert (answer.error_code, answer.base_offset) == (0, 2 * number)
            again = await broker.produce(batch)
            assert (again.error_code, again.base_offset) == (0, 2 * number), "a duplicate"
            found = partition.log.read(2 * number, 1)
            (header,) = found.headers
            assert header.codec == STORED.get(stored, sent)
            assert (header.producer_id, header.base_sequence) == (7, 2 * number)
            assert header.max_timestamp == NOW + 1
            assert [one._replace(offset=0) for one in batches.records(found.data)] == records
            if header.codec == sent:
                assert bytes(found.data)[batches.HEADER_BYTES :] == batch[batches.HEADER_BYTES :]

    play(Broker, scene)


def test_compression_by_the_topic_keeps_its_other_rules() -> None:
    async def scene(broker: Broker) -> None:
        partition = await broker.topic(
            compression_type="uncompressed", message_timestamp_type="LogAppendTime",
            max_message_bytes="2000",
        )  # fmt: skip
        fits = batches.build([Record(0, 5, None, bytes(1900))], compression=Codec.ZSTD)
        answer = await broker.produce(fits)
        assert (answer.error_code, answer.log_append_time) == (0, NOW)
        (record,) = batches.records(partition.log.read(0, 1).data)
        assert (record.timestamp, record.value) == (NOW, bytes(1900))
        grows = batches.build([Record(0, 5, None, bytes(2000))], compression=Codec.ZSTD)
        answer = await broker.produce(grows)
        assert (answer.error_code, answer.base_offset) == (10, -1)
        assert "compression.type=uncompressed" in answer.error_message

    play(Broker, scene)


@pytest.mark.parametrize(("size", "code"), [(1 << 24, 0), ((1 << 24) + 1, 10)])
def test_no_batch_is_larger_than_a_step_of_the_loop_allows(size: int, code: int) -> None:
    """Whatever a topic allows: also one that the topic's codec makes so large."""

    async def scene(broker: Broker) -> None:
        plain: dict[str, Any] = {"max_message_bytes": str(100 << 20)}
        await broker.topic(**plain)
        await broker.topic("expanded", compression_type="uncompressed", **plain)
        spare = len(batches.build([Record(0, NOW, None, bytes(1 << 24))])) - (1 << 24)
        value = bytes(size - spare)
        batch = batches.build([Record(0, NOW, None, value)])
        assert len(batch) == size
        answer = await broker.produce(batch)
        assert (answer.error_code, answer.base_offset) == (code, -1 if code else 0)
        assert not code or "16777216 are allowed (headrace.batch.max.bytes)" in answer.error_message
        packed = batches.build([Record(0, NOW, None, value)], compression=Codec.ZSTD)
        assert (await broker.produce(packed, name="expanded")).error_code == code

    play(Broker, scene)


def test_recompression_does_not_hold_the_loop() -> None:
    async def scene(broker: Broker) -> None:
        await broker.topic(count=200, compression_type="gzip", compression_gzip_level="9")
        value = b"".join(b"%d " % (n * n) for n in range(100_000))
        batch = batches.build([Record(0, NOW, None, value)])
        used = [(await broker.produce_timed(batch))[1] for _ in range(TRIES)]
        assert min(used) < LOOP_SECONDS_MAX
        small = batches.build([Record(0, NOW, None, value[:1000])])
        answer, _ = await broker.produce_timed(*[small] * 200)
        assert {part.error_code for part in answer} == {0}

    play(Broker, scene)
