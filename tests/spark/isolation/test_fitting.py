"""Which values fit which types: the same answer for functions of records, columns and batches, and
for typed values of the source. No session is needed.
"""

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DayTimeIntervalType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimeType,
)

from headrace.spark.ddl import schema_from
from headrace.spark.isolation.batches import _called
from headrace.spark.isolation.fitting import Field, fields_of
from headrace.spark.isolation.outcomes import SetAside, columns
from headrace.spark.options import ReadOptions
from headrace.spark.values import Values
from headrace.spark.values_json import Misfit, converter

NANOSECOND = pd.Timestamp("2026-01-31T12:00:00.000000001")
MIDNIGHT = datetime(2026, 1, 31, tzinfo=UTC).replace(tzinfo=None)
NOON = MIDNIGHT.replace(hour=12)
REFUSED = [
    ("bigint", 2.999),
    ("bigint", True),
    ("bigint", "5"),
    ("bigint", 1 << 63),
    ("tinyint", 128),
    ("float", 1e300),
    ("float", True),
    ("float", 1e-50),
    ("float", (1 << 24) + 1),
    ("double", True),
    ("double", (1 << 53) + 1),
    ("double", "1.5"),
    ("boolean", 1),
    ("boolean", "true"),
    ("date", 5),
    ("date", 5.5),
    ("timestamp", 1.5),
    ("timestamp", True),
    ("decimal(4,2)", 100),
    ("decimal(4,2)", 1.255),
    ("decimal(4,2)", True),
    ("struct<a:int>", {"a": 1.5}),
    ("struct<a:int>", 5),
    ("struct<a:struct<b:bigint>>", {"a": {"b": 0.5}}),
    ("array<int>", [1, 2.5]),
    ("array<int>", [True]),
    ("array<string>", "ab"),
    ("array<date>", [5]),
    ("map<string,int>", {"a": 1.5}),
    ("map<string,int>", 7),
    ("array<struct<x:float>>", [{"x": 1e39}]),
]
TAKEN = [
    ("bigint", 7),
    ("smallint", -32768),
    ("float", 1.5),
    ("float", 3.4e38),
    ("float", 0.1),
    ("float", 1 << 24),
    ("double", 1),
    ("double", 1 << 53),
    ("double", 1e300),
    ("boolean", True),
    ("string", "text"),
    ("decimal(4,2)", 99),
    ("struct<a:int,b:string>", {"a": 1}),
    ("array<int>", [1, None]),
    ("map<string,int>", {"a": 1}),
]
# What JSON has no values for, or other ones.
OF_PYTHON = [
    ("string", b"bytes", False),
    ("string", 5, False),
    ("binary", "text", False),
    ("binary", b"bytes", True),
    ("binary", bytearray(b"bytes"), True),
    ("bigint", Decimal("2.5"), False),
    ("bigint", Decimal(2), False),
    ("bigint", np.int64(7), True),
    ("bigint", 2.0, False),
    ("double", np.float64(1.5), True),
    ("double", Decimal("1.5"), False),
    ("float", Decimal("0.1"), False),
    ("double", np.int64((1 << 53) + 1), False),
    ("boolean", np.bool_(True), True),
    ("decimal(4,2)", Decimal("1.25"), True),
    ("decimal(4,2)", Decimal("1.255"), False),
    ("decimal(4,2)", 1.5, False),
    ("date", date(2026, 1, 31), True),
    ("date", NOON, False),
    ("date", MIDNIGHT, True),
    ("timestamp", NOON, True),
    ("timestamp", NOON.replace(tzinfo=UTC), True),
    ("timestamp", pd.Timestamp(NOON), True),
    ("timestamp", 1_790_000_000_000_000, True),
    ("timestamp_ntz", NOON, True),
    ("timestamp_ntz", NOON.replace(tzinfo=UTC), False),
    ("float", 1e-40, True),
    ("float", 1e-50, False),
    ("array<float>", [-1e-50], False),
    ("struct<a:int>", (1,), True),
    ("struct<a:int>", (1, 2), False),
    ("array<int>", (1, 2), True),
    ("array<int>", np.array([1, 2]), True),
    ("map<string,int>", [("a", 1)], True),
    ("map<string,int>", {None: 1}, False),
    ("map<int,int>", {"a": 1}, False),
]


def field_of(kind: str) -> Field:
    (field,) = fields_of(schema_from(f"x {kind}"))
    return field


def by_function(field: Field, value: Any) -> str | None:
    """The reason of `each_record` and `isolated_udf`; the neighbours must come through."""
    made, judged = columns([{"x": None}, {"x": value}, {}], [field])
    assert made[0].type == field.arrow
    assert not isinstance(judged[0], SetAside)
    return judged[1].reason if isinstance(judged[1], SetAside) else None


def by_batch(field: Field, value: Any) -> str | None:
    """The reason of `isolate(pandas=True)`."""
    batch = pa.record_batch({"value": [b""]})
    try:
        _called(lambda _: pd.DataFrame({"x": pd.Series([value])}), batch, [field], pandas=True)
    except (ValueError, TypeError) as error:
        return str(error)
    return None


def by_json(kind: str, value: Any) -> str | None:
    """The reason of `value.format`, by compiled code where there is some, and by Python."""
    schema, raw = schema_from(f"x {kind}"), json.dumps({"x": value}).encode()
    options = ReadOptions(bootstrap_servers="h:1", value_format="json", value_schema=schema)
    _, reasons = Values(options).decoded(pa.array([raw], pa.binary()))
    by_python = None
    try:
        converter(schema)(raw)
    except Misfit as error:
        by_python = str(error)
    assert reasons.get(0) == by_python
    return by_python


@pytest.mark.parametrize(("kind", "value"), REFUSED)
def test_what_does_not_fit_is_refused_everywhere(kind: str, value: Any) -> None:
    reason = by_function(field_of(kind), value)
    assert reason is not None
    assert reason.startswith("ValueError: x")
    assert " is no " in reason
    assert by_batch(field_of(kind), value) is not None
    assert by_json(kind, value) is not None


@pytest.mark.parametrize(("kind", "value"), TAKEN)
def test_what_fits_is_taken_everywhere(kind: str, value: Any) -> None:
    assert by_function(field_of(kind), value) is None
    assert by_batch(field_of(kind), value) is None
    assert by_json(kind, value) is None


@pytest.mark.parametrize(("kind", "value", "fits"), OF_PYTHON)
def test_values_that_only_python_has(kind: str, value: Any, fits: bool) -> None:
    assert (by_function(field_of(kind), value) is None) == fits


@pytest.mark.skipif(
    np.finfo(np.longdouble).bits == 64, reason="numpy.longdouble is a double on this machine"
)
@pytest.mark.parametrize(
    ("text", "fits"),
    [("1e400", False), ("1e-400", False), ("0.1", False), ("1.5", True), ("nan", True),
     ("-inf", True)],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["double", "float"])
def test_numbers_of_more_bits_than_a_double(kind: str, text: str, fits: bool) -> None:
    value = np.longdouble(text)
    assert (by_function(field_of(kind), value) is None) == fits
    assert (by_function(field_of(f"array<{kind}>"), [value]) is None) == fits


NOT_NULL: list[tuple[StructField, Any, str]] = [
    (StructField("x", LongType(), False), None, "x: null, and the schema has it NOT NULL"),
    (
        StructField("x", StructType([StructField("a", LongType(), False)])),
        {},
        "x.a: null, and the schema has it NOT NULL",
    ),
    (StructField("x", ArrayType(LongType(), False)), [None], "x[0]: null, and the schema has it"),
    (
        StructField("x", MapType(StringType(), LongType(), False)),
        {"k": None},
        "x.'k': null, and the schema has it",
    ),
]


@pytest.mark.parametrize(("field", "value", "reason"), NOT_NULL)
def test_null_where_the_schema_has_none(field: StructField, value: Any, reason: str) -> None:
    _, judged = columns([{"x": value}, SetAside("reject", "other")], [Field.of(field)])
    assert isinstance(judged[0], SetAside)
    assert (judged[0].reason or "").startswith(f"ValueError: {reason}")
    assert judged[1] == SetAside("reject", "other")


@pytest.mark.parametrize("kind", ["double", "bigint"])
def test_nan_of_pandas_is_null_as_in_map_in_pandas(kind: str) -> None:
    frame = pd.DataFrame({"x": [1.0, float("nan")]})
    batch = pa.record_batch({"value": [b"", b""]})
    found = _called(lambda _: frame, batch, [field_of(kind)], pandas=True)
    assert found.column("x").to_pylist() == [1, None]
    with pytest.raises(ValueError, match="x: null, and the schema has it NOT NULL"):
        _called(lambda _: frame, batch, [field_of(f"{kind} NOT NULL")], pandas=True)


@pytest.mark.parametrize("kind", ["double", "float"])
def test_nan_of_arrow_stays(kind: str) -> None:
    batch = pa.record_batch({"value": [b""]})
    made = pa.record_batch({"x": pa.array([float("nan")])})
    found = _called(lambda _: made, batch, [field_of(kind)], pandas=False)
    assert str(found.column("x")[0]) == "nan"


@pytest.mark.parametrize(
    ("made", "kind"),
    [
        (pa.array([True]), "double"),
        (pa.array([1]), "boolean"),
        (pa.array([1]), "string"),
        (pa.array(["1"]), "bigint"),
        (pa.array(["a"]), "binary"),
        (pa.array([5], pa.int32()), "date"),
        (pa.array([NOON]), "date"),
        (pa.array([1e300]), "float"),
        (pa.array([1e-50]), "float"),
        (pa.array([(1 << 53) + 1]), "double"),
        (pa.array([(1 << 24) + 1]), "float"),
        (pa.array([Decimal("1.5")]), "double"),
        (pa.array([{"a": 1.5}]), "struct<a:int>"),
        (pa.array([[1.5]]), "array<int>"),
        (pa.array([NOON], pa.timestamp("us", "UTC")), "timestamp_ntz"),
    ],
)
def test_a_column_of_another_type_is_refused(made: pa.Array, kind: str) -> None:
    batch = pa.record_batch({"value": [b""]})
    with pytest.raises(ValueError, match=r"^x"):
        _called(lambda _: pa.record_batch({"x": made}), batch, [field_of(kind)], pandas=False)


@pytest.mark.parametrize(
    ("made", "kind", "value"),
    [
        (pa.array([2.0, None]), "bigint", 2),
        (pa.array([2]), "double", 2.0),
        (pa.array([MIDNIGHT]), "date", date(2026, 1, 31)),
        (pa.array(["a"], pa.large_string()), "string", "a"),
        (pa.array(["a"]).dictionary_encode(), "string", "a"),
        (pa.array([[1]]), "array<int>", [1]),
        (pa.nulls(1), "bigint", None),
        (pa.array([float("inf")]), "float", float("inf")),
        (pa.array([0.0]), "float", 0.0),
    ],
)
def test_a_column_that_arrow_converts_without_loss_is_taken(
    made: pa.Array, kind: str, value: Any
) -> None:
    batch = pa.record_batch({"value": [b""] * len(made)})
    found = _called(lambda _: pa.record_batch({"x": made}), batch, [field_of(kind)], pandas=False)
    assert found.column("x")[0].as_py() == value


TIMES = [
    (DayTimeIntervalType(), 1.5, False),
    (DayTimeIntervalType(), True, False),
    (DayTimeIntervalType(), pd.Timedelta(1500, "ns"), False),
    (DayTimeIntervalType(), timedelta(microseconds=1), True),
    (DayTimeIntervalType(), pd.Timedelta(2000, "ns"), True),
    (DayTimeIntervalType(), 5, True),
    (TimeType(), 1.5, False),
    (TimeType(), 5, False),
    (TimeType(), NOON, False),
    (TimeType(), NOON.time(), True),
    (TimeType(), NOON.time().replace(tzinfo=UTC), False),
]


@pytest.mark.parametrize(("kind", "value", "fits"), TIMES)
@pytest.mark.parametrize("nested", [False, True], ids=["flat", "nested"])
def test_intervals_and_times_of_a_day_are_not_made_of_numbers_that_do_not_fit(
    kind: DataType, value: Any, fits: bool, nested: bool
) -> None:
    field = Field.of(StructField("x", ArrayType(kind) if nested else kind))
    assert (by_function(field, [value] if nested else value) is None) == fits


@pytest.mark.parametrize("value", [timedelta(seconds=1), NOON.time()])
def test_pandas_has_intervals_and_times_of_a_day(value: Any) -> None:
    kind = DayTimeIntervalType() if isinstance(value, timedelta) else TimeType()
    assert by_batch(Field.of(StructField("x", kind)), value) is None


def test_pandas_intervals_of_nanoseconds_are_refused() -> None:
    field = Field.of(StructField("x", DayTimeIntervalType()))
    assert by_batch(field, pd.Timedelta(1500, "ns")) is not None


@pytest.mark.parametrize("kind", ["timestamp", "timestamp_ntz", "array<timestamp>"])
def test_a_time_that_microseconds_cannot_hold_is_refused(kind: str) -> None:
    fields = fields_of(schema_from(f"x {kind}"))
    value = [NANOSECOND] if kind.startswith("array") else NANOSECOND
    _, (judged,) = columns([{"x": value}], fields)
    assert isinstance(judged, SetAside)
    assert (judged.reason or "").startswith("ValueError: x")
