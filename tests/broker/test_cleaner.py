"""How the cleaner shares the interpreter with the event loop."""

import itertools
import threading

import pytest

from headrace.broker import cleaner


def test_small_steps_share_a_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step over a batch of one record takes microseconds, and a rest under load milliseconds."""
    ticks = itertools.count()
    monkeypatch.setattr("time.perf_counter", lambda: next(ticks) * 0.000_05)
    rests: list[float] = []

    class Counting(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            rests.append(timeout)
            return self.is_set()

    cleaner._carry_out((None for _ in range(1000)), Counting())
    assert 10 <= len(rests) <= 100
