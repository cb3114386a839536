"""The server: connections in, frames to the dispatcher, responses out in the order of requests.

One task a connection answers its requests one after the other, as Kafka does. Bytes are received
straight into frames (`wire/frames.py`); when too many frames wait, the socket is not read until
they are fewer, and when the peer does not read its responses, no further request is answered. A
connection that sends what it must not ends alone, with one logged line.
"""

import asyncio
import logging
from collections import deque
from itertools import count
from typing import cast

from headrace.broker.dispatch import Dispatcher, Peer
from headrace.broker.request import HangUp
from headrace.broker.services import Services
from headrace.wire.frames import Frames
from headrace.wire.primitives import Malformed

log = logging.getLogger("headrace.broker")
FRAMES_QUEUED_MAX = 16
BYTES_QUEUED_MAX = 4 * 1024 * 1024
STOP_SECONDS_MAX = 5.0


class Server:
    """Listens and serves until it is stopped."""

    def __init__(self, services: Services, dispatcher: Dispatcher) -> None:
        self.services = services
        self.dispatcher = dispatcher
        self.connections: set[Connection] = set()
        self.connection_ids = count(1)
        self._listening: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port, which the system chooses for 0. Raises: OSError."""
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_server(lambda: Connection(self), host, port)
        return int(self._listening.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Accept nothing more, finish the requests under way, close all connections."""
        if self._listening is not None:
            self._listening.close()
        self.services.waits.close()
        tasks = [connection.finish() for connection in list(self.connections)]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=STOP_SECONDS_MAX)
            for task in late:
                task.cancel()


class Connection(asyncio.BufferedProtocol):
    """One connection: reads ahead a little, answers in order."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._frames = Frames(server.services.config.request_max_bytes)
        self._queue: deque[bytearray] = deque()
        self._queued_bytes = 0
        self._arrived = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._finishing = False
        self._reading = True
        self._ended_by = "peer"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        host, port = (transport.get_extra_info("peername") or ("", 0))[:2]
        self._peer = Peer(next(self._server.connection_ids), host, port)
        limit = self._server.services.config.connections_max
        if len(self._server.connections) >= limit:
            self._server.services.metrics.connections_refused += 1
            log.warning(
                "refusing %s: %d connections are open (max.connections)", self._peer, limit,
                extra=self._peer.fields,
            )  # fmt: skip
            self._transport.abort()
            return
        self._server.connections.add(self)
        self._server.services.metrics.connections_accepted += 1
        self._task = asyncio.get_running_loop().create_task(self._serve())

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio calls it so
        if self in self._server.connections:
            self._server.connections.discard(self)
            self._task.cancel()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  # asyncio calls it so
        return self._frames.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            arrived = self._frames.received(nbytes)
        except Malformed as error:
            self._ended_by = "protocol"
            log.warning("closing %s: %s", self._peer, error, extra=self._peer.fields)
            self._transport.abort()
            return
        self._queue.extend(arrived)
        self._queued_bytes += sum(map(len, arrived))
        if arrived:
            self._arrived.set()
        self._throttle()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def finish(self) -> "asyncio.Task[None]":
        """End after the request under way; returns the task to wait for."""
        self._finishing = True
        self._arrived.set()
        return self._task

    def _throttle(self) -> None:
        full = len(self._queue) >= FRAMES_QUEUED_MAX or self._queued_bytes >= BYTES_QUEUED_MAX
        if full == self._reading and not self._transport.is_closing():
            self._reading = not full
            if full:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    async def _next_frame(self) -> bytearray | None:
        while not self._queue and not self._finishing:
            self._arrived.clear()
            await self._arrived.wait()
        if self._finishing:
            return None
        frame = self._queue.popleft()
        self._queued_bytes -= len(frame)
        self._throttle()
        return frame

    async def _serve(self) -> None:
        try:
            while (frame := await self._next_frame()) is not None:
                for buffer in await self._server.dispatcher.respond(frame, self._peer):
                    self._transport.write(buffer)
                await self._writable.wait()
        except HangUp as reason:
            self._ended_by = reason.blame
            log.warning("closing %s: %s", self._peer, reason, extra=self._peer.fields)
        except Exception:
            self._ended_by = "bug"
            # A bug in a handler must not take the other connections down; it is told in full.
            log.exception(
                "closing %s after a bug in a handler", self._peer, extra=self._peer.fields
            )
        finally:
            self._server.services.metrics.closed[self._ended_by] += 1
            self._server.services.disconnected(self._peer.connection_id)
            self._transport.close()
