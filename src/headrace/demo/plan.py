"""What a run of the demo is asked to do, and when its broker is killed."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from headrace.demo.flights import FLIGHTS
from headrace.demo.server import Server


class Stage(Enum):
    """The stages during which the broker may be killed."""

    PRODUCE = "produce"
    QUERY = "query"


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL the broker `delay_s` after `fraction` of a stage was done, and start it again."""

    stage: Stage
    fraction: float
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """One run. `port` 0 is any free one; a stage in which nothing moves for `stalled_after_s`
    ends the run.
    """

    data_dir: Path
    flights: int = FLIGHTS
    seed: int = 2013
    port: int = 0
    partitions: int = 4
    records_per_batch: int = 50_000
    kills: tuple[Kill, ...] = (Kill(Stage.QUERY, 0.4),)
    stalled_after_s: float = 90.0

    @property
    def parquet(self) -> Path:
        return self.data_dir / "delays.parquet"

    @property
    def chart(self) -> Path:
        return self.data_dir / "delays.png"

    @property
    def checkpoint(self) -> Path:
        return self.data_dir / "checkpoint"


class Killer:
    """Kills the broker when a stage has come far enough, each time once."""

    def __init__(
        self, server: Server, kills: tuple[Kill, ...], on_kill: Callable[[Kill, float], None]
    ) -> None:
        self._server = server
        self._left = list(kills)
        self._on_kill = on_kill
        self.done = 0

    def reached(self, stage: Stage, fraction: float) -> None:
        """Kill and restart for everything that is due; returns when the broker listens again."""
        due = [kill for kill in self._left if kill.stage is stage and fraction >= kill.fraction]
        for kill in due:
            self._left.remove(kill)
            time.sleep(kill.delay_s)
            self._server.kill()
            self.done += 1
            self._on_kill(kill, self._server.start())
