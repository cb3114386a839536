"""One life of a whole broker in this process: no sockets, a disk in memory, a clock that stands.

`Life` starts the shipped broker with its own start errors, and `Client` speaks Kafka's protocol to
it through the shipped connection, dispatcher and handlers. Work for threads is done at once, in the
thread of the loop, so that a life with the same input takes the same steps.
"""

import asyncio
import contextlib
import functools
import logging
import struct
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock
from uuid import UUID

from headrace.broker import node
from headrace.broker.config import Config
from headrace.broker.dispatch import Dispatcher
from headrace.broker.server import Connection, Server
from headrace.log.api import Disk
from headrace.log.memory_disk import VirtualClock
from headrace.wire import codec
from headrace.wire.primitives import Reader, Writer
from headrace.wire.structs import Struct

WALL_MS = 1_700_000_000_000
T = TypeVar("T")
A = TypeVar("A", bound=Struct)
_SIZE = struct.Struct(">i")
_HEAD = struct.Struct(">ihhih")


class HungUpError(Exception):
    """The broker closed the connection instead of responding."""


class _Loop(asyncio.SelectorEventLoop):
    """asyncio's loop without executor threads."""

    def run_in_executor(  # type: ignore[override]  # there are no executors
        self, executor: None, func: Callable[..., T], *args: Any
    ) -> "asyncio.Future[T]":
        assert executor is None
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a loop of its own; tasks that are left are cancelled."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        runner.get_loop().set_exception_handler(_ignore)
        return runner.run(work)


def _ignore(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Errors of tasks that a kill cancelled; those of a living broker are logged by it."""


@contextmanager
def recorded(into: list[logging.LogRecord]) -> Iterator[None]:
    """Keep what `headrace` and asyncio log instead of printing it."""

    class Keeping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            into.append(record)

    loggers = [logging.getLogger("headrace"), logging.getLogger("asyncio")]
    before = [(one.propagate, one.level) for one in loggers]
    handler = Keeping()
    for one in loggers:
        one.addHandler(handler)
        one.propagate = False
        one.setLevel(logging.INFO)
    try:
        yield
    finally:
        for one, (propagate, level) in zip(loggers, before, strict=True):
            one.removeHandler(handler)
            one.propagate = propagate
            one.setLevel(level)


class Life:
    """A broker between `start` and `stop` or the end of its loop (a kill).

    Args:
        disk: the data folder.
        settings: settings by Kafka's names.
        ids: yields the ids of topics and of the cluster.
    """

    def __init__(
        self, disk: Disk, settings: Mapping[str, str], ids: Callable[[], UUID] | None = None
    ) -> None:
        self.disk = disk
        self.clock = VirtualClock(wall_ms=WALL_MS)
        # The cleaner's own task begins after a second of real time, amid whatever a life does then.
        self._config = Config.parse({"log.cleaner.enable": "false", **settings})
        self._ids = ids or _no_id

    async def start(self) -> None:
        """Come up. Raises: StartError, as `headrace serve` prints it."""
        with mock.patch("headrace.broker.services.OsDisk", return_value=self.disk):
            self.services = await node._started_services(
                self._config, Path("/"), self.clock, self._ids
            )
        self.services.host, self.services.port = "127.0.0.1", 9092
        self.server = Server(self.services, Dispatcher(self.services))

    async def stop(self) -> None:
        """Go down in order. Raises: OSError."""
        await self.server.stop()
        await self.services.close()

    def client(self) -> "Client":
        """A new connection."""
        return Client(Connection(self.server))


def _no_id() -> UUID:
    raise AssertionError("a broker on a folder with data needs no new id")


class Client:
    """One connection with one request at a time. Raises: HungUpError from every call."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._transport = _Transport()
        connection.connection_made(self._transport)

    async def call(self, key: int, version: int, /, **fields: Any) -> Any:
        """Send a request of Kafka's protocol; its decoded response."""
        body = codec.encode_request(key, version, fields)
        answer = await self._exchange(key, version, body, flexible=codec.is_flexible(key, version))
        if codec.is_flexible(key, version):
            answer = answer[1:]
        return _decoded(key, version, bytes(answer))

    async def own(self, key: int, request: Struct, response: type[A]) -> A:
        """Send a request of Headrace's own APIs; its response."""
        out = Writer()
        request.write(out)
        answer = await self._exchange(key, 0, out.data, flexible=True)
        return response.read(Reader(answer[1:]))

    def close(self) -> None:
        """Hang up."""
        with contextlib.suppress(RuntimeError):
            self._connection.connection_lost(None)

    async def _exchange(
        self, key: int, version: int, body: bytes | bytearray, *, flexible: bool
    ) -> memoryview:
        tags = b"\0" if flexible else b""
        size = _HEAD.size - _SIZE.size + len(tags) + len(body)
        frame = _HEAD.pack(size, key, version, 1, -1) + tags + body
        answered = self._transport.expect()
        sent = 0
        while sent < len(frame) and not self._transport.is_closing():
            buffer = self._connection.get_buffer(-1)
            piece = frame[sent : sent + len(buffer)]
            buffer[: len(piece)] = piece
            sent += len(piece)
            self._connection.buffer_updated(len(piece))
        return memoryview(await answered)[8:]


@functools.lru_cache(maxsize=4096)
def _decoded(key: int, version: int, answer: bytes) -> Any:
    """Decode a response; damages change few of them, and what is decoded is not changed."""
    return codec.decode_response(key, version, memoryview(answer))


class _Transport(asyncio.Transport):
    """The broker's end of a connection: collects one response at a time."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 9)})
        self._arrived = bytearray()
        self._answered: asyncio.Future[bytes] | None = None
        self._is_closing = False

    def expect(self) -> "asyncio.Future[bytes]":
        """The next response, with its size."""
        self._answered = asyncio.get_running_loop().create_future()
        if self._is_closing:
            self._answered.set_exception(HungUpError())
        return self._answered

    def write(self, data: Any) -> None:
        self._arrived += data
        if len(self._arrived) < _SIZE.size:
            return
        size = _SIZE.size + _SIZE.unpack_from(self._arrived)[0]
        if len(self._arrived) >= size and self._answered is not None:
            answer, self._arrived = bytes(self._arrived[:size]), self._arrived[size:]
            if not self._answered.done():
                self._answered.set_result(answer)

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(bytes(one) for one in list_of_data))

    def close(self) -> None:
        self._is_closing = True
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(HungUpError())

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self._is_closing

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Responses are taken at once."""

    def is_reading(self) -> bool:
        return True

    def pause_reading(self) -> None:
        """One request is sent at a time: there is nothing more to read."""

    def resume_reading(self) -> None:
        """As above."""
