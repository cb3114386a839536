"""Typed values: what each type takes, why a value is refused, and that nothing ever raises."""

import json
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import ArrayType, LongType, MapType, StringType, StructField, StructType

from headrace.spark.ddl import schema_from
from headrace.spark.options import ReadOptions
from headrace.spark.values import Values
from headrace.wire import json_columns

EVERY_TYPE = (
    "flag boolean, tiny tinyint, id bigint, ratio float, total double, price decimal(6,2), "
    "name string, raw binary, at timestamp, local timestamp_ntz, day date, tags array<string>, "
    "scores map<string,int>, place struct<x:int,inside:struct<y:array<date>>>"
)
MICROS = datetime(2026, 1, 31, 0, 0, 0, 123456, UTC)
FAR_ZONE = '"2026-01-31 00:00:00+25:00"'
NO_ZONE = MICROS.replace(tzinfo=None)
FLAT = (
    "id bigint, total double, ratio float, name string, paid boolean, at timestamp, day date, "
    "tiny tinyint"
)


def values(schema: str, **options: str) -> Values:
    return Values(
        ReadOptions(
            bootstrap_servers="127.0.0.1:1",
            value_format="json",
            value_schema=schema_from(schema),
            **options,  # type: ignore[arg-type]  # only those that are text
        )
    )


def rows(
    decoder: Values, raws: Sequence[bytes | None]
) -> tuple[list[dict[str, Any]], dict[int, str]]:
    columns, reasons = decoder.decoded(pa.array(raws, pa.binary()))
    for column in columns.values():
        column.validate(full=True)
        assert len(column) == len(raws)
    return pa.table(columns).to_pylist(), reasons


def field(kind: str, text: str) -> Any:
    """The value of a field of this type, or the reason as a text that begins with an `!`."""
    (row,), reasons = rows(values(f"x {kind}"), [b'{"x":' + text.encode() + b"}"])
    return "!" + reasons[0] if reasons else row["x"]


@pytest.mark.parametrize(
    ("kind", "text", "wanted"),
    [
        ("string", '"a\\n\\u00e4"', "a\nä"),
        ("string", "1.50", "1.50"),
        ("string", "true", "true"),
        ("string", '{"a": [1.0, "ü", null]}', '{"a":[1.0,"ü",null]}'),
        ("string", '"\\ud800"', '!x: "\\ud800" is no string'),
        ("bigint", "9223372036854775807", 9223372036854775807),
        ("bigint", "9223372036854775808", "!x: 9223372036854775808 is no bigint"),
        ("bigint", "1.0", "!x: 1.0 is no bigint"),
        ("int", '"7"', '!x: "7" is no int'),
        ("tinyint", "-129", "!x: -129 is no tinyint"),
        ("int", "9" * 5000, f"!x: {'9' * 77}... is no int"),
        ("boolean", "1", "!x: 1 is no boolean"),
        ("double", "1e400", "!x: 1e400 is no double"),
        ("float", "1e39", "!x: 1e39 is no float"),
        ("float", "3.4e38", 3.3999999521443642e38),
        ("double", "1e-400", "!x: 1e-400 is no double"),
        ("double", "-0.1e-400", "!x: -0.1e-400 is no double"),
        ("double", "5e-324", 5e-324),
        ("double", "-0.0e-999", -0.0),
        ("double", "0." + 30 * "0", 0.0),
        ("double", "0.1", 0.1),
        ("double", "9007199254740992", 9007199254740992.0),
        ("double", "9007199254740993", "!x: 9007199254740993 is no double"),
        ("double", "-9007199254740993", "!x: -9007199254740993 is no double"),
        ("double", "9007199254740993.0", 9007199254740992.0),
        ("double", "18446744073709551616", 18446744073709551616.0),
        ("double", "18446744073709551617", "!x: 18446744073709551617 is no double"),
        ("double", "12345678901234567000", 12345678901234567000.0),  # as JavaScript writes it
        ("float", "1e-50", "!x: 1e-50 is no float"),
        ("float", "1e-400", "!x: 1e-400 is no float"),
        ("float", "1e-45", 1.401298464324817e-45),
        ("float", "0.1", 0.10000000149011612),
        ("float", "16777216", 16777216.0),
        ("float", "16777217", "!x: 16777217 is no float"),
        ("float", "-16777217", "!x: -16777217 is no float"),
        ("float", "16777217.0", 16777216.0),
        ("float", "1.5e30", 1.4999999470133356e30),
        ("float", "9007199254740993", "!x: 9007199254740993 is no float"),
        ("float", "12345679000", 12345678848.0),  # as 32 bits are written
        ("double", '"-Infinity"', float("-inf")),
        ("double", "NaN", float("nan")),
        ("double", '"1"', '!x: "1" is no double'),
        ("double", "[1]", "!x: [1] is no double"),
        ("decimal(6,2)", "1234.56", Decimal("1234.56")),
        ("decimal(6,2)", "1234.5600", Decimal("1234.56")),
        ("decimal(6,2)", "12e2", Decimal("1200.00")),
        ("decimal(6,2)", "0e-999999999999", Decimal("0.00")),
        ("decimal(6,2)", "1234.565", "!x: 1234.565 is no decimal(6,2)"),
        ("decimal(6,2)", '"-0.005"', '!x: "-0.005" is no decimal(6,2)'),
        ("decimal(6,2)", "9999.995", "!x: 9999.995 is no decimal(6,2)"),
        ("decimal(6,2)", "1e-999999999999", "!x: 1e-999999999999 is no decimal(6,2)"),
        ("decimal(6,2)", "1e999999999999", "!x: 1e999999999999 is no decimal(6,2)"),
        ("decimal(38,38)", "0." + "1" * 38, Decimal("0." + "1" * 38)),
        ("decimal(6,2)", '"NaN"', '!x: "NaN" is no decimal(6,2)'),
        ("decimal(6,2)", "true", "!x: true is no decimal(6,2)"),
        ("binary", '"AAE="', b"\x00\x01"),
        ("binary", '"?"', '!x: "?" is no binary'),
        ("date", '"2024-02-29"', date(2024, 2, 29)),
        ("date", '"20240229"', '!x: "20240229" is no date'),
        ("timestamp", "60", datetime(1970, 1, 1, 0, 1, tzinfo=UTC)),
        ("timestamp", "99999999999999", "!x: 99999999999999 is no timestamp"),
        ("timestamp", '"2026-01-31T01:00:00.1234567+01:00"', MICROS),
        ("timestamp", '"2026-01-31T00:00:00"', datetime(2026, 1, 31, tzinfo=UTC)),
        ("timestamp", '"2026-01-31"', '!x: "2026-01-31" is no timestamp'),
        ("timestamp", FAR_ZONE, f"!x: {FAR_ZONE} is no timestamp"),
        ("timestamp_ntz", '"2026-01-31 00:00:00.123456"', NO_ZONE),
        ("timestamp_ntz", '"2026-01-31T00:00Z"', '!x: "2026-01-31T00:00Z" is no timestamp_ntz'),
        ("array<int>", "[1,null]", [1, None]),
        ("array<int>", "[1,true]", "!x[1]: true is no int"),
        ("array<int>", "{}", "!x: {} is no array"),
        ("map<string,int>", '{"a":1,"b":null}', [("a", 1), ("b", None)]),
        ("map<string,int>", '{"a":"b"}', '!x."a": "b" is no int'),
        ("map<string,int>", "[]", "!x: [] is no map"),
        ("struct<y:array<date>>", '{"y":["2026-01-01"],"w":1}', {"y": [date(2026, 1, 1)]}),
        ("struct<y:struct<z:array<date>>>", '{"y":{"z":[null,3]}}', "!x.y.z[1]: 3 is no date"),
        ("struct<y:int>", "7", "!x: 7 is no struct"),
        ("struct<y:int>", "{}", {"y": None}),
    ],
)  # fmt: skip
def test_a_field_is_of_its_type_or_has_a_reason(kind: str, text: str, wanted: Any) -> None:
    found = field(kind, text)
    assert found == wanted or repr(found) == repr(wanted)  # NaN is not equal to itself


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "the value is empty"),
        (b"{", "the value is not JSON: Expecting property name"),
        (b"{} {}", "the value is not JSON: Extra data at character 3"),
        (b"[1]", "the value is no object: [1]"),
        (b'{"id":"\xff"}', "the value is not UTF-8 at byte 7"),
        (b'\xef\xbb\xbf{"id":1}', "the value is not JSON"),
        (b'{"x":"abc', "the value is not JSON: Unterminated string starting at character 5"),
        (b'{"x":' + b"[" * 100_000, "the value is nested too deep"),
    ],
)
def test_a_value_that_is_no_object_has_its_reason(raw: bytes, reason: str) -> None:
    found, reasons = rows(values("id bigint"), [b'{"id":1}', raw])
    assert found == [{"id": 1}, {"id": None}]
    assert list(reasons) == [1]
    assert reasons[1].startswith(reason)
    assert "\n" not in reasons[1]


def test_what_is_not_there_is_null_what_nobody_asked_for_is_passed_over_the_last_counts() -> None:
    found, reasons = rows(
        values("id bigint, name string"),
        [b'{"x":[],"name":"a"}', None, b"{}", b'{"id":1,"id":2}', b'{"id":null}'],
    )
    assert reasons == {}
    assert [(row["id"], row["name"]) for row in found] == [
        (None, "a"),
        (None, None),
        (None, None),
        (2, None),
        (None, None),
    ]


def test_null_is_refused_where_the_schema_has_not_null() -> None:
    decoder = values("id bigint NOT NULL, name string, tags array<string> NOT NULL, bad string",
                     corrupt_record="bad")  # fmt: skip
    raws = [
        b'{"id":1,"tags":[]}', b'{"name":"a","tags":[]}', b'{"id":null,"tags":[]}', b'{"id":4}',
        None, b'{"id":"x","tags":[]}', b'{"id":7,"tags":["a"]}',
    ]  # fmt: skip
    found, reasons = rows(decoder, raws)
    refused = "null, and the schema has it NOT NULL"
    assert reasons == {
        1: f"id: {refused}", 2: f"id: {refused}", 3: f"tags: {refused}", 4: f"id: {refused}",
        5: 'id: "x" is no bigint',
    }  # fmt: skip
    assert [row["id"] for row in found] == [1, None, None, None, None, None, 7]
    assert [row["bad"] is None for row in found] == [True, False, False, False, True, False, True]
    assert rows(values("id bigint, day date NOT NULL"), [b'{"id":1}'])[1] == {0: f"day: {refused}"}


@pytest.mark.parametrize(
    ("schema", "text", "place"),
    [
        ("x struct<y:int not null>", '{"x":{}}', "x.y"),
        ("x struct<y:int not null>", '{"x":{"y":null}}', "x.y"),
        (StructType([StructField("x", ArrayType(LongType(), False))]), '{"x":[1,null]}', "x[1]"),
        (
            StructType([StructField("x", MapType(StringType(), LongType(), False))]),
            '{"x":{"k":null}}', 'x."k"',
        ),
    ],
)  # fmt: skip
def test_not_null_counts_inside_of_fields(schema: str | StructType, text: str, place: str) -> None:
    decoder = values(schema if isinstance(schema, str) else schema.json())
    found, reasons = rows(decoder, [text.encode(), b"{}"])
    assert reasons == {0: f"{place}: null, and the schema has it NOT NULL"}
    assert found == [{"x": None}, {"x": None}]


def test_a_refused_value_is_null_in_every_column_and_kept_where_asked_for() -> None:
    raws = [b'{"id":1,"name":"a"}', b'{"id":"x","name":"b"}', b"\xff"]
    found, reasons = rows(values("id bigint, name string, _corrupt_record string"), raws)
    assert reasons[1] == 'id: "x" is no bigint'
    assert found == [
        {"id": 1, "name": "a", "_corrupt_record": None},
        {"id": None, "name": None, "_corrupt_record": '{"id":"x","name":"b"}'},
        {"id": None, "name": None, "_corrupt_record": "\ufffd"},
    ]
    named = values("id bigint, bad binary", corrupt_record="bad")
    assert rows(named, raws)[0][2] == {"id": None, "bad": b"\xff"}
    assert rows(named, [b"{}"])[0] == [{"id": None, "bad": None}]


def test_no_rows_at_all_are_no_rows() -> None:
    for schema in (FLAT, EVERY_TYPE):
        columns, reasons = values(schema).decoded(pa.array([], pa.binary()))
        assert reasons == {}
        assert {len(column) for column in columns.values()} == {0}


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 70), 1 << 70),
    st.floats(),
    st.text(max_size=6),
    st.datetimes().map(datetime.isoformat),
    st.dates().map(date.isoformat),
    st.binary(max_size=3).map(lambda raw: raw.hex()),
)
names = st.sampled_from([one.name for one in schema_from(EVERY_TYPE).fields] + ["x", "y", "paid"])
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3)
)
objects = st.dictionaries(names, anything, max_size=8).map(lambda made: json.dumps(made).encode())
values_of_any_kind = st.lists(st.none() | objects | st.binary(max_size=30), max_size=6)


@given(values_of_any_kind)
def test_no_bytes_raise_whatever_the_schema(raws: list[bytes | None]) -> None:
    for schema in (EVERY_TYPE, FLAT):
        found, reasons = rows(values(schema), raws)
        for row, raw in enumerate(raws):
            if raw is None or row in reasons:
                assert set(found[row].values()) == {None}


@pytest.mark.skipif(
    not json_columns.IS_COMPILED,
    reason="the kernel is not compiled here: install a C compiler, then `pip install -e .`",
)
@given(values_of_any_kind)
def test_with_and_without_the_kernel_it_is_the_same(raws: list[bytes | None]) -> None:
    for schema in (EVERY_TYPE, FLAT):
        quick, slow = values(schema), values(schema)
        slow._by_kernel = False
        assert repr(rows(quick, raws)) == repr(rows(slow, raws))
