"""KIP-842's two tables, every cell, and what its page leaves open (docs/reset.md)."""

import pytest

from headrace.core.reset import Missing, OutOfRange, Outside, Reset, Strategy, decide, was_added
from headrace.core.types import WallMs

STARTED = WallMs(1_000)
OLD, NEW = WallMs(999), WallMs(1_001)
UNDER, OVER = Outside(4, 5, 9), Outside(10, 5, 9)

# "reset offset without committed offsets": a group newly started, and a partition that was added
# while the group was consuming.
WITHOUT_OFFSET = {
    "none": ("refuse", "refuse"),
    "earliest": ("to_earliest", "to_earliest"),
    "latest": ("to_latest", "to_latest"),
    "earliest_on_start": ("to_earliest", "to_earliest"),
    "latest_on_start": ("to_latest", "to_latest"),
    "safe_latest": ("to_latest", "to_earliest"),
}
# "when an out of range exception is triggered": without nearest, under the range and over it.
OUT_OF_RANGE = {
    "none": ("refuse", "refuse"),
    "earliest": ("to_earliest", "to_earliest"),
    "latest": ("to_latest", "to_latest"),
    "earliest_on_start": ("refuse", "refuse"),
    "latest_on_start": ("refuse", "refuse"),
    "safe_latest": ("to_latest", "to_latest"),
}


def test_the_tables_have_every_strategy() -> None:
    assert set(WITHOUT_OFFSET) == set(OUT_OF_RANGE) == set(Strategy)


@pytest.mark.parametrize("auxiliary", OutOfRange)
@pytest.mark.parametrize("strategy", Strategy)
def test_without_a_committed_offset(strategy: Strategy, auxiliary: OutOfRange) -> None:
    """ "for this scenario, its behavior is determined by" the strategy, not by the auxiliary."""
    newly_started, added = WITHOUT_OFFSET[strategy]
    assert decide(Missing(added=False), strategy, auxiliary) == newly_started
    assert decide(Missing(added=True), strategy, auxiliary) == added


@pytest.mark.parametrize("strategy", Strategy)
def test_out_of_range(strategy: Strategy) -> None:
    found = decide(UNDER, strategy), decide(OVER, strategy)
    assert found == OUT_OF_RANGE[strategy]


@pytest.mark.parametrize("strategy", Strategy)
def test_out_of_range_to_the_nearest_end(strategy: Strategy) -> None:
    """ "It has nothing to do with the earliest, or latest, or safe_latest used together." """
    assert decide(UNDER, strategy, OutOfRange.NEAREST) is Reset.TO_EARLIEST
    assert decide(OVER, strategy, OutOfRange.NEAREST) is Reset.TO_LATEST


@pytest.mark.parametrize(
    ("first", "added"),
    [
        (OLD, False),  # "smaller than the given limitTimeStamp": latest
        (NEW, True),  # "larger": earliest
        (STARTED, True),  # neither: nothing is lost
        (None, True),  # no record yet
    ],
)
def test_the_first_record_is_compared_with_the_start_of_the_group(
    first: WallMs | None, added: bool
) -> None:
    assert was_added(first, STARTED) is added
    assert not was_added(first, None), "a group that starts now has seen none come"


@pytest.mark.parametrize("auxiliary", OutOfRange)
@pytest.mark.parametrize("strategy", Strategy)
@pytest.mark.parametrize("position", [5, 7, 9])
def test_a_position_that_is_inside_after_all_is_kept(
    position: int, strategy: Strategy, auxiliary: OutOfRange
) -> None:
    assert decide(Outside(position, 5, 9), strategy, auxiliary) is Reset.KEEP


@pytest.mark.parametrize("text", ["nearest", "safe-latest", "Latest", ""])
def test_what_is_no_strategy(text: str) -> None:
    """`nearest` is a value of the auxiliary setting alone; names have underscores."""
    with pytest.raises(ValueError, match="is not a valid Strategy"):
        Strategy(text)
