"""One simulated history of topics that grow while a consumer group reads them.

Partitions and topics are added, producers and consumers learn of them at moments of their own, and
consumers come, stall, leave and die. The broker is the shipped one, as in `world.py`; who decides
where partitions begin is the shipped `headrace.Consumer`, the broker's policy for a stock
client, or nobody but that client. Source: KIP-842, "Motivation"; docs/reset.md.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum, auto
from random import Random
from typing import Any
from uuid import UUID

from headrace.broker.config import Config
from headrace.core.catalog import CreateTopic, Resource, SetConfigs
from headrace.sim.disk import FaultyDisk
from headrace.sim.growth_actors import GROUP, Crowd, Grower, GrowthProducer
from headrace.sim.growth_auditor import Account, GrowthAuditor, Place
from headrace.sim.history import BrokerLog, Events, History, rare_collections
from headrace.sim.loop import OUTSIDE, Livelock, VirtualLoop
from headrace.sim.network import Connection
from headrace.sim.process import Process, WorldClock

_WALL_MS = 1_750_000_000_000
_UP_US, _SECOND_US = 2_000_000, 1_000_000
_QUIET_US_MAX = 120 * _SECOND_US
_DOWN_S_MAX = 0.5


class Decider(StrEnum):
    """Who says where a partition begins of which nothing is committed."""

    SAFE_LATEST = auto()  # headrace.Consumer
    POLICY = auto()  # the broker, for clients with `latest`
    LATEST = auto()  # nobody but a stock client


@dataclass(frozen=True, slots=True)
class GrowthOutcome:
    """What became of one history; as `world.Outcome`, with the account of its records."""

    seed: int
    decider: Decider
    events: Events
    faults: int
    failures: tuple[str, ...]
    digest: str
    last: tuple[str, ...]
    account: Account

    @property
    def lost(self) -> int:
        """How many records of new partitions nobody read."""
        return self.account.lost


class GrowthWorld:
    """The history of one seed under one decider; a `growth_actors.Stage`.

    Args:
        tell: called with every line of the history as it happens.
    """

    def __init__(
        self, seed: int, decider: Decider, *, tell: Callable[[str], None] | None = None
    ) -> None:
        self.seed, self.decider = seed, decider
        self.decides = decider is Decider.SAFE_LATEST
        self._rng = Random(f"{seed}/growth")
        self.loop = VirtualLoop(lambda: 0.0005)  # type: ignore[abstract]  # all that is called is there
        self.clock = WorldClock(self.loop, _WALL_MS)
        self.history = History(lambda: self.loop.now_us, tell)
        self.disk = FaultyDisk(str(seed), lambda: None)
        self.auditor = GrowthAuditor(loses=decider is Decider.LATEST)
        self.process: Process | None = None
        self.connections: dict[Connection, None] = {}
        self.is_quiet = False
        self.is_dead = False
        self._bugs: list[str] = []
        self._lives = itertools.count(OUTSIDE + 1)
        self._ids = itertools.count(1)
        self._seconds = self._rng.choice((6, 12, 20))
        self._kills = self._rng.random() < 0.4
        self._config = Config(group_initial_delay_ms=self._rng.choice((0, 500, 3000)))

    def run(self) -> GrowthOutcome:
        """Let the whole history happen."""
        told = BrokerLog(self.history, self.bug)
        told.begin()
        try:
            with rare_collections():
                self._live()
        except Livelock as stuck:
            self.bug(str(stuck))
        finally:
            self._clear_away()
            told.end()
        account = self.auditor.settle()
        failures = (*self.auditor.failures, *self._bugs, *self.loop.errors)
        history, loop = self.history, self.loop
        events = Events(history.steps, loop.timers, loop.deliveries, self.disk.operations)
        return GrowthOutcome(
            self.seed, self.decider, events, history.faults, failures, history.digest,
            tuple(history.last), account,
        )  # fmt: skip

    # ---- what actors and connections ask

    def bug(self, what: str) -> None:
        """Something happened that nothing explains."""
        self._bugs.append(what)
        self.loop.halted = True

    def committed(self, place: Place) -> None:
        """An offset of the group is committed, and a member is told so."""
        self.auditor.committed(place, self.loop.now_us)

    def found(self, place: Place, offset: int) -> None:
        """A member is told what is committed."""
        self.auditor.found(place, offset, self.loop.now_us)

    def look_at_shards(self) -> None:
        """Nothing is looked for."""

    def loses_answer(self, rng: Random) -> bool:  # noqa: ARG002  # of answers none is lost alone
        """Answers are lost with the broker alone."""
        return False

    def is_rough(self, rng: Random) -> bool:  # noqa: ARG002  # as the protocol has it
        """Send every request whole."""
        return False

    # ---- the history

    def _live(self) -> None:
        self._start()
        self._run_until(_UP_US)
        process = self.process
        if process is None or not process.is_up:
            self.bug("the broker does not come up on an empty disk")
            return
        self.loop.spawn(process.life, self._set_up(process))
        self._run_until(2 * _UP_US)
        crowd = Crowd(self)
        producers = [GrowthProducer(self, f"producer-{n}") for n in range(2)]
        actors: list[Any] = [Grower(self, "admin"), crowd, *producers]
        tasks = [self.loop.spawn(OUTSIDE, actor.run()) for actor in actors]
        if self._kills:
            self.loop.as_life(OUTSIDE, self._kill_later)
        self._run_until(self.loop.now_us + self._seconds * _SECOND_US)
        self.is_quiet = True
        self.history.step("world", "nothing is produced any more")
        for task in tasks:
            task.cancel()
        self.loop.as_life(OUTSIDE, crowd.settle)
        until_us = self.loop.now_us + _QUIET_US_MAX
        while (self.auditor.missing() or not self.auditor.started_us) and not self.loop.halted:
            if self.loop.now_us >= until_us:
                break
            self._run_until(self.loop.now_us + _SECOND_US)

    def _run_until(self, time_us: int) -> None:
        if not self.loop.halted:
            self.loop.run_until(time_us)

    async def _set_up(self, process: Process) -> None:
        topics, count = process.services.topics, self._rng.randint(1, 3)
        await topics.create(CreateTopic("meters-0", self._new_id(), count, {}))
        self.auditor.created("meters-0", 0, count, self.loop.now_us)
        if self.decider is Decider.POLICY:
            policy: dict[str, str | None] = {"auto.offset.reset": "safe_latest"}
            await topics.set_configs(SetConfigs(Resource.GROUP, GROUP, policy))

    def _start(self) -> None:
        life = next(self._lives)
        self.process = Process(
            life, self._config, self.disk, self.clock, self.loop, self._new_id, lambda *_: None
        )
        self.loop.spawn(life, self.process.start())

    def _kill_later(self) -> None:
        self.loop.call_later(self._rng.uniform(1.0, 15.0), self._kill)

    def _kill(self) -> None:
        """The process of the broker dies, and another one starts on its disk."""
        if self.process is None or self.is_quiet:
            return
        process, self.process = self.process, None
        self.history.fault("the broker is killed")
        self._hang_up()
        self.loop.end(process.life)
        self.disk.revive(power_cut=False)
        self.is_dead = False
        self.loop.call_later(self._rng.uniform(0.0, _DOWN_S_MAX), self._start)
        self._kill_later()

    def _hang_up(self) -> None:
        self.is_dead = self.disk.dead = True
        for connection in list(self.connections):
            connection.broken()

    def _clear_away(self) -> None:
        process, self.process = self.process, None
        try:
            self._hang_up()
            for life in (*((process.life,) if process else ()), OUTSIDE):
                self.loop.end(life)
        except Livelock as stuck:
            self._bugs.append(str(stuck))

    def _new_id(self) -> UUID:
        return UUID(int=next(self._ids) << 64 | 0x8000)
