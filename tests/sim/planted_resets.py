"""Bugs in the decisions of `headrace.Consumer`: one for each row of KIP-842's two tables.

`ROWS` holds the tables as the proposal has them, apart from the code that decides. librdkafka
itself decides under `none`, `earliest` and `latest` without `nearest` (`STOCK`): the bugs of these
rows give it another strategy.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from headrace.client import consumer, positions, reset_settings
from headrace.client.reset_settings import OUT_OF_RANGE, STRATEGY
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
    Row(None, "earliest_on_start", True, START),
    Row(None, "latest_on_start", True, END),
    Row(None, "safe_latest", True, END),
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
    Row(ABOVE, "safe_latest", True, END),
    Row(BELOW, "earliest", True, START),
    Row(ABOVE, "earliest", True, END),
    Row(BELOW, "latest", True, START),
    Row(ABOVE, "latest", True, END),
    Row(BELOW, "earliest_on_start", True, START),
    Row(ABOVE, "earliest_on_start", True, END),
    Row(BELOW, "latest_on_start", True, START),
    Row(ABOVE, "latest_on_start", True, END),
)
STOCK = tuple(
    Row(position, strategy, False, begins)
    for strategy, begins in (("none", REFUSED), ("earliest", START), ("latest", END))
    for position in (None, BELOW, ABOVE)
)
UNKNOWN = (STRATEGY, OUT_OF_RANGE)  # settings, which have no value `sometimes`
INSIDE_ROWS = tuple(
    Row(INSIDE, strategy, is_nearest, INSIDE)
    for strategy, is_nearest in (("none", True), ("latest_on_start", False), ("safe_latest", False))
)
ROWS = (*FIRST_TABLE, *SECOND_TABLE, *STOCK, *INSIDE_ROWS)


def begins(row: Row, seed: int) -> tuple[int | None, tuple[str, ...]]:
    """Run a row. Returns: the offset at which the consumer begins, and failures."""
    settings = {STRATEGY: row.strategy}
    if row.is_nearest:
        settings[OUT_OF_RANGE] = "nearest"
    world = ResetWorld(seed, settings, row.position)
    failures = world.run().failures
    return (None if world.is_refused else world.begun), failures


def is_invalid(setting: str) -> bool:
    """Return whether a consumer refuses a value that a setting does not have."""
    world = ResetWorld(0, {setting: "sometimes"}, INSIDE)
    assert world.run().failures == ()
    return world.is_invalid


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

    plant.__name__ = f"{_name(row)}_is_{wrong}"
    return plant


def _name(row: Row) -> str:
    where = {None: "missing", BELOW: "below", ABOVE: "above"}[row.position]
    return f"{row.strategy}_{where}{'_nearest' if row.is_nearest else ''}"


def _leaves_to_librdkafka(row: Row, wrong: Strategy) -> Plant:
    """Return a bug that gives librdkafka another strategy than that of a row."""
    sound = reset_settings.strategy_of

    def strategy_of(text: object) -> Strategy:
        found = sound(text)
        return wrong if found is Strategy(row.strategy) else found

    def plant(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(consumer, "strategy_of", strategy_of)

    plant.__name__ = f"{_name(row)}_is_left_as_{wrong}"
    return plant


def unknown_values_are_the_default(patch: pytest.MonkeyPatch) -> None:
    """A value that a setting does not have counts as its default."""
    patch.setattr(consumer, "strategy_of", lambda _text: Strategy.LATEST)
    patch.setattr(consumer, "out_of_range_of", lambda _text: OutOfRange.NONE)


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
_OTHER_STRATEGY = {START: Strategy.LATEST, END: Strategy.EARLIEST, REFUSED: Strategy.LATEST}
PLANTED: dict[Plant, Row] = (
    {none_begins_at_the_start: FIRST_TABLE[0]}
    | {_decides(row, _OTHER[row.begins]): row for row in (*FIRST_TABLE[1:], *SECOND_TABLE)}
    | {_leaves_to_librdkafka(row, _OTHER_STRATEGY[row.begins]): row for row in STOCK}
)
