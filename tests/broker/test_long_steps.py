"""Steps of the loop that have too much to do are distinguished from steps in slow moments."""

import pytest

from .loop_rig import LongSteps

ALLOWED = 0.010
CHEAP, COSTLY, LONG = 0.000_2, 0.004, 0.011


def tries(*steps: list[float]) -> list[bool]:
    long_steps = LongSteps()
    return [long_steps.is_passed(one, ALLOWED) for one in steps]


def at(place: int, count: int = 100, *, cheap_between: int = 0) -> list[float]:
    """Return steps of which the one at `place` of the costly ones is too long."""
    steps = [COSTLY] * count
    steps[place] = LONG
    return [one for step in steps for one in [step, *[CHEAP] * cheap_between]]


def test_a_try_without_a_long_step_passes_at_once() -> None:
    assert tries([COSTLY, CHEAP, ALLOWED]) == [True]


@pytest.mark.parametrize("count", [1, 3, 100])
@pytest.mark.parametrize("cheap", [[0, 0, 0], [0, 3, 1]])
def test_a_step_that_is_long_in_every_try_never_passes(count: int, cheap: list[int]) -> None:
    assert not any(tries(*(at(count // 2, count, cheap_between=one) for one in cheap)))


def test_a_long_step_is_known_again_where_a_slow_moment_made_others_costly() -> None:
    slow = [*[CHEAP] * 50, *[0.002] * 8, *at(50)]
    assert not any(tries(at(50), slow, at(50)))


def test_a_long_step_is_known_again_where_others_are_as_costly_as_cheap_ones_may_be() -> None:
    others = ([ALLOWED * 0.09] * 50, [ALLOWED * 0.11] * 50)
    assert not any(tries(*([*one, LONG] for one in others)))


def test_a_long_step_does_not_pass_beside_slow_moments() -> None:
    assert not any(tries(at(70), [*at(10, 60), *at(10, 40)], [*at(50, 60), *at(10, 40)]))


def test_slow_moments_at_other_places_pass() -> None:
    assert tries(at(10), at(80)) == [False, True]
    assert tries([*at(10, 60), *at(10, 40)], at(72), at(12)) == [False, False, True]
