"""Record batches: headers, what a producer may send, and records there and back."""

import importlib.util
import struct
from array import array
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from headrace.wire import batches, kernel, produced
from headrace.wire.batches import CorruptBatch, Record
from headrace.wire.compression import Codec

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
contents = st.none() | st.binary(max_size=300)
times = st.integers(-1, 1 << 45)
plain = st.builds(
    Record,
    st.just(0),
    times,
    contents,
    contents,
    st.lists(st.tuples(names, contents), max_size=3).map(tuple),
)


def record(value: bytes = b"v", timestamp: int = 1000) -> Record:
    return Record(0, timestamp, b"k", value, (("h", b"x"), ("n", None)))


def patched(
    batch: bytes | bytearray, position: int, layout: str, value: int, *, crc: bool = True
) -> bytearray:
    """The batch with one header field replaced and, unless told otherwise, a right checksum."""
    data = bytearray(batch)
    struct.pack_into(layout, data, position, value)
    if crc:
        struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    return data


@given(st.lists(plain, min_size=1, max_size=8), st.sampled_from(Codec), st.integers(0, 1 << 40))
def test_records_come_back_as_built(given: list[Record], codec: Codec, base: int) -> None:
    found = list(batches.records(batches.build(given, base_offset=base, compression=codec)))
    assert [one.offset for one in found] == list(range(base, base + len(given)))
    told = [(one.timestamp, one.key, one.value, one.headers) for one in found]
    assert told == [(one.timestamp, one.key, one.value, one.headers) for one in given]


def _encoders() -> list[ModuleType]:
    """The compiled kernel, if it is built, and its source."""
    source = Path(str(batches.__file__)).with_name("_codec_encode.py")
    loader = SourceFileLoader("_codec_encode_copy", str(source))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    plain = importlib.util.module_from_spec(spec)
    loader.exec_module(plain)
    compiled = kernel.load("_codec_encode")
    return [plain] if compiled is None else [plain, compiled]


ENCODERS = _encoders()
wide_times = st.integers(-(1 << 62), (1 << 62) - 1)  # no two of them differ by 2^63
sizes = contents | st.sampled_from([b"x" * 63, b"x" * 64, b"x" * 8191, b"x" * 8192, b"x" * 70_000])
any_record = st.builds(
    Record, st.just(0), wide_times, sizes, sizes,
    st.lists(st.tuples(names, sizes), max_size=70).map(tuple),
)  # fmt: skip


@given(st.lists(plain, min_size=1, max_size=8))
def test_a_batch_comes_with_the_header_that_is_read_from_it(given: list[Record]) -> None:
    data, header = batches.build_with_header(given)
    assert data == batches.build(given)
    assert header == batches.read_header(data)


@given(st.lists(any_record, min_size=1, max_size=70))
def test_the_kernel_encodes_as_plain_python_does(given: list[Record]) -> None:
    base = given[0].timestamp
    expected = batches._encode_all_plainly(given, base)
    for encoder in ENCODERS:
        out = bytearray(encoder.records_size(given, base))
        encoder.put_records(given, base, out)
        assert out == expected


def test_many_records_are_encoded_with_pauses_for_other_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel has no pauses, and encodes few records only."""
    given = [Record(0, at, b"%d" % at, None, (("name", b"content"),)) for at in range(10)]
    monkeypatch.setattr(batches, "_COMPILED_MAX", 10)
    expected = batches.build_with_header(given)

    def endless(given: Any, base_timestamp: int) -> Any:
        pytest.fail("the kernel encodes many records at once")

    monkeypatch.setattr(batches, "_COMPILED_MAX", 3)
    monkeypatch.setattr(batches, "_encode_all", endless)
    assert batches.build_with_header(given) == expected


NO_BYTES: Any = "text"
WIDE: Any = memoryview(array("q", range(100)))


@pytest.mark.parametrize(
    "bad",
    [
        Record(0, 1, NO_BYTES, None),
        Record(0, 1, None, WIDE),
        Record(0, 1, None, NO_BYTES),
        Record(0, 1, None, None, (("name", NO_BYTES),)),
    ],
)
def test_what_is_not_bytes_is_refused(bad: Record) -> None:
    for encoder in ENCODERS:
        with pytest.raises((TypeError, AttributeError)):
            encoder.put_records([bad], 0, bytearray(encoder.records_size([bad], 0)))
    with pytest.raises((TypeError, AttributeError)):
        batches._encode_all_plainly([bad], 0)


def test_a_timestamp_too_far_from_that_of_the_batch_is_refused() -> None:
    first, last = Record(0, -(1 << 62), None, b"a"), Record(0, 1 << 62, None, b"b")
    assert not batches.can_share_batch(first, last)
    assert batches.can_share_batch(last, first)
    for encoder in ENCODERS[1:]:  # the source has numbers of any size
        with pytest.raises(OverflowError):
            encoder.records_size([first, last], first.timestamp)
    with pytest.raises(OverflowError):
        batches._encode_all_plainly([first, last], first.timestamp)
    found = batches.records(batches.build([last, first]))
    assert [one.timestamp for one in found] == [1 << 62, -(1 << 62)]


def _at(*places: tuple[int, int]) -> bytes:
    """Batches of so many records at these offsets."""
    return b"".join(
        batches.build([record()] * count, base_offset=offset) for offset, count in places
    )


DECODERS = [one for one in [batches._misplaced_plainly, batches._misplaced] if one is not None]


@pytest.mark.parametrize(
    ("data", "wrong"),
    [
        pytest.param(_at((5, 1), (6, 2), (8, 1)), None, id="one after the other"),
        pytest.param(_at((6, 1), (9, 3)), None, id="gaps"),
        pytest.param(_at((4, 1), (6, 1)), 0, id="below the first"),
        pytest.param(_at((5, 2), (6, 1)), 1, id="an offset twice"),
        pytest.param(_at((7, 1), (6, 1)), 1, id="descending"),
        pytest.param(_at((5, 1), (11, 2)), 1, id="beyond the end"),
        pytest.param(_at((5, 1), (1 << 62, 1)), 1, id="far beyond the end"),
        pytest.param(_at((5, 1), (6, 1))[:-1], 1, id="not whole"),
        pytest.param(_at((5, 1)) + bytes(60), 1, id="not a header"),
        pytest.param(_at((5, 1)) + bytes(80), 1, id="no length"),
    ],
)
def test_batches_whose_offsets_are_out_of_place(data: bytes, wrong: int | None) -> None:
    first = batches.read_header(data).size
    position = -1 if wrong is None else wrong * first
    for misplaced in DECODERS:
        assert misplaced(data, len(data), 5, 12) == position
        assert misplaced(data, 0, 5, 12) == -1
        assert misplaced(data, len(data) + 1, 5, 12) == 0
    if wrong is None:
        batches.require_places(data, len(data), 5, 12)
    else:
        with pytest.raises(CorruptBatch, match="stands in another's place"):
            batches.require_places(data, len(data), 5, 12)


class _Large(bytes):
    """It says that it is larger than it is."""

    def __len__(self) -> int:
        return 4000


@pytest.mark.parametrize("room", [0, 1, 5, 19, 21, 100])
def test_nothing_is_written_outside_of_the_output(room: int) -> None:
    one = Record(0, 5, b"key", b"value", (("name", b"content"),))
    for encoder in ENCODERS:
        assert encoder.records_size([one], 0) != room
        output = bytearray(room)
        with pytest.raises(ValueError, match="changed"):
            encoder.put_records([one], 0, output)
        with pytest.raises(TypeError):
            encoder.put_records([one], 0, None)


def test_a_field_that_is_not_as_large_as_it_says_is_refused() -> None:
    one = Record(0, 5, None, _Large(b"v"))
    for encoder in ENCODERS:
        with pytest.raises(TypeError, match="not bytes"):
            encoder.put_records([one], 0, bytearray(encoder.records_size([one], 0)))


def test_the_bytes_are_those_of_another_implementation() -> None:
    builder: Any = DefaultRecordBatchBuilder(
        magic=2, compression_type=0, is_transactional=False,
        producer_id=7, producer_epoch=1, base_sequence=3, batch_size=100_000,
    )  # fmt: skip
    given = [
        record(),
        Record(1, 900, None, b"x" * 5000),
        Record(2, 1 << 44, b"", None, (("é", b""),)),
    ]
    for one in given:
        builder.append(one.offset, one.timestamp, one.key, one.value, list(one.headers))
    theirs = bytes(builder.build())
    ours = batches.build(given, leader_epoch=0, producer_id=7, producer_epoch=1, base_sequence=3)
    assert bytes(patched(theirs, 12, ">i", 0, crc=False)) == ours
    read: Any = DefaultRecordBatch(ours)
    assert read.validate_crc()
    assert [
        (one.offset, one.timestamp, one.key, one.value, tuple(one.headers)) for one in read
    ] == [(one.offset, one.timestamp, one.key, one.value, one.headers) for one in given]


def test_a_header_says_what_the_batch_was_built_with() -> None:
    data = batches.build(
        [record(timestamp=5), record(timestamp=9), record(timestamp=7)],
        base_offset=40, leader_epoch=2, producer_id=7, producer_epoch=1, base_sequence=3,
        compression=Codec.ZSTD, attributes=batches.LOG_APPEND_TIME,
    )  # fmt: skip
    header = batches.read_header(b"skipped" + data, 7)
    assert header == produced.check(memoryview(patched(data, 0, ">q", 0, crc=False)))._replace(
        base_offset=40
    )
    assert (header.size, header.last_offset, header.record_count) == (len(data), 42, 3)
    assert (header.base_timestamp, header.max_timestamp, header.timestamp_type) == (5, 9, 1)
    assert (header.codec, header.is_control, header.leader_epoch) == (Codec.ZSTD, False, 2)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 1, 3)


def test_a_stamp_changes_place_and_nothing_else() -> None:
    data = bytearray(b"??" + batches.build([record(), record()]))
    batches.stamp(data, 2, len(data) - 2, 1234, 5)
    header = batches.read_header(data, 2)
    assert (header.base_offset, header.leader_epoch) == (1234, 5)
    assert [one.offset for one in batches.records(data[2:])] == [1234, 1235]


def test_headers_walks_whole_batches_and_leaves_a_partial_one() -> None:
    first, second = batches.build([record()]), batches.build([record(b"longer")], base_offset=1)
    both = first + second
    for size in range(len(both) + 1):
        whole = (size >= len(first)) + (size >= len(both))
        assert len(batches.headers(both[:size])) == whole
        assert len(list(batches.records(both[:size]))) == whole


def test_headers_refuses_what_is_no_batch() -> None:
    good = batches.build([record()])
    for junk in (bytes(100), patched(good, 16, ">b", 1), patched(good, 8, ">i", 48)):
        with pytest.raises(CorruptBatch):
            batches.headers(good + junk)


GOOD = batches.build([record(), record()])


@pytest.mark.parametrize(
    ("data", "why"),
    [
        pytest.param(b"", "no record batch", id="nothing"),
        pytest.param(GOOD + GOOD, "one whole batch", id="two batches"),
        pytest.param(GOOD + b"\0", "one whole batch", id="trailing byte"),
        pytest.param(GOOD[:-1], "one whole batch", id="byte missing"),
        pytest.param(patched(GOOD, 16, ">b", 1), "magic 1", id="magic 1"),
        pytest.param(patched(GOOD, 0, ">q", 5), "base offset 5", id="base offset"),
        pytest.param(patched(GOOD, 57, ">i", 3), "3 records", id="count above deltas"),
        pytest.param(
            patched(patched(GOOD, 23, ">i", -1), 57, ">i", 0), "0 records", id="no records"
        ),
        pytest.param(patched(GOOD, 21, ">h", 5), "codec 5", id="unknown codec"),
        pytest.param(patched(GOOD, 21, ">h", 0x20), "control", id="control batch"),
        pytest.param(patched(GOOD, 43, ">q", 9), "without epoch", id="producer without sequence"),
    ],
)
def test_nobody_may_produce(data: bytes | bytearray, why: str) -> None:
    with pytest.raises(produced.InvalidRecord, match=why):
        produced.check(memoryview(data))


@pytest.mark.parametrize("position", [*range(17, 30), len(GOOD) - 1])
def test_a_flipped_bit_is_corrupt(position: int) -> None:
    data = bytearray(GOOD)
    data[position] ^= 1
    with pytest.raises(CorruptBatch, match="checksum"):
        produced.check(memoryview(data))


def test_a_length_without_room_for_a_header_is_corrupt() -> None:
    with pytest.raises(CorruptBatch, match="no room"):
        produced.check(memoryview(patched(GOOD, 8, ">i", 48)))


def test_control_batches_are_no_records() -> None:
    control = batches.build([record()], attributes=batches.CONTROL)
    data = control + batches.build([record(b"user")], base_offset=1)
    assert [one.value for one in batches.records(data)] == [b"user"]


def test_log_append_time_is_the_same_for_all_records() -> None:
    given = [record(timestamp=5), record(timestamp=9)]
    data = batches.build(given, attributes=batches.LOG_APPEND_TIME)
    assert [one.timestamp for one in batches.records(data)] == [9, 9]


def test_a_header_name_that_is_not_utf8_is_replaced(odd_header_batch: bytes) -> None:
    found = list(batches.records(odd_header_batch))
    assert found[0].headers == (("\ufffd", None),)


def test_broken_records_are_corrupt(broken_batch: bytes) -> None:
    with pytest.raises(CorruptBatch):
        list(batches.records(broken_batch))


TEXTS = st.none() | st.binary(max_size=9_000)


@given(
    st.lists(
        st.tuples(st.integers(0, 1 << 40), TEXTS, TEXTS, st.lists(st.tuples(st.text(), TEXTS))),
        min_size=1, max_size=5,
    ),
    st.sampled_from([Codec.NONE, Codec.GZIP]),
)  # fmt: skip
def test_entries_are_the_keys_and_values_of_records(given_records: Any, codec: Codec) -> None:
    given_ = [
        Record(0, time, key, value, tuple(headers)) for time, key, value, headers in given_records
    ]
    data = batches.build(given_, base_offset=7, compression=codec) + batches.build(
        [record()], base_offset=99, attributes=batches.CONTROL
    )
    assert list(batches.entries(data)) == [
        (one.offset, one.key, one.value) for one in batches.records(data)
    ]


def test_entries_refuse_what_records_refuse() -> None:
    whole = batches.build([record(b"one"), record(b"two")])
    body = whole[batches.HEADER_BYTES :]
    header = batches.read_header(whole)
    for damaged in (body[:-1], body + b"\0", b"\x01" + body[1:], b"\x7e" + body[1:], b""):
        data = batches.seal(header, damaged)
        with pytest.raises(CorruptBatch):
            list(batches.records(data))
        with pytest.raises(CorruptBatch):
            list(batches.entries(data))
