"""Which time is trusted while the wall clock jumps: tables and random histories."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.clock_filter import ClockChange, ClockFilter, Jump, SavedTime
from headrace.core.types import MonoMs, WallMs

HOUR = 3_600_000
DAY = 24 * HOUR
BEGIN = 1_764_000_000_000


class Machine:
    """A machine whose wall clock is off the true time by `error`."""

    def __init__(self, error: int = 0) -> None:
        self.elapsed, self.error, self.offset = 1000, error, BEGIN
        self.filter = ClockFilter(MonoMs(self.elapsed), self.wall)

    @property
    def true(self) -> int:
        return self.offset + self.elapsed

    @property
    def wall(self) -> WallMs:
        return WallMs(self.true + self.error)

    @property
    def latest(self) -> int:
        return self.filter.latest_offset_ms + self.elapsed

    @property
    def earliest(self) -> int:
        return self.filter.earliest_offset_ms + self.elapsed

    def observe(self) -> ClockChange | None:
        return self.filter.observe(MonoMs(self.elapsed), self.wall, jump_max_ms=HOUR, hold_ms=DAY)

    def write(self, timestamp: int, age: int = 0) -> bool:
        """Look at a batch of this time, written within `age`; return whether it contradicts."""
        return self.filter.contradict(
            MonoMs(self.elapsed), WallMs(timestamp),
            since=MonoMs(self.elapsed - age), jump_max_ms=HOUR,
        )  # fmt: skip

    def run(self, duration: int, step: int = HOUR) -> set[ClockChange]:
        changes = set()
        for _ in range(duration // step):
            self.elapsed += step
            changes.add(self.observe())
        return {one for one in changes if one is not None}

    def restart(self, off: int, boot: str = "") -> None:
        """Stop, stay off for a time, start; a machine that boots again counts from 0."""
        saved = self.filter.saved("first", MonoMs(self.elapsed))
        if boot == "first":
            self.elapsed += off
        else:
            self.offset += self.elapsed + off
            self.elapsed = 0
        self.filter = ClockFilter(MonoMs(self.elapsed), self.wall)
        self.filter.restore(saved, boot, MonoMs(self.elapsed))


def test_small_corrections_are_followed() -> None:
    machine = Machine()
    for error in (5, -700, HOUR - 700, 0, -HOUR, 0):
        machine.error = error
        machine.elapsed += 1000
        assert machine.observe() is None
        assert machine.latest == machine.earliest == machine.wall


@pytest.mark.parametrize("error", [30 * DAY, -300 * DAY, HOUR + 1, -HOUR - 1])
def test_a_jump_moves_neither_stamps_back_nor_deletion_forward(error: int) -> None:
    machine = Machine()
    machine.error = error
    machine.elapsed += 6000
    assert machine.observe() is ClockChange.JUMPED
    assert machine.filter.difference_ms == error
    assert machine.earliest == min(machine.true, machine.wall)
    assert machine.latest == max(machine.true, machine.wall)
    assert not machine.run(DAY - HOUR), "logged once"
    machine.error = 3
    machine.elapsed += 1
    assert machine.observe() is ClockChange.AGREED
    assert machine.latest == machine.earliest == machine.wall


@pytest.mark.parametrize("error", [40 * DAY, -56 * 365 * DAY])
def test_a_jump_that_holds_is_trusted(error: int) -> None:
    machine = Machine()
    machine.error = error
    assert machine.observe() is ClockChange.JUMPED
    assert machine.run(DAY - 1000, 1000) == set()
    assert machine.run(1000, 1000) == {ClockChange.PROVEN}
    assert machine.latest == machine.earliest == machine.wall
    assert machine.filter.difference_ms == 0


def test_a_second_jump_starts_no_hold_of_the_first_again() -> None:
    machine = Machine()
    machine.error = 10 * DAY
    machine.observe()
    machine.run(20 * HOUR)
    machine.error = 12 * DAY
    machine.elapsed += 1
    assert machine.observe() is ClockChange.JUMPED
    assert machine.run(4 * HOUR) == {ClockChange.PROVEN}
    assert machine.filter.difference_ms == 2 * DAY
    assert machine.run(20 * HOUR) == {ClockChange.PROVEN}
    assert machine.latest == machine.earliest == machine.wall


def test_what_was_exceeded_all_the_time_is_proven() -> None:
    machine = Machine()
    machine.error = 10 * DAY
    machine.observe()
    machine.run(20 * HOUR)
    machine.error = 4 * DAY
    assert machine.run(4 * HOUR) == {ClockChange.JUMPED, ClockChange.PROVEN}
    assert machine.latest == machine.wall


def test_a_jump_that_batches_contradict_is_not_trusted_until_they_end() -> None:
    machine = Machine()
    machine.error = 30 * DAY
    machine.observe()
    for _ in range(3 * 24):
        assert machine.run(HOUR) == set()
        assert machine.write(machine.true)
    assert machine.earliest == machine.true
    assert machine.run(DAY - HOUR) == set()
    assert machine.run(HOUR) == {ClockChange.PROVEN}
    assert machine.earliest == machine.wall


def test_one_producer_contradicts_whatever_others_write() -> None:
    machine = Machine()
    machine.error = 30 * DAY
    machine.observe()
    machine.run(DAY - HOUR)
    assert machine.write(machine.true - HOUR)
    assert not machine.write(machine.wall)
    assert machine.run(DAY - HOUR) == set()


@pytest.mark.parametrize(
    "ahead", [-10 * DAY, -HOUR - 1, 29 * DAY + 23 * HOUR, 30 * DAY, 400 * DAY], ids=str
)
def test_old_data_and_times_that_agree_with_the_wall_clock_contradict_nothing(ahead: int) -> None:
    machine = Machine()
    machine.error = 30 * DAY
    machine.observe()
    machine.run(DAY - HOUR)
    assert not machine.write(machine.true + ahead)
    assert machine.run(HOUR) == {ClockChange.PROVEN}


def test_a_batch_that_is_looked_at_late_is_compared_with_the_times_when_it_was_written() -> None:
    machine = Machine()
    machine.error = 3 * HOUR
    machine.observe()
    right, doubted = machine.true, machine.wall
    machine.run(20 * HOUR)
    assert not machine.write(doubted, age=20 * HOUR)
    assert machine.write(right, age=20 * HOUR)
    assert machine.run(23 * HOUR) == set()


def test_only_the_jumps_that_go_beyond_a_time_are_contradicted() -> None:
    """The machine was off for 10 days; then its clock jumps by 20 more."""
    machine = Machine()
    machine.restart(10 * DAY)
    machine.observe()
    machine.run(20 * HOUR)
    machine.error = 20 * DAY
    machine.observe()
    assert machine.write(machine.true)
    assert machine.run(4 * HOUR) == {ClockChange.PROVEN}
    assert machine.earliest == machine.true


def test_nothing_contradicts_a_clock_that_agrees_or_is_behind() -> None:
    machine = Machine()
    machine.observe()
    assert not machine.write(machine.true)
    machine.error = -30 * DAY
    machine.observe()
    assert not machine.write(machine.true)
    assert not machine.filter.is_due(MonoMs(machine.elapsed + DAY), DAY)
    assert machine.run(DAY) == {ClockChange.PROVEN}


def test_a_pause_of_the_process_is_bridged_while_the_machine_stays_up() -> None:
    machine = Machine()
    machine.restart(40 * DAY, "first")
    assert machine.observe() is None
    assert machine.latest == machine.earliest == machine.true


def test_a_clock_that_jumped_during_the_pause_is_not_trusted() -> None:
    machine = Machine()
    machine.error = 30 * DAY
    machine.restart(HOUR, "first")
    assert machine.observe() is ClockChange.JUMPED
    assert machine.earliest == machine.true


def test_after_a_reboot_time_goes_on_where_it_stood() -> None:
    machine = Machine()
    stood = machine.true
    machine.restart(40 * DAY)
    assert machine.observe() is ClockChange.JUMPED
    assert machine.earliest == stood
    assert machine.latest == machine.true
    machine.error = -machine.true  # 1970, as after a dead battery
    machine.elapsed += 1
    assert machine.observe() is ClockChange.JUMPED
    assert machine.latest == stood + 1


def test_a_machine_that_is_off_each_night_lags_by_a_few_nights_at_most() -> None:
    machine = Machine()
    for _ in range(40):
        machine.run(8 * HOUR)
        machine.restart(16 * HOUR)
        machine.observe()
        assert machine.latest == machine.true
        assert machine.true - machine.earliest <= 3 * 16 * HOUR


def test_saved_time_keeps_what_held() -> None:
    machine = Machine()
    machine.error = 10 * DAY
    machine.observe()
    machine.run(20 * HOUR)
    saved = machine.filter.saved("first", MonoMs(machine.elapsed))
    assert saved == SavedTime(
        WallMs(machine.true), "first", MonoMs(machine.elapsed), (Jump(10 * DAY, 20 * HOUR),)
    )
    machine.restart(0, "first")
    assert machine.observe() is None, "a known jump is not a new one"
    assert machine.run(4 * HOUR) == {ClockChange.PROVEN}


_steps = st.lists(
    st.tuples(
        st.integers(-400 * DAY, 400 * DAY),
        st.integers(0, DAY - 1),
        st.sampled_from(["run", "restart", "reboot"]),
    ),
    max_size=8,
)


@given(_steps)
def test_deletion_is_never_early_and_stamps_never_late_while_no_wrong_time_holds(
    steps: list[tuple[int, int, str]],
) -> None:
    """The wall clock is wrong for less than `hold_ms` at a time, and right in between."""
    machine = Machine()
    for error, duration, what in steps:
        machine.error = error
        machine.elapsed += 1
        machine.observe()
        half = duration // 2
        for length in (half, duration - half):
            if what == "run":
                machine.elapsed += length
            else:
                machine.restart(length, "first" if what == "restart" else "")
            machine.observe()
            assert machine.earliest <= machine.true + HOUR
            assert machine.latest >= machine.true - HOUR - (duration if what == "reboot" else 0)
        machine.error = 0
        machine.elapsed += DAY
        machine.observe()
        machine.elapsed += 2 * DAY
        machine.observe()
        assert machine.earliest == machine.latest == machine.true
