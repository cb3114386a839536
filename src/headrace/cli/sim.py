"""`headrace sim`: look for histories in which the broker breaks a promise; replay one of them."""

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum, auto
from functools import partial
from itertools import islice
from multiprocessing import get_context
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.ending import INTERRUPTED

if TYPE_CHECKING:
    from headrace.sim.growth import GrowthOutcome
    from headrace.sim.world import Outcome

_PROGRESS_SECONDS = 1.0
_SEEDS_AT_ONCE = 8  # for each process
_SEEDS = 100


class Worlds(StrEnum):
    """What is simulated."""

    BROKER = auto()
    GROWTH = auto()


@dataclass(slots=True)
class _Sum:
    """Sum of all histories of a run; the last line of the command.

    Args:
        steps: Events that are steps of clients, faults, starts and ends of the broker.
        virtual_s: Virtual time of all histories.
        seconds: Time from the start of the command to its end.
        cpu_s: Processor time of the histories, in all processes.
        lost: Records of new partitions, lost under `latest` as expected.
    """

    seeds: int = 0
    events: int = 0
    steps: int = 0
    faults: int = 0
    failures: int = 0
    histories: int = 0
    virtual_s: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0
    events_per_cpu_s: int = 0
    steps_per_cpu_s: int = 0
    lost: int = 0

    def end(self, seconds: float) -> None:
        """Compute the rates."""
        self.seconds = round(seconds, 1)
        if self.cpu_s:
            self.events_per_cpu_s = round(self.events / self.cpu_s)
            self.steps_per_cpu_s = round(self.steps / self.cpu_s)
        self.cpu_s = round(self.cpu_s, 2)


@dataclass(frozen=True, slots=True)
class _Trial:
    """What to do with a seed.

    Args:
        days: Virtual days of a long history; None for a short one.
    """

    world: Worlds
    days: float | None = None

    @property
    def replay(self) -> str:
        """Return the command that replays a seed, without the seed."""
        options = {Worlds.GROWTH: " --world growth", Worlds.BROKER: ""}[self.world]
        return f"headrace sim{options}{f' --days {self.days:g}' if self.days else ''}"

    def outcomes(
        self, seed: int, tell: Callable[[str], None] | None = None
    ) -> "Iterator[Outcome | GrowthOutcome]":
        """Run the histories of a seed."""
        if self.world is Worlds.GROWTH:
            from headrace.sim.growth import Decider, GrowthWorld

            for decider in Decider:
                if tell is not None:
                    tell(f"---- {decider}")
                yield GrowthWorld(seed, decider, tell=tell).run()
        elif self.days:
            from headrace.sim.days import DaysWorld

            yield DaysWorld(seed, self.days, tell=tell).run()
        else:
            from headrace.sim.world import World

            yield World(seed, tell=tell).run()


@dataclass(frozen=True, slots=True)
class _Tried:
    """The histories of a seed, and the processor time they took."""

    outcomes: "list[Outcome | GrowthOutcome]"
    cpu_s: float


_Seeds = Annotated[
    int | None, typer.Option(min=0, help=f"How many seeds to try; {_SEEDS}, or 1 with --days.")
]
_Days = Annotated[
    float | None,
    typer.Option(
        min=0.1, help="Let each seed be one history of so many days, with Kafka's default times."
    ),
]

_Histories = Annotated[
    int,
    typer.Option(min=0, help="Random histories of the core alone, against a reference model."),
]

_Workers = Annotated[
    int, typer.Option(min=1, max=64, help="Processes that try seeds at the same time.")
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(sim)


def sim(
    seeds: _Seeds = None,
    first: Annotated[int, typer.Option("--from", min=0, help="The first seed to try.")] = 0,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Replay this seed only, step by step.")
    ] = None,
    world: Annotated[
        Worlds,
        typer.Option(help="broker: one amid faults. growth: topics that grow under a group."),
    ] = Worlds.BROKER,
    days: _Days = None,
    histories: _Histories = 0,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="Try seeds for so long, however many they are.")
    ] = None,
    hours: Annotated[float | None, typer.Option(min=0, help="Try seeds for so many hours.")] = None,
    workers: _Workers = 1,
    keep_going: Annotated[
        bool,
        typer.Option("--keep-going/--stop", help="Go on after a failure, or stop at the first."),
    ] = True,
    as_json: Annotated[
        bool, typer.Option("--json", help="End with one JSON object instead of a sentence.")
    ] = False,
) -> None:
    """Simulate whole brokers in virtual time, with faults drawn from a seed: one seed, one history.

    With --world growth a seed is three histories: where readers of new partitions begin is decided
    by headrace.Consumer, by the broker's policy, and by nobody but a client with latest.

    An event is a timer that goes off, a delivery, an operation of the disk, or a step of a client.

    A failure is told with its last steps and the command that replays it. Exits 1 if there is one.

    headrace sim --seeds 200 --json

    headrace sim --hours 4 --workers 2 --stop

    headrace sim --days 24
    """
    if days and world is Worlds.GROWTH:
        raise typer.BadParameter("cannot be used with --world growth", param_hint="--days")
    trial, numbers = _Trial(world, days), _numbers(first, seeds, days, _seconds(minutes, hours))
    total, began = _Sum(), time.monotonic()
    try:
        if seed is not None:
            _replay(total, trial, seed)
        else:
            _try_all(total, trial, numbers, workers, keep_going=keep_going)
            _try_core(total, first, histories if keep_going or not total.failures else 0)
        code = int(total.failures > 0)
    except KeyboardInterrupt:
        code = INTERRUPTED
        print("interrupted; the last line counts what was done before", file=sys.stderr)
    total.end(time.monotonic() - began)
    _print_sum(total, world, as_json=as_json)
    raise typer.Exit(code)


def _replay(total: _Sum, trial: _Trial, seed: int) -> None:
    for outcome in trial.outcomes(seed, tell=print):
        _count(total, trial, outcome, replayed=True)
    total.seeds = 1


def _try_all(
    total: _Sum, trial: _Trial, numbers: Iterator[int], workers: int, *, keep_going: bool
) -> None:
    progress = _Progress()
    try:
        for tried in _all_tried(trial, numbers, workers):
            total.cpu_s += tried.cpu_s
            for outcome in tried.outcomes:
                _count(total, trial, outcome, replayed=False)
                if outcome.failures:
                    _compare(total, trial, outcome.seed, tried.outcomes)
            total.seeds += 1
            progress.tell(total)
            if total.failures and not keep_going:
                break
    finally:
        progress.end()


def _print_sum(total: _Sum, world: Worlds, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(asdict(total)))
    elif world is Worlds.GROWTH:
        print(
            f"{total.seeds} seeds: {_events(total)}, {total.faults} faults, {total.lost} "
            f"records of new partitions lost by latest, {total.failures} failures"
        )
    else:
        print(
            f"{total.seeds} seeds and {total.histories} histories of the core: {_events(total)}, "
            f"{total.faults} faults, {total.failures} failures"
        )


def _events(total: _Sum) -> str:
    rate = f" ({total.events_per_cpu_s:,}/s)" if total.events_per_cpu_s else ""
    return f"{total.events:,} events{rate}"


def _numbers(
    first: int, seeds: int | None, days: float | None, seconds: float | None
) -> Iterator[int]:
    """The seeds to try: so many, or as many as there is time for."""
    count = seeds if seeds is not None else 1 if days else _SEEDS
    until = None if seconds is None else time.monotonic() + seconds
    number = first
    while number < first + count if until is None else time.monotonic() < until:
        yield number
        number += 1


def _seconds(minutes: float | None, hours: float | None) -> float | None:
    if minutes is None and hours is None:
        return None
    return 60 * (minutes or 0.0) + 3600 * (hours or 0.0)


def _all_tried(trial: _Trial, numbers: Iterator[int], workers: int) -> Iterator[_Tried]:
    """Yield what comes of each seed, tried in this process or in several."""
    if workers == 1:
        yield from (_tried(trial, number) for number in numbers)
        return
    with get_context("spawn").Pool(workers, _ignore_interrupts) as pool:
        while some := list(islice(numbers, workers * _SEEDS_AT_ONCE)):
            yield from pool.imap(partial(_tried, trial), some)


def _ignore_interrupts() -> None:
    """Leave Ctrl-C to the process that started this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _tried(trial: _Trial, seed: int) -> _Tried:
    from headrace.sim import growth, world  # noqa: F401  # not part of the time that is measured

    began = time.process_time()
    outcomes = list(trial.outcomes(seed))
    return _Tried(outcomes, time.process_time() - began)


def _compare(total: _Sum, trial: _Trial, seed: int, found: "list[Outcome | GrowthOutcome]") -> None:
    """Run the histories of a failure once more: the same steps have to come of them."""
    before = [(one.digest, one.events) for one in found]
    if [(one.digest, one.events) for one in trial.outcomes(seed)] != before:
        total.failures += 1
        print(f"seed {seed}: a second run has other steps; the simulator is not deterministic")


def _count(
    total: _Sum, trial: _Trial, outcome: "Outcome | GrowthOutcome", *, replayed: bool
) -> None:
    total.events += outcome.events.total
    total.steps += outcome.events.steps
    total.faults += outcome.faults
    total.lost += outcome.lost
    total.virtual_s += getattr(outcome, "virtual_s", 0)
    if not outcome.failures:
        return
    total.failures += 1
    print(f"seed {outcome.seed} FAILED")
    for failure in outcome.failures:
        print(f"  {failure}")
    if not replayed:
        print("  its last steps:")
        for line in outcome.last:
            print(f"    {line}")
        print(f"  replay it: {trial.replay} --seed {outcome.seed}", flush=True)


def _try_core(total: _Sum, first: int, count: int) -> None:
    from headrace.sim.random_histories import first_difference

    progress = _Progress()
    try:
        for number in range(first, first + count):
            parted = first_difference(number)
            total.histories += 1
            if parted is not None:
                total.failures += 1
                print(f"history {number} of the core FAILED; core and model part after:\n{parted}")
                print(
                    f"  replay it: headrace sim --seeds 0 --from {number} --histories 1",
                    flush=True,
                )
            progress.tell(total)
    finally:
        progress.end()


class _Progress:
    """One line on a terminal that tells how far it is."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._due = time.monotonic() + _PROGRESS_SECONDS

    def tell(self, total: _Sum) -> None:
        """Show the numbers, now and then."""
        if self._shown and time.monotonic() >= self._due:
            self._due = time.monotonic() + _PROGRESS_SECONDS
            told = f"{total.seeds} seeds, {total.histories} histories, {total.failures} failures"
            print(f"\r{told}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Take the line away."""
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
