"""Histories of days; here all times are shorter than Kafka's, in the same proportion."""

from typing import Any

import pytest

from headrace.broker import partition, retention
from headrace.core.types import WallMs
from headrace.sim.days import DaysOptions, DaysWorld

_DAYS, _RETENTION_MINUTES = 0.25, 90
_SEED = 2  # even: its clock is not set, so that it is known what expires when


def _run(tell: list[str] | None = None) -> tuple[str, ...]:
    world = DaysWorld(
        _SEED,
        _DAYS,
        retention_minutes=_RETENTION_MINUTES,
        tell=None if tell is None else tell.append,
    )
    return world.run().failures


def test_without_other_words_times_are_kafkas() -> None:
    config = DaysOptions.of(_SEED, 7 * 24 * 60).config()
    assert config.offsets_retention_minutes == 7 * 24 * 60
    assert config.retention_effective_ms == 7 * 86_400_000
    assert config.retention_check_ms == 300_000
    assert config.offsets_retention_check_ms == 600_000


def test_records_and_offsets_expire_when_they_are_due() -> None:
    told: list[str] = []
    assert _run(told) == ()
    steps = "\n".join(told)
    for what in ("is killed", "quiet days pass", "sees classic-group: [(('ledger', 0), -1)"):
        assert what in steps, what


def test_records_that_expire_early_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = retention.kept_from
    early_ms = _RETENTION_MINUTES * 60_000 * 9 // 10

    def early(segments: Any, settings: Any, now: WallMs, end: int) -> int:
        return sound(segments, settings, WallMs(now + early_ms), end)

    monkeypatch.setattr(partition, "kept_from", early)
    assert any(" expired after " in failure for failure in _run())
