"""Filters narrow what is asked for, and never too far."""

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    In,
    Not,
    StringContains,
    StringStartsWith,
)

from headrace.spark.tables.wanted import Wanted

KNOWN = ["a", "ab", "b"]


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        ([], KNOWN),
        ([EqualTo(("group",), "a")], ["a"]),
        ([EqualNullSafe(("group",), "b")], ["b"]),
        ([EqualNullSafe(("group",), None)], KNOWN),
        ([In(("group",), ("a", "b", None, "c"))], ["a", "b"]),
        ([In(("group",), ("a", "b")), EqualTo(("group",), "b")], ["b"]),
        ([EqualTo(("group",), "a"), EqualTo(("group",), "b")], []),
        ([StringStartsWith(("group",), "a")], ["a", "ab"]),
        ([StringStartsWith(("group",), "a"), StringStartsWith(("group",), "ab")], ["ab"]),
        ([Not(EqualTo(("group",), "a"))], KNOWN),
        ([StringContains(("group",), "a")], KNOWN),
        ([EqualTo(("assignment", "topic"), "a")], KNOWN),
    ],
)
def test_groups(filters: list[Filter], names: list[str]) -> None:
    assert Wanted().narrowed(filters).names(KNOWN) == names


def test_places() -> None:
    every = Wanted()
    assert every.has("t", 0)
    one = every.narrowed([EqualTo(("topic",), "t"), In(("partition",), (0, 2))])
    assert [one.has("t", 0), one.has("t", 1), one.has("u", 0)] == [True, False, False]
    assert every.narrowed([GreaterThan(("partition",), 5)]).has("t", 0)


def test_other_columns_mean_nothing() -> None:
    assert Wanted().narrowed([EqualTo(("lag",), 5), EqualTo(("prefixes",), "x")]) == Wanted()
