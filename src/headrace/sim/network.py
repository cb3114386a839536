"""The network between clients and the broker: it delays, and loses what is on its way.

A request carries its auditor's view with it: `let_out` is called with the decoded answer at the
moment it leaves the broker, whether or not it arrives. A client may have several requests in flight
on a connection: they arrive, and their responses are read, in the order of the calls.
"""

import asyncio
import itertools
import struct
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple, Protocol

from headrace.sim.loop import VirtualLoop
from headrace.sim.process import Process
from headrace.wire import codec
from headrace.wire.leases import Call
from headrace.wire.primitives import Reader, Writer
from headrace.wire.share_records import DescribeShareRecordsRequest
from headrace.wire.structs import Struct

_SIZE = struct.Struct(">i")
_HEAD = struct.Struct(
    ">ihhihb"
)  # size, key, version, correlation id, no client id, no tagged fields
_RESPONSE_HEAD = struct.Struct(">ii")  # size, correlation id
_API_VERSIONS = 18
_TAGGED_FIELDS_BYTES = 1  # of a head without any
_CUT_REQUESTS = 0.15  # of those that are sent in pieces
_SLOW_SECONDS = (0.05, 0.8)  # that a slow client takes to read a response

LetOut = Callable[[Any], None]


class Lost(Exception):
    """The connection broke: what was asked may have been done, or not."""


class _Unanswered(NamedTuple):
    """A request in flight.

    Attributes:
        answered: called with the body of the response, when it leaves the broker.
        waiting: its result is the response; nobody may wait any more.
        key: API key.
        sent_us: when it began to leave.
    """

    correlation_id: int
    answered: Callable[[memoryview], None]
    waiting: asyncio.Future[Any]
    key: int
    sent_us: int


class Surroundings(Protocol):
    """What connections need of the world that they are in."""

    loop: VirtualLoop
    process: Process | None
    connections: dict["Connection", None]

    @property
    def is_dead(self) -> bool:
        """Whether the broker's process is, so that nothing leaves it any more."""

    def look_at_shards(self) -> None:
        """Called before each answer is told of."""

    def loses_answer(self, rng: Random) -> bool:
        """Whether an answer is lost on its way, and the connection with it."""

    def is_rough(self, rng: Random) -> bool:
        """Return whether a request is sent in pieces, or not whole."""


class Connection:
    """One connection of a client to the broker that is up now. Raises: Lost from every call.

    Args:
        ended: called when either side closes it, whether or not the client looks.
        client: the name of the client.
    """

    def __init__(
        self,
        world: Surroundings,
        rng: Random,
        ended: Callable[[], None] | None = None,
        *,
        client: str = "",
    ) -> None:
        self.client = client
        self._ended = ended
        self.is_open = False
        self._world = world
        self._rng = rng
        self._arrived = bytearray()
        self._unanswered = deque[_Unanswered]()
        self._correlation_ids = itertools.count(1)
        self._sending, self._reading = asyncio.Lock(), asyncio.Lock()
        self.sent_us = 0  # when the last request began to leave
        process = world.process
        if process is None or not process.is_up:
            raise Lost
        self._wire = process.connect(self._received, self.broken)
        self.is_open = True
        world.connections[self] = None

    @property
    def unanswered(self) -> str | None:
        """Return a description of the oldest request without a response; None if there is none."""
        if not self._unanswered:
            return None
        oldest = self._unanswered[0]
        return f"API {oldest.key}, {self.client or 'a client'}, {oldest.sent_us / 1e6:.6f}"

    async def call(self, key: int, version: int, let_out: LetOut, /, **fields: Any) -> Any:
        """A request of Kafka's and its answer."""
        body = codec.encode_request(key, version, fields)
        return await self._exchange(
            key, version, body, lambda data: codec.decode_response(key, version, data), let_out,
            is_flexible=codec.is_flexible(key, version),
        )  # fmt: skip

    async def own(
        self, call: Call | DescribeShareRecordsRequest, answer: type[Struct], let_out: LetOut
    ) -> Any:
        """A request of Headrace's own APIs, leases and browsing, and its answer."""
        out = Writer()
        call.write(out)
        return await self._exchange(
            call.KEY, 0, out.data, lambda data: answer.read(Reader(data)), let_out
        )

    async def _exchange(
        self,
        key: int,
        version: int,
        body: bytes | bytearray,
        decode: Callable[[memoryview], Any],
        let_out: LetOut,
        *,
        is_flexible: bool = True,
    ) -> Any:
        async with self._sending:
            await self._travel(self._delay())
            if not self.is_open:
                raise Lost
            waiting = asyncio.get_running_loop().create_future()

            def answered(data: memoryview) -> None:
                is_tagged = is_flexible and key != _API_VERSIONS  # its response header is always 0
                answer = decode(data[_TAGGED_FIELDS_BYTES:] if is_tagged else data)
                let_out(answer)
                if self._world.loses_answer(self._rng):
                    self.close()
                elif not waiting.done():
                    waiting.set_result(answer)

            number = next(self._correlation_ids)
            self.sent_us = self._world.loop.now_us
            self._unanswered.append(_Unanswered(number, answered, waiting, key, self.sent_us))
            head_bytes = _HEAD.size - (0 if is_flexible else _TAGGED_FIELDS_BYTES)
            size = head_bytes - _SIZE.size + len(body)
            head = _HEAD.pack(size, key, version, number, -1, 0)[:head_bytes]
            if self._world.is_rough(self._rng):
                await self._send_in_pieces(head + body)
            else:
                self._wire.carry(head + body)
        answer = await waiting
        async with self._reading:
            is_slow = self._world.is_rough(self._rng)
            await self._travel(self._rng.choice(_SLOW_SECONDS) if is_slow else self._delay())
        return answer

    async def _send_in_pieces(self, data: bytes | bytearray) -> None:
        """Send a request byte by byte or in a few pieces; at times hang up before the last one.

        Raises:
            Lost: the connection ended first.
        """
        rng = self._rng
        size = rng.choice((1, 7, max(len(data) // 2, 1), max(len(data) - 1, 1)))
        is_cut = rng.random() < _CUT_REQUESTS
        stop = rng.randrange(len(data)) if is_cut else len(data)
        pause_at = rng.randrange(len(data))
        for at in range(0, stop, size):
            if at <= pause_at < at + size:
                await asyncio.sleep(self._delay())
            if not self.is_open:
                raise Lost
            self._wire.carry(data[at : min(at + size, stop)])
        if is_cut:
            self.close()

    async def _travel(self, seconds: float) -> None:
        """Wait while bytes are under way; the delivery is counted, its timer is not."""
        await asyncio.sleep(seconds)
        self._world.loop.timers -= seconds > 0

    def _received(self, data: bytes) -> None:
        """Bytes left the broker; of a process that is dead already none do."""
        if self._world.is_dead:
            return
        self._world.loop.deliveries += 1
        self._arrived += data
        while len(self._arrived) >= _RESPONSE_HEAD.size and self._unanswered:
            size, correlation_id = _RESPONSE_HEAD.unpack_from(self._arrived)
            if len(self._arrived) < _SIZE.size + size:
                return
            whole = memoryview(bytes(self._arrived[: _SIZE.size + size]))
            del self._arrived[: _SIZE.size + size]
            request = self._unanswered[0]
            self._world.look_at_shards()
            assert correlation_id == request.correlation_id, "responses have the order of requests"
            request.answered(whole[_RESPONSE_HEAD.size :])  # which may end the connection
            self._unanswered.popleft()

    def close(self) -> None:
        """Hang up, or be cut off: the broker notices."""
        if self.is_open:
            self.broken()
            self._wire.hang_up()

    def broken(self) -> None:
        """The other end is gone."""
        if self.is_open and self._ended is not None:
            self._ended()
        self.is_open = False
        self._world.connections.pop(self, None)
        for request in self._unanswered:
            if not request.waiting.done():
                request.waiting.set_exception(Lost())
                request.waiting.exception()  # nobody may wait any more

    def _delay(self) -> float:
        return self._rng.choice((0.0, 0.0002, 0.001, 0.004))
