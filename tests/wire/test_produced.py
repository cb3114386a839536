"""Validation of produced batches by the kernel and by plain Python, against a model.

The model is written from Kafka's DefaultRecord and LogValidator, and shares no code with either.
"""

import gzip
import importlib.util
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import aiokafka.record.default_records as aiokafka_records
import cramjam
import kafka.record.default_records as kafka_records
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.wire import _codec, batches, produced, record_times
from headrace.wire.batches import HEADER_BYTES, BatchHeader, Record
from headrace.wire.compression import Codec, compress, decompress
from headrace.wire.primitives import Malformed

INT64 = (-(1 << 63), (1 << 63) - 1)
RULES: produced.Rules = (*INT64, False, 1_000)
GOLDEN = Path(__file__).parent.parent / "golden"
EXAMPLES = settings(max_examples=150, deadline=None)


class Modelled(NamedTuple):
    max_timestamp: int
    wrong: list[tuple[int, int]]


class Refusal(Exception):
    """The model refuses a batch."""


class Cursor:
    """Bytes of a record, read as the specification spells them."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def octet(self) -> int:
        if self.at >= len(self.data):
            raise Refusal("the bytes end")
        self.at += 1
        return self.data[self.at - 1]

    def number(self, octets: int) -> int:
        value = 0
        for index in range(octets):
            octet = self.octet()
            value += (octet % 128) * (1 << 7 * index)
            if octet < 128:
                value %= 1 << 64
                return value // 2 if value % 2 == 0 else -(value // 2) - 1
        raise Refusal("a number without an end")

    def field(self) -> bytes | None:
        size = self.number(5)
        if size < -1:
            raise Refusal("a negative size")
        if size == -1:
            return None
        return self.take(size)

    def take(self, size: int) -> bytes:
        if size < 0 or self.at + size > len(self.data):
            raise Refusal("a size beyond the end")
        self.at += size
        return self.data[self.at - size : self.at]

    def end(self) -> None:
        if self.at != len(self.data):
            raise Refusal("bytes behind the end")


def model(body: bytes, header: BatchHeader, rules: produced.Rules) -> Modelled:
    """Validate as the specification says, one record object after the other."""
    earliest, latest, is_keyed, headers_max = rules
    source, headers, times = Cursor(body), 0, list[int]()
    wrong: list[tuple[int, int]] = []
    for index in range(header.record_count):
        record = Cursor(source.take(source.number(5)))
        record.octet()
        timestamp = header.base_timestamp + record.number(10)
        if record.number(5) != index or not INT64[0] <= timestamp <= INT64[1]:
            raise Refusal("offset or timestamp")
        key = record.field()
        record.field()
        count = record.number(5)
        if count < 0:
            raise Refusal("a negative number of headers")
        for _ in range(count):
            if record.field() is None:
                raise Refusal("a header without a name")
            record.field()
        record.end()
        headers += count
        times.append(timestamp)
        if is_keyed and key is None:
            wrong.append((index, produced.KEYLESS))
        elif timestamp != -1 and not earliest <= timestamp <= latest:
            wrong.append((index, produced.UNTIMELY))
    source.end()
    if headers > headers_max:
        raise Refusal("too many headers")
    return Modelled(max(times), wrong[: produced.WRONG_RECORDS_MAX])


def _uncompiled() -> ModuleType:
    source = Path(str(record_times.__file__)).with_name("_codec.py")
    spec = importlib.util.spec_from_file_location("plain_codec", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert not module.COMPILED
    return module


KERNELS: dict[str, ModuleType | None] = {
    "compiled": _codec,
    "uncompiled": _uncompiled(),
    "python": None,
}


def outcomes(
    monkeypatch: pytest.MonkeyPatch, body: bytes, header: BatchHeader, rules: produced.Rules
) -> dict[str, Modelled | None]:
    """What each implementation returns, None for a refusal; the model's under its name."""
    found: dict[str, Modelled | None] = {}
    for name, kernel in KERNELS.items():
        with monkeypatch.context() as patch:
            patch.setattr(produced, "_kernel", kernel)
            # Bytes around the records belong to others and must not be looked at.
            around = b"\x7f" * 3 + body + b"\x7f" * 3
            try:
                latest, wrong = produced.inspect(around, 3, 3 + len(body), header, rules)
                found[name] = Modelled(latest, list(wrong))
            except produced.InvalidRecord:
                found[name] = None
    try:
        found["model"] = model(body, header, rules)
    except Refusal:
        found["model"] = None
    return found


def agreed(found: dict[str, Modelled | None]) -> Modelled | None:
    first, *others = found.values()
    assert all(one == first for one in others), found
    return first


small = st.binary(max_size=70)
nullable = st.none() | small
header_lists = st.lists(st.tuples(st.text(max_size=5), nullable), max_size=4).map(tuple)
timestamps = st.integers(-1, 1 << 45) | st.sampled_from([-1, 0, 1000, *INT64])


def fits(records: Sequence[Record]) -> bool:
    """Whether the differences of times are 64-bit numbers, so that a batch can hold them."""
    base = records[0].timestamp
    return all(INT64[0] <= one.timestamp - base <= INT64[1] for one in records)


record_lists = st.lists(
    st.builds(Record, st.just(0), timestamps, nullable, nullable, header_lists),
    min_size=1,
    max_size=90,
).filter(fits)
rule_sets = st.tuples(
    st.sampled_from([INT64[0], 0, 1001]),
    st.sampled_from([INT64[1], 1 << 40]),
    st.booleans(),
    st.sampled_from([0, 3, 1_000]),
)


def built(records: Sequence[Record]) -> tuple[BatchHeader, bytes]:
    batch = batches.build(records)
    return batches.read_header(batch), batch[HEADER_BYTES:]


@EXAMPLES
@given(record_lists, rule_sets)
def test_valid_records_are_handled_as_by_the_model(
    records: list[Record], rules: produced.Rules
) -> None:
    header, body = built(records)
    with pytest.MonkeyPatch.context() as patch:
        found = agreed(outcomes(patch, body, header, rules))
    headers = sum(len(one.headers) for one in records)
    assert (found is None) == (headers > rules[3])


@EXAMPLES
@given(
    record_lists,
    rule_sets,
    st.lists(
        st.tuples(st.sampled_from(["set", "insert", "cut"]), st.integers(0), st.integers(0, 255)),
        min_size=1,
        max_size=4,
    ),
    st.integers(-2, 2),
)
def test_mutated_records_are_handled_as_by_the_model(
    records: list[Record],
    rules: produced.Rules,
    changes: list[tuple[str, int, int]],
    count: int,
) -> None:
    header, body = built(records)
    data = bytearray(body)
    for kind, place, octet in changes:
        at = place % (len(data) + 1)
        if kind == "insert":
            data.insert(at, octet)
        elif kind == "cut":
            del data[at : at + octet % 4]
        elif at < len(data):
            data[at] = octet
    header = header._replace(record_count=max(1, header.record_count + count))
    with pytest.MonkeyPatch.context() as patch:
        agreed(outcomes(patch, bytes(data), header, rules))


NUMBERS = [
    b"\x80\x80\x80\x80\x80\x00", b"\xff\xff\xff\xff\xff\x01", b"\xfe\xff\xff\xff\x1f",
    b"\xff\xff\xff\xff\x0f", b"\x80\x00", b"\xff" * 9 + b"\x01", b"\xff" * 10 + b"\x01", b"",
]  # fmt: skip


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("place", range(7))
def test_numbers_that_overflow_anywhere(
    monkeypatch: pytest.MonkeyPatch, number: bytes, place: int
) -> None:
    """Length, time, offset, key, value, headers, and the name of one."""
    fields = [b"\0", b"\0", b"\0", b"\1", b"\1", b"\2", b"\0\1"]
    if place:
        fields[place] = number + (b"\1" if place == 6 else b"")
    rest = b"".join(fields)
    length = number if place == 0 else batches.varint(len(rest))
    header = batches.read_header(batches.build([Record(0, 1000, None, None)]))
    agreed(outcomes(monkeypatch, length + rest, header, RULES))


def test_a_hundred_wrong_records_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    header, body = built([Record(0, 1000 + n, None, b"v") for n in range(250)])
    rules = (INT64[0], 1049, False, 1_000)
    found = agreed(outcomes(monkeypatch, body, header, rules))
    assert found == Modelled(1249, [(n, produced.UNTIMELY) for n in range(50, 150)])


def _batch_of(builder: Callable[..., Any], codec: Codec) -> bytes:
    fill = builder(
        2, compression_type=int(codec), is_transactional=0, producer_id=-1,
        producer_epoch=-1, base_sequence=-1, batch_size=1 << 20,
    )  # fmt: skip
    for n in range(200):
        headers = [("h", b"x"), ("none", None)] if n % 3 == 0 else []
        key = None if n % 2 else b"key %d" % n
        fill.append(n, 1_700_000_000_000 - n, key, None if n % 5 == 0 else b"v" * n, headers)
    return bytes(fill.build())


_BUILDERS: dict[str, Callable[..., Any]] = {
    "aiokafka": aiokafka_records._DefaultRecordBatchBuilderPy,
    "kafka-python": kafka_records.DefaultRecordBatchBuilder,
}


def require_readable(
    monkeypatch: pytest.MonkeyPatch, codec: int, stored: memoryview, size: int
) -> None:
    """As that of `produced`, by each kernel: they agree. Raises: Malformed."""
    refusals = []
    for kernel in KERNELS.values():
        with monkeypatch.context() as patch:
            patch.setattr(produced, "_kernel", kernel)
            try:
                produced.require_readable(codec, stored, size)
            except Malformed as error:
                refusals.append(str(error))
    if refusals:
        assert refusals == refusals[:1] * len(KERNELS)
        raise Malformed(refusals[0])


def lz4_frame(data: bytes, *, linked: bool = False, checksum: bool = False) -> bytes:
    frame = cramjam.lz4.Compressor(level=1, content_checksum=checksum, block_linked=linked)
    frame.compress(data)
    return bytes(frame.finish())


TEXT = b"".join(b"%d " % number for number in range(40_000))
LZ4, GZIP_TEXT = lz4_frame(TEXT), gzip.compress(TEXT)
HALF = len(TEXT) // 2
SKIPPABLE = struct.pack("<II", 0x184D2A50, 4) + b"abcd"
# Of two stored blocks and an end, with each of the frame's options. Nothing but libraries for LZ4
# verifies its checksums, so that they are 0 here.
BLOCKS_OF_4 = struct.pack("<I", 1 << 31 | 4) + b"abcd"


def lz4_by_hand(flags: int, *, block_checksum: bytes = b"", end: bytes = bytes(4)) -> bytes:
    head = LZ4[:4] + bytes([flags, 0x70]) + bytes(8 if flags & 8 else 0) + b"\0"
    return head + (BLOCKS_OF_4 + block_checksum) * 2 + end + bytes(4 if flags & 4 else 0)


@pytest.mark.parametrize(
    ("codec", "stored", "size"),
    [
        (Codec.LZ4, LZ4, len(TEXT)),
        (Codec.LZ4, lz4_frame(TEXT, checksum=True), len(TEXT)),  # as pierrec/lz4, of Go clients
        (Codec.LZ4, lz4_by_hand(0x60), 8),
        (Codec.LZ4, lz4_by_hand(0x68), 8),
        (Codec.LZ4, lz4_by_hand(0x64), 8),
        (Codec.LZ4, lz4_by_hand(0x7C, block_checksum=bytes(4)), 8),
        (Codec.GZIP, GZIP_TEXT, len(TEXT)),
        (Codec.ZSTD, compress(Codec.ZSTD, TEXT[:HALF]) + compress(Codec.ZSTD, TEXT), 1),
        (Codec.SNAPPY, compress(Codec.SNAPPY, TEXT), len(TEXT)),
        (Codec.NONE, TEXT, len(TEXT)),
    ],
)
def test_compression_that_every_client_reads(
    monkeypatch: pytest.MonkeyPatch, codec: Codec, stored: bytes, size: int
) -> None:
    require_readable(monkeypatch, codec, memoryview(stored), size)


@pytest.mark.parametrize(
    ("codec", "stored", "size", "reason"),
    [
        (Codec.LZ4, lz4_frame(TEXT[:HALF]) + lz4_frame(TEXT[HALF:]), len(TEXT), "one LZ4 frame"),
        (Codec.LZ4, lz4_frame(b"") + LZ4, len(TEXT), "one LZ4 frame"),
        (Codec.LZ4, LZ4 + SKIPPABLE, len(TEXT), "one LZ4 frame"),
        (Codec.LZ4, SKIPPABLE + LZ4, len(TEXT), "one LZ4 frame"),
        (Codec.LZ4, LZ4 + b"more", len(TEXT), "one LZ4 frame"),
        (Codec.LZ4, LZ4[:-1], len(TEXT), "one LZ4 frame"),
        (Codec.LZ4, LZ4[:6], len(TEXT), "one LZ4 frame"),
        (Codec.LZ4, b"", 0, "one LZ4 frame"),
        (Codec.LZ4, lz4_by_hand(0x60, end=b"\0\0\0\x80") + bytes(4), 8, "one LZ4 frame"),
        (Codec.LZ4, lz4_by_hand(0x60, end=b"\xff" * 4), 8, "one LZ4 frame"),
        (Codec.LZ4, lz4_frame(TEXT, linked=True), len(TEXT), "independent blocks"),
        (Codec.LZ4, lz4_frame(b"x", linked=True), 1, "independent blocks"),
        (Codec.LZ4, lz4_by_hand(0x61), 8, "independent blocks"),  # with a dictionary
        (Codec.GZIP, gzip.compress(TEXT[:HALF]) + gzip.compress(TEXT[HALF:]), len(TEXT), "member"),
        (Codec.GZIP, gzip.compress(b"") + GZIP_TEXT, len(TEXT), "member"),
        (Codec.GZIP, GZIP_TEXT + gzip.compress(b""), len(TEXT), "member"),
        (Codec.GZIP, b"", 0, "member"),
    ],
)
def test_compression_that_a_stock_client_cannot_read(
    monkeypatch: pytest.MonkeyPatch, codec: Codec, stored: bytes, size: int, reason: str
) -> None:
    """B4: librdkafka and Kafka's own decoder lose records of these, or all that follows."""
    with pytest.raises(Malformed, match=reason):
        require_readable(monkeypatch, codec, memoryview(stored), size)


# kafka-python has no libraries of its own for the other codecs.
_PRODUCERS = [("aiokafka", one) for one in Codec] + [
    ("kafka-python", one) for one in list(Codec)[:2]
]


@pytest.mark.parametrize(("library", "codec"), _PRODUCERS)
def test_batches_of_other_producers(
    monkeypatch: pytest.MonkeyPatch, library: str, codec: Codec
) -> None:
    batch = bytearray(_batch_of(_BUILDERS[library], codec))
    header = produced.check(memoryview(batch))
    assert header.codec == codec
    body = bytes(decompress(header.codec, batch[HEADER_BYTES:]))
    require_readable(monkeypatch, header.codec, memoryview(batch)[HEADER_BYTES:], len(body))
    found = agreed(outcomes(monkeypatch, body, header, RULES))
    assert found == Modelled(1_700_000_000_000, [])


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.log")), ids=lambda path: path.stem)
def test_batches_that_java_wrote(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """Those without holes, as producers send them; compaction leaves others."""
    data, position = path.read_bytes(), 0
    for header in batches.headers(data):
        body = bytes(batches.payload(data, position, header))
        stored = memoryview(data)[position + HEADER_BYTES : position + header.size]
        require_readable(monkeypatch, header.codec, stored, len(body))
        position += header.size
        if not header.record_count:
            continue
        found = agreed(outcomes(monkeypatch, body, header, RULES))
        if header.record_count == header.last_offset_delta + 1:
            assert found is not None


def sealed(batch: bytes, **changes: int) -> memoryview:
    """The batch with fields of its header changed, and its checksum right."""
    places = {"attributes": (21, ">h"), "last_delta": (23, ">i"), "count": (57, ">i")}
    places |= {"producer_id": (43, ">q"), "epoch": (51, ">h"), "sequence": (53, ">i")}
    data = bytearray(batch)
    for name, value in changes.items():
        at, layout = places[name]
        struct.pack_into(layout, data, at, value)
    struct.pack_into(">I", data, 17, crc32c(memoryview(data)[21:]))
    return memoryview(data)


ONE = batches.build([Record(0, 1000, None, b"v")])


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"attributes": 0x40}, "unknown bits"),  # the delete horizon is the cleaner's
        ({"attributes": 0x80}, "unknown bits"),
        ({"attributes": -0x8000}, "unknown bits"),
        ({"attributes": 0x20}, "control"),
        ({"attributes": 7}, "codec 7"),
        ({"count": 2}, "last offset delta"),
        ({"last_delta": 1}, "last offset delta"),
        ({"count": 0, "last_delta": -1}, "0 records"),
        ({"count": -1, "last_delta": -2}, "-1 records"),
        ({"producer_id": 5, "epoch": 0}, "without epoch or sequence"),
        ({"producer_id": 5, "sequence": 0}, "without epoch or sequence"),
    ],
)
def test_headers_that_are_refused(changes: dict[str, int], told: str) -> None:
    with pytest.raises(produced.InvalidRecord, match=told):
        produced.check(sealed(ONE, **changes))


@pytest.mark.parametrize("count", [1_000_000, (1 << 31) - 1])
def test_a_count_that_no_batch_of_its_size_holds(count: int) -> None:
    with pytest.raises(produced.InvalidRecord, match=f"claims {count} records"):
        produced.check(sealed(ONE, count=count, last_delta=count - 1))


def test_a_count_that_the_bytes_do_not_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    header = produced.check(sealed(ONE, count=2, last_delta=1))
    assert agreed(outcomes(monkeypatch, ONE[HEADER_BYTES:], header, RULES)) is None


def test_the_highest_time_is_corrected() -> None:
    batch = memoryview(bytearray(batches.build([Record(0, 7, None, b"v")])))
    header = produced.correct_max_timestamp(batch, produced.check(batch), 9)
    assert header.max_timestamp == 9
    assert produced.check(batch) == header


# ---- searches by time in stored batches


@EXAMPLES
@given(record_lists, st.integers(-1, 95), timestamps, st.sampled_from(Codec), st.booleans())
def test_times_are_found_as_by_decoding(
    records: list[Record], least: int, wanted: int, codec: Codec, stamped: bool
) -> None:
    attributes = batches.LOG_APPEND_TIME if stamped else 0
    batch = batches.build(records, base_offset=10, compression=codec, attributes=attributes)
    header = batches.read_header(batch)
    decoded = [one for one in batches.records(batch) if one.offset >= least]
    late = next(((one.offset, one.timestamp) for one in decoded if one.timestamp >= wanted), None)
    for kernel in KERNELS.values():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(record_times, "_kernel", kernel)
            found = record_times.find_time(batch, header, wanted, least)
        assert found.first == late
        if late is None:
            assert found.highest == max((one.timestamp for one in decoded), default=None)


def test_searches_agree_on_damaged_batches(
    broken_batch: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search reads neither keys nor headers, so it finds a time in some of them."""
    header = batches.read_header(broken_batch)
    found: list[record_times.InBatch | None] = []
    for kernel in KERNELS.values():
        monkeypatch.setattr(record_times, "_kernel", kernel)
        try:
            found.append(record_times.find_time(broken_batch, header, INT64[1], 0))
        except batches.CorruptBatch:
            found.append(None)
    assert found == [found[0]] * len(KERNELS)


def test_a_search_passes_over_a_million_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads six numbers of the record, whatever else is in it."""
    headers = batches.varint(1_000_000) + b"\0\1" * 1_000_000
    rest = b"\0\0\0\1\1" + headers
    body = batches.varint(len(rest)) + rest
    batch = batches.build_encoded(
        compress(Codec.ZSTD, body), record_count=1, base_timestamp=5, max_timestamp=5,
        attributes=Codec.ZSTD,
    )  # fmt: skip
    reads: list[int] = []

    def counted(data: bytes, position: int, bytes_max: int) -> tuple[int, int]:
        reads.append(position)
        return batches.read_varint(data, position, bytes_max)

    monkeypatch.setattr(record_times, "_kernel", None)
    monkeypatch.setattr(record_times, "read_varint", counted)
    found = record_times.find_time(batch, batches.read_header(batch), 5, 0)
    assert found.first == (0, 5)
    assert len(reads) == 3
