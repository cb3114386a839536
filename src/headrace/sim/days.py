"""A history of days, in which Kafka's default times go by: retention, expiry of offsets and groups.

Busy spells of some seconds, with all actors and faults of `World`, are parted by quiet hours in
which the broker's own timers are all that runs. At times the power goes amid a quiet hour, or the
machine sleeps through it. The consumer groups are away for longer than offsets are kept, then come
back. At the end nothing is produced until all records and offsets have to be gone.

Times are Kafka's defaults: seven days of records and of offsets, a look at records each five
minutes and at offsets each ten, a rest of the cleaner of fifteen seconds, locks of thirty seconds.
Histories with odd seeds have a wall clock that is set; then nothing is known of what expires when.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from headrace.broker.config import Config
from headrace.sim.consumers import log_end, log_start
from headrace.sim.drivers import LeaseDriver
from headrace.sim.ending import Ending
from headrace.sim.facts import Place
from headrace.sim.fate import Fate
from headrace.sim.loop import OUTSIDE
from headrace.sim.network import Connection, Lost
from headrace.sim.options import Options
from headrace.sim.record_actors import IdempotentProducer
from headrace.sim.record_ending import RecordEnding
from headrace.sim.world import LEDGER, World

_SECOND_US = 1_000_000
_HOUR_US, _DAY_US = 3600 * _SECOND_US, 86400 * _SECOND_US
_WEEK_MINUTES = 7 * 24 * 60
_SPELL_SECONDS = 3
_SEGMENT_BYTES = 1 << 14
_GAPS = (0.01, 0.1)  # of the retention, from one spell to the next: two to seventeen hours
_KILLED, _ASLEEP = 0.2, 0.1  # of the gaps
_WIND_UP_SECONDS = 120  # in which actors end what they do
_CALM_US = 10 * _SECOND_US
_CHECKS_US = _HOUR_US  # longer than a look at records and one at offsets
_LATE_US = _HOUR_US  # that an acknowledgement may leave later than the record was stamped
_LOOK_SECONDS = 60.0
_AWAY_FROM, _AWAY = 0.25, 1.2  # of all days; and of the time that offsets are kept
_RETRY_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class DaysOptions(Options):
    """The setting of one long history.

    Args:
        retention_minutes: Time for which records and offsets are kept; looks at them are as much
            more frequent than Kafka's as it is shorter than seven days.
    """

    retention_minutes: int = _WEEK_MINUTES

    @classmethod
    def of(cls, seed: int, retention_minutes: int) -> "DaysOptions":
        """Return the options of a seed."""
        drawn = cls.drawn(Random(f"{seed}/options"))
        assert isinstance(drawn, cls)
        return replace(
            drawn,
            retention_minutes=retention_minutes,
            lock_ms=Config().share_lock_ms,
            seconds=_SPELL_SECONDS,
            segment_bytes=_SEGMENT_BYTES,
            kills=True,
            power_cuts=drawn.fsync,
            clock_set=seed % 2 == 1,
            reconfigures=False,  # it changes the retention, by which the checks go
            retention=True,
            queues=True,
            records=True,
        )

    @property
    def retention_us(self) -> int:
        """Return how long records are kept."""
        return self.retention_minutes * 60 * _SECOND_US

    @property
    def offsets_retention_us(self) -> int:
        """Return how long offsets are kept of which no member makes use."""
        return self.retention_us

    @property
    def topic_settings(self) -> dict[str, str]:
        """Return the settings of the topics that are consumed: those of the broker."""
        return {}

    def config(self) -> Config:
        """Return the broker's settings: Kafka's times, and the sizes of short histories."""
        kafka, part = Config(), self.retention_minutes / _WEEK_MINUTES
        return replace(
            Options.config(self),
            retention_ms=self.retention_us // 1000,
            retention_check_ms=round(kafka.retention_check_ms * part),
            cleaner_backoff_ms=kafka.cleaner_backoff_ms,
            offsets_retention_minutes=self.retention_minutes,
            offsets_retention_check_ms=round(kafka.offsets_retention_check_ms * part),
            share_lock_ms_min=kafka.share_lock_ms_min,
            share_state_segment_bytes=4 * _SEGMENT_BYTES,
            share_state_prune_ms=kafka.share_state_prune_ms,
            share_cold_snapshot_ms=kafka.share_cold_snapshot_ms,
            share_history_ms=0,  # a journal that is kept whole is replayed after every fault
        )


class DaysWorld(World):
    """The long history of one seed.

    Args:
        days: Virtual time, at least.
        tell: called with every line of the history as it happens.
        retention_minutes: Time for which records and offsets are kept.
    """

    def __init__(
        self,
        seed: int,
        days: float,
        *,
        tell: Callable[[str], None] | None = None,
        retention_minutes: int = _WEEK_MINUTES,
    ) -> None:
        self._settings = DaysOptions.of(seed, retention_minutes)
        super().__init__(seed, tell=tell, options=self._settings)
        self._gaps = Random(f"{seed}/gaps")
        self._fate = Fate(self)
        self._end_us = round(days * _DAY_US)
        self._ending = DaysEnding(self)

    @property
    def _groups(self) -> list[str]:
        """The consumer groups."""
        return [f"{protocol}-group" for protocol in self.options.consumers]

    @property
    def operator_seconds(self) -> float:
        return _LOOK_SECONDS if self.is_quiet else super().operator_seconds

    def _start_moved(self, place: Place, start: int) -> None:
        least_us = 0 if self.offsets.clock_was_set else self._settings.retention_us - _LATE_US
        self.records.deleting(place, self.auditor.cut(place))  # by administrators
        self.records.expired(place, start, least_us)
        super()._start_moved(place, start)

    def _live(self) -> None:
        if not self._is_set_up():
            return
        actors = self._actors()
        retention_us = self._settings.retention_us
        expires_us = retention_us + retention_us // 10 + 2 * _CHECKS_US
        busy_until_us = self._end_us - expires_us
        if busy_until_us < retention_us // 4:
            busy_until_us = self._end_us  # too short for anything to expire
        away_us = round(busy_until_us * _AWAY_FROM), round(retention_us * _AWAY)
        self._spend(actors, away_us[0])
        if sum(away_us) < busy_until_us:
            self._spend(actors, sum(away_us), away=self._groups)
            if not self.failed and not self.offsets.clock_was_set:
                self._ending.offsets_are_gone()
        self._spend(actors, busy_until_us)
        if not self.failed:
            drivers = [actor for actor in actors if isinstance(actor, LeaseDriver)]
            Ending(self, drivers).run()
        if not self.failed:
            self._ending.run(self._end_us)

    def _spend(self, actors: list[Any], until_us: int, *, away: list[str] | None = None) -> None:
        """Let busy spells and quiet hours alternate.

        Args:
            away: groups whose members take no part.
        """
        present = [actor for actor in actors if getattr(actor, "group", "") not in (away or ())]
        while self.loop.now_us < until_us and not self.failed:
            self._spell(present)
            self._ending.look()
            self._gap(until_us)

    def _spell(self, actors: list[Any]) -> None:
        """Let the actors be busy amid faults, then end what they do."""
        groups = {actor.group for actor in actors if getattr(actor, "group", "")}
        for group in sorted(groups):
            self.begins_again(group)
        for actor in actors:
            if isinstance(actor, IdempotentProducer):
                actor.begin_again()
        self.is_quiet = False
        tasks = {actor.name: self.loop.spawn(OUTSIDE, actor.run()) for actor in actors}
        fate = self.loop.spawn(OUTSIDE, self._fate.run())
        self.run_until(self.loop.now_us + self.options.seconds * _SECOND_US)
        self.is_quiet = True
        self._calm_disk()
        fate.cancel()
        for group in sorted(groups):
            self.done(group)
        self._end_actors(tasks, _WIND_UP_SECONDS)
        self.run_until(self.loop.now_us + self.options.lock_ms * 1000 + _CALM_US)
        self.auditor.requests_ended()

    def _gap(self, until_us: int) -> None:
        """Let hours pass; at times the broker dies amid them, or the machine sleeps."""
        rng = self._gaps
        gap_us = round(rng.uniform(*_GAPS) * self._settings.retention_us)
        end_us = min(self.loop.now_us + gap_us, until_us)
        drawn = rng.random()
        self.run_until((self.loop.now_us + end_us) // 2)
        if self.failed:
            return
        if drawn < _KILLED:
            self.kill(power_cut=self.options.power_cuts)
        elif drawn < _KILLED + _ASLEEP and end_us > self.loop.now_us:
            asleep_us = (end_us - self.loop.now_us) // 2
            self.history.fault(f"the machine is suspended for {asleep_us / 1e6:.3f} s")
            self.suspend(asleep_us)
        self.run_until(max(end_us, self.loop.now_us + _CALM_US))


class DaysEnding(RecordEnding):
    """Looks at records and offsets between the spells, and brings a long history to its end."""

    def look(self) -> None:
        """Read what every group committed: nothing is gone too early."""
        for protocol in self._world.options.consumers:
            if not self._world.failed:
                self._do(self._look(f"{protocol}-group", []), "offsets cannot be read")

    def offsets_are_gone(self) -> None:
        """Check that every offset of groups that were away has expired."""
        self._look_at_all()

    def run(self, end_us: int = 0) -> None:
        """Read every log, let the rest of the time pass, and check that all has expired."""
        world = self._world
        self._do(self._read_everything(), "the logs cannot be read")
        expires = not world.offsets.clock_was_set
        expires &= end_us - world.loop.now_us > world.options.offsets_retention_us + _CHECKS_US
        world.history.step("world", "quiet days pass")
        world.run_until(max(end_us, world.loop.now_us + _CHECKS_US))
        for power_cut in (None, world.options.power_cuts):
            if world.failed:
                return
            if power_cut is not None:
                world.kill(power_cut=power_cut)
            self._do(self._read_everything(), "the logs cannot be read after quiet days")
            if expires and not world.failed:
                self._look_at_all()
                self._do(self._look_at_starts(), "the starts of the logs cannot be read")

    async def _look_at_starts(self) -> None:
        """Check that retention left nothing of what is to be deleted by age."""
        for place in self._world.record_places([LEDGER]):
            start, end = await self._bounds(place)
            if start < end:
                self._world.records_broken(
                    f"{place[0]}-{place[1]}: retention left {start} to {end}, which are too old"
                )

    async def _bounds(self, place: Place) -> tuple[int, int]:
        """Return the first offset and the end of a log."""
        while True:
            try:
                connection = Connection(self._world, self._rng)
                try:
                    start = await log_start(connection, place)
                    code, end = await log_end(self._world, connection, place)
                finally:
                    connection.close()
                if code == 0:
                    return start, end
            except Lost:
                pass
            await asyncio.sleep(_RETRY_SECONDS)
