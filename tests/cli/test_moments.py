"""Moments and lengths of time on the command line."""

import pytest

from headrace.cli.ending import Trouble
from headrace.cli.moments import length_ms, moment_ms

NOON = 1_795_262_400_000  # 2026-11-21T12:00:00Z


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2026-11-21T12:00:00.000", NOON),
        ("2026-11-21T12:00:00.000Z", NOON),
        ("2026-11-21T12:00:00", NOON),
        ("2026-11-21T12:00", NOON),
        ("2026-11-21T13:00:00.000+01:00", NOON),
        ("2026-11-21T13:00:00.000+01", NOON),
        ("2026-11-21T06:30:00.000-0530", NOON),
        ("2026-11-21T12:00:00.25", NOON + 250),
        ("2026-11-21T12:00:00,123456789", NOON + 123),
        (" 2026-11-21T12:00:00Z ", NOON),
        ("1970-01-01T00:00:00.001", 1),
        ("1969-12-31T23:59:59.999", -1),
    ],
)
def test_moments(text: str, ms: int) -> None:
    assert moment_ms(text) == ms


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-11-21 12:00:00",
        "2026-13-21T12:00:00",
        "2026-02-30T12:00:00",
        "2026-11-21T24:00:00",
        "2026-11-21T12:60:00",
        "2026-11-21T12:00:00+25:00",
        "2026-11-21T12:00:00.Z",
        "2026-11-21T12:00:00Zulu",
        "noon",
    ],
)
def test_moments_that_are_none(text: str) -> None:
    with pytest.raises(Trouble, match=r"is no time; write it as 2026-11-21T13:20:54\.206"):
        moment_ms(text)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("PT0S", 0),
        ("P1D", 86_400_000),
        ("P2DT3H4M5.678S", 183_845_678),
        ("pt1h30m", 5_400_000),
        ("PT90M", 5_400_000),
        ("PT0.5S", 500),
        ("PT1.S", 1000),
        ("PT0,001S", 1),
        ("-PT1H", -3_600_000),
        ("P-1DT2H", -79_200_000),
        ("PT-0.5S", -500),
        ("-PT-6H3M", 21_420_000),
        ("+P1D", 86_400_000),
    ],
)
def test_lengths(text: str, ms: int) -> None:
    assert length_ms(text) == ms


@pytest.mark.parametrize(
    "text",
    [
        "",
        "P",
        "PT",
        "P1DT",
        "1h",
        "P1H",
        "PT1D",
        "P1Y",
        "PT1M1H",
        "PT1.5M",
        "PT.5S",
        "P99999999999999999999D",
    ],
)
def test_lengths_that_are_none(text: str) -> None:
    with pytest.raises(Trouble, match="is no length of time; write it as PnDTnHnMnS"):
        length_ms(text)
