"""The end of a history: faults have stopped, honest members take over, nothing may be missing.

Everything has to be finished in bounded time. Then the broker dies once more, and what it says
afterwards must be what it said before.
"""

import asyncio
from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING

from headrace.broker.partitions import Partition
from headrace.sim.drivers import LeaseDriver
from headrace.sim.facts import Place, Queue
from headrace.sim.members import HONEST, ShareMember
from headrace.sim.network import Connection, Lost
from headrace.sim.workload import Administrator
from headrace.wire import batches

if TYPE_CHECKING:
    from headrace.sim.world import World

_SECONDS_MAX = 120.0
_LOOK_SECONDS = 1.0
_PREFIX = "__dlq.errors."
_READ_BYTES = 1 << 20


class Ending:
    """Brings a world to its end and audits it."""

    def __init__(self, world: "World", drivers: Sequence[LeaseDriver]) -> None:
        self._world = world
        self._drivers = drivers
        self._admin = Administrator(world, "witness")
        self._rng = Random(f"{world.seed}/ending")

    def run(self) -> None:
        """Consume what is left, then look whether anything is missing."""
        world = self._world
        for driver in self._drivers:
            if not world.finish(driver.settle(), _SECONDS_MAX):
                world.bug(f"{driver.name} cannot settle what it holds")
                return
        for group in world.groups:
            member = ShareMember(world, f"{group}-honest", group, ("orders", "extra"), HONEST)
            world.loop.spawn(0, member.run())
        if not world.finish(self._all_finished(), _SECONDS_MAX):
            if not world.failed:
                world.bug(f"after {_SECONDS_MAX:.0f} s without faults, not all is finished")
            return
        self._audit()
        if not world.failed:
            world.kill(power_cut=world.options.fsync)
            if not world.finish(self._look_again(), _SECONDS_MAX) and not world.failed:
                world.bug("the broker is not of use after a crash in quiet times")

    async def _all_finished(self) -> None:
        """Return once every group has finished every record."""
        waiting = list(self._world.groups)
        while waiting:
            await asyncio.sleep(_LOOK_SECONDS)
            for group in list(waiting):
                seen = await self._seen(group)
                if seen and all(start == end for start, _, end in seen.values()):
                    self._world.done(group)
                    waiting.remove(group)

    async def _seen(self, group: str) -> dict[Place, tuple[int, int, int]] | None:
        try:
            connection = Connection(self._world, self._rng)
            try:
                return await self._admin.look(connection, group)
            finally:
                connection.close()
        except Lost:
            return None

    async def _look_again(self) -> None:
        waiting = list(self._world.groups)
        while waiting:
            await asyncio.sleep(_LOOK_SECONDS)
            if await self._seen(waiting[0]) is not None:
                waiting.pop(0)

    def _audit(self) -> None:
        world = self._world
        process = world.process
        assert process is not None, "it was asked a moment ago"
        services = process.services
        copies = None
        if world.options.dead_letters:
            topic = services.partition("dead-letters", 0)
            if topic is None:
                world.auditor.broken("the topic of the dead letters is gone")
                return
            copies = _copies(topic)
        for group in world.groups:
            for key, share in services.shares.machine(group).partitions_of(group).items():
                partition = services.partitions.get(key.topic_id, key.partition)
                if partition is None:
                    gone = world.topic_names[key.topic_id]
                    world.auditor.broken(f"{group} still has a queue of {gone}, which was deleted")
                    continue
                place = (world.topic_names[key.topic_id], key.partition)
                mine = None if copies is None else copies.get((group, place), [])
                log = partition.log
                world.auditor.ended(
                    (group, place), share.start, log.start_offset, partition.high_watermark, mine
                )


def _copies(partition: Partition) -> dict[Queue, list[int]]:
    """Offsets of the records that have dead letters, by queue, as often as they have one."""
    found: dict[Queue, list[int]] = {}
    offset = partition.log.start_offset
    while offset < partition.log.end_offset:
        piece = partition.log.read(offset, _READ_BYTES)
        for record in batches.records(piece.data):
            told = {name: (value or b"").decode() for name, value in record.headers}
            place = (told[f"{_PREFIX}topic"], int(told[f"{_PREFIX}partition"]))
            queue = (told[f"{_PREFIX}group"], place)
            found.setdefault(queue, []).append(int(told[f"{_PREFIX}offset"]))
        offset = piece.headers[-1].last_offset + 1
    return found
