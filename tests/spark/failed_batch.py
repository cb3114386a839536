"""A query whose second batch fails in its sink, and its next run: as a log, and as a queue."""

from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

Batches = dict[int, list[tuple[int, int]]]
RECORDS, MORE = 500, 10


def run_until_a_batch_fails(flow: Any, rows: DataFrame) -> Batches:
    """Of 500 records, in batches of 200; what the batches had."""
    flow.produce(RECORDS)
    had: Batches = {}

    def failing(batch: DataFrame, batch_id: int) -> None:
        flow.note(batch, batch_id)
        if batch_id == 1:
            had.update(flow.seen)
            raise RuntimeError("sink is full")

    with pytest.raises(StreamingQueryException, match="sink is full"):
        flow.run(rows, failing)
    return had


def run_again(flow: Any, rows: DataFrame, had: Batches) -> None:
    """With more records: the batch that failed has those that it had, and each is there once."""
    flow.produce(MORE)
    flow.run(rows, flow.note)
    assert flow.seen[1] == had[1]
    each = (RECORDS + MORE) // 2  # by turns to both partitions
    assert flow.noted == [(partition, offset) for partition in (0, 1) for offset in range(each)]
