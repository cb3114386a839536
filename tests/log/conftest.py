"""Both disks, so that what is tested on one is tested on the other; and batches to append."""

from collections import deque
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from headrace.core.types import WallMs
from headrace.log.api import Disk
from headrace.log.compaction import Compaction, Tally
from headrace.log.dirty import Rules, find_dirty
from headrace.log.memory_disk import MemoryDisk
from headrace.log.os_disk import OsDisk
from headrace.log.segments import SegmentedLog
from headrace.wire import batches
from headrace.wire.batches import Record

Append = Callable[..., int]


@pytest.fixture(params=["memory", "os"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    """An empty disk of each kind."""
    return MemoryDisk() if request.param == "memory" else OsDisk(tmp_path / "data")


@pytest.fixture
def append() -> Append:
    """Append one batch of records with these values; returns its first offset."""

    def go(log: SegmentedLog, *values: bytes, at: int = 1000, size: int = 0, **built: int) -> int:
        records = [
            Record(0, at + n, None, value.ljust(size, b".")) for n, value in enumerate(values)
        ]
        data = bytearray(batches.build(records, **built))
        return log.append(data, batches.headers(data))

    return go


Compact = Callable[..., int]


@pytest.fixture
def compact() -> Compact:
    """Compact the sealed part of a log at once; returns where the next cleaning begins."""

    def go(
        disk: Disk,
        log: SegmentedLog,
        cleaned_to: int | None = None,
        *,
        now: int = 0,
        tally: list[Tally] | None = None,
        **rules: int,
    ) -> int:
        obeyed = Rules(**rules)
        dirty = find_dirty(log, cleaned_to, obeyed, WallMs(now))
        last_offset = log.producers.remembered().last_offset
        work = Compaction(disk, log, dirty, obeyed, WallMs(now), last_offset)
        deque(work.map_keys(), maxlen=0)
        for group in work.groups():
            copy = work.open_copy(group)
            with closing(copy):
                deque(work.copy(group, copy), maxlen=0)
            assert work.put(group)
            work.put_away(group)
            work.finish(group)
            work.tidy(group)
        if tally is not None:
            tally.append(work.tally)
        return work.end

    return go
