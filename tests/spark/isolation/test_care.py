"""When a function is run in a child process."""

import os
from typing import Any

import pyarrow as pa
import pytest

from headrace.spark.isolation.care import Care


def batch(delivery_count: int, lease: str) -> pa.RecordBatch:
    counts = pa.array([1, delivery_count], pa.int32())
    return pa.record_batch({"delivery_count": counts, "lease": ["s/1/1", lease]})


@pytest.mark.parametrize(
    ("delivery_count", "lease", "used", "needed"),
    [
        (1, "s/1/1", False, False),
        (2, "s/1/1", False, True),
        (2, "s/1/1", True, False),  # released records are usual in a worker that is well
        (1, "s/1/1/replayed", True, True),
    ],
)
def test_what_may_have_ended_a_worker_is_run_with_care(
    delivery_count: int, lease: str, used: bool, needed: bool
) -> None:
    given = batch(delivery_count, lease)
    assert Care().needed(given, used=used) is needed
    assert Care(always=True).needed(given, used=used)
    assert not Care(always=False).needed(given, used=used)


def test_without_fork_there_are_no_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fork")
    assert not Care().needed(batch(2, "s/1/1/replayed"), used=False)
    with pytest.raises(ValueError, match=r"needs os\.fork: Linux or macOS"):
        Care.of((), True, None, None)


@pytest.mark.parametrize(
    ("given", "size"), [("512m", 512 << 20), ("2 GB", 2 << 30), (1000, 1000), ("64kb", 64 << 10)]
)
def test_sizes_are_read_as_spark_reads_them(given: Any, size: int) -> None:
    assert Care.of((), None, None, given).memory_bytes == size
