"""Dead letters of records that are older than their topic keeps anything."""

from pathlib import Path

import pytest

from headrace.wire import batches

from .test_dead_letter_corners import Queue, record, run
from .test_dead_letters import settled


@pytest.mark.parametrize(
    ("retention", "stamp", "copied"),
    [
        ("604800000", "CreateTime", False),
        ("604800000", "LogAppendTime", True),
        ("9000000000000000", "CreateTime", True),
    ],
)
def test_a_copy_that_retention_would_take_at_once_is_listed_instead(
    tmp_path: Path, retention: str, stamp: str, copied: bool
) -> None:
    """A copy is as old as its record."""
    queue = Queue(tmp_path)

    async def work() -> None:
        await queue.begin("letters")
        await queue.create("letters", retention_ms=retention, message_timestamp_type=stamp)
        young = batches.Record(0, queue.services.clock.wall(), b"k", b"v")
        await queue.produce(record(0), young)
        await queue.reject(0, 1)
        await settled(queue.services)

    run(queue, work)
    assert queue.offsets("letters") == ([0, 1] if copied else [1])
    assert [(first, last) for first, last, _ in queue.listed] == ([] if copied else [(0, 0)])
    if not copied:
        assert "removed at once by retention.ms=604800000 of letters" in queue.listed[0][2]
