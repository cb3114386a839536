"""A broker on an event loop that measures each of its steps, and connections without sockets."""

import asyncio
import gc
import struct
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import pytest

from headrace.broker.dispatch import Dispatcher
from headrace.broker.server import Connection, Server
from headrace.wire import codec

from .inside_rig import Inside

T = TypeVar("T")
SECONDS_MAX = 120
TRIES = 5
_CHUNK_BYTES = 256 * 1024
_CALIBRATION = 50_000
_CALIBRATION_SECONDS = 0.0165  # on the machine whose steps take 20 ms at most

_HANDLE: Any = asyncio.Handle  # what the loop runs


class Steps:
    """Seconds of processor time of each step of the loop, and the names of what ran."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.names: list[str] = []

    def __enter__(self) -> "Steps":
        run = self._run = _HANDLE._run

        def measured(handle: Any) -> None:
            name = repr(handle)
            began = time.thread_time()
            run(handle)
            seconds = time.thread_time() - began
            self.seconds.append(seconds)
            self.names.append(name)

        _HANDLE._run = measured
        return self

    def __exit__(self, *_: object) -> None:
        _HANDLE._run = self._run


class LongSteps:
    """Places at which a step was too long in every try.

    Processors of rented machines run slower for some milliseconds again and again, which lengthens
    steps here and there. A step that has too much to do is long in each try, at the same place: it
    is the n-th of all steps, or of the costly ones, or about that: how many cheap steps there are
    differs from try to try, and a slow processor makes cheap ones costly.
    """

    def __init__(self) -> None:
        self._places: list[tuple[int, int]] | None = None

    def is_passed(self, seconds: Sequence[float], allowed: float) -> bool:
        """Take the steps of a try; return whether at each place a step of some try was short.

        Args:
            seconds: Durations of all steps.
            allowed: What a step may take, in seconds.
        """
        costly = 0
        long = []
        for place, step in enumerate(seconds):
            if step > allowed:
                long.append((place, costly))
            costly += step > allowed / 10
        tolerance = 2 + costly // 10
        if self._places is None:
            self._places = long
        self._places = [
            (place, rank)
            for place, rank in self._places
            if any(abs(place - at) <= 2 or abs(rank - nth) <= tolerance for at, nth in long)
        ]
        return not self._places


class _Transport(asyncio.Transport):
    """Keeps what is written; `changed` is set when something is."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.changed = asyncio.Event()
        self._is_closed = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def write(self, data: Any) -> None:
        self.written += data
        self.changed.set()

    def writelines(self, data: Any) -> None:
        for one in data:
            self.write(one)

    def is_closing(self) -> bool:
        return self._is_closed

    def abort(self) -> None:
        self._is_closed = True
        self.changed.set()

    close = abort

    def pause_reading(self) -> None:
        """The test sends no more than one request at a time."""

    resume_reading = pause_reading

    def get_write_buffer_size(self) -> int:
        return 0


class Client:
    """One connection, as a socket would drive it."""

    def __init__(self, server: Server) -> None:
        self._connection = Connection(server)
        self._transport = _Transport()
        self._connection.connection_made(self._transport)

    async def ask(self, frame: bytes) -> bytes:
        """Send a whole request; return what follows the number of its response."""
        transport, rest = self._transport, memoryview(frame)
        transport.written = bytearray()
        while rest:
            buffer = self._connection.get_buffer(-1)
            count = min(len(buffer), len(rest), _CHUNK_BYTES)
            buffer[:count] = rest[:count]
            del buffer
            self._connection.buffer_updated(count)
            rest = rest[count:]
            await asyncio.sleep(0)
        while True:
            assert not transport.is_closing(), "the broker closed the connection"
            if len(transport.written) >= 4:
                (size,) = struct.unpack_from(">i", transport.written)
                if len(transport.written) >= 4 + size:
                    return bytes(transport.written[8 : 4 + size])
            transport.changed.clear()
            await transport.changed.wait()

    async def call(self, key: int, version: int, **fields: Any) -> Any:
        body = await self.ask(framed(key, version, fields))
        skipped = int(codec.is_flexible(key, version))
        return codec.decode_response(key, version, body[skipped:])

    async def hang_up(self) -> None:
        self._connection.connection_lost(None)
        await asyncio.sleep(0)


def framed(key: int, version: int, fields: dict[str, Any]) -> bytes:
    """A whole request with its size."""
    body = bytes(codec.encode_request(key, version, fields))
    head = struct.pack(">hhih", key, version, 1, -1)
    head += b"\0" if codec.is_flexible(key, version) else b""
    return struct.pack(">i", len(head) + len(body)) + head + body


class LoopRig:
    """A started broker; `run` works on its loop. The collector rests meanwhile.

    Args:
        disk: where its data is; by default in memory.
    """

    def __init__(self, disk: Any = None, **settings: str) -> None:
        self.inside = Inside(disk, **settings)
        self.services = self.inside.services
        self._runner = asyncio.Runner(loop_factory=asyncio.SelectorEventLoop)
        self._was_collecting = gc.isenabled()
        gc.disable()
        self.run(self.inside.start())
        self.server = Server(self.services, Dispatcher(self.services))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(asyncio.wait_for(work, SECONDS_MAX))

    def close(self) -> None:
        self.run(self.server.stop())
        self.run(self.services.close())
        self._runner.close()
        if self._was_collecting:
            gc.enable()

    def require_short(
        self, work: Callable[[], Coroutine[Any, Any, None]], seconds_max: float
    ) -> Steps:
        """Run `work` until no step of the loop was too long in every try; return the last steps.

        Each try is judged by what the machine can do right after it, as others may use it, too.
        Work that changes state must do the same each of up to `TRIES` times: where a second try
        found nothing to do, a long first step would pass.
        """
        too_long, long_steps = [], LongSteps()
        for _ in range(TRIES):
            gc.collect()
            with Steps() as steps:
                self.run(work())
            seconds, name = max(zip(steps.seconds, steps.names, strict=True))
            if seconds <= seconds_max:
                return steps
            allowed = seconds_max * machine_scale()
            if long_steps.is_passed(steps.seconds, allowed):
                return steps
            too_long.append(f"{seconds * 1000:.1f} ms of {allowed * 1000:.1f}: {name}")
        pytest.fail("\n".join(too_long))


def machine_scale() -> float:
    """Return how much slower this machine is than the one that limits are for, at least 1."""
    return max(1.0, min(map(_calibrated, range(5))) / _CALIBRATION_SECONDS)


def _calibrated(_: int) -> float:
    """Seconds of processor time for work of a known amount, more than caches of a core can hold."""
    made, was_collecting = {}, gc.isenabled()
    gc.disable()
    began = time.thread_time()
    for number in range(_CALIBRATION):
        made[str(number)] = (number, {"number": number})
    seconds = time.thread_time() - began
    if was_collecting:
        gc.enable()
    return seconds
