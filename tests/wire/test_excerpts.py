"""Excerpts of batches against decoding all of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.wire.batches import (
    CONTROL,
    HEADER_BYTES,
    CorruptBatch,
    Record,
    build,
    read_header,
    records,
    seal,
)
from headrace.wire.compression import Codec
from headrace.wire.excerpts import excerpt

COUNT = 20


def batch(codec: int = Codec.NONE, attributes: int = 0) -> bytes:
    given = [Record(0, 7 + n, b"k" * n, b"v" * (n * 9), (("h", None),)) for n in range(COUNT)]
    return build(given, base_offset=100, compression=codec, attributes=attributes)


def between(data: bytes, first: int, last: int) -> list[Record]:
    return list(excerpt(data, 0, read_header(data), first=first, last=last))


def decoded(data: bytes, first: int, last: int) -> list[Record]:
    return [one for one in records(data) if first <= one.offset <= last]


@given(st.sampled_from(list(Codec)), st.integers(90, 130), st.integers(90, 130))
def test_an_excerpt_is_a_part_of_the_whole(codec: Codec, first: int, last: int) -> None:
    data = batch(codec)
    assert between(data, first, last) == [
        one for one in records(data) if first <= one.offset <= last
    ]


@given(st.integers(90, 130), st.integers(90, 130))
def test_also_where_compaction_left_holes(first: int, last: int) -> None:
    whole = batch()
    header = read_header(whole)._replace(last_offset_delta=COUNT + 9)  # the last ten are gone
    data = seal(header, whole[HEADER_BYTES:])
    assert between(data, first, last) == [
        one for one in records(data) if first <= one.offset <= last
    ]


def test_markers_are_no_records() -> None:
    assert between(batch(attributes=CONTROL), 100, 130) == []


def test_damage_is_told() -> None:
    data = bytearray(batch())
    data[-1] ^= 1
    with pytest.raises(CorruptBatch, match="checksum"):
        between(bytes(data), 100, 101)
    whole = batch()
    cut = seal(read_header(whole), whole[HEADER_BYTES:-3])
    with pytest.raises(CorruptBatch):
        between(cut, 119, 119)
    assert len(between(cut, 100, 105)) == 6  # what comes first is whole
