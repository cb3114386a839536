"""A sink with several actions, and functions that judge differently the second time: none is lost.

A function that asks a service that is away for a moment releases a record, and takes it when it is
asked again.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from headrace.spark import IncomingRecord, Release, accepted, acknowledge, each_record

pytestmark = pytest.mark.spark
RECORDS = 10
SECONDS_MAX = 60


def empty_or_all(rows: DataFrame) -> list[Any]:
    return [] if rows.isEmpty() else rows.collect()


def count_then_all(rows: DataFrame) -> list[Any]:
    return rows.collect() if rows.count() else []


SINKS: dict[str, Callable[[DataFrame], list[Any]]] = {
    "collect": lambda rows: rows.collect(),
    "toLocalIterator": lambda rows: list(rows.toLocalIterator()),
    "isEmpty": empty_or_all,
    "count": count_then_all,
    "tail": lambda rows: rows.tail(RECORDS),
    "foreachPartition": lambda rows: rows.rdd.collect(),
}


@pytest.fixture
def judged(flow: Any, tmp_path: Path) -> Callable[..., DataFrame]:
    """The numbers of the records; that of offset 3 is released the first time it is looked at."""
    seen = tmp_path / "seen"
    calls = tmp_path / "calls"

    def judge(record: IncomingRecord) -> dict[str, Any]:
        with calls.open("a") as told:
            told.write(".")
        if record.offset == 3 and record.partition == 0 and not seen.exists():
            seen.touch()
            raise Release("not yet")
        return {"number": int(record.value or b""), "creditLimit": 1.0}

    flow.calls = calls
    flow.produce(RECORDS, value="{}")
    return lambda **options: each_record(
        flow.rows(includeDelivery="true", **options), judge, "number int, creditLimit double"
    )


@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("way", ["acknowledge", "accepted"])
def test_what_the_sink_was_not_given_is_not_accepted(
    flow: Any, judged: Callable[..., DataFrame], sink: str, way: str
) -> None:
    found: list[int] = []

    def write(rows: DataFrame, _: int) -> None:
        found.extend(row.number for row in SINKS[sink](rows))

    where = {"bootstrap_servers": flow.servers, "group": "g"}
    if way == "acknowledge":
        query = flow.start(judged(), acknowledge(write, **where))
    else:
        query = flow.start(accepted(judged(), **where), write)
    flow.until(lambda: not query.isActive or flow.finished(), SECONDS_MAX)
    assert query.exception() is None
    assert set(found) == set(range(RECORDS))
    # `isEmpty` may have seen another record than it gave later: then one comes twice, none not.
    assert all(times <= 2 for times in Counter(found).values())


def test_a_column_named_like_a_limit_is_judged_once(
    flow: Any, judged: Callable[..., DataFrame]
) -> None:
    found: list[Any] = []
    sink = acknowledge(
        lambda rows, _: found.extend(rows.select("number", "creditLimit").collect()),
        bootstrap_servers=flow.servers,
        group="g",
    )
    flow.start(judged(), sink)
    flow.until(flow.finished, SECONDS_MAX)
    assert sorted(row.number for row in found) == list(range(RECORDS))
    assert flow.calls.read_text() == "." * (RECORDS + 1)
