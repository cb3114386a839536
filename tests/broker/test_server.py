"""Connections: who is silent for too long, who does not read, and who waits while things happen."""

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import headrace
from headrace.broker import loop_turns
from headrace.broker.config import Config
from headrace.broker.dispatch import Dispatcher, Peer
from headrace.broker.server import Server
from headrace.broker.services import open_services
from headrace.wire import batches, codec
from headrace.wire.batches import Record

from .connection_rig import StubDispatcher, on_a_connection, receive

Connecting = Callable[..., Any]
TIMEOUT = 30
LONG_MS = 60_000


def polling(version: int = 12, **fields: Any) -> dict[str, Any]:
    """A fetch of `orders` that waits long."""
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    topics = [{"topic": "orders", "partitions": [partition]}]
    defaults = {"max_wait": LONG_MS, "min_bytes": 1, "forgotten_topics_data": []}
    return {"topics": topics} | defaults | fields


def produced(value: bytes = b"v") -> dict[str, Any]:
    """A produce request to `orders`."""
    records = batches.build([Record(0, 1000, None, value)])
    topics = [{"name": "orders", "partition_data": [{"index": 0, "records": records}]}]
    return {"transactional_id": None, "acks": 1, "timeout": 100, "topic_data": topics}


def create(wire: Any) -> None:
    topic = {"name": "orders", "num_partitions": 1, "replication_factor": 1}
    created = wire.call(
        19, 7, topics=[topic | {"assignments": [], "configs": []}], timeout=0, validate_only=False
    )
    assert created.topics[0].error_code == 0


def test_who_is_silent_too_long_is_closed_but_not_who_waits(connecting: Connecting) -> None:
    idle_ms = 2_000  # longer than this test may have to wait for its turn
    settings = {"connections.max.idle.ms": idle_ms}
    with headrace.Broker(settings=settings) as broker, connecting(broker) as connect:
        started = time.monotonic()
        silent, waiting, busy = connect(), connect(), connect()
        create(busy)
        waiting.send(1, 12, bytes(codec.encode_request(1, 12, polling())))
        ended = threading.Thread(target=silent.closed)
        ended.start()
        while ended.is_alive() and time.monotonic() - started < TIMEOUT:
            assert busy.call(18, 0).error_code == 0
            time.sleep(idle_ms / 1000 / 20)
        assert not ended.is_alive()
        assert time.monotonic() - started >= idle_ms / 1000 / 2
        busy.call(0, 9, **produced())
        assert waiting.receive()[0] == 1


def test_without_a_limit_nobody_is_closed(connecting: Connecting) -> None:
    settings = {"connections.max.idle.ms": -1}
    with headrace.Broker(settings=settings) as broker, connecting(broker) as connect:
        assert connect().call(18, 0).error_code == 0


def test_who_does_not_read_holds_up_nobody_and_loses_nothing(connecting: Connecting) -> None:
    with headrace.Broker() as broker, connecting(broker) as connect:
        wire = connect()
        create(wire)
        for _ in range(12):
            wire.call(0, 9, **produced(b"v" * 1_000_000))
        greedy = connect()
        greedy.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        fields = polling(max_bytes=50_000_000)
        fields["topics"][0]["partitions"][0]["partition_max_bytes"] = 50_000_000
        for number in range(6):
            body = bytes(codec.encode_request(1, 12, fields))
            greedy.send(1, 12, body, correlation_id=number)
        assert wire.call(18, 0).error_code == 0, "others are served meanwhile"
        sizes = []
        for number in range(6):
            correlation_id, size = greedyreceive(greedy.socket)
            assert correlation_id == number
            sizes.append(size)
        assert len(set(sizes)) == 1
        assert sizes[0] > 3_000_000  # of one partition, 4 MiB at most


def greedyreceive(peer: socket.socket) -> tuple[int, int]:
    """Correlation id and size of a large answer, without keeping it."""
    head = b""
    while len(head) < 8:
        head += peer.recv(8 - len(head))
    size, correlation_id = struct.unpack(">ii", head)
    left = size - 4
    buffer = bytearray(1 << 20)
    while left:
        left -= peer.recv_into(buffer, min(left, len(buffer)))
    return correlation_id, size


def test_what_comes_before_a_poll_begins_to_wait_is_not_missed(tmp_path: Path) -> None:
    """A handler that has to wait goes on in a task, which begins a little later."""

    def frame(key: int, version: int, fields: dict[str, Any]) -> bytearray:
        head = struct.pack(">hhih", key, version, 1, -1) + b"\0"
        return bytearray(head + bytes(codec.encode_request(key, version, fields)))

    async def go() -> None:
        services = open_services(Config.parse({}), tmp_path, new_id=uuid4)
        await services.start()
        dispatcher, peer = Dispatcher(services), Peer(1, "here", 1)
        topic = {"name": "orders", "num_partitions": 1, "replication_factor": 1}
        creating = dispatcher.respond(
            frame(19, 7, {
                "topics": [topic | {"assignments": [], "configs": []}],
                "timeout": 0, "validate_only": False,
            }),
            peer,
        )  # fmt: skip
        assert isinstance(creating, Coroutine)
        await creating
        poll = dispatcher.respond(frame(1, 12, polling()), peer)
        assert isinstance(poll, Coroutine)
        assert isinstance(dispatcher.respond(frame(0, 9, produced()), peer), list)
        (answer,) = await asyncio.wait_for(poll, TIMEOUT)
        found = codec.decode_response(1, 12, bytes(answer)[9:])
        assert found.responses[0].partitions[0].records
        await services.close()

    asyncio.run(go())


def test_who_sends_many_requests_at_once_takes_turns_with_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_turns, "SLICE_SECONDS", 0.0)

    async def go() -> None:
        dispatcher: Any = StubDispatcher()
        services = open_services(Config.parse({}), tmp_path, new_id=uuid4)
        server = Server(services, dispatcher)
        (busy, told), (other, told_other) = on_a_connection(server), on_a_connection(server)
        receive(busy, 0, 0, 0)
        receive(other, 0)
        receive(busy, 0)
        for _ in range(4):
            await asyncio.sleep(0)
        assert (len(told.written), len(told_other.written)) == (4, 1)
        assert dispatcher.asked == [1, 2, 1, 1, 1]
        await services.close()

    asyncio.run(go())


def test_nothing_is_answered_after_a_write_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that is cancelled before its first step could not clean up."""

    async def go() -> None:
        dispatcher: Any = StubDispatcher()
        services = open_services(Config.parse({}), tmp_path, new_id=uuid4)
        gone: list[int] = []
        monkeypatch.setattr(services, "disconnected", gone.append)
        connection, _ = on_a_connection(Server(services, dispatcher), broken=1)
        receive(connection, 0, 1, 0)
        await asyncio.sleep(0)
        assert dispatcher.asked == [1]
        assert gone == [1]
        await services.close()

    asyncio.run(go())


def test_idle_time_begins_with_the_answer_to_who_waited(tmp_path: Path) -> None:
    async def go() -> None:
        dispatcher: Any = StubDispatcher()
        services = open_services(Config.parse({}), tmp_path, new_id=uuid4)
        connection, transport = on_a_connection(Server(services, dispatcher))
        receive(connection, 1)
        answered_after = asyncio.get_running_loop().time()
        await asyncio.sleep(0)
        assert len(transport.written) == 1
        connection.close_if_idle(answered_after)
        assert not transport.is_closing()
        connection.close_if_idle(asyncio.get_running_loop().time() + 1)
        assert transport.is_closing()
        await services.close()

    asyncio.run(go())
