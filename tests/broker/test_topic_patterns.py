"""Regular expressions of subscriptions: RE2's syntax, whole names, and bounds."""

import pytest

from headrace.broker.topic_patterns import matching
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
