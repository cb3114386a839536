"""What befalls the broker: crashes, failing disks, stopped time; all drawn from the seed."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.sim.world import World

_PAUSE_SECONDS = 0.8  # between two blows, on average half of it
_OPERATIONS_MAX = 40  # of the disk, until a crash that was drawn comes
_SUSPENDED_US_MAX = 20_000_000
_HELD_US_MAX = 6_000_000  # the broker's process alone
_HOLDS = 0.5  # of the suspensions
_CLOCK_SET_MS_MAX = (1_500_000, 1_500_000, 40 * 86_400_000)
_FAILING_SECONDS_MAX = 3.0
_SCRUB_SECONDS_MAX = 1.5  # after damage under the broker
_WRITES = ("append", "open", "write", "rename", "remove", "truncate")
_READS = ("pread", "read", "size")

Blow = Callable[[], Awaitable[None]]


class Fate:
    """Deals the faults that the options have."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._rng = Random(f"{world.seed}/fate")
        self._holds = Random(f"{world.seed}/holds")
        options = world.options
        self._blows: list[Blow] = [
            blow
            for wanted, blow in (
                (options.kills, self._kill),
                (options.power_cuts, self._cut_power),
                (options.stops, self._stop),
                (options.sync_errors, self._fail_syncs),
                (options.write_errors, self._fail_writes),
                (options.read_errors, self._fail_reads),
                (options.full_disks, self._fill_disk),
                (options.suspends, self._suspend),
                (options.clock_set, self._set_clock),
                (options.rots, self._rot),
            )
            if wanted
        ]

    async def run(self) -> None:
        """Deal one blow after the other until all is to be quiet."""
        while self._blows and not self._world.is_quiet:
            await asyncio.sleep(self._rng.uniform(0.0, _PAUSE_SECONDS))
            await self._rng.choice(self._blows)()

    async def _kill(self) -> None:
        self._world.crash_after(self._rng.randrange(_OPERATIONS_MAX), power_cut=False)

    async def _cut_power(self) -> None:
        self._world.crash_after(self._rng.randrange(_OPERATIONS_MAX), power_cut=True)

    async def _stop(self) -> None:
        self._world.stop_wanted = True
        self._world.loop.halted = True

    async def _fail_syncs(self) -> None:
        await self._failing("sync")

    async def _fail_writes(self) -> None:
        await self._failing(self._rng.choice(_WRITES))

    async def _fail_reads(self) -> None:
        await self._failing(self._rng.choice(_READS))

    async def _failing(self, operation: str) -> None:
        disk = self._world.disk
        self._world.history.fault(f"{operation} fails")
        disk.failing.add(operation)
        self._world.offsets.lost_sessions()  # groups are read again from their journal
        await asyncio.sleep(self._rng.choice((0.001, 0.1, _FAILING_SECONDS_MAX)))
        disk.failing.discard(operation)
        self._world.offsets.lost_sessions()
        self._world.history.step("disk", f"{operation} works again")

    async def _fill_disk(self) -> None:
        disk = self._world.disk
        left = self._rng.choice((0, 10, 100, 500, 2000))
        self._world.history.fault(f"{left} bytes are left on the disk")
        disk.fail_after(left)
        await asyncio.sleep(self._rng.uniform(0.0, _FAILING_SECONDS_MAX))
        disk.fail_after(None)
        self._world.history.step("disk", "there is space again")

    async def _rot(self) -> None:
        self._world.rot()
        await asyncio.sleep(self._rng.uniform(0.0, _SCRUB_SECONDS_MAX))
        self._world.scrub()

    async def _suspend(self) -> None:
        duration_us = self._rng.randrange(_SUSPENDED_US_MAX)
        if self._holds.random() < _HOLDS:
            duration_us = self._holds.randrange(_HELD_US_MAX)
            self._world.history.fault(
                f"the process of the broker is held for {duration_us / 1e6:.3f} s"
            )
            self._world.hold(duration_us)
            await asyncio.sleep(duration_us / 1e6)
            return
        self._world.history.fault(f"the machine is suspended for {duration_us / 1e6:.3f} s")
        self._world.suspend(duration_us)

    async def _set_clock(self) -> None:
        most_ms = self._rng.choice(_CLOCK_SET_MS_MAX)
        step_ms = self._rng.randint(-most_ms, most_ms)
        self._world.set_clock(step_ms)
