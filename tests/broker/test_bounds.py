"""Bounds with a setting or a name: what a client gets at each of them."""

import asyncio
import socket
import struct
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from tests.broker.loop_rig import Client, LoopRig

from headrace.broker.handlers import configs, describe_producers
from headrace.core.catalog import CreateTopic
from headrace.log.memory_disk import MemoryDisk
from headrace.wire import batches, codec
from headrace.wire.batches import Record

from .test_loop_time import created

Connect = Callable[[], Any]
BROKER_SETTINGS = {
    "headrace.max.groups": 2,
    "headrace.max.waiting.partitions": 1000,
    "headrace.queued.max.response.bytes": -1,
    "headrace.unread.response.timeout.ms": 200,
}
NOT_ANSWERED = 600_000  # longer than any connection of a test waits, in ms
WAIT_SECONDS = 30
DELETE = 1  # a config operation
INVALID_CONFIG, INVALID_REQUEST, INCONSISTENT_GROUP_PROTOCOL = 40, 42, 23


def fetch(partitions: int, *, wait_ms: int, epoch: int = -1, offset: int = 0) -> dict[str, Any]:
    """The fields of a Fetch, without a session unless `epoch` is 0."""
    asked = [
        {"partition": n, "current_leader_epoch": -1, "fetch_offset": offset,
         "log_start_offset": -1, "partition_max_bytes": 1 << 30}
        for n in range(partitions)
    ]  # fmt: skip
    return {
        "replica_id": -1, "max_wait": wait_ms, "min_bytes": 1, "max_bytes": 1 << 30,
        "isolation_level": 0, "session_id": 0, "session_epoch": epoch, "rack_id": "",
        "forgotten_topics_data": [], "topics": [{"topic": "orders", "partitions": asked}],
    }  # fmt: skip


def test_a_reader_does_not_wait_behind_damage_in_a_sealed_segment() -> None:
    disk = MemoryDisk()
    rig = LoopRig(disk)
    try:
        rig.run(_produced_and_rolled(rig))
    finally:
        rig.close()
    path = f"orders-0/{0:020d}.log"
    data = bytearray(disk.read(path))
    first, second = batches.headers(data)[:2]
    data[first.size + second.size - 1] ^= 1
    disk.write(path, bytes(data))
    rig = LoopRig(disk)
    try:
        assert rig.run(_error_codes(rig, (1, 3))) == [56, 0]
    finally:
        rig.close()


async def _produced_and_rolled(rig: LoopRig) -> None:
    client = Client(rig.server)
    topics = [created("orders", num_partitions=1)]
    await client.call(19, 7, topics=topics, timeout=0, validate_only=False)
    partition = rig.services.partition("orders", 0)
    assert partition is not None
    for n in range(4):
        if n == 3:
            partition.log.roll()
        partition.append_records([Record(0, 1_700_000_000_000, None, bytes(10_000))])
    await client.hang_up()


async def _error_codes(rig: LoopRig, offsets: Iterable[int]) -> list[int]:
    """Fetch from each offset, as a reader that waits for more at the end of the log."""
    client = Client(rig.server)
    found = []
    for offset in offsets:
        answer = await client.call(1, 11, **fetch(1, wait_ms=NOT_ANSWERED, offset=offset))
        found.append(int(answer.responses[0].partitions[0].error_code))
    await client.hang_up()
    return found


def produce(wire: Any, size: int, **producer: int) -> None:
    record = batches.build([Record(0, int(time.time() * 1000), None, bytes(size))], **producer)
    data = [{"name": "orders", "partition_data": [{"index": 0, "records": record}]}]
    answer = wire.call(0, 8, transactional_id=None, acks=1, timeout=1000, topic_data=data)
    assert answer.responses[0].partition_responses[0].error_code == 0


def test_a_fetch_that_would_watch_too_many_partitions_is_answered_at_once() -> None:
    rig = LoopRig(headrace_max_waiting_partitions="1000")

    async def scene() -> None:
        topics, waits = rig.services.topics, rig.services.waits
        await topics.create(CreateTopic("orders", topics.new_id(), 1000, {}))
        first, second = Client(rig.server), Client(rig.server)
        waiting = asyncio.create_task(first.call(1, 11, **fetch(1000, wait_ms=NOT_ANSWERED)))
        while not waits.is_full:  # noqa: ASYNC110  # there is nothing to wait for
            await asyncio.sleep(0)
        answer = await second.call(1, 11, **fetch(1, wait_ms=NOT_ANSWERED))
        assert not answer.responses[0].partitions[0].records
        assert not waiting.done()
        waiting.cancel()
        await first.hang_up()
        await second.hang_up()

    try:
        rig.run(scene())
    finally:
        rig.close()


def test_fetch_sessions_hold_a_bounded_number_of_partitions(connect: Connect) -> None:
    wire = connect()
    wire.create("orders", num_partitions=900)
    ids = [wire.call(1, 11, **fetch(900, wait_ms=0, epoch=0)).session_id for _ in range(2)]
    assert ids[0] > 0
    assert ids[1] == 0, "answered in full, without a session"


def test_groups_with_settings_have_a_number(wire: Any) -> None:
    def alter(group: str, operation: int = 0) -> int:
        change = {"name": "share.auto.offset.reset", "config_operation": operation,
                  "value": None if operation else "earliest"}  # fmt: skip
        resource = {"resource_type": 32, "resource_name": group, "configs": [change]}
        return int(wire.call(44, 1, resources=[resource], validate_only=False)
                   .responses[0].error_code)  # fmt: skip

    wire.create("orders", configs=[{"name": "retention.ms", "value": "5"}])  # is no group
    assert [alter(group) for group in ("a", "b", "c", "a")] == [0, 0, INVALID_CONFIG, 0]
    assert [alter("a", DELETE), alter("a", DELETE), alter("c"), alter("a")] == [
        0, 0, 0, INVALID_CONFIG,
    ]  # fmt: skip


def test_a_member_has_a_bounded_number_of_protocols(wire: Any) -> None:
    protocols = [{"name": f"p{number}", "metadata": b""} for number in range(101)]
    fields = {"group_id": "g", "session_timeout": 10_000, "rebalance_timeout": 60_000,
              "member_id": "", "protocol_type": "consumer"}  # fmt: skip
    refused = wire.call(11, 3, **fields, protocols=protocols)
    assert refused.error_code == INCONSISTENT_GROUP_PROTOCOL
    assert wire.call(11, 3, **fields, protocols=protocols[:100]).error_code == 0


def test_a_response_has_a_bounded_number_of_producers(
    wire: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire.create("orders")
    for number in range(3):
        produce(wire, 1, producer_id=number, producer_epoch=0, base_sequence=0)

    def described() -> Any:
        topics = [{"name": "orders", "partition_indexes": [0]}]
        return wire.call(61, 0, topics=topics).topics[0].partitions[0]

    assert len(described().active_producers) == 3
    monkeypatch.setattr(describe_producers, "PRODUCERS_MAX", 2)
    assert (described().error_code, described().active_producers) == (INVALID_REQUEST, ())


def test_a_response_has_a_bounded_number_of_settings(
    wire: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("orders", "prices"):
        wire.create(name)
    asked = [{"resource_type": 2, "resource_name": name, "configuration_keys": None}
             for name in ("orders", "prices")]  # fmt: skip
    monkeypatch.setattr(configs, "ENTRIES_MAX", 1)
    first, second = wire.call(32, 4, resources=asked).results
    assert (first.error_code, second.error_code) == (0, INVALID_REQUEST)
    assert "fewer resources" in second.error_message


def write_slowly(wire: Any, deadline: float) -> None:
    """Begin a Fetch, to whose header the broker does not object, and do not complete it."""
    wire.socket.send(struct.pack(">ihhih", 1 << 16, 1, 11, 1, -1))
    while time.monotonic() < deadline:
        wire.socket.send(b"\0")
        time.sleep(0.005)


def test_who_does_not_read_for_too_long_is_closed(connect: Connect, caplog: Any) -> None:
    wire, slow = connect(), connect()
    wire.create("orders")
    for _ in range(8):
        produce(wire, 900_000)
    slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    for _ in range(4):
        slow.send(1, 11, bytes(codec.encode_request(1, 11, fetch(1, wait_ms=0))))
    deadline = time.monotonic() + WAIT_SECONDS
    while "headrace.unread.response.timeout.ms" not in caplog.text:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    # What the kernel still has for it would take long to read; a write to what is closed fails.
    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        write_slowly(slow, deadline)
    closings = [line for line in caplog.messages if line.startswith("closing ")]
    assert len(closings) == 1, "no other rule closed the connection"
    assert wire.call(18, 0).error_code == 0
