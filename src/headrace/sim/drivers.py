"""Holders of leases as Spark uses them: a driver acquires, stages and commits, dies and comes back.

A driver that was replaced goes on as if it had not been: it must be refused.
"""

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any

from headrace.sim.facts import Place
from headrace.sim.lease_auditor import LATER, LATER_US, Held, LeaseAuditor
from headrace.sim.network import Connection, Lost
from headrace.wire import leases as wire

if TYPE_CHECKING:
    from headrace.sim.world import World

_STORAGE_ERROR = 56  # of Kafka's codes
_PAUSE_SECONDS = 0.2
_WIRE = {
    "release": wire.Verdict.RELEASE,
    LATER: wire.Verdict.RELEASE,
    "reject": wire.Verdict.REJECT,
}
_DELAY_MS = {"release": 0, LATER: LATER_US // 1000, "reject": 0}


class Gone(Exception):
    """The call was refused, or failed: the driver gives up and is started again."""


class LeaseDriver:
    """One checkpoint's reader, over many drivers."""

    def __init__(self, world: "World", name: str, group: str, topics: tuple[str, ...]) -> None:
        self.name = name
        self.group = group
        self._world = world
        self._topics = topics
        self._rng = Random(f"{world.seed}/{name}")
        self._auditor = world.auditor
        self._told = LeaseAuditor(world.auditor, lambda: world.loop.now_us, group, name)
        self._epoch = 0
        self._next = 1
        self._held: dict[int, tuple[Held, ...]] = {}
        self._zombie_epoch = 0

    async def run(self) -> None:
        """Drive until the world wants no more, then settle what is left."""
        while self._world.is_wanted(self.group):
            try:
                connection = Connection(self._world, self._rng, client=self.name)
                try:
                    await self._drive(connection)
                finally:
                    connection.close()
            except (Lost, Gone):
                pass
            await asyncio.sleep(self._rng.uniform(0, 2 * _PAUSE_SECONDS))

    async def settle(self) -> None:
        """Commit all that is outstanding, however often it takes."""
        while True:
            try:
                connection = Connection(self._world, self._rng)
                await self._open(connection)
                for number in sorted(self._held):
                    await self._commit(connection, number)
                connection.close()
                return
            except (Lost, Gone):
                await asyncio.sleep(_PAUSE_SECONDS)

    async def take(self) -> None:
        """Acquire under a new number, and fall silent."""
        while True:
            try:
                connection = Connection(self._world, self._rng)
                await self._open(connection)
                await self._acquire(connection, self._next, fresh=True)
                connection.close()
                return
            except (Lost, Gone):
                await asyncio.sleep(_PAUSE_SECONDS)

    def set_back(self, place: Place) -> None:
        """Its group was set back there: numbers stay, with nothing of that place."""
        self._told.discarded(place)

    async def _drive(self, connection: Connection) -> None:
        await self._open(connection)
        while self._world.is_wanted(self.group):
            number = self._next
            await self._acquire(connection, number, fresh=True)
            for _ in range(self._rng.randrange(3)):
                await asyncio.sleep(self._rng.choice((0.01, self._world.options.lock_ms / 2000)))
                await self._renew(connection)
            if self._world.options.stalling and self._rng.random() < 0.1:
                self._step("stalls")
                await asyncio.sleep(self._world.options.lock_ms / 1000 * self._rng.uniform(0.5, 2))
            if self._held and self._rng.random() < 0.7:
                await self._stage(connection, self._rng.choice(sorted(self._held)))
            if self._held and self._rng.random() < 0.7:
                await self._commit(connection, self._rng.choice(sorted(self._held)))
            if self._rng.random() < 0.1:
                await self._be_replaced(connection)
                return

    async def _be_replaced(self, connection: Connection) -> None:
        """Open anew over another connection; the old driver tries to commit."""
        old = self._epoch
        other = Connection(self._world, self._rng)
        try:
            await self._open(other)
            new, self._epoch = self._epoch, old
            for number in sorted(self._held)[-1:]:
                try:
                    await self._commit(connection, number)
                except Gone:
                    self._step("its old driver is fenced")
            self._epoch = new
        finally:
            other.close()

    # ---- calls

    async def _open(self, connection: Connection) -> None:
        asked = self._auditor.asked(self.group, self._told.holder)
        self._auditor.renewing(asked)  # the locks of all outstanding numbers begin anew

        def let_out(answer: Any) -> None:
            if answer.error_code == 0:
                self._told.opened(asked, answer.epoch, answer.committed, answer.outstanding)

        call = wire.OpenRequest(self.group, self.name, -1, self._topics, "earliest")
        try:
            answer = await self._call(connection, call, wire.OpenResponse, let_out)
        finally:
            self._auditor.renewing(asked)
        self._step(f"open: epoch {answer.epoch}, outstanding {answer.outstanding}")
        self._epoch = answer.epoch
        self._next = max((answer.committed, *answer.outstanding)) + 1
        self._held = {}
        for number in answer.outstanding:
            await self._acquire(connection, number, fresh=False)

    async def _acquire(self, connection: Connection, number: int, *, fresh: bool) -> None:
        asked = self._auditor.asked(self.group, self._told.holder, acquires=True)
        if not fresh:
            self._auditor.renewing(asked)
        epoch = self._epoch

        def let_out(answer: Any) -> None:
            if answer.error_code != _STORAGE_ERROR:  # else it may or may not have acquired records
                self._auditor.answered(asked)
            if answer.error_code == 0:
                self._told.fenced(asked, epoch)
                whole = not self._world.options.topic_changes
                self._told.acquired(asked, number, _held(answer), fresh=fresh, whole=whole)

        call = wire.AcquireRequest(
            self.group, self.name, epoch, number, self._rng.randint(1, 20),
            self._rng.choice((0, 100)),
        )  # fmt: skip
        try:
            answer = await self._call(connection, call, wire.AcquireResponse, let_out)
        finally:
            if not fresh:
                self._auditor.renewing(asked)
        held = _held(answer)
        self._step(f"acquire {number}: {_words(held)}")
        if held:
            self._held[number] = held
            self._next = max(self._next, number + 1)

    async def _renew(self, connection: Connection) -> None:
        asked, epoch = self._auditor.asked(self.group, self._told.holder), self._epoch
        self._auditor.renewing(asked)

        def let_out(answer: Any) -> None:
            if answer.error_code == 0:
                self._told.fenced(asked, epoch)

        call = wire.RenewRequest(self.group, self.name, epoch)
        try:
            answer = await self._call(connection, call, wire.RenewResponse, let_out)
        finally:
            self._auditor.renewing(asked)  # the setting may have changed on the way
        self._step(f"renew: {answer.held} held, {answer.lost} lost")

    async def _stage(self, connection: Connection, number: int) -> None:
        asked, epoch = self._auditor.asked(), self._epoch
        staged: dict[tuple[Place, int], str] = {}
        for place, first, last, _ in self._held[number]:
            for offset in range(first, last + 1):
                if self._rng.random() < 0.4:
                    staged[place, offset] = self._rng.choice(("release", LATER, "reject"))
        part = self._rng.choice(("", "task 0", "task 1"))

        def let_out(answer: Any) -> None:
            if answer.error_code == 0:
                self._told.fenced(asked, epoch)
                self._told.staged(number, staged, part, epoch)

        dispositions = tuple(
            wire.Disposition(*place, offset, offset, _WIRE[verdict], "as drawn", _DELAY_MS[verdict])
            for (place, offset), verdict in staged.items()
        )
        self._told.staging(number, staged, part, epoch)
        call = wire.StageRequest(self.group, self.name, epoch, number, dispositions, part)
        await self._call(connection, call, wire.StageResponse, let_out)
        told = [f"{v} {p[0]}-{p[1]}@{o}" for (p, o), v in staged.items()]
        self._step(f"stage {number} {part}: {told}")

    async def _commit(self, connection: Connection, number: int) -> None:
        asked, epoch = self._auditor.asked(self.group, self._told.holder), self._epoch

        def let_out(answer: Any) -> None:
            if answer.error_code == 0:
                self._told.fenced(asked, epoch)
                self._told.committed(asked, number, answer.refused)

        self._told.committing(number)
        call = wire.CommitRequest(self.group, self.name, epoch, number)
        answer = await self._call(connection, call, wire.CommitResponse, let_out)
        self._step(
            f"commit {number}: {answer.accepted} accepted, {answer.released} released, "
            f"{answer.rejected} rejected, {answer.refused} refused"
        )
        self._held = {known: held for known, held in self._held.items() if known > number}

    async def _call(
        self, connection: Connection, call: wire.Call, answer: Any, let_out: Any
    ) -> Any:
        found = await connection.own(call, answer, let_out)
        if found.error_code:
            self._step(f"{call.KEY.name.lower()}: code {found.error_code}")
            raise Gone
        return found

    def _step(self, what: str) -> None:
        self._world.history.step(self.name, what)


def _held(answer: Any) -> tuple[Held, ...]:
    return tuple(
        ((one.topic, one.partition), one.first, one.last, one.delivery_count)
        for one in answer.ranges
    )


def _words(held: tuple[Held, ...]) -> str:
    told = [f"{place[0]}-{place[1]}@{first}-{last}#{n}" for place, first, last, n in held]
    return " ".join(told) or "nothing"
