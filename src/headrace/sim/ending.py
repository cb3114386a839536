"""The end of a history: faults have stopped, honest members take over, nothing may be missing.

Everything has to be finished in bounded time. Then the broker dies once more, and what it says
afterwards must be what it said before.
"""

import asyncio
from collections import Counter
from collections.abc import Coroutine, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from headrace.sim.consumers import (
    LATEST,
    UNKNOWN_TOPIC,
    fetch_partition,
    is_intact,
    list_offset,
    log_start,
)
from headrace.sim.drivers import LeaseDriver
from headrace.sim.facts import Place, Queue
from headrace.sim.loop import OUTSIDE
from headrace.sim.members import HONEST, ShareMember
from headrace.sim.membership_auditor import imbalance
from headrace.sim.network import Connection, Lost
from headrace.sim.options import DEAD_LETTERS
from headrace.sim.process import Process
from headrace.sim.resets import PLACE
from headrace.sim.workload import Administrator
from headrace.wire import batches

if TYPE_CHECKING:
    from headrace.sim.world import World

_SECONDS_MAX = 120.0
_MEMBERS_MAX = 3  # of a group
_ASSIGNED_SECONDS_MAX = 60.0
_LOOK_SECONDS = 1.0
_PREFIX = "__dlq.errors."


class Ending:
    """Brings a world to its end and audits it."""

    def __init__(self, world: "World", drivers: Sequence[LeaseDriver]) -> None:
        self._world = world
        self._drivers = drivers
        self._admin = Administrator(world, "witness")
        self._rng = Random(f"{world.seed}/ending")
        self._were_set_back: set[Queue] = set()  # groups that were set back, and where
        self._copies: dict[Queue, list[int]] = {}  # dead letters that were there before
        self._listed: dict[Queue, list[int]] = {}  # and what was listed
        self._unassigned: dict[str, str] = {}  # why the assignment of a group is not right yet

    def run(self) -> None:
        """Consume what is left, then look whether anything is missing."""
        world = self._world
        if not self._settle() or not self._consume("honest"):
            return
        self._audit()
        if world.options.administers and not world.failed:
            self._set_back()
        if not world.failed:
            world.kill(power_cut=world.options.fsync)
            self._do(self._look_again(), "the broker is not of use after a crash in quiet times")

    def _settle(self) -> bool:
        """Whether drivers settle all that they hold."""
        for driver in self._drivers:
            self._do(driver.settle(), f"{driver.name} cannot settle what it holds")
        return not self._world.failed

    def _consume(self, name: str) -> bool:
        """Whether honest members finish all there is."""
        world = self._world
        members: dict[str, list[ShareMember]] = {}
        for group in world.groups:
            members[group] = self._members(group, f"{group}-{name}")
            world.begins_again(group)
            for one in members[group]:
                world.loop.spawn(OUTSIDE, one.run())
        is_assigned = world.finish(self._all_assigned(members), _ASSIGNED_SECONDS_MAX)
        if not is_assigned and not world.failed:
            for group, what in self._unassigned.items():
                world.auditor.broken(
                    f"group {group}: {_ASSIGNED_SECONDS_MAX:.0f} s after its members joined {what}"
                )
        return self._do(
            self._all_finished(),
            f"after {_SECONDS_MAX:.0f} s without faults, not all is finished",
        )

    def _members(self, group: str, name: str) -> list[ShareMember]:
        """Return new members of a group, of which the first subscribes to every topic."""
        world = self._world
        count = 1 if world.options.crowds else self._rng.randint(1, _MEMBERS_MAX)
        every = ("orders", "extra")
        topics = [every] + [self._rng.choice((every, every[:1])) for _ in range(count - 1)]
        return [
            ShareMember(world, f"{name}-{number}", group, some, HONEST)
            for number, some in enumerate(topics)
        ]

    async def _all_assigned(self, members: dict[str, list[ShareMember]]) -> None:
        """Return once the members of every group have all partitions, in equal parts."""
        waiting = dict(members)
        while waiting:
            await asyncio.sleep(_LOOK_SECONDS)
            for group, some in list(waiting.items()):
                what = imbalance(
                    self._world.places(),
                    {one.name: one.topics for one in some},
                    {one.name: one.places for one in some},
                )
                if what is None:
                    del waiting[group]
                    self._unassigned.pop(group, None)
                else:
                    self._unassigned[group] = what

    def _do(self, work: Coroutine[Any, Any, None], bug: str) -> bool:
        """Whether something that must come to its end does."""
        world = self._world
        if world.failed:
            work.close()
        elif not world.finish(work, _SECONDS_MAX) and not world.failed:
            world.bug(bug)
        return not world.failed

    def _set_back(self) -> None:
        """Set every group back, have it finish once more, and look whether it did.

        Drivers hold something when that happens. The broker dies in between: what it answered last
        must be on the disk.
        """
        world = self._world
        for group in world.groups:
            self._do(world.resets.set_back(group), f"group {group} cannot be set back")
            self._were_set_back.add((group, PLACE))
        for driver in self._drivers:
            self._do(driver.take(), f"{driver.name} cannot acquire")
            self._do(world.resets.set_back(driver.group), f"{driver.name} is in the way for ever")
            driver.set_back(PLACE)
        if world.failed:
            return
        world.kill(power_cut=world.options.fsync)
        if self._settle() and self._consume("again"):
            self._audit()

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
        await self._world.resets.look()
        waiting = list(self._world.groups)
        while waiting:
            await asyncio.sleep(_LOOK_SECONDS)
            if await self._seen(waiting[0]) is not None:
                waiting.pop(0)

    def _audit(self) -> None:
        world = self._world
        copies = self._dead_letters() if world.options.dead_letters else None
        process = self._broker()
        if process is None:
            return
        services = process.services
        for group in world.groups:
            for key, share in services.shares.machine(group).partitions_of(group).items():
                partition = services.partitions.get(key.topic_id, key.partition)
                if partition is None:
                    gone = world.topic_names[key.topic_id]
                    world.auditor.broken(f"{group} still has a queue of {gone}, which was deleted")
                    continue
                place = (world.topic_names[key.topic_id], key.partition)
                queue = (group, place)
                mine = None if copies is None else self._new(self._copies, queue, copies)
                archived = services.shares.machine(group).archive.lists.get(key)
                runs = archived.runs if archived is not None else []
                rows = {queue: [offset for run in runs for offset in run.span]}
                listed = self._new(self._listed, queue, rows)
                start, end = partition.log.start_offset, partition.high_watermark
                world.auditor.ended(queue, share.start, start, end, mine, listed)

    def _dead_letters(self) -> dict[Queue, list[int]]:
        """Read the dead letters; the operator repairs damage that the reading meets."""
        found: dict[Queue, list[int]] = {}
        self._do(self._read_dead_letters(found), "the dead letters cannot be read")
        return found

    async def _read_dead_letters(self, into: dict[Queue, list[int]]) -> None:
        """Read offsets of records that have dead letters, by queue, as often as they have one."""
        while True:
            try:
                connection = Connection(self._world, self._rng, client="witness")
                try:
                    if await self._read_copies(connection, into):
                        return
                finally:
                    connection.close()
            except Lost:
                pass
            await asyncio.sleep(_LOOK_SECONDS)

    async def _read_copies(self, connection: Connection, into: dict[Queue, list[int]]) -> bool:
        """Read all dead letters over one connection. Returns: whether the log is readable."""
        world, place = self._world, (DEAD_LETTERS, 0)
        name = f"{DEAD_LETTERS}-0"
        into.clear()
        position = await log_start(connection, place)
        code, end = await list_offset(connection, place, LATEST, lambda _: None)
        if code == UNKNOWN_TOPIC:
            world.auditor.broken("the topic of the dead letters is gone")
            return True
        while code == 0 and position < end:
            part = await fetch_partition(connection, place, position, 0, lambda _: None)
            code, data = int(part.error_code), part.records or b""
            if code == 0 and not is_intact(data):
                world.is_served_damaged(name)
                return False
            if code or not data:
                world.is_unreadable(name)
                return False
            for record in batches.records(data):
                if record.offset >= position:
                    queue, offset = _origin(record)
                    into.setdefault(queue, []).append(offset)
            position = batches.headers(data)[-1].last_offset + 1
        return code == 0

    def _broker(self) -> Process | None:
        """Return the broker once it is of use; the operator may replace it at any time.

        Returns: None after a failure.
        """
        world = self._world
        while not world.failed:
            process = world.process
            if process is not None and _is_of_use(process):
                return process
            self._do(self._up(), "the broker is not of use after faults have stopped")
        return None

    async def _up(self) -> None:
        """Wait until a broker is of use."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            process = self._world.process
            if process is not None and _is_of_use(process):
                return

    def _new(
        self, before: dict[Queue, list[int]], queue: Queue, now: dict[Queue, list[int]]
    ) -> list[int]:
        """Dead letters of a queue, or what is listed of it, since it was set back, if it was."""
        there = now.get(queue, [])
        if queue not in self._were_set_back:
            before[queue] = there
            return there
        return list((Counter(there) - Counter(before.get(queue, []))).elements())


def _is_of_use(process: Process) -> bool:
    return process.is_up and not process.refusals


def _origin(record: batches.Record) -> tuple[Queue, int]:
    """Return the queue and the offset of the record that a dead letter is a copy of."""
    values = {name: (value or b"").decode() for name, value in record.headers}
    place = values[f"{_PREFIX}topic"], int(values[f"{_PREFIX}partition"])
    return (values[f"{_PREFIX}group"], place), int(values[f"{_PREFIX}offset"])
