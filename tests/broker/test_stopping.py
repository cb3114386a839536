"""A broker that stops leaves no connection open, whatever state it finds it in."""

import asyncio
import gc
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.broker import metrics_http
from headrace.broker import server as server_module
from headrace.broker.config import Config
from headrace.broker.node import Node, new_event_loop, start_node

Loops = Callable[[], asyncio.AbstractEventLoop]
TIMEOUT = 30
LOOPS = pytest.mark.parametrize("new_loop", [asyncio.SelectorEventLoop, new_event_loop])


@pytest.fixture
def unclosed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What the collector finds open: it warns, and here a warning is an error nobody can catch."""
    found: list[str] = []
    gc.collect()  # of the tests before
    monkeypatch.setattr(sys, "unraisablehook", lambda one: found.append(str(one.exc_value)))
    yield found
    gc.collect()


async def started(folder: Path) -> Node:
    settings = {"headrace.metrics.port": "0"}
    return await start_node(Config.parse(settings), folder, "127.0.0.1", 0)


async def ended(peer: socket.socket) -> bool:
    """Whether the other side closes the connection, on a loop that goes on."""
    peer.setblocking(False)
    try:
        return await asyncio.get_running_loop().sock_recv(peer, 1) == b""
    except ConnectionResetError:
        return True


@LOOPS
@pytest.mark.parametrize("serves", ["port", "metrics_port"])
def test_who_is_being_accepted_is_hung_up_on(
    tmp_path: Path,
    unclosed: list[str],
    caplog: pytest.LogCaptureFixture,
    new_loop: Loops,
    serves: str,
) -> None:
    """asyncio accepts over several turns of its loop; the broker stops in each of them."""

    async def scene(turns: int) -> None:
        node = await started(tmp_path / f"{turns}")
        assert node.metrics is not None
        stop = node.server.stop if serves == "port" else node.metrics.stop
        try:
            with socket.create_connection(("127.0.0.1", getattr(node, serves))) as peer:
                for _ in range(turns):
                    await asyncio.sleep(0)
                await stop()
                assert await asyncio.wait_for(ended(peer), metrics_http.WAIT_SECONDS_MAX / 2)
        finally:
            await node.stop()

    for turns in range(8):
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(scene(turns))
        gc.collect()
        assert unclosed == []
    assert caplog.messages == []


@LOOPS
def test_who_does_not_read_holds_no_stop_up(
    tmp_path: Path, unclosed: list[str], monkeypatch: pytest.MonkeyPatch, new_loop: Loops
) -> None:
    monkeypatch.setattr(server_module, "UNREAD_SECONDS_MAX", 0.05)
    versions = struct.pack(">hhih", 18, 0, 1, -1)
    asked = (struct.pack(">i", len(versions)) + versions) * 100

    async def scene() -> socket.socket:
        node = await started(tmp_path)
        peer = socket.socket()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.connect(("127.0.0.1", node.port))
        peer.setblocking(False)
        while not any(unsent(one) for one in node.server.connections):
            try:
                peer.send(asked)
            except BlockingIOError:
                await asyncio.sleep(0.001)
        await asyncio.wait_for(node.stop(), TIMEOUT)
        assert node.connections == 0
        return peer

    def unsent(connection: Any) -> int:
        return int(connection._transport.get_write_buffer_size())

    with asyncio.Runner(loop_factory=new_loop) as runner:
        peer = runner.run(asyncio.wait_for(scene(), TIMEOUT))
    gc.collect()
    peer.close()
    assert unclosed == []
