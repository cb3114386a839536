"""One life of a broker: all of the shipped server but its sockets, for which there are `Wire`s.

`Connection` in `network.py` is the other end of a wire.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any
from uuid import UUID

from headrace.broker.config import Config
from headrace.broker.dispatch import Dispatcher
from headrace.broker.partition import Dropped
from headrace.broker.server import Connection, Server
from headrace.broker.services import Services
from headrace.broker.topic_settings import TopicSettings
from headrace.core.types import MonoMs, Now, WallMs
from headrace.log.api import CorruptLog, Disk
from headrace.log.segments import SegmentedLog
from headrace.sim.facts import Place
from headrace.sim.loop import VirtualLoop

UNREAD_HIGH_BYTES = 4096  # of responses, above which a transport pauses writing


class WorldClock:
    """`log.api.Clock` of a machine: elapsed time is the loop's, the wall clock can be set."""

    def __init__(self, loop: VirtualLoop, wall_ms: int) -> None:
        self._loop = loop
        self.ahead_ms = wall_ms
        self._true_ahead_ms = wall_ms

    @property
    def behind_ms(self) -> int:
        """How much the wall clock is behind the time that it would have if it had not been set."""
        return self._true_ahead_ms - self.ahead_ms

    def mono(self) -> MonoMs:
        return MonoMs(self._loop.now_us // 1000)

    def wall(self) -> WallMs:
        return WallMs(self._loop.now_us // 1000 + self.ahead_ms)

    def now(self) -> Now:
        return Now(self.mono(), self.wall())


class Process:
    """A broker from its start to its end.

    Args:
        life: its number; what it starts on the loop goes with it.
        start_moved: told the place and where its log begins when records are deleted.
    """

    def __init__(
        self,
        life: int,
        config: Config,
        disk: Disk,
        clock: WorldClock,
        loop: VirtualLoop,
        new_id: Callable[[], UUID],
        start_moved: Callable[[Place, int], None],
    ) -> None:
        self.life = life
        self.services = Services(config, disk, clock, new_id)
        self._new_id = new_id
        self.services.partitions.on_start_moved.append(
            lambda one: start_moved((one.topic.name, one.index), one.start_offset)
        )
        self.is_up = False
        self._server = Server(self.services, Dispatcher(self.services), loop.time, loop.time)
        self._loop = loop

    async def start(self) -> None:
        """Come up. Raises: as `open_services` and `Services.start` do."""
        self.services.load(self._new_id)
        await self.services.start()
        self.is_up = True

    async def stop(self) -> None:
        """Go down in order. Raises: OSError."""
        self.is_up = False
        await self._server.stop()
        await self.services.close()

    def log_starts(self) -> Iterator[tuple[Place, int]]:
        """Where the logs begin that are open, which after a death are all that can be opened."""
        for one in self.services.partitions:
            if one.is_open:
                yield (one.topic.name, one.index), one.start_offset

    def log_ends(self) -> Iterator[tuple[Place, int]]:
        """Return where the logs end that are open."""
        for one in self.services.partitions:
            if one.is_open:
                yield (one.topic.name, one.index), one.log.end_offset

    def watch_openings(self, opened: Callable[[Place, int], None]) -> None:
        """Call `opened` with place and end of each log that the start left closed, once it opens.

        A request whose client is gone may append to it, and its records have no other witness.
        """
        for one in self.services.partitions:
            if not one.is_open:
                callback = partial(opened, (one.topic.name, one.index))
                one._open_log = partial(self._open, one._open_log, callback)

    def _open(
        self,
        open_log: Callable[[TopicSettings, Dropped], SegmentedLog],
        opened: Callable[[int], None],
        settings: TopicSettings,
        dropped: Dropped,
    ) -> SegmentedLog:
        log = open_log(settings, dropped)
        self._loop.call_soon(opened, log.end_offset)
        return log

    @property
    def has_opened_all(self) -> bool:
        """Return whether every log was read."""
        return all(one.is_open for one in self.services.partitions)

    @property
    def refusals(self) -> list[CorruptLog]:
        """Return why partitions are refused, which an operator has to repair."""
        found = [one.refused or one.damage for one in self.services.partitions]
        return [one for one in found if one is not None]

    def sealed_paths(self) -> set[str]:
        """Return the files of the sealed segments of all logs that are open."""
        return {
            segment.file_path
            for one in self.services.partitions
            if one.is_open and one.refused is None
            for segment in one.log.segments()
            if segment.sealed
        }

    def is_unread(self, path: str, position: int) -> bool:
        """Return whether a byte of a segment is in a block that is verified when it is read."""
        for one in self.services.partitions:
            if not path.startswith(f"{one.name}/") or not one.is_open or one.refused is not None:
                continue
            assert isinstance(one.log, SegmentedLog)
            for segment in one.log._segments:
                if segment.file_path == path and segment._unverified is not None:
                    return bool(segment._unverified.of(position, position + 1))
        return False

    @property
    def machines(self) -> list[object]:
        """The states of the share-group shards: others when they were rebuilt."""
        return [shard.machine for shard in self.services.shares.shards]

    def connect(
        self,
        received: Callable[[bytes], None],
        closed: Callable[[], None],
        *,
        reads_by_request: bool = False,
    ) -> "Wire":
        """Open a connection; the broker calls back with what it sends, and when it hangs up.

        Args:
            reads_by_request: responses stay in the transport until `Wire.read`.
        """
        return self._loop.as_life(
            self.life, lambda: self._connect(received, closed, reads_by_request)
        )

    def _connect(
        self,
        received: Callable[[bytes], None],
        closed: Callable[[], None],
        reads_by_request: bool,
    ) -> "Wire":
        connection = Connection(self._server)
        wire = Wire(self, self._loop, connection, received, closed, reads_by_request)
        connection.connection_made(wire)
        return wire


class Wire(asyncio.Transport):
    """The broker's end of a connection; what is written arrives at once, or when it is read.

    A transport whose peer reads by request pauses writing above `UNREAD_HIGH_BYTES` and resumes
    it when less than half of that is left, as asyncio's transports do.
    """

    def __init__(
        self,
        process: Process,
        loop: VirtualLoop,
        protocol: Connection,
        received: Callable[[bytes], None],
        closed: Callable[[], None],
        reads_by_request: bool,
    ) -> None:
        super().__init__({"peername": ("127.0.0.1", 9)})
        self._life = process.life
        self._loop = loop
        self._protocol = protocol
        self._received = received
        self._closed = closed
        self._is_closing = False
        self._reads_by_request = reads_by_request
        self._unread = bytearray()
        self._is_paused = False
        self.unread_max = 0  # most bytes that were unread at a time

    def carry(self, data: bytes | bytearray) -> None:
        """Bring the broker what the client sent."""
        self._loop.deliveries += 1
        self._loop.deliver(self._life, lambda: self._carry(data))

    def read(self, size: int) -> None:
        """Let the peer read up to `size` bytes of the responses that wait for it."""
        piece = bytes(self._unread[:size])
        del self._unread[:size]
        if piece:
            self._received(piece)
        if self._is_paused and len(self._unread) < UNREAD_HIGH_BYTES // 2:
            self._is_paused = False
            self._loop.deliver(self._life, self._protocol.resume_writing)

    def hang_up(self) -> None:
        """Let the broker notice that the client is gone."""
        self._loop.deliver(self._life, self._lose)

    def _carry(self, data: bytes | bytearray) -> None:
        sent = 0
        while sent < len(data) and not self._is_closing:
            buffer = self._protocol.get_buffer(-1)
            piece = data[sent : sent + len(buffer)]
            buffer[: len(piece)] = piece
            sent += len(piece)
            self._protocol.buffer_updated(len(piece))

    def _lose(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._loop.deliveries += 1
            self._loop.call_soon(self._protocol.connection_lost, None)

    # ---- what the server asks of a transport

    def write(self, data: Any) -> None:
        if self._is_closing:
            return
        if not self._reads_by_request:
            self._received(bytes(data))
            return
        self._unread += data
        self.unread_max = max(self.unread_max, len(self._unread))
        if len(self._unread) > UNREAD_HIGH_BYTES and not self._is_paused:
            self._is_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        if not self._is_closing:
            self._lose()
            self._closed()

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self._is_closing

    def get_write_buffer_size(self) -> int:
        return len(self._unread)

    def pause_reading(self) -> None:
        """Clients of the world ask one thing at a time: there is nothing more to read."""

    def resume_reading(self) -> None:
        """As above."""
