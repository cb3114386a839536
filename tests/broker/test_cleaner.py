"""How the cleaner shares the interpreter with the event loop."""

import asyncio
import itertools
import threading

import pytest

from headrace.broker import cleaner
from headrace.broker.checked_clock import CheckedClock
from headrace.broker.cleaner import Cleaner, Counters, Kept
from headrace.broker.config import Config
from headrace.broker.topic_settings import TopicSettings
from headrace.log.memory_disk import MemoryDisk, VirtualClock
from headrace.log.segments import SegmentedLog
from headrace.wire import batches
from headrace.wire.batches import Record

from .inside_rig import counted_turns


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


@pytest.mark.parametrize(("logs", "segments", "turns"), [(160, 1, 9), (16, 500, 3), (16, 1500, 7)])
def test_a_look_lets_others_have_their_turn_after_many_logs_or_segments(
    logs: int, segments: int, turns: int
) -> None:
    disk = MemoryDisk()
    kept = SegmentedLog(disk, "topic-0", segment_bytes=1)
    for _ in range(segments):
        data = bytearray(batches.build([Record(0, 0, b"", b"")]))
        kept.append(data, batches.headers(data))
    assert len(kept.segments()) == segments

    async def scene() -> None:
        clock = CheckedClock(VirtualClock(), disk, Config)
        work = Cleaner(disk, clock, 1 << 20, Counters(), lambda _: None)
        work.load(())
        one = Kept("topic", 0, TopicSettings(min_cleanable_ratio=1.0), lambda: kept)
        async with counted_turns() as counted:
            before = counted[0]
            assert not await work.clean_dirtiest([one] * logs)
            assert counted[0] - before >= turns

    asyncio.run(scene())
