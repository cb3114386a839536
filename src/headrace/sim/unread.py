"""A peer that pipelines requests and reads its responses slowly, or never.

The broker has to keep the memory for such a peer bounded, close it after a time without progress,
and send whole responses in the order of the requests to one that reads.
"""

import asyncio
import struct
from random import Random
from typing import TYPE_CHECKING

from headrace.sim.options import UNREAD_MS
from headrace.sim.process import UNREAD_HIGH_BYTES, Process, Wire
from headrace.wire import codec

if TYPE_CHECKING:
    from headrace.sim.world import World

_SIZE = struct.Struct(">i")
_HEAD = struct.Struct(">hhihb")  # key, version, correlation id, no client id, no tagged fields
_METADATA = 3
_REQUESTS = 40
_RESPONSE_BYTES_MAX = 64 * 1024  # of the requests that are sent here
_LOOK_S = 0.05
_PATIENCE_S = 2.0  # beyond the setting, for looks that are a moment apart


class UnreadPeer:
    """One connection after the other, each with more responses than it reads."""

    def __init__(self, world: "World", name: str) -> None:
        self.name = name
        self._world = world
        self._rng = Random(f"{world.seed}/{name}")
        self._arrived = bytearray()
        self._next = 0
        self._is_closed = False

    async def run(self) -> None:
        """Connect and flood until the faults are over."""
        world, rng = self._world, self._rng
        while not world.is_quiet:
            await asyncio.sleep(rng.uniform(0.0, 0.5))
            process = world.process
            if process is None or not process.is_up:
                continue
            self._arrived.clear()
            self._next, self._is_closed = 0, False
            wire = process.connect(self._receive, self._close, reads_by_request=True)
            for number in range(_REQUESTS):
                if not wire.is_closing() and not world.is_dead:
                    wire.carry(self._request(number))
            if rng.random() < 0.5:
                await self._read_slowly(wire, process)
            else:
                await self._read_nothing(wire, process)
            if not wire.is_closing() and world.process is process:
                wire.hang_up()

    async def _read_slowly(self, wire: Wire, process: Process) -> None:
        for _ in range(200):
            await asyncio.sleep(self._rng.uniform(0.0, 0.02))
            if self._world.process is not process or wire.is_closing():
                break
            wire.read(self._rng.choice((1, 100, 2000)))
        self._step(f"has read {self._next} responses slowly")

    async def _read_nothing(self, wire: Wire, process: Process) -> None:
        """Wait for the broker to close the connection; while it is held it cannot."""
        looks = round((UNREAD_MS / 1000 + _PATIENCE_S) / _LOOK_S)
        while looks and self._world.process is process and not self._is_closed:
            looks -= not self._world.loop.is_held(process.life)
            await asyncio.sleep(_LOOK_S)
        if self._world.process is process and not self._world.is_quiet:
            self._step(f"was closed: {self._is_closed}, {wire.unread_max} bytes unread")
            if not self._is_closed and wire.unread_max > UNREAD_HIGH_BYTES:
                self._broken("a peer that reads nothing is not closed")
        if wire.unread_max > UNREAD_HIGH_BYTES + _RESPONSE_BYTES_MAX:
            self._broken(f"{wire.unread_max} bytes wait for a peer that does not read")

    def _request(self, number: int) -> bytes:
        body = codec.encode_request(
            _METADATA, 12,
            {"topics": None, "allow_auto_topic_creation": False,
             "include_topic_authorized_operations": False},
        )  # fmt: skip
        data = _HEAD.pack(_METADATA, 12, number, -1, 0) + bytes(body)
        return _SIZE.pack(len(data)) + data

    def _receive(self, data: bytes) -> None:
        """Check that the responses are whole and in order."""
        self._arrived += data
        while len(self._arrived) >= 8:
            size, correlation_id = struct.unpack_from(">ii", self._arrived)
            if correlation_id != self._next or not 4 < size < _RESPONSE_BYTES_MAX:
                self._broken(f"response {self._next} is {correlation_id}, {size} bytes")
            if len(self._arrived) < _SIZE.size + size:
                break
            del self._arrived[: _SIZE.size + size]
            self._next += 1

    def _close(self) -> None:
        self._is_closed = True

    def _broken(self, what: str) -> None:
        self._world.records_broken(f"{self.name}: {what}")

    def _step(self, what: str) -> None:
        self._world.history.step(self.name, what)
