"""Every rule of the specifications has a planted bug, and every planted bug a rule."""

from pathlib import Path

from . import rules
from .planted_console import CONSOLE
from .planted_resets import PLANTED, unknown_values_are_the_default
from .rules import ELSEWHERE, EVERY, FURTHER, RULES
from .whole_histories import FOCUS

_MISSED = 6  # planted bugs, by an earlier simulator


def test_every_rule_has_a_planted_bug() -> None:
    assert {one.specification for one in RULES} == {"KIP-211", "KIP-496", "KIP-842", "KIP-932"}
    for one in (*RULES, *FURTHER):
        assert one.bugs, one
        assert set(one.bugs) <= set(EVERY), one
    assert len([one for one in FURTHER if one.section.startswith("Found by")]) == _MISSED


def test_every_rule_that_no_history_can_break_has_a_test() -> None:
    root = Path(__file__).parents[2]
    for one in ELSEWHERE:
        assert one.bugs, one
        for test in one.bugs:
            path, name = test.split("::")
            assert f"def {name}(" in (root / path).read_text(), one


def test_every_planted_bug_is_in_the_table() -> None:
    named = {bug for one in (*RULES, *FURTHER) for bug in one.bugs}
    assert set(EVERY) - named == set()


def test_no_two_bugs_have_one_name() -> None:
    plants = {*FOCUS, *rules.MODEL, *rules.GROWTH, *PLANTED, *CONSOLE}
    plants.add(unknown_values_are_the_default)
    assert len(EVERY) == len(plants)
    assert len(FOCUS) >= 80


def test_a_lock_that_ends_early_is_found_by_whole_histories_too() -> None:
    assert {"locks_end_early", "lower_commits_are_ignored"} <= {one.__name__ for one in FOCUS}
