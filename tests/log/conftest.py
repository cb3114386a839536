"""Both disks, so that what is tested on one is tested on the other; and batches to append."""

from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.log.api import Disk
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
