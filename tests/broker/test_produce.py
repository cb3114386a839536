"""Produce by the rules of a topic: times, keys, sizes, codecs, idempotence, faults; and its ids.

What every version answers, and what is refused everywhere, is in `test_records.py`.
"""

import errno
import os
import threading
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from crc32c import crc32c

import headrace
from headrace.broker.handlers import produce as produce_handler
from headrace.broker.request import Request
from headrace.log import os_disk, segments
from headrace.log.os_disk import OsFile
from headrace.wire import batches, codec
from headrace.wire.batches import Record
from headrace.wire.compression import Codec
from headrace.wire.primitives import Malformed

Connect = Callable[[], Any]
HOUR_MS = 3_600_000
TOO_OLD, TOO_NEW = 1000, 1 << 50


def batch(*values: bytes, at: int = 1000, key: bytes | None = None, **fields: Any) -> bytes:
    records = [Record(0, at + n, key, value) for n, value in enumerate(values)]
    return batches.build(records, **fields)


def create(wire: Any, name: str = "orders", **configs: str) -> None:
    """A topic of one partition; settings by Kafka's names, with `_` for the dots."""
    settings = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1}
    created = wire.call(
        19, 7, topics=[topic | {"assignments": [], "configs": settings}], timeout=0,
        validate_only=False,
    )  # fmt: skip
    assert created.topics[0].error_code == 0, created.topics[0].error_message


def produce(wire: Any, records: bytes, *, version: int = 9, acks: int = -1) -> Any:
    """Produce to `orders`; the partition's part of the response."""
    topics = [{"name": "orders", "partition_data": [{"index": 0, "records": records}]}]
    answer = wire.call(0, version, transactional_id=None, acks=acks, timeout=100, topic_data=topics)
    return answer.responses[0].partition_responses[0]


def stored(wire: Any) -> bytes:
    """All batches of `orders`."""
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1_000_000}
    answer = wire.call(
        1, 12, max_wait=0, min_bytes=1, forgotten_topics_data=[],
        topics=[{"topic": "orders", "partitions": [partition]}],
    )  # fmt: skip
    return bytes(answer.responses[0].partitions[0].records)


@pytest.mark.parametrize("acks", [1, -1])
def test_the_time_of_producers_is_kept_and_not_answered(connect: Connect, acks: int) -> None:
    wire = connect()
    create(wire)
    part = produce(wire, batch(b"a", b"b"), acks=acks)
    assert (part.error_code, part.base_offset, part.log_append_time) == (0, 0, -1)
    assert part.log_start_offset == 0
    assert [record.timestamp for record in batches.records(stored(wire))] == [1000, 1001]


@pytest.mark.parametrize("compression", [Codec.NONE, Codec.LZ4])
def test_the_time_of_the_append_is_given_to_all_records(
    connect: Connect, compression: Codec
) -> None:
    wire = connect()
    create(wire, message_timestamp_type="LogAppendTime")
    before = int(time.time() * 1000) - 2  # the broker's clock may be a millisecond or two apart
    # Producers' own times are not looked at, be they ever so wrong.
    part = produce(wire, batch(b"a", b"b", at=TOO_NEW, compression=compression))
    assert part.error_code == 0
    assert before <= part.log_append_time <= int(time.time() * 1000) + 2
    (header,) = batches.headers(stored(wire))
    assert (header.timestamp_type, header.max_timestamp) == (1, part.log_append_time)
    records = list(batches.records(stored(wire)))  # which holds the checksum against the bytes
    assert {record.timestamp for record in records} == {part.log_append_time}
    assert [record.value for record in records] == [b"a", b"b"]


@pytest.mark.parametrize(
    ("configs", "times", "wrong"),
    [
        ({}, [0, TOO_NEW], [1]),
        ({}, [TOO_NEW, 0, TOO_NEW], [0, 2]),
        ({"message_timestamp_before_max_ms": str(HOUR_MS)}, [0, -2 * HOUR_MS, 0], [1]),
        ({"message_timestamp_before_max_ms": str(HOUR_MS)}, [0, -HOUR_MS // 2], []),
        ({"message_timestamp_after_max_ms": str(TOO_NEW)}, [0, HOUR_MS * 2], []),
        ({"message_timestamp_before_max_ms": str(HOUR_MS)}, [None, None], []),
    ],
)
def test_times_outside_of_what_a_topic_allows(
    connect: Connect, configs: dict[str, str], times: list[int | None], wrong: list[int]
) -> None:
    wire = connect()
    create(wire, **configs)
    now = int(time.time() * 1000)
    records = batches.build([Record(0, -1 if t is None else now + t, None, b"v") for t in times])
    part = produce(wire, records)
    assert part.error_code == (32 if wrong else 0)
    assert [error.batch_index for error in part.record_errors] == wrong
    assert bool(part.error_message) == bool(wrong)
    assert bool(stored(wire)) != bool(wrong)
    assert produce(wire, records, version=7).error_code == part.error_code


def test_a_producer_may_not_claim_the_time_of_the_append(connect: Connect) -> None:
    wire = connect()
    create(wire)
    assert produce(wire, batch(b"a", attributes=batches.LOG_APPEND_TIME)).error_code == 32


@pytest.mark.parametrize("compression", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_a_compacted_topic_needs_keys(connect: Connect, policy: str, compression: Codec) -> None:
    wire = connect()
    create(wire, cleanup_policy=policy)
    keys = [b"k", None, b"k", None]
    records = batches.build([Record(0, 1000, key, b"v") for key in keys], compression=compression)
    part = produce(wire, records)
    assert (part.error_code, part.base_offset, part.log_start_offset) == (87, -1, -1)
    assert [error.batch_index for error in part.record_errors] == [1, 3]
    assert produce(wire, records, version=7).error_code == 87
    assert produce(wire, batch(b"a", key=b"k", compression=compression)).base_offset == 0
    damaged = bytearray(batch(b"a" * 50, key=b"k"))
    damaged[61] ^= 0xFF  # the first record's length
    damaged[17:21] = crc32c(damaged[21:]).to_bytes(4, "big")
    assert produce(wire, bytes(damaged)).error_code == 87


def test_a_batch_larger_than_the_topic_allows(connect: Connect) -> None:
    wire = connect()
    records = batch(b"x" * 500)
    create(wire, max_message_bytes=str(len(records)))
    assert produce(wire, batch(b"x" * 501)).error_code == 10
    assert produce(wire, records).error_code == 0


@pytest.mark.parametrize("compression", list(Codec))
def test_batches_of_every_codec_are_stored_as_sent(connect: Connect, compression: Codec) -> None:
    wire = connect()
    create(wire)
    sent = batch(b"a" * 100, b"b" * 100, compression=compression)
    assert produce(wire, sent).error_code == 0
    assert stored(wire)[17:] == sent[17:]


def test_codecs_that_are_refused(connect: Connect) -> None:
    wire = connect()
    create(wire)
    zstd = batch(b"a", compression=Codec.ZSTD)
    assert [produce(wire, zstd, version=version).error_code for version in (3, 6, 7)] == [76, 76, 0]
    unknown = batch(b"a", attributes=5)
    assert produce(wire, unknown).error_code == 76


def test_idempotent_producers(connect: Connect) -> None:
    wire = connect()
    create(wire)

    def send(sequence: int, count: int = 1, epoch: int = 0, producer: int = 9) -> tuple[int, int]:
        part = produce(
            wire,
            batch(
                *[b"v"] * count,
                producer_id=producer, producer_epoch=epoch, base_sequence=sequence,
            ),
        )  # fmt: skip
        return part.error_code, part.base_offset

    top = 2**31 - 3
    assert send(top, 3) == (0, 0), "an unknown producer may begin anywhere"
    assert send(0) == (0, 3), "sequences wrap at 2**31"
    assert send(top, 3) == (0, 0), "a batch up to the wrap is known again"
    assert send(0, 2) == (45, -1), "the same first sequence with another length is none"
    assert [send(sequence) for sequence in range(1, 6)] == [(0, 4 + n) for n in range(5)]
    assert send(0) == (45, -1), "more than five batches ago"
    assert send(1) == (0, 4), "the fifth"
    assert send(7) == (45, -1), "a gap"
    assert send(3, epoch=1) == (45, -1), "a new epoch begins at 0"
    assert send(0, epoch=1) == (0, 9)
    assert send(6) == (47, -1), "the old epoch is fenced"
    assert send(0, producer=10) == (0, 10), "another producer is on its own"


@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_a_repeated_batch_is_answered_with_the_time_of_the_first(
    connect: Connect, kind: str
) -> None:
    wire = connect()
    create(wire, message_timestamp_type=kind)
    records = batch(b"a", b"b", producer_id=9, producer_epoch=0, base_sequence=0)
    first, again = produce(wire, records), produce(wire, records)
    assert (again.error_code, again.base_offset, again.log_start_offset) == (0, 0, 0)
    assert again.log_append_time == (1001 if kind == "CreateTime" else first.log_append_time)
    assert len(batches.headers(stored(wire))) == 1


def test_an_append_that_the_disk_refuses_is_told_and_the_next_one_works(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: OsFile, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    wire = connect()
    create(wire)
    with monkeypatch.context() as patched:
        patched.setattr(OsFile, "append", fails)
        part = produce(wire, batch(b"a"))
    assert (part.error_code, part.base_offset) == (56, -1)
    assert "No space left" in part.error_message
    assert produce(wire, batch(b"b")).base_offset == 0


def test_with_fsync_an_answer_waits_for_the_disk_and_then_records_are_seen(
    connecting: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    sync = OsFile.sync

    def counted(self: OsFile) -> None:
        sync(self)
        synced.append(1)

    with (
        headrace.Broker(settings={"headrace.durability": "fsync"}) as broker,
        connecting(broker) as connect,
    ):
        wire = connect()
        create(wire)
        monkeypatch.setattr(OsFile, "sync", counted)
        assert produce(wire, batch(b"a")).base_offset == 0
        assert synced
        assert [record.value for record in batches.records(stored(wire))] == [b"a"]


def test_two_partitions_of_one_request_fail_apart(connect: Connect) -> None:
    wire = connect()
    create(wire)
    create(wire, "other")
    topics = [
        {"name": "other", "partition_data": [{"index": 7, "records": batch(b"a")}]},
        {"name": "orders", "partition_data": [{"index": 0, "records": batch(b"a")}]},
    ]
    answer = wire.call(0, 9, transactional_id=None, acks=1, timeout=100, topic_data=topics)
    codes = [(topic.name, topic.partition_responses[0].error_code) for topic in answer.responses]
    assert codes == [("other", 3), ("orders", 0)]


@pytest.mark.parametrize("version", range(6))
def test_producer_ids(connect: Connect, version: int) -> None:
    wire = connect()

    def ask(transactional_id: str | None = None, timeout: int = 1000, **fields: int) -> Any:
        return wire.call(
            22, version, transactional_id=transactional_id, transaction_timeout=timeout, **fields
        )

    first, second = ask(), ask()
    assert (first.error_code, first.producer_epoch) == (0, 0)
    assert second.producer_id > first.producer_id >= 0
    refused = [ask(""), ask("t", 0), ask("t", 900_001), ask("t", 1000)]
    assert [one.error_code for one in refused] == [42, 50, 50, 53]
    assert {one.producer_id for one in refused} == {-1}
    if version >= 3:
        renewed = ask(producer_id=first.producer_id, producer_epoch=4)
        assert (renewed.error_code, renewed.producer_epoch) == (0, 0)
        assert ask(producer_id=first.producer_id, producer_epoch=-1).error_code == 42
        assert ask(producer_id=-1, producer_epoch=4).error_code == 42


def test_a_producer_that_wants_transactions_is_told_so(connect: Connect) -> None:
    wire = connect()
    create(wire)
    part = produce(wire, batch(b"a", attributes=batches.TRANSACTIONAL))
    assert part.error_code == 87
    assert "unset transactional.id" in part.error_message


def test_a_full_segment_is_synced_beside_the_loop(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire = connect()
    create(wire, segment_bytes="1024")
    # With a producer id a snapshot is synced, too.
    ids: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0}
    assert produce(wire, batch(bytes(900), base_sequence=0, **ids)).error_code == 0
    threads: list[str] = []

    def syncing(self: OsFile, synced: Any = OsFile.sync) -> None:
        threads.append(threading.current_thread().name)
        synced(self)

    def syncing_folder(folder: Any, synced: Any = os_disk._sync_folder) -> None:
        threads.append(threading.current_thread().name)
        synced(folder)

    monkeypatch.setattr(OsFile, "sync", syncing)
    monkeypatch.setattr(os_disk, "_sync_folder", syncing_folder)
    for number in range(1, 6):
        part = produce(wire, batch(bytes(900), base_sequence=number, **ids))
        assert (part.error_code, part.base_offset) == (0, number)
    assert len(threads) >= 10
    assert "headrace-broker" not in threads  # the event loop
    monkeypatch.undo()
    assert produce(wire, batch(bytes(900), base_sequence=5, **ids)).base_offset == 5  # again
    assert stored(wire)


@pytest.mark.parametrize(
    "config", [{"message_timestamp_type": "LogAppendTime"}, {"compression_type": "lz4"}]
)
def test_a_batch_that_begins_a_segment_is_validated_once(
    connect: Connect, config: dict[str, str]
) -> None:
    """Validation writes the time of the append, which a second one would refuse."""
    wire = connect()
    create(wire, segment_bytes="1024", **config)
    for number in range(5):
        part = produce(wire, batch(os.urandom(900)))
        assert (part.error_code, part.base_offset) == (0, number)


def test_a_segment_that_cannot_be_sealed_is_answered(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire = connect()
    create(wire, segment_bytes="1024")
    assert produce(wire, batch(bytes(900))).error_code == 0

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(segments, "begun", full)
    assert produce(wire, batch(bytes(900))).error_code == 56
    monkeypatch.undo()
    part = produce(wire, batch(bytes(900)))
    assert (part.error_code, part.base_offset) == (0, 1)


@pytest.mark.parametrize("version", [3, 7, 8, 9, 12, 13])
def test_a_request_for_one_partition_is_decoded_as_any_other(version: int) -> None:
    name = {"topic_id": UUID(int=7)} if version >= 13 else {"name": "orders"}
    part = {"index": 1, "records": batch(b"v" * 200)}
    body = codec.encode_request(
        0, version,
        {"transactional_id": None, "acks": 1, "timeout": 9,
         "topic_data": [{**name, "partition_data": [part]}]},
    )  # fmt: skip

    def decoded(data: bytes, decode: Callable[[Request], Any]) -> Any:
        try:
            return decode(Request(0, version, 1, None, "host", 1, memoryview(data)))
        except Malformed:
            return None

    assert decoded(bytes(body), produce_handler._decoded_alone)
    for end in range(0, len(body) + 1, 3):
        for at in range(min(end, 40)):
            data = bytearray(body[:end])
            data[at] ^= 0x81
            alone = decoded(bytes(data), produce_handler._decoded_alone)
            assert alone is None or alone == decoded(bytes(data), produce_handler._decoded_many)
