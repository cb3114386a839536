"""`headrace sim`: look for histories in which the broker breaks a promise; replay one of them."""

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from headrace.sim.world import Outcome

_PROGRESS_SECONDS = 1.0


@dataclass(slots=True)
class _Sum:
    """What all histories of a run came to; the last line of the command."""

    seeds: int = 0
    events: int = 0
    faults: int = 0
    failures: int = 0
    histories: int = 0


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(sim)


def sim(
    seeds: Annotated[int, typer.Option(min=0, help="How many seeds to try.")] = 100,
    first: Annotated[int, typer.Option("--from", min=0, help="The first seed to try.")] = 0,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Replay this seed only, step by step.")
    ] = None,
    histories: Annotated[
        int,
        typer.Option(min=0, help="Random histories of the core alone, against a reference model."),
    ] = 0,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="Try seeds for so long, however many they are.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="End with one JSON object instead of a sentence.")
    ] = False,
) -> None:
    """Simulate whole brokers in virtual time, with faults drawn from a seed: one seed, one history.

    A failure is told with its last steps and the command that replays it. Exits 1 if there is one.

    headrace sim --seeds 200 --json
    """
    from headrace.sim.world import World

    total = _Sum()
    if seed is not None:
        _count(total, World(seed, tell=print).run(), replayed=True)
    else:
        until = None if minutes is None else time.monotonic() + 60 * minutes
        progress = _Progress()
        for number in _numbers(first, seeds, until):
            _count(total, World(number).run(), replayed=False)
            progress.tell(total)
        _try_core(total, first, histories, progress)
        progress.end()
    if as_json:
        print(json.dumps(asdict(total)))
    else:
        print(
            f"{total.seeds} seeds and {total.histories} histories of the core: {total.events} "
            f"events, {total.faults} faults, {total.failures} failures"
        )
    raise typer.Exit(bool(total.failures))


def _numbers(first: int, count: int, until: float | None) -> Iterator[int]:
    """The seeds to try: `count` of them, or as many as there is time for."""
    number = first
    while number < first + count if until is None else time.monotonic() < until:
        yield number
        number += 1


def _count(total: _Sum, outcome: "Outcome", *, replayed: bool) -> None:
    total.seeds += 1
    total.events += outcome.events
    total.faults += outcome.faults
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
        print(f"  replay it: headrace sim --seed {outcome.seed}", flush=True)


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
