"""Bugs in the decisions of `headrace.Consumer`: one for each row of KIP-842's two tables.

`ROWS` holds the tables as the proposal has them, apart from the code that decides. `earliest` and
`latest` without `nearest` are decided by librdkafka itself, so their rows run with `nearest`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from headrace.client import consumer, positions
from headrace.core import reset
from headrace.core.reset import Missing, OutOfRange, Outside, Reset, Strategy
from headrace.sim.reset_world import LOG_END, LOG_START, ResetWorld

Plant = Callable[[pytest.MonkeyPatch], None]
REFUSED, START, END = None, LOG_START, LOG_END
BELOW, INSIDE, ABOVE = 1, 7, 99


class Row(NamedTuple):
    """A position (None: nothing is committed), the settings, and where the consumer begins."""

    position: int | None
    strategy: str
    is_nearest: bool
    begins: int | None


FIRST_TABLE = (
    Row(None, "none", True, REFUSED),
    Row(None, "earliest", True, START),
    Row(None, "latest", True, END),
    Row(None, "earliest_on_start", False, START),
    Row(None, "latest_on_start", False, END),
    Row(None, "safe_latest", False, END),
)
SECOND_TABLE = (
    Row(BELOW, "earliest_on_start", False, REFUSED),
    Row(ABOVE, "earliest_on_start", False, REFUSED),
    Row(BELOW, "latest_on_start", False, REFUSED),
    Row(ABOVE, "latest_on_start", False, REFUSED),
    Row(BELOW, "safe_latest", False, END),
    Row(ABOVE, "safe_latest", False, END),
    Row(BELOW, "none", True, START),
    Row(ABOVE, "none", True, END),
    Row(BELOW, "safe_latest", True, START),
    Row(ABOVE, "earliest", True, END),
)
INSIDE_ROWS = tuple(
    Row(INSIDE, strategy, is_nearest, INSIDE)
    for strategy, is_nearest in (("none", True), ("latest_on_start", False), ("safe_latest", False))
)
ROWS = (*FIRST_TABLE, *SECOND_TABLE, *INSIDE_ROWS)


def begins(row: Row, seed: int) -> tuple[int | None, tuple[str, ...]]:
    """Run a row. Returns: the offset at which the consumer begins, and failures."""
    settings = {"auto.offset.reset": row.strategy}
    if row.is_nearest:
        settings["offset.reset.strategy.offset-out-of-range"] = "nearest"
    world = ResetWorld(seed, settings, row.position)
    failures = world.run().failures
    return (None if world.is_refused else world.begun), failures


def _decides(row: Row, wrong: Reset) -> Plant:
    """Return a bug that decides a row wrongly."""
    sound = reset.decide
    strategy = Strategy(row.strategy)
    out_of_range = OutOfRange.NEAREST if row.is_nearest else OutOfRange.NONE

    def decide(found: Any, asked: Strategy, nearest: OutOfRange = out_of_range) -> Reset:
        if asked is strategy and nearest is out_of_range and _is_of(found, row):
            return wrong
        return sound(found, asked, nearest)

    def plant(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(consumer, "decide", decide)

    where = {None: "missing", BELOW: "below", ABOVE: "above"}[row.position]
    plant.__name__ = f"{row.strategy}_{where}{'_nearest' if row.is_nearest else ''}_is_{wrong}"
    return plant


def _is_of(found: Missing | Outside, row: Row) -> bool:
    if row.position is None:
        return isinstance(found, Missing)
    return isinstance(found, Outside) and (found.position < found.start) == (row.position == BELOW)


def none_begins_at_the_start(patch: pytest.MonkeyPatch) -> None:
    """A missing offset under `none` is none of the strategy's business: the start it is."""
    sound = consumer.Consumer._chosen

    def wrong(self: Any, missing: Any, since: Any) -> Any:
        if self._strategy is not Strategy.NONE:
            return sound(self, missing, since)
        stamps = [positions.EARLIEST] * len(missing)
        return positions.offsets_at(self._asking(), missing, stamps, 1.0) if missing else []

    patch.setattr(consumer.Consumer, "_chosen", wrong)


_OTHER = {START: Reset.TO_LATEST, END: Reset.TO_EARLIEST, REFUSED: Reset.TO_LATEST}
PLANTED: dict[Plant, Row] = {none_begins_at_the_start: FIRST_TABLE[0]} | {
    _decides(row, _OTHER[row.begins]): row for row in (*FIRST_TABLE[1:], *SECOND_TABLE)
}
