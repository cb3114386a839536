"""A connection without a socket, and a dispatcher that answers when it is told to."""

import asyncio
import struct
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Any

from headrace.broker.dispatch import Buffers, Peer, Pending
from headrace.broker.request import HangUp, Later
from headrace.broker.server import Connection, Server
from headrace.wire.frames import RequestHead

LATER, REFUSED = 8, 9  # what a frame may begin with besides 0 and 1


class StubDispatcher:
    """Answers a frame with itself: at once, or in a task when its first byte is 1.

    When it is LATER, as soon as `decided` says so; when it is REFUSED, the connection has to end.
    """

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.decided: list[Later] = []

    def take(self, queue: deque[bytearray]) -> list[bytearray]:
        return [queue.popleft()]

    def respond(
        self, frame: bytearray, peer: Peer, before: Sequence[bytearray] = ()
    ) -> Buffers | Pending | Coroutine[Any, Any, Buffers]:
        assert not before
        self.asked.append(peer.connection_id)
        if frame[0] == LATER:
            self.decided.append(Later())
            head = RequestHead(LATER, 0, len(self.decided), None, 0)
            route: Any = None
            return Pending(route, head, self.decided[-1], 0.0, len(frame), before=())
        if frame[0] == REFUSED:
            raise HangUp("what it sent is nothing")
        return self._later(frame) if frame[0] else [frame]

    def answers_later(self, frame: bytearray) -> bool:
        return frame[0] in (LATER, REFUSED)

    def is_carried_out(self, frame: bytearray) -> bool:
        return frame[0] == LATER

    def check_size(self, key: int, version: int, size: int) -> None:
        """Every size is right."""

    def name_of(self, frame: bytearray) -> str:
        return "Stub"

    def finish(self, pending: Pending) -> Buffers:
        return [b"answer %d;" % pending.head.correlation_id]

    async def _later(self, frame: bytearray) -> Buffers:
        return [frame]


def ready(later: Later) -> None:
    later.set(lambda: None)


class StubTransport(asyncio.Transport):
    """Keeps what is written, until `broken` writes; then it behaves as after a reset."""

    def __init__(self, connection: Connection, *, broken: int = 1000) -> None:
        super().__init__()
        self.written: list[Any] = []
        self._connection = connection
        self._left = broken

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.is_closing():
            return
        self.written.append(data)
        self._left -= 1
        if not self._left:
            asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)

    def is_closing(self) -> bool:
        return self._left <= 0

    def abort(self) -> None:
        self._left = 0

    def close(self) -> None:
        self._left = 0

    def get_write_buffer_size(self) -> int:
        return 0


def receive(connection: Connection, *first_bytes: int) -> None:
    """Frames of eight bytes arrive together."""
    data = b"".join(struct.pack(">ib7x", 8, first) for first in first_bytes)
    connection.get_buffer(-1)[: len(data)] = data
    connection.buffer_updated(len(data))


def on_a_connection(server: Server, broken: int = 1000) -> tuple[Connection, StubTransport]:
    connection = Connection(server)
    transport = StubTransport(connection, broken=broken)
    connection.connection_made(transport)
    return connection, transport
