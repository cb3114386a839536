"""Dead letters of records that went from the log before they were copied."""

from pathlib import Path

from headrace.log.rewriting import scan, with_records
from headrace.wire import batches

from .test_dead_letter_corners import Queue, record, run
from .test_dead_letters import settled


def test_a_record_that_is_not_in_the_log_any_more_is_listed(tmp_path: Path) -> None:
    """Compaction may have removed it while its dead letter waited."""
    queue = Queue(tmp_path)

    async def work() -> None:
        await queue.begin("dlq.jobs")
        jobs = queue.services.partition("jobs", 0)
        assert jobs is not None
        data = bytearray(compacted(5, kept={0, 3}))
        jobs.append(data, batches.headers(data))
        await queue.produce(record(5))
        await queue.reject(0, 5)
        await settled(queue.services)

    run(queue, work)
    assert queue.offsets("dlq.jobs") == [0, 3, 5]
    gone = "bad; no dead letter: the {} of jobs-0 cannot be had from the log any more"
    assert queue.listed == [(1, 2, gone.format("records 1-2")), (4, 4, gone.format("record 4"))]


def compacted(count: int, kept: set[int]) -> bytes:
    """A batch of so many offsets in which some records are left."""
    data = batches.build([record(number) for number in range(count)])
    (header,) = batches.headers(data)
    body = bytes(batches.payload(data, 0, header))
    found = [one for number, one in enumerate(scan(body, header)) if number in kept]
    left = b"".join(body[one.start : one.end] for one in found)
    return with_records(header, left, len(found), max(one.timestamp_delta for one in found))
