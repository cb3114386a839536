"""`headrace sim`: look for histories in which the broker breaks a promise; replay one of them."""

import json
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

if TYPE_CHECKING:
    from headrace.sim.growth import GrowthOutcome
    from headrace.sim.world import Outcome

_PROGRESS_SECONDS = 1.0
_SEEDS_AT_ONCE = 8  # for each process


class Worlds(StrEnum):
    """What is simulated."""

    BROKER = auto()
    GROWTH = auto()


@dataclass(slots=True)
class _Sum:
    """What all histories of a run came to; the last line of the command."""

    seeds: int = 0
    events: int = 0
    faults: int = 0
    failures: int = 0
    histories: int = 0
    virtual_s: int = 0  # virtual time of all histories
    seconds: float = 0.0
    lost: int = 0  # records of new partitions, under `latest` as was to be expected


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(sim)


def sim(
    seeds: Annotated[int, typer.Option(min=0, help="How many seeds to try.")] = 100,
    first: Annotated[int, typer.Option("--from", min=0, help="The first seed to try.")] = 0,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Replay this seed only, step by step.")
    ] = None,
    world: Annotated[
        Worlds,
        typer.Option(help="broker: one amid faults. growth: topics that grow under a group."),
    ] = Worlds.BROKER,
    histories: Annotated[
        int,
        typer.Option(min=0, help="Random histories of the core alone, against a reference model."),
    ] = 0,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="Try seeds for so long, however many they are.")
    ] = None,
    hours: Annotated[float | None, typer.Option(min=0, help="Try seeds for so many hours.")] = None,
    workers: Annotated[
        int, typer.Option(min=1, max=64, help="Processes that try seeds at the same time.")
    ] = 1,
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

    A failure is told with its last steps and the command that replays it. Exits 1 if there is one.

    headrace sim --seeds 200 --json

    headrace sim --hours 4 --workers 2 --stop
    """
    total, began = _Sum(), time.monotonic()
    if seed is not None:
        for outcome in _outcomes(world, seed, tell=print):
            _count(total, outcome, replayed=True)
        total.seeds = 1
    else:
        progress = _Progress()
        seconds = None if minutes is None and hours is None else _seconds(minutes, hours)
        until = None if seconds is None else time.monotonic() + seconds
        found = _all_outcomes(world, _numbers(first, seeds, until), workers)
        _try_seeds(total, world, found, progress, keep_going=keep_going)
        _try_core(total, first, histories, progress)
        progress.end()
        total.seconds = round(time.monotonic() - began, 1)
    _print_sum(total, world, as_json=as_json)
    raise typer.Exit(bool(total.failures))


def _try_seeds(
    total: _Sum,
    world: Worlds,
    outcomes: "Iterator[list[Outcome | GrowthOutcome]]",
    progress: "_Progress",
    *,
    keep_going: bool,
) -> None:
    for found in outcomes:
        for outcome in found:
            _count(total, outcome, replayed=False)
            if outcome.failures:
                _compare(total, world, outcome.seed, found)
        total.seeds += 1
        progress.tell(total)
        if total.failures and not keep_going:
            break


def _print_sum(total: _Sum, world: Worlds, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(asdict(total)))
    elif world is Worlds.GROWTH:
        print(
            f"{total.seeds} seeds: {total.events} events, {total.faults} faults, {total.lost} "
            f"records of new partitions lost by latest, {total.failures} failures"
        )
    else:
        print(
            f"{total.seeds} seeds and {total.histories} histories of the core: {total.events} "
            f"events, {total.faults} faults, {total.failures} failures"
        )


def _numbers(first: int, count: int, until: float | None) -> Iterator[int]:
    """The seeds to try: `count` of them, or as many as there is time for."""
    number = first
    while number < first + count if until is None else time.monotonic() < until:
        yield number
        number += 1


def _seconds(minutes: float | None, hours: float | None) -> float:
    return 60 * (minutes or 0.0) + 3600 * (hours or 0.0)


def _all_outcomes(
    world: Worlds, numbers: Iterator[int], workers: int
) -> "Iterator[list[Outcome | GrowthOutcome]]":
    """Yield what comes of each seed, tried in this process or in several."""
    if workers == 1:
        yield from (list(_outcomes(world, number)) for number in numbers)
        return
    with get_context("spawn").Pool(workers) as pool:
        tried = partial(_tried, world)
        while some := list(islice(numbers, workers * _SEEDS_AT_ONCE)):
            yield from pool.map(tried, some, chunksize=1)


def _tried(world: Worlds, number: int) -> "list[Outcome | GrowthOutcome]":
    return list(_outcomes(world, number))


def _compare(total: _Sum, world: Worlds, seed: int, found: "list[Outcome | GrowthOutcome]") -> None:
    """Run the histories of a failure once more: the same steps have to come of them."""
    if [one.digest for one in _outcomes(world, seed)] != [one.digest for one in found]:
        total.failures += 1
        print(f"seed {seed}: a second run has other steps; the simulator is not deterministic")


def _outcomes(
    world: Worlds, seed: int, tell: Callable[[str], None] | None = None
) -> "Iterator[Outcome | GrowthOutcome]":
    """What comes of the histories of one seed."""
    if world is Worlds.GROWTH:
        from headrace.sim.growth import Decider, GrowthWorld

        for decider in Decider:
            if tell is not None:
                tell(f"---- {decider}")
            yield GrowthWorld(seed, decider, tell=tell).run()
    else:
        from headrace.sim.world import World

        yield World(seed, tell=tell).run()


def _count(total: _Sum, outcome: "Outcome | GrowthOutcome", *, replayed: bool) -> None:
    total.events += outcome.events
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
        print(f"  replay it: headrace sim{outcome.world} --seed {outcome.seed}", flush=True)


def _try_core(total: _Sum, first: int, count: int, progress: "_Progress") -> None:
    from headrace.sim.random_histories import first_difference

    for number in range(first, first + count):
        parted = first_difference(number)
        total.histories += 1
        if parted is not None:
            total.failures += 1
            print(f"history {number} of the core FAILED; core and model part after:\n{parted}")
            print(f"  replay it: headrace sim --seeds 0 --from {number} --histories 1", flush=True)
        progress.tell(total)


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
