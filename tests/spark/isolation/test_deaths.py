"""A record that ends its Python worker is set aside alone, whatever way it does so."""

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row

from headrace.spark import IncomingRecord, WorkerDied, each_record, isolate, isolated_udf

pytestmark = pytest.mark.spark
Records = Callable[..., DataFrame]
Told = list[tuple[int, str | None, str | None]]

DEADLY = {
    b"segfault": "WorkerDied: the Python worker died: SIGSEGV",
    b"killed": "WorkerDied: the Python worker died: SIGKILL, perhaps out of memory",
    b"exit": "WorkerDied: the Python worker ended with exit code 3",
    b"memory": "WorkerDied: the Python worker ran out of memory",
}


def deadly(value: bytes | None) -> int:
    """Twice a number, or the end of this process."""
    match value:
        case b"segfault":
            ctypes.string_at(0)
        case b"killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case b"exit":
            os._exit(3)
        case b"memory":
            raise MemoryError
        case b"hang":
            signal.pause()
    return 2 * int(value or b"")


def of_record(record: IncomingRecord) -> dict[str, Any]:
    return {"a": deadly(record.value)}


def of_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"a": [deadly(one) for one in batch.column("value").to_pylist()]})


def of_frame(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"a": frame["value"].map(deadly)})


def of_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield of_batch(batch)


def by_udf(rows: DataFrame) -> DataFrame:
    judged = rows.withColumn("judged", isolated_udf(deadly, "bigint")("value"))
    return judged.select("offset", "judged.value", "judged.disposition", "judged.reason").toDF(
        "offset", "a", "disposition", "reason"
    )


WAYS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "record": lambda rows: each_record(rows, of_record, "a bigint"),
    "batch": lambda rows: isolate(rows, of_batch, "a bigint"),
    "pandas": lambda rows: isolate(rows, of_frame, "a bigint", pandas=True),
    "generator": lambda rows: isolate(rows, of_batches, "a bigint"),
    "udf": by_udf,
}


def by_offset(found: DataFrame) -> list[Row]:
    return sorted(found.collect(), key=lambda row: row.offset)


@pytest.mark.parametrize("way", WAYS)
def test_what_kills_a_worker_is_rejected_and_its_neighbours_come_through(
    records: Records, way: str
) -> None:
    values = [b"%d" % at for at in range(40)]
    bad = {3: b"x", 4: b"segfault", 5: b"killed", 19: b"exit", 20: b"y", 39: b"memory"}
    for at, value in bad.items():
        values[at] = value
    found = by_offset(WAYS[way](records(*values)))
    assert [row.offset for row in found] == list(range(40))
    assert [row.a for row in found] == [None if at in bad else 2 * at for at in range(40)]
    told = {row.offset: (row.disposition, row.reason) for row in found if row.disposition}
    raised = "ValueError: invalid literal for int() with base 10: b'{}'"
    reasons = {at: DEADLY.get(value, raised.format(value.decode())) for at, value in bad.items()}
    assert told == {at: ("reject", reason) for at, reason in reasons.items()}


def test_a_record_is_not_blamed_for_what_another_one_left_behind(records: Records) -> None:
    def leaky(record: IncomingRecord) -> dict[str, Any]:
        seen.append(record.offset)
        if len(seen) > 5:
            os._exit(1)
        return {"a": len(seen)}

    seen: list[int] = []
    found = by_offset(each_record(records(*[b""] * 20), leaky, "a int", careful=True))
    assert [row.disposition for row in found] == [None] * 20
    assert [row.a for row in found][:7] == [1, 2, 3, 4, 5, 1, 2]


def test_a_function_that_does_not_come_back_is_ended(records: Records) -> None:
    rows = records(b"1", b"hang", b"3")
    found = by_offset(each_record(rows, of_record, "a bigint", timeout_s=5))
    reason = "WorkerDied: the Python worker took longer than 5 s and was killed"
    assert [(row.a, row.reason) for row in found] == [(2, None), (None, reason), (6, None)]
    found = by_offset(isolate(rows, of_batch, "a bigint", timeout_s=5, release_on=(WorkerDied,)))
    assert [row.disposition for row in found] == [None, "release", None]


def test_a_time_limit_is_for_each_record_and_not_for_all(records: Records) -> None:
    def slow(record: IncomingRecord) -> dict[str, Any]:
        time.sleep(3)
        return {"a": 1}

    found = by_offset(each_record(records(*[b""] * 4), slow, "a int", timeout_s=10))
    assert [row.disposition for row in found] == [None] * 4


def test_a_record_that_takes_all_memory_is_ended_before_the_machine_is(records: Records) -> None:
    def grow(record: IncomingRecord) -> dict[str, Any]:
        taken = bytearray(2 << 30) if record.offset == 1 else bytearray(1 << 20)
        return {"a": len(taken)}

    found = by_offset(each_record(records(*[b""] * 3), grow, "a bigint", memory_limit="512m"))
    assert [row.disposition for row in found] == [None, "reject", None]
    assert found[1].reason == DEADLY[b"memory"]


def test_big_values_come_whole_out_of_a_child(records: Records) -> None:
    def big(record: IncomingRecord) -> dict[str, Any]:
        if record.offset == 7:
            os._exit(1)
        return {"a": bytes([record.offset]) * (3 << 20 if record.offset % 3 == 0 else 400_000)}

    found = by_offset(each_record(records(*[b""] * 12), big, "a binary", careful=True))
    assert [len(row.a or b"") for row in found] == [
        0 if at == 7 else 3 << 20 if at % 3 == 0 else 400_000 for at in range(12)
    ]
    assert all(set(row.a or b"") <= {row.offset} for row in found)


class Odd:
    """A value that no column takes and no pipe carries."""

    def __reduce__(self) -> str:
        raise TypeError("stays here")


def test_a_value_that_cannot_leave_the_child_is_its_record_s_own_fault(records: Records) -> None:
    def odd(record: IncomingRecord) -> dict[str, Any]:
        return {"a": Odd() if record.offset == 1 else 1, "not asked for": Odd()}

    found = by_offset(each_record(records(b"", b"", b""), odd, "a int", careful=True))
    assert [row.a for row in found] == [1, None, 1]
    assert found[1].reason == "ValueError: no value for a column: stays here"


def test_children_leave_with_their_task(records: Records, tmp_path: Path) -> None:
    def noted(record: IncomingRecord) -> dict[str, Any]:
        (tmp_path / str(os.getpid())).touch()
        return {"a": os.getppid()}

    found = by_offset(each_record(records(*[b""] * 5), noted, "a int", careful=True))
    child = {int(path.name) for path in tmp_path.iterdir()}
    assert len(child) == 1
    assert not child & {row.a for row in found}
    with pytest.raises(ProcessLookupError):
        os.kill(child.pop(), 0)


def test_a_batch_that_runs_again_after_the_query_died_is_run_with_care(records: Records) -> None:
    def in_worker(record: IncomingRecord) -> dict[str, Any]:
        return {"a": os.getpid(), "b": os.getppid()}

    again = by_offset(each_record(records(b"", lease="s/2/1/replayed"), in_worker, "a int, b int"))
    once = by_offset(each_record(records(b""), in_worker, "a int, b int"))
    plain = by_offset(
        each_record(records(b"", lease="s/2/1/replayed"), in_worker, "a int, b int", careful=False)
    )
    assert once[0].b == plain[0].b != again[0].b


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"memory_limit": "much"}, "memory_limit is 'much': give bytes, or a size such as '512m'"),
        ({"timeout_s": 0}, "timeout_s is 0: give seconds"),
        ({"timeout_s": 1, "careful": False}, "leave careful=False out"),
    ],
)
def test_limits_that_are_none_are_refused_at_once(
    records: Records, given: dict[str, Any], told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        each_record(records(b"1"), of_record, "a bigint", **given)
    with pytest.raises(ValueError, match=told):
        isolated_udf(deadly, "bigint", **given)
