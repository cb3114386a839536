"""Arrow columns to record batches, against the reader that goes record by record."""

from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.wire import batches, produced
from headrace.wire.batches import HEADER_BYTES
from headrace.wire.columns import SCHEMA
from headrace.wire.compression import Codec

NOW_MS = 1_790_000_000_000
ROOM = {"timestamp_ms": NOW_MS, "batch_bytes_max": 16 << 10}

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
# Sizes on both sides of one, two and three bytes of varint.
contents = st.none() | st.binary(max_size=80) | st.sampled_from([b"x" * 9000, b"y" * 70])
records = st.fixed_dictionaries(
    {
        "key": contents,
        "value": contents,
        "timestamp": st.none() | st.integers(-(1 << 40), 1 << 56),
        "headers": st.none()
        | st.lists(st.fixed_dictionaries({"key": names, "value": contents}), max_size=3),
    }
)


def table(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    fields = [SCHEMA.field(name) for name in ("key", "value", "timestamp", "headers")]
    # from_pylist takes microseconds since the epoch for a timestamp.
    return pa.RecordBatch.from_pylist(rows, schema=pa.schema(fields))


def told(data: bytes) -> list[dict[str, Any]]:
    return [
        {
            "key": one.key,
            "value": one.value,
            "timestamp": one.timestamp,
            "headers": [{"key": name, "value": content} for name, content in one.headers],
        }
        for one in batches.records(data)
    ]


def expected(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        row
        | {
            "timestamp": NOW_MS if row["timestamp"] is None else row["timestamp"] // 1000,
            "headers": row["headers"] or [],
        }
        for row in rows
    ]


@given(
    st.lists(records, max_size=12),
    st.integers(0, 12),
    st.sampled_from(Codec),
    st.sampled_from([100, 400, 20_000]),
)
def test_another_reader_finds_what_was_encoded(
    kernel: ModuleType, rows: list[dict[str, Any]], skipped: int, codec: Codec, room: int
) -> None:
    made = list(
        kernel.encode(
            table(rows).slice(skipped), timestamp_ms=NOW_MS, batch_bytes_max=room, codec=codec
        )
    )
    assert [row for one in made for row in told(one)] == expected(rows[skipped:])
    for one in made:
        header = produced.check(memoryview(one))
        assert (header.base_offset, header.codec, header.producer_id) == (0, codec, -1)
        assert header.max_timestamp == max(row["timestamp"] for row in told(one))
        assert codec or header.record_count == 1 or header.size <= room


@given(st.lists(records, max_size=12), st.sampled_from([100, 400, 20_000]))
def test_numpy_and_the_kernel_write_the_same_bytes(
    kernel: ModuleType, numpy_kernel: ModuleType, rows: list[dict[str, Any]], room: int
) -> None:
    settings = {"timestamp_ms": NOW_MS, "batch_bytes_max": room}
    made = list(kernel.encode(table(rows), **settings))
    assert made == list(numpy_kernel.encode(table(rows), **settings))


@pytest.mark.parametrize("codec", Codec)
def test_many_rows_come_back_as_columns(kernel: ModuleType, codec: Codec) -> None:
    rows = [
        {
            "key": b"%d" % n if n % 7 else None,
            "value": b"v" * (n % 300),
            "timestamp": 1000 * n,
            "headers": [{"key": "h", "value": b"%d" % n}] * (n % 3) or None,
        }
        for n in range(3000)
    ]
    whole = table(rows)
    made = list(kernel.encode(whole, codec=codec, **ROOM))
    assert len(made) > 10
    found = bytearray()
    offset = 0
    for one in made:
        placed = bytearray(one)
        batches.stamp(placed, 0, len(placed), offset, 0)
        offset += batches.read_header(one).record_count
        found += placed
    decoded = kernel.decode(found, first=0, last=len(rows), headers=True)
    assert decoded.column("offset").to_pylist() == list(range(3000))
    assert decoded.select(whole.schema.names).equals(whole)


def test_sequences_of_an_idempotent_producer_go_on_and_wrap(kernel: ModuleType) -> None:
    last = (1 << 31) - 1
    rows = table([{"value": b"v" * 100}] * 4)
    made = kernel.encode(
        rows, timestamp_ms=NOW_MS, batch_bytes_max=1,
        producer_id=7, producer_epoch=3, base_sequence=last - 1,
    )  # fmt: skip
    headers = [produced.check(memoryview(one)) for one in made]
    assert [header.base_sequence for header in headers] == [last - 1, last, 0, 1]
    assert {(header.producer_id, header.producer_epoch) for header in headers} == {(7, 3)}


def test_a_record_beyond_the_bound_is_a_batch_of_its_own(kernel: ModuleType) -> None:
    values = [b"a", b"b", b"v" * 50_000, b"c"]
    made = list(kernel.encode(table([{"value": value} for value in values]), **ROOM))
    assert [[row["value"] for row in told(one)] for one in made] == [
        [b"a", b"b"],
        [values[2]],
        [b"c"],
    ]


def test_a_batch_is_filled_up_to_the_bound(kernel: ModuleType) -> None:
    rows = table([{"value": b"v" * 50}] * 100)
    (one,) = kernel.encode(rows, timestamp_ms=NOW_MS, batch_bytes_max=100 * 60 + HEADER_BYTES)
    assert batches.read_header(one).record_count == 100


def test_columns_of_other_types_are_cast_and_absent_ones_null(kernel: ModuleType) -> None:
    rows = pa.RecordBatch.from_pydict(
        {"value": pa.array(["å", None], pa.large_string()), "partition": pa.array([1, 2])}
    )
    (one,) = kernel.encode(rows, **ROOM)
    nothing: dict[str, Any] = {"key": None, "timestamp": NOW_MS, "headers": []}
    assert told(one) == [nothing | {"value": "å".encode()}, nothing | {"value": None}]


def test_values_under_nulls_are_not_sent(kernel: ModuleType) -> None:
    """Arrow lets bytes stand where a null is."""
    offsets, valid = pa.array([0, 3, 6], pa.int32()).buffers()[1], pa.py_buffer(b"\x02")
    value = pa.Array.from_buffers(pa.binary(), 2, [valid, offsets, pa.py_buffer(b"abcdef")])
    (one,) = kernel.encode(pa.RecordBatch.from_arrays([value], ["value"]), **ROOM)
    assert [row["value"] for row in told(one)] == [None, b"def"]


@pytest.mark.parametrize("header", [None, {"key": None, "value": b"v"}])
def test_a_header_without_a_name_is_refused_at_once(kernel: ModuleType, header: Any) -> None:
    rows = table([{"value": b"v", "headers": [header]}])
    with pytest.raises(ValueError, match="header without a name"):
        kernel.encode(rows, **ROOM)


def test_a_column_of_an_impossible_type_is_refused_at_once(kernel: ModuleType) -> None:
    rows = pa.RecordBatch.from_pydict({"value": pa.array([[1]])})
    with pytest.raises(ValueError, match="column value is list"):
        kernel.encode(rows, **ROOM)
