"""The end of a history for records and positions: read everything, and let offsets expire.

Every log is read whole. Then one member of each group stays active for longer than offsets are
kept, so that what it subscribes to must stay and what it does not must go; then everybody leaves,
and all offsets must go. At last the broker dies once more, and the logs must be what they were.
"""

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import TYPE_CHECKING, Any

from headrace.sim.consumers import (
    ClassicReader,
    ConsumerReader,
    Reader,
    fetch,
    fetch_offsets,
    log_end,
    log_start,
    look_up,
)
from headrace.sim.facts import Place
from headrace.sim.group_ending import GroupEnding
from headrace.sim.loop import OUTSIDE
from headrace.sim.network import Connection, Lost
from headrace.sim.offset_rules import CONNECT, SIMPLE, OffsetRules
from headrace.sim.options import OFFSETS_RETENTION_MINUTES

if TYPE_CHECKING:
    from headrace.sim.world import World

_SECONDS_MAX = 120.0
_RETRY_SECONDS = 0.5
_FETCHES_MAX = 400
_RETENTION_US = OFFSETS_RETENTION_MINUTES * 60_000_000
# Longer than three sweeps, and than the longest session of a member with what a stall adds to it.
_CHECKS_US = 8_000_000
_VISITS = 3
_LOOK_UPS = 3  # by time, of each log


class RecordEnding:
    """Bring the records of a world to their end and audit them."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._rng = Random(f"{world.seed}/record-ending")
        self._times = Random(f"{world.seed}/times")

    def run(self) -> None:
        """Read, expire, die, and read again."""
        world = self._world
        self._do(self._read_everything(), "the logs cannot be read")
        if not world.failed:
            GroupEnding(world).run()
        if world.failed:
            return
        expires = not world.offsets.clock_was_set
        if expires:
            if world.options.stays:
                self._stay_active()
            self._expire()
        if not world.failed and world.options.damages:
            world.stop_and_damage()
            self._do(self._read_everything(), "the logs cannot be read after damage")
        if not world.failed:
            world.kill(power_cut=world.options.fsync)
            self._do(self._read_everything(), "the logs cannot be read after a crash")
        if expires and world.offsets.has_all_commits:
            self._look_at_all()
        elif expires:  # what a repair brought back has to expire, too
            self._expire()

    def _do(self, work: Coroutine[Any, Any, None], bug: str) -> None:
        world = self._world
        if world.failed:
            work.close()
        elif not world.finish(work, _SECONDS_MAX) and not world.failed:
            world.bug(bug)

    async def _read_everything(self) -> None:
        for place in [*self._world.record_places(), *self._world.keeper.places()]:
            while True:
                try:
                    connection = Connection(self._world, self._rng)
                    try:
                        if await self._read(connection, place):
                            break
                    finally:
                        connection.close()
                except Lost:
                    pass
                await asyncio.sleep(_RETRY_SECONDS)
        self._world.history.step("witness", "has read every log")

    async def _read(self, connection: Connection, place: Place) -> bool:
        """Whether a log could be read whole; the auditor gets what it contains."""
        world = self._world
        start = await log_start(connection, place)
        code, _ = await log_end(world, connection, place)
        if code:
            return False
        position = start
        seen: dict[int, tuple[bytes | None, bytes | None]] = {}
        for _ in range(_FETCHES_MAX):
            code, last = await fetch(world, connection, place, position, 0, seen)
            if code:
                return False
            if last < 0:
                break
            position = last + 1
        world.records.ended(place, start, seen)
        for _ in range(_LOOK_UPS):
            time = world.records.drawn_time(place, self._times)
            if (await look_up(world, connection, place, time))[0]:
                return False
        return True

    def _stay_active(self) -> None:
        """One member of each group stays for longer than offsets are kept, and leaves."""
        world = self._world
        rules = OffsetRules(world)
        readers: list[Reader] = [rules.worker]
        for protocol in world.options.consumers:
            kind: type[Reader] = ClassicReader if protocol == "classic" else ConsumerReader
            reader = kind(world, f"{protocol}-honest", f"{protocol}-group", ["ledger"])
            reader.is_honest = True
            readers.append(reader)
        for reader in readers:
            world.loop.spawn(OUTSIDE, reader.run())
        self._do(rules.begin(), "offsets cannot be committed")
        world.run_until(world.loop.now_us + _RETENTION_US // 2 + _CHECKS_US)
        self._do(rules.midway(), "offsets cannot be deleted")
        world.run_until(world.loop.now_us + _RETENTION_US // 2)
        for number in range(_VISITS):
            self._do(rules.visit(number), "a visitor cannot join and leave")
        self._do(rules.end(), "offsets cannot be read")
        for protocol in world.options.consumers:
            self._do(self._look(f"{protocol}-group", gone=["table"]), "offsets cannot be read")
        for reader in readers:
            reader.is_honest = False
        world.run_until(world.loop.now_us + _CHECKS_US)
        if not world.failed and self._rng.random() < 0.5:
            world.kill(power_cut=False)
            world.run_until(world.loop.now_us + _CHECKS_US)
        for reader in readers:  # the retention of an empty group begins when it becomes empty
            self._do(self._look(reader.group, gone=[]), "offsets cannot be read")

    def _expire(self) -> None:
        """Nobody is in any group: after the retention every offset is gone."""
        world = self._world
        world.history.step("world", "quiet days pass")
        world.offsets.lost_sessions()
        world.loop.suspend(2 * _RETENTION_US)
        world.run_until(world.loop.now_us + _CHECKS_US)
        world.loop.suspend(2 * _RETENTION_US)
        world.run_until(world.loop.now_us + _CHECKS_US)
        self._look_at_all()

    def _look_at_all(self) -> None:
        """Check that no committed offset is left."""
        groups = [f"{protocol}-group" for protocol in self._world.options.consumers]
        for group in [*groups, SIMPLE, CONNECT]:
            if not self._world.failed:
                self._do(self._look(group, ["ledger", "table"]), "offsets cannot be read")
        self._do(self._look_at_groups(groups), "groups cannot be listed")

    async def _look_at_groups(self, gone: list[str]) -> None:
        """Check that groups without members and offsets are not listed any more."""
        left = await OffsetRules(self._world).listed()
        for group in sorted(left & {*gone, SIMPLE, CONNECT}):
            self._world.records_broken(f"group {group} is listed after all its offsets expired")

    async def _look(self, group: str, gone: list[str]) -> None:
        """Read every committed offset of a group; those of some topics have to be gone."""
        world = self._world
        while True:
            try:
                connection = Connection(world, self._rng)
                try:
                    found = await fetch_offsets(world, connection, group, world.record_places())
                finally:
                    connection.close()
                break
            except Lost:
                await asyncio.sleep(_RETRY_SECONDS)
        world.history.step("witness", f"sees {group}: {sorted(found.items())}")
        for place, offset in sorted(found.items()):
            if place[0] in gone:
                world.offsets.has_expired(group, place, offset)
