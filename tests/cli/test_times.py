"""Times and durations as the command line reads and prints them."""

import time
from collections.abc import Iterator

import pytest

from headrace.cli.ending import Trouble
from headrace.cli.times import in_words, local, since

NOON = 1_795_262_400_000  # 2026-11-21T12:00Z


@pytest.fixture(autouse=True)
def paris(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Paris")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_times_are_local_and_tell_their_zone() -> None:
    assert local(NOON + 45) == "2026-11-21T13:00:00.045+01:00"
    assert local(1_784_000_000_000).endswith("+02:00")
    assert local(2**63 - 1) == "9223372036854775807 ms"


@pytest.mark.parametrize(
    ("ms", "words"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1000, "1 s"),
        (61_000, "1 min 1 s"),
        (3_600_000, "1 h"),
        (3_604_000, "1 h"),
        (604_800_000 - 1, "6 d 23 h"),
        (604_800_000, "7 d"),
    ],
)
def test_durations_in_words(ms: int, words: str) -> None:
    assert in_words(ms) == words


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("90m", NOON - 5_400_000),
        ("1d2h", NOON - 93_600_000),
        ("500ms", NOON - 500),
        ("PT2H", NOON - 7_200_000),
        ("P1DT30S", NOON - 86_430_000),
        ("2026-11-21T13:00", NOON),
        ("2026-11-21T12:00Z", NOON),
        ("2026-11-21T12:00:00.045+00:00", NOON + 45),
        ("2026-11-21", NOON - 46_800_000),
    ],
)
def test_since_when(text: str, ms: int) -> None:
    assert since(text, NOON) == ms


@pytest.mark.parametrize("text", ["", "P", "PT", "2", "2 h", "yesterday", "2026-13-01", "-2h"])
def test_no_time_is_told_with_what_is_one(text: str) -> None:
    with pytest.raises(Trouble, match="write how long ago, as 90m, 2h or 7d, or a time"):
        since(text, NOON)
