"""The end of a history for consumer groups: each partition has one reader, which reads all of it.

New members join every group after the faults have stopped. A partition that the broker assigns to
no member, or whose records no member receives, keeps the group from its end.
"""

import asyncio
from random import Random
from typing import TYPE_CHECKING

from headrace.sim.consumers import ClassicReader, ConsumerReader, Reader, log_end
from headrace.sim.facts import Place
from headrace.sim.loop import OUTSIDE
from headrace.sim.network import Connection, Lost

if TYPE_CHECKING:
    from headrace.sim.world import World

_TOPIC = "ledger"
_MEMBERS_MAX = 3  # of a group
_SECONDS_MAX = 60.0
_LOOK_SECONDS = 0.5
_PAUSE_SECONDS = 0.2  # of a member between two reads


class GroupEnding:
    """Let new members of every consumer group read the logs to their ends."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._rng = Random(f"{world.seed}/group-ending")
        self._places = world.record_places([_TOPIC])
        self._left: dict[str, dict[Place, str]] = {}  # by group: partitions that are not read

    def run(self) -> None:
        """Join, read, and leave."""
        world = self._world
        groups = {name: self._readers(name) for name in self._names()}
        tasks = [world.loop.spawn(OUTSIDE, one.run()) for some in groups.values() for one in some]
        if not world.finish(self._all_read(groups), _SECONDS_MAX) and not world.failed:
            for group, places in self._left.items():
                for (topic, index), what in places.items():
                    world.records_broken(
                        f"group {group}: after {_SECONDS_MAX:.0f} s without faults {topic}-{index}"
                        f" is not read to its end: {what}"
                    )
        for readers in groups.values():
            for one in readers:
                one.is_honest = False
        if not world.finish(_ended(tasks), _SECONDS_MAX) and not world.failed:
            world.bug("members of consumer groups cannot leave")

    def _names(self) -> list[str]:
        options = self._world.options
        kinds = ("group", "static") if options.static_members else ("group",)
        return [f"{protocol}-{kind}" for protocol in options.consumers for kind in kinds]

    def _readers(self, group: str) -> list[Reader]:
        kind: type[Reader] = ClassicReader if group.startswith("classic") else ConsumerReader
        members = self._rng.randint(1, _MEMBERS_MAX)
        readers = [kind(self._world, f"{group}-end-{n}", group, [_TOPIC]) for n in range(members)]
        for one in readers:
            one.is_honest = True
            one.pause_seconds = _PAUSE_SECONDS
        return readers

    async def _all_read(self, groups: dict[str, list[Reader]]) -> None:
        """Return once each partition has one reader in each group, at the end of the log."""
        waiting = dict(groups)
        while waiting:
            await asyncio.sleep(_LOOK_SECONDS)
            ends = await self._ends()
            for group, readers in list(waiting.items()):
                left = self._left[group] = _not_read(readers, self._places, ends)
                if not left:
                    self._world.history.step("witness", f"{group} has read every log")
                    del waiting[group]

    async def _ends(self) -> dict[Place, int]:
        """Return where the logs end that can be read now."""
        found: dict[Place, int] = {}
        try:
            connection = Connection(self._world, self._rng)
            try:
                for place in self._places:
                    code, end = await log_end(self._world, connection, place)
                    if code == 0:
                        found[place] = end
            finally:
                connection.close()
        except Lost:
            pass
        return found


def _not_read(
    readers: list[Reader], places: list[Place], ends: dict[Place, int]
) -> dict[Place, str]:
    """Return the partitions without one reader at their end, and why."""
    found: dict[Place, str] = {}
    for place in places:
        positions = [at for one in readers if (at := one.position(place)) is not None]
        if len(positions) != 1:
            found[place] = f"{len(positions)} members have it"
        elif positions[0] != ends.get(place):
            found[place] = f"its reader is at {positions[0]} of {ends.get(place)}"
    return found


async def _ended(tasks: "list[asyncio.Task[None]]") -> None:
    for one in tasks:
        await one
