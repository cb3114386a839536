"""The inside of a broker without its server, on a disk and a clock that tests hold."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from uuid import uuid4

from headrace.broker.config import Config
from headrace.broker.services import Services
from headrace.log.memory_disk import MemoryDisk, VirtualClock

SECONDS_MAX = 60


class Inside:
    """Its services; `_` stands for a dot in the names of settings."""

    new_clock: Callable[[], VirtualClock] = VirtualClock

    def __init__(
        self,
        disk: MemoryDisk | None = None,
        **settings: str,
    ) -> None:
        self.disk = disk or MemoryDisk()
        self.clock = self.new_clock()
        given = {name.replace("_", "."): text for name, text in settings.items()}
        self.services = Services(Config.parse(given), self.disk, self.clock, uuid4)
        self.services.topics.load()

    async def start(self) -> None:
        await self.services.start()


B = TypeVar("B", bound=Inside)


def play(make: Callable[[], B], scene: Callable[[B], Coroutine[Any, Any, None]]) -> None:
    """Play a scene in a broker that is started before and closed after it."""

    async def go() -> None:
        broker = make()
        await broker.start()
        try:
            await scene(broker)
        finally:
            await broker.services.close()

    asyncio.run(asyncio.wait_for(go(), SECONDS_MAX))


@asynccontextmanager
async def counted_turns() -> AsyncIterator[list[int]]:
    """Count the turns of the event loop in the one element of what is yielded."""
    turns = [0]

    async def count() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await asyncio.sleep(0)
    try:
        yield turns
    finally:
        counting.cancel()
