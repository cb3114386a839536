"""One life of a broker: the shipped services and handlers, without the sockets.

`serve` does with a frame what the server does with one that a connection brought; `Connection` in
`network.py` is the other end.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

from headrace.broker.config import Config
from headrace.broker.dispatch import Dispatcher, Peer
from headrace.broker.request import HangUp
from headrace.broker.services import Services
from headrace.core.types import MonoMs, Now, WallMs
from headrace.log.api import Disk
from headrace.sim.facts import Place
from headrace.sim.loop import VirtualLoop

Answer = Callable[[bytes | None], None]  # the response, or None when the connection is closed


class WorldClock:
    """`log.api.Clock` of a machine: elapsed time is the loop's, the wall clock can be set."""

    def __init__(self, loop: VirtualLoop, wall_ms: int) -> None:
        self._loop = loop
        self.ahead_ms = wall_ms

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
        bug: told of an exception that no handler may raise.
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
        bug: Callable[[str], None],
        start_moved: Callable[[Place, int], None],
    ) -> None:
        self.life = life
        self.services = Services(config, disk, clock, new_id)
        self.services.partitions.on_start_moved.append(
            lambda one: start_moved((one.topic.name, one.index), one.start_offset)
        )
        self.is_up = False
        self._dispatcher = Dispatcher(self.services)
        self._loop = loop
        self._bug = bug
        self._under_way: dict[int, asyncio.Task[None]] = {}

    async def start(self) -> None:
        """Come up. Raises: as `open_services` and `Services.start` do."""
        self.services.topics.load()
        await self.services.start()
        self.is_up = True

    async def stop(self) -> None:
        """Go down in order. Raises: OSError."""
        self.is_up = False
        await self.services.close()

    @property
    def machines(self) -> list[object]:
        """The states of the share-group shards: others when they were rebuilt."""
        return [shard.machine for shard in self.services.shares.shards]

    def serve(self, frame: bytearray, connection_id: int, answer: Answer) -> None:
        """Answer one frame of a connection, now or later."""
        self._loop.as_life(self.life, lambda: self._serve(frame, connection_id, answer))

    def _serve(self, frame: bytearray, connection_id: int, answer: Answer) -> None:
        try:
            response = self._dispatcher.respond(frame, Peer(connection_id, "127.0.0.1", 9))
        except Exception as error:
            self._hang_up(error, connection_id, answer)
            return
        if isinstance(response, list):
            answer(b"".join(response))
            return
        work = self._finish(response, connection_id, answer)
        self._under_way[connection_id] = self._loop.create_task(work)

    async def _finish(
        self, response: Coroutine[Any, Any, Any], connection_id: int, answer: Answer
    ) -> None:
        try:
            buffers = await response
        except Exception as error:
            del self._under_way[connection_id]
            self._hang_up(error, connection_id, answer)
        except asyncio.CancelledError:
            del self._under_way[connection_id]
            self.services.disconnected(connection_id)
            raise
        else:
            del self._under_way[connection_id]
            answer(b"".join(buffers))

    def _hang_up(self, error: Exception, connection_id: int, answer: Answer) -> None:
        if not isinstance(error, HangUp) or error.blame != "fault":
            self._bug(f"a handler raised {error!r}")
        answer(None)
        self.disconnected(connection_id)

    def disconnected(self, connection_id: int) -> None:
        """The peer of a connection is gone; a request of it is given up first."""
        task = self._under_way.get(connection_id)
        if task is not None:
            task.cancel()
            return
        self._loop.as_life(self.life, lambda: self.services.disconnected(connection_id))
