"""The kernel for JSON against the standard library: what it decodes is right, the rest it names."""

import json
import math
from datetime import UTC, date, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.wire import _codec_json, _codec_json_times, json_columns

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("small", pa.int8()),
        ("total", pa.float64()),
        ("paid", pa.bool_()),
        ("näme", pa.string()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("day", pa.date32()),
    ]
)
GOOD = {
    "id": -7,
    "small": 127,
    "total": 0.1,
    "paid": True,
    "näme": "Ünal",
    "at": "2026-01-31T23:59:59.000001+02:00",
    "day": "2024-02-29",
}


Check = dict[str, Any]


@pytest.fixture(scope="session")
def plain(copied: Any) -> Any:
    folder = Path(str(json_columns.__file__)).parent
    halves = {
        "kernel": copied(_codec_json, str(folder / "_codec_json.py")),
        "times": copied(_codec_json_times, str(folder / "_codec_json_times.py")),
    }
    assert not any(half.COMPILED for half in halves.values())
    return copied(json_columns, str(json_columns.__file__), **halves)


@pytest.fixture(params=["compiled", "plain"], scope="session")
def decoder(request: pytest.FixtureRequest, plain: ModuleType) -> ModuleType:
    if request.param == "plain":
        return plain
    if not json_columns.IS_COMPILED:
        pytest.skip(
            "the kernel is not compiled here: install a C compiler, then `pip install -e .`"
        )
    return json_columns


def decoded(
    decoder: ModuleType, values: pa.Array, schema: pa.Schema = SCHEMA
) -> list[Check | None]:
    """By row, the fields, or None for a row that was left."""
    arrays, unusual = decoder.decode(values, schema)
    for array, field in zip(arrays, schema, strict=True):
        array.validate(full=True)
        assert (array.type, len(array)) == (field.type, len(values))
    rows = pa.RecordBatch.from_arrays(arrays, schema=schema).to_pylist()
    return [None if left else row for row, left in zip(rows, unusual.tolist(), strict=True)]


def one(decoder: ModuleType, value: bytes, schema: pa.Schema = SCHEMA) -> Check | None:
    return decoded(decoder, pa.array([value], pa.binary()), schema)[0]


def expected(raw: bytes) -> Check | None:
    """What the standard library makes of a value, None when a field is not of its type."""
    try:
        found = json.loads(raw.decode())
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    row: Check = {}
    for field in SCHEMA:
        value = found.get(field.name)
        try:
            row[field.name] = None if value is None else READ[field.type](value)
        except (ValueError, OverflowError):
            return None
    return row


def integer(bits: int) -> Any:
    def read(value: Any) -> int:
        if type(value) is not int or not -(1 << bits - 1) <= value < 1 << bits - 1:
            raise ValueError
        return value

    return read


def number(value: Any) -> float:
    if type(value) not in (int, float):
        raise ValueError
    return float(value)


def exactly(kind: type) -> Any:
    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise ValueError
        return value

    return read


def moment(value: Any) -> datetime:
    if type(value) is not str:
        raise ValueError
    found = datetime.fromisoformat(value)
    return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)


def day(value: Any) -> date:
    if type(value) is not str:
        raise ValueError
    return date.fromisoformat(value)


READ = {
    pa.int64(): integer(64),
    pa.int8(): integer(8),
    pa.float64(): number,
    pa.bool_(): exactly(bool),
    pa.string(): exactly(str),
    SCHEMA.field("at").type: moment,
    pa.date32(): day,
}


def test_an_object_becomes_columns(decoder: ModuleType) -> None:
    text = json.dumps(GOOD, ensure_ascii=False).encode()
    found = one(decoder, text)
    assert found is not None
    assert found == expected(text)
    assert found["at"] == datetime(2026, 1, 31, 21, 59, 59, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "value",
    [
        b"{}",
        b" \t\r\n{ } \n",
        b'{"id":null,"paid":false,"total":0}',
        b'{"id" : 9223372036854775799 , "total" : 1e3 }',
        b'{"total":-0.0}',
        b'{"total":9007199254740992}',
        b'{"total":0.30000000000000004}',
        b'{"total":1.7976931348623157e308}',
        b'{"total":5e-324,"id":1}',
        b'{"total":9007199254740993.0}',
        b'{"x":{"y":[1,-2.5e-3,{"z":[]},{}," ",true,false,null,[[]]]},"id":3}',
        b'{"x":"","id":3,"y":0}',
        b'{"at":"2026-01-31 00:00:00","day":"0001-01-01"}',
        b'{"at":"1969-12-31T23:59:59.9Z"}',
        b'{"at":"2000-02-29T12:00:00-05:30","day":"1900-02-28"}',
    ],
)
def test_what_is_usual_is_decoded(decoder: ModuleType, value: bytes) -> None:
    found, wanted = one(decoder, value), expected(value)
    assert found is not None
    assert wanted is not None
    assert found == wanted
    if wanted["total"] is not None:
        assert math.copysign(1, found["total"]) == math.copysign(1, wanted["total"])


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b" ",
        b"{",
        b"{]",
        b"[]",
        b"7",
        b"null",
        b"{}{}",
        b"{},",
        b'{"id":1',
        b'{"id":1,}',
        b'{"id" 1}',
        b"{id:1}",
        b'{"id":01}',
        b'{"id":-}',
        b'{"id":1.0}',
        b'{"id":1e0}',
        b'{"id":"1"}',
        b'{"id":true}',
        b'{"id":[1]}',
        b'{"id":9223372036854775808}',
        b'{"small":128}',
        b'{"small":-129}',
        b'{"total":123456789012345678}',
        b'{"total":1e-400}',
        b'{"total":0e-400}',
        b'{"total":.5}',
        b'{"total":1.}',
        b'{"total":1e}',
        b'{"total":1e+}',
        b'{"total":+1}',
        b'{"total":"NaN"}',
        b'{"total":NaN}',
        b'{"total":1',
        b'{"paid":1}',
        b'{"paid":"true"}',
        b'{"paid":tru}',
        b'{"paid":truee}',
        b'{"paid":fals',
        b'{"n\xc3\xa4me":7}',
        b'{"n\xc3\xa4me":"\n"}',
        b'{"n\xc3\xa4me":"\\"',
        b'{"n\xc3\xa4me":"\xff"}',
        b'{"x":"\xff"}',
        b'{"x":[1,]}',
        b'{"x":[1}',
        b'{"x":{"y":1]}',
        b'{"x":{"y"}}',
        b'{"x":[',
        b'{"x":{',
        b'{"x":{"y":1,}}',
        b'{"at":"2026-02-30T00:00:00"}',
        b'{"at":"2026-01-31T24:00:01"}',
        b'{"at":"2026-13-01T00:00:00"}',
        b'{"at":"0000-01-01T00:00:00"}',
        b'{"at":"2026-01-31"}x',
        b'{"at":"2026-01-31T00:00:00+1"}',
        b'{"at":1769900000}',
        b'{"day":"2026-1-31"}',
        b'{"day":"1900-02-29"}',
        b'{"day":""}',
        b'{"day":5}',
        b'{"id":1,"id":"x"}',
    ],
)
def test_what_is_damaged_or_of_another_type_is_left(decoder: ModuleType, value: bytes) -> None:
    assert one(decoder, value) is None


@pytest.mark.parametrize(
    "value",
    [
        b'{"id":1,"id":2}',
        b'{"n\xc3\xa4me":"a\\n"}',
        b'{"\\u0069d":1}',
        b'{"x":' + b"[" * 61 + b"]" * 61 + b"}",
    ],
)
def test_what_is_legal_but_unusual_is_left_too(decoder: ModuleType, value: bytes) -> None:
    assert json.loads(value)
    assert one(decoder, value) is None


def test_rows_stay_in_line_with_nulls_slices_and_neighbours_that_are_damaged(
    decoder: ModuleType,
) -> None:
    good = b'{"id":5}'
    whole = pa.array(
        [b"x", good, None, b'{"id":6', b"{}", b'{"n\xc3\xa4me":"\xc3', b'\xa4"}', good]
    )
    found = decoded(decoder, whole.slice(1))
    nothing = dict.fromkeys(SCHEMA.names)
    row = nothing | {"id": 5}
    assert found == [row, None, None, nothing, None, None, row]
    assert decoded(decoder, whole.slice(2, 0)) == []
    assert decoded(decoder, pa.array([None], pa.binary())) == [None]


@pytest.mark.parametrize(
    "kind", [pa.decimal128(10, 2), pa.list_(pa.int32()), pa.binary(), pa.timestamp("us")]
)
def test_fields_of_other_types_come_as_the_json_that_they_are(
    decoder: ModuleType, kind: pa.DataType
) -> None:
    assert all(map(decoder.knows, SCHEMA.types))
    assert not decoder.knows(kind)
    usual = ['[1, {"a":"\u00e4"}]', "-1.50", '"x"', "true", "[]", "{ }"]
    texts = [*usual, "null", "[1,]", "01", '"\\n"']
    raws = [b'{"x": ' + text.encode() + b' ,"y":7}' for text in texts]
    fields = pa.schema([("y", pa.int32()), ("x", kind)])
    (ys, xs), unusual = decoder.decode(pa.array(raws, pa.binary()), fields)
    xs.validate(full=True)
    assert xs.to_pylist()[:7] == [*usual, None]
    assert ys.to_pylist()[:7] == [7] * 7
    assert unusual.tolist() == [False] * 7 + [True] * 3


names = st.sampled_from([*SCHEMA.names, "x", "", "idd", "i"])
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 64), 1 << 64),
    st.integers(-200, 200),
    st.floats(allow_nan=False, allow_infinity=False),
    st.decimals(-10_000, 10_000, places=3).map(float),
    st.text(max_size=8),
    st.datetimes(timezones=st.just(UTC)).map(lambda at: at.isoformat().replace("+00:00", "Z")),
    st.datetimes().map(datetime.isoformat),
    st.dates().map(date.isoformat),
)
objects = st.dictionaries(
    names,
    st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
        max_leaves=6,
    ),
    max_size=6,
)


@given(st.lists(st.tuples(objects, st.booleans(), st.booleans()), max_size=6), st.data())
def test_whatever_is_decoded_is_what_the_standard_library_reads(
    decoder: ModuleType, made: list[tuple[Check, bool, bool]], data: st.DataObject
) -> None:
    raws = []
    for found, ascii_only, spaced in made:
        separators = (" , ", " : ") if spaced else (",", ":")
        raw = json.dumps(found, ensure_ascii=ascii_only, separators=separators).encode(
            errors="replace"
        )
        if data.draw(st.integers(0, 3)) == 0 and raw:
            at = data.draw(st.integers(0, len(raw) - 1))
            raw = raw[:at] + data.draw(st.binary(max_size=2)) + raw[at + 1 :]
        raws.append(raw)
    for raw, row in zip(raws, decoded(decoder, pa.array(raws, pa.binary())), strict=True):
        assert row is None or row == expected(raw), raw


@given(st.lists(st.binary(max_size=40), max_size=5))
@example([b'{"total":1'])
@example([b'{"total":-'])
def test_any_bytes_at_all_are_decoded_right_or_left(decoder: ModuleType, raws: list[bytes]) -> None:
    for raw, row in zip(raws, decoded(decoder, pa.array(raws, pa.binary())), strict=True):
        assert row is None or row == expected(raw)
