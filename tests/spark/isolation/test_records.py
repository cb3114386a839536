"""One record that raises is set aside with its reason; its neighbours come through."""

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, tzinfo
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, Row
from pyspark.sql.types import LongType

from headrace.spark import IncomingRecord, Reject, Release, each_record, isolate

pytestmark = pytest.mark.spark
Records = Callable[..., DataFrame]


def by_offset(found: DataFrame) -> list[Row]:
    return sorted(found.collect(), key=lambda row: row.offset)


def verdicts(found: DataFrame) -> list[tuple[str | None, str | None]]:
    return [(row.disposition, row.reason) for row in by_offset(found)]


def test_values_that_fit_alone_but_not_together_all_come_through(records: Records) -> None:
    def made(record: IncomingRecord) -> dict[str, Any]:
        return {"s": {"x": 1} if record.offset % 2 else (2,)}

    found = by_offset(each_record(records(*[b""] * 4), made, "s struct<x: int>"))
    assert [row.s.x for row in found] == [2, 1, 2, 1]


def test_a_record_that_raises_is_rejected_with_its_reason(records: Records) -> None:
    def parse(record: IncomingRecord) -> dict[str, Any]:
        found = json.loads(record.value or b"")
        return {"a": found["a"], "b": record.timestamp_ms, "more": 1}

    rows = records(b'{"a": 1}', b"{", b'{"a": null}', b"[]", None, b'{"a": 6}')
    found = by_offset(each_record(rows, parse, "a int, b bigint"))
    assert [(row.a, row.b) for row in found] == [
        (1, 0),
        (None, None),
        (None, 2),
        (None, None),
        (None, None),
        (6, 5),
    ]
    assert [row.disposition for row in found] == [None, "reject", None, "reject", "reject", None]
    assert found[3].reason == "TypeError: list indices must be integers or slices, not str"
    assert found[1].reason.startswith("JSONDecodeError: Expecting property name")
    assert (found[1].topic, found[1].partition, found[1].offset) == ("t", 0, 1)
    assert (found[1].delivery_count, found[1].lease) == (2, "s/1/1")


@pytest.mark.parametrize("careful", [None, True])
def test_a_function_may_choose_and_some_exceptions_release(
    records: Records, careful: bool | None
) -> None:
    def judge(record: IncomingRecord) -> dict[str, Any]:
        match record.offset:
            case 0:
                raise Release("later", delay_s=1.5)
            case 1:
                raise Reject("never")
            case 2:
                raise ConnectionRefusedError("away")
            case 3:
                raise ValueError("x" * 2000)
        return {"a": 1}

    away = (ConnectionError,)
    rows = records(*[b""] * 5)
    found = each_record(rows, judge, "a int", release_on=away, careful=careful)
    assert [row.delay_ms for row in by_offset(found)] == [1500, None, None, None, None]
    told = verdicts(found)
    assert told[:3] == [
        ("release", "later"),
        ("reject", "never"),
        ("release", "ConnectionRefusedError: away"),
    ]
    assert told[3][1] is not None
    assert len(told[3][1]) == 500
    assert told[4] == (None, None)


def test_a_value_that_does_not_fit_the_schema_is_its_record_s_own_fault(records: Records) -> None:
    def parse(record: IncomingRecord) -> Any:
        return {0: {"a": 1, "b": "x"}, 1: {"a": "one"}, 2: {"a": 2**40}, 3: None}[record.offset]

    found = each_record(records(*[b""] * 4), parse, "a int, b string")
    assert [(row.a, row.b) for row in by_offset(found)] == [(1, "x"), *[(None, None)] * 3]
    assert verdicts(found) == [
        (None, None),
        ("reject", "ValueError: a: 'one' is no int"),
        ("reject", "ValueError: a: 1099511627776 is no int"),
        ("reject", "TypeError: NoneType returned"),
    ]


class Panic(BaseException):
    """As extensions in Rust raise it: no `Exception`."""


class Unsayable:
    def __repr__(self) -> str:
        raise RuntimeError("no words")

    def __float__(self) -> float:
        raise RuntimeError("no number")


class Unsure(tzinfo):
    def utcoffset(self, _: datetime | None) -> None:
        raise NotImplementedError("which zone?")

    dst = tzname = utcoffset


class Lazy(Mapping[str, Any]):
    """Looks its values up when they are asked for, as rows of a database may."""

    def __getitem__(self, name: str) -> Any:
        raise ConnectionError("away")

    def __iter__(self) -> Iterator[str]:
        return iter(["a"])

    def __len__(self) -> int:
        return 1


@pytest.mark.parametrize("careful", [None, True])
def test_no_value_stops_the_query_whatever_it_raises(
    records: Records, careful: bool | None
) -> None:
    def made(record: IncomingRecord) -> Any:
        return {
            0: {"a": 1},
            1: {"a": 10**5000},  # Python itself refuses to say it
            2: {"a": Unsayable()},
            3: {"b": datetime(2026, 1, 1, tzinfo=Unsure())},
            4: Lazy(),
        }[record.offset]

    rows = records(*[b""] * 5)
    away = (ConnectionError,)
    found = each_record(rows, made, "a double, b timestamp", release_on=away, careful=careful)
    told = verdicts(found)
    assert told[0] == (None, None)
    assert [one for one, _ in told[1:]] == ["reject", "reject", "reject", "release"]
    assert told[1][1] == "ValueError: a: <int> is no double"
    assert told[4][1] == "ConnectionError: away"


@pytest.mark.parametrize("careful", [None, True])
def test_exceptions_that_are_no_exception_concern_their_record_alone(
    records: Records, careful: bool | None
) -> None:
    def panic(record: IncomingRecord) -> dict[str, Any]:
        if record.offset == 1:
            raise Panic("index out of bounds")
        return {"a": 1}

    found = each_record(records(*[b""] * 3), panic, "a int", careful=careful)
    assert verdicts(found) == [
        (None, None),
        ("reject", "Panic: index out of bounds"),
        (None, None),
    ]


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    numbers = [int(value) for value in batch.column("value").to_pylist()]
    return pa.record_batch({"a": pa.array([2 * one for one in numbers], pa.int64())})


def test_a_batch_that_raises_is_halved_down_to_the_record(records: Records) -> None:
    values = [b"x" if at in (3, 17) else b"%d" % at for at in range(20)]
    found = isolate(records(*values), doubled, "a bigint")
    assert [row.a for row in by_offset(found)] == [
        None if at in (3, 17) else 2 * at for at in range(20)
    ]
    set_aside = [row for row in by_offset(found) if row.disposition == "reject"]
    assert [row.offset for row in set_aside] == [3, 17]
    assert set_aside[0].reason == "ValueError: invalid literal for int() with base 10: b'x'"


def test_pandas_functions_are_isolated_too(records: Records) -> None:
    def tripled(frame: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"a": frame["value"].map(int) * 3})

    found = isolate(records(b"1", b"x", b"3"), tripled, "a int", pandas=True)
    assert [(row.a, row.disposition) for row in by_offset(found)] == [
        (3, None),
        (None, "reject"),
        (9, None),
    ]


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Reject("half a \ud83d smile"), "half a \\ud83d smile"),
        (ValueError("\udcff"), "ValueError: \\udcff"),
        (Speechless(), "Speechless: "),
    ],
)
def test_a_reason_that_is_no_text_sets_its_record_aside_all_the_same(
    records: Records, error: Exception, reason: str
) -> None:
    def fail(record: IncomingRecord) -> dict[str, Any]:
        raise error

    assert verdicts(each_record(records(b"1"), fail, "a int")) == [("reject", reason)]


@pytest.mark.parametrize("schema", ["int", "array<int>", LongType()])
def test_a_schema_without_columns_is_refused(schema: Any, records: Records) -> None:
    with pytest.raises(ValueError, match=r"has no columns: give e.g. 'id bigint, name string'"):
        each_record(records(b"1"), lambda _: {}, schema)


def test_a_pandas_function_that_returns_no_frame_fails_the_query(records: Records) -> None:
    with pytest.raises(PythonException, match=r"returned NoneType, not a pandas.DataFrame"):
        isolate(records(b"1", b"2"), lambda frame: None, "a bigint", pandas=True).collect()


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (lambda batch: doubled(batch).slice(1), "made 2 rows of 3: return one for each"),
        (lambda batch: doubled(batch).rename_columns(["b"]), "returned no column a"),
        (lambda batch: None, "returned NoneType, not a pyarrow.RecordBatch"),
    ],
)
def test_a_function_that_breaks_its_contract_fails_the_query(
    records: Records, function: Any, told: str
) -> None:
    with pytest.raises(PythonException, match=told):
        isolate(records(b"1", b"2", b"3"), function, "a bigint").collect()


def test_misuse_is_told_before_anything_runs(records: Records) -> None:
    rows = records(b"1")
    with pytest.raises(ValueError, match="names offset, which the records bring along"):
        isolate(rows, doubled, "offset int")
    with pytest.raises(ValueError, match="names Offset, which the records bring along"):
        isolate(rows, doubled, "Offset int")
    with pytest.raises(ValueError, match=r"the schema has 's\.a' twice"):
        isolate(rows, doubled, "s struct<a: int, a: int>")
    with pytest.raises(ValueError, match=r"lack lease: .*includeDelivery set to true"):
        isolate(rows.drop("lease"), doubled, "a int")


@pytest.mark.parametrize("delay_s", [-1, 367 * 86_400, float("inf"), float("nan")])
def test_a_delay_that_no_broker_takes_is_refused_where_it_is_made(delay_s: float) -> None:
    with pytest.raises(ValueError, match=r"delay_s is .*: give 0 to 31622400 seconds"):
        Release("later", delay_s=delay_s)
