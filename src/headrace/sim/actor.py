"""The base of actors that use one connection after the other until the faults are over."""

import asyncio
from abc import ABC, abstractmethod
from random import Random
from typing import TYPE_CHECKING, ClassVar

from headrace.sim.network import Connection, Lost

if TYPE_CHECKING:
    from headrace.sim.world import World

Range = tuple[float, float]  # seconds, from which a pause is drawn


class Actor(ABC):
    """Takes turns over one connection, and over a new one when that is lost."""

    _pause: ClassVar[Range] = (0.0, 0.25)  # before each turn
    _lost_pause: ClassVar[Range] = (0.0, 0.3)  # after a lost connection

    def __init__(self, world: "World", name: str) -> None:
        self.name = name
        self._world = world
        self._rng = Random(f"{world.seed}/{name}")

    async def run(self) -> None:
        """Take turns until the faults are over."""
        world = self._world
        while not world.is_quiet:
            try:
                connection = Connection(world, self._rng, client=self.name)
                while not world.is_quiet:
                    await asyncio.sleep(self._rng.uniform(*self._pause))
                    if not world.is_quiet:
                        await self._turn(connection)
            except Lost:
                await self._pause_after_loss()

    async def _pause_after_loss(self) -> None:
        """Wait a drawn time before the next connection."""
        await asyncio.sleep(self._rng.uniform(*self._lost_pause))

    @abstractmethod
    async def _turn(self, connection: Connection) -> None:
        """Send what this turn is about. Raises: Lost."""
