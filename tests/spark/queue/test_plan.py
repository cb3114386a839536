"""Batches in the offset log, and how they are cut into tasks."""

import json
import os
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.spark.log.position import Position
from headrace.spark.queue.options import QueueOptions
from headrace.spark.queue.plan import Batch, split
from headrace.wire.leases import Range

OPTIONS = QueueOptions(bootstrap_servers="127.0.0.1:9092", topics=("t",), group="g")


def test_a_batch_survives_the_offset_log() -> None:
    batch = Batch("s", 3, (Range("t", 0, 5, 9, 1), Range("t", 1, 0, 0, 2)), {"t": "id"})
    assert Batch.from_json(json.loads(json.dumps(batch.to_json()))) == batch
    assert batch.records == 6


def test_a_batch_without_topic_ids_is_read_too() -> None:
    """Earlier releases wrote none."""
    ranges = [["t", 0, 5, 9, 1]]
    logged = {"v": 1, "session": "s", "seq": 3, "ranges": ranges}
    batch = Batch("s", 3, (Range("t", 0, 5, 9, 1),))
    assert (Batch.from_json(logged), batch.to_json()) == (batch, logged)


def test_offsets_of_another_version_are_refused() -> None:
    with pytest.raises(ValueError, match=r"offsets of version 2 .*reads a queue in version 1"):
        Batch.from_json({"v": 2, "session": "s", "seq": 0, "ranges": []})


def test_the_checkpoint_of_a_log_is_refused() -> None:
    log = Position({("t", 0): 5}).to_json()
    with pytest.raises(
        ValueError, match=r"another use .* and a new output folder, with option newC"
    ):
        Batch.from_json(log)


def test_neighbours_stay_together_and_small_ranges_share_a_task() -> None:
    ranges = [Range("t", p, first, first + 9, 1) for first in (0, 20) for p in (0, 1)]
    assert split(ranges, replace(OPTIONS, min_partitions=2)) == [
        (Range("t", 0, 0, 9, 1), Range("t", 0, 20, 29, 1)),
        (Range("t", 1, 0, 9, 1), Range("t", 1, 20, 29, 1)),
    ]


def test_a_small_batch_is_one_task_and_a_large_one_as_many_as_there_are_cores() -> None:
    assert len(split([Range("t", 0, 0, 999, 1)], OPTIONS)) == 1
    assert len(split([Range("t", 0, 0, 999_999, 1)], OPTIONS)) == 20
    large = replace(OPTIONS, max_records_per_partition=10_000_000)
    assert len(split([Range("t", 0, 0, 999_999, 1)], large)) == (os.cpu_count() or 1)


RANGES = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 300)), min_size=1, max_size=20)


@given(sizes=RANGES, tasks=st.integers(1, 9), most=st.integers(1, 400))
def test_every_record_is_in_one_task(sizes: list[tuple[int, int]], tasks: int, most: int) -> None:
    ranges, ends = [], dict.fromkeys(range(4), 0)
    for partition, size in sizes:
        first = ends[partition]
        ends[partition] = first + size + 5
        ranges.append(Range("t", partition, first, first + size - 1, 1))
    options = replace(OPTIONS, min_partitions=tasks, max_records_per_partition=most)
    found = split(ranges, options)
    records = [
        [(one.partition, offset) for one in task for offset in range(one.first, one.last + 1)]
        for task in found
    ]
    wanted = sorted((one.partition, o) for one in ranges for o in range(one.first, one.last + 1))
    assert sorted(one for task in records for one in task) == wanted
    assert all(0 < len(task) <= most for task in records)
    assert len(records) <= max(tasks, -(-len(wanted) // most))
