"""Children without Spark: who is blamed when one dies, and what is left of it."""

import os
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from headrace.spark.isolation.care import Care
from headrace.spark.isolation.child import Child, Death
from headrace.spark.isolation.children import Attempt, Children
from headrace.spark.isolation.outcomes import WorkerDied

BATCH = pa.record_batch({"a": list(range(40))})
SPANS = [(at, at + 1) for at in range(40)]


def done(opened: Callable[[pa.RecordBatch], Attempt], care: Care) -> list[Any]:
    """What became of each record, in order."""
    with Children(opened, care) as children:
        found = list(children.work(BATCH, SPANS))
    assert [span for span, _ in found] == SPANS
    return [result for _, result in found]


def numbers(batch: pa.RecordBatch) -> Attempt:
    values = batch.column("a").to_pylist()
    return lambda start, _stop: values[start]


def test_no_record_is_blamed_when_all_at_once_are_too_many() -> None:
    def opened(batch: pa.RecordBatch) -> Attempt:
        if batch.num_rows > 8:
            os._exit(3)
        return numbers(batch)

    assert done(opened, Care()) == list(range(40))


def test_no_record_is_blamed_when_loading_all_takes_too_long() -> None:
    def opened(batch: pa.RecordBatch) -> Attempt:
        if batch.num_rows > 16:
            time.sleep(60)
        return numbers(batch)

    assert done(opened, Care(timeout_s=3)) == list(range(40))


def test_neighbours_that_end_the_child_are_each_blamed_alone() -> None:
    def opened(batch: pa.RecordBatch) -> Attempt:
        attempt = numbers(batch)

        def deadly(start: int, stop: int) -> Any:
            found = attempt(start, stop)
            if found in {0, 1, 17, 18, 39}:
                os._exit(3)
            return found

        return deadly

    found = done(opened, Care())
    blamed = [at for at, result in enumerate(found) if isinstance(result, WorkerDied)]
    assert blamed == [0, 1, 17, 18, 39]


def test_a_child_that_somebody_else_waited_for_is_dead_and_nothing_else() -> None:
    def serve(job: Any) -> Any:
        os._exit(3)

    child = Child(serve, None, None)
    child.ask("anything")
    os.waitpid(child._pid, 0)
    with pytest.raises(Death, match="unknown"):
        child.result()
    child.end()


@pytest.mark.parametrize("care", [Care(timeout_s=30), Care(memory_bytes=1 << 30)])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, GeneratorExit])
def test_an_exception_that_ends_a_child_leaves_its_name(
    kind: type[BaseException], care: Care, capfd: pytest.CaptureFixture[str]
) -> None:
    def opened(batch: pa.RecordBatch) -> Attempt:
        attempt = numbers(batch)

        def deadly(start: int, stop: int) -> Any:
            if (found := attempt(start, stop)) == 7:
                raise kind
            return found

        return deadly

    found = done(opened, care)
    assert isinstance(found[7], WorkerDied)
    assert str(found[7]) == f"the Python worker ended with {kind.__name__}"
    assert (found[6], found[8]) == (6, 8)
    assert "Traceback" not in capfd.readouterr().err
