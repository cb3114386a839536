"""What an administrator of a simulated broker takes for possible after a power cut."""

import pytest

from headrace.sim.resets import PLACE, Resets
from headrace.sim.world import World


def _set(resets: Resets, *starts: int) -> None:
    """Acknowledge starts of the group, a second after each other."""
    for start in starts:
        world = resets._world
        world.loop.run_until(world.loop.now_us + 1_000_000)
        resets._is_known(start)


@pytest.mark.parametrize(
    ("since_us", "start", "is_possible"),
    [
        (0, 3, True), (0, -1, True), (0, 7, True), (0, 4, False), (2_500_000, 7, True),
        (2_500_000, 5, True), (2_500_000, 3, False), (3_500_000, 5, False),
    ],
)  # fmt: skip
def test_a_power_cut_brings_back_any_state_since_the_last_sync(
    since_us: int, start: int, is_possible: bool
) -> None:
    world = World(0)
    _set(world.resets, 3, 5, 7)
    world.resets.power_was_cut(since_us)
    world.resets._seen(start)
    assert (world.auditor.failures == []) == is_possible
    world._clear_away()


@pytest.mark.parametrize(("start", "is_possible"), [(5, True), (7, False), (4, False)])
def test_no_group_begins_behind_a_lost_end(start: int, is_possible: bool) -> None:
    world = World(0)
    _set(world.resets, 7)
    world.resets.power_was_cut(world.loop.now_us + 1)
    world.resets.end_was_lost(PLACE, 5)
    world.resets._seen(start)
    assert (world.auditor.failures == []) == is_possible
    world._clear_away()
