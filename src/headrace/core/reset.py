"""Where a reader starts when its position is missing or outside the log. KIP-842.

Two tables, one function. A position is *missing* when the group has committed none for the
partition; it is *outside* when the log no longer, or not yet, has it. What the page leaves open is
decided in docs/reset.md, with the reasons.
"""

from dataclasses import dataclass
from enum import StrEnum, auto
from typing import assert_never

from headrace.core.types import WallMs


class Strategy(StrEnum):
    """Values of `auto.offset.reset`."""

    NONE = auto()
    EARLIEST = auto()
    LATEST = auto()
    EARLIEST_ON_START = auto()
    LATEST_ON_START = auto()
    SAFE_LATEST = auto()


class OutOfRange(StrEnum):
    """Values of `offset.reset.strategy.offset-out-of-range`."""

    NONE = auto()
    NEAREST = auto()


class Reset(StrEnum):
    """What becomes of a position."""

    TO_EARLIEST = auto()
    TO_LATEST = auto()
    KEEP = auto()  # it was inside after all, as a look at the log's ends shows
    REFUSE = auto()  # the application is told, and decides


@dataclass(frozen=True, slots=True)
class Missing:
    """No offset is committed; `added`: the partition came to its topic while the group consumed."""

    added: bool


@dataclass(frozen=True, slots=True)
class Outside:
    """The log refused a position. It begins at `start` and ends before `end`."""

    position: int
    start: int
    end: int


def decide(
    found: Missing | Outside, strategy: Strategy, out_of_range: OutOfRange = OutOfRange.NONE
) -> Reset:
    """What becomes of the position. Source: KIP-842, "Proposed Changes", its two tables."""
    match found:
        case Missing():
            return _missing(found, strategy)
        case Outside():
            return _outside(found, strategy, out_of_range)
        case _:
            assert_never(found)


def was_added(first: WallMs | None, since: WallMs | None) -> bool:
    """Whether a partition is newer than its group: the comparison of KIP-842's `safe_latest`.

    `first` is the timestamp of its first record, `since` when the group started (limitTimeStamp);
    None: it has no record, and: the group starts now. Of the same instant nothing shall be lost,
    nor of a partition whose first record comes between this look and the next.
    """
    return since is not None and (first is None or first >= since)


def _missing(found: Missing, strategy: Strategy) -> Reset:
    match strategy:
        case Strategy.NONE:
            return Reset.REFUSE
        case Strategy.EARLIEST | Strategy.EARLIEST_ON_START:
            return Reset.TO_EARLIEST
        case Strategy.LATEST | Strategy.LATEST_ON_START:
            return Reset.TO_LATEST
        case Strategy.SAFE_LATEST:
            return Reset.TO_EARLIEST if found.added else Reset.TO_LATEST
        case _:
            assert_never(strategy)


def _outside(found: Outside, strategy: Strategy, out_of_range: OutOfRange) -> Reset:
    if found.start <= found.position <= found.end:
        return Reset.KEEP
    if out_of_range is OutOfRange.NEAREST:
        return Reset.TO_EARLIEST if found.position < found.start else Reset.TO_LATEST
    match strategy:
        case Strategy.EARLIEST:
            return Reset.TO_EARLIEST
        case Strategy.LATEST | Strategy.SAFE_LATEST:
            return Reset.TO_LATEST
        case Strategy.NONE | Strategy.EARLIEST_ON_START | Strategy.LATEST_ON_START:
            return Reset.REFUSE
        case _:
            assert_never(strategy)
