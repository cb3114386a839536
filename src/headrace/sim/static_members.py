"""Static members of consumer groups (KIP-345), in the classic and in the consumer protocol.

They end without leaving and return under a new member id, as a process does that restarts. The old
process may go on for a moment: what it sends must be refused.
"""

from typing import TYPE_CHECKING, Any

from headrace.sim.consumers import BEAT, CONSUMER_BEAT, ClassicReader, ConsumerReader
from headrace.sim.facts import Place
from headrace.sim.network import Connection

if TYPE_CHECKING:
    from headrace.sim.world import World

_RESTARTS = 0.08  # of the pauses
_LEAVES_FOR_NOW = 0.5  # of the restarts of a member of the consumer protocol
_OLD_ACTS = 0.5  # of the returns are followed by requests of the old process
_AWAY = -2  # the epoch of a static member that leaves for now


class StaticClassicReader(ClassicReader):
    """A static member of a classic group; only static members belong to that group."""

    def __init__(self, world: "World", name: str, group: str, topics: list[str]) -> None:
        super().__init__(world, name, group, topics)
        self._instance = name
        self._old: tuple[str, int] | None = None

    async def _pause(self) -> bool:
        if self._rng.random() < _RESTARTS:
            self._step("restarts")
            self._old = self._member, self._generation
            self._member = ""
            return False
        return await super()._pause()

    async def _begin_at(self, connection: Connection, places: Any) -> None:
        await super()._begin_at(connection, places)
        old, self._old = self._old, None
        if old is not None and self._rng.random() < _OLD_ACTS:
            await self._act_as(connection, *old)

    async def _act_as(self, connection: Connection, member: str, generation: int) -> None:
        """Send what the old process may still send: a commit and a heartbeat."""
        statics = self._world.statics
        replaced = statics.is_replaced(self.group, self.name, member)
        place: Place = self._rng.choice(self._world.record_places(self._topics))
        codes = {"commit": await self._commit_one(connection, place, 0, member, generation)}
        answer = await connection.call(
            BEAT, 4, lambda _: None, group_id=self.group, generation_id=generation,
            member_id=member, group_instance_id=self.name,
        )  # fmt: skip
        codes["heartbeat"] = int(answer.error_code)
        self._step(f"acts as {member}: {codes}")
        for what, code in codes.items():
            still = statics.is_replaced(self.group, self.name, member)
            if code == 0 and replaced and still:
                statics.served_old(self.group, self.name, member, what)

    async def _leave(self, connection: Connection) -> None:
        if self._rng.random() < 0.7:
            self._step("ends without leaving")
            self._member = ""
            return
        self._world.statics.leaving(self.group, self.name)
        await super()._leave(connection)

    def _joining(self) -> None:
        self._world.statics.joining(self.group, self.name, self._member)

    def _is_joined(self, answer: Any) -> None:
        statics = self._world.statics
        if answer.error_code:
            statics.refused(self.group, self.name)
        else:
            statics.joined(self.group, self.name, answer.member_id, answer.generation_id)

    def _is_synced(self, generation: int) -> None:
        self._world.statics.synced(self.group, self.name, generation)

    def _has_beaten(self, asked_us: int) -> None:
        self._world.statics.answered(self.group, self.name, self._member, asked_us)


class StaticConsumerReader(ConsumerReader):
    """A static member of a group of the consumer protocol."""

    def __init__(self, world: "World", name: str, group: str, topics: list[str]) -> None:
        super().__init__(world, name, group, topics)
        self._instance = name
        self._beat_us = 0
        self._is_in_the_way = False
        self._restarts = False

    async def _pause(self) -> bool:
        self._restarts = self._rng.random() < _RESTARTS
        if self._restarts:
            self._step("restarts")
            return False
        return await super()._pause()

    async def _take_part(self, connection: Connection) -> None:
        """Join under a new member id; a live member with the instance must be in the way."""
        statics, member = self._world.statics, f"{self.name}.{self._number + 1}"
        taken = statics.is_taken(self.group, self.name, member)
        self._is_in_the_way = taken
        await super()._take_part(connection)
        if self._restarts and connection.is_open and self._rng.random() < _LEAVES_FOR_NOW:
            await self._leave(connection)

    def _is_served(self) -> None:
        statics = self._world.statics
        if self._is_in_the_way:
            self._is_in_the_way = False
            if statics.is_taken(self.group, self.name, self._member):
                statics.took_over(self.group, self.name, self._member)
        statics.answered(self.group, self.name, self._member, self._beat_us)

    def _fields(self, epoch: int, *rest: Any) -> dict[str, Any]:
        self._beat_us = self._world.loop.now_us
        return super()._fields(epoch, *rest)

    async def _leave(self, connection: Connection) -> None:
        """Leave for now, as a consumer does that closes."""
        self._step("is away for now")
        self._world.statics.away(self.group, self.name)
        await connection.call(CONSUMER_BEAT, 1, lambda _: None, **self._fields(_AWAY, None, None))
