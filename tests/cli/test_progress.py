"""What long work says of itself on a terminal."""

import io

import pytest

from headrace.cli.progress import counted


class _Screen(io.StringIO):
    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


def _told(monkeypatch: pytest.MonkeyPatch, *, is_terminal: bool, seconds: float) -> str:
    """What is on stderr after three items that took so long each."""
    screen, now = _Screen(is_terminal=is_terminal), 0.0
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr("headrace.cli.progress.time.monotonic", lambda: now)
    items = []
    for item in counted("abc", "groups"):
        items.append(item)
        now += seconds
    assert items == ["a", "b", "c"]
    return screen.getvalue()


def test_long_work_is_counted_and_the_line_is_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    told = _told(monkeypatch, is_terminal=True, seconds=0.6)
    assert told == "\r\x1b[K2/3 groups\r\x1b[K"


def test_nothing_is_said_in_a_pipe_or_of_short_work(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _told(monkeypatch, is_terminal=False, seconds=60) == ""
    assert _told(monkeypatch, is_terminal=True, seconds=0.01) == ""
