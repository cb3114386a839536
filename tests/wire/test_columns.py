"""Arrow columns against the records one by one, and against bytes that nobody should send."""

import struct
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.wire import batches, columns_numpy
from headrace.wire.batches import CorruptBatch, Record
from headrace.wire.columns import SCHEMA
from headrace.wire.compression import Codec, compress, decompress

EVERYTHING = {"first": 0, "last": (1 << 63) - 1}
US_MAX = (1 << 63) - 1

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
# Sizes on both sides of one, two and three bytes of varint.
contents = st.none() | st.binary(max_size=80) | st.sampled_from([b"x" * 9000, b"y" * 70])
times = st.integers(-1, 1 << 45) | st.sampled_from([-(1 << 55), 1 << 60])
plain = st.builds(
    Record,
    st.just(0),
    times,
    contents,
    contents,
    st.lists(st.tuples(names, contents), max_size=3).map(tuple),
)
fetches = st.lists(
    st.tuples(
        st.lists(plain, min_size=1, max_size=6),
        st.sampled_from(Codec),
        st.sampled_from([0, 0, 0, batches.LOG_APPEND_TIME, batches.CONTROL]),
        st.integers(0, 3),
    ),
    max_size=5,
)


def built(fetch: list[tuple[list[Record], Codec, int, int]]) -> bytes:
    data, offset = b"", 5
    for records, codec, attributes, gap in fetch:
        offset += gap
        data += batches.build(records, base_offset=offset, compression=codec, attributes=attributes)
        offset += len(records)
    return data


def expected(data: bytes, first: int, last: int, *, headers: bool) -> list[dict[str, Any]]:
    """The rows of `decode`, by the decoder that goes record by record."""
    kinds: dict[int, int] = {}
    for header in batches.headers(data):
        kinds |= dict.fromkeys(
            range(header.base_offset, header.last_offset + 1), header.timestamp_type
        )
    return [
        {
            "key": one.key,
            "value": one.value,
            "offset": one.offset,
            "timestamp": one.timestamp * 1000 if abs(one.timestamp * 1000) <= US_MAX else None,
            "timestamp_type": kinds[one.offset],
            "headers": [{"key": name, "value": content} for name, content in one.headers]
            if headers and one.headers
            else None,
        }
        for one in batches.records(data)
        if first <= one.offset <= last
    ]


def rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    batch.validate(full=True)
    assert batch.schema == SCHEMA
    index = SCHEMA.get_field_index("timestamp")
    plain: pa.RecordBatch = batch.set_column(index, "timestamp", batch.column(index).cast("int64"))
    found: list[dict[str, Any]] = plain.to_pylist()
    return found


@given(fetches, st.integers(0, 40), st.integers(0, 40), st.booleans())
def test_columns_are_the_records(
    kernel: ModuleType, fetch: Any, first: int, last: int, headers: bool
) -> None:
    data = built(fetch)
    for bounds in (EVERYTHING, {"first": first, "last": last}):
        assert rows(kernel.decode(data, headers=headers, **bounds)) == expected(
            data, **bounds, headers=headers
        )


def test_keys_and_values_that_nobody_wants_are_null(kernel: ModuleType) -> None:
    data = batches.build([Record(0, 1, b"k", b"v"), Record(1, 1, None, b"w")])
    whole = kernel.decode(data, headers=False, **EVERYTHING).to_pydict()
    for keys in (True, False):
        for values in (True, False):
            found = kernel.decode(data, headers=False, keys=keys, values=values, **EVERYTHING)
            found.validate(full=True)
            nothing = [None, None]
            assert found.to_pydict() == whole | {
                "key": whole["key"] if keys else nothing,
                "value": whole["value"] if values else nothing,
            }


@pytest.mark.parametrize("codec", Codec)
def test_many_records_in_many_batches(kernel: ModuleType, codec: Codec) -> None:
    made = [
        Record(0, 1000 + n, b"%d" % n, b"v" * (n % 300), (("h", b"%d" % n),) * (n % 3))
        for n in range(3000)
    ]
    fetch = [(made[n : n + 100], codec, 0, 0) for n in range(0, 3000, 100)]
    data = built(fetch)
    for source in (data, bytearray(data), memoryview(data)):
        found = kernel.decode(source, headers=True, **EVERYTHING)
        assert rows(found) == expected(data, **EVERYTHING, headers=True)
    assert kernel.decode(data, first=110, last=2900, headers=False).num_rows == 2791


def test_nothing_wanted_is_an_empty_batch(kernel: ModuleType) -> None:
    data = built([([Record(0, 1, None, b"v")], Codec.NONE, 0, 0)])
    for source, first, last in ((b"", 0, 9), (data, 6, 9), (data, 0, 4), (data[:-1], 0, 9)):
        assert rows(kernel.decode(source, first=first, last=last, headers=True)) == []


def test_batches_out_of_range_are_not_even_verified(kernel: ModuleType) -> None:
    data = bytearray(built([([Record(0, 1, None, b"v")], Codec.NONE, 0, 0)] * 2))
    data[-1] ^= 1
    assert kernel.decode(data, first=5, last=5, headers=False).num_rows == 1
    with pytest.raises(CorruptBatch, match="checksum"):
        kernel.decode(data, first=5, last=6, headers=False)


def test_a_header_name_that_is_not_utf8_is_replaced(
    kernel: ModuleType, odd_header_batch: bytes
) -> None:
    found = rows(kernel.decode(odd_header_batch, headers=True, **EVERYTHING))
    assert found[0]["headers"] == [{"key": "\ufffd", "value": None}]


def test_broken_records_are_corrupt(kernel: ModuleType, broken_batch: bytes) -> None:
    good = batches.build([Record(0, 1, b"k", b"v")] * 3)
    for data in (broken_batch, good + broken_batch, broken_batch + good):
        with pytest.raises(CorruptBatch):
            kernel.decode(data, headers=True, first=-(1 << 63), last=(1 << 63) - 1)


@pytest.mark.parametrize("timestamp", [-(1 << 63), (1 << 63) - 1])
def test_a_timestamp_that_no_microsecond_reaches_is_null(
    kernel: ModuleType, timestamp: int
) -> None:
    data = batches.build([Record(0, timestamp, None, None)])
    assert [row["timestamp"] for row in rows(kernel.decode(data, headers=True, **EVERYTHING))] == [
        None
    ]


def test_more_than_arrow_can_address_is_said(
    kernel: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = built([([Record(0, 1, None, b"v" * 1000)], Codec.GZIP, 0, 0)])
    monkeypatch.setattr(columns_numpy, "ARROW_BYTES_MAX", 999)
    with pytest.raises(OverflowError, match="at most 999"):
        kernel.decode(data, headers=False, **EVERYTHING)


def test_bombs_of_a_fetch_are_refused_together(
    kernel: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each may be small enough; what was decompressed by then is all that memory holds."""
    one = built([([Record(0, 1, None, b"v" * 100_000)], Codec.ZSTD, 0, 0)])
    decoder = getattr(kernel, "_decoder")  # noqa: B009  # of a copied module, typed as any
    monkeypatch.setattr(columns_numpy, "DECOMPRESSED_BYTES_MAX", 250_000)
    looked_at: list[int] = []
    refuse = columns_numpy.refuse_large

    def counted(size: int) -> None:
        looked_at.append(size)
        refuse(size)

    monkeypatch.setattr(decoder, "refuse_large", counted)
    with pytest.raises(OverflowError, match="more than 250000 bytes"):
        kernel.decode(one * 50, headers=False, **EVERYTHING)
    assert len(looked_at) == 3
    assert kernel.decode(one * 2, headers=False, **EVERYTHING).num_rows == 2


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_records_with_very_many_headers(kernel: ModuleType, codec: Codec) -> None:
    many = tuple((f"h{n}", b"v" * (n % 3) if n % 5 else None) for n in range(1_000))
    few = (("only", b"x"),)
    records = [Record(0, 1, None, b"v", headers) for headers in (few, many, (), many[:300], few)]
    data = built([(records, codec, 0, 0)])
    found = rows(kernel.decode(data, headers=True, **EVERYTHING))
    assert [tuple((one["key"], one["value"]) for one in row["headers"] or ()) for row in found] == [
        one.headers for one in records
    ]


def resealed(data: bytes | bytearray) -> bytes:
    """The batch with its length and checksum right again."""
    sealed = bytearray(data)
    struct.pack_into(">i", sealed, 8, len(sealed) - 12)
    struct.pack_into(">I", sealed, 17, crc32c(bytes(sealed[21:])))
    return bytes(sealed)


def outcome(kernel: ModuleType, data: bytes, *, headers: bool) -> list[dict[str, Any]] | None:
    """Rows, or None for a refusal; any other exception fails the test."""
    try:
        return rows(kernel.decode(data, headers=headers, **EVERYTHING))
    except CorruptBatch:
        return None


mutations = st.lists(
    st.tuples(st.integers(0, 1 << 16), st.integers(0, 6) | st.integers(0, 255)),
    min_size=1,
    max_size=4,
)


@settings(max_examples=200)
@given(st.lists(plain, min_size=1, max_size=5), st.sampled_from(Codec), mutations, st.data())
def test_hostile_bytes_are_judged_as_the_other_decoder_judges(
    kernel: ModuleType,
    records: list[Record],
    codec: Codec,
    changes: list[tuple[int, int]],
    data: st.DataObject,
) -> None:
    whole = batches.build(records, compression=codec)
    head = batches.HEADER_BYTES
    # Changed before compression, or else every change ends in the codec.
    body = bytearray(decompress(codec, whole[head:]))
    for position, octet in changes:
        body[position % len(body)] = octet
    kept = data.draw(st.sampled_from([len(body), len(body), len(body) - 1, len(body) // 2]))
    hostile = resealed(whole[:head] + compress(codec, bytes(body[:kept])))
    try:
        wanted = expected(hostile, **EVERYTHING, headers=True)
    except CorruptBatch:
        wanted = None
    assert outcome(kernel, hostile, headers=True) == wanted
    without = outcome(kernel, hostile, headers=False)
    assert wanted is None or without == [{**row, "headers": None} for row in wanted]


@settings(max_examples=150)
@given(fetches, mutations, st.booleans())
def test_no_change_of_any_byte_escapes_as_another_exception(
    kernel: ModuleType, fetch: Any, changes: list[tuple[int, int]], headers: bool
) -> None:
    data = bytearray(built(fetch)) or bytearray(1)
    for position, octet in changes:
        data[position % len(data)] = octet
    found = outcome(kernel, bytes(data), headers=headers)
    assert found is None or all(row["offset"] >= 0 for row in found)
