"""Regular expressions of subscriptions: RE2's syntax, whole names, and bounds."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker import topic_patterns
from headrace.broker.topic_patterns import Patterns, matching
from headrace.core.errors import Refused, Why

NAMES = ["pay", "pay-1", "repay", "PAY", "__consumer_offsets", "a.b"]


@pytest.mark.parametrize(
    ("regex", "expected"),
    [
        ("pay", {"pay"}),
        ("pay.*", {"pay", "pay-1"}),
        ("(^pay-1)|(^rep.*)", {"pay-1", "repay"}),  # as librdkafka joins them
        ("^pay$", {"pay"}),
        ("(?i)pay", {"pay", "PAY"}),
        (r"\w\.b", {"a.b"}),
        (r"\Qa.b\E", {"a.b"}),
        ("__.*", {"__consumer_offsets"}),
        ("nothing", set()),
    ],
)
def test_whole_names_match(regex: str, expected: set[str]) -> None:
    assert matching(regex, NAMES) == frozenset(expected)


@pytest.mark.parametrize(
    ("regex", "said"),
    [
        ("(?=pay).*", "invalid perl operator"),
        (r"(pay)\1", "invalid escape"),
        ("pay(", "missing"),
        ("x{1001}", "repetition"),
        (".{0,1000}" * 100, "too large"),
        ("x" * 10_000, "more than 8192 characters"),
    ],
)
def test_what_re2_does_not_accept_is_refused(regex: str, said: str) -> None:
    refused = matching(regex, NAMES)
    assert isinstance(refused, Refused)
    assert refused.why is Why.INVALID_REGEX
    assert said in refused.message
    assert len(refused.message) < 2000


names = st.text("ab", min_size=1, max_size=2)
changes = st.tuples(st.booleans(), names)


@given(
    steps=st.lists(st.one_of(changes, st.sampled_from(["a.*", "b", ".*", "aa|b.", "("]))),
    came_max=st.integers(0, 4),
    known_max=st.integers(1, 3),
)
def test_what_is_remembered_is_what_would_be_found(
    steps: list[tuple[bool, str] | str], came_max: int, known_max: int
) -> None:
    patterns, there = Patterns(), dict[str, None]()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(topic_patterns, "_CAME_MAX", came_max)
        patched.setattr(topic_patterns, "_KNOWN_MAX", known_max)
        for step in steps:
            if isinstance(step, str):
                assert patterns.matching(step, there) == matching(step, there)
            elif step[0] and step[1] not in there:
                there[step[1]] = None
                patterns.came(step[1])
            elif not step[0] and step[1] in there:
                del there[step[1]]
                patterns.went()
            assert len(patterns._known) <= known_max
            assert len(patterns._came) <= came_max


def test_only_topics_that_came_are_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[str] = []

    def look(regex: str, names: list[str], size_max: int) -> frozenset[str]:
        looked_at.extend(names)
        return frozenset(names)

    monkeypatch.setattr(topic_patterns, "matching", look)
    patterns = Patterns()
    assert patterns.matching(".*", ["a", "b"]) == frozenset({"a", "b"})
    patterns.went()
    patterns.came("c")
    assert patterns.matching(".*", ["a", "c"]) == frozenset({"a", "c"})
    assert patterns.matching(".*", ["a", "c"]) == frozenset({"a", "c"})
    assert looked_at == ["a", "b", "c"]
    patterns.forget()
    assert patterns.matching(".*", ["d"]) == frozenset({"d"})


def test_topics_that_are_forgotten_while_a_pattern_is_prepared_are_not_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    patterns = Patterns()
    match = topic_patterns._matching_in_time

    def forgotten_meanwhile(pattern: Any, names: Iterable[str]) -> frozenset[str] | None:
        found = match(pattern, names)
        patterns.forget()  # the catalogue was read anew, without pay-1
        return found

    monkeypatch.setattr(topic_patterns, "_STEPS_MAX", 0)
    monkeypatch.setattr(topic_patterns, "_matching_in_time", forgotten_meanwhile)
    assert asyncio.run(patterns.prepare("pay.*", NAMES)) is None
    assert patterns.matching("pay.*", ["pay"]) == frozenset({"pay"})
