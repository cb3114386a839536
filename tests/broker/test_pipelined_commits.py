"""Commits that share a write, on disks that fail, and of clients that ask for too much of it."""

import asyncio
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import headrace
from headrace.broker import shards
from headrace.broker.config import Config
from headrace.broker.dispatch import Dispatcher
from headrace.broker.server import Server
from headrace.broker.services import Services
from headrace.core.catalog import CreateTopic
from headrace.log import group_records
from headrace.log.memory_disk import MemoryDisk, VirtualClock
from headrace.wire import codec

from .connection_rig import StubTransport, on_a_connection

COMMIT = 8
TIMEOUT = 10


def committing(group: str, *offsets: int, member: str = "") -> bytes:
    """Encode a commit of offsets, one for each partition from the first one on."""
    places = [
        {
            "partition_index": index,
            "committed_offset": offset,
            "committed_leader_epoch": 0,
            "committed_metadata": None,
        }
        for index, offset in enumerate(offsets)
    ]
    fields = {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": member,
        "topics": [{"name": "orders", "partitions": places}],
    }
    return bytes(codec.encode_request(COMMIT, 9, fields))


def framed(body: bytes, correlation_id: int) -> bytes:
    frame = struct.pack(">hhihB", COMMIT, 9, correlation_id, -1, 0) + body
    return struct.pack(">i", len(frame)) + frame


def answered(written: Sequence[Any]) -> list[tuple[int, int]]:
    """Correlation id and code of each answer."""
    data, found = b"".join(bytes(one) for one in written), []
    while data:
        (size,) = struct.unpack_from(">i", data)
        frame, data = data[4 : 4 + size], data[4 + size :]
        answer = codec.decode_response(COMMIT, 9, frame[5:])
        (code,) = {one.error_code for topic in answer.topics for one in topic.partitions}
        found.append((struct.unpack_from(">i", frame)[0], code))
    return found


async def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline, "in vain"
        await asyncio.sleep(0)


async def _all_answered(transport: StubTransport, count: int) -> list[tuple[int, int]]:
    await _until(lambda: len(answered(transport.written)) == count)
    return answered(transport.written)


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_disk_that_fails_is_told_to_each_in_order(durability: str) -> None:
    async def work() -> None:
        disk = MemoryDisk()
        config = Config.parse({"headrace.durability": durability})
        services = Services(config, disk, VirtualClock(), uuid4)
        services.topics.load()
        await services.start()
        await services.topics.create(CreateTopic("orders", uuid4(), 1, {}))
        connection, transport = on_a_connection(Server(services, Dispatcher(services)))

        def receive(first: int, count: int) -> None:
            numbers = range(first, first + count)
            data = b"".join(framed(committing(f"g{one % 3}", one), one) for one in numbers)
            connection.get_buffer(-1)[: len(data)] = data
            connection.buffer_updated(len(data))

        receive(0, 5)
        assert await _all_answered(transport, 5) == [(one, 0) for one in range(5)]
        disk.fail_after(0)
        receive(5, 7)
        assert (await _all_answered(transport, 12))[5:] == [(one, 15) for one in range(5, 12)]
        receive(12, 2)  # the fault is known by now
        assert (await _all_answered(transport, 14))[12:] == [(12, 15), (13, 15)]
        disk.fail_after(None)
        await _until(lambda: all(shard.fault is None for shard in services.groups.shards))
        found = [services.groups.offsets(f"g{one}").get("orders", 0) for one in range(3)]
        assert [one and one.offset for one in found] == [3, 4, 2]
        receive(14, 1)
        assert (await _all_answered(transport, 15))[14:] == [(14, 0)]
        await services.close()

    asyncio.run(work())


def _journal_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("__consumer_offsets-*/*.log"))


def test_a_long_member_id_is_not_written_with_every_offset(
    connecting: Any, group_client: Any, tmp_path: Path
) -> None:
    with headrace.Broker(tmp_path) as broker, connecting(broker) as connect:
        client = group_client(connect())
        client.create_topic("orders", 1000)
        before = _journal_bytes(tmp_path)
        client.wire.send(COMMIT, 9, committing("g", *range(1000), member="m" * 300_000))
        assert client.wire.receive()[1]
        assert client.fetch(("orders", 999)) == [("orders", 999, 999, 0)]
        assert _journal_bytes(tmp_path) - before < 1000 * 500


def test_a_long_name_goes_with_few_offsets_only(client: Any) -> None:
    client.create_topic("orders", 200)
    long = "g" * 32_000
    offsets = [("orders", index, index) for index in range(200)]
    assert {code for _, _, code in client.commit(*offsets, group_id=long)} == {42}
    assert client.fetch(("orders", 99), group=long) == [("orders", 99, -1, 0)]
    assert {code for _, _, code in client.commit(*offsets[:100], group_id=long)} == {0}
    assert client.fetch(("orders", 99), group=long) == [("orders", 99, 99, 0)]


def test_long_names_are_not_kept_by_those_who_work_with_them(client: Any) -> None:
    client.create_topic("orders")
    caches = (
        shards._index_cached, group_records._place_cached, group_records._group_and_topic_cached,
    )  # fmt: skip
    sizes = [one.cache_info().currsize for one in caches]
    for number in range(3):
        assert client.beat("m", 1, f"{number}" * 500_000) == 25
        client.commit(("orders", 0, 1), group_id=f"{number}" * 1000)
    assert [one.cache_info().currsize for one in caches] == sizes
