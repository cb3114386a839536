"""Dead letters of records that went from the log before they were copied."""

from pathlib import Path
from typing import Any

import pytest

from headrace.broker import dead_letter_copies, dead_letters
from headrace.broker.dead_letters import DeadLetters
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


def test_copies_of_finished_records_are_not_kept_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dead-letter topic may have any number of them."""
    queue, found = Queue(tmp_path), list[set[int]]()
    failures = list[OSError]()
    done, origins = DeadLetters._done, dead_letter_copies.origins

    async def failing(*arguments: Any) -> None:
        if failures:
            raise failures.pop()
        await done(*arguments)

    async def looking(*arguments: Any) -> Any:
        copies = await origins(*arguments)
        found.append({origin[3] for origin in copies})
        return copies

    async def work() -> None:
        await queue.begin("dlq.jobs")
        await queue.produce(*map(record, range(6)))
        for first, last in ((0, 2), (3, 4)):
            await queue.reject(first, last)
            await settled(queue.services)
            failures.append(OSError(5, "input/output error"))

    monkeypatch.setattr(DeadLetters, "_done", failing)
    monkeypatch.setattr(dead_letters, "origins", looking)
    monkeypatch.setattr(dead_letters, "_RETRY_SECONDS_MIN", 0.01)
    run(queue, work)
    assert queue.offsets("dlq.jobs") == [0, 1, 2, 3, 4]
    assert found == [{3, 4}]


def test_records_of_a_large_batch_are_decoded_some_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, portions = Queue(tmp_path), list[int]()
    some = dead_letter_copies._some

    def counted(*given: Any) -> Any:
        found = some(*given)
        portions.append(len(found))
        return found

    async def work() -> None:
        monkeypatch.setattr(dead_letter_copies, "_RECORDS_AT_ONCE", 7)
        monkeypatch.setattr(dead_letter_copies, "_some", counted)
        await queue.begin("dlq.jobs")
        jobs = queue.services.partition("jobs", 0)
        assert jobs is not None
        jobs.append_records([record(number) for number in range(40)])
        await queue.produce(record(40))
        await queue.reject(3, 22)
        await settled(queue.services)

    run(queue, work)
    assert queue.offsets("dlq.jobs") == list(range(3, 23))
    assert portions == [7, 7, 6, 0]


def test_a_record_with_too_many_headers_gets_no_dead_letter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release before validation may have stored millions of them in a few kilobytes."""
    queue = Queue(tmp_path)

    async def work() -> None:
        await queue.begin("dlq.jobs")
        many = record(0)._replace(headers=(("h", None),) * 20)
        await queue.produce(many, record(1))
        with monkeypatch.context() as patch:
            patch.setattr(batches, "RECORD_HEADERS_MAX", 19)
            await queue.reject(0, 1)
            await settled(queue.services)

    run(queue, work)
    assert queue.offsets("dlq.jobs") == [1]
    ((first, last, why),) = queue.listed
    assert (first, last) == (0, 0)
    assert "20 headers in one record" in why


def compacted(count: int, kept: set[int]) -> bytes:
    """A batch of so many offsets in which some records are left."""
    data = batches.build([record(number) for number in range(count)])
    (header,) = batches.headers(data)
    body = bytes(batches.payload(data, 0, header))
    found = [one for number, one in enumerate(scan(body, header)) if number in kept]
    left = b"".join(body[one.start : one.end] for one in found)
    return with_records(header, left, len(found), max(one.timestamp_delta for one in found))
